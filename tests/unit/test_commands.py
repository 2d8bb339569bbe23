"""The command ``kernelwright``: its exit status, the tools that scripts ask it for, and the project that it makes."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright.cli import main
from kernelwright.commands import doctor as doctor_module
from kernelwright.commands import tool as tool_module
from kernelwright.commands import verify as verify_module
from kernelwright.commands.doctor import doctor
from kernelwright.commands.init import HIDDEN, LANGUAGES, make_project
from kernelwright.commands.tool import TOOLS, print_tool
from kernelwright.commands.verify import LONGEST_PROBLEM, MOST_PROBLEMS
from kernelwright.core.arch import FAMILIES, native_family
from kernelwright.core.errors import KernelwrightError, SettingsError, ToolchainError, Where
from kernelwright.core.records import Record
from kernelwright.toolchain.distribution import Distribution
from kernelwright.toolchain.elsewhere import Elsewhere
from kernelwright.toolchain.pytorch import Torch

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


OWN = native_family()
(OTHER,) = FAMILIES.keys() - {OWN}


def missing(*arguments: Any) -> Any:
    raise ToolchainError("there is none", Where(stage="settings"), "install it")


def nvcc_at(path: str, *archs: str) -> SimpleNamespace:
    return SimpleNamespace(path=path, version="13.0.88", name="nvcc", archs=archs)


def toolchain(**replaced: Any) -> Any:
    """Tools that are all found, but for some."""
    compiler = SimpleNamespace(path="/usr/bin/cc", version="cc 12")
    found = {
        "lowerer": lambda: SimpleNamespace(tvm="0.27.0", tvm_ffi="0.1.15"),
        "host_compiler": lambda setting: compiler,
        "cross_compiler": lambda family, named, glibc: SimpleNamespace(
            path=f"/usr/bin/{family}-cc", version=f"cc 13 for {family}", brings_glibc=False
        ),
        "nvcc": lambda setting, cc, release="": nvcc_at("/cuda/bin/nvcc"),
        "nvcc_programs": lambda nvcc, cc: SimpleNamespace(obstacle=""),
        "nvrtc": lambda release="": SimpleNamespace(
            name="NVRTC", archs=(), library="/cuda/lib/libnvrtc.so.13", include="/cuda/include", version="13.0.88"
        ),
    }
    found["elsewhere"] = lambda setting, parts: Elsewhere("0.1.15", "", "/tl/bin/python", "/tl/tilelang")
    found["distribution"] = lambda name: Distribution("3.9.0", "")
    return SimpleNamespace(**{**found, **replaced})


@pytest.fixture(autouse=True)
def _torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """PyTorch for CUDA, with what its headers include."""
    for name in ("cuda/include/cublas_v2.h", "cuda/include/cusolverDn.h", "cuda/include/cusparse.h"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("")
    monkeypatch.setattr(doctor_module, "find_torch", lambda where: Torch("2.13.0", "", tmp_path / "torch/lib"))


def test_the_doctor_says_what_sources_for_pytorch_lack(capsys, tmp_path, monkeypatch):
    (tmp_path / "cuda/include/cusparse.h").unlink()
    assert doctor(toolchain(nvcc=lambda *given: nvcc_at(f"{tmp_path}/cuda/bin/nvcc"))) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("torch")]
    lacking = "cusparse.h (pip install nvidia-cusparse); "
    assert line.startswith(f"torch: 2.13.0; sources that include ATen/cuda/CUDAContext.h lack {lacking}")
    monkeypatch.setattr(doctor_module, "find_torch", missing)
    assert doctor(toolchain()) == 0
    assert "torch: there is none; only sources for PyTorch need it: pip install 'torch>=2.4'" in capsys.readouterr().out


def test_the_doctor_names_every_tool_and_ends_with_0_if_all_that_is_needed_is_there(capsys, tmp_path, monkeypatch):
    nvcc = f"{tmp_path}/cuda/bin/nvcc"
    monkeypatch.setattr(doctor_module.plugins, "installed", lambda kind: [])
    program(tmp_path / "uv", "uv 0.13.9 (x86_64)")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert doctor(toolchain(nvcc=lambda *given: nvcc_at(nvcc))) == 0
    assert capsys.readouterr().out.splitlines() == [
        "tvm: 0.27.0",
        "tvm-ffi: 0.1.15",
        "host compiler: cc 12",
        f"cross compiler: cc 13 for {OTHER}",
        f"nvcc: 13.0.88 at {nvcc}",
        "nvrtc: 13.0.88 at /cuda/lib/libnvrtc.so.13",
        "torch: 2.13.0",
        f"triton: 3.9.0 at {sys.executable}",
        "tilelang: 0.1.15 at /tl/bin/python",
        f"uv: 0.13.9 at {tmp_path}/uv",
    ]


def program(path: Path, text: str) -> None:
    """Write a program that prints a text."""
    path.write_text(f"#!/bin/sh\necho '{text}'\n")
    path.chmod(0o755)


def test_the_doctor_says_whether_uv_knows_wheel_variants(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    for said in ("there is none on PATH", f"the one at {tmp_path}/uv does not know wheel variants"):
        assert doctor(toolchain()) == 0
        assert f"uv: {said}; only machines that install wheel variants need it" in capsys.readouterr().out
        program(tmp_path / "uv", "uv 0.13.5")


def test_the_doctor_warns_of_an_nvcc_that_is_known_to_compile_wrong_code(capsys):
    assert doctor(toolchain(nvcc=lambda *given: nvcc_at("nvcc", "sm_90", "sm_100", "sm_100a"))) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "warning" in line]
    assert line.startswith("  warning: nvcc 13.0.88 is known to compile wrong code for sm_100: ")


def test_the_doctor_finds_no_triton_where_the_setting_names_none_though_there_is_one_here(
    capsys, monkeypatch, tmp_path
):
    (tmp_path / "pyproject.toml").write_text('[tool.kernelwright]\ntriton_python = "none/bin/python"\n')
    monkeypatch.chdir(tmp_path)
    doctor(toolchain(elsewhere=lambda setting, parts: Elsewhere("absent", "", setting, "")))
    said = f"triton: {tmp_path}/none/bin/python, the setting triton_python, has no Triton; "
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("tool", "status", "line"),
    [
        ("lowerer", 1, "tvm-ffi: [settings]: there is none"),
        ("host_compiler", 1, "host compiler: [settings]: there is none"),
        ("nvcc", 1, "nvcc: [settings]: there is none"),
        ("cross_compiler", 0, f"cross compiler: there is none; only archs of {OTHER} need it: install it"),
        ("nvrtc", 0, "nvrtc: there is none; only cuda_compiler = nvrtc needs it: pip install 'kernelwright[nvrtc]'"),
    ],
)
def test_the_doctor_ends_with_1_if_a_tool_is_missing_that_every_build_needs(capsys, tool, status, line):
    assert doctor(toolchain(**{tool: missing})) == status
    shown = capsys.readouterr().out
    assert line in shown.splitlines() and "tvm:" in shown and "nvrtc:" in shown, "the others are shown all the same"


def test_each_tool_is_the_one_that_scripts_mean_by_its_name(capsys, monkeypatch):
    monkeypatch.setattr(tool_module, "find_fatbinary", lambda nvcc: f"{nvcc.path}/../fatbinary")
    monkeypatch.setattr(tool_module, "cuda_runtime", lambda nvcc, where, family: f"{nvcc.path}/{family}")
    printed = {}
    for name in (*TOOLS, "tilelang"):
        assert print_tool(toolchain(), name) == 0
        printed[name] = capsys.readouterr().out.strip()
    for folder, file in (
        ("launcher", "kernelwright.h"),
        ("tvm_ffi", "tvm/ffi/c_api.h"),
        ("dlpack", "dlpack/dlpack.h"),
        ("python_include", "."),
    ):
        assert Path(printed.pop(folder), file).exists(), folder
    assert Path(printed.pop("nvrtc_compile")).name == "nvrtc_compile.py"
    assert printed == {
        **{"nvcc": "/cuda/bin/nvcc", "fatbinary": "/cuda/bin/nvcc/../fatbinary"},
        **{"cuda_runtime": f"/cuda/bin/nvcc/{OWN}", "cc": "/usr/bin/cc", "python": sys.executable},
        **{f"cuda_runtime_{family}": f"/cuda/bin/nvcc/{family}" for family in FAMILIES},
        **{f"cc_{OWN}": "/usr/bin/cc", f"cc_{OTHER}": f"/usr/bin/{OTHER}-cc"},
        **{"nvrtc": "/cuda/lib/libnvrtc.so.13", "cuda_include": "/cuda/include", "tilelang": "/tl/tilelang"},
    }
    found = toolchain(
        nvrtc=lambda release="13.0": SimpleNamespace(library=f"{release}/lib", include=f"{release}/include")
    )
    assert print_tool(found, "nvrtc", "12.8") == print_tool(found, "cuda_include", "12.8") == 0
    assert capsys.readouterr().out.split() == ["12.8/lib", "12.8/include"]


def test_a_tool_that_is_not_there_is_an_error_and_prints_no_path(capsys, monkeypatch):
    monkeypatch.setattr(tool_module, "Toolchain", lambda *found: toolchain(nvcc=missing))
    assert main(["tool", "nvcc"]) == 1
    shown = capsys.readouterr()
    assert shown.out == "" and "there is none" in shown.err


@pytest.mark.parametrize("arguments", [[], ["build"], ["tool"], ["tool", "ld"], ["verify"], ["init"]])
def test_wrong_usage_ends_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as caught:
        main(arguments)
    assert caught.value.code == 2


def test_the_help_of_a_command_says_what_it_does(capsys):
    with pytest.raises(SystemExit):
        main(["diff", "--help"])
    assert "Say what differs between two wheels" in capsys.readouterr().out


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """Wheels by name, with the problems of each; ``together`` has those of all."""
    found: dict[str, Any] = {"together": []}

    def verify_wheel(path: Path, private: Any = (), own_points: bool = False) -> list[str]:
        problems: list[str] | KernelwrightError = found[path.name]
        if isinstance(problems, KernelwrightError):
            raise problems
        return problems

    monkeypatch.setattr(verify_module, "verify_wheel", verify_wheel)
    monkeypatch.setattr(verify_module, "verify_together", lambda paths: found["together"] if len(paths) > 1 else [])
    monkeypatch.setattr(verify_module, "gaps_of", lambda path: [])
    monkeypatch.setattr(verify_module, "manifest_of", lambda path: Record({"arch": "sm_80", "driver": "12.8"}, ""))
    return found


def test_wheels_that_are_well_end_with_0_and_each_problem_with_1(wheels, capsys):
    wheels |= {
        **{"a.whl": [], "b.whl": [], "bad.whl": ["it is damaged"], "none.whl": KernelwrightError("none.whl: is none")}
    }
    assert main(["verify", "a.whl", "b.whl"]) == 0
    driver = "  driver: 570.26 (CUDA 12.8) or newer for sm_80\n"
    assert capsys.readouterr() == (f"a.whl: all well\n{driver}b.whl: all well\n{driver}", "")
    assert main(["verify", "a.whl", "bad.whl"]) == 1
    assert capsys.readouterr() == (f"a.whl: all well\n{driver}", "kernelwright: bad.whl: it is damaged\n")
    assert main(["verify", "none.whl", "a.whl"]) == 1
    assert capsys.readouterr() == (f"a.whl: all well\n{driver}", "kernelwright: none.whl: is none\n")
    wheels["together"] = ["they are of two builds"]
    assert main(["verify", "a.whl", "b.whl"]) == 1
    assert capsys.readouterr() == ("", "kernelwright: they are of two builds\n")


def test_problems_are_one_line_each_of_bounded_length_and_number(wheels, capsys):
    wheels["bad.whl"] = ["first\nsecond\x1b", "x" * 5000] + ["more"] * MOST_PROBLEMS
    assert main(["verify", "bad.whl"]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "kernelwright: bad.whl: first\\nsecond\\x1b"
    assert len(lines[1]) == len("kernelwright: ") + LONGEST_PROBLEM
    assert len(lines) == MOST_PROBLEMS + 1 and lines[-1] == "kernelwright: and 2 problems more"
    wheels["bad.whl"] = ["one"] * MOST_PROBLEMS
    main(["verify", "bad.whl"])
    assert "problems more" not in capsys.readouterr().err


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_new_project_has_its_name_and_that_of_its_package_where_each_belongs(tmp_path, language):
    folder = make_project(str(tmp_path / "elsewhere/Acme-Kernels.fast"), LANGUAGES[language])
    assert folder == tmp_path / "elsewhere/Acme-Kernels.fast"
    document = tomllib.loads((folder / "pyproject.toml").read_text())
    assert document["project"]["name"] == "Acme-Kernels.fast"
    assert document["tool"]["kernelwright"]["package"] == "acme_kernels_fast"
    texts = {path: path.read_text() for path in folder.rglob("*") if path.is_file()}
    assert not [path for path, text in texts.items() if re.search("@[A-Z_]+@", text)]
    assert any("acme_kernels_fast" in text for path, text in texts.items() if path.suffix == ".py")
    definition = (folder / "kernels/scale_add.py").read_text()
    assert f'frontend="{language}"' in definition or (language == "tir" and "frontend" not in definition)
    assert not {path.name for path in folder.iterdir()} & set(HIDDEN), "these are hidden in a project"


def test_an_empty_folder_is_taken_and_what_is_in_one_stays_and_the_command_ends_with_1(tmp_path, monkeypatch, capsys):
    (tmp_path / "acme").mkdir()
    monkeypatch.chdir(tmp_path / "acme")
    assert (make_project(".") / "SConstruct").exists() and 'name = "acme"' in Path("pyproject.toml").read_text()
    monkeypatch.chdir(tmp_path)
    for name in ("taken", "file"):
        with pytest.raises(SettingsError, match="a file, or a folder that is not empty, has this name"):
            if name == "taken":
                (tmp_path / name).mkdir()
                (tmp_path / name / "pyproject.toml").write_text("mine")
            else:
                (tmp_path / name).write_text("mine")
            make_project(name)
    assert (tmp_path / "taken/pyproject.toml").read_text() == "mine" and len(list((tmp_path / "taken").iterdir())) == 1
    assert main(["init", "numpy"]) == 1 and "would take the name" in capsys.readouterr().err
    assert main(["init", "new"]) == 0 and "new is made. Next:\ncd new" in capsys.readouterr().out
    assert main(["init", "new"]) == 1 and "is not empty, has this name" in capsys.readouterr().err


def test_a_reader_that_has_seen_enough_sees_no_traceback() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "kernelwright", "tool", "python"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, "")
