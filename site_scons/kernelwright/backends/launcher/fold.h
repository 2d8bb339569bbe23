/* Arrays with any number of leading dimensions, which fold into one. They are replaced by views before a call is compared
 * with anything, so only outputs know more: new ones get the leading dimensions of an input. */
#ifndef KW_FOLD_H
#define KW_FOLD_H

/* How an argument folds; null: it does not. */
KW_FUNCTION const kw_fold *kw_fold_of(const kw_kernel *kernel, int32_t argument) {
  const kw_fold *fold = kernel->folds ? &kernel->folds[argument] : NULL;
  return fold && fold->name ? fold : NULL;
}

/* Makes a view of a tensor whose leading dimensions are one, with room for its shape and strides. The result is whether
 * the rows are equally far apart. */
KW_COLD bool kw_view(DLTensor *view, const DLTensor *tensor, int32_t trailing, int64_t *shape, int64_t *strides) {
  int32_t leading = tensor->ndim - trailing;
  int64_t rows = 1, step = 1;
  bool folds = true;
  for (int32_t i = trailing; i > 0; --i) {
    shape[i] = tensor->shape[leading + i - 1], strides[i] = kw_stride(tensor, leading + i - 1);
    step = (int64_t)((uint64_t)step * (uint64_t)shape[i]);
  }
  for (int32_t i = leading - 1; i >= 0; --i) {
    int64_t size = tensor->shape[i], stride = kw_stride(tensor, i);
    if (size == 1) continue;
    if (rows == 1) step = stride;
    else if (stride != (int64_t)((uint64_t)step * (uint64_t)rows)) folds = false;
    if (__builtin_mul_overflow(rows, size, &rows)) rows = INT64_MAX;
  }
  shape[0] = rows, strides[0] = step;
  *view = *tensor;
  view->ndim = trailing + 1, view->shape = shape, view->strides = tensor->strides ? strides : NULL;
  return folds || kw_is_empty(tensor);
}

/* The first input of a call that folds into the same size; that is one that calls cannot leave out if outputs do. */
KW_COLD int32_t kw_first_of_fold(const kw_call *call, const kw_fold *fold) {
  for (int32_t pass = 0, i = 0; pass < 2; ++i) {
    if (i == call->kernel->num_arguments) ++pass, i = 0;
    const kw_fold *other = kw_fold_of(call->kernel, i);
    if (other && call->tensors[i] && call->kernel->arguments[i].output == pass && !strcmp(other->name, fold->name)) return i;
  }
  return -1;
}

KW_COLD int kw_raise_leading(const kw_call *call, int32_t position, int32_t first, const kw_fold *fold) {
  kw_text text;
  kw_begin(&text);
  for (int32_t i = 0; i < 2; ++i) {
    const DLTensor *tensor = kw_tensor_of(call->values[i ? position : first]);
    kw_append(&text, "%s '%s' of shape ", i ? " and" : "arguments", call->kernel->arguments[i ? position : first].name);
    kw_append_shape(&text, tensor->ndim, tensor->shape);
  }
  kw_append(&text, " differ in their leading dimensions, which fold into %s\n  remedy: pass arrays with equal ones", fold->name);
  return kw_raise_text("ValueError", &text);
}

/* Puts views in the place of tensors that fold. `room` is for their shapes and strides. */
KW_COLD int kw_fold_tensors(kw_call *call, int64_t *room) {
  const kw_kernel *kernel = call->kernel;
  for (int32_t i = 0; i < kernel->num_arguments; ++i) {
    const kw_fold *fold = kw_fold_of(kernel, i);
    const DLTensor *tensor = fold ? call->tensors[i] : NULL;
    if (tensor && tensor->ndim < fold->trailing)
      return kw_raise("TypeError",
                      "argument '%s' has %d dimensions, expected %d or more: leading ones fold into %s"
                      "\n  remedy: pass an array with the dimensions that the definition declares",
                      kernel->arguments[i].name, tensor->ndim, fold->trailing, fold->name);
  }
  for (int32_t i = 0; i < kernel->num_arguments; ++i) {
    const kw_fold *fold = kw_fold_of(kernel, i);
    if (!fold || !call->tensors[i]) continue;
    int32_t first = kw_first_of_fold(call, fold);
    const DLTensor *tensor = kw_tensor_of(call->values[i]), *leader = kw_tensor_of(call->values[first]);
    int32_t leading = tensor->ndim - fold->trailing;
    if (leading != leader->ndim - kernel->folds[first].trailing ||
        memcmp(tensor->shape, leader->shape, (size_t)leading * sizeof *tensor->shape))
      return kw_raise_leading(call, i, first, fold);
    if (!kw_view(&call->views[i], tensor, fold->trailing, room, room + fold->trailing + 1))
      return kw_raise("ValueError",
                      "argument '%s' has leading dimensions that are not compact, and do not fold into %s"
                      "\n  remedy: " KW_CONTIGUOUS,
                      kernel->arguments[i].name, fold->name);
    call->tensors[i] = &call->views[i];
    call->adapted = true;
    room += 2 * (fold->trailing + 1);
  }
  return 0;
}

/* The first input whose leading dimensions a new output gets; null: it has the sizes that a signature says. */
KW_FUNCTION const DLTensor *kw_leader(const kw_call *call, int32_t position, int32_t *leading) {
  const kw_fold *fold = kw_fold_of(call->kernel, position);
  int32_t first = __builtin_expect(fold != NULL, 0) ? kw_first_of_fold(call, fold) : -1;
  const DLTensor *leader = first < 0 ? NULL : kw_tensor_of(call->values[first]);
  *leading = leader ? leader->ndim - call->kernel->folds[first].trailing : 0;
  return leader;
}

#endif
