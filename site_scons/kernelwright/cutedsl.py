"""What a definition in NVIDIA's CuTe DSL imports."""

from .define.arguments import Scalar, Tensor
from .frontends.cutedsl.program import Program

__all__ = ["Program", "Scalar", "Tensor"]
