#include "rms_norm.h"

#include <cuda_fp16.h>

#include "block_sum.cuh"
#include "threads.h"

namespace {

template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS) rms_norm(RmsNorm call) {
  const T *x = static_cast<const T *>(call.x) + blockIdx.x * call.columns, *weight = static_cast<const T *>(call.weight);
  T *y = static_cast<T *>(call.y) + blockIdx.x * call.columns;
  float squares = 0;
  for (long long i = threadIdx.x; i < call.columns; i += THREADS) squares += float(x[i]) * float(x[i]);
  float scale = rsqrtf(block_sum<THREADS>(squares) / call.columns + call.epsilon);
  for (long long i = threadIdx.x; i < call.columns; i += THREADS) y[i] = T(float(x[i]) * scale * float(weight[i]));
}

template <typename T>
void launch(const RmsNorm &call, cudaStream_t stream) {
  switch (threads_for(call.columns)) {
    case 128: return rms_norm<T, 128><<<call.rows, 128, 0, stream>>>(call);
    case 256: return rms_norm<T, 256><<<call.rows, 256, 0, stream>>>(call);
    default: return rms_norm<T, 512><<<call.rows, 512, 0, stream>>>(call);
  }
}

}  // namespace

int launch_rms_norm(const RmsNorm &call, int bits, void *stream) {
  if (!call.rows || !call.columns) return cudaSuccess;
  (bits == 32 ? launch<float> : launch<__half>)(call, static_cast<cudaStream_t>(stream));
  return cudaGetLastError();
}
