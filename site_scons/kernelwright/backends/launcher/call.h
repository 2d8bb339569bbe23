/* Reads the arguments of a call, and compares them with what a lowering expects. */
#ifndef KW_CALL_H
#define KW_CALL_H

/* Whether some variant takes None for an argument. */
KW_COLD bool kw_may_be_none(const kw_kernel *kernel, int32_t argument) {
  for (int32_t i = 0; i < kernel->num_variants; ++i) {
    const kw_signature *cpu = kernel->variants[i].cpu_signature, *cuda = kernel->variants[i].cuda_signature;
    if ((cpu && cpu->arguments[argument].nullable) || (cuda && cuda->arguments[argument].nullable)) return true;
  }
  return false;
}

/* Adds None for each of the last inputs that were left out, in whose place a number has its default; returns how many
 * values there are then, or -1. */
KW_COLD int32_t kw_complete_inputs(kw_call *call, const kw_kernel *kernel, const TVMFFIAny *passed, int32_t count) {
  int32_t inputs = kernel->num_arguments - kernel->num_outputs;
  if (count > inputs || count < inputs - kernel->num_optional) return kw_raise_count(kernel, count);
  memcpy(call->completed, passed, (size_t)count * sizeof *passed);
  while (count < inputs) call->completed[count++] = (TVMFFIAny){.type_index = kTVMFFINone};
  return count;
}

/* Lays the caller's values out by argument position. The device is that of the first tensor, the CPU without any.
 * `room` has KW_ROOM elements. */
KW_HOT int kw_bind(kw_call *call, const kw_kernel *kernel, const TVMFFIAny *passed, int32_t count, int64_t *room) {
  if (count != kernel->num_arguments && count != kernel->num_arguments - kernel->num_outputs) {
    if ((count = kw_complete_inputs(call, kernel, passed, count)) < 0) return -1;
    passed = call->completed;
  }
  call->kernel = kernel;
  call->passed = passed;
  call->complete = count == kernel->num_arguments;
  call->adapted = false;
  call->device = (DLDevice){kDLCPU, 0};
  bool located = false;
  for (int32_t i = 0; i < kernel->num_arguments; ++i) {
    const kw_argument *argument = &kernel->arguments[i];
    bool given = call->complete || !argument->output;
    const TVMFFIAny *value = call->values[i] = given ? passed++ : NULL;
    call->tensors[i] = NULL;
    if (__builtin_expect(argument->otherwise && value->type_index == kTVMFFINone, 0))
      call->values[i] = argument->otherwise, call->adapted = true;
    if (!given || argument->kind != KW_TENSOR) continue;
    const DLTensor *tensor = call->tensors[i] = kw_tensor_of(value);
    if (__builtin_expect(!tensor, 0)) {
      if (value->type_index != kTVMFFINone || !kw_may_be_none(kernel, i)) return kw_raise_not_tensor(argument, value);
      call->adapted = true;
      continue;
    }
    if (!located) call->device = tensor->device;
    located = true;
  }
  return __builtin_expect(kernel->folds != NULL, 0) ? kw_fold_tensors(call, room) : 0;
}

/* ---- which lowering fits ---- */

KW_FUNCTION const kw_signature *kw_signature_on(const kw_variant *variant, DLDeviceType device) {
  if (device == kDLCPU) return variant->cpu_signature;
  return device == kDLCUDA ? variant->cuda_signature : NULL;
}

/* How much of a call has to fit: dtypes, ranks and kinds of numbers; constant dimensions too; alignment of data too. */
typedef enum { KW_KINDS, KW_SIZES, KW_DATA } kw_depth;

KW_FUNCTION bool kw_is_aligned(const kw_argument *argument, const DLTensor *tensor) {
  return !(((uintptr_t)tensor->data + tensor->byte_offset) & (argument->alignment - 1));
}

KW_FUNCTION bool kw_same_dtype(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}

KW_FUNCTION bool kw_size_matches(int64_t expected, int64_t size) {
  return expected == KW_ANY || expected == size || (expected < 0 && !(size % expected));
}

KW_FUNCTION bool kw_tensor_matches(const kw_argument *argument, const DLTensor *tensor, kw_depth depth) {
  if (!kw_same_dtype(argument->dtype, tensor->dtype) || argument->ndim != tensor->ndim) return false;
  for (int32_t i = 0; depth >= KW_SIZES && i < argument->ndim; ++i)
    if (!kw_size_matches(argument->shape[i], tensor->shape[i])) return false;
  return depth < KW_DATA || kw_is_aligned(argument, tensor) || kw_is_empty(tensor);
}

