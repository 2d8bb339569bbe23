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
typedef struct CUevent_st *CUevent;
typedef struct CUmemPoolHandle_st *CUmemoryPool;

enum {
  KW_CUDA_SUCCESS = 0,
  KW_CUDA_ERROR_OUT_OF_MEMORY = 2,
  KW_CUDA_ERROR_INVALID_IMAGE = 200,
  KW_CUDA_ERROR_NO_BINARY_FOR_GPU = 209,
  KW_CUDA_ERROR_INVALID_PTX = 218,
  KW_CUDA_ERROR_UNSUPPORTED_PTX_VERSION = 222,
  KW_CUDA_ERROR_CONTAINED = 226,
  KW_CUDA_ERROR_ILLEGAL_ADDRESS = 700,
  KW_CUDA_ERROR_LAUNCH_TIMEOUT = 702,
  KW_CUDA_ERROR_ASSERT = 710,
  KW_CUDA_ERROR_HARDWARE_STACK_ERROR = 714,
  KW_CUDA_ERROR_LAUNCH_FAILED = 719,
  KW_CUDA_ERROR_TENSOR_MEMORY_LEAK = 721,
  KW_CUDA_ERROR_MPS_CLIENT_TERMINATED = 810,
  KW_CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900,
  KW_CUDA_ERROR_STREAM_CAPTURE_IMPLICIT = 906,
  KW_CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD = 908,
  KW_CUDA_ERROR_EXTERNAL_DEVICE = 911,
  KW_ATTRIBUTE_MULTIPROCESSORS = 16,
  KW_ATTRIBUTE_MAJOR = 75,
  KW_ATTRIBUTE_MINOR = 76,
  KW_ATTRIBUTE_MAX_SHARED_OPTIN = 97,
  KW_ATTRIBUTE_MEMORY_POOLS = 115,
  KW_EVENT_DISABLE_TIMING = 2,
  KW_FUNCTION_STATIC_SHARED = 1,
  KW_FUNCTION_MAX_DYNAMIC_SHARED = 8,
  KW_LAUNCH_COOPERATIVE = 2,
  KW_LAUNCH_CLUSTER = 4,
  KW_LAUNCH_CLUSTER_SCHEDULING = 5,
  KW_SPREAD_CLUSTERS = 1,
  KW_LAUNCH_DEPENDENT = 6,
  KW_LAUNCH_PREFERRED_CLUSTER = 11,
  KW_CAPTURE_RELAXED = 2,
  KW_POOL_RELEASE_THRESHOLD = 4,
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

/* CUmemPoolProps: memory of a device that no other process can map. */
typedef struct kw_pool_properties {
  int allocation_type; /* 1: CU_MEM_ALLOCATION_TYPE_PINNED */
  int handle_types;
  int location_type; /* 1: CU_MEM_LOCATION_TYPE_DEVICE */
  int location;
  void *security;
  size_t max_size;
  char reserved[56];
} kw_pool_properties;

_Static_assert(sizeof(kw_pool_properties) == 88, "CUmemPoolProps has 88 bytes");
_Static_assert(sizeof(kw_launch_attribute) == 72, "CUlaunchAttribute has 72 bytes");
_Static_assert(sizeof(kw_launch_config) == 56, "CUlaunchConfig has 56 bytes");

/* Up to here, handles stand for a stream of the current context: null, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD. */
#define KW_LAST_DEFAULT_STREAM 2

/* Member, exported name, parameters. */
#define KW_DRIVER_FUNCTIONS(X)                                                                                 \
  X(init, "cuInit", (unsigned int))                                                                            \
  X(version, "cuDriverGetVersion", (int *))                                                                    \
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
  X(context_wait, "cuCtxSynchronize", (void))                                                                  \
  X(capture_mode, "cuThreadExchangeStreamCaptureMode", (int *))                                                \
  X(stream_capturing, "cuStreamIsCapturing", (CUstream, int *))                                                \
  X(stream_context, "cuStreamGetCtx", (CUstream, CUcontext *))                                                 \
  X(library_load, "cuLibraryLoadData",                                                                         \
    (CUlibrary *, const void *, void *, void **, unsigned int, void *, void **, unsigned int))                 \
  X(library_kernel, "cuLibraryGetKernel", (CUkernel *, CUlibrary, const char *))                               \
  X(kernel_function, "cuKernelGetFunction", (CUfunction *, CUkernel))                                          \
  X(kernel_get, "cuKernelGetAttribute", (int *, int, CUkernel, CUdevice))                                      \
  X(kernel_set, "cuKernelSetAttribute", (int, int, CUkernel, CUdevice))                                        \
  X(occupancy, "cuOccupancyMaxActiveBlocksPerMultiprocessor", (int *, CUfunction, int, size_t))                \
  X(launch, "cuLaunchKernelEx", (const kw_launch_config *, CUfunction, void **, void **))                      \
  X(memory_allocate, "cuMemAlloc_v2", (CUdeviceptr *, size_t))                                                 \
  X(memory_free, "cuMemFree_v2", (CUdeviceptr))                                                                \
  X(memory_allocate_async, "cuMemAllocFromPoolAsync", (CUdeviceptr *, size_t, CUmemoryPool, CUstream))         \
  X(memory_free_async, "cuMemFreeAsync", (CUdeviceptr, CUstream))                                              \
  X(memory_set_async, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream))                       \
  X(pool_create, "cuMemPoolCreate", (CUmemoryPool *, const kw_pool_properties *))                              \
  X(pool_destroy, "cuMemPoolDestroy", (CUmemoryPool))                                                          \
  X(pool_set, "cuMemPoolSetAttribute", (CUmemoryPool, int, void *))                                            \
  X(event_create, "cuEventCreate", (CUevent *, unsigned int))                                                  \
  X(event_record, "cuEventRecord", (CUevent, CUstream))                                                        \
  X(event_destroy, "cuEventDestroy_v2", (CUevent))                                                             \
  X(stream_wait_event, "cuStreamWaitEvent", (CUstream, CUevent, unsigned int))                                 \
  X(stream_synchronize, "cuStreamSynchronize", (CUstream))                                                     \
  X(encode_tiled, "cuTensorMapEncodeTiled",                                                                    \
    (void *, int, uint32_t, void *, const uint64_t *, const uint64_t *, const uint32_t *, const uint32_t *,    \
     int, int, int, int))

