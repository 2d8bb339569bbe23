/* From a call of the FFI function to the variant that does the work. */
#ifndef KW_DISPATCH_H
#define KW_DISPATCH_H

KW_FUNCTION kw_entry kw_entry_on(const kw_variant *variant, DLDevice device) {
  if (device.device_type == kDLCUDA) return kw_cuda_pick(variant, device.device_id);
  const kw_cpu_unit *unit = kw_cpu_pick(variant);
  return unit ? unit->entry : NULL;
}

KW_COLD bool kw_are_compact(const kw_call *call) {
  for (int32_t i = 0; i < call->kernel->num_arguments; ++i) {
    const DLTensor *tensor = call->tensors[i];
    if (!tensor || !tensor->strides) continue;
    DLTensor plain = *tensor;
    plain.strides = NULL;
    for (int32_t axis = 0; axis < tensor->ndim; ++axis)
      if (tensor->shape[axis] > 1 && tensor->strides[axis] != kw_stride(&plain, axis)) return false;
  }
  return true;
}

/* What to do about an argument that TVM's host code (0.27) refuses. Its words are all that it tells. It compares strides
 * before sizes that are computed, so a compact array of another size gets its words about strides. */
KW_COLD const char *kw_remedy_for(const kw_call *call, const char *message) {
  if (strstr(message, "compact") && kw_are_compact(call)) return "pass arrays whose sizes fit each other";
  if (strstr(message, "compact") || strstr(message, ".strides"))
    return KW_CONTIGUOUS;
  if (strstr(message, ".shape")) return "pass arrays whose sizes fit each other";
  if (strstr(message, ".byte_offset")) return "pass a tensor without an offset";
  if (strstr(message, "NULL")) return "pass an array that has data";
  if (strstr(message, ".device")) return "move all arrays to one device";
  return "pass what the line above expects";
}

/* Names kernel and remedy in an error of TVM's host code about an argument, which has no kind of its own: it is told by
 * its words. Errors of ours have both, and those of others, such as an allocator, are left as they are. */
KW_COLD void kw_complete_error(const kw_call *call) {
  kw_text text;
  TVMFFIObjectHandle error = NULL;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) return;
  const TVMFFIErrorCell *cell = kw_error_cell(error);
  kw_begin(&text);
  const char *message = text.data + text.used;
  kw_append_message(&text, cell);
  if (!cell->extra_context && strstr(message, " when calling:\n")) {
    char kind[64];
    snprintf(kind, sizeof kind, "%.*s", (int)cell->kind.size, cell->kind.data);
    kw_append(&text, "\n  remedy: %s", kw_remedy_for(call, message));
    kw_raise_text(kind, &text);
  } else {
    TVMFFIErrorSetRaised(error);
  }
  TVMFFIObjectDecRef(error);
}

/* Whether a call has nothing to do: an output has no elements or, of a kernel without outputs, any array. */
KW_COLD bool kw_has_nothing_to_do(const kw_call *call, const TVMFFIAny *arguments) {
  for (int32_t i = 0; i < call->kernel->num_arguments; ++i) {
    const DLTensor *tensor = kw_tensor_of(&arguments[i]);
    bool counts = tensor && (call->kernel->arguments[i].output || !call->kernel->num_outputs);
    if (counts && kw_is_empty(tensor)) return true;
  }
  return false;
}

/* Nothing was launched, because no launch has a block and a thread. That leaves the outputs as they are, which is right
 * only where there is nothing to do. */
KW_COLD int kw_require_idle(const kw_call *call, const TVMFFIAny *arguments) {
  kw_text text;
  if (kw_has_nothing_to_do(call, arguments)) return 0;
  kw_begin(&text);
  kw_append(&text, "device function %s would be launched with ", kw_skipped.function->name);
  kw_append_dims(&text, &kw_skipped);
  kw_append(&text, ", which does nothing, and no %s is empty", call->kernel->num_outputs ? "output" : "array");
  kw_append_passed(&text, call);
  kw_append(&text, "\n  remedy: pass larger sizes, or compute 1 or more there, as in max(n // 256, 1)");
  return kw_raise_text("ValueError", &text);
}