/* Whether a tensor is passed where a variant is for None, or the other way round. */
KW_COLD bool kw_is_other_than_none(const kw_argument *argument, const kw_call *call, int32_t position) {
  if (call->tensors[position]) return argument->ndim == KW_NO_TENSOR;
  return argument->kind == KW_TENSOR && call->values[position] && !argument->nullable;
}

/* Whether a tensor has a size that is not the multiple of a number which it has to be. */
KW_COLD bool kw_is_of_other_class(const kw_argument *argument, const DLTensor *tensor) {
  for (int32_t i = 0; i < argument->ndim && i < tensor->ndim; ++i)
    if (argument->shape[i] < 0 && !kw_size_matches(argument->shape[i], tensor->shape[i])) return true;
  return false;
}

/* Python's numbers convert the way TVM's host code converts them. */
KW_FUNCTION bool kw_scalar_matches(const kw_argument *argument, int32_t type) {
  if (argument->kind == KW_POINTER) return type == kTVMFFIOpaquePtr || type == kTVMFFINone;
  return type == kTVMFFIInt || type == kTVMFFIBool || (type == kTVMFFIFloat && argument->kind == KW_FLOAT) ||
         type == KW_BIG_INT || (type == kTVMFFINone && argument->nullable);
}

/* ---- strides ---- */

/* Whether all tensors have the ranks that a lowering expects, as they do not where a call is run for its error. */
KW_COLD bool kw_ranks_match(const kw_signature *signature, const kw_call *call) {
  for (int32_t i = 0; i < call->kernel->num_arguments; ++i)
    if (call->tensors[i] && call->tensors[i]->ndim != signature->arguments[i].ndim) return false;
  return true;
}

/* Computes the strides that a tensor needs, and compares its own with them where there is something to stride over. The
 * result is the first dimension in which they differ, or -1. */
KW_COLD int32_t kw_other_stride(const kw_signature *signature, const kw_call *call, int32_t argument,
                                int64_t *expected) {
  const DLTensor *tensor = call->tensors[argument];
  DLTensor compact = *tensor;
  compact.strides = NULL;
  for (int32_t i = 0; i < tensor->ndim; ++i) expected[i] = kw_stride(&compact, i);
  if (signature->arguments[argument].strided) signature->strides(call, argument, expected);
  for (int32_t i = 0; i < tensor->ndim && !kw_is_empty(tensor); ++i)
    if (tensor->shape[i] > 1 && kw_stride(tensor, i) != expected[i]) return i;
  return -1;
}

/* Whether the strides of all tensors fit, which have the right ranks. */
KW_COLD bool kw_strides_match(const kw_signature *signature, const kw_call *call) {
  for (int32_t i = 0; i < call->kernel->num_arguments; ++i) {
    if (!call->tensors[i]) continue;
    int64_t expected[call->tensors[i]->ndim + 1];
    if (kw_other_stride(signature, call, i, expected) >= 0) return false;
    if (signature->arguments[i].strided && !signature->strides(call, i, expected)) return false;
  }
  return true;
}

/* The first size that does not tell its symbol, of a call whose ranks match; or null. */
KW_COLD const kw_line *kw_off_line(const kw_signature *signature, const kw_call *call) {
  for (const kw_line *line = signature->lines; line && line->step; ++line) {
    int64_t size = call->tensors[line->argument]->shape[line->axis];
    if (size < line->plus || (size - line->plus) % line->step) return line;
  }
  return NULL;
}

KW_FUNCTION bool kw_matches(const kw_signature *signature, const kw_call *call, kw_depth depth) {
  for (int32_t i = 0; i < call->kernel->num_arguments; ++i) {
    const kw_argument *argument = &signature->arguments[i];
    if (call->tensors[i] ? !kw_tensor_matches(argument, call->tensors[i], depth)
                         : call->values[i] && !kw_scalar_matches(argument, call->values[i]->type_index))
      return false;
  }
  if (depth < KW_SIZES) return true;
  if (__builtin_expect(signature->lines != NULL, 0) && kw_off_line(signature, call)) return false;
  if ((signature->fits && !signature->fits(call)) || (signature->requires && signature->requires(call) >= 0)) return false;
  return depth < KW_DATA || __builtin_expect(!call->kernel->by_strides, 1) || kw_strides_match(signature, call);
}

