"""Reads a project in the layout of Hugging Face's kernel-builder: ``build.toml``, and what its CUDA sources register.

The format is that of kernel-builder's configuration, editions 1 to 5: https://github.com/huggingface/kernels.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from ...core.errors import DefinitionError, SettingsError, Where, shown
from ...define.settings import read_document
from ...toolchain.ask import failure, run_tool
from ...toolchain.host_compiler import INSTALL_COMPILER, find_host_compiler

COMPILED = (".cu", ".cc", ".cpp", ".cxx")
"""Endings of sources; what else a section lists are headers."""

CUDA = ("cuda", "cuda-hipify")
"""What a section says that is for CUDA: its backend or, in the first edition, its language."""

OLDEST = 75
"""The oldest compute capability that CUDA 13 makes code for."""

CUTLASS = "package:cutlass_library/source/include"
"""The headers of CUTLASS in the package nvidia-cutlass."""

DEFINED = ("-DUSE_CUDA=1", "-DCUDA_KERNEL")
"""What kernel-builder defines for sources of CUDA."""

FOR_TORCH = ("-DENABLE_FP8", "--expt-relaxed-constexpr", "--expt-extended-lambda")
"""Flags that kernel-builder adds for extensions of PyTorch, and that PyTorch's own files for CMake add."""


@dataclass(frozen=True)
class Layout:
    """What ``build.toml`` says of the kernels for CUDA.

    Arguments:
        name: that of the extension, as Python writes it.
        is_torch: whether it is an extension of PyTorch; otherwise it is one of tvm-ffi.
        sources: what is compiled, relative to the folder of ``build.toml``.
        includes: folders of headers: relative to that folder, or of installed packages.
        flags: of nvcc.
        archs: what the kernels are restricted to; none: they are not.
        notes: what the definition file cannot say as ``build.toml`` does.
    """

    name: str
    is_torch: bool
    sources: tuple[str, ...]
    includes: tuple[str, ...]
    flags: tuple[str, ...]
    archs: tuple[str, ...]
    notes: tuple[str, ...]


class _Section:
    """A table of the file, whose values have to be of the types that are asked for."""

    def __init__(self, title: str, values: Any, where: Where) -> None:
        self.title, self.where = title, where
        if not isinstance(values, dict):
            raise SettingsError(f"{title} is {shown(values)}, expected a table", where, "mend the file")
        self.values: dict[str, Any] = values

    def text(self, key: str, default: str | None = None) -> str:
        value = self.values.get(key, default)
        if not isinstance(value, str) or not value:
            raise self._wrong(key, value, "a text")
        return value

    def texts(self, key: str) -> list[str]:
        value = self.values.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise self._wrong(key, value, "a list of texts")
        return value

    def _wrong(self, key: str, value: Any, wanted: str) -> SettingsError:
        said = f"lacks {key}" if value is None else f"has {key} = {shown(value)}"
        return SettingsError(f"[{self.title}] {said}, expected {wanted}", self.where, "mend the file")


def read_layout(file: Path) -> Layout:
    """Read ``build.toml``.

    Raises:
        SettingsError: it is not in that format, a source is not there, or nothing of it is for CUDA.
    """
    where = Where(stage="import", location=str(file))
    document = read_document(file)
    general = _Section("general", document.get("general", {}), where)
    name = re.sub(r"\W", "_", general.text("name"), flags=re.ASCII)
    extension = _extension(document, where)
    sections = _cuda_sections(document, where)
    listed = [path for section in (extension, *sections) for path in section.texts("src")]
    sources = tuple(dict.fromkeys(path for path in listed if PurePosixPath(path).suffix in COMPILED))
    for path in sources:
        if not (file.parent / path).is_file():
            raise SettingsError(f"it names {path!r}, which is no file beside it", where, "mend src in the file")
    archs, notes = _archs(sections)
    is_torch = extension.title == "torch"
    headers = _headers(extension, sections, is_torch)
    flags = [*DEFINED, *(_torch_flags(extension, name) if is_torch else ())]
    own = dict.fromkeys(_flags(section) for section in (extension, *sections))  # not flag by flag: some have a value
    flags += [flag for part in own for flag in part]
    if gone := [name for name in document["kernel"] if f"kernel.{name}" not in {one.title for one in sections}]:
        notes.append(f"These sections are left out, because they are not for CUDA: {', '.join(gone)}.")
    if len({_flags(section) for section in sections}) > 1:
        notes.append("In build.toml the flags of its sections differ. Here all sources get all of them.")
    return Layout(name, is_torch, sources, headers, flags=tuple(flags), archs=archs, notes=tuple(notes))


