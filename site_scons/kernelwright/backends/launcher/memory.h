/* Device memory of our own: temporary memory of kernels, and outputs for which no framework offers an allocator.
 *
 * Each device has one pool, which all kernel libraries of the process share. It keeps all memory that it has got from
 * the system. On a device without pools, memory is allocated directly.
 *
 * Temporary memory is allocated and freed in the stream of the launch, within one call.
 *
 * An output lives longer, and nothing tells when the last work on it is done. Other libraries get it through DLPack and
 * read it in streams of their own, and its own stream may be destroyed before it ends. It may end in any thread, while
 * a graph is captured, in a forked child or when the process ends. So nothing calls the driver when an output ends:
 *
 *   Its memory is put on a list. Memory on the list is freed once the device has done all work that it had when the
 *   list was taken. A call waits for that if it makes an output and more than KW_RELEASED_LIMIT bytes are on the list,
 *   or if the device has no memory left.
 *
 * No work on such memory is left then, so it may be freed in the stream of that call, which surely exists. Freeing in
 * the stream of the launch would not wait for readers in other streams: those of JAX, and all but the first of PyTorch
 * and CuPy, wait for no other stream. The wait costs little because it is rare. If another thread
 * captures a graph on the device, the wait makes that capture fail: that is an error, and not wrong numbers. */
#ifndef KW_MEMORY_H
#define KW_MEMORY_H

#include <stdlib.h>

/* A change of the structures, or of what is done with them, needs a new name. */
#define KW_MEMORY_NAME "kernelwright.device_memory.v2"

/* How many bytes of outputs that have ended may wait to be freed. */
#define KW_RELEASED_LIMIT (UINT64_C(256) << 20)

/* What the smallest output counts for, so that the list does not get long. */
#define KW_RELEASED_LEAST (UINT64_C(64) << 10)

/* An output that has ended. It is the beginning of a block from malloc. */
typedef struct kw_released {
  struct kw_released *next;
  CUdeviceptr pointer;
  uint64_t bytes;
} kw_released;

/* Threads and libraries change it without a lock, so that a fork cannot leave one locked. */
typedef struct kw_device_memory {
  _Atomic(CUmemoryPool) pool;
  _Atomic(kw_released *) released;
  _Atomic uint64_t waiting; /* bytes of what is in `released` */
  _Atomic uint64_t refused; /* how many waited when the last wait for the device failed; 0: it did not */
} kw_device_memory;

static kw_device_memory kw_own_memory[KW_MAX_DEVICES];
static kw_device_memory *kw_memory __attribute__((unused)) = kw_own_memory;

__attribute__((constructor)) static void kw_join_memory(void) { kw_memory = kw_share(KW_MEMORY_NAME, kw_own_memory); }

KW_FUNCTION kw_device_memory *kw_memory_of(const kw_device *device) { return &kw_memory[device - kw_devices]; }

/* ---- the pool ---- */

/* A pool that gives nothing back to the system. By default a pool gives all that is free back at each synchronisation.
 */
KW_COLD CUresult kw_make_pool(const kw_device *device, CUmemoryPool *pool) {
  kw_pool_properties properties = {.allocation_type = 1, .location_type = 1, .location = device->device};
  uint64_t keep = UINT64_MAX;
  CUresult status = kw_cuda.pool_create(pool, &properties);
  if (!status) status = kw_cuda.pool_set(*pool, KW_POOL_RELEASE_THRESHOLD, &keep);
  return status;
}

/* Of two threads that make one, the first wins. */
KW_COLD CUresult kw_add_pool(const kw_device *device, CUmemoryPool *pool) {
  CUmemoryPool made = NULL, none = NULL;
  int mode = kw_relax_capture();
  CUresult status = kw_make_pool(device, &made);
  *pool = made;
  if (!status && !atomic_compare_exchange_strong(&kw_memory_of(device)->pool, &none, made)) *pool = none;
  if (made && (status || none)) kw_cuda.pool_destroy(made);
  kw_restore_capture(mode);
  return status;
}

KW_FUNCTION CUresult kw_pool_of(const kw_device *device, CUmemoryPool *pool) {
  *pool = atomic_load_explicit(&kw_memory_of(device)->pool, memory_order_acquire);
  return __builtin_expect(*pool != NULL, 1) ? 0 : kw_add_pool(device, pool);
}

/* ---- memory that waits to be freed ---- */

