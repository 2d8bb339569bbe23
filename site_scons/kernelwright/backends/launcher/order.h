/* Order between streams. Other libraries read what a kernel writes on streams of their own, and free what it reads
 * without knowing of the launch. */
#ifndef KW_ORDER_H
#define KW_ORDER_H

/* All of this is done in the primary context: outputs of our own are made there only, and an event is recorded in a
 * stream of its own context. The host can wait for any stream. */

/* The event is one that takes no time stamp. It may be destroyed at once: the driver keeps it until it has happened. */
KW_COLD CUresult kw_wait_for_event(CUstream from, CUstream to) {
  CUevent event;
  CUresult status = kw_cuda.event_create(&event, KW_EVENT_DISABLE_TIMING);
  if (status) return status;
  status = kw_cuda.event_record(event, from);
  if (!status) status = kw_cuda.stream_wait_event(to, event, 0);
  kw_cuda.event_destroy(event);
  return status;
}

/* Makes the stream `to` wait for what is on the stream `from` by now. On one stream there is nothing to do, so a graph
 * capture of that stream sees no event. */
KW_COLD int kw_order_streams(int id, CUstream from, CUstream to) {
  bool pushed;
  if (from == to) return 0;
  const kw_device *device = kw_get_device(id);
  if (!device || kw_enter(device, NULL, &pushed)) return -1;
  CUresult status = kw_wait_for_event(from, to);
  kw_leave(pushed);
  if (!status) return 0;
  return kw_raise_cuda(status, "making stream %#" PRIxPTR " of cuda:%d wait for stream %#" PRIxPTR, (uintptr_t)to, id,
                       (uintptr_t)from);
}

/* Raises if the stream is being captured into a graph: the host cannot wait for it then. */
KW_COLD int kw_refuse_captured(int id, CUstream stream) {
  bool pushed;
  int capturing = 0;
  const kw_device *device = kw_get_device(id);
  if (!device || kw_enter(device, NULL, &pushed)) return -1;
  CUresult status = kw_cuda.stream_capturing(stream, &capturing);
  kw_leave(pushed);
  if (status)
    return kw_raise_cuda(status, "asking whether stream %#" PRIxPTR " of cuda:%d is captured", (uintptr_t)stream, id);
  if (!capturing) return 0;
  return kw_raise("RuntimeError",
                  "the call would have to wait for stream %#" PRIxPTR " of cuda:%d, which is being captured into a "
                  "graph: it waits where an input is an array of JAX, and where an output is taken by a library that "
                  "names no stream\n"
                  "  remedy: capture calls with arrays of PyTorch or CuPy, or pass the outputs", (uintptr_t)stream, id);
}

/* Waits for all that is on the device. */
KW_COLD int kw_synchronize_device(int id) {
  const kw_device *device = kw_get_device(id);
  if (!device) return -1;
  CUresult status = kw_wait_for_device(device);
  return status ? kw_raise_cuda(status, "waiting for cuda:%d", id) : 0;
}

/* Waits for all that is on the stream. The thread may wait for a stream that is not captured while another is. */
KW_COLD int kw_synchronize_stream(int id, CUstream stream) {
  bool pushed;
  if (kw_refuse_captured(id, stream)) return -1;
  if (kw_enter(kw_get_device(id), NULL, &pushed)) return -1;
  int mode = kw_relax_capture();
  CUresult status = kw_cuda.stream_synchronize(stream);
  kw_restore_capture(mode);
  kw_leave(pushed);
  return status ? kw_raise_cuda(status, "waiting for stream %#" PRIxPTR " of cuda:%d", (uintptr_t)stream, id) : 0;
}

#endif
