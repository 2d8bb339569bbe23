/* What runs in the child of a fork. */
#ifndef KW_FORK_H
#define KW_FORK_H

/* What pthread_atfork calls. That function is in the part of the C library that is linked and not loaded, except for
 * x86-64; the libraries that stand in for the C library do not have that part. */
extern int __register_atfork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void), void *library);
extern __attribute__((visibility("hidden"))) void *__dso_handle;

/* Has every child of a fork call the function; 0 if that is well. */
static int kw_at_fork(void (*in_child)(void)) { return __register_atfork(NULL, NULL, in_child, __dso_handle); }

#endif
