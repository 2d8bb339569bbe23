/* What a wrapper calls of a launcher that is an object of its own; see apart.h. */
#ifndef KW_SERVICES_H
#define KW_SERVICES_H

KW_HIDDEN int kw_dispatch(const kw_kernel *kernel, const kw_variant *variants, int32_t count, const TVMFFIAny *passed,
                          int32_t num_passed, TVMFFIAny *result);

KW_HIDDEN int kw_tell_choice(const kw_kernel *kernel, const kw_variant *variants, int32_t count,
                             const TVMFFIAny *passed, int32_t num_passed, TVMFFIAny *result);

/* Host code calls these, by the names that the wrapper and runtime.h give it for them. */
KW_HIDDEN int kw_cuda_lookup(const kw_module *module, const char *name, TVMFFIObjectHandle *result);
KW_HIDDEN int kw_cuda_call(const kw_module *module, void *handle, TVMFFIAny *arguments, int32_t count,
                           TVMFFIAny *result);
KW_HIDDEN int kw_parallel_launch(FTVMParallelLambda function, void *closure, int num_tasks);
KW_HIDDEN int kw_parallel_barrier(int task, TVMParallelGroupEnv *env);
KW_HIDDEN void *kw_allocate_workspace(int device_type, int device_id, uint64_t bytes, int code, int bits);
KW_HIDDEN int kw_free_workspace(int device_type, int device_id, void *data);

#endif
