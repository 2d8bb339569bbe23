"""What a definition in CUDA C++ imports."""

from .define.arguments import Scalar, Tensor
from .define.cuda_source import Source
from .define.exported import Exported
from .define.sizes import Size, ceildiv
from .define.tensor_map import TensorMap

__all__ = ["Exported", "Scalar", "Size", "Source", "Tensor", "TensorMap", "ceildiv"]
