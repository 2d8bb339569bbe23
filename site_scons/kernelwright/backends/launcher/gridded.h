/* Calls of functions that a program was recorded with: `function[grid](...)`. A call gives the blocks along x, y and z,
 * all parameters of the function, and the options of the launch. The variant is the one that was made for calls of this
 * form: each parameter is compared as the language compares it when it looks for compiled code. */
#ifndef KW_GRIDDED_H
#define KW_GRIDDED_H

#define KW_GRID_ARGUMENTS 3

/* What a language counts as a multiple of KW_DIVISOR: of a tensor the address of its first element. */
KW_HOT bool kw_is_divisible(kw_divisible expected, uint64_t value) {
  return expected == KW_ANY_NUMBER || (value % KW_DIVISOR == 0) == (expected == KW_MULTIPLE);
}

KW_FUNCTION char *kw_first_element(const DLTensor *tensor) { return (char *)tensor->data + tensor->byte_offset; }

KW_HOT bool kw_is_in(int64_t value, DLDataType dtype) {
  if (dtype.code == kDLUInt) return value >= 0 && (dtype.bits >= 63 || value < INT64_C(1) << dtype.bits);
  return dtype.bits >= 64 || (value >= -(INT64_C(1) << (dtype.bits - 1)) && value < INT64_C(1) << (dtype.bits - 1));
}

/* Whether an integer is one that the code takes. Without a declared type an integer is an int32 if it fits, else an
 * int64, else a uint64; and one that is 1 is a constant. A bool is an integer only where the type is declared. */
KW_HOT bool kw_integer_fits(const kw_parameter_form *form, const TVMFFIAny *value) {
  uint64_t number = (uint64_t)value->v_int64;
  if (__builtin_expect(kw_is_large(value), 0))
    return form->dtype.code == kDLUInt && form->dtype.bits == 64 && kw_is_uint64(value, &number) &&
           kw_is_divisible(form->divisible, number);
  if (form->declared && value->type_index == kTVMFFIBool) return form->divisible != KW_MULTIPLE; /* not even False is */
  bool is_integer = value->type_index == kTVMFFIInt;
  if (!is_integer || !kw_is_in(value->v_int64, form->dtype) || !kw_is_divisible(form->divisible, number)) return false;
  if (form->declared) return true;
  bool is_narrow = value->v_int64 == (int32_t)value->v_int64;
  if (form->dtype.code == kDLUInt || is_narrow != (form->dtype.bits == 32)) return false;
  return form->divisible == KW_ANY_NUMBER || value->v_int64 != 1;
}

KW_FUNCTION bool kw_text_equals(const TVMFFIAny *value, const char *text) {
  size_t length = strlen(text);
  if (value->type_index == kTVMFFIRawStr) return !strcmp(value->v_c_str, text);
  if (value->type_index == kTVMFFISmallStr)
    return value->small_str_len == length && !memcmp(value->v_bytes, text, length);
  if (value->type_index != kTVMFFIStr) return false;
  const TVMFFIByteArray *bytes = (const TVMFFIByteArray *)((const char *)value->v_ptr + sizeof(TVMFFIObject));
  return bytes->size == length && !memcmp(bytes->data, text, length);
}

/* Whether a value is a bool, or an integer that int64 has. */
KW_FUNCTION bool kw_is_whole(const TVMFFIAny *value) {
  return value->type_index == kTVMFFIBool || (value->type_index == kTVMFFIInt && !kw_is_large(value));
}

/* Whether a value is equal to the constant that the code was made with, although it is of another type. In a process of
 * Triton, which looks its code up as Python looks up the keys of a dict, 1, 1.0 and True have the same code. */
KW_COLD bool kw_is_equal_number(const kw_parameter_form *form, const TVMFFIAny *value) {
  bool is_number = form->type == kTVMFFIInt || form->type == kTVMFFIFloat || form->type == kTVMFFIBool;
  if (!form->declared || !is_number || !(kw_is_whole(value) || value->type_index == kTVMFFIFloat)) return false;
  if (form->type != kTVMFFIFloat && kw_is_whole(value)) return form->integer == value->v_int64;
  double expected = form->type == kTVMFFIFloat ? form->number : (double)form->integer;
  return expected == (kw_is_whole(value) ? (double)value->v_int64 : value->v_float64);
}

