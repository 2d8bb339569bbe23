/* One call of a kernel from Python. The extension module, which a .pyx describes, includes this file, having defined
 *
 *   KW_MAX_ARGUMENTS   the number of arguments of the kernel, at least 1
 *
 * Everything is in C on Python's limited API (3.11), TVM-FFI's C ABI and DLPack. */
#ifndef KW_PYTHON_CALL_H
#define KW_PYTHON_CALL_H

#include "runtime.h"
#include "types.h"
#include "classify.h"
#include "convert.h"
#include "result.h"
#include "provider.h"

/* ---- which object is which argument ---- */

/* The library words it: it counts before it looks at anything. */
KW_COLD int kw_raise_count(const kw_call *call, Py_ssize_t count) {
  TVMFFIAny result = {.type_index = kTVMFFINone};
  call->kernel->entry(NULL, call->values, (int32_t)(count < INT32_MAX ? count : INT32_MAX), &result);
  kw_raise_taken();
  return -1;
}

KW_COLD int kw_raise_twice(const kw_call *call, const kw_parameter *parameter) {
  PyErr_Format(PyExc_TypeError,
               "kernel '%s': argument '%s' was given by its position and by its name\n  remedy: pass it once",
               call->kernel->name, parameter->name);
  return -1;
}

KW_COLD int kw_raise_missing(const kw_call *call, const kw_parameter *parameter) {
  PyErr_Format(PyExc_TypeError, "kernel '%s': argument '%s' is missing\n  remedy: pass all arguments, or all but the outputs",
               call->kernel->name, parameter->name);
  return -1;
}

/* Inputs are given, and outputs all or none. None stands for one that is left out. */
KW_FUNCTION int kw_check_given(kw_call *call) {
  const kw_kernel *kernel = call->kernel;
  const kw_parameter *given = NULL, *missing = NULL;
  for (int32_t i = 0; i < kernel->num_parameters; ++i) {
    const kw_parameter *parameter = &kernel->parameters[i];
    if (parameter->is_output && call->given[i] == Py_None) call->given[i] = NULL;
    if (KW_UNLIKELY(!parameter->is_output && !call->given[i])) return kw_raise_missing(call, parameter);
    if (parameter->is_output) *(call->given[i] ? &given : &missing) = parameter;
  }
  return KW_LIKELY(!given || !missing) ? 0 : kw_raise_missing(call, missing);
}

/* Puts each object at its parameter. Without the outputs, those that are passed by position are the first inputs. */
KW_FUNCTION int kw_bind(kw_call *call, PyObject *positional, PyObject **named) {
  const kw_kernel *kernel = call->kernel;
  Py_ssize_t count = PyTuple_Size(positional), next = 0, num_named = 0;
  for (int32_t i = 0; i < kernel->num_parameters; ++i) num_named += named[i] != Py_None;
  bool is_complete = count + num_named == kernel->num_parameters;
  if (KW_UNLIKELY(!is_complete && count + num_named != kernel->num_parameters - kernel->num_outputs))
    return kw_raise_count(call, count + num_named);
  for (int32_t i = 0; i < kernel->num_parameters; ++i) {
    bool is_positional = next < count && (is_complete || !kernel->parameters[i].is_output);
    bool is_named = named[i] != Py_None;
    if (KW_UNLIKELY(is_positional && is_named)) return kw_raise_twice(call, &kernel->parameters[i]);
    call->given[i] = is_positional ? PyTuple_GetItem(positional, next++) : is_named ? named[i] : NULL;
  }
  return kw_check_given(call);
}

KW_FUNCTION int kw_convert(kw_call *call) {
  for (int32_t i = 0; i < call->kernel->num_parameters; ++i)
    if (call->given[i] &&
        KW_UNLIKELY(kw_take(call, &call->kernel->parameters[i], call->given[i], &call->values[call->num_values++])))
      return -1;
  return 0;
}

/* ---- the stream ---- */

/* The number that an object has for a stream: the protocol __cuda_stream__, which returns (version, handle), or
 * PyTorch's attribute. Owned; null, where it has neither, without an exception. */
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
  if (!number) PyErr_Clear();
  return number;
}

KW_COLD int kw_take_stream(kw_call *call, PyObject *stream) {
  PyObject *number = PyLong_CheckExact(stream) ? Py_NewRef(stream) : kw_stream_number(stream);
  if (number && PyLong_Check(number) && !PyBool_Check(number)) call->stream = PyLong_AsVoidPtr(number);
  else if (!PyErr_Occurred())
    PyErr_Format(PyExc_TypeError,
                 "kernel '%s': the stream is %R\n"
                 "  remedy: pass a stream of PyTorch or CuPy, an object with __cuda_stream__, or its handle as an int",
                 call->kernel->name, stream);
  Py_XDECREF(number);
  call->has_stream = call->sets_stream = true;
  return PyErr_Occurred() ? -1 : 0;
}

KW_COLD int kw_raise_cpu_stream(const kw_call *call) {
  PyErr_Format(PyExc_ValueError,
               "kernel '%s': a stream was given for a call on the CPU\n  remedy: leave it out, or pass arrays of a GPU",
               call->kernel->name);
  return -1;
}

/* ---- the call ---- */