/* The number of a requirement that is in the way of a call, or -1: sizes are known where dtypes and ranks match. */
KW_COLD int32_t kw_unfulfilled(const kw_signature *signature, const kw_call *call) {
  return signature->requires && kw_matches(signature, call, KW_KINDS) ? signature->requires(call) : -1;
}

/* ---- what TVM's host code does not check ---- */

/* Sizes are int32 in most kernels, and TVM 0.27 narrows the caller's int64 sizes and strides without a check. The limit
 * is below 2**31 because host code rounds sizes up in int32, as in (n + 1023) >> 10 for a grid: with 65535, whatever a
 * block covers has room. */
#define KW_INT32_LIMIT (INT32_MAX - 65535)

/* The number of elements, or -1 if that, a size or a stride is beyond the limit. */
KW_FUNCTION int64_t kw_count_within(const DLTensor *tensor, int64_t limit) {
  int64_t count = 1;
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    int64_t size = tensor->shape[i];
    if (size < 0 || size > limit || __builtin_mul_overflow(count, size, &count) || count > limit) return -1;
    if (tensor->strides && size > 1 && (tensor->strides[i] > limit || tensor->strides[i] < -limit)) return -1;
  }
  return count;
}

/* Says what is wrong with a tensor, or nothing if it has no elements: then data that is not aligned does no harm, and a
 * product of the other sizes that is too large does none. */
KW_COLD int kw_raise_tensor(const kw_argument *argument, const DLTensor *tensor, int64_t limit) {
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    if (tensor->shape[i] < 0 || tensor->shape[i] > limit)
      return kw_raise_size(argument->name, "dimension", tensor->shape[i], limit);
    int64_t stride = tensor->strides && tensor->shape[i] > 1 ? tensor->strides[i] : 0;
    if (stride > limit || stride < -limit)
      return kw_raise_size(argument->name, "stride", stride, limit);
  }
  if (kw_is_empty(tensor)) return 0;
  kw_text text;
  kw_begin(&text);
  if (!kw_is_aligned(argument, tensor)) {
    kw_append(&text, "argument '%s' has data that is not aligned to %u bytes", argument->name, argument->alignment);
    kw_append(&text, "\n  remedy: pass a copy of it");
    return kw_raise_because("ValueError", KW_MISALIGNED, &text);
  }
  kw_append(&text, "argument '%s' of shape ", argument->name);
  kw_append_shape(&text, tensor->ndim, tensor->shape);
  kw_append(&text, " has more elements than the %" PRId64 " that int%d sizes allow", limit, kw_bits_of(limit));
  kw_append(&text, "\n  remedy: split the call, or build the kernel with int64 sizes");
  return kw_raise_text("ValueError", &text);
}

KW_COLD int kw_raise_stride(const kw_argument *argument, int32_t axis, int64_t found, int64_t expected) {
  return kw_raise("ValueError",
                  "argument '%s' has the stride %" PRId64 " in dimension %d, expected %" PRId64 " (it has to be %s)"
                  "\n  remedy: pass an array with the strides that the definition declares",
                  argument->name, found, axis, expected, argument->text);
}

/* Compares the strides of a tensor with the declared ones. No two elements of one that is written may be the same. */
KW_COLD int kw_check_strides(const kw_signature *signature, const kw_call *call, int32_t position) {
  const kw_argument *argument = &signature->arguments[position];
  const DLTensor *tensor = call->tensors[position];
  int64_t expected[tensor->ndim + 1];
  int32_t axis = kw_other_stride(signature, call, position, expected);
  if (axis >= 0) return kw_raise_stride(argument, axis, kw_stride(tensor, axis), expected[axis]);
  for (int32_t i = 0; argument->unique && i < tensor->ndim; ++i)
    if (tensor->shape[i] > 1 && !kw_stride(tensor, i))
      return kw_raise("ValueError",
                      "argument '%s' has the stride 0 in dimension %d, and the kernel writes it"
                      "\n  remedy: pass an array whose elements have a place each, such as a copy",
                      argument->name, i);
  return 0;
}