/* Whether a value is the constant that the code was made with. A bool is no integer, and an integer is no float. */
KW_HOT bool kw_is_constant(const kw_parameter_form *form, const TVMFFIAny *value) {
  if (form->type == kTVMFFIStr) return kw_text_equals(value, form->string);
  if (value->type_index != form->type) return false;
  if (form->type == kTVMFFINone) return true;
  if (form->type == kTVMFFIFloat)
    return !memcmp(&value->v_float64, &form->number, sizeof form->number) || /* 0.0 and -0.0 are two constants */
           (value->v_float64 != value->v_float64 && form->number != form->number);
  return value->v_int64 == form->integer && !kw_is_large(value);
}

KW_HOT bool kw_parameter_fits(const kw_parameter_form *form, const TVMFFIAny *value) {
  const DLTensor *tensor;
  switch (form->passed) {
    case KW_PASSED_PART: return kw_is_whole(value) && kw_is_in(value->v_int64, form->dtype);
    case KW_PASSED_DESCRIPTOR:
    case KW_PASSED_TENSOR:
      tensor = kw_tensor_of(value);
      return tensor && kw_same_dtype(tensor->dtype, form->dtype) &&
             kw_is_divisible(form->divisible, (uint64_t)(uintptr_t)kw_first_element(tensor));
    case KW_PASSED_FLOAT: return value->type_index == kTVMFFIFloat || (form->declared && kw_is_whole(value));
    case KW_PASSED_BOOL:
      return value->type_index == kTVMFFIBool || (form->declared && kw_is_whole(value) && !(value->v_int64 & ~1));
    case KW_FIXED: return kw_is_constant(form, value);
    default: return kw_integer_fits(form, value);
  }
}

/* Whether a call is of a form: of just this form, or with constants that are equal and of other types. */
KW_HOT bool kw_form_fits(const kw_form *form, const TVMFFIAny *parameters, bool equal) {
  for (int32_t i = 0; i < form->num_parameters; ++i) {
    const kw_parameter_form *parameter = &form->parameters[i];
    if (kw_parameter_fits(parameter, &parameters[i])) continue;
    if (!equal || parameter->passed != KW_FIXED || !kw_is_equal_number(parameter, &parameters[i])) return false;
  }
  return true;
}

/* The number of the variant for calls of this form, or -1. No two variants are for the same form, except for general
 * ones, which come last. So it does not matter where the search begins: it begins with the one that was found last. */
KW_FUNCTION int32_t kw_find_form(const kw_kernel *kernel, const TVMFFIAny *parameters) {
  int32_t last = atomic_load_explicit(kernel->last, memory_order_relaxed);
  if (!kernel->variants[last].form->general && kw_form_fits(kernel->variants[last].form, parameters, false)) return last;
  for (int32_t i = 0; i < kernel->num_variants; ++i) {
    if (!kw_form_fits(kernel->variants[i].form, parameters, false)) continue;
    if (!kernel->variants[i].form->general) atomic_store_explicit(kernel->last, i, memory_order_relaxed);
    return i;
  }
  for (int32_t i = 0; i < kernel->num_variants; ++i)
    if (kw_form_fits(kernel->variants[i].form, parameters, true)) return i;
  return -1;
}

/* ---- errors ---- */

KW_COLD void kw_append_parameter(kw_text *text, const kw_parameter_form *form, const TVMFFIAny *value) {
  const DLTensor *tensor = kw_tensor_of(value);
  kw_append(text, "%s = ", form->name);
  if (!tensor) {
    kw_append_value(text, value);
    return;
  }
  kw_append_tensor(text, tensor);
  bool is_multiple = (uintptr_t)kw_first_element(tensor) % KW_DIVISOR == 0;
  kw_append(text, is_multiple ? "" : " at an address that is no multiple of %d", KW_DIVISOR);
}

