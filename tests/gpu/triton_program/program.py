"""The kernels of the program, for the calls in the recording."""

from kernelwright.triton import recorded

kernels = recorded("calls.json")
