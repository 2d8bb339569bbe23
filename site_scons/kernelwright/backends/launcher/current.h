/* The state of a thread in the launcher. Host code may call another kernel, so whoever changes this restores it. */
#ifndef KW_CURRENT_H
#define KW_CURRENT_H

/* What the running host code has done with its launches. */
enum { KW_LAUNCHED = 1, KW_SKIPPED = 2 };

typedef struct kw_thread {
  const kw_kernel *kernel;         /* whose library has called the launcher: errors name it */
  struct kw_workspace *workspaces; /* the newest outstanding one */
  int device;                      /* which the running host code has selected */
  int done;                        /* KW_LAUNCHED, KW_SKIPPED, or both */
} kw_thread;

static _Thread_local kw_thread kw_now __attribute__((unused));

/* What a thread was at before. */
typedef struct kw_before {
  kw_thread *thread;
  kw_thread state;
} kw_before;

/* Where the state of a thread is takes a call to find out, so that is kept, and hidden from the compiler, which would
 * ask again. */
KW_HOT kw_before kw_begin_kernel(const kw_kernel *kernel) {
  kw_thread *thread = &kw_now;
  __asm__("" : "+r"(thread));
  kw_before before = {thread, *thread};
  thread->kernel = kernel;
  return before;
}

KW_HOT void kw_end_kernel(const kw_before *before) {
  before->thread->kernel = before->state.kernel;
  before->thread->device = before->state.device;
  before->thread->done = before->state.done;
}

#endif
