"""The requests about a Program that names its source, and the answers of the process that imports that source."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from ...define.arguments import Scalar
from ..named_source import SourceRequest
from .compiler import Compiled
from .program import Passed, Program


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
class Joined:
    """What Triton made of several functions, with device code that all of them have in common.

    Arguments:
        parts: for each function and each arch.
        files: as ``LoweredKernel.read``.
    """

    parts: tuple[tuple[Compiled, ...], ...]
    files: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Interpreted:
    """The result of a run in the interpreter.

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
        grid, launch, options, arguments: the rest of the program.
    """

    op: ClassVar[str] = "compile"
    result: ClassVar[type[Made]] = Made
    source: str
    grid: tuple[str, ...]
    launch: Mapping[str, Scalar]
    options: Mapping[str, Any]
    arguments: Mapping[str, Passed | Any]

    def program(self, function: Any) -> Program:
        """The program, with a function."""
        named: dict[str, Any] = {**self.options, **self.arguments}
        return Program(function, grid=self.grid, launch=self.launch, **named)

    @property
    def subject(self) -> str:
        """What raises the errors of the author's code, for messages."""
        return self.source

    @property
    def cannot(self) -> str:
        """What Triton cannot do if it raises an error itself, for messages."""
        return f"Triton cannot compile {self.source} for {', '.join(self.unit.archs)}"


@dataclass(frozen=True)
class JoinRequest(CompileRequest):
    """Make one module of what several requests have made; the others are the options of each."""

    op: ClassVar[str] = "join"
    result: ClassVar[type[Joined]] = Joined  # type: ignore[assignment]
    parts: tuple[tuple[Compiled, ...], ...]
    compiled_with: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class InterpretRequest(CompileRequest):
    """Run a program in the interpreter, and others of the same source after it.

    Arguments:
        others: those that compile the others.
        shapes: argument -> its shape; None: it is a number.
        strides: tensor -> its strides.
        numbers: argument -> its value.
        contents: what is in the memory of the arrays, in the order of the arguments.
    """

    op: ClassVar[str] = "interpret"
    result: ClassVar[type[Interpreted]] = Interpreted  # type: ignore[assignment]
    remedy: ClassVar[str | None] = "look whether it reads or writes beyond the end of a tensor"
    others: tuple[CompileRequest, ...]
    shapes: Mapping[str, tuple[int, ...] | None]
    strides: Mapping[str, tuple[int, ...]]
    numbers: Mapping[str, Any]
    contents: tuple[bytes, ...]

    @property
    def cannot(self) -> str:
        """What Triton cannot do if it raises an error itself, for messages."""
        return f"Triton cannot interpret {self.source}"
