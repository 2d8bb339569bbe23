/* The functions of the launcher that wrappers and generated host code call. It is compiled apart from them. */
#ifndef KW_SERVICES_H
#define KW_SERVICES_H

KW_EXPORT int kw_dispatch(const kw_kernel *kernel, const kw_variant *variants, int32_t count, const TVMFFIAny *passed,
                          int32_t num_passed, TVMFFIAny *result);

KW_EXPORT int kw_tell_choice(const kw_kernel *kernel, const kw_variant *variants, int32_t count,
                             const TVMFFIAny *passed, int32_t num_passed, TVMFFIAny *result);

KW_EXPORT bool kw_look(const TVMFFIAny *passed, int32_t num_passed, TVMFFIAny *result);

KW_EXPORT int kw_hand_over(const kw_kernel *kernel, const kw_variant *variant, const TVMFFIAny *passed,
                           int32_t num_passed, TVMFFIAny *result);

KW_EXPORT int kw_run_gridded(const kw_kernel *kernel, const TVMFFIAny *passed, int32_t num_passed, TVMFFIAny *result);

KW_EXPORT int kw_tell_arch(const kw_kernel *kernel, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result);

KW_EXPORT int kw_find_gridded(const kw_kernel *kernel, const TVMFFIAny *parameters, int32_t count, TVMFFIAny *result);

KW_EXPORT void *kw_driver_function(const char *name);

/* The FFI functions that every library has, as `kw_` and the name; serve.h says what they do. */
#define KW_SERVICES(X)                                                                                        \
  X(preload) X(supported) X(set_num_threads) X(num_threads) X(current_stream) X(order) X(synchronize)         \
  X(refuse_captured) X(for_xla)

/* One more, if the device images are in files of their own. */
#define KW_SPLIT_SERVICES(X) X(set_provider)

#define KW_SERVICE_NUMBER(name) KW_SERVE_##name,
typedef enum { KW_SERVICES(KW_SERVICE_NUMBER) KW_SPLIT_SERVICES(KW_SERVICE_NUMBER) } kw_service;

KW_EXPORT int kw_serve(const kw_kernel *kernel, kw_service service, const TVMFFIAny *arguments, int32_t count,
                       TVMFFIAny *result);

/* Host code calls these, by the names that the wrapper and runtime.h give it for them. */
KW_EXPORT int kw_lookup(TVMFFIObjectHandle context, const char *name, TVMFFIObjectHandle *result);
KW_EXPORT int kw_cuda_lookup(const kw_module *module, const char *name, TVMFFIObjectHandle *result);
KW_EXPORT int kw_cuda_call(const kw_module *module, void *handle, TVMFFIAny *arguments, int32_t count,
                           TVMFFIAny *result);
KW_EXPORT int kw_parallel_launch(FTVMParallelLambda function, void *closure, int num_tasks);
KW_EXPORT int kw_parallel_barrier(int task, TVMParallelGroupEnv *env);
KW_EXPORT void *kw_allocate_workspace(int device_type, int device_id, uint64_t bytes, int code, int bits);
KW_EXPORT int kw_free_workspace(int device_type, int device_id, void *data);
KW_EXPORT int64_t kw_count_multiprocessors(void);
KW_EXPORT int64_t kw_occupancy_of(const kw_module *module, const int64_t *asked);

/* ---- for cutedsl.h ---- */

/* cudaLaunchConfig_t; its attributes are those of the driver. */
typedef struct kw_runtime_config {
  unsigned int grid[3];
  unsigned int block[3];
  size_t shared_bytes;
  void *stream;
  void *attributes;
  unsigned int num_attributes;
} kw_runtime_config;

KW_EXPORT int kw_launch_configured(const kw_runtime_config *asked, const kw_function *function, void **parameters);
KW_EXPORT int kw_read_attribute(int32_t *value, int32_t attribute, int32_t id);
KW_EXPORT int kw_selected_device(void);
KW_EXPORT void kw_select_device(int id);
KW_EXPORT int kw_raise(const char *kind, const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
