"""The functions of model.py, for the calls that were recorded."""

from kernelwright.triton import recorded

kernels = recorded("calls.json")
