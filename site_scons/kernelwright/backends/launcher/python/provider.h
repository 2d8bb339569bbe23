/* Device code that is not in the kernel's library is found by a Python function, which becomes one of TVM-FFI. */
#ifndef KW_PYTHON_PROVIDER_H
#define KW_PYTHON_PROVIDER_H

/* Raises the exception that is set as an error of TVM-FFI. */
KW_COLD int kw_raise_exception(void) {
  PyObject *exception = kw_take_exception(), *text = exception ? PyObject_Str(exception) : NULL;
  PyObject *name = exception ? PyObject_GetAttrString((PyObject *)Py_TYPE(exception), "__name__") : NULL;
  const char *kind = name ? PyUnicode_AsUTF8AndSize(name, NULL) : NULL;
  const char *message = text ? PyUnicode_AsUTF8AndSize(text, NULL) : NULL;
  kw_ffi.TVMFFIErrorSetRaisedFromCStr(kind ? kind : "RuntimeError", message ? message : "");
  PyErr_Clear();
  Py_XDECREF(name);
  Py_XDECREF(text);
  Py_XDECREF(exception);
  return -1;
}

/* The provider as the library calls it (launcher/provider.h): two texts and two integers; it returns a text. */
static int kw_call_provider(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  PyGILState_STATE state = PyGILState_Ensure();
  PyObject *answer = count != 4 ? NULL
                                : PyObject_CallFunction(self, "ssLL", arguments[0].v_c_str, arguments[1].v_c_str,
                                                        (long long)arguments[2].v_int64, (long long)arguments[3].v_int64);
  Py_ssize_t size;
  const char *text = answer ? PyUnicode_AsUTF8AndSize(answer, &size) : NULL;
  TVMFFIByteArray bytes = {text, text ? (size_t)size : 0};
  int status = text ? kw_ffi.TVMFFIStringFromByteArray(&bytes, result) : kw_raise_exception();
  Py_XDECREF(answer);
  PyGILState_Release(state);
  return status;
}

static void kw_forget_provider(void *self) {
  PyGILState_STATE state = PyGILState_Ensure();
  Py_DECREF((PyObject *)self);
  PyGILState_Release(state);
}

/* Registers a function with the library, which keeps it. */
KW_COLD int kw_set_provider(const kw_kernel *kernel, PyObject *provider) {
  TVMFFIAny argument = {.type_index = kTVMFFIFunction}, result = {.type_index = kTVMFFINone};
  TVMFFIObjectHandle function;
  kw_entry entry = (kw_entry)kw_find(kernel->library, kernel->name, "__tvm_ffi_kw_set_provider");
  if (!entry) return -1;
  Py_INCREF(provider);
  if (kw_ffi.TVMFFIFunctionCreate(provider, kw_call_provider, kw_forget_provider, &function)) {
    Py_DECREF(provider);
    kw_raise_taken();
    return -1;
  }
  argument.v_ptr = function;
  int status = entry(NULL, &argument, 1, &result);
  if (status) kw_raise_taken();
  kw_ffi.TVMFFIObjectDecRef(function);
  return status ? -1 : 0;
}

#endif