/* Runs generated host code; what it leaves allocated when it fails is freed. */
KW_FUNCTION int kw_run_entry(const kw_call *call, kw_entry entry, const TVMFFIAny *arguments) {
  TVMFFIAny ignored = {.type_index = kTVMFFINone};
  kw_thread *thread = call->before->thread;
  thread->done = 0;
  int status = entry(NULL, (void *)arguments, call->kernel->num_arguments, &ignored);
  if (__builtin_expect(thread->done == KW_SKIPPED && !status, 0)) status = kw_require_idle(call, arguments);
  if (__builtin_expect(status, 0)) kw_drop_workspaces(call->before->state.workspaces), kw_complete_error(call);
  return status;
}

/* The strides of a tensor, with the declared ones where it has one element or none, over which nothing strides. */
KW_COLD void kw_declared_strides(const kw_call *call, const kw_signature *signature, int32_t argument, int64_t *strides) {
  const DLTensor *tensor = call->tensors[argument];
  signature->strides(call, argument, strides);
  for (int32_t i = 0; tensor && i < tensor->ndim; ++i)
    if (tensor->shape[i] > 1 && !kw_is_empty(tensor)) strides[i] = kw_stride(tensor, i);
}

/* TVM's host code (0.27) insists on compact strides also where there are no elements to stride over. NumPy gives empty
 * arrays other ones, PyTorch too, and so do the allocators of frameworks for new outputs. So the host code is shown
 * empty tensors without strides, which means compact; or with those that are declared, also for sizes of 1. It also
 * insists on an offset of 0, so its data begins where the first element is; and on a tensor where None is passed, which
 * gets one with the sizes that the call tells, and without memory. Host code of the author's would not get the
 * tensor that was checked, so there an offset is refused. */
KW_COLD int kw_run_adapted(const kw_call *call, const kw_variant *variant, kw_entry entry, const TVMFFIAny *arguments) {
  const kw_signature *signature = kw_signature_on(variant, call->device.device_type);
  TVMFFIAny values[KW_CALL_ARGUMENTS];
  DLTensor shown[KW_CALL_ARGUMENTS];
  int32_t dims = 1;
  bool ranks = kw_ranks_match(signature, call);
  for (int32_t i = 0; i < call->kernel->num_arguments; ++i)
    if (signature->arguments[i].ndim > 0) dims += signature->arguments[i].ndim;
  int64_t room[4 * dims], *strides = room, *shapes = room + dims, *folded = room + 2 * dims;
  if (signature->nullable_shapes) signature->nullable_shapes(call, shapes);
  for (int32_t i = 0; i < call->kernel->num_arguments; ++i) {
    const kw_argument *argument = &signature->arguments[i];
    const DLTensor *tensor = call->tensors[i] ? call->tensors[i] : kw_tensor_of(&arguments[i]);
    const kw_fold *fold = call->values[i] ? NULL : kw_fold_of(call->kernel, i);
    const DLTensor none = {KW_NULL, call->device, argument->ndim, argument->dtype, shapes, NULL, 0};
    values[i] = call->tensors[i] || !call->values[i] ? arguments[i] : *call->values[i];
    bool strided = ranks && call->values[i] && argument->strided;
    if (argument->nullable && argument->ndim != KW_NO_TENSOR) shapes += argument->ndim, tensor = tensor ? tensor : &none;
    if (!tensor) continue;
    shown[i] = *tensor;
    if (fold) kw_view(&shown[i], tensor, fold->trailing, folded, folded + argument->ndim), folded += 2 * argument->ndim;
    if (strided || fold || kw_is_empty(tensor)) shown[i].strides = NULL;
    if (strided) kw_declared_strides(call, signature, i, shown[i].strides = strides), strides += tensor->ndim;
    if (!variant->own) shown[i].data = (char *)tensor->data + tensor->byte_offset, shown[i].byte_offset = 0;
    values[i] = (TVMFFIAny){.type_index = kTVMFFIDLTensorPtr, .v_ptr = &shown[i]};
  }
  return kw_run_entry(call, entry, values);
}

/* Calls host code of the author's in the context of a device that the variant has code for. */
static int kw_run_own_on(const kw_variant *variant, int id, const TVMFFIAny *arguments, int32_t count,
                         TVMFFIAny *result) {
  bool pushed;
  if (!kw_get_loaded(variant->module, id)) return -1;
  if (kw_enter(&kw_devices[id], TVMFFIEnvGetStream(kDLCUDA, id), &pushed)) return -1;
  int status = variant->own(NULL, (void *)arguments, count, result);
  kw_leave(pushed);
  return status;
}

