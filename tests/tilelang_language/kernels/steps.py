"""Elementwise kernels in TileLang."""

from kernelwright import kernel
from kernelwright.tilelang import Program


@kernel(frontend="tilelang", outputs=["y"])
def steps():
    """y = 2 alpha x, in two launches; z is what is between them"""
    return Program("tile/steps.py", "steps", n=128)


@kernel(frontend="tilelang", outputs=["y"])
def doubled():
    """y = 2 x"""
    return Program("tile/steps.py", "doubled", n=512)
