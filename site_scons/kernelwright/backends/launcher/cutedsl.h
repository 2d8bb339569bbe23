/* What host code exported by NVIDIA's CuTe DSL calls: its own names for parts of CUDA's runtime.
 *
 * The exported object would load its device code through the DSL's runtime library. The functions here stand in for it,
 * so that a package needs neither that library nor CUDA's runtime: a "library" is a function that finds the launcher's
 * device functions, and a "kernel" is one of these device functions. Images are chosen and loaded when the first launch
 * asks for them, as for all kernels. Names and parameters are those of nvidia-cutlass-dsl 4.8. A host.c of that front
 * end includes this file. */
#ifndef KW_CUTEDSL_H
#define KW_CUTEDSL_H

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define KW_CUTEDSL_FAILED (-1) /* the exported code returns -1 for it: an error has been raised */

/* Finds a device function of one variant by its name. */
typedef int32_t (*kw_cutedsl_find)(const char *name, void **function);

/* How the variant that is being called finds its device functions. */
static _Thread_local kw_cutedsl_find kw_cutedsl_current;

/* ---- loading ---- */

/* Called before each launch. Threads may do it at once: they write the same pointers. */
KW_HIDDEN int32_t cuda_dialect_init_library_once(void **library, int32_t (*init)(void **library),
                                                 int32_t (*load)(void **library, int32_t device), void *raise) {
  (void)init, (void)raise;
  if (__atomic_load_n(library, __ATOMIC_ACQUIRE)) return 0;
  void *finder = (void *)kw_cutedsl_current;
  if (load(&finder, 0)) return KW_CUTEDSL_FAILED;
  __atomic_store_n(library, finder, __ATOMIC_RELEASE);
  return 0;
}

/* Libraries of packages are never unloaded. */
KW_HIDDEN void cuda_dialect_unload_library_once(void **library) { (void)library; }

KW_HIDDEN int32_t _cudaLibraryLoadData(void **library, const void *code, void *a, void *b, int32_t c, void *d, void *e,
                                       int32_t f) {
  (void)library, (void)code, (void)a, (void)b, (void)c, (void)d, (void)e, (void)f;
  return kw_raise("RuntimeError", "its host code loads device code by itself");
}

KW_HIDDEN int32_t _cudaLibraryGetKernel(void **kernel, void *library, const char *name) {
  return ((kw_cutedsl_find)library)(name, kernel) ? KW_CUTEDSL_FAILED : 0;
}

/* The host code asks for a kernel's static shared memory to allow it as much dynamic shared memory as there is. The
 * launcher does that at the first launch that needs it. */
KW_HIDDEN int32_t _cuKernelGetAttribute(int32_t *value, int32_t attribute, void *kernel, int32_t device) {
  (void)attribute, (void)kernel, (void)device;
  *value = 0;
  return 0;
}

KW_HIDDEN int32_t _cudaKernelSetAttributeForDevice(void *kernel, int32_t attribute, int32_t value, int32_t device) {
  (void)kernel, (void)attribute, (void)value, (void)device;
  return 0;
}

KW_HIDDEN int32_t _cudaFuncSetAttribute(void *kernel, int32_t attribute, int32_t value) {
  (void)kernel, (void)attribute, (void)value;
  return 0;
}

/* ---- devices ---- */

KW_HIDDEN int32_t _cudaGetDevice(int32_t *device) {
  *device = kw_selected_device();
  return 0;
}

KW_HIDDEN int32_t _cudaSetDevice(int32_t device) {
  kw_select_device(device);
  return 0;
}

KW_HIDDEN int32_t _cudaDeviceGetAttribute(int32_t *value, int32_t attribute, int32_t id) {
  return kw_read_attribute(value, attribute, id) ? KW_CUTEDSL_FAILED : 0;
}

/* ---- errors ---- */

/* Longest message; what does not fit is cut. */
#define KW_CUTEDSL_MAX_TEXT 16384

KW_HIDDEN void kw_cutedsl_raise(const char *kind, const char *message) { kw_raise(kind, "%s", message); }

