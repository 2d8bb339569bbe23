/* The library of kernel gemm: its tables and, below them, its FFI functions.
 * Written by Kernelwright. The launcher's headers have the mechanism. */
#define KW_LLVM
#include "kernelwright.h"

/* What the lowerings expect of their arguments. */

static const kw_argument kw_arguments_0[] = {
  {.name = "a", .kind = KW_TENSOR, .alignment = 2, .ndim = 2, .shape = (const int64_t[]){KW_ANY, 4096}, .dtype = {2, 16, 1}, .text = "float16[m, 4096]"},
  {.name = "b", .kind = KW_TENSOR, .alignment = 2, .ndim = 2, .shape = (const int64_t[]){4096, KW_ANY}, .dtype = {2, 16, 1}, .text = "float16[4096, n]"},
  {.name = "c", .kind = KW_TENSOR, .alignment = 2, .ndim = 2, .shape = (const int64_t[]){KW_ANY, KW_ANY}, .output = true, .dtype = {2, 16, 1}, .text = "float16[m, min(2 * n, m // 3)]"},
  {.name = "alpha", .kind = KW_FLOAT, .dtype = {2, 32, 1}, .text = "float32"},
  {.name = "k", .kind = KW_INT, .dtype = {0, 32, 1}, .text = "int32"},
  {.name = "total", .kind = KW_TENSOR, .alignment = 4, .ndim = 0, .output = true, .dtype = {2, 32, 1}, .text = "float32[]"},
};
static void kw_shapes_0(const kw_call *call, int64_t *dims) {
  (void)call, (void)dims;
  const int64_t size_m = call->tensors[0]->shape[0];
  const int64_t size_n = call->tensors[1]->shape[1];
  dims[0] = size_m;
  dims[1] = kw_min(kw_multiply(INT64_C(2), size_n), kw_floordiv(size_m, INT64_C(3)));
}
static const kw_signature kw_signature_0 = {.arguments = kw_arguments_0, .int32_sizes = true, .output_shapes = kw_shapes_0};

/* ---- variant 0: dtype-float16 ---- */
KW_HIDDEN int32_t kw_gemm__dtype_float16__llvm__x86_64_v3(void *, void *, int32_t, void *);
static const kw_cpu_unit kw_cpu_units_0[] = {
  {"x86-64-v3", 3, kw_gemm__dtype_float16__llvm__x86_64_v3},
};
KW_IMAGE(kw_image_0_sm_80);
KW_IMAGE(kw_image_0_sm_90a);
KW_IMAGE(kw_image_0_sm_100f);
KW_IMAGE(kw_image_0_compute_80);
static const kw_image kw_images_0[] = {
  {.arch = "sm_80", .capability = 80, .data = kw_image_0_sm_80},
  {.arch = "sm_90a", .capability = 90, .suffix = 'a', .data = kw_image_0_sm_90a},
  {.arch = "sm_100f", .capability = 100, .suffix = 'f', .data = kw_image_0_sm_100f},
  {.arch = "compute_80", .capability = 80, .ptx = true, .data = kw_image_0_compute_80},
};
static const kw_module kw_module_0;
static const uint8_t kw_slots_0_0[] = {KW_GRID + 0, KW_GRID + 1, KW_CLUSTER + 0, KW_BLOCK + 0, KW_SHARED};
static const kw_function kw_functions_0[] = {
  {.name = "gemm_kernel", .module = &kw_module_0, .parameters = "pppfihii", .num_parameters = 8, .slots = kw_slots_0_0, .num_slots = 5, .clusters = true, .cooperative = true, .dependent = true},
};
static struct kw_loaded *_Atomic kw_loaded_0[KW_MAX_DEVICES];
static void *kw_libraries_0[4];
static const kw_module kw_module_0 = {
  .variant = "dtype-float16",
  .images = kw_images_0,
  .num_images = 4,
  .loaded = kw_loaded_0,
  .libraries = kw_libraries_0,
  .functions = kw_functions_0,
  .num_functions = 1,
};
#define TVMFFIEnvModLookupFromImports(context, ...) kw_cuda_lookup(&kw_module_0, __VA_ARGS__)
#define TVMFFIFunctionCall(handle, ...) kw_cuda_call(&kw_module_0, handle, __VA_ARGS__)
#define __tvm_ffi__library_ctx kw_context_0
#define __tvm_ffi_main kw_main_0
#define __tvm_set_device_packed kw_set_device_0
#define gemm_kernel_packed kw_packed_0_0
KW_HOST_BEGIN
#include "gemm/dtype-float16/cuda/host.c"
KW_HOST_END
#undef TVMFFIEnvModLookupFromImports
#undef TVMFFIFunctionCall
#undef __tvm_ffi__library_ctx
#undef __tvm_ffi_main
#undef __tvm_set_device_packed
#undef gemm_kernel_packed

