/* Functions that C++ and CUDA's runtime call, and that the C library of a package lacks: they are in newer versions
 * only, or in the part of the C library that is linked and not loaded. It is compiled into libraries of sources.
 *
 * Headers and archives of the machine that builds are for its own glibc. The library is linked with an older one, where
 * these functions have other names or do not exist. Here they are defined by functions that the older one has. */
#ifndef KW_OLDER_H
#define KW_OLDER_H

#include <stdlib.h>

#define KW_HIDDEN __attribute__((visibility("hidden")))

/* glibc 2.32: whether the process has one thread only, which nobody has to know. libstdc++ counts references faster
 * then. */
KW_HIDDEN char __libc_single_threaded = 0;

/* Always linked: the handle tells which library the function belongs to. */
extern int __cxa_atexit(void (*function)(void *), void *argument, void *handle);
extern KW_HIDDEN void *__dso_handle;
KW_HIDDEN int atexit(void (*function)(void)) { return __cxa_atexit((void (*)(void *))(void *)function, NULL, __dso_handle); }

/* Linked before glibc 2.33, which has them under these names; the first argument is the version of the structure. */
#if defined(__aarch64__)
#define KW_STAT 0
#else
#define KW_STAT 1
#endif
struct stat;
extern int __xstat(int version, const char *path, struct stat *result);
extern int __lxstat(int version, const char *path, struct stat *result);
extern int __fxstat(int version, int file, struct stat *result);
KW_HIDDEN int stat(const char *path, struct stat *result) { return __xstat(KW_STAT, path, result); }
KW_HIDDEN int lstat(const char *path, struct stat *result) { return __lxstat(KW_STAT, path, result); }
KW_HIDDEN int fstat(int file, struct stat *result) { return __fxstat(KW_STAT, file, result); }

#if defined(__aarch64__)
/* Always linked, except for x86-64. */
extern int __register_atfork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void), void *library);
KW_HIDDEN int pthread_atfork(void (*before)(void), void (*in_parent)(void), void (*in_child)(void)) {
  return __register_atfork(before, in_parent, in_child, __dso_handle);
}
#endif

/* glibc 2.38: as C23 has them, with binary numbers. */
#define KW_C23(type, name)                                                                       \
  extern type kw_##name(const char *text, char **end, int base) __asm__(#name);                  \
  KW_HIDDEN type __isoc23_##name(const char *text, char **end, int base) { return kw_##name(text, end, base); }
KW_C23(long, strtol)
KW_C23(unsigned long, strtoul)
KW_C23(long long, strtoll)
KW_C23(unsigned long long, strtoull)

#endif