/* How far apart elements of a tensor with declared strides are has to fit the kernel's sizes. */
KW_COLD int kw_check_span(const kw_argument *argument, const DLTensor *tensor, int64_t limit) {
  int64_t span = 1, step;
  for (int32_t i = 0; i < tensor->ndim; ++i) {
    bool over = __builtin_mul_overflow(llabs(kw_stride(tensor, i)), tensor->shape[i] - 1, &step);
    if (over || __builtin_add_overflow(span, step, &span) || span > limit)
      return kw_raise("ValueError",
                      "argument '%s' has elements that are further apart than the %" PRId64 " that int%d sizes allow"
                      "\n  remedy: pass a copy that has no such gaps, or build the kernel with int64 sizes",
                      argument->name, limit, kw_bits_of(limit));
  }
  return 0;
}

KW_FUNCTION bool kw_has_size_of_one(const DLTensor *tensor) {
  for (int32_t i = 0; i < tensor->ndim; ++i)
    if (tensor->shape[i] == 1) return true;
  return false;
}

KW_FUNCTION bool kw_scalar_fits(const kw_argument *argument, const TVMFFIAny *value) {
  int bits = argument->dtype.bits;
  if (argument->kind != KW_INT || value->type_index != kTVMFFIInt) return true;
  if (argument->dtype.code == kDLUInt) return value->v_int64 >= 0 && (bits == 64 || !(value->v_int64 >> bits));
  int64_t high = value->v_int64 >> (bits - 1);
  return high == 0 || high == -1;
}

/* A number as the host code gets it, in place of what was passed. */
KW_COLD int kw_adapt_number(const kw_argument *argument, kw_call *call, int32_t position, const kw_narrow *narrow) {
  const TVMFFIAny *value = call->values[position];
  TVMFFIAny *number = &call->numbers[position];
  bool large = kw_is_large(value), is_float = argument->kind == KW_FLOAT;
  uint64_t whole = 0;
  *number = (TVMFFIAny){.type_index = value->type_index, .v_int64 = value->v_int64};
  if (large && !is_float) {
    if (argument->kind == KW_BOOL) whole = 1;
    else if (!kw_is_uint64(value, &whole) || argument->dtype.code != kDLUInt || argument->dtype.bits < 64)
      return kw_raise_large(argument->name, argument->dtype.bits, argument->dtype.code == kDLInt);
    *number = (TVMFFIAny){.type_index = kTVMFFIInt, .v_int64 = (int64_t)whole};
  }
  if (is_float) {
    double real = large ? kw_double_of_large(value)
                        : value->type_index == kTVMFFIFloat ? value->v_float64 : (double)value->v_int64;
    if (large && (real == HUGE_VAL || real == -HUGE_VAL)) return kw_raise_large(argument->name, 0, true);
    *number = (TVMFFIAny){.type_index = kTVMFFIFloat, .v_float64 = narrow ? kw_rounded(real, narrow) : real};
  }
  call->values[position] = number;
  call->adapted = true;
  return 0;
}

/* Compares a number with the range of its type. */
KW_FUNCTION int kw_check_number(const kw_argument *argument, kw_call *call, int32_t position) {
  const TVMFFIAny *value = call->values[position];
  const kw_narrow *narrow = argument->kind == KW_FLOAT ? kw_narrow_of(argument->dtype) : NULL;
  if (__builtin_expect(narrow || kw_is_large(value), 0)) return kw_adapt_number(argument, call, position, narrow);
  if (__builtin_expect(kw_scalar_fits(argument, value), 1)) return 0;
  return kw_raise_range(argument->name, value->v_int64, argument->dtype.bits, argument->dtype.code == kDLInt);
}

#define KW_WIDER \
  "\n  remedy: pass a smaller array, or give the function a parameter of 64 bits: Size(..., dtype=\"int64\")"

/* Compares a size or a stride with the type that a device function gets it in. */
KW_COLD int kw_check_limited(const kw_call *call, const kw_limited *limited) {
  const kw_told *told = &limited->told;
  const kw_place size = {told->argument, told->axis}, *place = told->num_strides ? told->strides : &size;
  int64_t value = kw_told_value(call, *told);
  if (value >= limited->low && value <= limited->high) return 0;
  if (told->times != 1 || told->plus)
    return kw_raise("ValueError", "%s is %" PRId64 ", which does not fit %s, as which the function gets it" KW_WIDER,
                    told->name, value, limited->dtype);
  for (const kw_place *last = place + told->num_strides - 1; place < last; ++place) {
    const DLTensor *tensor = call->tensors[place->argument];
    if (tensor && kw_stride(tensor, place->axis) == value) break;
  }
  return kw_raise("ValueError",
                  "argument '%s' has the %s %" PRId64 " in dimension %d, which does not fit %s, as which the function "
                  "gets it" KW_WIDER,
                  call->kernel->arguments[place->argument].name, told->num_strides ? "stride" : "size", value,
                  place->axis, limited->dtype);
}

