/* Which kernel a thread runs: errors name it. */
#ifndef KW_CURRENT_H
#define KW_CURRENT_H

/* The kernel whose library has called the launcher in this thread. */
static _Thread_local const kw_kernel *kw_current_kernel __attribute__((unused));

/* The device that the host code running in this thread has selected. */
static _Thread_local int kw_current_device __attribute__((unused));

/* What was current before. Host code may call another kernel, which comes back here. */
typedef struct kw_before {
  const kw_kernel *kernel;
  int device;
} kw_before;

KW_HOT kw_before kw_begin_kernel(const kw_kernel *kernel) {
  kw_before before = {kw_current_kernel, kw_current_device};
  kw_current_kernel = kernel;
  return before;
}

KW_HOT void kw_end_kernel(kw_before before) {
  kw_current_kernel = before.kernel;
  kw_current_device = before.device;
}

#endif
