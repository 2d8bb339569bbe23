/* Finds tensors that may be views of PyTorch whose numbers are computed from those in memory when they are read:
 * conjugates, and imaginary parts of conjugates. DLPack does not mark them, so PyTorch has to be asked. */
#ifndef KW_COMPUTED_H
#define KW_COMPUTED_H

/* Whether a tensor may be such a view. Imaginary parts have the real ones between them, and come behind them: in memory
 * that begins where a complex number may, their place is odd and their strides are even. Of what the tensor itself says,
 * the place is looked at first: nearly all tensors have an even one. */
static inline bool kw_may_be_computed(const DLTensor *tensor) {
  uintptr_t place = (uintptr_t)tensor->data + tensor->byte_offset;
  if (tensor->dtype.code != kDLFloat) return tensor->dtype.code == kDLComplex;
  if (__builtin_expect(!(place & (tensor->dtype.bits / 8)), 1)) return false;
  for (int32_t i = tensor->ndim - 1; i >= 0; --i)
    if (tensor->shape[i] > 1 && (!tensor->strides || tensor->strides[i] & 1)) return false;
  return true;
}

#endif
