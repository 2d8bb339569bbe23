"""The launcher, one library for all kernels of a package: who shares it, and what it is made of."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from kernelwright.backends.commands import include_flags
from kernelwright.backends.launcher import LAUNCHER, OLDER, interface_sources, launcher_sources
from kernelwright.backends.sources import emit
from kernelwright.backends.wrapper import MAX_ARGUMENTS
from kernelwright.define.settings import Settings
from kernelwright.ondemand.launcher import attempt_stage
from kernelwright.stages import launcher
from kernelwright.stages.context import Context
from kernelwright.stages.stage import Stage
from kernelwright.stages.tools import Tools
from kernelwright.toolchain.host_compiler import HostCompiler
from kernelwright.toolchain.tvm import Lowerer
from support.launcher_build import build, c_unit, compile_and_link, include_folders, link_apart, plan, signature, tensor
from test_launcher import NOTHING, in_process

CC = HostCompiler("cc", "cc 12", "c")
TVM = Lowerer("0.27", "0.1.15", "t")


INNER = "BEGIN (void)argument; END"

OUTER = """
extern __attribute__((weak)) int (*__TVMFFIEnvModLookupFromImports)(void *, const char *, void **);
extern __attribute__((weak)) int (*__TVMFFIFunctionCall)(void *, TVMFFIAny *, int32_t, TVMFFIAny *);
BEGIN
  TVMFFIAny none = {0};
  void *inner;
  if (__TVMFFIEnvModLookupFromImports(NULL, "test.inner", &inner)) return -1;
  if (__TVMFFIFunctionCall(inner, (TVMFFIAny *)argument, 1, &none)) return -1;
  if (!__TVMBackendAllocWorkspace(1, 0, UINT64_MAX, 0, 8)) return -1;
END
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two kernels: libraries in ``one``, with a launcher beside them, and in ``two``, with one of another digest."""
    made = tmp_path_factory.mktemp("shared")
    for name, body in (("inner", INNER), ("outer", OUTER)):
        unit = c_unit(made, body, signature(name, [tensor("x", "int8", [1])]))
        build(made, plan(name, unit))
        for place, digest in (("one", "1" * 16), ("two", "2" * 16)):
            launcher = link_apart(made, name, [unit.host], f"{name}-{place}.so", digest)
            (made / place).mkdir(exist_ok=True)
            (made / f"{name}-{place}.so").rename(made / place / f"{name}.so")
            launcher.rename(made / place / launcher.name)
    return made


LOADED = """
import re
modules = [tvm_ffi.load_module(path) for path in sys.argv[1:]]
for module in modules:
    name = next(name for name in ("inner", "outer") if module.implements_function(name))
    try:
        module[name]()
    except TypeError as error:
        print(str(error).partition(":")[0])
