"""What LINK adds to sources that register operators of PyTorch: see :mod:`.backends.operators`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ..backends.files import VariantFiles
from ..backends.operators import (
    assembler_command,
    callers_text,
    registered_operators,
    registers_operators,
    require_one_result,
    require_schema,
)
from ..backends.own_code import exported_functions, own_symbol
from ..core.errors import DefinitionError, Where
from ..core.request import digest
from ..core.sealed import read_sealed, write_sealed
from ..toolchain.host_compiler import HostCompiler
from ..toolchain.tvm import tvm_ffi_includes
from .stage_run import StageRun

BROKEN = "it is a part of Kernelwright: see whether the C++ compiler and tvm-ffi are intact"


@dataclass(frozen=True)
class Assembled:
    """The functions of PyTorch's stable ABI as assembler text, which a state folder keeps: compiling takes 1.5 s."""

    text: str


def operators_text(
    variants: Sequence[VariantFiles],
    linked: Sequence[str],
    compiler: HostCompiler,
    made_of: tuple[str, ...],
    scratch: Path,
    stage: StageRun,
) -> str:
    """Assembler text of what sources need to run without PyTorch; empty: they register no operators.

    Arguments:
        linked: the kernels that share the sources.
        made_of: what identifies the functions of the ABI besides the compiler.

    Raises:
        DefinitionError: as :func:`called_operators`.
        KernelwrightError: the C++ compiler fails.
    """
    called = called_operators(variants, stage.where)
    if not registers_operators({Path(path) for variant in variants for unit in variant.units for path in unit.own}):
        return ""
    kept = stage.run.state / "operators" / f"{digest([compiler, *made_of, *assembler_command('', (), '')])}.json"
    assembled = read_sealed(kept, Assembled)
    if assembled is None:
        command = assembler_command(compiler.path, tvm_ffi_includes(), str(scratch / "operators.s"))
        stage.tool(command, scratch, scratch, BROKEN, kind="launcher")
        assembled = Assembled((scratch / "operators.s").read_text(encoding="utf-8"))
        (scratch / "operators.s").unlink()
        write_sealed(kept, assembled)
    return assembled.text + callers_text({name: own_symbol(linked, name) for name in called})


def called_operators(variants: Sequence[VariantFiles], where: Where) -> list[str]:
    """The operators that variants call.

    Raises:
        DefinitionError: the sources neither export nor register what a variant calls, or its arguments are others.
    """
    called = set()
    for variant in variants:
        for unit in (unit for unit in variant.units if unit.own):
            signature, objects = unit.read_signature(), list(map(Path, unit.own))
            name, exported, place = (
                signature["exported"],
                exported_functions(objects),
                replace(where, variant=variant.slug),
            )
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
            if signature.get("opaque"):
                require_one_result(name, schemas[name], place)
            else:
                require_schema(name, schemas[name], signature["arguments"], place)
            called.add(name)
    return sorted(called)
