"""The launcher is compiled once for all kernels: what it has room for, what it is compiled of, and when."""

from __future__ import annotations

import subprocess
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from kernelwright.core.errors import KernelwrightError
from kernelwright.define.settings import Settings
from kernelwright.library.commands import include_flags
from kernelwright.library.launcher import LAUNCHER, interface_sources, launcher_sources
from kernelwright.library.sources import emit
from kernelwright.library.wrapper import MAX_ARGUMENTS
from kernelwright.ondemand.launcher import attempt_stage
from kernelwright.stages import launcher
from kernelwright.stages.context import Context
from kernelwright.stages.stage import Stage
from kernelwright.stages.tools import Tools
from kernelwright.toolchain.host_compiler import HostCompiler
from kernelwright.toolchain.tvm import Lowerer
from launcher_build import c_unit, compile_and_link, include_folders, plan, signature, tensor
from test_launcher import NOTHING

CC = HostCompiler("cc", "cc 12", "c")
TVM = Lowerer("0.27", "0.1.15", "t")


def test_outputs_may_have_as_many_dimensions_together_as_they_like(tmp_path: Path) -> None:
    shape = ["n", *[1] * 50]
    outputs = [f"z{number}" for number in range(40)]
    arguments = [tensor("x", "float32", ["n"]), *(tensor(name, "float32", shape, output=True) for name in outputs)]
    unit = c_unit(tmp_path, NOTHING, signature("k", arguments, symbols={"n": "int32"}))
    for name, text in emit(plan("k", unit, outputs=outputs)).items():
        (tmp_path / "k" / name).write_text(text)
    compile_and_link(tmp_path, "k", [unit.host], "k.so")
    made = tvm_ffi.load_module(str(tmp_path / "k.so")).get_function("k")(np.ones(3, "float32"))
    assert [tuple(one.shape) for one in made] == [(3, *[1] * 50)] * 40


def test_the_launcher_has_room_for_the_most_arguments() -> None:
    assert f"#define KW_CALL_ARGUMENTS {MAX_ARGUMENTS} " in (LAUNCHER / "types.h").read_text()


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


def test_wrappers_are_compiled_with_the_interface_of_the_launcher_and_nothing_else(tmp_path: Path) -> None:
    source = '#define KW_LLVM\n#include "kernelwright.h"\n#include "cutedsl.h"\n#include "exports.h"\n'
    (tmp_path / "wrapper.c").write_text(source)
    folders = include_flags(include_folders())
    command = ["gcc", "-M", "wrapper.c", *folders]
    text = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    found = {Path(word).resolve() for word in text.split() if word.startswith(str(LAUNCHER))}
    assert found == set(interface_sources())


def test_the_launcher_is_compiled_of_its_sources_and_nothing_else(tmp_path: Path) -> None:
    command = ["gcc", "-M", str(LAUNCHER / "launcher.c"), *include_flags(include_folders())]
    text = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
    found = {Path(word).resolve() for word in text.split() if word.startswith(str(LAUNCHER))}
    of_wrappers = {LAUNCHER / name for name in ("exports.h", "cutedsl.h")}
    assert found == set(launcher_sources()) - of_wrappers


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
