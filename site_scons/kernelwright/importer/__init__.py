"""``kernelwright import``: finds device functions in CUDA C++, and writes the definitions of kernels for them."""
