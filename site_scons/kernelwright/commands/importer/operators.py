"""Writes the definition file of a project in the layout of Hugging Face's kernel-builder."""

from __future__ import annotations

import os
import re
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from ...backends.operators import parameters_of
from ...core.errors import SettingsError, Where
from ...toolchain.pytorch import OF_TOOLKIT
from .definition import WIDTH, comment, in_docstring, kernel_name, quoted
from .kernel_builder import CUTLASS, Layout, Registered, registered_in

REGISTRATION = """\
// What the header of kernel-builder is for, where Kernelwright builds. `kernelwright import` wrote this.
#pragma once

#define STABLE_TORCH_LIBRARY_EXPAND(NAME, MODULE) STABLE_TORCH_LIBRARY(NAME, MODULE)
#define STABLE_TORCH_LIBRARY_IMPL_EXPAND(NAME, KEY, MODULE) STABLE_TORCH_LIBRARY_IMPL(NAME, KEY, MODULE)
#define TORCH_LIBRARY_EXPAND(NAME, MODULE) TORCH_LIBRARY(NAME, MODULE)
#define TORCH_LIBRARY_IMPL_EXPAND(NAME, KEY, MODULE) TORCH_LIBRARY_IMPL(NAME, KEY, MODULE)
#define REGISTER_EXTENSION(NAME)  // the library is no module of Python
"""
"""The header that kernel-builder adds to each extension of PyTorch has these macros, too."""

FOLDER = "registration"
"""The folder of that header, beside the definition file."""

FOR_CUDA_TYPES = ("HALF_OPERATORS", "HALF_CONVERSIONS", "BFLOAT16_CONVERSIONS", "HALF2_OPERATORS")
"""Operators of CUDA's types that kernel-builder leaves on, and Kernelwright, like PyTorch, turns off."""

NUMBERS = {"int": "int64", "SymInt": "int64", "float": "float64", "bool": "bool"}
"""A number in a schema -> the dtype of a ``Scalar``."""


def import_layout(file: Path, layout: Layout, written: Path) -> tuple[str, list[str], list[str]]:
    """The definition file of a project, after the header that its sources need is written.

    Arguments:
        file: ``build.toml``.
        layout: what it says.
        written: the definition file.

    Returns:
        The text; the names of its kernels; and what is left out, with the reason.

    Raises:
        KernelwrightError: its sources cannot be read.
    """
    found = registered_in(file.parent, layout)
    needs_header = layout.is_torch and _needs_registration(file.parent, layout.sources)
    here = os.path.relpath(file.parent.resolve(), written.parent.resolve())
    # Operators that need PyTorch, or that can only be called there, are built for it.
    is_called_without = found.is_stable and not all(_reason(*one) for one in found.functions.items())
    options = _options(layout, here, needs_header, is_called_without)
    title = f'"""Kernels of {in_docstring(file.name)}. `kernelwright import` wrote this; see to each TODO."""'
    if is_called_without:
        lines, names, left_out = _exported(file, layout, found.functions, options)
    else:
        lines, names, left_out = _operators(file, layout, found, options)
    if needs_header:
        _write_header(written.parent / FOLDER / "registration.h")
    return "\n".join([title, "", "from kernelwright import kernel", *lines, ""]), names, left_out


