/* What an extension module calls: TVM-FFI's C functions, and those of the kernel's library. Both are found with dlsym, so
 * that the module has no undefined symbols but those of Python and libc. */
#ifndef KW_PYTHON_RUNTIME_H
#define KW_PYTHON_RUNTIME_H

#include <dlfcn.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <tvm/ffi/c_api.h>
#include <tvm/ffi/extra/c_env_api.h>

#define KW_FUNCTION static __attribute__((unused))
#define KW_COLD static __attribute__((unused, cold, noinline))
#define KW_LIKELY(condition) __builtin_expect(!!(condition), 1)
#define KW_UNLIKELY(condition) __builtin_expect(!!(condition), 0)

/* Any function of the C ABI of TVM-FFI: `arguments` are borrowed, `*result` is owned; it returns 0, or raises and returns
 * another number. */
typedef int (*kw_entry)(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result);

#define KW_RUNTIME(use)                                                                                             \
  use(TVMFFIObjectIncRef) use(TVMFFIObjectDecRef) use(TVMFFIFunctionCreate) use(TVMFFIErrorMoveFromRaised)          \
  use(TVMFFIErrorSetRaisedFromCStr) use(TVMFFITensorToDLPack) use(TVMFFITensorToDLPackVersioned) use(TVMFFIStringFromByteArray)                       \
  use(TVMFFIEnvSetStream) use(TVMFFIEnvGetStream) use(TVMFFIEnvSetDLPackManagedTensorAllocator)

#define KW_RUNTIME_FIELD(name) __typeof__(&name) name;
static struct { KW_RUNTIME(KW_RUNTIME_FIELD) } kw_ffi;

KW_COLD void *kw_find(void *library, const char *path, const char *symbol) {
  void *found = dlsym(library, symbol);
  if (!found) PyErr_Format(PyExc_ImportError, "%s: has no function %s", path, symbol);
  return found;
}

/* The library at a path, which stays loaded. */
KW_COLD void *kw_open(const char *path, int flags) {
  void *library = dlopen(path, flags);
  if (!library) PyErr_Format(PyExc_ImportError, "%s: cannot be loaded: %s", path, dlerror());
  return library;
}

/* Loads libtvm_ffi.so, whose functions the kernels' libraries find in the process's global scope. */
KW_COLD int kw_load_runtime(const char *path) {
  void *library = kw_open(path, RTLD_NOW | RTLD_GLOBAL);
  if (!library) return -1;
#define KW_RUNTIME_FIND(name) \
  if (!(kw_ffi.name = (__typeof__(&name))kw_find(library, path, #name))) return -1;
  KW_RUNTIME(KW_RUNTIME_FIND)
  return 0;
}

/* ---- errors ---- */

static const char *const kw_kinds[] = {
    "TypeError",     "ValueError",    "RuntimeError", "MemoryError",     "BufferError",        "IndexError",
    "KeyError",      "OverflowError", "OSError",      "AttributeError",  "NotImplementedError", "AssertionError",
    "ImportError",   "TimeoutError",  "SystemError",  "PermissionError", "FileNotFoundError",  "KeyboardInterrupt",
};

/* Python's exception class of that name, borrowed; RuntimeError for a kind that Python does not have. */
KW_COLD PyObject *kw_exception(const TVMFFIByteArray *kind) {
  PyObject *builtins = PyEval_GetBuiltins();
  for (size_t i = 0; i < sizeof kw_kinds / sizeof *kw_kinds; ++i)
    if (strlen(kw_kinds[i]) == kind->size && !memcmp(kw_kinds[i], kind->data, kind->size)) {
      PyObject *found = builtins ? PyDict_GetItemString(builtins, kw_kinds[i]) : NULL;
      return found ? found : PyExc_RuntimeError;
    }
  return PyExc_RuntimeError;
}

KW_COLD PyObject *kw_decoded(const TVMFFIByteArray *bytes) {
  return PyUnicode_DecodeUTF8(bytes->data, (Py_ssize_t)bytes->size, "replace");
}

/* An exception says as `refusal` why the library refuses a call (runtime/refusal.py). */
KW_COLD int kw_note_refusal(PyObject *raised, TVMFFIObjectHandle context) {
  if (!context || ((const TVMFFIObject *)context)->type_index != kTVMFFIStr) return 0;
  PyObject *text = kw_decoded((const TVMFFIByteArray *)((const char *)context + sizeof(TVMFFIObject)));
  int status = text ? PyObject_SetAttrString(raised, "refusal", text) : -1;
  Py_XDECREF(text);
  return status;
}

/* Raises the error of TVM-FFI as one of Python; one that Python has raised in between stays. */
KW_COLD void kw_raise_taken(void) {
  TVMFFIObjectHandle error = NULL;
  kw_ffi.TVMFFIErrorMoveFromRaised(&error);
  if (PyErr_Occurred()) {
    if (error) kw_ffi.TVMFFIObjectDecRef(error);
    return;
  }
  if (!error) {
    PyErr_SetString(PyExc_RuntimeError, "a call failed without saying why");
    return;
  }
  const TVMFFIErrorCell *cell = (const TVMFFIErrorCell *)((const char *)error + sizeof(TVMFFIObject));
  PyObject *class = kw_exception(&cell->kind), *text = kw_decoded(&cell->message);
  PyObject *raised = text ? PyObject_CallFunctionObjArgs(class, text, NULL) : NULL;
  if (raised && !kw_note_refusal(raised, cell->extra_context)) PyErr_SetObject(class, raised);
  Py_XDECREF(raised);
  Py_XDECREF(text);
  kw_ffi.TVMFFIObjectDecRef(error);
}

#endif