/* ---- variant 1: other ---- */
KW_HIDDEN int32_t kw_gemm__dtype_float16__llvm__x86_64_v3_other(void *, void *, int32_t, void *);
static const kw_cpu_unit kw_cpu_units_1[] = {
  {"x86-64-v3", 3, kw_gemm__dtype_float16__llvm__x86_64_v3_other},
};
KW_IMAGE(kw_image_1_sm_80);
KW_IMAGE(kw_image_1_sm_90a);
KW_IMAGE(kw_image_1_sm_100f);
KW_IMAGE(kw_image_1_compute_80);
static const kw_image kw_images_1[] = {
  {.arch = "sm_80", .capability = 80, .data = kw_image_1_sm_80},
  {.arch = "sm_90a", .capability = 90, .suffix = 'a', .data = kw_image_1_sm_90a},
  {.arch = "sm_100f", .capability = 100, .suffix = 'f', .data = kw_image_1_sm_100f},
  {.arch = "compute_80", .capability = 80, .ptx = true, .data = kw_image_1_compute_80},
};
static const kw_module kw_module_1;
static const uint8_t kw_slots_1_0[] = {KW_GRID + 0, KW_GRID + 1, KW_CLUSTER + 0, KW_BLOCK + 0, KW_SHARED};
static const kw_function kw_functions_1[] = {
  {.name = "gemm_kernel", .module = &kw_module_1, .parameters = "pppfihii", .num_parameters = 8, .slots = kw_slots_1_0, .num_slots = 5, .clusters = true, .cooperative = true, .dependent = true},
};
static struct kw_loaded *_Atomic kw_loaded_1[KW_MAX_DEVICES];
static void *kw_libraries_1[4];
static const kw_module kw_module_1 = {
  .variant = "other",
  .images = kw_images_1,
  .num_images = 4,
  .loaded = kw_loaded_1,
  .libraries = kw_libraries_1,
  .functions = kw_functions_1,
  .num_functions = 1,
};
#define TVMFFIEnvModLookupFromImports(context, ...) kw_cuda_lookup(&kw_module_1, __VA_ARGS__)
#define TVMFFIFunctionCall(handle, ...) kw_cuda_call(&kw_module_1, handle, __VA_ARGS__)
#define __tvm_ffi__library_ctx kw_context_1
#define __tvm_ffi_main kw_main_1
#define __tvm_set_device_packed kw_set_device_1
#define gemm_kernel_packed kw_packed_1_0
KW_HOST_BEGIN
#include "gemm/dtype-float16/cuda/host.c"
KW_HOST_END
#undef TVMFFIEnvModLookupFromImports
#undef TVMFFIFunctionCall
#undef __tvm_ffi__library_ctx
#undef __tvm_ffi_main
#undef __tvm_set_device_packed
#undef gemm_kernel_packed

/* ---- tuning tables ---- */
static const kw_size kw_sizes_0_0[] = {{0, 0}, {4, -1}};
static const kw_range kw_ranges_0_0[] = {
  {64, 0},
  {4096, 1},
  {INT64_MAX, 0},
};
static const kw_rules kw_rules_0[] = {
  {.by = "m * k", .ranges = kw_ranges_0_0, .num_ranges = 3, .sizes = kw_sizes_0_0, .num_sizes = 2},
};
static const kw_range kw_ranges_1_0[] = {
  {INT64_MAX, 1},
};
static const kw_rules kw_rules_1[] = {
  {.by = "", .ranges = kw_ranges_1_0, .num_ranges = 1},
};
static const kw_table kw_tables[] = {
  {.device = kDLCUDA, .arch = "sm_90a", .name = "NVIDIA H100 80GB HBM3", .count = 132, .rules = kw_rules_0},
  {.device = kDLCPU, .arch = "x86-64-v3", .name = "A \042CPU\042", .count = 8, .rules = kw_rules_1},
};
static const kw_table *_Atomic kw_tables_found[KW_TABLE_PLACES * 1];
static const kw_tuning kw_tuning_tables = {kw_tables, 2, kw_tables_found};

/* ---- the kernel ---- */
static const kw_variant kw_variants[] = {
  {.slug = "dtype-float16", .cpu_signature = &kw_signature_0, .cpu_units = kw_cpu_units_0, .num_cpu_units = 1, .cuda_signature = &kw_signature_0, .cuda_entry = kw_gemm__dtype_float16__cuda__sm_80, .module = &kw_module_0},
  {.slug = "other", .cpu_signature = &kw_signature_0, .cpu_units = kw_cpu_units_1, .num_cpu_units = 1, .cuda_signature = &kw_signature_0, .cuda_entry = kw_gemm__dtype_float16__cuda__sm_80_other, .module = &kw_module_1},
};
static const kw_kernel kw_this = {
  .name = "gemm",
  .outline = "a, b, [c], alpha, k, [total]",
  .built = "llvm (x86-64-v3), cuda (sm_80, sm_90a, sm_100f, compute_80)",
  .arguments = kw_arguments_0,
  .num_arguments = 6,
  .num_outputs = 2,
  .num_dims = 2,
  .variants = kw_variants,
  .num_variants = 2,
  .num_declared = 1,
  .tuning = &kw_tuning_tables,
};
static const char kw_description[] __attribute__((used)) = "kernelwright describes gemm d7f7e27623741986370df1613c6745a0b34e81c3726a4219e7c3b1696613bbc3";

#include "exports.h"
KW_EXPORT_KERNEL(gemm)
KW_EXPORT_VARIANT(gemm, 0)
KW_EXPORT_VARIANT(gemm, 1)
