"""What a definition in NVIDIA's cuTile imports."""

from kernelwright.define.arguments import Scalar, Tensor
from kernelwright.define.sizes import Size, ceildiv
from kernelwright.define.strides import Stride

from .program import Program

__all__ = ["Program", "Scalar", "Size", "Stride", "Tensor", "ceildiv"]
