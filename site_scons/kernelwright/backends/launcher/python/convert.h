/* Python objects become arguments of the kernel's library: numbers by value, arrays as DLTensors that point to them. */
#ifndef KW_PYTHON_CONVERT_H
#define KW_PYTHON_CONVERT_H

#include "computed.h"

/* ---- refusals, which the kernel object words ---- */

/* The exception that is set, which then is not any more; owned. */
KW_COLD PyObject *kw_take_exception(void) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  if (traceback) PyException_SetTraceback(value, traceback);
  Py_XDECREF(type);
  Py_XDECREF(traceback);
  return value;
}

/* Raises that an array cannot be passed, because of the exception that is set. */
KW_COLD int kw_refuse(const kw_call *call, const kw_parameter *parameter, PyObject *object) {
  PyObject *cause = kw_take_exception();
  Py_XDECREF(PyObject_CallMethod(call->self, "_refuse_array", "sOO", parameter->name, object, cause));
  Py_XDECREF(cause);
  return -1;
}

KW_COLD int kw_refuse_writing(const kw_call *call, const kw_parameter *parameter, const char *what) {
  Py_XDECREF(PyObject_CallMethod(call->self, "_refuse_writing", "ss", parameter->name, what));
  return -1;
}

/* ---- the buffer protocol ---- */

/* DLPack's type code of an element of a buffer, by the struct module's letters; -1 if DLPack has none. */
KW_FUNCTION int kw_code_of(const char *format) {
  if (!format) return kDLUInt; /* bytes */
  if (*format == '@' || *format == '=' || *format == '<') ++format;
  if (*format == 'Z' && (format[1] == 'f' || format[1] == 'd') && !format[2]) return kDLComplex;
  if (!*format || format[1]) return -1;
  if (strchr("efd", *format)) return kDLFloat;
  if (strchr("bhilqn", *format)) return kDLInt;
  if (strchr("BHILQN", *format)) return kDLUInt;
  return *format == '?' ? kDLBool : -1;
}

/* Strides in elements; null, which means compact, if there are none. */
KW_FUNCTION int kw_set_strides(kw_tensor *tensor) {
  const Py_buffer *buffer = &tensor->buffer;
  tensor->tensor.strides = NULL;
  if (!buffer->strides) return 0;
  bool empty = !buffer->len;
  for (int i = 0; i < buffer->ndim; ++i) {
    int64_t stride = buffer->strides[i] / (buffer->itemsize ? buffer->itemsize : 1);
    if (KW_UNLIKELY(stride * buffer->itemsize != buffer->strides[i] && buffer->shape[i] > 1 && !empty)) return -1;
    tensor->strides[i] = stride;
  }
  tensor->tensor.strides = tensor->strides;
  return 0;
}

KW_FUNCTION int kw_take_buffer_of(kw_tensor *tensor) {
  Py_buffer *buffer = &tensor->buffer;
  int code = kw_code_of(buffer->format);
  if (buffer->ndim > KW_BUFFER_DIMS) {
    PyErr_Format(PyExc_BufferError, "it has %d dimensions, and %d are possible", buffer->ndim, KW_BUFFER_DIMS);
    return -1;
  }
  if (code < 0) {
    PyErr_Format(PyExc_BufferError, "its elements have the format '%s', which DLPack does not have", buffer->format);
    return -1;
  }
  if (kw_set_strides(tensor)) {
    PyErr_SetString(PyExc_BufferError, "its strides are not multiples of the size of its elements");
    return -1;
  }
  tensor->tensor.data = buffer->buf;
  tensor->tensor.device = (DLDevice){kDLCPU, 0};
  tensor->tensor.ndim = buffer->ndim;
  tensor->tensor.dtype = (DLDataType){(uint8_t)code, (uint8_t)(buffer->itemsize * 8), 1};
  tensor->tensor.shape = (int64_t *)buffer->shape;
  tensor->tensor.byte_offset = 0;
  return 0;
}
_Static_assert(sizeof(Py_ssize_t) == sizeof(int64_t), "sizes of buffers are sizes of DLPack");

/* Whether an object has a buffer, but none that can be written. Called without an exception. */
KW_COLD bool kw_is_read_only(PyObject *object) {
  Py_buffer buffer;
  bool has_buffer = !PyObject_GetBuffer(object, &buffer, PyBUF_RECORDS_RO);
  bool read_only = has_buffer && buffer.readonly;
  if (has_buffer) PyBuffer_Release(&buffer);
  else PyErr_Clear();
  return read_only;
}