/* Whether two tensors with elements share memory, as far as that is sure: elements of one with strides may lie between
 * those of the other. */
KW_COLD bool kw_share_memory(const DLTensor *one, const DLTensor *other, bool strided) {
  const char *first = (const char *)one->data + one->byte_offset, *second = (const char *)other->data + other->byte_offset;
  if (first == second || strided) return first == second;
  const DLTensor *lower = first < second ? one : other;
  uint64_t bits = (uint64_t)kw_count_within(lower, INT64_MAX) * lower->dtype.bits * lower->dtype.lanes;
  return (uint64_t)llabs(first - second) < (bits + 7) / 8;
}

/* Outputs that are passed must not be one memory, where one would overwrite the other. */
KW_COLD int kw_check_outputs(const kw_signature *signature, const kw_call *call) {
  for (int32_t i = 0; i < call->kernel->num_arguments; ++i) {
    for (int32_t j = 0; j < i; ++j) {
      const kw_argument *one = &signature->arguments[j], *other = &signature->arguments[i];
      const DLTensor *tensors[] = {call->tensors[j], call->tensors[i]};
      if (!one->output || !other->output || !tensors[0] || !tensors[1]) continue;
      if (kw_is_empty(tensors[0]) || kw_is_empty(tensors[1])) continue;
      if (kw_share_memory(tensors[0], tensors[1], one->strided || other->strided))
        return kw_raise("ValueError",
                        "outputs '%s' and '%s' overlap in memory\n  remedy: pass arrays with memory of their own",
                        one->name, other->name);
    }
  }
  return 0;
}

/* What only tensors with declared strides are checked for, if they have elements. */
KW_COLD int kw_check_strided(const kw_signature *signature, kw_call *call, int32_t position, int64_t limit) {
  const DLTensor *tensor = call->tensors[position];
  if (kw_check_span(&signature->arguments[position], tensor, limit)) return -1;
  if (kw_ranks_match(signature, call) && kw_check_strides(signature, call, position)) return -1;
  call->adapted |= kw_has_size_of_one(tensor);
  return 0;
}

/* Compares the sizes and strides that a device function gets in less than 64 bits. */
KW_COLD int kw_check_all_limited(const kw_signature *signature, const kw_call *call) {
  for (int32_t i = 0; i < signature->num_limited && kw_ranks_match(signature, call); ++i)
    if (kw_check_limited(call, &signature->limited[i])) return -1;
  return 0;
}

KW_HOT int kw_check(const kw_signature *signature, kw_call *call) {
  int64_t limit = signature->int32_sizes ? KW_INT32_LIMIT : INT64_MAX;
  bool large = false; /* some size or stride may not fit 32 bits */
  for (int32_t i = 0; i < call->kernel->num_arguments; ++i) {
    const kw_argument *argument = &signature->arguments[i];
    const DLTensor *tensor = call->tensors[i];
    if (tensor) {
      int64_t elements = kw_count_within(tensor, limit);
      large |= elements > INT32_MAX || argument->strided;
      call->adapted |= tensor->byte_offset != 0;
      if (__builtin_expect(argument->strided, 0) && elements > 0 && kw_check_strided(signature, call, i, limit)) return -1;
      if (__builtin_expect(elements > 0 && kw_is_aligned(argument, tensor), 1)) continue;
      if (elements && kw_raise_tensor(argument, tensor, limit)) return -1;
      call->adapted = true;
    } else if (call->values[i] && kw_check_number(argument, call, i)) {
      return -1;
    }
  }
  if (__builtin_expect(large, 0) && kw_check_all_limited(signature, call)) return -1;
  bool several = call->complete && call->kernel->num_outputs > 1;
  return __builtin_expect(several, 0) ? kw_check_outputs(signature, call) : 0;
}

#endif
