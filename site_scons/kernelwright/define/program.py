"""What a definition in NVIDIA's CuTe DSL returns: its host function, and the arguments of the kernel that it becomes.

Nothing here imports CuTe DSL, so that its absence can be explained.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.errors import DefinitionError, Where, shown
from ..core.need import Need

VERSION = "4.8.1"
"""The release of nvidia-cutlass-dsl whose exported code the launcher knows (``launcher/cutedsl.h``)."""

NEED = Need("cutlass", f"nvidia-cutlass-dsl=={VERSION}")
"""What definitions in CuTe DSL import."""

DTYPES = {
    "float64": "Float64",
    "float32": "Float32",
    "float16": "Float16",
    "bfloat16": "BFloat16",
    "float8_e4m3fn": "Float8E4M3FN",
    "float8_e5m2": "Float8E5M2",
    "int64": "Int64",
    "int32": "Int32",
    "int16": "Int16",
    "int8": "Int8",
    "uint64": "Uint64",
    "uint32": "Uint32",
    "uint16": "Uint16",
    "uint8": "Uint8",
    "bool": "Boolean",
}
"""A dtype -> its class in the module ``cutlass``."""

SCALARS = ("float64", "float32", "int64", "int32", "int16", "int8", "uint32", "uint16", "uint8", "bool")
"""The dtypes of numbers that can be arguments."""


@dataclass(frozen=True, init=False)
class Tensor:
    """A tensor argument, in row-major order.

    Arguments:
        dtype: its type, such as ``float16``.
        shape: its sizes: integers, and names of sizes that callers choose (int32). Equal names are equal sizes.
        alignment: bytes that its data is aligned to; default: those of an element, so that slices can be passed. More
            lets the code load several elements at once.
        multiples: name of a size -> what it is a multiple of, which callers are held to.
        written: whether the kernel writes to it; outputs are written in any case.
    """

    dtype: str
    shape: tuple[int | str, ...]
    alignment: int | None
    multiples: Mapping[str, int]
    written: bool

    def __init__(
        self,
        dtype: str,
        *shape: int | str,
        alignment: int | None = None,
        multiples: Mapping[str, int] | None = None,
        written: bool = False,
    ) -> None:
        values = (dtype, shape, alignment, dict(multiples or {}), written)
        for name, value in zip(("dtype", "shape", "alignment", "multiples", "written"), values, strict=True):
            object.__setattr__(self, name, value)


@dataclass(frozen=True)
class Scalar:
    """A number as an argument."""

    dtype: str


class Program:
    """A host function of CuTe DSL with the arguments that it is compiled for.

    Arguments:
        function: a function decorated with ``@cute.jit``, which launches device functions.
        arguments: for each of its parameters, in order and by name: a :class:`Tensor` or a :class:`Scalar`, which
            becomes an argument of the kernel, or a plain value for a parameter of type ``cutlass.Constexpr``.
    """

    def __init__(self, function: Callable[..., Any], /, **arguments: Tensor | Scalar | Any) -> None:
        self.function = function
        self.arguments = arguments

    @property
    def declared(self) -> dict[str, Tensor | Scalar]:
        """Those that are arguments of the kernel."""
        return {name: value for name, value in self.arguments.items() if isinstance(value, (Tensor, Scalar))}

    def check(self, outputs: tuple[str, ...], where: Where) -> None:
        """Raise a DefinitionError for arguments that cannot be."""
        for name, value in self.declared.items():
            _check_dtype(name, value, where)
            if isinstance(value, Tensor):
                _check_tensor(name, value, where)
        tensors = [name for name, value in self.declared.items() if isinstance(value, Tensor)]
        for name in outputs:
            if name not in tensors:
                raise DefinitionError(
                    f"outputs names {name!r}, which is no tensor argument (the tensor arguments are "
                    f"{', '.join(tensors) or 'none'})",
                    where,
                    "use the names of the Program's tensors, or their positions",
                )
        if not tensors:
            remedy = "give the Program at least one Tensor: it tells on which device to run"
            raise DefinitionError("it has no tensor argument", where, remedy)


def _check_dtype(name: str, value: Tensor | Scalar, where: Where) -> None:
    known = SCALARS if isinstance(value, Scalar) else tuple(DTYPES)
    if value.dtype not in known:
        what = "number" if isinstance(value, Scalar) else "tensor"
        message = f"argument {name!r} has the dtype {shown(value.dtype)}, which no {what} of CuTe DSL can have here"
        raise DefinitionError(message, where, f"use one of {', '.join(known)}")


def _check_tensor(name: str, value: Tensor, where: Where) -> None:
    for size in value.shape:
        named = isinstance(size, str) and size.isascii() and size.isidentifier()
        if not named and (type(size) is not int or not 0 < size < 1 << 31):
            message = f"a size of argument {name!r} is {shown(size)}, expected a positive integer or a name"
            raise DefinitionError(message, where, f'write, for example, Tensor({value.dtype!r}, "m", 128)')
    alignment = value.alignment
    if alignment is not None and (type(alignment) is not int or alignment < 1 or alignment & (alignment - 1)):
        raise DefinitionError(f"argument {name!r} has alignment={shown(alignment)}, expected a power of two", where)
    for size, factor in value.multiples.items():
        if size not in value.shape or not isinstance(factor, int) or factor < 1:
            message = f"argument {name!r} has multiples={shown(dict(value.multiples))}"
            raise DefinitionError(message, where, "name sizes of its shape, and give each a positive integer")
