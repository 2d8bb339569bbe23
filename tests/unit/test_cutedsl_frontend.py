"""The CuTe DSL front end as far as it can be tried without CuTe DSL."""

from __future__ import annotations

import importlib.metadata
from dataclasses import replace
from typing import Any

import pytest
from kernelwright import kernel
from kernelwright.cutedsl import INSTALL, Program, Scalar, Tensor
from kernelwright.errors import DefinitionError, LoweringError, ToolchainError, Where
from kernelwright.frontends import Unit, cutedsl

UNIT = Unit("k", "default", ("default",), {}, ("y",), "cuda", "sm_80", "k.py:3", ("sm_80", "compute_90"))
WHERE = Where("k", "default", "lower", "k.py:3")


def host(x: Any, y: Any) -> None:
    """A host function of CuTe DSL would launch something."""


def lower(program: Any) -> None:
    cutedsl.lower(program, UNIT, lambda doing: None)


def vectors(**more: Any) -> Program:
    return Program(host, x=Tensor("float32", "n"), y=Tensor("float32", "n", **more))


def missing(name: str) -> str:
    raise importlib.metadata.PackageNotFoundError(name)


def test_without_cute_dsl_the_error_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", missing)
    with pytest.raises(ToolchainError) as caught:
        lower(vectors())
    assert str(caught.value).startswith("k.py:3 k/default [lower]: nvidia-cutlass-dsl (CuTe DSL) is not installed")
    assert caught.value.remedy == INSTALL


def test_another_release_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "5.0.0")
    with pytest.raises(ToolchainError, match=r"nvidia-cutlass-dsl 5\.0\.0 is installed; the launcher knows .* 4\.8"):
        lower(vectors())


@pytest.mark.parametrize(
    ("program", "what"),
    [
        (None, "the definition returned an object of type NoneType, expected a Program"),
        (Program(host, x=Tensor("float32", "n")), "outputs names 'y', which is no tensor argument"),
        (Program(host, y=Tensor("float32", "n"), x=Tensor("float32", "n")), "its host function the parameters x, y"),
        (Program(host, x=Scalar("float16"), y=Tensor("float32", "n")), "dtype 'float16', which no number"),
        (vectors(alignment=12), "argument 'y' has alignment=12, expected a power of two"),
        (vectors(alignment=True), "argument 'y' has alignment=True"),
        (vectors(multiples={"m": 8}), "argument 'y' has multiples="),
        (Program(host, x=Tensor("float32", 0), y=Tensor("float32", "n")), "a size of argument 'x' is 0"),
        (Program(host, x=Tensor("float32", "2 * n"), y=Tensor("float32", "n")), "a size of argument 'x' is '2 "),
    ],
)
def test_what_cannot_be_compiled_is_an_error_at_the_definition(program: Any, what: str) -> None:
    with pytest.raises(DefinitionError, match=what) as caught:
        lower(program)
    assert caught.value.where == WHERE


@pytest.mark.parametrize(
    ("outputs", "what"),
    [
        ((2,), r"position 2, but there are 2 arguments \(x, y\)"),
        (("y", -1), "'y' and -1 are both 'y'"),
    ],
)
def test_positions_of_outputs_that_do_not_fit_are_errors(outputs: tuple[str | int, ...], what: str) -> None:
    with pytest.raises(DefinitionError, match=what) as caught:
        cutedsl.lower(vectors(), replace(UNIT, outputs=outputs), lambda doing: None)
    assert caught.value.where == WHERE


def test_outputs_by_position_get_names_before_anything_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    units: list[Unit] = []

    class Stop(Exception):
        pass

    def compiler(program: Program, unit: Unit) -> None:
        units.append(unit)
        raise Stop

    monkeypatch.setattr(cutedsl, "_Compiler", compiler)
    with pytest.raises(Stop):
        cutedsl.lower(vectors(), replace(UNIT, outputs=(-1,)), lambda doing: None)
    assert [a["output"] for a in cutedsl._signature(vectors(), units[0], [])["arguments"]] == [False, True]


def test_plain_values_are_not_arguments() -> None:
    program = Program(host, x=Tensor("int8", 4, "n"), tile=64)
    assert list(program.declared) == ["x"]
    assert list(program.arguments) == ["x", "tile"]


def test_such_kernels_are_for_cuda_only() -> None:
    @kernel(frontend="cutedsl")
    def k() -> None: ...

    assert k.targets == ("cuda",)
    with pytest.raises(DefinitionError, match="cannot be built for the target 'llvm'"):
        kernel(k.function, frontend="cutedsl", targets=["cuda", "llvm"])
    with pytest.raises(DefinitionError, match="flags are those of nvcc"):
        kernel(frontend="cutedsl", flags=["-O1"])(k.function)
    with pytest.raises(DefinitionError, match=r"frontend is 'cuda'.*\n.*use one of tir, cutedsl"):
        kernel(frontend="cuda")(k.function)


def test_host_code_may_differ_between_archs_in_a_message_only() -> None:
    text = '"launch shared memory exceeds current GPU arch sm_80 allowed. Allocated: %lld bytes. Max: 166912 bytes."\n'

    def compiled(arch: str, host: str) -> cutedsl._Compiled:
        return cutedsl._Compiled(arch, EMPTY_CUBIN, "", host, b"")

    same = {
        "sm_80": compiled("sm_80", text),
        "sm_90a": compiled("sm_90a", text.replace("sm_80", "sm_90a").replace("166912", "232448")),
    }
    cutedsl._require_one_host(same, UNIT)
    with pytest.raises(LoweringError, match="the host code that CuTe DSL makes for sm_90a differs from that for sm_80"):
        cutedsl._require_one_host(same | {"sm_90a": compiled("sm_90a", text + "more")}, UNIT)


def elf_header() -> bytes:
    """A cubin without sections."""
    ident = b"\x7fELF\x02\x01\x013\x07" + bytes(7)
    numbers = (2).to_bytes(2, "little") + (190).to_bytes(2, "little") + (1).to_bytes(4, "little") + bytes(24)
    sizes = bytes(4) + b"".join(n.to_bytes(2, "little") for n in (64, 56, 0, 64, 0, 0))
    return ident + numbers + sizes


EMPTY_CUBIN = elf_header()