def _extension(document: Mapping[str, Any], where: Where) -> _Section:
    """The section that has the sources which register the functions."""
    for title in ("torch", "tvm-ffi"):
        if title in document:
            section = _Section(title, document[title], where)
            if section.texts("src"):
                return section
    message = "neither [torch] nor [tvm-ffi] lists sources, so its kernels are written in Python"
    raise SettingsError(message, where, "declare them in the language that they are in, such as Triton")


def _cuda_sections(document: Mapping[str, Any], where: Where) -> list[_Section]:
    kernels = _Section("kernel", document.get("kernel", {}), where)
    sections = [_Section(f"kernel.{name}", values, where) for name, values in kernels.values.items()]
    kinds = [section.text("backend", section.values.get("language", "cuda")) for section in sections]
    found = [section for section, kind in zip(sections, kinds, strict=True) if kind in CUDA]
    if not found:
        others = f"; they are for {', '.join(sorted({*kinds}))}" if kinds else ""
        message = f"none of its [kernel] sections is for cuda{others}"
        raise SettingsError(message, where, "Kernelwright builds such sources for CUDA only")
    return found


def _archs(sections: Iterable[_Section]) -> tuple[tuple[str, ...], list[str]]:
    """The archs that all sections name, and notes about what they are not."""
    named = [tuple(section.texts("cuda-capabilities")) for section in sections]
    if len({*named}) > 1:
        listed = "; ".join(", ".join(archs) or "all" for archs in named)
        return (), [f"In build.toml the cuda-capabilities of its sections differ: {listed}. Here all are for all."]
    archs, left_out = [], []
    for text in named[0]:
        match = re.fullmatch(r"(\d+)\.(\d)([af]?)(\+PTX)?", text)
        if match is None or int(match[1] + match[2]) < OLDEST:
            left_out.append(text)
            continue
        number = f"{match[1]}{match[2]}{match[3]}"
        archs += [f"sm_{number}", *([f"compute_{number}"] if match[4] else [])]
    gone = f"These cuda-capabilities are left out, for which CUDA 13 makes no code: {', '.join(left_out)}."
    return tuple(archs), [gone] if left_out else []


def _headers(extension: _Section, sections: Iterable[_Section], is_torch: bool) -> tuple[str, ...]:
    """The folders of headers.

    Raises:
        SettingsError: a section depends on something that is not known.
    """
    folders = [path for section in (extension, *sections) for path in section.texts("include")]
    for section in sections:
        for name in section.texts("depends"):
            if name.startswith("cutlass_"):
                folders.append(CUTLASS)
            elif name != "torch":
                message = f"[{section.title}] depends on {name!r}, which is neither torch nor CUTLASS"
                raise SettingsError(message, section.where, "leave it out, and name its headers in include")
    return tuple(dict.fromkeys([*folders, *(["package:torch/include"] if is_torch else [])]))


def _torch_flags(extension: _Section, name: str) -> list[str]:
    """The flags of an extension of PyTorch.

    Raises:
        SettingsError: the version of its stable ABI is none.
    """
    abi = extension.values.get("stable-abi")
    version = abi.get("cuda") if isinstance(abi, dict) else abi
    flags = [f"-DTORCH_EXTENSION_NAME={name}", *FOR_TORCH]
    if version is None:
        return flags
    match = re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", str(version))
    if match is None:
        message = f"[torch] has stable-abi = {shown(version)}, expected a version of PyTorch"
        raise SettingsError(message, extension.where, 'write, for example, stable-abi = "2.10"')
    number = int(match[1]) << 56 | int(match[2]) << 48  # torch/csrc/stable/macros.h
    return [*flags, f"-DTORCH_TARGET_VERSION={number:#018x}"]


def _flags(section: _Section) -> tuple[str, ...]:
    """The flags of a section as nvcc takes them: those of the C++ compiler are handed on to that."""
    of_host = section.texts("cxx-flags")
    return (*section.texts("cuda-flags"), *(f if f[:2] in ("-D", "-U") else f"-Xcompiler={f}" for f in of_host))


