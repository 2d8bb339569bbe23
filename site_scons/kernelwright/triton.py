"""What a definition in Triton imports."""

from .define.arguments import Scalar, Tensor
from .define.sizes import Size, ceildiv
from .frontends.triton.program import Program, configs_of
from .frontends.triton.record import record
from .frontends.triton.recorded import recorded_functions as recorded
from .frontends.triton.use import use

__all__ = ["Program", "Scalar", "Size", "Tensor", "ceildiv", "configs_of", "record", "recorded", "use"]