print(sorted({path for path in re.findall(r"/\\S+/(libkernelwright-\\S+)", open("/proc/self/maps").read())}))
"""


def test_libraries_share_a_launcher_of_one_name_and_no_other(folder: Path, tmp_path: Path) -> None:
    """Also where copies of it are in several folders, as in two packages of one version of Kernelwright."""
    moved = shutil.copytree(folder / "one", tmp_path / "moved")
    one, two = (f"libkernelwright-{digit * 16}.so" for digit in "12")
    for paths, launchers in (
        ([folder / "one/inner.so", folder / "one/outer.so", moved / "inner.so"], [one]),
        ([folder / "two/inner.so", folder / "one/outer.so"], [one, two]),
    ):
        *names, found = in_process(LOADED, *paths).stdout.splitlines()
        assert names == [f"kernel '{path.stem}'" for path in paths]
        assert found == str(launchers)


def test_a_launcher_that_is_visible_to_all_takes_no_calls_of_other_libraries(folder: Path) -> None:
    """Something in the process may have loaded it so that its functions stand before those of any library."""
    code = "import sys, ctypes\nsys.modules['torch'] = None\nimport tvm_ffi\n"  # which would import it, for seconds
    code += "ctypes.CDLL(sys.argv[1], ctypes.RTLD_GLOBAL)\ntvm_ffi.load_module(sys.argv[2])"
    one = folder / f"one/libkernelwright-{'1' * 16}.so"
    command, environment = [sys.executable, "-c", code, one, folder / "two/inner.so"], {"LD_DEBUG": "bindings"}
    said = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=True).stderr
    bound = set(re.findall(r"binding file \S+/two/inner.so \[0\] to (\S+) \[0\]: normal symbol `kw_", said))
    assert bound == {str(folder / f"two/libkernelwright-{'2' * 16}.so")}


def test_a_library_without_its_launcher_is_not_loaded(folder: Path, tmp_path: Path) -> None:
    library = shutil.copy(folder / "one/inner.so", tmp_path)
    with pytest.raises(RuntimeError, match=f"libkernelwright-{'1' * 16}.so: cannot open shared object file"):
        tvm_ffi.load_module(str(library))


@pytest.mark.parametrize("place", ["one", "two"])
def test_an_error_names_the_kernel_that_has_called_another_one(folder: Path, place: str) -> None:
    inner = tvm_ffi.load_module(str(folder / "one/inner.so"))["inner"]
    tvm_ffi.register_global_func("test.inner", inner, override=True)
    outer = tvm_ffi.load_module(str(folder / place / "outer.so"))["outer"]
    with pytest.raises(ValueError, match="kernel 'outer': the size of a workspace is negative, or too large"):
        outer(np.zeros(1, "int8"))


def test_the_launcher_has_room_for_the_most_arguments_and_for_outputs_of_many_dimensions(tmp_path):
    shape = ["n", *[1] * 50]
    outputs = [f"z{number}" for number in range(40)]
    arguments = [tensor("x", "float32", ["n"]), *(tensor(name, "float32", shape, output=True) for name in outputs)]
    unit = c_unit(tmp_path, NOTHING, signature("k", arguments, symbols={"n": "int32"}))
    for name, text in emit(plan("k", unit, outputs=outputs)).items():
        (tmp_path / "k" / name).write_text(text)
    compile_and_link(tmp_path, "k", [unit.host], "k.so")
    made = tvm_ffi.load_module(str(tmp_path / "k.so")).get_function("k")(np.ones(3, "float32"))
    assert [tuple(one.shape) for one in made] == [(3, *[1] * 50)] * 40
    assert f"#define KW_CALL_ARGUMENTS {MAX_ARGUMENTS} " in (LAUNCHER / "types.h").read_text()


def stage_of(folder: Path, cc: HostCompiler = CC, tvm: Lowerer = TVM) -> Stage:
    run: Any = None
    return launcher.make(Context(run, Settings(), Tools(tvm, cc, None), folder, folder, folder, folder), None)


def test_wrappers_and_the_launcher_are_compiled_of_their_sources_and_nothing_else(tmp_path: Path) -> None:
    def compiled_of(source: object) -> set[Path]:
        command = ["gcc", "-M", str(source), *include_flags(include_folders())]
        text = subprocess.run(command, cwd=tmp_path, check=True, capture_output=True, text=True).stdout
        return {Path(word).resolve() for word in text.split() if word.startswith(str(LAUNCHER))}

    headers = ("kernelwright", "cutedsl", "exports")
    (tmp_path / "wrapper.c").write_text("#define KW_LLVM\n" + "".join(f'#include "{name}.h"\n' for name in headers))
    assert compiled_of("wrapper.c") == set(interface_sources())
    of_others = {LAUNCHER / f"{name}.h" for name in headers[1:]} | {OLDER}
    assert compiled_of(LAUNCHER / "launcher.c") == set(launcher_sources()) - of_others


def test_compiles_at_a_time_make_the_launcher_one_after_the_other(tmp_path, monkeypatch):
    session = SimpleNamespace(launcher=threading.Lock())
    made: list[bool] = []
    monkeypatch.setattr(
        "kernelwright.stages.execution.attempt", lambda stage, run: made.append(session.launcher.locked())
    )
    run: Any = SimpleNamespace(session=session)
    attempt_stage(run, stage_of(tmp_path))
    assert made == [True] and not session.launcher.locked()