/* Makes no call of the driver. The block begins with a kw_released, and is freed as well. */
static void kw_release_later(int id, kw_released *block) {
  kw_device_memory *memory = &kw_memory[id];
  atomic_fetch_add(&memory->waiting, block->bytes);
  block->next = atomic_load(&memory->released);
  while (!atomic_compare_exchange_weak(&memory->released, &block->next, block)) continue;
}

/* Waits until the device has done all that it was given in the primary context. */
KW_COLD CUresult kw_wait_for_device(const kw_device *device) {
  bool pushed;
  CUresult status = kw_try_enter(device, NULL, &pushed);
  if (status) return status;
  int mode = kw_relax_capture();
  status = kw_cuda.context_wait();
  kw_restore_capture(mode);
  kw_leave(pushed);
  return status;
}

KW_FUNCTION CUresult kw_free_device(const kw_device *device, CUdeviceptr pointer, CUstream stream) {
  if (device->memory_pools) return kw_cuda.memory_free_async(pointer, stream);
  int mode = kw_relax_capture();
  CUresult status = kw_cuda.memory_free(pointer);
  kw_restore_capture(mode);
  return status;
}

/* Frees what has been released. What cannot be waited for stays on the list: the device has failed, or a graph is being
 * captured. Such a wait makes the capture fail, so the next one comes after KW_RELEASED_LIMIT bytes more. The stream is
 * that of the call, and not captured. */
KW_COLD void kw_free_released(const kw_device *device, CUstream stream) {
  kw_device_memory *memory = kw_memory_of(device);
  kw_released *next, *block = atomic_exchange(&memory->released, NULL);
  if (!block) return;
  bool done = !kw_wait_for_device(device);
  for (; block; block = next) {
    next = block->next;
    atomic_fetch_sub(&memory->waiting, block->bytes);
    if (!done) {
      kw_release_later((int)(device - kw_devices), block);
      continue;
    }
    kw_free_device(device, block->pointer, stream);
    free(block);
  }
  atomic_store(&memory->refused, done ? 0 : atomic_load(&memory->waiting));
}

KW_FUNCTION bool kw_has_much_released(const kw_device *device) {
  kw_device_memory *memory = kw_memory_of(device);
  return atomic_load_explicit(&memory->waiting, memory_order_relaxed) >
         KW_RELEASED_LIMIT + atomic_load_explicit(&memory->refused, memory_order_relaxed);
}

/* ---- allocating; a context of the device is current ---- */

KW_FUNCTION CUresult kw_try_allocate(const kw_device *device, size_t bytes, CUstream stream, CUdeviceptr *pointer) {
  CUmemoryPool pool;
  if (device->memory_pools) {
    CUresult status = kw_pool_of(device, &pool);
    return status ? status : kw_cuda.memory_allocate_async(pointer, bytes, pool, stream);
  }
  int mode = kw_relax_capture();
  CUresult status = kw_cuda.memory_allocate(pointer, bytes);
  kw_restore_capture(mode);
  return status;
}

/* Memory for work in a stream. The wait would end a capture of the stream. */
KW_FUNCTION CUresult kw_allocate_device(const kw_device *device, size_t bytes, CUstream stream, CUdeviceptr *pointer) {
  int capturing = 1;
  CUresult status = kw_try_allocate(device, bytes, stream, pointer);
  if (__builtin_expect(status != KW_CUDA_ERROR_OUT_OF_MEMORY, 1)) return status;
  if (kw_cuda.stream_capturing(stream, &capturing) || capturing) return status;
  kw_free_released(device, stream);
  return kw_try_allocate(device, bytes, stream, pointer);
}

/* Whether a graph is captured from the stream: 1, 0, or -1 with an error raised. */
KW_FUNCTION int kw_is_captured(CUstream stream, int id) {
  int capturing = 0;
  CUresult status = kw_cuda.stream_capturing(stream, &capturing);
  if (status) return kw_raise_cuda(status, "asking whether a stream of cuda:%d is captured", id);
  return capturing != 0;
}

/* ---- temporary memory ---- */

/* In a captured stream the pool's memory belongs to the graph, from the node that allocates to the one that frees.
 * Plain memory would be freed before the graph runs. */
