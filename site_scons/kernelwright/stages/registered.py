"""What SOURCES adds to sources that register operators of PyTorch, and what LINK asks of the functions of sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..backends.files import VariantFiles
from ..backends.operators import (
    ambiguous_operators,
    assembler_command,
    registered_operators,
    registers_operators,
    require_one_result,
    require_schema,
    source_of,
)
from ..backends.own_code import exported_functions
from ..core.errors import DefinitionError, LoweringError, Where
from ..core.request import digest
from ..core.sealed import read_sealed, write_sealed
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.tvm import tvm_ffi_includes
from ..toolchain.undefined import nothing_has, who_has
from .stage_run import StageRun

UNDEFINED = (
    "list the source that has it in sources, or the library in libraries; CUDA's runtime and driver need not be named"
)
"""What to do if a source calls what nothing has."""

BROKEN = "it is a part of Kernelwright: see whether the C++ compiler and tvm-ffi are intact"


@dataclass(frozen=True)
class Assembled:
    """The functions of PyTorch's stable ABI as assembler text, which a state folder keeps: compiling takes 1.5 s."""

    text: str


def operators_text(
    objects: Sequence[Path],
    compiler: HostCompiler,
    made_of: tuple[str, ...],
    scratch: Path,
    stage: StageRun,
) -> str:
    """Assembler text of what sources need to run without PyTorch; empty: they register no operators.

    Arguments:
        objects: those of the sources.
        made_of: what identifies the functions of the ABI besides the compiler.

    Raises:
        KernelwrightError: the C++ compiler fails.
    """
    if not registers_operators(objects):
        return ""
    kept = stage.run.state / "operators" / f"{digest([compiler, *made_of, *assembler_command('', (), '')])}.json"
    assembled = read_sealed(kept, Assembled)
    if assembled is None:
        command = assembler_command(compiler.path, tvm_ffi_includes(), str(scratch / "operators.s"))
        stage.tool(command, scratch, scratch, BROKEN, kind="launcher")
        assembled = Assembled((scratch / "operators.s").read_text(encoding="utf-8"))
        (scratch / "operators.s").unlink()
        write_sealed(kept, assembled)
    return assembled.text


def require_called(
    variants: Sequence[VariantFiles],
    lacking: Mapping[str, Mapping[str, Sequence[str]]],
    libraries: Sequence[str],
    where: Where,
) -> None:
    """Compare what variants call with what their sources have.

    Arguments:
        lacking: for each library of sources the functions that these have and it does not: name -> what nothing has
            that they call.
        libraries: the file names of those that the kernel lists.

    Raises:
        DefinitionError: the sources neither export nor register what a variant calls, or its arguments are others.
        LoweringError: what a variant calls is lacking.
    """
    for variant in variants:
        for unit in (unit for unit in variant.units if unit.own):
            signature, objects = unit.read_signature(), list(map(Path, unit.own))
            name, exported, place = (
                signature["exported"],
                exported_functions(objects),
                replace(where, variant=variant.slug),
            )
            if absent := lacking[unit.own_library].get(name):
                message = f"{nothing_has(absent)}, which {name!r} calls"
                raise LoweringError(message, place, who_has(absent, UNDEFINED, libraries))
            if name in exported:
                continue
            schemas = registered_operators(objects) if registers_operators(objects) else {}
            if name not in schemas:
                registered = f"; they register {', '.join(schemas)}" if schemas else ""
                message = (
                    f"its sources do not export {name!r}; they export {', '.join(exported) or 'nothing'}{registered}"
                )
                remedy = f"write TVM_FFI_DLL_EXPORT_TYPED_FUNC({name}, ...) in a source, or another name in Exported"
                raise DefinitionError(message, place, remedy)
            if twice := ambiguous_operators(objects).get(name):
                places = " and ".join(dict.fromkeys(map(source_of, twice)))
                message = f"{places} register several operators of the name {name!r}, and a call could be for any"
                raise DefinitionError(message, place, "leave the sources of one of them out")
            if signature.get("opaque"):
                require_one_result(name, schemas[name], place)
            else:
                require_schema(name, schemas[name], signature["arguments"], place)
