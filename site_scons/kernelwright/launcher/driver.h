/* The CUDA driver: the part of its API that is used, and how it is found at run time.
 *
 * Nothing here needs a CUDA toolkit to compile, and a library loads where there is no driver. Names, numbers and
 * structures are those of cuda.h (CUDA 12.0 and newer); they are part of the driver's stable ABI. */
#ifndef KW_DRIVER_H
#define KW_DRIVER_H

#include <dlfcn.h>
#include <pthread.h>
#include <stdlib.h>

typedef int CUresult;
typedef int CUdevice;
typedef unsigned long long CUdeviceptr;
typedef struct CUctx_st *CUcontext;
typedef struct CUstream_st *CUstream;
typedef struct CUfunc_st *CUfunction;
typedef struct CUkern_st *CUkernel;
typedef struct CUlib_st *CUlibrary;

enum {
  KW_CUDA_SUCCESS = 0,
  KW_CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  KW_ATTRIBUTE_MAJOR = 75,
  KW_ATTRIBUTE_MINOR = 76,
  KW_ATTRIBUTE_MAX_SHARED_OPTIN = 97,
  KW_ATTRIBUTE_MEMORY_POOLS = 115,
  KW_FUNCTION_STATIC_SHARED = 1,
  KW_FUNCTION_MAX_DYNAMIC_SHARED = 8,
  KW_LAUNCH_COOPERATIVE = 2,
  KW_LAUNCH_CLUSTER = 4,
  KW_LAUNCH_DEPENDENT = 6,
  KW_LAUNCH_PREFERRED_CLUSTER = 11,
};

/* CUlaunchAttribute: the value is a union of 64 bytes, of which these two members are used. */
typedef struct kw_launch_attribute {
  unsigned int id;
  char pad[4];
  union {
    char size[64];
    int flag;
    unsigned int dims[3];
  } value;
} kw_launch_attribute;

/* CUlaunchConfig. */
typedef struct kw_launch_config {
  unsigned int grid[3];
  unsigned int block[3];
  unsigned int shared_bytes;
  CUstream stream;
  kw_launch_attribute *attributes;
  unsigned int num_attributes;
} kw_launch_config;

_Static_assert(sizeof(kw_launch_attribute) == 72, "CUlaunchAttribute has 72 bytes");
_Static_assert(sizeof(kw_launch_config) == 56, "CUlaunchConfig has 56 bytes");

#ifdef KW_DRIVER
#define KW_DRIVER_VERSION(X) X(version, "cuDriverGetVersion", (int *))
#else
#define KW_DRIVER_VERSION(X)
#endif

/* Member, exported name, parameters. */
#define KW_DRIVER_FUNCTIONS(X)                                                                                 \
  KW_DRIVER_VERSION(X)                                                                                         \
  X(init, "cuInit", (unsigned int))                                                                            \
  X(error_name, "cuGetErrorName", (CUresult, const char **))                                                   \
  X(error_string, "cuGetErrorString", (CUresult, const char **))                                               \
  X(device_count, "cuDeviceGetCount", (int *))                                                                 \
  X(device_get, "cuDeviceGet", (CUdevice *, int))                                                              \
  X(device_attribute, "cuDeviceGetAttribute", (int *, int, CUdevice))                                          \
  X(primary_retain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice))                                       \
  X(context_current, "cuCtxGetCurrent", (CUcontext *))                                                         \
  X(context_device, "cuCtxGetDevice", (CUdevice *))                                                            \
  X(context_push, "cuCtxPushCurrent_v2", (CUcontext))                                                          \
  X(context_pop, "cuCtxPopCurrent_v2", (CUcontext *))                                                          \
  X(library_load, "cuLibraryLoadData",                                                                         \
    (CUlibrary *, const void *, void *, void **, unsigned int, void *, void **, unsigned int))                 \
  X(library_kernel, "cuLibraryGetKernel", (CUkernel *, CUlibrary, const char *))                               \
  X(kernel_function, "cuKernelGetFunction", (CUfunction *, CUkernel))                                          \
  X(kernel_get, "cuKernelGetAttribute", (int *, int, CUkernel, CUdevice))                                      \
  X(kernel_set, "cuKernelSetAttribute", (int, int, CUkernel, CUdevice))                                        \
  X(launch, "cuLaunchKernelEx", (const kw_launch_config *, CUfunction, void **, void **))                      \
  X(memory_allocate, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                                 \
  X(memory_free, "cuMemFree_v2", (CUdeviceptr))                                                                \
  X(memory_allocate_async, "cuMemAllocAsync", (CUdeviceptr *, size_t, CUstream))                               \
  X(memory_free_async, "cuMemFreeAsync", (CUdeviceptr, CUstream))

typedef struct kw_driver {
#define X(member, name, parameters) CUresult(*member) parameters;
  KW_DRIVER_FUNCTIONS(X)
#undef X
} kw_driver;

static kw_driver kw_cuda __attribute__((unused));

/* Guards everything that is set up once: the driver, the devices, the images. */
static pthread_mutex_t kw_cuda_lock __attribute__((unused)) = PTHREAD_MUTEX_INITIALIZER;

#define KW_DRIVER_VARIABLE "KERNELWRIGHT_CUDA_DRIVER"

/* Raises an error for a failed driver call; `doing` says what was tried. */
__attribute__((format(printf, 2, 3))) KW_COLD int kw_raise_cuda(CUresult status, const char *doing, ...) {
  kw_text text;
  const char *name = NULL, *meaning = NULL;
  va_list values;
  kw_cuda.error_name(status, &name);
  kw_cuda.error_string(status, &meaning);
  kw_begin(&text);
  va_start(values, doing);
  kw_append_list(&text, doing, values);
  va_end(values);
  kw_append(&text, " failed with %s (%s)", name ? name : "an unknown error", meaning ? meaning : "no description");
  return kw_raise_text("RuntimeError", &text);
}

KW_COLD void *kw_open_driver(void) {
  const char *chosen = getenv(KW_DRIVER_VARIABLE);
  const char *name = chosen && *chosen ? chosen : "libcuda.so.1";
  void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!library)
    kw_raise("RuntimeError",
             "there is no CUDA driver: %s\n"
             "  remedy: install the NVIDIA driver (525 or newer), or pass CPU tensors", dlerror());
  return library;
}

KW_COLD int kw_resolve_driver(kw_driver *driver) {
  void *library = kw_open_driver();
  if (!library) return -1;
#define X(member, name, parameters)                                                                             \
  *(void **)&driver->member = dlsym(library, name);                                                             \
  if (!driver->member)                                                                                          \
    return kw_raise("RuntimeError", "the CUDA driver is too old: it has no %s\n"                                \
                    "  remedy: install driver 525 (CUDA 12.0) or newer", name);
  KW_DRIVER_FUNCTIONS(X)
#undef X
  return 0;
}

#endif
