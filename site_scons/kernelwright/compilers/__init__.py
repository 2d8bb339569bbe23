"""Runs of nvcc, NVRTC and fatbinary, what they tell about the code, and the libraries that stand in for glibc."""