/* The same after a check of the arguments. What it returns is nothing that a caller was promised. */
static int kw_run_own(const kw_call *call, const kw_variant *variant, const TVMFFIAny *arguments) {
  TVMFFIAny ignored = {.type_index = kTVMFFINone};
  int status = kw_run_own_on(variant, call->device.device_id, arguments, call->kernel->num_arguments, &ignored);
  if (!status && ignored.type_index >= kTVMFFIStaticObjectBegin) TVMFFIObjectDecRef(ignored.v_obj);
  return status;
}

/* Runs host code on all arguments of the kernel. */
KW_FUNCTION int kw_run_host(const kw_call *call, const kw_variant *variant, kw_entry entry,
                            const TVMFFIAny *arguments) {
  bool adapted = __builtin_expect(call->adapted, 0);
  int status = adapted ? kw_run_adapted(call, variant, entry, arguments) : kw_run_entry(call, entry, arguments);
  return __builtin_expect(variant->own && !status, 0) ? kw_run_own(call, variant, arguments) : status;
}

KW_FUNCTION int kw_run_allocating(kw_call *call, const kw_variant *variant, kw_entry entry, TVMFFIAny *result) {
  const kw_signature *signature = kw_signature_on(variant, call->device.device_type);
  TVMFFIAny arguments[KW_CALL_ARGUMENTS];
  if (kw_complete_arguments(call, signature, arguments)) return -1;
  if (!kw_run_host(call, variant, entry, arguments)) return kw_return_outputs(call, arguments, result);
  kw_release_outputs(call, arguments, call->kernel->num_arguments);
  return -1;
}

KW_FUNCTION int kw_run(kw_call *call, const kw_variant *variant, TVMFFIAny *result) {
  const kw_signature *signature = kw_signature_on(variant, call->device.device_type);
  if (kw_check(signature, call)) return -1;
  kw_entry entry = kw_entry_on(variant, call->device);
  if (!entry) return -1;
  if (call->complete) return kw_run_host(call, variant, entry, call->passed);
  return kw_run_allocating(call, variant, entry, result);
}

/* ---- no variant fits ---- */

/* A TypeError, unless only constant dimensions are wrong, or requirements of sizes. */
KW_COLD int kw_raise_no_match(const kw_call *call, const kw_variant *variants, int32_t given) {
  kw_text text;
  const char *kind = "TypeError";
  kw_begin(&text);
  kw_append(&text, "no built variant accepts these arguments");
  kw_append_passed(&text, call);
  for (int32_t i = 0; i < kw_num_compared(call->kernel, given); ++i) {
    const kw_signature *signature = kw_compared_on(call->kernel, &variants[i], given, call->device.device_type);
    if (!signature) continue;
    kw_append_expected(&text, call, variants[i].slug, signature);
    bool ranked = kw_matches(signature, call, KW_KINDS);
    const kw_line *line = ranked ? kw_off_line(signature, call) : NULL;
    if (ranked) kind = "ValueError";
    if (line) kw_append_off_line(&text, call, variants[i].slug, line);
    int32_t number = kw_unfulfilled(signature, call);
    if (number >= 0) kw_append_unfulfilled(&text, call, variants[i].slug, &signature->requirements[number]);
  }
  kw_append(&text, "\n  remedy: convert the arguments, or add a config for them to the definition");
  if (!call->complete && call->kernel->num_optional) kw_append(&text, "; if inputs are left out, pass outputs by name");
  return kw_raise_because(kind, KW_NO_VARIANT, &text);
}

/* Where only the alignment of data is in the way, or there is one candidate, running it says what is wrong: it fails in
 * our checks, or in those of TVM. These know no requirements. A size of another class is said here, too, because a
 * definition can do without those. */