KW_COLD int kw_take_dlpack(kw_call *call, const kw_parameter *parameter, PyObject *object, const kw_type *type,
                           kw_tensor *tensor);

/* An array of a dtype that NumPy hands to nobody, such as bfloat16, as integers of that size: 1; 0: it is none. */
KW_COLD int kw_take_integers(const kw_call *call, PyObject *object, kw_tensor *tensor) {
  PyObject *found = PyObject_CallMethod(call->self, "_as_integers", "O", object), *view = NULL;
  long code = 0;
  bool is_one = found && found != Py_None;
  if (is_one) view = PyTuple_GetItem(found, 0), code = PyLong_AsLong(PyTuple_GetItem(found, 1));
  int status = !found || (is_one && PyObject_GetBuffer(view, &tensor->buffer, PyBUF_RECORDS_RO)) ? -1 : is_one;
  Py_XDECREF(found);
  if (status < 1) return status;
  tensor->holds = KW_HOLDS_BUFFER;
  status = kw_take_buffer_of(tensor);
  tensor->tensor.dtype.code = (uint8_t)code;
  return status ? -1 : 1;
}

/* What has no buffer may have DLPack, or a better word on why it has not. */
KW_COLD int kw_no_buffer(kw_call *call, const kw_parameter *parameter, PyObject *object, const kw_type *known,
                         kw_tensor *tensor) {
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  bool read_only = parameter->is_written && kw_is_read_only(object);
  bool has_dlpack = kw_has((PyObject *)Py_TYPE(object), "__dlpack__");
  PyErr_Restore(type, value, traceback);
  if (!read_only && !has_dlpack) return kw_refuse(call, parameter, object);
  PyErr_Clear();
  if (read_only) return kw_refuse_writing(call, parameter, "a read-only array");
  int taken = kw_take_integers(call, object, tensor);
  if (taken < 0) return kw_refuse(call, parameter, object);
  if (taken && parameter->is_written && tensor->buffer.readonly)
    return kw_refuse_writing(call, parameter, "a read-only array");
  if (taken) return 0;
  return kw_take_dlpack(call, parameter, object, known, tensor);
}

KW_FUNCTION int kw_take_buffer(kw_call *call, const kw_parameter *parameter, PyObject *object, const kw_type *known,
                               kw_tensor *tensor) {
  int flags = parameter->is_written ? PyBUF_RECORDS : PyBUF_RECORDS_RO;
  if (KW_UNLIKELY(PyObject_GetBuffer(object, &tensor->buffer, flags)))
    return kw_no_buffer(call, parameter, object, known, tensor);
  tensor->holds = KW_HOLDS_BUFFER;
  if (KW_LIKELY(!kw_take_buffer_of(tensor))) return 0;
  tensor->holds = KW_HOLDS_NOTHING;
  PyBuffer_Release(&tensor->buffer);
  return kw_no_buffer(call, parameter, object, known, tensor);
}

/* ---- where a call is, and on which stream ---- */

/* The number that an object has for a stream: the protocol __cuda_stream__, which returns (version, handle), or the
 * attribute of PyTorch or that of CuPy. Owned; null, where it has none of them, without an exception. */
KW_COLD PyObject *kw_stream_number(PyObject *stream) {
  PyObject *pair = kw_has((PyObject *)Py_TYPE(stream), "__cuda_stream__")
                       ? PyObject_CallMethod(stream, "__cuda_stream__", NULL)
                       : NULL;
  if (pair) {
    PyObject *number = PySequence_GetItem(pair, 1);
    Py_DECREF(pair);
    return number;
  }
  if (PyErr_Occurred()) return NULL;
  PyObject *number = PyObject_GetAttrString(stream, "cuda_stream");
  if (!number) PyErr_Clear(), number = PyObject_GetAttrString(stream, "ptr");
  if (!number) PyErr_Clear();
  return number;
}

/* Whether a number can be a stream's handle, which then is the call's. */
KW_COLD bool kw_take_handle(kw_call *call, PyObject *number) {
  if (!number || !PyLong_Check(number) || PyBool_Check(number)) return false;
  unsigned long long handle = PyLong_AsUnsignedLongLong(number);
  call->stream = (void *)(uintptr_t)handle;
  if (handle != ULLONG_MAX || !PyErr_Occurred()) return true;
  PyErr_Clear(); /* it is negative, or too large */
  return false;
}

