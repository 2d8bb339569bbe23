/* Messages for calls that do not fit the kernel. All of this is off the hot path. */
#ifndef KW_MISMATCH_H
#define KW_MISMATCH_H

#define KW_CONTIGUOUS \
  "pass a contiguous copy, such as numpy.ascontiguousarray(x) or x.contiguous(), and copy back what the kernel writes"

KW_COLD void kw_append_device(kw_text *text, DLDevice device) {
  if (device.device_type == kDLCPU) kw_append(text, "cpu");
  else if (device.device_type == kDLCUDA) kw_append(text, "cuda:%d", device.device_id);
  else kw_append(text, "device %d of DLPack type %d", device.device_id, (int)device.device_type);
}

KW_COLD void kw_append_dtype(kw_text *text, DLDataType dtype) {
  TVMFFIAny name = {.type_index = kTVMFFINone};
  if (dtype.code == kDLComplex) { /* TVM-FFI has no name for it */
    kw_append(text, "complex%d", dtype.bits);
  } else if (TVMFFIDataTypeToString(&dtype, &name)) {
    kw_append_raised(text);
  } else if (name.type_index == kTVMFFISmallStr) {
    kw_append(text, "%.*s", (int)name.small_str_len, name.v_bytes);
  } else {
    const TVMFFIByteArray *bytes = (const TVMFFIByteArray *)((const char *)name.v_ptr + sizeof(TVMFFIObject));
    kw_append(text, "%.*s", (int)bytes->size, bytes->data);
    TVMFFIObjectDecRef(name.v_ptr);
  }
}

KW_COLD void kw_append_shape(kw_text *text, int32_t ndim, const int64_t *shape) {
  kw_append(text, "[");
  for (int32_t i = 0; i < ndim; ++i) kw_append(text, "%s%" PRId64, i ? ", " : "", shape[i]);
  kw_append(text, "]");
}

KW_COLD void kw_append_tensor(kw_text *text, const DLTensor *tensor) {
  kw_append_dtype(text, tensor->dtype);
  kw_append_shape(text, tensor->ndim, tensor->shape);
  kw_append(text, " on ");
  kw_append_device(text, tensor->device);
}

/* What an argument is that is not a tensor, as a Python programmer would say it. */
KW_COLD void kw_append_value(kw_text *text, const TVMFFIAny *value) {
  switch (value->type_index) {
    case kTVMFFINone: kw_append(text, "None"); return;
    case KW_BIG_INT: kw_append(text, "an int beyond int64"); return;
    case kTVMFFIInt:
      if (kw_is_large(value)) kw_append(text, "an int beyond int64");
      else kw_append(text, "the int %" PRId64, value->v_int64);
      return;
    case kTVMFFIBool: kw_append(text, "the bool %s", value->v_int64 ? "True" : "False"); return;
    case kTVMFFIFloat: kw_append(text, "the float %g", value->v_float64); return;
    case kTVMFFIRawStr:
    case kTVMFFISmallStr:
    case kTVMFFIStr: kw_append(text, "a str"); return;
    case kTVMFFIOpaquePtr: kw_append(text, "a pointer"); return;
    case kTVMFFIDLTensorPtr:
    case kTVMFFITensor: kw_append(text, "a tensor"); return;
    /* TVM-FFI makes objects of its own of lists, dicts and functions, whose names nobody has to know. */
    default: kw_append(text, "a Python object that is not a tensor");
  }
}

KW_COLD void kw_append_passed(kw_text *text, const kw_call *call) {
  kw_append(text, "\n  passed:");
  for (int32_t i = 0, first = 1; i < call->kernel->num_arguments; ++i) {
    if (!call->values[i]) continue;
    kw_append(text, "%s%s = ", first ? " " : ", ", call->kernel->arguments[i].name);
    if (call->tensors[i]) kw_append_tensor(text, kw_tensor_of(call->values[i]));
    else kw_append_value(text, call->values[i]);
    first = 0;
  }
}

KW_COLD void kw_append_expected(kw_text *text, const kw_call *call, const char *slug, const kw_signature *signature) {
  kw_append(text, "\n  %s expects: ", slug);
  for (int32_t i = 0, first = 1; i < call->kernel->num_arguments; ++i) {
    if (!call->values[i]) continue;
    kw_append(text, "%s%s = %s", first ? "" : ", ", signature->arguments[i].name, signature->arguments[i].text);
    first = 0;
  }
}

