/* Dynamic shared memory beyond what every function gets: a function is opted in to it once, and keeps it. */
#ifndef KW_SHARED_MEMORY_H
#define KW_SHARED_MEMORY_H

KW_COLD int kw_raise_shared(const kw_launch *launch, int static_shared) {
  kw_text text;
  kw_begin(&text);
  kw_append_launch(&text, launch);
  kw_append(&text, ": with %d bytes of static shared memory that is more than the %d bytes of a block on this device",
            static_shared, launch->device->shared_limit);
  kw_append(&text, "\n  remedy: call a variant with smaller tiles");
  return kw_raise_text("RuntimeError", &text);
}

/* Opts a function in to more dynamic shared memory than every function gets; the lock is held. */
KW_COLD int kw_opt_in_shared(const kw_launch *launch, struct kw_loaded_function *function) {
  const kw_device *device = launch->device;
  uint32_t wanted = launch->dims[KW_SHARED];
  if (wanted <= atomic_load(&function->shared_limit)) return 0;
  if ((int64_t)wanted + function->static_shared > device->shared_limit)
    return kw_raise_shared(launch, function->static_shared);
  int mode = kw_relax_capture();
  CUresult status = kw_cuda.kernel_set(KW_FUNCTION_MAX_DYNAMIC_SHARED, (int)wanted, function->kernel, device->device);
  kw_restore_capture(mode);
  if (status) return kw_raise_launch(status, launch);
  atomic_store_explicit(&function->shared_limit, wanted, memory_order_release);
  return 0;
}

KW_COLD int kw_extend_shared(const kw_launch *launch, struct kw_loaded_function *function) {
  kw_lock_cuda();
  int status = kw_opt_in_shared(launch, function);
  kw_unlock_cuda();
  return status;
}

#endif
