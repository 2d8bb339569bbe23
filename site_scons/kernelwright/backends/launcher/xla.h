/* Functions that are safe to register with jax-tvm-ffi. */
#ifndef KW_XLA_H
#define KW_XLA_H

/* Calls the function `self` as jax-tvm-ffi (0.1.3) calls one. That makes XLA's stream the current one of the thread,
 * and restores the one before only if that was not the default: XLA's would stay, for whatever is called next. */
KW_COLD int kw_call_from_xla(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  int status = TVMFFIFunctionCall(self, (TVMFFIAny *)arguments, count, result);
  for (int32_t i = 0; i < count; ++i) {
    const DLTensor *tensor = kw_tensor_of(&arguments[i]);
    if (!tensor || tensor->device.device_type != kDLCUDA) continue;
    TVMFFIEnvSetStream(kDLCUDA, tensor->device.device_id, NULL, NULL);
    break;
  }
  return status;
}

KW_COLD void kw_forget_function(void *self) { TVMFFIObjectDecRef(self); }

#endif