/* How many parameters of a call fit a variant. */
KW_COLD int32_t kw_count_fitting(const kw_form *form, const TVMFFIAny *parameters) {
  int32_t count = 0;
  for (int32_t i = 0; i < form->num_parameters; ++i) count += kw_parameter_fits(&form->parameters[i], &parameters[i]);
  return count;
}

/* No variant is for such a call. The message names the variant that is the most like it, and where it differs. */
KW_COLD int kw_raise_no_form(const kw_kernel *kernel, const TVMFFIAny *parameters) {
  kw_text text;
  const kw_variant *nearest = kernel->variants;
  for (int32_t i = 1; i < kernel->num_variants; ++i)
    if (kw_count_fitting(kernel->variants[i].form, parameters) > kw_count_fitting(nearest->form, parameters))
      nearest = &kernel->variants[i];
  kw_begin(&text);
  kw_append(&text, "no such call was recorded");
  kw_append(&text, "\n  passed:");
  int32_t count = nearest->form->num_parameters, options = count - nearest->form->num_options;
  for (int32_t i = 0; i < count; ++i) {
    if (i >= options && parameters[i].type_index == kTVMFFINone) continue;
    kw_append(&text, i ? ", " : " ");
    kw_append_parameter(&text, &nearest->form->parameters[i], &parameters[i]);
  }
  kw_append(&text, "\n  the nearest of the %d that were recorded has:", (int)kernel->num_variants);
  for (int32_t i = 0, first = 1; i < nearest->form->num_parameters; ++i) {
    const kw_parameter_form *form = &nearest->form->parameters[i];
    if (kw_parameter_fits(form, &parameters[i])) continue;
    kw_append(&text, "%s %s = %s", first ? "" : ",", form->name, form->text);
    first = 0;
  }
  kw_append(&text, "\n  remedy: record a run of the program that makes this call, and build the package again");
  return kw_raise_because("ValueError", KW_NO_VARIANT, &text);
}

/* ---- the launch ---- */

/* The device of the tensors, which has to be one GPU. */
KW_FUNCTION int kw_device_of_call(const TVMFFIAny *parameters, int32_t count, DLDevice *device) {
  bool located = false;
  for (int32_t i = 0; i < count; ++i) {
    const DLTensor *tensor = kw_tensor_of(&parameters[i]);
    if (!tensor) continue;
    if (!located) *device = tensor->device;
    located = true;
    if (tensor->device.device_type == device->device_type && tensor->device.device_id == device->device_id) continue;
    kw_text text;
    kw_begin(&text);
    kw_append(&text, "the tensors are on several devices, ");
    kw_append_device(&text, *device);
    kw_append(&text, " and ");
    kw_append_device(&text, tensor->device);
    kw_append(&text, "\n  remedy: move all tensors to one device");
    return kw_raise_text("ValueError", &text);
  }
  return located ? 0 : kw_raise("ValueError", "no tensor is passed, so there is no device to run on\n"
                                              "  remedy: pass a tensor of the device");
}

/* The blocks along an axis. A program that has nothing to do launches none, and that is no error. */
KW_FUNCTION int kw_read_grid(const TVMFFIAny *passed, uint64_t *grid) {
  static const unsigned int most[] = {INT32_MAX, 65535, 65535}; /* CUDA C++ Programming Guide, Technical Specifications */
  for (int i = 0; i < KW_GRID_ARGUMENTS; ++i) {
    if (!kw_is_whole(&passed[i]))
      return kw_raise("TypeError", "the grid has something along %c that is no integer\n"
                                   "  remedy: give up to three integers: kernel[(x, y, z)](...)", 'x' + i);
    if (passed[i].v_int64 < 0 || passed[i].v_int64 > most[i])
      return kw_raise("ValueError", "the grid has %" PRId64 " blocks along %c, and 0 to %u are possible",
                      passed[i].v_int64, 'x' + i, most[i]);
    grid[i] = (uint64_t)passed[i].v_int64;
  }
  return 0;
}

