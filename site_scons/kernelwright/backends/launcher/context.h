/* The context that work is done in: the primary one of the device, unless the stream has a context of its own.
 * Afterwards the previous context is current again. */
#ifndef KW_CONTEXT_H
#define KW_CONTEXT_H

/* The default streams are those of the current context; any other stream knows its context. */
KW_FUNCTION bool kw_is_default_stream(CUstream stream) { return (uintptr_t)stream <= KW_LAST_DEFAULT_STREAM; }

/* Makes a context of the device current for work in a stream; `pushed` tells kw_leave what to undo.
 *
 * Memory of frameworks, and their default stream, belong to the primary context. So a default stream is that of the
 * primary context, also where the application has made another context of the device current. A stream that it has made
 * itself may be of that other context, which is left in place: the driver runs a kernel in the context of its stream
 * (cuda.h, cuLaunchKernelEx). */
KW_FUNCTION CUresult kw_try_enter(const kw_device *device, CUstream stream, bool *pushed) {
  CUcontext current = NULL;
  CUdevice active;
  *pushed = false;
  CUresult status = kw_cuda.context_current(&current);
  if (!status && current == device->context) return 0;
  bool may_stay = !status && current && !kw_is_default_stream(stream);
  if (may_stay && !kw_cuda.context_device(&active) && active == device->device) return 0;
  if (!status) status = kw_cuda.context_push(device->context);
  *pushed = !status;
  return status;
}

KW_FUNCTION int kw_enter(const kw_device *device, CUstream stream, bool *pushed) {
  CUresult status = kw_try_enter(device, stream, pushed);
  if (__builtin_expect(!status, 1)) return 0;
  return kw_raise_cuda(status, "making the context of cuda:%d current", device->device);
}

KW_FUNCTION void kw_leave(bool pushed) {
  CUcontext context;
  if (pushed) kw_cuda.context_pop(&context);
}

#endif
