#include "threads.h"

#include <tvm/ffi/function.h>

int rms_norm_threads(int64_t columns) {
  TVM_FFI_CHECK(columns > 0, ValueError) << "a row has " << columns << " elements, expected at least one";
  return threads_for(columns);
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(rms_norm_threads, rms_norm_threads);
