#pragma once

struct RmsNorm {
  const void *x, *weight;
  void *y;
  long long rows, columns;
  float epsilon;
};

// Launches the kernel for float (bits = 32) or __half (bits = 16) in a stream; the result is CUDA's error.
int launch_rms_norm(const RmsNorm &call, int bits, void *stream);