KW_COLD int kw_handle_no_match(kw_call *call, const kw_variant *variants, int32_t given, TVMFFIAny *result) {
  const kw_variant *only = NULL;
  int32_t candidates = 0;
  for (int32_t i = 0; i < kw_num_compared(call->kernel, given); ++i) {
    const kw_signature *signature = kw_compared_on(call->kernel, &variants[i], given, call->device.device_type);
    if (!signature) continue;
    if (kw_matches(signature, call, KW_SIZES)) return kw_run(call, &variants[i], result);
    only = &variants[i], ++candidates;
  }
  if (!candidates) return kw_raise_no_target(call, given == call->kernel->num_variants ? "it" : variants->slug);
  if (candidates > 1 || !call->complete) return kw_raise_no_match(call, variants, given);
  const kw_signature *expected = kw_signature_on(only, call->device.device_type);
  const kw_argument *arguments = expected->arguments;
  bool told = !kw_matches(expected, call, KW_KINDS) || !kw_off_line(expected, call);
  if (!told || kw_unfulfilled(expected, call) >= 0) return kw_raise_no_match(call, variants, given);
  for (int32_t i = 0; i < call->kernel->num_arguments; ++i) {
    const DLTensor *tensor = call->tensors[i];
    if (tensor && (kw_count_within(tensor, KW_INT32_LIMIT) < 0 || kw_is_of_other_class(&arguments[i], tensor)))
      return kw_raise_no_match(call, variants, given);
    if (kw_is_other_than_none(&arguments[i], call, i)) return kw_raise_no_match(call, variants, given);
  }
  return kw_run(call, only, result);
}

/* ---- which variant runs ---- */

/* Adds to a raised error what the kernel lacks, which may be why nothing fits. */
KW_COLD void kw_explain_gaps(const kw_kernel *kernel) {
  kw_text text = {0};
  TVMFFIObjectHandle error = NULL;
  if (!kernel->gaps) return;
  TVMFFIErrorMoveFromRaised(&error);
  if (!error) return;
  const TVMFFIErrorCell *cell = kw_error_cell(error);
  kw_append_message(&text, cell);
  kw_append(&text, "%s", kernel->gaps);
  kw_raise_with(cell->kind, &text, cell->extra_context);
  TVMFFIObjectDecRef(error);
}

/* The number of the first of the variants that the arguments fit, or -1. */
KW_HOT int32_t kw_first_fitting(const kw_kernel *kernel, const kw_call *call, const kw_variant *variants, int32_t count) {
  for (int32_t i = 0; i < kw_num_compared(kernel, count); ++i) {
    const kw_signature *signature = kw_compared_on(kernel, &variants[i], count, call->device.device_type);
    if (signature && kw_matches(signature, call, KW_DATA)) return i;
  }
  return -1;
}

/* Refuses arrays that fit several variants which differ in meaning. One that was asked for by itself has no rivals. */
KW_COLD int kw_refuse_several(const kw_call *call, const kw_variant *variants, int32_t count, int32_t first) {
  kw_text text, several = {0};
  DLDeviceType device = call->device.device_type;
  if (count != call->kernel->num_variants) return 0;
  for (const int32_t *rival = variants[first].rivals; *rival >= 0; ++rival) {
    const kw_signature *signature = kw_compared_on(call->kernel, &variants[*rival], count, device);
    if (!signature || !kw_matches(signature, call, KW_SIZES)) continue;
    if (call->kernel->by_strides && !kw_strides_match(signature, call)) continue;
    kw_append_expected(&several, call, variants[*rival].slug, signature);
  }
  if (!several.used) return 0;
  kw_begin(&text);
  kw_append(&text, "these arguments fit several variants, which differ in meaning");
  kw_append_passed(&text, call);
  kw_append_expected(&text, call, variants[first].slug, kw_signature_on(&variants[first], device));
  kw_append(&text, "%s\n  remedy: name one: %s.variant(...) takes the values of its config", several.data,
            call->kernel->name);
  return kw_raise_because("ValueError", KW_AMBIGUOUS, &text);
}

KW_FUNCTION int kw_require_one(const kw_call *call, const kw_variant *variants, int32_t count, int32_t first) {
  return __builtin_expect(variants[first].rivals != NULL, 0) ? kw_refuse_several(call, variants, count, first) : 0;
}

/* The variant that runs if that one fits: of a whole kernel's variants the one that a tuning table has for the call. */
KW_FUNCTION const kw_variant *kw_chosen(const kw_kernel *kernel, const kw_call *call, const kw_variant *variants,
                                        int32_t count, int32_t first, kw_sought ahead) {
  bool tuned = kernel->tuning && count == kernel->num_variants;
  return tuned ? kw_tuned(call, first, ahead) : &variants[first];
}