# What the sources register.

EXPORT = re.compile(r"\bTVM_FFI_DLL_EXPORT_TYPED_FUNC\s*\(\s*(\w+)")
LIBRARY = r"\b(STABLE_)?TORCH_LIBRARY\w*\s*\(\s*(\w+)"
OPERATOR = re.compile(LIBRARY + r'|\.\s*def\s*\(\s*((?:"(?:\\.|[^"\\])*"\s*)+)')
"""The beginning of what registers operators in a namespace, or the schema of one of them."""

STRING = re.compile(r'"((?:\\.|[^"\\])*)"')
REGISTERS = re.compile(r"TORCH_LIBRARY|PYBIND11_MODULE|TVM_FFI_DLL_EXPORT")
INCLUDE = re.compile(r"^[ \t]*#[ \t]*include\b.*$", re.M)


@dataclass
class Registered:
    """What the sources of a project register.

    Arguments:
        functions: a function for tvm-ffi -> nothing; an operator, without its namespace -> its schema.
        namespaces: an operator -> its namespace.
        is_stable: whether nothing of it needs PyTorch's C++ library.
    """

    functions: dict[str, str] = field(default_factory=dict)
    namespaces: dict[str, str] = field(default_factory=dict)
    is_stable: bool = True


def registered_in(folder: Path, layout: Layout) -> Registered:
    """What the sources export or register.

    The C++ compiler's preprocessor reads the sources without what they include, so that conditions count.

    Arguments:
        folder: that of ``build.toml``.

    Raises:
        DefinitionError: it is nothing, or pybind11 makes a module of Python of it.
        ToolchainError: there is no C++ compiler, or it refuses a source.
    """
    found = Registered()
    for source in layout.sources:
        text = (folder / source).read_text(encoding="utf-8", errors="replace")
        if not REGISTERS.search(text):
            continue
        meant = _preprocessed(text, [flag for flag in layout.flags if flag[:2] in ("-D", "-U")])
        _require_no_module(meant, text, str(folder / source))
        found.functions |= dict.fromkeys(EXPORT.findall(meant), "")
        _add_operators(meant, found)
    if not found.functions:
        wanted = "ops.def(...) of an operator" if layout.is_torch else "TVM_FFI_DLL_EXPORT_TYPED_FUNC"
        message = f"no source for CUDA has {wanted}"
        raise DefinitionError(message, Where(stage="import", location=str(folder)), "list the source that does in src")
    return found


def _add_operators(meant: str, found: Registered) -> None:
    """Add the operators of a source to what was found."""
    namespace = ""
    for stable, name, literal in OPERATOR.findall(meant):
        if name:
            namespace, found.is_stable = name, found.is_stable and bool(stable)
            continue
        schema = " ".join("".join(STRING.findall(literal)).replace('\\"', '"').split())
        operator = schema.partition("(")[0].strip()
        found.functions[operator], found.namespaces[operator] = schema, namespace


def _require_no_module(meant: str, text: str, location: str) -> None:
    """Raise a DefinitionError if pybind11 makes a module of Python of a source."""
    if "PYBIND11_MODULE" in meant:
        line = next(number for number, line in enumerate(text.splitlines(), 1) if "PYBIND11_MODULE" in line)
        message = "PYBIND11_MODULE says nothing of what its functions take, so no definition can be written of it"
        place = Where(stage="import", location=f"{location}:{line}")
        remedy = 'write one by hand: flags=["-DTORCH_EXTENSION_NAME=acme"], and return Operators("acme::forward")'
        raise DefinitionError(message, place, remedy)


def _preprocessed(text: str, flags: list[str]) -> str:
    """A source as the preprocessor leaves it, without its headers."""
    compiler = find_host_compiler("", os.environ)
    with tempfile.TemporaryDirectory(prefix="kernelwright-") as folder:
        file = Path(folder, "source.cpp")
        file.write_text(INCLUDE.sub("", text), encoding="utf-8")
        command = [compiler, "-E", "-P", "-x", "c++", *flags, str(file)]
        done = run_tool(command, f"{compiler} cannot be run", INSTALL_COMPILER)
    if done.returncode:
        raise failure("the C++ preprocessor refuses a source", "mend it", command, done)
    return done.stdout