/* What a launch passes for a parameter: the address of data, or a number. */
KW_FUNCTION TVMFFIAny kw_passed_value(const kw_parameter_form *form, const TVMFFIAny *value) {
  const DLTensor *tensor = kw_tensor_of(value);
  uint64_t large;
  if (tensor) return (TVMFFIAny){.type_index = kTVMFFIOpaquePtr, .v_ptr = kw_first_element(tensor)};
  if (__builtin_expect(kw_is_large(value), 0) && kw_is_uint64(value, &large))
    return (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = (int64_t)large};
  if (__builtin_expect(form->passed == KW_PASSED_FLOAT && value->type_index != kTVMFFIFloat, 0))
    return (TVMFFIAny){.type_index = kTVMFFIFloat, .v_float64 = (double)value->v_int64};
  return *value;
}

/* Makes the map of a tensor descriptor of its parts, as Triton's driver does. */
KW_FUNCTION int kw_map_descriptor(const kw_map_form *form, uint32_t rank, const TVMFFIAny *parts, void *memory) {
  const DLTensor *tensor = kw_tensor_of(parts);
  const TVMFFIAny *sizes = parts + 1, *strides = sizes + rank, *modes = strides + rank;
  kw_tensor_map map = {.to = kw_tensor_map_in(memory), .rank = rank, .data = kw_first_element(tensor),
                       .swizzle = form->swizzle, .promotion = KW_PROMOTION_128, .fill = (int)modes[0].v_int64};
  map.dtype = modes[1].v_int64 ? "tfloat32" : form->dtype;
  for (uint32_t i = 0; i < rank; ++i) {
    map.sizes[i] = (uint64_t)sizes[rank - 1 - i].v_int64;
    if (i) map.strides[i - 1] = (uint64_t)strides[rank - 1 - i].v_int64 * tensor->dtype.bits / 8;
    map.box[i] = form->box[rank - 1 - i], map.steps[i] = 1;
  }
  return kw_make_tensor_map(&map);
}

KW_FUNCTION TVMFFIAny kw_integer(uint64_t value) {
  return (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = (int64_t)value};
}

/* Launches the only function of a variant. Its parameters are followed by two addresses of memory for its blocks, and
 * then by the sizes of the launch, in the order of the function's slots. */
KW_FUNCTION int kw_launch_form(const kw_variant *variant, const uint64_t *grid, const TVMFFIAny *parameters, int id) {
  const kw_form *form = variant->form;
  const kw_loaded *loaded = kw_get_loaded(variant->module, id);
  if (!loaded) return -1;
  const kw_module *module = loaded->image->source ? loaded->image->source : variant->module;
  const kw_function *function = module->functions;
  const kw_block *block = module->block;
  TVMFFIAny arguments[2 * KW_CALL_ARGUMENTS];
  kw_workspace *newest = kw_now.workspaces;
  void *scratch = NULL;
  uint64_t maps[block->num_maps + 1][KW_TENSOR_MAP_WORDS];
  int32_t count = 0, mapped = 0;
  uint64_t blocks = grid[0] * grid[1] * grid[2] * block->cluster;
  if (!blocks) return 0;
  for (int32_t i = 0; i < form->num_parameters; ++i) {
    const kw_parameter_form *parameter = &form->parameters[i];
    if (parameter->passed == KW_FIXED || parameter->passed == KW_PASSED_PART) continue;
    arguments[count++] = kw_passed_value(parameter, &parameters[i]);
    if (parameter->passed != KW_PASSED_DESCRIPTOR) continue;
    int32_t rank = (int32_t)parameter->integer;
    if (block->maps) {
      void *memory = arguments[count - 1].v_ptr = maps[mapped];
      if (kw_map_descriptor(&block->maps[mapped++], (uint32_t)rank, &parameters[i], memory)) return -1;
    }
    /* Without a map, sizes and strides are passed twice, in two types. */
    for (int32_t j = block->maps ? 2 * rank + 2 : 0; j < 4 * rank + 2; ++j)
      arguments[count++] = parameters[i + 1 + (j < 2 * rank + 2 ? j : j - 2 * rank - 2)];
  }
  if (block->scratch && !(scratch = kw_allocate_workspace(kDLCUDA, id, blocks * block->scratch, kDLUInt, 8))) return -1;
  arguments[count++] = (TVMFFIAny){.type_index = kTVMFFIOpaquePtr, .v_ptr = scratch};
  arguments[count++] = (TVMFFIAny){.type_index = kTVMFFIOpaquePtr, .v_ptr = NULL};
  const uint64_t dims[KW_SLOTS] = {
      [KW_GRID] = grid[0] * block->cluster, [KW_GRID + 1] = grid[1], [KW_GRID + 2] = grid[2],
      [KW_BLOCK] = block->threads, [KW_CLUSTER] = block->cluster, [KW_SHARED] = block->shared};
  for (int i = 0; i < function->num_slots; ++i) arguments[count++] = kw_integer(dims[function->slots[i]]);
  int status = kw_launch_function(function, arguments, count);
  if (status) kw_drop_workspaces(newest);
  return scratch && !status ? kw_free_workspace(kDLCUDA, id, scratch) : status;
}