/* Loads all that a call on the device would load; `only_check` stops short of loading device code. */
KW_COLD int kw_prepare_variant(const kw_kernel *kernel, const kw_variant *variant, DLDevice device, bool only_check) {
  kw_call call = {.kernel = kernel, .device = device};
  if (!kw_signature_on(variant, device.device_type)) return kw_raise_no_target(&call, variant->slug);
  if (device.device_type == kDLCPU) return kw_cpu_pick(variant) ? 0 : -1;
  if (!only_check) return kw_get_loaded(variant->module, device.device_id) ? 0 : -1;
  kw_choice choice;
  return kw_choose(variant->module, device.device_id, &choice);
}

/* Whether a variant that only runs where a table says so has code of the arch that others run as on a device. If it has
 * none it cannot run there, and does not have to. */
KW_COLD bool kw_has_arch(const kw_variant *variant, const char *arch, DLDeviceType device) {
  if (device == kDLCPU) {
    for (int i = 0; i < variant->num_cpu_units; ++i)
      if (!strcmp(variant->cpu_units[i].arch, arch)) return true;
    return false;
  }
  for (int i = 0; variant->module && i < variant->module->num_images; ++i)
    if (!strcmp(variant->module->images[i].arch, arch)) return true;
  return false;
}

/* The same of the variants that calls of the kernel on a device are compared with: the first of them, or null with an
 * error raised. Of a kernel that is tuned, some may be for another kind of device. */
KW_COLD const kw_variant *kw_prepare_declared(const kw_kernel *kernel, DLDevice device, bool only_check) {
  int32_t count = kernel->num_variants;
  const kw_variant *first = NULL;
  for (int32_t i = 0; i < kw_num_compared(kernel, count); ++i) {
    const kw_variant *variant = &kernel->variants[i];
    if (kernel->num_declared && !kw_compared_on(kernel, variant, count, device.device_type)) continue;
    if (kw_prepare_variant(kernel, variant, device, only_check)) return NULL;
    if (!first) first = variant;
  }
  if (!first) kw_prepare_variant(kernel, &kernel->variants[0], device, only_check);
  return first;
}

KW_COLD int kw_prepare(const kw_kernel *kernel, DLDevice device, bool only_check) {
  int32_t count = kernel->num_variants, declared = kw_num_compared(kernel, count);
  const kw_variant *first = kw_prepare_declared(kernel, device, only_check);
  const char *arch = !first ? NULL : kernel->num_declared ? kw_arch_on(first, device) : "";
  if (!arch) return -1;
  for (int32_t i = 0; i < count; ++i) {
    const kw_variant *variant = &kernel->variants[i];
    bool prepared = i < declared && kw_compared_on(kernel, variant, count, device.device_type);
    if (prepared || !kw_has_arch(variant, arch, device.device_type)) continue;
    if (kw_prepare_variant(kernel, variant, device, only_check)) return -1;
  }
  return 0;
}

/* ---- what a call would run ---- */

/* Tells the number of the variant that a call would run, and behind a blank why. */
KW_COLD int kw_append_choice(kw_text *text, kw_call *call, const kw_variant *variants, int32_t count, int32_t first) {
  const kw_kernel *kernel = call->kernel;
  const kw_variant *chosen = kw_chosen(kernel, call, variants, count, first, kw_look_ahead(call, count));
  if (kw_check(kw_signature_on(chosen, call->device.device_type), call)) return -1;
  if (kw_prepare_variant(kernel, chosen, call->device, true)) return -1;
  kw_append(text, "%d ", (int)(chosen - kernel->variants));
  if (count == kernel->num_variants) return kw_append_reason(text, call, first, chosen);
  kw_append(text, "it is the variant that was asked for");
  return 0;
}

KW_COLD int kw_tell_first(const kw_kernel *kernel, const kw_variant *variants, int32_t count, const TVMFFIAny *passed,
                          int32_t num_passed, TVMFFIAny *result, const kw_before *before) {
  kw_call call;
  kw_text text = {0};
  int64_t room[KW_ROOM(kernel)];
  call.before = before;
  if (kw_bind(&call, kernel, passed, num_passed, room)) return -1;
  int32_t first = kw_first_fitting(kernel, &call, variants, count);
  if (first < 0) return kw_handle_no_match(&call, variants, count, result);
  if (kw_require_one(&call, variants, count, first)) return -1;
  if (kw_append_choice(&text, &call, variants, count, first)) return -1;
  TVMFFIByteArray bytes = {text.data, text.used};
  return TVMFFIStringFromByteArray(&bytes, result);
}

