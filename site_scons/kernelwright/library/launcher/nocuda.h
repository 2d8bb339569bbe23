/* What a library without CUDA code has in place of driver.h, cuda.h, memory.h and order.h: these are most of what the C
 * compiler has to do for a small kernel.
 *
 * A call with CUDA arrays finds no signature for them, and says so (kw_raise_no_target), before it would come here.
 * Nothing of the library runs on a GPU, so no stream is ever to be waited for. */
#ifndef KW_NOCUDA_H
#define KW_NOCUDA_H

/* ---- cuda.h ---- */

typedef struct kw_choice {
  int index;
} kw_choice;

KW_COLD int kw_raise_no_cuda(void) { return kw_raise("RuntimeError", "it was built without code for CUDA devices"); }

KW_FUNCTION int kw_choose(const kw_module *module, int id, kw_choice *choice) {
  (void)module, (void)id, (void)choice;
  return kw_raise_no_cuda();
}

KW_FUNCTION struct kw_loaded *kw_get_loaded(kw_module *module, int id) {
  (void)module, (void)id;
  return kw_raise_no_cuda(), NULL;
}

KW_FUNCTION const kw_identity *kw_device_identity(int id) {
  (void)id;
  return kw_raise_no_cuda(), NULL;
}

/* ---- memory.h ---- */

typedef struct kw_released {
  struct kw_released *next;
} kw_released;

KW_FUNCTION void *kw_cuda_allocate_workspace(int id, uint64_t bytes) {
  (void)id, (void)bytes;
  return kw_raise_no_cuda(), NULL;
}

KW_FUNCTION int kw_cuda_free_workspace(int id, void *data) {
  (void)id, (void)data;
  return kw_raise_no_cuda();
}

KW_FUNCTION void *kw_cuda_allocate_output(int id, size_t bytes, kw_released *released) {
  (void)id, (void)bytes, (void)released;
  return kw_raise_no_cuda(), NULL;
}

KW_FUNCTION void kw_release_later(int id, kw_released *block) { (void)id, (void)block; }

/* ---- order.h: asked before and after a call with arrays of JAX, which fails with an error of its own ---- */

KW_FUNCTION int kw_order_streams(int id, void *from, void *to) {
  (void)id, (void)from, (void)to;
  return 0;
}

KW_FUNCTION int kw_refuse_captured(int id, void *stream) {
  (void)id, (void)stream;
  return 0;
}

KW_FUNCTION int kw_synchronize_device(int id) {
  (void)id;
  return 0;
}

KW_FUNCTION int kw_synchronize_stream(int id, void *stream) {
  (void)id, (void)stream;
  return 0;
}

#endif
