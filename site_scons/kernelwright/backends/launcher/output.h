/* Outputs that the caller left out: their shapes, their memory, and how they are returned. */
#ifndef KW_OUTPUT_H
#define KW_OUTPUT_H

#include <stddef.h>
#include <stdlib.h>

/* ---- memory of our own, where no framework offers any ---- */

/* A tensor with its shape and strides behind it. On CUDA the block outlives the tensor: it notes the memory that waits
 * to be freed. */
typedef struct kw_own_tensor {
  kw_released released;
  DLManagedTensorVersioned managed;
  int64_t dims[];
} kw_own_tensor;

static void kw_free_own_tensor(DLManagedTensorVersioned *managed) {
  kw_own_tensor *own = (kw_own_tensor *)((char *)managed - offsetof(kw_own_tensor, managed));
  const DLTensor *tensor = &managed->dl_tensor;
  if (tensor->device.device_type != kDLCPU) {
    kw_release_later(tensor->device.device_id, &own->released);
    return;
  }
  free(tensor->data);
  free(own);
}

KW_FUNCTION int kw_allocate_data(kw_own_tensor *own, int64_t count) {
  DLTensor *tensor = &own->managed.dl_tensor;
  uint64_t bits = (uint64_t)tensor->dtype.bits * tensor->dtype.lanes;
  size_t bytes = ((uint64_t)count * bits + 7) / 8;
  if (!bytes) bytes = 1;
  if (tensor->device.device_type != kDLCPU) {
    tensor->data = kw_cuda_allocate_output(tensor->device.device_id, bytes, &own->released);
    return tensor->data ? 0 : -1;
  }
  if (!posix_memalign(&tensor->data, KW_ALIGNMENT, bytes)) return 0;
  return kw_raise("MemoryError", "no memory for an output of %zu bytes", bytes);
}

KW_FUNCTION int kw_allocate_own(const DLTensor *prototype, int64_t count, TVMFFIObjectHandle *result) {
  int32_t ndim = prototype->ndim;
  kw_own_tensor *own = calloc(1, sizeof *own + 2 * (size_t)ndim * sizeof own->dims[0]);
  if (!own) return kw_raise("MemoryError", "no memory for an output");
  DLTensor *tensor = &own->managed.dl_tensor;
  own->managed.version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  own->managed.deleter = kw_free_own_tensor;
  *tensor = *prototype;
  tensor->shape = own->dims;
  tensor->strides = own->dims + ndim;
  int64_t stride = 1;
  for (int32_t i = ndim - 1; i >= 0; --i) {
    tensor->shape[i] = prototype->shape[i];
    tensor->strides[i] = stride;
    /* An empty tensor can have other sizes whose product overflows; its strides do not matter. */
    stride = (int64_t)((uint64_t)stride * (uint64_t)prototype->shape[i]);
  }
  if (kw_allocate_data(own, count)) return free(own), -1;
  if (!TVMFFITensorFromDLPackVersioned(&own->managed, 0, 0, result)) return 0;
  kw_free_own_tensor(&own->managed);
  return -1;
}

/* ---- one output ---- */

KW_COLD int kw_raise_output(const kw_argument *argument, const int64_t *dims, int64_t limit) {
  for (int32_t i = 0; i < argument->ndim; ++i)
    if (dims[i] == KW_NO_SIZE)
      return kw_raise("ValueError",
                      "dimension %d of output '%s' cannot be computed: it overflows int64, or divides by 0", i,
                      argument->name);
  kw_text text;
  kw_begin(&text);
  kw_append(&text, "output '%s' would have the shape ", argument->name);
  kw_append_shape(&text, argument->ndim, dims);
  kw_append(&text, ", expected sizes from 0, with a product up to the %" PRId64 " that int%d sizes allow", limit,
            kw_bits_of(limit));
  return kw_raise_text("ValueError", &text);
}