/* ---- the ways in ---- */

KW_HOT int kw_dispatch_first(const kw_kernel *kernel, const kw_variant *variants, int32_t count,
                             const TVMFFIAny *passed, int32_t num_passed, TVMFFIAny *result, const kw_before *before,
                             int64_t *room) {
  kw_call call;
  call.before = before;
  if (kw_bind(&call, kernel, passed, num_passed, room)) return -1;
  kw_sought ahead = kw_look_ahead(&call, count);
  int32_t first = kw_first_fitting(kernel, &call, variants, count);
  if (__builtin_expect(first < 0, 0)) return kw_handle_no_match(&call, variants, count, result);
  if (kw_require_one(&call, variants, count, first)) return -1;
  return kw_run(&call, kw_chosen(kernel, &call, variants, count, first, ahead), result);
}

/* The same for a kernel that folds dimensions: an array whose size is not constant costs other calls instructions. */
KW_COLD int kw_dispatch_folding(const kw_kernel *kernel, const kw_variant *variants, int32_t count,
                                const TVMFFIAny *passed, int32_t num_passed, TVMFFIAny *result, const kw_before *before) {
  int64_t room[KW_ROOM(kernel)];
  return kw_dispatch_first(kernel, variants, count, passed, num_passed, result, before, room);
}

/* Runs the first of the variants that the arguments fit, or what a tuning table has in its place. */
int kw_dispatch(const kw_kernel *kernel, const kw_variant *variants, int32_t count, const TVMFFIAny *passed,
                int32_t num_passed, TVMFFIAny *result) {
  kw_before before = kw_begin_kernel(kernel);
  int status = __builtin_expect(kernel->folds != NULL, 0)
                   ? kw_dispatch_folding(kernel, variants, count, passed, num_passed, result, &before)
                   : kw_dispatch_first(kernel, variants, count, passed, num_passed, result, &before, NULL);
  if (__builtin_expect(status, 0)) kw_explain_gaps(kernel);
  kw_end_kernel(&before);
  return status;
}

/* Whether somebody who has the objects should look at them before they are passed to a kernel, which true as a result asks
 * for. */
bool kw_look(const TVMFFIAny *passed, int32_t num_passed, TVMFFIAny *result) {
  for (int32_t i = 0; i < num_passed; ++i) {
    const DLTensor *tensor = kw_tensor_of(&passed[i]);
    if (!tensor || __builtin_expect(!kw_may_be_computed(tensor), 1)) continue;
    *result = (TVMFFIAny){.type_index = kTVMFFIBool, .v_int64 = 1};
    return true;
  }
  return false;
}

/* The device of the first tensor on a GPU, or -1. */
static int kw_gpu_of(const TVMFFIAny *passed, int32_t num_passed) {
  for (int32_t i = 0; i < num_passed; ++i) {
    const DLTensor *tensor = kw_tensor_of(&passed[i]);
    if (tensor && tensor->device.device_type == kDLCUDA) return tensor->device.device_id;
  }
  return -1;
}

/* Hands a call through to host code of the author's, which checks the arguments itself. */
int kw_hand_over(const kw_kernel *kernel, const kw_variant *variant, const TVMFFIAny *passed, int32_t num_passed,
                 TVMFFIAny *result) {
  kw_before before = kw_begin_kernel(kernel);
  int id = kw_gpu_of(passed, num_passed);
  int status = id < 0 ? variant->own(NULL, (void *)passed, num_passed, result)
                      : kw_run_own_on(variant, id, passed, num_passed, result);
  kw_end_kernel(&before);
  return status;
}

/* Takes what kw_dispatch takes, chooses as it does, and returns a text in place of running the variant. Raises what the
 * dispatcher raises; what TVM's host code checks is not known here. */
__attribute__((cold)) int kw_tell_choice(const kw_kernel *kernel, const kw_variant *variants, int32_t count, const TVMFFIAny *passed,
                   int32_t num_passed, TVMFFIAny *result) {
  kw_before before = kw_begin_kernel(kernel);
  int status = kw_tell_first(kernel, variants, count, passed, num_passed, result, &before);
  if (status) kw_explain_gaps(kernel);
  kw_end_kernel(&before);
  return status;
}

#endif
