"""y = alpha x, in CUDA C++."""

from kernelwright import kernel
from kernelwright.cuda import Scalar, Size, Source, Tensor, ceildiv

SOURCE = """
__global__ void scale(float alpha, const float *x, float *y, int n) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = alpha * x[i];
}
"""


@kernel(frontend="cuda", outputs=["y"])
def scale_cuda():
    """y = alpha x"""
    vector = Tensor("float32", "n")
    alpha = Scalar("float32")
    return Source(SOURCE, "scale", alpha=alpha, x=vector, y=vector, n=Size("n"), grid=ceildiv("n", 256), block=256)