/* Takes a stream, which is held until the call is over. Integers may be those of NumPy. */
KW_COLD int kw_take_stream(kw_call *call, PyObject *stream) {
  bool is_number = PyIndex_Check(stream) && !PyBool_Check(stream);
  PyObject *number = is_number ? PyNumber_Index(stream) : kw_stream_number(stream);
  if (!kw_take_handle(call, number) && !PyErr_Occurred())
    PyErr_Format(PyExc_TypeError,
                 "kernel '%s': the stream is %R\n"
                 "  remedy: pass a stream of PyTorch or CuPy, an object with __cuda_stream__, or its handle as an int",
                 call->kernel->name, stream);
  Py_XDECREF(number);
  call->stream_object = Py_NewRef(stream);
  call->sets_stream = true;
  return PyErr_Occurred() ? -1 : 0;
}

/* The stream that the kernel is launched on. */
KW_FUNCTION void *kw_stream_of(const kw_call *call) {
  if (call->sets_stream) return call->stream;
  return kw_ffi.TVMFFIEnvGetStream(call->device.device_type, call->device.device_id);
}

/* Asks the array's library for its current stream in Python; the kernel object knows how, or says None. */
KW_COLD int kw_ask_stream(kw_call *call, PyObject *object) {
  PyObject *stream = PyObject_CallMethod(call->self, "_current_stream", "Oi", (PyObject *)Py_TYPE(object),
                                         (int)call->device.device_id);
  int status = !stream ? -1 : stream == Py_None ? 0 : kw_take_stream(call, stream);
  Py_XDECREF(stream);
  return status;
}

/* The stream is that which the caller gave, or else the current one of the library of the first array on a GPU. */
KW_FUNCTION int kw_note_device(kw_call *call, const kw_type *type, PyObject *object, DLDevice device) {
  if (KW_LIKELY(device.device_type == kDLCPU) || call->device.device_type != kDLCPU) return 0;
  call->device = device;
  if (call->has_stream) return 0;
  if (!type->exchange || !type->exchange->current_work_stream)
    return device.device_type == kDLCUDA ? kw_ask_stream(call, object) : 0;
  call->sets_stream = true;
  return type->exchange->current_work_stream(device.device_type, device.device_id, &call->stream);
}

KW_COLD PyObject *kw_call_service(const kw_kernel *kernel, const char *name, const int64_t *numbers, int32_t count);

/* Calls a service with the place of the launch: device and stream. */
KW_COLD int kw_call_on_stream(const kw_call *call, const char *name) {
  int64_t place[2] = {call->device.device_id, (int64_t)(intptr_t)kw_stream_of(call)};
  PyObject *none = kw_call_service(call->kernel, name, place, 2);
  Py_XDECREF(none);
  return none ? 0 : -1;
}

/* JAX uses the memory of an array again as soon as nobody holds it and nothing of JAX's own reads it: it is not told of the
 * launch, so the call has to wait for it. */
KW_FUNCTION int kw_note_input(kw_call *call, const kw_type *type, DLDevice device) {
  if (KW_LIKELY(!type->is_immutable) || device.device_type != kDLCUDA || call->waits) return 0;
  call->waits = true;
  return kw_call_on_stream(call, "kw_refuse_captured");
}

/* ---- DLPack ---- */

/* Of a tensor that may be such a view. */
KW_COLD int kw_refuse_computed(const kw_call *call, const kw_parameter *parameter, PyObject *object, const DLTensor *tensor) {
  static PyObject *is_neg, *is_conj;
  if (!is_neg) is_neg = PyUnicode_InternFromString("is_neg"), is_conj = PyUnicode_InternFromString("is_conj");
  PyObject *answer = PyObject_CallMethodObjArgs(object, tensor->dtype.code == kDLComplex ? is_conj : is_neg, NULL);
  Py_XDECREF(answer);
  if (answer == Py_False) return 0;
  if (answer) PyErr_SetString(PyExc_BufferError, "it is a view that PyTorch computes when it is read (is_neg, is_conj)");
  return kw_refuse(call, parameter, object);
}

/* By the C functions of the array's type. */
KW_FUNCTION int kw_take_exchange(kw_call *call, const kw_parameter *parameter, PyObject *object,
                                 const DLPackExchangeAPI *exchange, kw_tensor *tensor) {
  if (!call->exchange) call->exchange = exchange, call->exchanged = object;
  if (KW_LIKELY(exchange->dltensor_from_py_object_no_sync != NULL)) {
    if (KW_LIKELY(!exchange->dltensor_from_py_object_no_sync(object, &tensor->tensor))) return 0;
    return kw_refuse(call, parameter, object);
  }
  if (exchange->managed_tensor_from_py_object_no_sync(object, &tensor->versioned))
    return kw_refuse(call, parameter, object);
  tensor->holds = KW_HOLDS_VERSIONED;
  tensor->tensor = tensor->versioned->dl_tensor;
  return 0;
}

