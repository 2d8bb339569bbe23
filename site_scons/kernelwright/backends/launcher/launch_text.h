/* A launch that host code asks for, and its text in errors. A launch that was skipped is kept for such an error. */
#ifndef KW_LAUNCH_TEXT_H
#define KW_LAUNCH_TEXT_H

typedef struct kw_launch {
  const kw_function *function;
  const kw_device *device;
  unsigned int dims[KW_SLOTS];
} kw_launch;

KW_COLD void kw_append_dims(kw_text *text, const kw_launch *launch) {
  const unsigned int *d = launch->dims;
  kw_append(text, "grid (%u, %u, %u), block (%u, %u, %u)", d[0], d[1], d[2], d[3], d[4], d[5]);
  if (launch->function->clusters) kw_append(text, ", cluster (%u, %u, %u)", d[6], d[7], d[8]);
}

KW_COLD void kw_append_launch(kw_text *text, const kw_launch *launch) {
  const kw_loaded *loaded = atomic_load(&launch->function->module->loaded[launch->device - kw_devices]);
  kw_append(text, "device function %s, ", kw_name_in(loaded->image, launch->function));
  kw_append_dims(text, launch);
  kw_append(text, ", %u bytes of dynamic shared memory, cuda:%d (sm_%d)", launch->dims[KW_SHARED],
            launch->device->device, launch->device->capability);
}

KW_COLD int kw_raise_launch(CUresult status, const kw_launch *launch) {
  kw_text text = {0};
  kw_append_launch(&text, launch);
  return kw_raise_cuda(status, "launching %s", text.data);
}

/* The launch that a thread skipped last, for messages. */
static _Thread_local kw_launch kw_skipped __attribute__((unused));

/* A launch without a block or a thread is left out. If it is the only one, the call may be a mistake. */
KW_COLD int kw_skip_launch(const kw_launch *launch) {
  kw_skipped = *launch;
  kw_now.done |= KW_SKIPPED;
  return 0;
}

#endif
