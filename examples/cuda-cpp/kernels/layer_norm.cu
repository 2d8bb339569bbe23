#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "block_sum.cuh"

namespace layers {

// One block for each row. A row is read three times, the last two from the cache.
template <typename T, int THREADS>
__global__ void __launch_bounds__(THREADS)
    layer_norm(const T *__restrict__ x, const T *__restrict__ weight, const T *__restrict__ bias, T *__restrict__ y,
               int columns, float epsilon) {
  const T *row = x + (long long)blockIdx.x * columns;
  float sum = 0;
  for (int i = threadIdx.x; i < columns; i += THREADS) sum += float(row[i]);
  float mean = block_sum<THREADS>(sum) / columns;

  float squares = 0;
  for (int i = threadIdx.x; i < columns; i += THREADS) {
    float difference = float(row[i]) - mean;
    squares += difference * difference;
  }
  float scale = rsqrtf(block_sum<THREADS>(squares) / columns + epsilon);

  T *result = y + (long long)blockIdx.x * columns;
  for (int i = threadIdx.x; i < columns; i += THREADS)
    result[i] = T((float(row[i]) - mean) * scale * float(weight[i]) + float(bias[i]));
}

}  // namespace layers