/* DLPack's (type, id) of the device that an array is on. */
KW_COLD int kw_device_of(PyObject *object, DLDevice *device) {
  PyObject *pair = PyObject_CallMethod(object, "__dlpack_device__", NULL);
  PyObject *fields = pair ? PySequence_Tuple(pair) : NULL;
  PyObject *type = fields ? PyTuple_GetItem(fields, 0) : NULL, *id = type ? PyTuple_GetItem(fields, 1) : NULL;
  long numbers[2] = {type ? PyLong_AsLong(type) : -1, id ? PyLong_AsLong(id) : -1};
  *device = (DLDevice){(DLDeviceType)numbers[0], (int32_t)numbers[1]};
  Py_XDECREF(fields);
  Py_XDECREF(pair);
  return PyErr_Occurred() ? -1 : 0;
}

/* The arguments of __dlpack__: the newest form that is understood, and the stream that the kernel will use, which the
 * array's library makes wait for its own. DLPack's number of CUDA's default stream is 1. */
KW_COLD PyObject *kw_dlpack_arguments(const kw_call *call, DLDevice device, bool newest) {
  PyObject *arguments = newest ? Py_BuildValue("{s(ii)}", "max_version", 1, 0) : PyDict_New();
  if (!arguments || (device.device_type != kDLCUDA && device.device_type != kDLCUDAManaged)) return arguments;
  void *stream = kw_stream_of(call);
  PyObject *number = PyLong_FromVoidPtr(stream ? stream : (void *)1);
  if (!number || PyDict_SetItemString(arguments, "stream", number)) Py_CLEAR(arguments);
  Py_XDECREF(number);
  return arguments;
}

KW_COLD PyObject *kw_export(const kw_call *call, PyObject *object, DLDevice device, bool newest) {
  PyObject *named = kw_dlpack_arguments(call, device, newest), *none = PyTuple_New(0);
  PyObject *method = PyObject_GetAttrString(object, "__dlpack__");
  PyObject *capsule = named && none && method ? PyObject_Call(method, none, named) : NULL;
  Py_XDECREF(method);
  Py_XDECREF(none);
  Py_XDECREF(named);
  return capsule;
}

/* Takes what is in a capsule; from then on it is ours to delete. */
KW_COLD int kw_open_capsule(PyObject *capsule, kw_tensor *tensor) {
  if (PyCapsule_IsValid(capsule, "dltensor_versioned")) {
    tensor->versioned = PyCapsule_GetPointer(capsule, "dltensor_versioned");
    if (PyCapsule_SetName(capsule, "used_dltensor_versioned")) return -1;
    tensor->holds = KW_HOLDS_VERSIONED;
    tensor->tensor = tensor->versioned->dl_tensor;
    if (tensor->versioned->version.major == DLPACK_MAJOR_VERSION) return 0;
    PyErr_Format(PyExc_BufferError, "it was exported as DLPack %u", tensor->versioned->version.major);
    return -1;
  }
  tensor->managed = PyCapsule_GetPointer(capsule, "dltensor"); /* raises where it is no capsule */
  if (!tensor->managed || PyCapsule_SetName(capsule, "used_dltensor")) return -1;
  tensor->holds = KW_HOLDS_MANAGED;
  tensor->tensor = tensor->managed->dl_tensor;
  return 0;
}

/* By __dlpack__; libraries that do not know `max_version` raise TypeError. */
KW_COLD int kw_take_dlpack(kw_call *call, const kw_parameter *parameter, PyObject *object, const kw_type *type,
                           kw_tensor *tensor) {
  DLDevice device;
  if (kw_device_of(object, &device)) { /* the export has a better word on why there is none */
    PyErr_Clear();
    device = (DLDevice){kDLCPU, 0};
  }
  if (kw_note_device(call, type, object, device) || kw_note_input(call, type, device)) return -1;
  PyObject *capsule = kw_export(call, object, device, true);
  if (!capsule && PyErr_ExceptionMatches(PyExc_TypeError)) {
    PyErr_Clear();
    capsule = kw_export(call, object, device, false);
  }
  int status = capsule ? kw_open_capsule(capsule, tensor) : -1;
  Py_XDECREF(capsule);
  if (status) return kw_refuse(call, parameter, object);
  bool read_only = tensor->holds == KW_HOLDS_VERSIONED && tensor->versioned->flags & DLPACK_FLAG_BITMASK_READ_ONLY;
  return read_only && parameter->is_written ? kw_refuse_writing(call, parameter, "a read-only array") : 0;
}

