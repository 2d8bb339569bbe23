"""``scons check`` for CPUs of another family: it runs the libraries in a Python for them, which qemu runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from support.arm import CROSS, NO_ARM, NO_CROSS, QEMU, ROOT, can_build_on_arm
from support.project import ADD, SCALE, Project

pytestmark = [
    pytest.mark.skipif(CROSS is None, reason=NO_CROSS),
    pytest.mark.skipif(os.uname().machine != "x86_64", reason="aarch64 is the other family"),
]

SETTINGS = '[tool.kernelwright]\ntargets = ["llvm"]\narchs = ["x86-64-v3", "armv8-a", "neoverse-n1"]\n'

WRONG_THERE = ADD.replace("return x + 1\n", 'return x + 1 + (platform.machine() == "aarch64")\n')


def script(path: Path, *lines: str) -> str:
    """The setting for a script in place of a Python."""
    path.write_text("\n".join(["#!/bin/sh", *lines, ""]))
    path.chmod(0o755)
    return f"CROSS_PYTHONS=aarch64={path}"


def qemu(cpu: str) -> str:
    return f'exec {QEMU} -cpu {cpu} -L {ROOT} {ROOT}/usr/bin/python3.11 "$@"'


@pytest.mark.skipif(not can_build_on_arm(), reason=NO_ARM)
def test_libraries_for_other_cpus_are_checked_where_they_run(tmp_path: Path) -> None:
    project = Project.of(tmp_path / "project", SETTINGS, scale=SCALE, add_one=f"import platform\n{WRONG_THERE}")
    project.scons("-j2")
    assert "what is built for aarch64 is not checked: run scons check there, or name" in project.scons("check").output

    python = script(tmp_path / "python", qemu("neoverse-n1"))
    failed = project.scons("check", "-k", python, ok=False)
    checks = ["add_one/default", "scale/dtype-float16", "scale/dtype-float32"]
    assert failed.stages == [f"CHECK {check} cpu (aarch64)" for check in checks]
    assert "y differs from the reference at n=33 on cpu" in failed.errors["add_one"], failed.output
    assert "kernels/add_one.py:" in failed.errors["add_one"] and failed.counts[2] == 1

    (project.folder / "kernels/add_one.py").unlink()
    assert project.scons("check", python).stages == []
    script(tmp_path / "python", 'case "$*" in *kernelwright*) exit 1;; esac', qemu("cortex-a57"))
    again = project.scons("check", "-k", python, ok=False)
    assert again.stages == failed.stages[1:], "another CPU may run other code"


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("gcc", "cross_pythons has 'gcc', expected <family>=<interpreter>"),
        ("aarch64=python,aarch64=python3", "cross_pythons names 2 interpreters for aarch64"),
        ("aarch64=no-python", "names 'no-python' for aarch64, and there is no such program"),
        (f"aarch64={sys.executable}", "which is for x86_64"),
        ("aarch64=/bin/echo", "which does not run Python"),
        ("aarch64=/bin/false", "/bin/false ended with exit status 1"),
    ],
)
def test_a_python_that_cannot_check_is_an_error_before_anything_is_built(tmp_path: Path, named: str, said: str) -> None:
    project = Project.of(tmp_path, SETTINGS, add_one=ADD)
    failed = project.scons("check", f"CROSS_PYTHONS={named}", ok=False)
    assert said in failed.output and "[settings]" in failed.output and "remedy: " in failed.output, failed.output
    assert failed.stages == []


def test_a_python_without_tvm_is_an_error_that_names_what_it_lacks(tmp_path: Path) -> None:
    project = Project.of(tmp_path / "project", SETTINGS, add_one=ADD)
    answer = """echo '["aarch64", "3.11", [0, 0], {"numpy-2.4.6.dist-info": "0"}]'"""
    said = project.scons("check", script(tmp_path / "python", answer), ok=False).output
    assert "which does not have apache_tvm, apache_tvm_ffi, ml_dtypes" in said
    assert "name a Python for aarch64 that has apache_tvm, apache_tvm_ffi, numpy, ml_dtypes" in said
