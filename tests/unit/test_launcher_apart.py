"""A launcher that is an object of its own: libraries with it do what others do, and it is compiled once for all."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from kernelwright.core.errors import KernelwrightError
from kernelwright.define.settings import Settings
from kernelwright.library.launcher import LAUNCHER
from kernelwright.library.sources import emit
from kernelwright.library.wrapper import MAX_ARGUMENTS
from kernelwright.ondemand.launcher import attempt_stage
from kernelwright.stages import launcher
from kernelwright.stages.context import Context
from kernelwright.stages.stage import Stage
from kernelwright.stages.tools import Tools
from kernelwright.toolchain.host_compiler import HostCompiler
from kernelwright.toolchain.tvm import Lowerer
from launcher_build import OPTIMISED, c_unit, compile_and_link, plan, signature, tensor
from test_launcher import ADD, NOTHING

CC = HostCompiler("cc", "cc 12", "c")
TVM = Lowerer("0.27", "0.1.15", "t")


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """A library with its launcher in the wrapper, and one with it beside: for 2 or 3 columns, or any number."""
    folder = tmp_path_factory.mktemp("apart")
    units = []
    for columns in (2, 3, "m"):
        shape = ["n", columns]
        arguments = [tensor(name, "float32", shape, output=name == "z") for name in "xyz"]
        symbols = {size: "int32" for size in shape if isinstance(size, str)}
        data = signature("add", arguments, slug=f"columns-{columns}", symbols=symbols)
        units.append(c_unit(folder, ADD.replace("TYPE", "float"), data))
    for name, text in emit(plan("add", *units, outputs=["z"])).items():
        (folder / "add" / name).write_text(text)
    modules = []
    for apart in (False, True):
        compile_and_link(folder, "add", [unit.host for unit in units], f"{apart}.so", *OPTIMISED, apart=apart)
        modules.append(tvm_ffi.load_module(str(folder / f"{apart}.so")))
    return modules[0], modules[1]


def outcome(call: Callable[[], Any]) -> Any:
    """What a call gives, or the error that it raises."""
    try:
        return np.from_dlpack(call()).tolist()
    except (TypeError, ValueError, RuntimeError) as error:
        return type(error), str(error).partition("\n")[0]


ARRAYS: dict[str, list[Any]] = {
    "a constant size": [np.ones((2, 3), "float32")] * 2,
    "any size": [np.ones((2, 7), "float32")] * 2,
    "no elements": [np.ones((0, 7), "float32")] * 2,
    "too few arguments": [np.ones((2, 3), "float32")],
    "another dtype": [np.ones((2, 3), "float64")] * 2,
    "no array": ["text", np.ones((2, 3), "float32")],
    "another rank": [np.ones(3, "float32")] * 2,
}


@pytest.mark.parametrize("name", ARRAYS)
def test_a_launcher_of_its_own_does_and_says_the_same(both: tuple[Any, Any], name: str) -> None:
    whole, apart = (outcome(lambda m=module: m.get_function("add")(*ARRAYS[name])) for module in both)
    assert apart == whole
    if name in ("a constant size", "any size"):
        assert apart == (np.ones_like(ARRAYS[name][0]) * 2).tolist()
    elif name != "no elements":
        assert "kernel 'add'" in apart[1]


def test_services_and_single_variants_are_there(both: tuple[Any, Any]) -> None:
    for module in both:
        assert module.get_function("kw_supported")(1, 0) == ""
        assert module.get_function("kw_num_threads")() >= 1
        with pytest.raises(ValueError, match="kernel 'add'"):
            module.get_function("add__0")(np.ones((2, 3), "float32"), np.ones((2, 3), "float32"))


def test_outputs_may_have_as_many_dimensions_together_as_they_like(tmp_path: Path) -> None:
    shape = ["n", *[1] * 50]
    outputs = [f"z{number}" for number in range(40)]
    arguments = [tensor("x", "float32", ["n"]), *(tensor(name, "float32", shape, output=True) for name in outputs)]
    unit = c_unit(tmp_path, NOTHING, signature("k", arguments, symbols={"n": "int32"}))
    for name, text in emit(plan("k", unit, outputs=outputs)).items():
        (tmp_path / "k" / name).write_text(text)
    compile_and_link(tmp_path, "k", [unit.host], "k.so", apart=True)
    made = tvm_ffi.load_module(str(tmp_path / "k.so")).get_function("k")(np.ones(3, "float32"))
    assert [tuple(one.shape) for one in made] == [(3, *[1] * 50)] * 40


def test_the_launcher_has_room_for_the_most_arguments() -> None:
    assert f"#define KW_CALL_ARGUMENTS {MAX_ARGUMENTS} " in (LAUNCHER / "kernelwright.h").read_text()


# ---- the stage


def stage_of(folder: Path, cc: HostCompiler = CC, tvm: Lowerer = TVM) -> Stage:
    run: Any = None
    return launcher.make(Context(run, Settings(), Tools(tvm, cc, None), folder, folder, folder, folder))


def test_the_stage_runs_again_for_another_compiler_or_tvm_ffi_and_not_for_another_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = stage_of(tmp_path).fingerprint
    assert stage_of(tmp_path / "other", cc=replace(CC, path="/opt/cc")).fingerprint == before
    assert stage_of(tmp_path, cc=replace(CC, identity="other")).fingerprint != before
    assert stage_of(tmp_path, tvm=replace(TVM, tvm_ffi="0.1.16")).fingerprint != before
    monkeypatch.setattr(launcher, "digest_of", lambda files: "other")
    assert stage_of(tmp_path).fingerprint != before


@pytest.mark.parametrize(
    ("setting", "expected"), [({}, True), ({"split": "arch"}, False), ({"compress": "size"}, False)]
)
def test_a_library_whose_images_are_found_or_unpacked_has_its_launcher_in_the_wrapper(
    setting: dict[str, Any], expected: bool
) -> None:
    assert launcher.fits(replace(Settings(), **setting)) is expected


def test_compiles_at_a_time_make_the_launcher_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    running: list[Stage] = []
    most: list[int] = []

    def attempt(stage: Stage, run: Any) -> KernelwrightError | None:
        running.append(stage)
        most.append(len(running))
        threading.Event().wait(0.05)
        running.pop()
        return None

    monkeypatch.setattr("kernelwright.stages.execution.attempt", attempt)
    run: Any = SimpleNamespace(session=SimpleNamespace(launcher=threading.Lock()))
    threads = [threading.Thread(target=attempt_stage, args=(run, stage_of(tmp_path))) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == [1, 1, 1]
