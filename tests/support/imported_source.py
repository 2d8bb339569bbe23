"""A source with device functions of many kinds, for tests of ``kernelwright import``."""

HEADER = "template <class T> __device__ T twice(T x) { return x + x; }\n"

SOURCE = """\
#include <cuda_fp16.h>
#include <cstdint>
#include "twice.cuh"

#define THREADS 128
struct Params { int count; float scale; };
struct Cell { float mass; int kind; };
enum class Mode { add, subtract };
namespace { struct Hidden { float mass; }; }

__device__ float squared(float x) { return x * x; }

__global__ void plain(const float *__restrict__ x, float *__restrict__ y, int n) {
  extern __shared__ float kept[];
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = twice(squared(x[i]));
}

namespace acme { namespace math {
template <typename T, int BLOCK = 64, bool EXACT = true, typename = void>
__global__ void __launch_bounds__(BLOCK, 2) scaled(const T *x, T *y, T factor, std::int64_t n) {
  std::int64_t i = (std::int64_t)blockIdx.x * BLOCK + threadIdx.x;
  if (i < n) y[i] = EXACT ? x[i] * factor : factor;
}
} }

extern "C" __global__ void __launch_bounds__(THREADS) halves(const __half *x, half2 *y, size_t grid) {
  if (threadIdx.x < grid) y[threadIdx.x] = __half2half2(x[threadIdx.x]);
}

__global__ void structured(Params params, float *y) { y[0] = params.scale; }
__global__ void rows(const float *const *x, float *y) { y[0] = x[0][0]; }

namespace { __global__ void moved(const float4 *from, float4 *to, Cell *cells, void *, Mode mode, unsigned char kind) {
  to[threadIdx.x] = from[threadIdx.x];
} }

static __global__ void kernel(float *x) { x[0] = 1; }
static __global__ void kernel(double *x, bool lambda, Hidden *) { x[0] = lambda; }
template <typename T> __global__ void filled(T x[], T value) { x[threadIdx.x] = value; }
template <> __global__ void filled<double>(double x[], double value) { x[0] = value; }
__global__ void announced(int *x);

void launch(float *x) { plain<<<1, THREADS>>>(x, x, 1); }
"""

KERNELS = ["plain", "scaled", "halves", "structured", "moved", "kernel_2", "kernel_3", "filled"]
"""The kernels that it becomes. The two functions called ``kernel`` cannot be called so in the file."""