/* Says which size of a call tells nothing of its symbol. */
KW_COLD void kw_append_off_line(kw_text *text, const kw_call *call, const char *slug, const kw_line *line) {
  kw_append(text, "\n  %s: argument '%s' has the size %" PRId64 " in dimension %d, which is no %s", slug,
            call->kernel->arguments[line->argument].name, call->tensors[line->argument]->shape[line->axis], line->axis,
            line->text);
}

/* Says which requirement a call does not fulfil, and what it has for the names in it. */
KW_COLD void kw_append_unfulfilled(kw_text *text, const kw_call *call, const char *slug,
                                   const kw_requirement *requirement) {
  kw_append(text, "\n  %s requires %s", slug, requirement->text);
  for (int32_t i = 0; i < requirement->num_names; ++i) {
    int64_t value = kw_told_value(call, requirement->names[i]);
    kw_append(text, "%s%s is ", i ? " and " : ", and ", requirement->names[i].name);
    if (value == KW_NO_SIZE) kw_append(text, "beyond int64");
    else kw_append(text, "%" PRId64, value);
  }
}

KW_COLD int kw_raise_count(const kw_kernel *kernel, int32_t count) {
  int32_t all = kernel->num_arguments, inputs = all - kernel->num_outputs;
  kw_text text;
  kw_begin(&text);
  kw_append(&text, "takes %d arguments (%s)", all, kernel->outline);
  if (kernel->num_optional) kw_append(&text, ", or %d to %d", inputs - kernel->num_optional, inputs);
  else if (kernel->num_outputs) kw_append(&text, ", or %d", inputs);
  if (kernel->num_outputs) kw_append(&text, " with the outputs left out");
  kw_append(&text, "%s %d were given", kernel->num_outputs || kernel->num_optional ? ";" : ",", count);
  return kw_raise_text("TypeError", &text);
}

KW_COLD int kw_raise_not_tensor(const kw_argument *argument, const TVMFFIAny *value) {
  kw_text text;
  kw_begin(&text);
  kw_append(&text, "argument '%s' is ", argument->name);
  kw_append_value(&text, value);
  kw_append(&text, ", expected a tensor: an array of NumPy, PyTorch, JAX, CuPy or another library with DLPack");
  return kw_raise_text("TypeError", &text);
}

KW_COLD int kw_raise_no_target(const kw_call *call, const char *subject) {
  kw_text text;
  kw_begin(&text);
  kw_append(&text, "it cannot run on ");
  kw_append_device(&text, call->device);
  kw_append(&text, ": %s was built for %s only", subject, call->kernel->built);
  kw_append(&text, "\n  remedy: use a device that it was built for, or add an arch of this one");
  return kw_raise_because("ValueError", KW_NO_TARGET, &text);
}

/* The width of the integers that a limit of sizes is for. */
KW_COLD int kw_bits_of(int64_t limit) { return limit <= INT32_MAX ? 32 : 64; }

/* A dimension or stride of a tensor that the kernel cannot compute with. */
KW_COLD int kw_raise_size(const char *argument, const char *what, int64_t value, int64_t limit) {
  if (value < 0 && *what == 'd')
    return kw_raise("ValueError", "argument '%s' has a dimension of %" PRId64 ", expected one from 0", argument, value);
  return kw_raise("ValueError", "argument '%s' has a %s of %" PRId64 ", beyond the %" PRId64 " that int%d sizes allow",
                  argument, what, value, limit, kw_bits_of(limit));
}

/* A number that no int64 has, and that is none of its type either; without bits, that is a float. */
KW_COLD int kw_raise_large(const char *argument, int bits, bool is_signed) {
  if (!bits) return kw_raise("ValueError", "argument '%s' is an int that is too large for a float", argument);
  return kw_raise("ValueError", "argument '%s' is an int beyond int64, which does not fit %sint%d", argument,
                  is_signed ? "" : "u", bits);
}

/* A number outside of the range of its type. */
KW_COLD int kw_raise_range(const char *argument, int64_t value, int bits, bool is_signed) {
  return kw_raise("ValueError", "argument '%s' is %" PRId64 ", which does not fit %sint%d", argument, value,
                  is_signed ? "" : "u", bits);
}

#endif