/* ---- any argument ---- */

KW_FUNCTION int kw_take_tensor(kw_call *call, const kw_parameter *parameter, PyObject *object, const kw_type *known,
                               TVMFFIAny *value) {
  kw_type type = *known; /* it may be forgotten as soon as Python code runs */
  kw_tensor *tensor = &call->tensors[call->num_tensors++];
  int status;
  tensor->holds = KW_HOLDS_NOTHING;
  if (KW_UNLIKELY(type.is_immutable && parameter->is_written))
    return kw_refuse_writing(call, parameter, "an array of JAX, which is immutable");
  if (type.kind == KW_AS_EXCHANGE) status = kw_take_exchange(call, parameter, object, type.exchange, tensor);
  else if (type.kind == KW_AS_BUFFER) status = kw_take_buffer(call, parameter, object, &type, tensor);
  else status = kw_take_dlpack(call, parameter, object, &type, tensor);
  if (KW_UNLIKELY(status)) return -1;
  if (!call->first) call->first = object;
  value->type_index = kTVMFFIDLTensorPtr;
  value->v_ptr = &tensor->tensor;
  if (KW_LIKELY(type.kind != KW_AS_EXCHANGE)) return 0;
  if (KW_UNLIKELY(kw_may_be_computed(&tensor->tensor)) && type.is_computed &&
      kw_refuse_computed(call, parameter, object, &tensor->tensor))
    return -1;
  DLDevice device = tensor->tensor.device;
  return kw_note_device(call, &type, object, device) || kw_note_input(call, &type, device) ? -1 : 0;
}

KW_COLD int kw_raise_large(const kw_call *call, const kw_parameter *parameter, const char *what) {
  PyObject *none = PyObject_CallMethod(call->self, "_refuse_large", "ss", parameter->name, what);
  Py_XDECREF(none);
  return -1;
}

/* An integer that int64 does not have. The library says so if it is none of the parameter's. */
KW_COLD int kw_take_large(const kw_call *call, const kw_parameter *parameter, PyObject *object, TVMFFIAny *value) {
  value->type_index = parameter->kind == KW_FLOAT ? kTVMFFIFloat : kTVMFFIInt;
  if (parameter->kind == KW_BOOL) value->v_int64 = 1;
  else if (parameter->kind == KW_FLOAT) value->v_float64 = PyFloat_AsDouble(object);
  else if (parameter->kind == KW_INT) value->v_uint64 = PyLong_AsUnsignedLongLong(object), value->zero_padding = KW_UNSIGNED;
  else value->type_index = kTVMFFIOpaquePyObject;
  if (!PyErr_Occurred()) return 0;
  if (!PyErr_ExceptionMatches(PyExc_OverflowError)) return -1;
  PyErr_Clear();
  return kw_raise_large(call, parameter, parameter->kind == KW_FLOAT ? "a float" : "64 bits");
}

KW_FUNCTION int kw_take_int(const kw_call *call, const kw_parameter *parameter, PyObject *object, TVMFFIAny *value) {
  int overflow;
  value->v_int64 = PyLong_AsLongLongAndOverflow(object, &overflow);
  if (KW_UNLIKELY(overflow)) return kw_take_large(call, parameter, object, value);
  value->type_index = kTVMFFIInt;
  return value->v_int64 == -1 && PyErr_Occurred() ? -1 : 0;
}

KW_COLD int kw_take_integral(const kw_call *call, const kw_parameter *parameter, PyObject *object, TVMFFIAny *value) {
  PyObject *number = PyNumber_Long(object);
  int status = number ? kw_take_int(call, parameter, number, value) : -1;
  Py_XDECREF(number);
  return status;
}

KW_FUNCTION int kw_take_float(PyObject *object, TVMFFIAny *value) {
  value->type_index = kTVMFFIFloat;
  value->v_float64 = PyFloat_AsDouble(object);
  return KW_UNLIKELY(value->v_float64 == -1 && PyErr_Occurred()) ? -1 : 0;
}

