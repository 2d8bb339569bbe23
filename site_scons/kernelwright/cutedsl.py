"""What a definition in NVIDIA's CuTe DSL imports."""

from .define.program import Program, Scalar, Tensor

__all__ = ["Program", "Scalar", "Tensor"]
