"""The CuTe DSL front end as far as it can be tried without CuTe DSL."""

from __future__ import annotations

import importlib.metadata
import struct
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import pytest
from kernelwright.core.errors import DefinitionError, LoweringError, ToolchainError, Where
from kernelwright.define.unit import Unit
from kernelwright.frontends import get, recognized
from kernelwright.frontends.cubin import usage_of
from kernelwright.frontends.cutedsl import compiler as cutedsl_compiler
from kernelwright.frontends.cutedsl.program import NEED, Program, Scalar, Tensor
from support.launcher_build import scalar, tensor

UNIT = Unit("k", "default", "kw_k__default__cuda", {}, ("y",), "cuda", "sm_80", "k.py:3", ("sm_80", "compute_90"))
WHERE = Where("k", "default", "lower", "k.py:3")


def host(x: Any, y: Any) -> None:
    """A host function of CuTe DSL would launch something."""


def lower(program: Any) -> None:
    front_end = get("cutedsl")
    recognized(front_end, program, UNIT.where)
    front_end.lower(program, UNIT, lambda doing: None)


def vectors(**more: Any) -> Program:
    return Program(host, x=Tensor("float32", "n"), y=Tensor("float32", "n", **more))


def test_without_cute_dsl_or_with_another_release_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.0.0")
    with pytest.raises(ToolchainError, match=r"nvidia-cutlass-dsl 5\.0\.0 is installed; the launcher knows .* 4\.8"):
        lower(vectors())
    missing = Mock(side_effect=importlib.metadata.PackageNotFoundError("nvidia-cutlass-dsl"))
    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ToolchainError) as caught:
        lower(vectors())
    assert str(caught.value).startswith("k.py:3 k/default [lower]: nvidia-cutlass-dsl (CuTe DSL) is not installed")
    assert caught.value.remedy == NEED.install == "pip install nvidia-cutlass-dsl==4.8.1"


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (Program(host, x=Tensor("float32", "n")), "outputs names 'y', which is no tensor argument"),
        (
            Program(host, y=Tensor("float32", "n"), x=Tensor("float32", "n")),
            "parameters of its host function: 'y' is given where it has 'x'",
        ),
        (Program(host, x=Scalar("float16"), y=Tensor("float32", "n")), "dtype 'float16', which no number"),
        (vectors(alignment=12), "argument 'y' has alignment=12, expected a power of two"),
        (vectors(alignment=True), "argument 'y' has alignment=True"),
        (vectors(multiples={"m": 8}), "argument 'y' has multiples="),
        (Program(host, x=Tensor("float32", 0), y=Tensor("float32", "n")), "a size of argument 'x' is 0"),
        (Program(host, x=Tensor("float32", "lambda"), y=Tensor("float32", "n")), "a size of argument 'x' is 'lambda'"),
        (Program(host, x=Tensor("float32", "2 * n"), y=Tensor("float32", "n")), "a size of argument 'x' is '2 "),
    ],
)
def test_what_cannot_be_compiled_is_an_error_at_the_definition(program: Any, what: str) -> None:
    with pytest.raises(DefinitionError, match=what) as caught:
        lower(program)
    assert caught.value.where == WHERE


def signature_of(program: Program, unit: Unit) -> dict[str, Any]:
    arguments = cutedsl_compiler.declared_arguments(program.declared, unit, "int32")
    return cutedsl_compiler._signature(program, unit, ["f"], arguments)


def test_outputs_by_position_get_names_and_plain_values_are_not_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    units: list[Unit] = []

    class Stop(Exception):
        pass

    def compiler(program: Program, unit: Unit) -> None:
        units.append(unit)
        raise Stop

    monkeypatch.setattr(cutedsl_compiler, "_Compiler", compiler)
    with pytest.raises(Stop):
        cutedsl_compiler.lower(vectors(), replace(UNIT, outputs=(-1,)), lambda doing: None)
    assert [argument["output"] for argument in signature_of(vectors(), units[0])["arguments"]] == [False, True]
    program = Program(host, x=Tensor("int8", 4, "n"), tile=64)
    assert list(program.declared) == ["x"]
    assert list(program.arguments) == ["x", "tile"]


def test_host_code_may_differ_between_archs_in_a_message_only() -> None:
    text = '"launch shared memory exceeds current GPU arch sm_80 allowed. Allocated: %lld bytes. Max: 166912 bytes."\n'
    other = text.replace("sm_80", "sm_90a").replace("166912", "232448")

    def require(host: str, *functions: str) -> None:
        """That of sm_90a beside that of sm_80, whose device functions are first and second."""
        both = {"sm_80": (text, ("first", "second")), "sm_90a": (host, functions)}
        cubins = {arch: elf({f".text.{name}": 8 for name in names}) for arch, (_, names) in both.items()}
        compiled = {arch: cutedsl_compiler._Compiled(arch, cubins[arch], "", both[arch][0], b"") for arch in both}
        cutedsl_compiler._require_one_host(compiled, UNIT)

    require(other, "first", "second")
    for changed in ((other + "more", "first", "second"), (other, "first", "third")):
        with pytest.raises(LoweringError, match="CuTe DSL makes for sm_90a differs from that for sm_80"):
            require(*changed)


def test_the_signature_says_what_the_code_expects_of_each_argument() -> None:
    x = Tensor("float16", (..., "m"), 64, alignment=16, multiples={"m": 8})
    program = Program(host, x=x, s=Scalar("int32"), y=Tensor("float32", "n"), z=Tensor("int8", 4, written=True), t=1)
    signature = signature_of(program, UNIT)
    assert signature["arguments"] == [
        tensor("x", "float16", ["m", 64]) | {"alignment": 16, "folds": True},
        scalar("s", "int32"),
        tensor("y", "float32", ["n"], output=True),
        tensor("z", "int8", [4]) | {"written": True},
    ]
    assert signature["symbols"] == {"m": "int32", "n": "int32"}


@pytest.mark.parametrize(("capability", "shared"), [(80, 2048), (89, 2048), (90, 1024), (100, 1024)])
def test_shared_memory_that_cuda_has_for_itself_does_not_count(capability: int, shared: int) -> None:
    sections = {".text.f": 128, ".nv.shared.f": 2048, ".nv.constant0.f": 360, ".text.g": 128}
    usage = usage_of(elf(sections), capability)
    assert {name: (used["shared_bytes"], used["constant_bytes"]) for name, used in usage.items()} == {
        "f": (shared, 360),
        "g": (0, 0),
    }


def elf(sections: Mapping[str, int]) -> bytes:
    """A cubin with empty sections of these names and sizes."""
    names = b"\0" + b"".join(f"{name}\0".encode() for name in (*sections, ".shstrtab"))
    headers = [bytes(64)]
    for name, size in (*sections.items(), (".shstrtab", len(names))):
        kind = 3 if name == ".shstrtab" else 8  # SHT_STRTAB, SHT_NOBITS
        place = names.index(f"\0{name}\0".encode()) + 1
        headers.append(struct.pack("<IIQQQQIIQQ", place, kind, 0, 0, 64, size, 0, 0, 1, 0))
    ident, count = b"\x7fELF\x02\x01\x013\x07", len(headers)
    numbers = (2, 190, 1, 0, 0, 64 + len(names), 0, 64, 56, 0, 64, count, count - 1)
    head = struct.pack("<16sHHIQQQIHHHHHH", ident, *numbers)
    return head + names + b"".join(headers)
