// What Python calls. It is compiled once, and not for each arch: the headers of tvm-ffi take the compiler two seconds.
#include "rms_norm.h"

#include <cuda_runtime_api.h>
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace ffi = tvm::ffi;

void rms_norm(ffi::TensorView x, ffi::TensorView weight, ffi::TensorView y, double epsilon) {
  TVM_FFI_CHECK(epsilon > 0, ValueError) << "epsilon is " << epsilon << ", expected more than 0";
  RmsNorm call = {x.data_ptr(), weight.data_ptr(), y.data_ptr(), x.size(0), x.size(1), float(epsilon)};
  void *stream = TVMFFIEnvGetStream(x.device().device_type, x.device().device_id);
  int status = launch_rms_norm(call, x.dtype().bits, stream);
  TVM_FFI_CHECK(!status, RuntimeError) << "launching: " << cudaGetErrorString(static_cast<cudaError_t>(status));
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm, rms_norm);