/* From the framework of the caller's tensors if it offers an allocator, otherwise our own. */
KW_FUNCTION int kw_allocate_output(kw_call *call, const kw_signature *signature, int32_t position, int64_t *dims,
                                   TVMFFIObjectHandle *result) {
  const kw_argument *argument = &signature->arguments[position];
  DLTensor prototype = {NULL, call->device, argument->ndim, argument->dtype, dims, NULL, 0};
  int64_t limit = signature->int32_sizes ? KW_INT32_LIMIT : INT64_MAX / 128;
  int64_t count = kw_count_within(&prototype, limit);
  if (count < 0) return kw_raise_output(argument, dims, limit);
  if (!count) call->adapted = true;
  int32_t leading;
  const DLTensor *leader = kw_leader(call, position, &leading);
  int64_t shape[leading + argument->ndim + 1];
  if (__builtin_expect(leader != NULL, 0)) {
    memcpy(shape, leader->shape, (size_t)leading * sizeof *shape);
    memcpy(shape + leading, dims + 1, (size_t)(argument->ndim - 1) * sizeof *shape);
    prototype.shape = shape, prototype.ndim += leading - 1, call->adapted = true;
  }
  if (TVMFFIEnvGetDLPackManagedTensorAllocator()) return TVMFFIEnvTensorAlloc(&prototype, result);
  return kw_allocate_own(&prototype, count, result);
}

/* ---- all outputs ---- */

KW_FUNCTION void kw_release_outputs(const kw_call *call, TVMFFIAny *arguments, int32_t end) {
  for (int32_t i = 0; i < end; ++i)
    if (!call->values[i]) TVMFFIObjectDecRef(arguments[i].v_ptr);
}

/* Fills in the complete argument list, with new tensors for the outputs. */
KW_FUNCTION int kw_complete_arguments(kw_call *call, const kw_signature *signature, TVMFFIAny *arguments) {
  int64_t dims[call->kernel->num_dims + 1], *next = dims;
  signature->output_shapes(call, dims);
  for (int32_t i = 0; i < call->kernel->num_arguments; ++i) {
    if (call->values[i]) {
      arguments[i] = *call->values[i];
      continue;
    }
    TVMFFIObjectHandle tensor = NULL;
    if (kw_allocate_output(call, signature, i, next, &tensor)) return kw_release_outputs(call, arguments, i), -1;
    arguments[i] = (TVMFFIAny){.type_index = kTVMFFITensor, .v_ptr = tensor};
    next += signature->arguments[i].ndim;
  }
  return 0;
}

/* The function that makes an FFI array, looked up at the first use and kept for the life of the process. */
KW_FUNCTION TVMFFIObjectHandle kw_array_function(void) {
  static const TVMFFIByteArray name = {"ffi.Array", 9};
  static _Atomic(TVMFFIObjectHandle) known;
  TVMFFIObjectHandle found = atomic_load_explicit(&known, memory_order_acquire), none = NULL;
  if (__builtin_expect(found != NULL, 1)) return found;
  if (TVMFFIFunctionGetGlobal(&name, &found)) return NULL;
  if (!found) return kw_raise("RuntimeError", "TVM-FFI has no function ffi.Array"), NULL;
  if (atomic_compare_exchange_strong(&known, &none, found)) return found;
  TVMFFIObjectDecRef(found);
  return none;
}

KW_FUNCTION int kw_return_array(const kw_call *call, TVMFFIAny *arguments, TVMFFIAny *result) {
  TVMFFIAny outputs[KW_CALL_ARGUMENTS];
  TVMFFIObjectHandle make_array = kw_array_function();
  const int32_t *returned = call->kernel->returned;
  int32_t count = 0;
  for (int32_t i = 0; !returned && i < call->kernel->num_arguments; ++i)
    if (!call->values[i]) outputs[count++] = arguments[i];
  for (; returned && count < call->kernel->num_outputs; ++count) outputs[count] = arguments[returned[count]];
  int status = make_array ? TVMFFIFunctionCall(make_array, outputs, count, result) : -1;
  kw_release_outputs(call, arguments, call->kernel->num_arguments);
  return status;
}

/* Hands the new tensors to the caller: one as it is, several as an FFI array. */
KW_FUNCTION int kw_return_outputs(const kw_call *call, TVMFFIAny *arguments, TVMFFIAny *result) {
  if (call->kernel->num_outputs > 1) return kw_return_array(call, arguments, result);
  for (int32_t i = 0; i < call->kernel->num_arguments; ++i)
    if (!call->values[i]) *result = arguments[i];
  return 0;
}

#endif