/* An address: ctypes has objects for them, whose value is an int or None. Other objects are left to the library. */
KW_COLD int kw_take_pointer(PyObject *object, TVMFFIAny *value) {
  PyObject *number = PyObject_GetAttrString(object, "value");
  bool is_address = number && (number == Py_None || PyLong_CheckExact(number));
  value->type_index = is_address ? kTVMFFIOpaquePtr : kTVMFFIOpaquePyObject;
  if (is_address && number != Py_None) value->v_ptr = PyLong_AsVoidPtr(number);
  else PyErr_Clear();
  Py_XDECREF(number);
  return PyErr_Occurred() ? -1 : 0;
}

/* A number of a class that Python does not know as one, such as NumPy's bool, or bfloat16; the kernel object says which.
 * Anything else is left to the library. */
KW_COLD int kw_take_other(const kw_call *call, const kw_parameter *parameter, PyObject *object, TVMFFIAny *value) {
  PyObject *number = PyObject_CallMethod(call->self, "_plain_number", "O", object);
  int status = number ? 0 : -1;
  value->type_index = kTVMFFIOpaquePyObject;
  if (number && PyFloat_CheckExact(number)) status = kw_take_float(number, value);
  else if (number && PyBool_Check(number)) value->type_index = kTVMFFIBool, value->v_int64 = number == Py_True;
  else if (number && PyLong_CheckExact(number)) status = kw_take_int(call, parameter, number, value);
  Py_XDECREF(number);
  return status;
}

/* Stands for any tensor where a number is wanted. The library refuses it. */
static struct {
  TVMFFIObject object;
  DLTensor tensor;
} kw_some_tensor = {.object = {.type_index = kTVMFFITensor}};

/* The library refuses what has no meaning for it, and says what it expected. It does not look into such a value. */
KW_FUNCTION int kw_take(kw_call *call, const kw_parameter *parameter, PyObject *object, TVMFFIAny *value) {
  *value = (TVMFFIAny){.type_index = kTVMFFINone};
  if (parameter->kind == KW_FLOAT && PyFloat_CheckExact(object)) return kw_take_float(object, value);
  if (parameter->kind == KW_INT && PyLong_CheckExact(object)) return kw_take_int(call, parameter, object, value);
  const kw_type *type = kw_type_of(object);
  if (KW_UNLIKELY(!type)) return -1;
  switch (type->kind) {
    case KW_AS_FLOAT:
    case KW_AS_REAL: return kw_take_float(object, value);
    case KW_AS_INT: return kw_take_int(call, parameter, object, value);
    case KW_AS_INTEGRAL: return kw_take_integral(call, parameter, object, value);
    case KW_AS_BOOL: value->type_index = kTVMFFIBool, value->v_int64 = object == Py_True; return 0;
    case KW_AS_NONE: return 0;
    case KW_AS_STRING: value->type_index = kTVMFFIRawStr, value->v_c_str = ""; return 0;
    case KW_AS_EXCHANGE:
    case KW_AS_BUFFER:
    case KW_AS_DLPACK:
      if (KW_LIKELY(parameter->kind == KW_TENSOR)) return kw_take_tensor(call, parameter, object, type, value);
      if (type->kind == KW_AS_BUFFER && parameter->kind != KW_POINTER && !kw_has((PyObject *)Py_TYPE(object), "__dlpack__"))
        return kw_take_other(call, parameter, object, value);
      if (parameter->kind == KW_POINTER) return kw_take_pointer(object, value);
      value->type_index = kTVMFFITensor, value->v_ptr = &kw_some_tensor;
      return 0;
    case KW_AS_OBJECT:
      if (parameter->kind != KW_TENSOR && parameter->kind != KW_POINTER)
        return kw_take_other(call, parameter, object, value);
      break;
  }
  value->type_index = kTVMFFIOpaquePyObject;
  return 0;
}

/* Gives back what the arguments hold. */
KW_FUNCTION void kw_release(kw_call *call) {
  for (int32_t i = 0; i < call->num_tensors; ++i) {
    kw_tensor *tensor = &call->tensors[i];
    if (tensor->holds == KW_HOLDS_BUFFER) PyBuffer_Release(&tensor->buffer);
    else if (tensor->holds == KW_HOLDS_VERSIONED && tensor->versioned->deleter)
      tensor->versioned->deleter(tensor->versioned);
    else if (tensor->holds == KW_HOLDS_MANAGED && tensor->managed->deleter) tensor->managed->deleter(tensor->managed);
  }
  Py_XDECREF(call->stream_object);
}

#endif