/* Runs the kernel without the GIL, as tvm-ffi does by default. */
KW_FUNCTION int kw_enter(kw_call *call, TVMFFIAny *result) {
  PyThreadState *thread = PyEval_SaveThread();
  int status = call->kernel->entry(NULL, call->values, call->num_values, result);
  PyEval_RestoreThread(thread);
  return status;
}

/* With the caller's stream as the current one. Devices of type CUDA-managed are not CUDA's to the library. */
KW_FUNCTION int kw_enter_stream(kw_call *call, TVMFFIAny *result) {
  void *before = NULL;
  if (KW_LIKELY(!call->sets_stream)) return kw_enter(call, result);
  if (kw_ffi.TVMFFIEnvSetStream(call->device.device_type, call->device.device_id, call->stream, &before)) return -1;
  int status = kw_enter(call, result);
  if (before != call->stream)
    kw_ffi.TVMFFIEnvSetStream(call->device.device_type, call->device.device_id, before, NULL);
  return status;
}

/* With the allocator of the caller's library, if outputs have to be allocated. */
KW_FUNCTION int kw_enter_allocating(kw_call *call, TVMFFIAny *result) {
  DLPackManagedTensorAllocator before = NULL;
  if (KW_LIKELY(call->num_values == call->kernel->num_parameters) || !call->exchange ||
      !call->exchange->managed_tensor_allocator)
    return kw_enter_stream(call, result);
  if (kw_ffi.TVMFFIEnvSetDLPackManagedTensorAllocator(call->exchange->managed_tensor_allocator, 0, &before)) return -1;
  int status = kw_enter_stream(call, result);
  if (before != call->exchange->managed_tensor_allocator)
    kw_ffi.TVMFFIEnvSetDLPackManagedTensorAllocator(before, 0, NULL);
  return status;
}

KW_FUNCTION PyObject *kw_run(kw_call *call) {
  TVMFFIAny result = {.type_index = kTVMFFINone};
  if (KW_UNLIKELY(call->has_stream && call->device.device_type == kDLCPU)) return kw_raise_cpu_stream(call), NULL;
  if (KW_UNLIKELY(kw_enter_allocating(call, &result))) return kw_raise_taken(), NULL;
  return kw_make_result(call, &result);
}

/* Calls a kernel.
 *
 * self        the kernel object
 * positional  a tuple
 * named       an object for each parameter, None where it was not given by name
 * stream      None, or the stream to launch on */
KW_FUNCTION PyObject *kw_call_kernel(PyObject *self, const kw_kernel *kernel, PyObject *positional, PyObject **named,
                                     PyObject *stream) {
  kw_call call; /* large, and not to be cleared as a whole */
  call.self = self;
  call.kernel = kernel;
  call.num_values = call.num_tensors = 0;
  call.has_stream = call.sets_stream = false;
  call.stream = NULL;
  call.device = (DLDevice){kDLCPU, 0};
  call.exchange = NULL;
  call.first = NULL;
  if (KW_UNLIKELY(!kernel->entry)) return PyErr_SetString(PyExc_RuntimeError, "this kernel was not loaded"), NULL;
  if (KW_UNLIKELY(stream != Py_None && kw_take_stream(&call, stream))) return NULL;
  if (KW_UNLIKELY(kw_bind(&call, positional, named))) return NULL;
  PyObject *result = KW_UNLIKELY(kw_convert(&call)) ? NULL : kw_run(&call);
  kw_release(&call);
  return result;
}

/* ---- loading ---- */

/* Opens a kernel's library and finds a function in it. */
KW_COLD int kw_load(kw_kernel *kernel, const char *runtime, const char *library, const char *symbol) {
  if (kw_load_runtime(runtime)) return -1;
  kernel->library = kw_open(library, RTLD_LAZY | RTLD_LOCAL);
  if (!kernel->library) return -1;
  kernel->entry = (kw_entry)kw_find(kernel->library, library, symbol);
  return kernel->entry ? 0 : -1;
}

/* Calls a service of the library (exports.h) with integers; what it returns is an int, a str or None. */
KW_COLD PyObject *kw_call_service(const kw_kernel *kernel, const char *name, const int64_t *numbers, int32_t count) {
  TVMFFIAny arguments[2], result = {.type_index = kTVMFFINone};
  char symbol[64];
  snprintf(symbol, sizeof symbol, "__tvm_ffi_%s", name);
  kw_entry entry = (kw_entry)kw_find(kernel->library, kernel->name, symbol);
  if (!entry) return NULL;
  for (int32_t i = 0; i < count; ++i) arguments[i] = (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = numbers[i]};
  PyThreadState *thread = PyEval_SaveThread();
  int status = entry(NULL, arguments, count, &result);
  PyEval_RestoreThread(thread);
  if (status) return kw_raise_taken(), NULL;
  if (result.type_index == kTVMFFIInt) return PyLong_FromLongLong(result.v_int64);
  if (result.type_index == kTVMFFISmallStr) return PyUnicode_FromStringAndSize(result.v_bytes, result.small_str_len);
  if (result.type_index != kTVMFFIStr) return Py_NewRef(Py_None);
  const TVMFFIByteArray *bytes = (const TVMFFIByteArray *)((const char *)result.v_ptr + sizeof(TVMFFIObject));
  PyObject *text = PyUnicode_FromStringAndSize(bytes->data, (Py_ssize_t)bytes->size);
  kw_ffi.TVMFFIObjectDecRef(result.v_ptr);
  return text;
}


#endif
