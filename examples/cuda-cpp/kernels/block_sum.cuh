#pragma once

// The sum of one value of each thread, for all threads. Their number is a multiple of 32.
template <int THREADS>
__device__ float block_sum(float value) {
  __shared__ float of_warps[THREADS / 32];
  for (int offset = 16; offset; offset /= 2) value += __shfl_xor_sync(0xffffffffu, value, offset);
  __syncthreads();  // a call before this one has been read
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0;
  for (int warp = 0; warp < THREADS / 32; ++warp) sum += of_warps[warp];
  return sum;
}
