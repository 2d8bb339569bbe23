// Means of columns, in two launches: each block of the first one sums some of the rows, and the second one adds the sums.
#include <cuda_fp16.h>

namespace columns {

__device__ inline float as_float(float x) { return x; }
__device__ inline float as_float(__half x) { return __half2float(x); }

// weight is null if all rows count alike. Rows of x may lie apart.
template <typename T, int PARTS>
__global__ void sums(const T *x, const float *weight, float *partial, int rows, int columns, long long stride) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
  for (int row = blockIdx.y; row < rows; row += PARTS) sum += as_float(x[row * stride + column]) * (weight ? weight[row] : 1);
  partial[blockIdx.y * columns + column] = sum;
}

template <int PARTS>
__global__ void means(const float *partial, float *y, int rows, int columns) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= columns) return;
  float sum = 0;
  for (int part = 0; part < PARTS; ++part) sum += partial[part * columns + column];
  y[column] = sum / rows;
}

}  // namespace columns