KW_FUNCTION int kw_check_plain(const kw_device *device, CUstream stream, int id) {
  if (__builtin_expect(device->memory_pools, 1)) return 0;
  int captured = kw_is_captured(stream, id);
  if (captured <= 0) return captured;
  return kw_raise("RuntimeError",
                  "it needs temporary memory, which a graph cannot hold on cuda:%d: the device has no memory pools\n"
                  "  remedy: call it outside of graph capture", id);
}

KW_FUNCTION int kw_take_workspace(const kw_device *device, int id, uint64_t bytes, CUstream stream,
                                   CUdeviceptr *pointer, bool zeroed) {
  if (kw_check_plain(device, stream, id)) return -1;
  CUresult status = kw_allocate_device(device, bytes ? bytes : 1, stream, pointer);
  if (status) return kw_raise_cuda(status, "allocating a workspace of %" PRIu64 " bytes on cuda:%d", bytes, id);
  if (zeroed && bytes) status = kw_cuda.memory_set_async(*pointer, 0, bytes, stream);
  if (!status) return 0;
  kw_free_device(device, *pointer, stream);
  return kw_raise_cuda(status, "filling a workspace of %" PRIu64 " bytes on cuda:%d with zeros", bytes, id);
}

KW_FUNCTION void *kw_cuda_allocate_workspace(int id, uint64_t bytes, bool zeroed) {
  CUdeviceptr pointer = 0;
  bool pushed;
  const kw_device *device = kw_get_device(id);
  CUstream stream = TVMFFIEnvGetStream(kDLCUDA, id);
  if (!device || kw_enter(device, stream, &pushed)) return NULL;
  int status = kw_take_workspace(device, id, bytes, stream, &pointer, zeroed);
  kw_leave(pushed);
  return status ? NULL : (void *)(uintptr_t)pointer;
}

KW_FUNCTION int kw_cuda_free_workspace(int id, void *data) {
  bool pushed;
  const kw_device *device = kw_get_device(id);
  CUstream stream = TVMFFIEnvGetStream(kDLCUDA, id);
  if (!device || kw_enter(device, stream, &pushed)) return -1;
  CUresult status = kw_free_device(device, (uintptr_t)data, stream);
  kw_leave(pushed);
  return status ? kw_raise_cuda(status, "freeing a workspace on cuda:%d", id) : 0;
}

/* ---- outputs ---- */

/* Memory of an output that is made in a captured stream would be the graph's, and gone when the graph has run. In a
 * stream of another context than the primary one its kernel would run where kw_wait_for_device does not wait. */
KW_FUNCTION int kw_check_output_stream(const kw_device *device, CUstream stream, int id) {
  CUcontext context = device->context;
  int captured = kw_is_captured(stream, id);
  if (captured < 0) return -1;
  if (captured)
    return kw_raise("RuntimeError",
                    "its output would be part of the graph that is captured on cuda:%d, and gone once that has run\n"
                    "  remedy: pass the outputs", id);
  CUresult status = kw_is_default_stream(stream) ? 0 : kw_cuda.stream_context(stream, &context);
  if (status) return kw_raise_cuda(status, "asking for the context of a stream of cuda:%d", id);
  if (context == device->context) return 0;
  return kw_raise("RuntimeError",
                  "its output would be made in a stream of another context of cuda:%d than the primary one\n"
                  "  remedy: pass the outputs", id);
}

/* Frees what outputs before have left, if it is much, and allocates one. */
KW_FUNCTION int kw_take_output(const kw_device *device, int id, size_t bytes, CUstream stream, CUdeviceptr *pointer) {
  if (kw_check_output_stream(device, stream, id)) return -1;
  if (kw_has_much_released(device)) kw_free_released(device, stream);
  CUresult status = kw_allocate_device(device, bytes, stream, pointer);
  return status ? kw_raise_cuda(status, "allocating %zu bytes for an output", bytes) : 0;
}

/* Null with an error raised. `released` is what kw_release_later will be given. */
KW_FUNCTION void *kw_cuda_allocate_output(int id, size_t bytes, kw_released *released) {
  bool pushed;
  const kw_device *device = kw_get_device(id);
  CUstream stream = TVMFFIEnvGetStream(kDLCUDA, id);
  if (!device || kw_enter(device, stream, &pushed)) return NULL;
  int status = kw_take_output(device, id, bytes, stream, &released->pointer);
  kw_leave(pushed);
  released->bytes = bytes > KW_RELEASED_LEAST ? bytes : KW_RELEASED_LEAST;
  return status ? NULL : (void *)(uintptr_t)released->pointer;
}

#endif
