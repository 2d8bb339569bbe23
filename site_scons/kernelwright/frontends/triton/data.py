"""What a process is asked about a Program that names its source, and what it answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

from ...define.arguments import Scalar, Tensor
from ...define.sizes import Size, text_of
from ..named_source import SourceRequest
from .compiler import Compiled
from .program import Program


@dataclass(frozen=True)
class Made:
    """What Triton made.

    Arguments:
        options: of the launch and the compilation, those that heuristics chose among them.
        results: for each arch.
        files: as ``LoweredKernel.read``.
    """

    options: Mapping[str, Any]
    results: Sequence[Compiled]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Interpreted:
    """What came of a run in the interpreter.

    Arguments:
        contents: what is in the arrays afterwards.
        files: as ``LoweredKernel.read``.
    """

    contents: tuple[bytes, ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class CompileRequest(SourceRequest):
    """Compile a program.

    Arguments:
        source: the path of the source, as the definition has it.
        program: the rest of the program, see :func:`data_of`.
    """

    op: ClassVar[str] = "compile"
    result: ClassVar[type[Made]] = Made
    source: str
    program: Mapping[str, Any]

    @property
    def subject(self) -> str:
        """What raises the errors of the author's code, for messages."""
        return self.source

    @property
    def cannot(self) -> str:
        """What Triton cannot do if it raises an error itself, for messages."""
        return f"Triton cannot compile {self.source} for {', '.join(self.unit.archs)}"


@dataclass(frozen=True)
class InterpretRequest(CompileRequest):
    """Run a program in the interpreter.

    Arguments:
        shapes: argument -> its shape; None: it is a number.
        numbers: argument -> its value.
        contents: what is in the arrays, in the order of the arguments.
    """

    op: ClassVar[str] = "interpret"
    result: ClassVar[type[Interpreted]] = Interpreted  # type: ignore[assignment]
    remedy: ClassVar[str | None] = "look whether it reads or writes beyond the end of a tensor"
    shapes: Mapping[str, tuple[int, ...] | None]
    numbers: Mapping[str, Any]
    contents: tuple[bytes, ...]

    @property
    def cannot(self) -> str:
        """What Triton cannot do if it raises an error itself, for messages."""
        return f"Triton cannot interpret {self.source}"


def data_of(program: Program) -> dict[str, Any]:
    """A program as data, without its function."""
    return {
        "grid": [text_of(size) for _, size in program.blocks],
        "options": program.options,
        "arguments": [[name, *_argument_data(value)] for name, value in program.arguments.items()],
    }


def _argument_data(value: Any) -> tuple[str, Any]:
    if isinstance(value, Tensor):
        return "tensor", asdict(value)
    if isinstance(value, Scalar):
        return "scalar", value.dtype
    return ("size", [text_of(value), value.dtype]) if isinstance(value, Size) else ("value", value)


def program_of(data: Mapping[str, Any], function: Any) -> Program:
    """The program of its data, with a function."""
    arguments = {name: _argument(kind, value) for name, kind, value in data["arguments"]}
    return Program(function, grid=data["grid"], **data["options"], **arguments)


def _argument(kind: str, data: Any) -> Any:
    if kind == "tensor":
        options = {name: data[name] for name in ("alignment", "multiples", "written")}
        return Tensor(data["dtype"], *data["shape"], **options)
    if kind == "scalar":
        return Scalar(data)
    return Size(*data) if kind == "size" else data