/* The message comes in parts, of which some may be null. */
KW_HIDDEN void kw_cutedsl_raise_parts(const char *kind, const char **parts, int32_t count) {
  char text[KW_CUTEDSL_MAX_TEXT] = "";
  for (int32_t i = 0; i < count; ++i)
    if (parts[i]) strncat(text, parts[i], sizeof text - 1 - strlen(text));
  kw_raise(kind, "%s", text);
}

/* The exported code prints what it finds wrong with a launch, and launches all the same. Here the launch fails. */
static _Thread_local bool kw_cutedsl_refused;

KW_HIDDEN __attribute__((format(printf, 1, 2))) int32_t kw_cutedsl_print(const char *format, ...) {
  static const char error[] = "\nError: ";
  va_list values;
  /* It knows the limit of one arch. The launcher asks the device. */
  if (strstr(format, "launch shared memory exceeds")) return 0;
  va_start(values, format);
  bool wrong = !strncmp(format, error, sizeof error - 1);
  if (wrong) {
    char text[KW_CUTEDSL_MAX_TEXT];
    vsnprintf(text, sizeof text, format + sizeof error - 1, values);
    for (size_t used = strlen(text); used && text[used - 1] == '\n';) text[--used] = 0;
    kw_raise("RuntimeError", "%s", text);
    kw_cutedsl_refused = true;
  } else {
    vprintf(format, values); /* of the definition's own */
  }
  va_end(values);
  return 0;
}

/* Called for a CUDA error other than those that were raised where they happened. */
KW_HIDDEN void CuteDSLRT_TVMFFISetRaisedCudaError(void *raise, int32_t status) {
  (void)raise;
  kw_raise("RuntimeError", "its host code failed with CUDA error %d", status);
}

/* ---- launching ---- */

KW_HIDDEN int32_t _cudaLaunchKernelEx(const kw_runtime_config *asked, const kw_function *function, void **parameters) {
  if (kw_cutedsl_refused) return kw_cutedsl_refused = false, KW_CUTEDSL_FAILED;
  return kw_launch_configured(asked, function, parameters) ? KW_CUTEDSL_FAILED : 0;
}

/* ---- a call ---- */

/* The exported code reads strides without asking whether there are any. */
static void kw_cutedsl_compact(const DLTensor *tensor, int64_t *strides) {
  int64_t step = 1;
  for (int32_t i = tensor->ndim - 1; i >= 0; --i) {
    strides[i] = step;
    if (__builtin_mul_overflow(step, tensor->shape[i], &step)) step = 0; /* it has no elements */
  }
}

#define KW_CUTEDSL_MAX_DIMS 16

KW_COLD int kw_cutedsl_run_compact(kw_entry exported, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  TVMFFIAny values[KW_CALL_ARGUMENTS];
  DLTensor tensors[KW_CALL_ARGUMENTS];
  int64_t strides[KW_CALL_ARGUMENTS][KW_CUTEDSL_MAX_DIMS];
  for (int32_t i = 0; i < count; ++i) {
    const DLTensor *tensor = kw_tensor_of(&arguments[i]);
    values[i] = arguments[i];
    if (!tensor || tensor->strides || tensor->ndim > KW_CUTEDSL_MAX_DIMS) continue;
    tensors[i] = *tensor;
    tensors[i].strides = strides[i];
    kw_cutedsl_compact(tensor, strides[i]);
    values[i] = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr, .v_ptr = &tensors[i]};
  }
  return exported(NULL, values, count, result);
}

/* Runs exported code on all arguments of the kernel. */
KW_FUNCTION int32_t kw_cutedsl_call(kw_cutedsl_find find, kw_entry exported, const TVMFFIAny *arguments, int32_t count,
                                    TVMFFIAny *result) {
  kw_cutedsl_current = find;
  kw_cutedsl_refused = false;
  for (int32_t i = 0; i < count; ++i) {
    const DLTensor *tensor = kw_tensor_of(&arguments[i]);
    if (tensor && !tensor->strides) return kw_cutedsl_run_compact(exported, arguments, count, result);
  }
  return exported(NULL, (void *)arguments, count, result);
}

#endif
