"""What of definitions in TileLang needs no TileLang: finding it, its headers, and the data that a launch is made of."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from kernelwright.commands.own_environments import setting_of
from kernelwright.core.errors import Where
from kernelwright.core.signature import TensorMap
from kernelwright.define.arguments import Scalar, Tensor
from kernelwright.define.sizes import Size
from kernelwright.define.unit import Unit
from kernelwright.frontends.declared_launch import lower_launches
from kernelwright.frontends.launches import DeclaredLaunch, Given
from kernelwright.frontends.tilelang.host_reader import UnsupportedError, size_text
from kernelwright.frontends.tilelang.program import PARTS
from kernelwright.toolchain.elsewhere import Elsewhere
from kernelwright.toolchain.nvcc import Nvcc
from kernelwright.toolchain.nvcc_run import NvccJob, ToolHeaders, script
from kernelwright.toolchain.probe import Toolchain
from support.scripts import script as program

TEMPLATES = PARTS.headers


def new_environment(folder: Path) -> Path:
    """An environment that looks as if TileLang was installed in it; its interpreter."""
    site = folder / "lib/python3.12/site-packages"
    (site / "tilelang" / TEMPLATES).mkdir(parents=True)
    (site / "tilelang" / TEMPLATES / "gemm.h").write_text("#pragma once\n")
    for name in ("tilelang-0.1.15", "apache_tvm_ffi-0.1.12", "z3_solver-4.15.4"):
        (site / f"{name}.dist-info").mkdir()
        (site / f"{name}.dist-info/RECORD").write_text("tilelang/jit.py,sha256=abc,1\ntilelang/gemm.hpp,sha256=def,1\n")
    return program(folder / "bin/python", "")


def probed(folder: Path, python: Path | str) -> Elsewhere:
    return Toolchain(folder / "toolchain.json", {}).elsewhere(str(python), PARTS)


def test_tilelang_is_told_by_its_files_wherever_it_is_installed(tmp_path):
    python = new_environment(tmp_path / "one")
    found = probed(tmp_path, python)
    assert (found.version, found.python) == ("0.1.15", str(python))
    assert Path(found.path, TEMPLATES).is_dir()
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert probed(tmp_path, tmp_path / "two/bin/python").identity == found.identity
    for name in (f"tilelang/{TEMPLATES}/gemm.h", "tilelang-0.1.15.dist-info/RECORD"):
        path = tmp_path / "one/lib/python3.12/site-packages" / name
        before = path.read_text()
        path.write_text(before.replace("once", "once ").replace("sha256=def", "sha256=xyz"))
        assert probed(tmp_path, python).identity != found.identity, name
        path.write_text(before)


@pytest.mark.parametrize("setting", ["", "nowhere/python", "python3"])
def test_without_an_environment_it_is_absent_and_the_setting_is_kept_for_the_error(tmp_path, setting):
    found = probed(tmp_path, setting)
    assert (found.version, found.path) == ("absent", "")
    assert bool(found.python) == bool(setting)


def test_the_setting_of_a_project_is_relative_to_its_folder(tmp_path):
    (tmp_path / "pyproject.toml").write_text('[tool.kernelwright]\ntilelang_python = "tilelang/bin/python"\n')
    (tmp_path / "build/kernels").mkdir(parents=True)
    assert setting_of("tilelang_python", tmp_path / "build/kernels") == str(tmp_path / "tilelang/bin/python")
    (tmp_path / "pyproject.toml").write_text('[tool.kernelwright]\ntilelang_python = "~/tl/python"\n')
    assert setting_of("tilelang_python", tmp_path) == "~/tl/python"


def test_headers_of_a_tool_are_found_and_no_script_names_their_folder():
    headers = ToolHeaders("TILELANG", "/opt/tl", ("src", "cutlass/include"), "c++20")
    job = NvccJob("sm_90a", ("-DX=1",), Path(), Where(), headers)
    command = job.arguments("nvcc", "cc", job.output)
    assert "-std=c++20" in command and "-std=c++17" not in command
    folders = ["-I", "/opt/tl/src", "-I", "/opt/tl/cutlass/include"]
    assert command[command.index("-I") : command.index("-DX=1")] == folders
    text = script(job, Nvcc("nvcc", "13.0.88", "", ()))
    assert "TILELANG=${TILELANG:-$(python3 -m kernelwright tool tilelang)}" in text
    assert '-I "$TILELANG"/src' in text and "/opt/tl" not in text
    plain = replace(job, headers=None)
    assert "-std=c++17" in plain.arguments("nvcc", "cc", plain.output)


def test_launches_share_tensors_and_maps_in_any_order():
    """As TileLang's host code has them: a map and a pointer of one tensor, and parameters in an order of their own."""
    declared = {"alpha": Scalar("float32")}
    declared |= {name: Tensor("float16", "m", 64, written=name == "y") for name in "xy"}
    mapped = TensorMap("x", "float16", (64, "m"), (128,), (64, 32), (1, 1), 0, 3, 2, 0)
    sizes = [("blockIdx.x", "((m + 31) // 32)"), ("threadIdx.x", 128)]
    first = DeclaredLaunch("load", {"p0": Given("y"), "p1": mapped, "p2": Size("m", "int64")}, sizes, 4096)
    # TileLang's host code passes all numbers as sizes.
    numbers = {"p0": Given("alpha"), "p1": Size("alpha", "float32")}
    second = DeclaredLaunch("scale", {**numbers, "p2": Given("x"), "p3": Given("y")}, sizes)
    unit = Unit("k", "default", "kw_k__default__cuda", {}, ("y",), "cuda", "sm_90a", "kernels/k.py:1")
    signature = json.loads(lower_launches(declared, [first, second], unit).files["signature.json"])
    assert [kernel["params"] for kernel in signature["device_kernels"]] == [
        ["handle", "tensor_map", "int64"],
        ["float32", "float32", "handle", "handle"],
    ]
    one, two = signature["launches"]
    assert one["params"] == [{"tensor": "y"}, {"tensor_map": 0}, {"scalar": "m", "dtype": "int64"}]
    assert two["params"] == [*[{"scalar": "alpha", "dtype": "float32"}] * 2, {"tensor": "x"}, {"tensor": "y"}]
    assert (one["grid"], one["shared"], two["shared"]) == (["(m + 31) // 32", 1, 1], 4096, 0)
    (described,) = signature["tensor_maps"]
    assert (described["sizes"], described["swizzle"], described["promotion"]) == ([64, "m"], 3, 2)
    assert {a["name"]: a.get("alignment") for a in signature["arguments"]} == {"alpha": None, "x": 16, "y": None}


def test_what_host_code_computes_of_sizes_becomes_an_expression_with_the_same_value() -> None:
    from tvm import tirx

    n, m = tirx.Var("n", "int32"), tirx.Var("m", "int32")
    either = (lambda n, m: (n + 127) // 128 * m, lambda n, m: (n - 1) % m)
    computed = [(of(n, m), of) for of in either]
    computed += [(tirx.min(n, m * 3), lambda n, m: min(n, m * 3)), (tirx.max(n, m), lambda n, m: max(n, m))]
    computed += [(tirx.truncdiv(n, m), lambda n, m: n // m), (tirx.truncmod(n, m), lambda n, m: n % m)]
    for expression, of in [*computed, (n.astype("int64"), lambda n, m: n)]:
        text = size_text(expression, lambda variable: str(variable.name))
        for values in ({"n": 1000, "m": 9}, {"n": 3, "m": 64}):
            assert eval(text, {"min": min, "max": max}, values) == of(**values), text
    with pytest.raises(UnsupportedError, match="which is no arithmetic of sizes"):
        size_text(n.astype("float32") == 1, str)
