"""CUDA C++ and C++ for PyTorch: sources that register operators."""
