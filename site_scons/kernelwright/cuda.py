"""What a definition in CUDA C++ imports."""

from .define.arguments import Scalar, Tensor, Workspace
from .define.own_sources import Text
from .define.sizes import Size, ceildiv
from .define.strides import Stride
from .frontends.cuda.exported import Exported
from .frontends.cuda.source import Source
from .frontends.cuda.struct import Struct
from .frontends.cuda.tensor_map import TensorMap
from .frontends.torch.operators import Operators

__all__ = [
    "Exported",
    "Operators",
    "Scalar",
    "Size",
    "Source",
    "Stride",
    "Struct",
    "Tensor",
    "TensorMap",
    "Text",
    "Workspace",
    "ceildiv",
]
