"""The cpp backend: a header with a typed C++ function for each kernel, and a CMake config.

From Python, kernels are called as through ``tvm_ffi``. From C++, a program links their libraries and libtvm_ffi.so. The
library checks the arguments of a call, so its messages are those of the other backends.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from kernelwright.backends.plan import KernelPlan
from kernelwright.backends.tvm_ffi import TvmFfi
from kernelwright.core.errors import KernelwrightError, Where
from kernelwright.core.signature import IDENTIFIER

from .names import identifier, require_distinct

HERE = Path(__file__).parent

TYPES = {"KW_TENSOR": "const DLTensor *", "KW_INT": "int64_t", "KW_FLOAT": "double", "KW_BOOL": "bool"}
"""What is passed -> its type in C++."""

FUNCTION = """\
/// {summary}
///
{rows}
inline {result} {name}({parameters}) {{
  {statement}
}}
"""


class Cpp(TvmFfi):
    """Callable from C++ without Python."""

    name = "cpp"
    interface = 1
    hands_over = False

    def check(self, kernel: KernelPlan) -> None:
        """See :meth:`Backend.check`: a program without Python cannot find device code that other packages have."""
        where = Where(kernel.name, stage="wrap")
        if kernel.split:
            message = "its device code is not in its library, where a program in C++ finds it"
            raise KernelwrightError(message, where, 'write split = "none", or take cpp out of backends')
        for argument in (argument for unit in kernel.units for argument in unit.arguments):
            if not IDENTIFIER.fullmatch(argument.name):
                message = f"argument {argument.name!r} is not a C identifier"
                raise KernelwrightError(message, where, "rename it in the definition")
            if argument.launcher_kind not in TYPES:
                message = f"argument {argument.name!r} is of dtype {argument.dtype}, which has no type in C++"
                raise KernelwrightError(message, where, "take cpp out of the kernel's backends")
        require_distinct([argument.name for argument in kernel.units[0].arguments], "arguments", where)

    def files(self, kernel: str) -> tuple[str, ...]:
        """The header of a kernel."""
        return (f"_{kernel}.h",)

    def emit(self, kernel: KernelPlan) -> dict[str, str]:
        """Write the header of a kernel, which that of the package includes in its namespace."""
        symbol = f"__tvm_ffi_{kernel.name}"
        declared = f'extern "C" int {symbol}(void *, const TVMFFIAny *, int32_t, TVMFFIAny *);\n'
        functions = [_function(kernel, symbol, passes_outputs=True)]
        if kernel.outputs:
            functions.append(_function(kernel, symbol, passes_outputs=False))
        return {f"_{kernel.name}.h": "\n".join([declared, *functions])}

    def package_files(self, package: str) -> tuple[str, ...]:
        """The header of the package, what it includes, and the CMake config."""
        return (f"include/{package}.h", "include/kernelwright_call.h", f"cmake/{package}-config.cmake")

    def emit_package(self, package: str, version: str, kernels: Sequence[str]) -> dict[str, str]:
        """Write the header of the package, which includes those of its kernels."""
        require_distinct(kernels, "kernels", Where(stage="assemble"))
        space = identifier(package)
        lines = [f"/* The kernels of {package}. Written by Kernelwright. */", "#pragma once", ""]
        lines += ['#include "kernelwright_call.h"', "", f"namespace {space} {{"]
        lines += [*(f'#include "../_{kernel}.h"' for kernel in kernels), f"}}  // namespace {space}", ""]
        config = (HERE / "config.cmake").read_text(encoding="utf-8")
        text = config.replace("@PACKAGE@", package).replace("@KERNELS@", " ".join(kernels))
        return {
            f"include/{package}.h": "\n".join(lines),
            "include/kernelwright_call.h": (HERE / "call.h").read_text(encoding="utf-8"),
            f"cmake/{package}-config.cmake": text,
        }


def _function(kernel: KernelPlan, symbol: str, *, passes_outputs: bool) -> str:
    """The function that calls a kernel with its outputs, or that returns new ones."""
    numbered = [(n, a) for n, a in enumerate(kernel.units[0].arguments) if passes_outputs or not a.output]
    summary = "Calls the kernel; it writes the outputs." if kernel.outputs else "Calls the kernel."
    result, statement = "void", "::kernelwright::detail::call({0});"
    if not passes_outputs:
        count = len(kernel.outputs)
        summary = f"The same with new outputs: returns {', '.join(kernel.outputs)}."
        tensors = ", ".join(["::kernelwright::Tensor"] * count)
        result = tensors if count == 1 else f"std::tuple<{tensors}>"
        numbers = "" if count == 1 else f", std::make_index_sequence<{count}>()"
        unpack = "one" if count == 1 else "several"
        statement = f"return ::kernelwright::detail::{unpack}(::kernelwright::detail::call({{0}}){numbers});"
    names = [identifier(argument.name) for _, argument in numbered]
    return FUNCTION.format(
        summary=summary,
        rows="\n".join(f"/// {name}: {_described(kernel, n)}" for name, (n, _) in zip(names, numbered, strict=True)),
        result=result,
        name=identifier(kernel.name),
        parameters=", ".join(f"{_type(kernel, n)}{name}" for name, (n, _) in zip(names, numbered, strict=True)),
        statement=statement.format(", ".join([symbol, *names])),
    )


def _described(kernel: KernelPlan, position: int) -> str:
    argument = kernel.units[0].arguments[position]
    notes = ["an output"] if argument.output else []
    notes += ["written"] if not argument.output and any(a.written for a in kernel.everywhere(position)) else []
    if argument.name in kernel.optional:
        notes.append("std::nullopt for its default" if not argument.is_tensor else "may be null")
    return ", ".join([kernel.described(position), *notes])


def _type(kernel: KernelPlan, position: int) -> str:
    """The type of a parameter, with a blank behind it if it is no pointer."""
    kinds = {TYPES[argument.launcher_kind] for argument in kernel.everywhere(position)}
    kind = kinds.pop() if len(kinds) == 1 else "::kernelwright::Number"
    if kind.endswith("*"):
        return kind
    is_optional = kernel.units[0].arguments[position].name in kernel.optional
    return f"std::optional<{kind}> " if is_optional else f"{kind} "


BACKEND = Cpp()