static int kw_run_gridded_in(const kw_kernel *kernel, const TVMFFIAny *passed, int32_t num_passed, TVMFFIAny *result) {
  uint64_t grid[KW_GRID_ARGUMENTS];
  DLDevice device = {kDLCPU, 0};
  const TVMFFIAny *parameters = passed + KW_GRID_ARGUMENTS;
  int32_t expected = kernel->variants->form->num_parameters;
  if (num_passed != KW_GRID_ARGUMENTS + expected)
    return kw_raise("TypeError", "takes the blocks along x, y and z, and %d parameters and options; %d values were given",
                    expected, num_passed);
  if (kw_device_of_call(parameters, expected, &device)) return -1;
  int32_t number = kw_find_form(kernel, parameters);
  if (number < 0) return kw_raise_no_form(kernel, parameters);
  if (device.device_type != kDLCUDA) {
    kw_call call = {.kernel = kernel, .device = device};
    return kw_raise_no_target(&call, "it");
  }
  if (kw_read_grid(passed, grid)) return -1;
  *result = (TVMFFIAny){.type_index = kTVMFFINone};
  kw_select_device(device.device_id);
  return kw_launch_form(&kernel->variants[number], grid, parameters, device.device_id);
}

/* Launches what was recorded for a call: the blocks along x, y and z, then the parameters and the options. */
int kw_run_gridded(const kw_kernel *kernel, const TVMFFIAny *passed, int32_t num_passed, TVMFFIAny *result) {
  kw_before before = kw_begin_kernel(kernel);
  int status = kw_run_gridded_in(kernel, passed, num_passed, result);
  if (__builtin_expect(status, 0)) kw_explain_gaps(kernel);
  kw_end_kernel(&before);
  return status;
}

/* The arch of the code that the first variant runs on a GPU. */
int kw_tell_arch(const kw_kernel *kernel, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  kw_before before = kw_begin_kernel(kernel);
  const kw_loaded *loaded = count == 1 ? kw_get_loaded(kernel->variants->module, (int)arguments->v_int64) : NULL;
  kw_end_kernel(&before);
  if (!loaded) return -1;
  TVMFFIByteArray bytes = {loaded->image->arch, strlen(loaded->image->arch)};
  return TVMFFIStringFromByteArray(&bytes, result);
}

/* Whether a call has been recorded: the number of its variant, or -1. */
int kw_find_gridded(const kw_kernel *kernel, const TVMFFIAny *parameters, int32_t count, TVMFFIAny *result) {
  int32_t expected = kernel->variants->form->num_parameters;
  *result = kw_integer((uint64_t)(count == expected ? kw_find_form(kernel, parameters) : -1));
  return 0;
}

#endif
