/* One call of a kernel from Python. The extension module, which a .pyx describes, includes this file and first defines
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

/* Puts each object at its parameter. If some are left out, those that are passed by position are the first inputs. */
KW_FUNCTION int kw_bind(kw_call *call, PyObject *positional, PyObject **named) {
  const kw_kernel *kernel = call->kernel;
  Py_ssize_t count = PyTuple_Size(positional), next = 0, num_named = 0;
  for (int32_t i = 0; i < kernel->num_parameters; ++i) num_named += named[i] != Py_None;
  bool is_complete = count + num_named == kernel->num_parameters;
  bool is_possible = is_complete || count + num_named == kernel->num_parameters - kernel->num_outputs;
  if (KW_UNLIKELY(!is_possible && (!kernel->num_optional || count + num_named > kernel->num_parameters)))
    return kw_raise_count(call, count + num_named);
  for (int32_t i = 0; i < kernel->num_parameters; ++i) {
    bool is_positional = next < count && (is_complete || !kernel->parameters[i].is_output);
    bool is_named = named[i] != Py_None;
    if (KW_UNLIKELY(is_positional && is_named)) return kw_raise_twice(call, &kernel->parameters[i]);
    PyObject *otherwise = kernel->parameters[i].is_optional ? Py_None : NULL;
    call->given[i] = is_positional ? PyTuple_GetItem(positional, next++) : is_named ? named[i] : otherwise;
  }
  return KW_UNLIKELY(next < count) ? kw_raise_count(call, count + num_named) : kw_check_given(call);
}

KW_FUNCTION int kw_convert(kw_call *call) {
  for (int32_t i = 0; i < call->kernel->num_parameters; ++i)
    if (call->given[i] &&
        KW_UNLIKELY(kw_take(call, &call->kernel->parameters[i], call->given[i], &call->values[call->num_values++])))
      return -1;
  return 0;
}

/* ---- the call ---- */

KW_COLD int kw_raise_cpu_stream(const kw_call *call) {
  PyErr_Format(PyExc_ValueError,
               "kernel '%s': a stream was given for a call on the CPU\n  remedy: leave it out, or pass arrays of a GPU",
               call->kernel->name);
  return -1;
}

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

KW_FUNCTION int kw_enter_with_allocator(kw_call *call, TVMFFIAny *result) {
  DLPackManagedTensorAllocator before = NULL;
  if (kw_ffi.TVMFFIEnvSetDLPackManagedTensorAllocator(call->exchange->managed_tensor_allocator, 0, &before)) return -1;
  int status = kw_enter_stream(call, result);
  if (before != call->exchange->managed_tensor_allocator)
    kw_ffi.TVMFFIEnvSetDLPackManagedTensorAllocator(before, 0, NULL);
  return status;
}

/* Whether the caller's stream is another than the one on which the library of the arrays would allocate. */
KW_COLD bool kw_allocates_elsewhere(const kw_call *call) {
  void *current = NULL;
  return !call->exchange->current_work_stream ||
         call->exchange->current_work_stream(call->device.device_type, call->device.device_id, &current) ||
         current != call->stream;
}

/* An allocator takes memory to be used on the current stream of its library: what is freed goes to the next who asks there,
 * at once. So while outputs are allocated, the caller's stream is made the current one. */
KW_COLD int kw_enter_allocating_on(kw_call *call, TVMFFIAny *result) {
  PyObject *entered = PyObject_CallMethod(call->self, "_enter_stream", "OiK", (PyObject *)Py_TYPE(call->exchanged),
                                          (int)call->device.device_id, (unsigned long long)(uintptr_t)call->stream);
  if (!entered) return -1;
  int status = kw_enter_with_allocator(call, result);
  if (status) kw_raise_taken(); /* what is pending there would be taken by a call that fails in __exit__ */
  PyObject *error = PyErr_Occurred() ? kw_take_exception() : NULL;
  PyObject *left = PyObject_CallMethod(entered, "__exit__", "OOO", Py_None, Py_None, Py_None);
  if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  Py_XDECREF(error);
  Py_DECREF(entered);
  Py_XDECREF(left);
  return left ? status : -1;
}

/* With the allocator of the caller's library, if outputs have to be allocated. */
KW_FUNCTION int kw_enter_allocating(kw_call *call, TVMFFIAny *result) {
  if (KW_LIKELY(call->num_values == call->kernel->num_parameters) || !call->exchange ||
      !call->exchange->managed_tensor_allocator)
    return kw_enter_stream(call, result);
  if (KW_UNLIKELY(call->has_stream) && kw_allocates_elsewhere(call)) return kw_enter_allocating_on(call, result);
  return kw_enter_with_allocator(call, result);
}

KW_FUNCTION PyObject *kw_run(kw_call *call) {
  TVMFFIAny result = {.type_index = kTVMFFINone};
  if (KW_UNLIKELY(call->has_stream && call->device.device_type == kDLCPU)) return kw_raise_cpu_stream(call), NULL;
  if (KW_UNLIKELY(kw_enter_allocating(call, &result))) return kw_raise_taken(), NULL;
  return kw_make_result(call, &result);
}

/* The same; inputs of JAX are given back when the kernel is done, or has failed in the middle. */
KW_COLD PyObject *kw_run_and_wait(kw_call *call) {
  PyObject *result = kw_run(call), *error = result ? NULL : kw_take_exception();
  if (kw_call_on_stream(call, "kw_synchronize")) Py_CLEAR(result);
  if (error) PyErr_SetObject((PyObject *)Py_TYPE(error), error);
  Py_XDECREF(error);
  return result;
}

/* What to do about a call that has failed is said in Python: it is noted if no variant fits it. */
KW_COLD PyObject *kw_missed(kw_call *call, PyObject *stream) {
  if (!PyErr_ExceptionMatches(PyExc_TypeError) && !PyErr_ExceptionMatches(PyExc_ValueError)) return NULL;
  PyObject *error = kw_take_exception(), *given = PyList_New(0), *result = NULL;
  bool is_listed = given != NULL;
  for (int32_t i = 0; is_listed && i < call->kernel->num_parameters; ++i)
    if (call->given[i]) is_listed = !PyList_Append(given, call->given[i]);
  if (is_listed) result = PyObject_CallMethod(call->self, "_missed", "OOO", given, error, stream);
  Py_XDECREF(given);
  Py_DECREF(error);
  return result;
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
  call.has_stream = stream != Py_None;
  call.sets_stream = call.waits = false;
  call.stream = NULL;
  call.device = (DLDevice){kDLCPU, 0};
  call.exchange = NULL;
  call.stream_object = call.exchanged = call.first = NULL;
  if (KW_UNLIKELY(!kernel->entry)) return PyErr_SetString(PyExc_RuntimeError, "this kernel was not loaded"), NULL;
  PyObject *result = NULL;
  bool is_taken = !call.has_stream || KW_LIKELY(!kw_take_stream(&call, stream));
  bool is_bound = KW_LIKELY(is_taken && !kw_bind(&call, positional, named));
  if (KW_LIKELY(is_bound && !kw_convert(&call)))
    result = KW_UNLIKELY(call.waits) ? kw_run_and_wait(&call) : kw_run(&call);
  kw_release(&call);
  return KW_LIKELY(result || !is_bound) ? result : kw_missed(&call, stream);
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
  TVMFFIAny arguments[3], result = {.type_index = kTVMFFINone};
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
  return kw_is_text(&result) ? kw_take_text(&result) : Py_NewRef(Py_None);
}


#endif