typedef struct kw_driver {
#define X(member, name, parameters) CUresult(*member) parameters;
  KW_DRIVER_FUNCTIONS(X)
#undef X
} kw_driver;

static kw_driver kw_cuda __attribute__((unused));

/* cuDeviceGetName, which only the choice by tuning tables needs: null if the driver does not have it. */
static CUresult (*kw_cuda_device_name)(char *, int, CUdevice) __attribute__((unused));

/* Guards everything that is set up once: the driver, the devices, the images. */
static pthread_mutex_t kw_cuda_lock __attribute__((unused)) = PTHREAD_MUTEX_INITIALIZER;

#define KW_DRIVER_VARIABLE "KERNELWRIGHT_CUDA_DRIVER"

/* ---- versions ---- */

/* What a driver has to be for: the kernel's device code, and the launcher itself, which needs CUDA 12.0. */
KW_COLD int kw_needed_cuda(void) { return kw_now.kernel->toolkit > 12000 ? kw_now.kernel->toolkit : 12000; }

/* The oldest driver that runs what a CUDA version compiles. Source: the CUDA toolkit's release notes, "CUDA Toolkit and
 * Minimum Required Driver Version for CUDA Minor Version Compatibility". */
KW_COLD int kw_driver_for(int cuda) { return cuda < 13000 ? 525 : 580; }

/* ---- errors ---- */

/* PTX is not read by the first driver of a major version, but by that of its own version. */
KW_COLD void kw_append_newer_driver(kw_text *text, int made, int has) {
  kw_append(text, "\n  remedy: install an NVIDIA driver for CUDA %d.%d", made / 1000, made % 1000 / 10);
  if (made % 1000 == 0) kw_append(text, " (%d or newer)", kw_driver_for(made));
  kw_append(text, ", or compile it with CUDA %d.%d", has / 1000, has % 1000 / 10);
}

/* The driver could not read the device code. PTX is refused by drivers that are older than what made it. */
KW_COLD void kw_append_versions(kw_text *text) {
  int has = 0, made = kw_now.kernel->toolkit;
  kw_cuda.version(&has);
  if (!made) {
    kw_append(text, "\n  the driver is for CUDA %d.%d", has / 1000, has % 1000 / 10);
    kw_append(text, "\n  remedy: install a newer NVIDIA driver, or compile it with an older CUDA");
    return;
  }
  kw_append(text, "\n  its device code was made with CUDA %d.%d, and the driver is for CUDA %d.%d", made / 1000,
            made % 1000 / 10, has / 1000, has % 1000 / 10);
  if (has >= made)
    kw_append(text, ", which is new enough\n  remedy: install the package again: its device code may be damaged");
  else
    kw_append_newer_driver(text, made, has);
}

