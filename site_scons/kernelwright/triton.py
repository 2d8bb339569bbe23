"""What a definition in Triton imports."""

from .define.arguments import Scalar, Tensor
from .define.sizes import Size, ceildiv
from .frontends.triton.program import Program, configs_of

__all__ = ["Program", "Scalar", "Size", "Tensor", "ceildiv", "configs_of"]
