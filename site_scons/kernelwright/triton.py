"""What a definition in Triton imports, and what programs in Triton use."""

from typing import TYPE_CHECKING, Any

from .define.arguments import Scalar, Tensor, Workspace
from .define.sizes import Size, ceildiv
from .define.strides import Stride
from .frontends.triton.descriptor import TensorDescriptor
from .frontends.triton.program import Program, configs_of

if TYPE_CHECKING:
    from .frontends.triton.record import record
    from .frontends.triton.recorded import recorded_functions as recorded
    from .frontends.triton.use import use

PLACES = {"record": ("record", "record"), "recorded": ("recorded", "recorded_functions"), "use": ("use", "use")}
"""Name -> the module that has it, and its name there: most definitions do without."""

__all__ = [
    "Program",
    "Scalar",
    "Size",
    "Stride",
    "Tensor",
    "TensorDescriptor",
    "Workspace",
    "ceildiv",
    "configs_of",
    "record",
    "recorded",
    "use",
]


def __getattr__(name: str) -> Any:
    """What is imported when it is asked for."""
    if name not in PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, attribute = PLACES[name]
    return getattr(import_module(f".frontends.triton.{module}", __package__), attribute)