/* These leave the context unusable, and any later call returns them (cuda.h, CUresult). */
KW_COLD bool kw_is_sticky(CUresult status) {
  switch (status) {
    case KW_CUDA_ERROR_CONTAINED:
    case KW_CUDA_ERROR_ILLEGAL_ADDRESS:
    case KW_CUDA_ERROR_LAUNCH_TIMEOUT:
    case KW_CUDA_ERROR_ASSERT:
    case KW_CUDA_ERROR_TENSOR_MEMORY_LEAK:
    case KW_CUDA_ERROR_MPS_CLIENT_TERMINATED:
    case KW_CUDA_ERROR_EXTERNAL_DEVICE: return true;
  }
  return status >= KW_CUDA_ERROR_HARDWARE_STACK_ERROR && status <= KW_CUDA_ERROR_LAUNCH_FAILED;
}

KW_COLD void kw_append_sticky(kw_text *text) {
  const char *blocking = getenv("CUDA_LAUNCH_BLOCKING");
  bool blocks = blocking && atoi(blocking);
  if (!blocks) kw_append(text, "\n  it comes from earlier work on the device, of this kernel or of anything else");
  kw_append(text, "\n  remedy: restart the process, since CUDA cannot be used in it any more");
  if (!blocks) kw_append(text, "; with CUDA_LAUNCH_BLOCKING=1 in its environment the launch at fault raises the error");
}

/* What a status means here, and what to do about it. */
KW_COLD void kw_append_remedy(kw_text *text, CUresult status) {
  switch (status) {
    case KW_CUDA_ERROR_OUT_OF_MEMORY:
      kw_append(text, "\n  remedy: pass smaller arrays, or free memory of the device");
      return;
    case KW_CUDA_ERROR_INVALID_IMAGE:
    case KW_CUDA_ERROR_NO_BINARY_FOR_GPU:
    case KW_CUDA_ERROR_INVALID_PTX:
    case KW_CUDA_ERROR_UNSUPPORTED_PTX_VERSION: kw_append_versions(text); return;
    case KW_CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
      kw_append(text, "\n  another stream that is not non-blocking is being captured, and the default stream would "
                      "wait for it\n  remedy: use a stream of your own");
      return;
  }
  if (kw_is_sticky(status)) kw_append_sticky(text);
  if (status >= KW_CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED && status <= KW_CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD)
    kw_append(text, "\n  a graph is being captured, which does not allow this"
                    "\n  remedy: call preload before the capture, pass the outputs, and use the captured stream");
}

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
  kw_append_remedy(&text, status);
  return kw_raise_text("RuntimeError", &text);
}

KW_COLD void *kw_try_driver(void) {
  const char *chosen = getenv(KW_DRIVER_VARIABLE);
  return dlopen(chosen && *chosen ? chosen : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
}

/* What stands in for functions of a driver that is not there, or too old. */
static CUresult kw_no_driver(void) { return 34; }    /* CUDA_ERROR_STUB_LIBRARY */
static CUresult kw_no_function(void) { return 500; } /* CUDA_ERROR_NOT_FOUND */

/* A function of the driver, for host code of the author's that calls it by its name (backends/own_code.py). */
__attribute__((cold)) void *kw_driver_function(const char *name) {
  void *library = kw_try_driver();
  void *function = library ? dlsym(library, name) : (void *)kw_no_driver;
  return function ? function : (void *)kw_no_function;
}

KW_COLD void *kw_open_driver(void) {
  void *library = kw_try_driver();
  if (!library)
    kw_raise("RuntimeError",
             "there is no CUDA driver: %s\n"
             "  remedy: install the NVIDIA driver (%d or newer), or pass CPU tensors",
             dlerror(), kw_driver_for(kw_needed_cuda()));
  return library;
}

KW_COLD int kw_resolve_driver(kw_driver *driver) {
  void *library = kw_open_driver();
  if (!library) return -1;
#define X(member, name, parameters)                                                                             \
  *(void **)&driver->member = dlsym(library, name);                                                             \
  if (!driver->member)                                                                                          \
    return kw_raise("RuntimeError", "the CUDA driver is too old: it has no %s\n"                                \
                    "  remedy: install driver %d (CUDA %d.0) or newer",                                         \
                    name, kw_driver_for(kw_needed_cuda()), kw_needed_cuda() / 1000);
  KW_DRIVER_FUNCTIONS(X)
#undef X
  *(void **)&kw_cuda_device_name = dlsym(library, "cuDeviceGetName");
  return 0;
}

#endif
