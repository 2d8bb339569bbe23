/* Outputs that the kernel's library has allocated become arrays of the caller's library. */
#ifndef KW_PYTHON_RESULT_H
#define KW_PYTHON_RESULT_H

static void kw_delete_versioned(PyObject *capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor_versioned")) return; /* somebody has taken it */
  DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, "dltensor_versioned");
  if (managed->deleter) managed->deleter(managed);
}

static void kw_delete_managed(PyObject *capsule) {
  if (!PyCapsule_IsValid(capsule, "dltensor")) return;
  DLManagedTensor *managed = PyCapsule_GetPointer(capsule, "dltensor");
  if (managed->deleter) managed->deleter(managed);
}

/* A DLPack capsule that shares the tensor, in the form of DLPack 1 or in the older one. */
KW_FUNCTION PyObject *kw_capsule_of(TVMFFIObjectHandle tensor, bool versioned) {
  DLManagedTensorVersioned *newer;
  DLManagedTensor *older;
  int status = versioned ? kw_ffi.TVMFFITensorToDLPackVersioned(tensor, &newer)
                         : kw_ffi.TVMFFITensorToDLPack(tensor, &older);
  if (status) return kw_raise_taken(), NULL;
  PyObject *capsule = versioned ? PyCapsule_New(newer, "dltensor_versioned", kw_delete_versioned)
                                : PyCapsule_New(older, "dltensor", kw_delete_managed);
  if (!capsule && versioned) newer->deleter(newer);
  else if (!capsule) older->deleter(older);
  return capsule;
}

KW_FUNCTION void kw_keep(TVMFFIObjectHandle tensor) { kw_ffi.TVMFFIObjectIncRef(tensor); }

KW_FUNCTION void kw_drop(TVMFFIObjectHandle tensor) {
  if (tensor) kw_ffi.TVMFFIObjectDecRef(tensor);
}

KW_FUNCTION const DLTensor *kw_dltensor_of(TVMFFIObjectHandle tensor) {
  return (const DLTensor *)((const char *)tensor + sizeof(TVMFFIObject));
}

/* By the C functions of the caller's library. */
KW_FUNCTION PyObject *kw_exchange_output(const DLPackExchangeAPI *exchange, TVMFFIObjectHandle tensor) {
  DLManagedTensorVersioned *managed;
  void *object = NULL;
  if (kw_ffi.TVMFFITensorToDLPackVersioned(tensor, &managed)) return kw_raise_taken(), NULL;
  if (!exchange->managed_tensor_to_py_object_no_sync(managed, &object)) return object;
  managed->deleter(managed);
  return NULL;
}

/* Makes an object with DLPack that shares the tensor; the extension module sets it. On a GPU the object is told the kernel
 * object, which can order streams, the stream of the launch, and what keeps that alive; otherwise None. */
static PyObject *(*kw_new_output)(TVMFFIObjectHandle tensor, PyObject *kernel, PyObject *stream, PyObject *kept);

KW_COLD PyObject *kw_new_cuda_output(const kw_call *call, TVMFFIObjectHandle tensor) {
  PyObject *stream = PyLong_FromVoidPtr(kw_stream_of(call));
  PyObject *kept = call->stream_object ? call->stream_object : Py_None;
  PyObject *output = stream ? kw_new_output(tensor, call->self, stream, kept) : NULL;
  Py_XDECREF(stream);
  return output;
}

/* The C functions know no order. With a stream that the caller gave, the current one of the library is made to wait for
 * an output that the library has not allocated itself. */
KW_COLD int kw_order_taker(const kw_call *call) {
  const DLPackExchangeAPI *exchange = call->exchange;
  void *current = NULL;
  if (exchange->managed_tensor_allocator || !exchange->current_work_stream) return 0;
  if (exchange->current_work_stream(call->device.device_type, call->device.device_id, &current)) return -1;
  int64_t numbers[3] = {call->device.device_id, (int64_t)(intptr_t)call->stream, (int64_t)(intptr_t)current};
  PyObject *none = kw_call_service(call->kernel, "kw_order", numbers, 3);
  Py_XDECREF(none);
  return none ? 0 : -1;
}

KW_FUNCTION PyObject *kw_make_output(const kw_call *call, TVMFFIObjectHandle tensor) {
  if (KW_UNLIKELY(call->has_stream) && call->exchange && kw_order_taker(call)) return NULL;
  if (call->exchange) return kw_exchange_output(call->exchange, tensor);
  PyObject *output = call->device.device_type == kDLCPU ? kw_new_output(tensor, Py_None, Py_None, Py_None)
                                                        : kw_new_cuda_output(call, tensor);
  if (!output || !call->first) return output;
  PyObject *adopted = PyObject_CallMethod(call->self, "_adopt", "OO", output, call->first);
  Py_DECREF(output);
  return adopted;
}

KW_FUNCTION PyObject *kw_make_outputs(const kw_call *call, const TVMFFISeqCell *cell) {
  const TVMFFIAny *items = cell->data;
  PyObject *outputs = PyTuple_New((Py_ssize_t)cell->size);
  for (int64_t i = 0; outputs && i < cell->size; ++i) {
    PyObject *output = kw_make_output(call, items[i].v_ptr);
    if (!output || PyTuple_SetItem(outputs, (Py_ssize_t)i, output)) Py_CLEAR(outputs);
  }
  return outputs;
}

KW_FUNCTION bool kw_is_text(const TVMFFIAny *result) {
  return result->type_index == kTVMFFISmallStr || result->type_index == kTVMFFIStr;
}

KW_COLD PyObject *kw_take_text(const TVMFFIAny *result) {
  if (result->type_index == kTVMFFISmallStr)
    return PyUnicode_FromStringAndSize(result->v_bytes, result->small_str_len);
  const TVMFFIByteArray *bytes = (const TVMFFIByteArray *)((const char *)result->v_ptr + sizeof(TVMFFIObject));
  PyObject *text = PyUnicode_DecodeUTF8(bytes->data, (Py_ssize_t)bytes->size, "replace");
  kw_ffi.TVMFFIObjectDecRef(result->v_ptr);
  return text;
}

/* What a call returns: nothing, one output, or a tuple of them; kw_choice returns a text. Takes the result.
 *
 * Not Py_RETURN_NONE: in the headers of Python 3.12 and 3.13 it does not count the reference, which is right there and
 * wrong when the module is loaded in 3.11. */
KW_FUNCTION PyObject *kw_make_result(const kw_call *call, const TVMFFIAny *result) {
  if (KW_LIKELY(result->type_index == kTVMFFINone)) return Py_NewRef(Py_None);
  if (KW_UNLIKELY(kw_is_text(result))) return kw_take_text(result);
  PyObject *made;
  if (result->type_index == kTVMFFITensor) made = kw_make_output(call, result->v_ptr);
  else made = kw_make_outputs(call, (const TVMFFISeqCell *)((const char *)result->v_ptr + sizeof(TVMFFIObject)));
  kw_ffi.TVMFFIObjectDecRef(result->v_ptr);
  return made;
}

#endif
