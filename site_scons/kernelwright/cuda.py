"""What a definition in CUDA C++ imports."""

from .define.arguments import Scalar, Tensor
from .define.cuda_source import Source
from .define.sizes import Size, ceildiv

__all__ = ["Scalar", "Size", "Source", "Tensor", "ceildiv"]
