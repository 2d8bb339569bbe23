"""Sources that register operators through PyTorch's stable ABI: what they register, and what stands in for PyTorch.

``launcher/operators/operators.cc`` has the functions of that ABI which such sources call. ``SOURCES`` compiles it, as
assembler text, and adds a function for each operator.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from ..core.errors import DefinitionError, Where
from .assembler import ASSEMBLER
from .launcher import LAUNCHER
from .own_code import contents, needed_symbols

OPERATORS = LAUNCHER / "operators" / "operators.cc"
"""The functions of the ABI, over arrays of TVM-FFI."""

REGISTERS = re.compile(r"aoti_torch_library_init_(def|fragment|impl)")
"""What a source calls to register operators."""

SCHEMA = re.compile(rb"(?<=\0)([A-Za-z_]\w*)(\([^\0]*\)\s*->\s*[^\s\0][^\0]*)\0")
"""The schema of an operator, as a text in an object."""

PART = re.compile(r"""(?:"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|\[[^\]]*\]|\([^)]*\)|[^,])+""")
"""A part of a list in a schema, with texts and brackets in it."""

NUMBERS = ("int", "SymInt", "float", "bool")
"""Types in schemas that declared numbers are passed for."""


def registers_operators(objects: Iterable[Path]) -> bool:
    """Whether some objects register operators of PyTorch."""
    return any(REGISTERS.fullmatch(name) for path in objects for name in needed_symbols(path))


def registered_operators(objects: Iterable[Path]) -> dict[str, str]:
    """The operators whose schemas some objects have -> their parameters and results, as the schema writes them."""
    found = [match.groups() for path in objects for match in SCHEMA.finditer(contents(path))]
    return {name.decode(): " ".join(schema.decode(errors="replace").split()) for name, schema in sorted(found)}


def ambiguous_operators(objects: Iterable[Path]) -> dict[str, list[Path]]:
    """The operators of which some objects have several schemas: those of two namespaces, or two overloads.

    Returns:
        The name of each -> the objects, one for each schema. Two namespaces may have equal schemas of one name: then an
        object has one text for both, if both are in it.
    """
    found: dict[str, list[Path]] = {}
    for path in (path for path in objects if registers_operators([path])):
        for name, _ in sorted({match.groups() for match in SCHEMA.finditer(contents(path))}):
            found.setdefault(name.decode(), []).append(path)
    return {name: owners for name, owners in found.items() if len(owners) > 1}


def source_of(path: Path) -> str:
    """The name of the source that an object is made of; the object's own name has a digest at the end."""
    return path.stem.rpartition("-")[0]


def assembler_command(compiler: str, includes: Iterable[str | Path], output: str) -> list[str]:
    """The command that compiles the functions of the ABI to assembler text.

    Arguments:
        compiler: the C compiler, which compiles C++ as well.
        includes: the include folders of tvm-ffi.
    """
    flags = ["-Os", "-std=c++17", "-fPIC", "-fvisibility=hidden", *(f"-I{folder}" for folder in includes)]
    return [compiler, *flags, "-S", "-x", "c++", str(OPERATORS), "-o", output]


def callers_text(symbols: Mapping[str, str], family: str) -> str:
    """Assembler text of functions that call operators.

    Arguments:
        symbols: the name of an operator -> the C name of its function.
        family: the family of CPUs.
    """
    return "".join(
        ASSEMBLER[family].caller.format(name=name, symbol=symbol) for name, symbol in sorted(symbols.items())
    )


def parameters_of(schema: str) -> list[str]:
    """The parameters in a schema, each as it is written there: ``Tensor(a!) out``, ``int shift=0``.

    Arguments:
        schema: parameters and results of an operator, without its name.
    """
    text = schema[schema.index("(") + 1 : schema.rindex(")", 0, schema.rindex("->"))]
    return [part for part in parts_of(text) if part != "*"]


def parts_of(text: str) -> list[str]:
    """The parts of a list in a schema. Commas in brackets and in texts divide nothing."""
    return [part.strip() for part in PART.findall(text) if part.strip()]


def require_one_result(name: str, schema: str, where: Where) -> None:
    """Raise a DefinitionError if an operator, whose arguments are not declared, returns several values."""
    returned = schema[schema.rindex("->") + 2 :].strip()
    if "," in returned:
        message = f"{name} returns {returned}, and a call without declared arguments gets one value"
        raise DefinitionError(message, where, "declare its arguments, and write results to some of them")


def require_schema(name: str, schema: str, arguments: Iterable[Mapping[str, Any]], where: Where) -> None:
    """Raise a DefinitionError if the declared arguments of a call are not those of an operator's schema.

    Arguments:
        schema: its parameters and results.
        arguments: those of ``signature.json``.
    """
    remedy = f"declare what its schema says: {name}{schema}"
    parameters = parameters_of(schema)
    declared = list(arguments)
    required = [part for part in parameters if "=" not in part]
    if not len(required) <= len(declared) <= len(parameters):
        raise DefinitionError(
            f"{len(declared)} arguments are declared, and {name} has {len(parameters)}", where, remedy
        )
    for argument, parameter in zip(declared, parameters, strict=False):
        kind, is_tensor = parameter.split()[0], "shape" in argument
        if kind.startswith("Tensor") != is_tensor or "[" in kind or not kind.startswith(("Tensor", *NUMBERS)):
            message = f"argument {argument['name']!r} is {'a tensor' if is_tensor else 'a number'}"
            raise DefinitionError(f"{message}, and the schema of {name} has {parameter!r} there", where, remedy)
        if argument.get("optional") and "?" not in kind:
            message = f"argument {argument['name']!r} may be None, and the schema of {name} has {parameter!r} there"
            raise DefinitionError(message, where, remedy)