def _operators(
    file: Path, layout: Layout, found: Registered, options: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """The definition of operators that run in PyTorch."""
    named = [f"        {quoted(f'{found.namespaces[name]}::{name}')}," for name in found.functions]
    about = comment(
        "TODO: if the sources include headers such as ATen/cuda/CUDAContext.h, they need more headers where they are "
        f"built, which PyTorch for CPUs does not bring: pip install {' '.join(OF_TOOLKIT.values())}"
    )
    lines = ["from kernelwright.cuda import Operators", "", *about, *_notes(file.parent, layout, ()), *options, "", ""]
    document = f'    """The operators of {layout.name}."""'
    lines += ["@kernel(**OPTIONS)", "def ops():", document, "    return Operators(", *named, "    )"]
    return lines, ["ops"], []


def _exported(
    file: Path, layout: Layout, found: Mapping[str, str], options: Sequence[str]
) -> tuple[list[str], list[str], list[str]]:
    """The definitions of functions that run without PyTorch."""
    left_out = [f"{name}: {reason}" for name, schema in found.items() if (reason := _reason(name, schema))]
    kept = {name: schema for name, schema in found.items() if not _reason(name, schema)}
    names: set[str] = {"OPTIONS", "Exported"}
    kernels = {kernel_name(name, names): name for name in kept}
    lines = ["from kernelwright.cuda import Exported", "", *_undeclared(kept)]
    lines += [*_notes(file.parent, layout, left_out), *options]
    for kernel, name in kernels.items():
        lines += ["", "", "@kernel(**OPTIONS)", f"def {kernel}():", *_document(kept[name] or name)]
        lines += [f"    return Exported({quoted(name)})"]
    return lines, list(kernels), left_out


def _reason(name: str, schema: str) -> str:
    """Why an operator cannot be a kernel; empty: it can."""
    if not re.fullmatch(r"[A-Za-z_]\w*", name):
        return "it has an overload in its name, by which a kernel cannot call it"
    if schema and "(" not in schema:
        return "it has no schema in its text"
    if "," in schema.rpartition("->")[2]:
        return f"it returns several values, {schema.rpartition('->')[2].strip()}: write a form that writes to arguments"
    return ""


def _needs_registration(folder: Path, sources: Iterable[str]) -> bool:
    """Whether sources include the header that kernel-builder adds, and do not bring it."""
    for path in (folder / source for source in sources):
        text = path.read_text(encoding="utf-8", errors="replace")
        if re.search(r'#\s*include\s*"registration\.h"', text) and not (path.parent / "registration.h").exists():
            return True
    return False


def _write_header(path: Path) -> None:
    if path.is_file() and path.read_text(encoding="utf-8") == REGISTRATION:
        return
    try:
        path.parent.mkdir(exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(REGISTRATION)
    except OSError as error:
        message = f"this file cannot be written: {error.strerror}"
        raise SettingsError(message, Where(stage="import", location=str(path)), "remove it") from error


# Text.


def _options(layout: Layout, here: str, needs_header: bool, is_called_without: bool) -> list[str]:
    """What all kernels have in common."""
    flags = [*layout.flags, *(f"-U__CUDA_NO_{name}__" for name in FOR_CUDA_TYPES if layout.is_torch)]

    def placed(path: str) -> str:
        return path if path.startswith("package:") else os.path.normpath(f"{here}/{path}")

    # The folder of the definition file is one of headers by itself.
    folders = [FOLDER] * needs_header + [one for path in layout.includes if (one := placed(path)) != "."]
    lists: dict[str, Sequence[str]] = {
        "sources": [placed(path) for path in layout.sources],
        "includes": folders,
        "flags": flags,
    }
    lists |= {"archs": layout.archs} if layout.archs else {}
    lines = ["OPTIONS = {", f'    "frontend": "{"cuda" if is_called_without else "torch"}",']
    for name, items in lists.items():
        lines += [f'    "{name}": [', *(f"        {quoted(item)}," for item in items), "    ],"] if items else []
    return [*lines, *(['    "backends": ["tvm_ffi"],'] if is_called_without else []), "}"]


def _document(schema: str) -> list[str]:
    """The docstring of a kernel: the schema of its operator."""
    text = schema.replace("\\", "_").replace('"', "'")
    lines = textwrap.wrap(text, WIDTH - 4, subsequent_indent="    ", break_long_words=False)
    if len(lines) == 1 and len(text) <= WIDTH - 10:
        return [f'    """{text}"""']
    return [f'    """{lines[0]}', *(f"    {line}" for line in lines[1:]), '    """']


def _undeclared(kept: Mapping[str, str]) -> list[str]:
    """A comment about the arguments, which are not declared."""
    return comment(
        "TODO: calls are handed on as they are, without a look at their arguments. To have them compared, name the "
        f"outputs and declare the arguments, and leave out backends.{_example(kept)}"
    )


def _notes(folder: Path, layout: Layout, left_out: Sequence[str]) -> list[str]:
    """Comments about what the file does not say."""
    lines: list[str] = []
    for note in layout.notes:
        lines += comment(f"TODO: {note}")
    if CUTLASS in layout.includes:
        lines += comment("TODO: pip install nvidia-cutlass, which has the headers of CUTLASS. Its version may matter.")
    python = folder / ("torch-ext" if layout.is_torch else "tvm-ffi-ext") / layout.name
    if python.is_dir():
        place = python.relative_to(folder).as_posix()
        lines += comment(f"TODO: {place} has Python code that calls ops.NAME(...). It gets them from the package now.")
    if left_out:
        lines += comment("TODO: these operators are left out:")
        lines += [line for text in left_out for line in comment(text, mark="- ")]
    return [*lines, ""]


def _example(kept: Mapping[str, str]) -> str:
    """How the arguments of the first operator that allows it are declared."""
    for name, schema in kept.items():
        parameters = [text.split("=")[0].split() for text in parameters_of(schema[len(name) :])] if schema else []
        declared = [_declared(*parts) for parts in parameters if len(parts) == 2]
        if declared and len(declared) == len(parameters) and all(declared):
            outputs = [quoted(parts[1]) for parts in parameters if "!" in parts[0]]
            named = f"outputs=[{', '.join(outputs)}], and " if outputs else ""
            return f" For example: {named}return Exported({quoted(name)}, {', '.join(declared)})"
    return ""


def _declared(kind: str, name: str) -> str:
    """The declaration of an argument; empty: it can have none."""
    if re.fullmatch(r"Tensor(\(\w+!?\)|!)?\??", kind):
        optional = ", optional=True" if kind.endswith("?") else ""
        return f'{name}=Tensor("float32", "{name}_size"{optional})'
    return f'{name}=Scalar("{NUMBERS[kind]}")' if kind in NUMBERS else ""
