"""The launch of a device function as data, which a definition declares or a compiler reports. Nothing imports TVM."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ..core.dtype import Dtype, bytes_of
from ..core.errors import Where
from ..core.signature import Structure
from ..core.signature import TensorMap as EncodedMap
from ..define.arguments import Scalar, Tensor, Workspace
from ..define.sizes import Size, Sizes, text_of
from ..define.strides import all_strides
from .cuda.tensor_map import FILLS, PROMOTIONS, SWIZZLES, TensorMap


@dataclass(frozen=True)
class Given:
    """An argument of the kernel, or a workspace, which a launch passes on, whatever its parameter is called."""

    name: str


NULL = Size(0, "uint64")
"""A pointer to no memory."""

Passed = Tensor | Scalar | TensorMap | Size | int | None | Workspace | Given | EncodedMap
"""What a parameter of a device function gets; None is a null pointer."""


@dataclass(frozen=True)
class DeclaredLaunch:
    """The launch of a device function.

    Arguments:
        function: what the host code calls it.
        passed: its parameters, in order: tensors, maps of tensors and scalars, which are arguments of the kernel;
            sizes and workspaces.
        sizes: what is launched, by TVM's names: ``blockIdx.x``, ``threadIdx.x``, ``clusterCtaIdx.x`` and so on.
        shared: dynamic shared memory of a block, in bytes.
        cooperative, dependent: flags of the launch.
        structures: those that the parameters are put together to.
        memories: workspaces by the names that ``Given`` and tensor maps have for them.
        least: parameter -> the least number that it may get, if that is not the least of its dtype.
    """

    function: str
    passed: Mapping[str, Passed]
    sizes: Sequence[tuple[str, Sizes]]
    shared: Sizes = 0
    cooperative: bool = False
    dependent: bool = False
    structures: Sequence[Structure] = ()
    memories: Mapping[str, Workspace] = field(default_factory=dict)
    least: Mapping[str, int] = field(default_factory=dict)

    @property
    def mapped(self) -> dict[str, EncodedMap]:
        """The tensor maps among its parameters."""
        maps = {name: encoded(name, v) if isinstance(v, TensorMap) else v for name, v in self.passed.items()}
        return {name: value for name, value in maps.items() if isinstance(value, EncodedMap)}

    @property
    def names(self) -> list[str]:
        """TVM's launch parameters."""
        # The first is how TVM 0.27 spells it.
        flags = {
            "tirx.use_programtic_dependent_launch": self.dependent,
            "tirx.use_cooperative_launch": self.cooperative,
        }
        named = [name for name, _ in self.sizes] + [flag for flag, is_set in flags.items() if is_set]
        return named + (["tirx.use_dyn_shared_memory"] if self.shared != 0 else [])


def encoded(name: str, value: TensorMap) -> EncodedMap:
    """The tensor map of an argument, as the driver is asked for it."""
    element = bytes_of(Dtype.parse(value.tensor.dtype, Where()).bits)
    # The driver wants the innermost dimension first, and the strides of the others in bytes.
    shape = tuple(text_of(size) for size in reversed(value.tensor.shape))
    steps = all_strides(name, value.tensor.shape, value.tensor.strides)
    strides = tuple(f"{element} * {text_of(step)}" for step in reversed(steps[:-1]))
    lists = shape, strides, tuple(reversed(value.box)), (1,) * len(shape)
    modes = 0, SWIZZLES[value.swizzle], PROMOTIONS[value.promotion], FILLS[value.fill]
    return EncodedMap(name, value.tensor.dtype, *lists, *modes)


def dtype_of(value: Tensor | Scalar | TensorMap | Workspace | Size | int | None) -> str:
    """The dtype of what is passed; a plain integer is an int32, and None a pointer to no memory."""
    if value is None or isinstance(value, bool):
        return "bool" if isinstance(value, bool) else NULL.dtype
    if isinstance(value, TensorMap):
        return value.tensor.dtype
    return "int32" if isinstance(value, int) else value.dtype
