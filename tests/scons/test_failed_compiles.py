"""What a compile on demand leaves when it fails, and how large its cache may become."""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path

from support.demand import READY
from support.forked import starter
from support.project import SITE_SCONS, Project

BROKEN = """#!/bin/sh
case "$*" in *wrapper.c*) echo broken >&2; exit 1;; esac
exec gcc "$@"
"""

COMPILE = """
from kernelwright.core.errors import KernelwrightError
from kernelwright.ondemand.files import load
try:
    print(load("kernels/add_one.py").add_one.compile().artifacts)
except KernelwrightError as error:
    print(error)
"""


def compile_on_demand(project: Project, cache: Path, **variables: str) -> str:
    return started(project, cache, **variables).stdout


def started(project: Project, cache: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KERNELWRIGHT_CACHE_DIR": str(cache), "PYTHONPATH": str(SITE_SCONS), **variables}
    done = starter("support.tvm_ready").run(f"{READY}{COMPILE}", env=environment, cwd=project.folder)
    assert done.returncode == 0, done.stderr
    return done


def test_a_failed_compile_leaves_its_sources_and_its_log_where_the_error_says(
    cpu_project: Project, tmp_path: Path
) -> None:
    cache = tmp_path / "cache"
    compiler = cpu_project.write("bin/cc", BROKEN)
    compiler.chmod(0o755)
    text = compile_on_demand(cpu_project, cache, PATH=f"{compiler.parent}:{os.environ['PATH']}")
    found = re.search(r"its sources and its log are in (\S+)", text)
    assert found and "broken" in text, text
    folder = Path(found[1])
    assert folder.parent == cache / "failed" and folder.name.startswith("add_one-default-")
    assert "broken" in (folder / "log.txt").read_text()
    assert list(folder.rglob("wrapper.c")) and list(folder.rglob("module.tir"))
    assert not list((cache / "scratch").iterdir())
    made = compile_on_demand(cpu_project, cache)
    assert Path(made.strip()).is_dir(), "with a compiler that works"


def test_the_cache_is_kept_within_its_size(cpu_project: Project, tmp_path: Path) -> None:
    cpu_project.replace("pyproject.toml", "[tool.kernelwright]\n", '[tool.kernelwright]\ncache_size = "1K"\n')
    cache = tmp_path / "cache"
    assert Path(compile_on_demand(cpu_project, cache).strip()).is_dir(), "what is in use stays"
    for path in (cache / "stages").glob("??/*"):
        os.utime(path, (1, 1))
    cpu_project.replace("kernels/add_one.py", "1.0", "2.0")
    compile_on_demand(cpu_project, cache)
    assert all(path.stat().st_mtime > 1 for path in (cache / "stages").glob("??/*"))


def test_a_cache_that_cannot_be_written_and_a_variable_that_does_not_exist_are_pointed_out_once(
    cpu_project: Project,
) -> None:
    done = started(cpu_project, Path("/proc/kernelwright"), KERNELWRIGHT_ARCH="sm_90a")
    assert done.stdout.strip().startswith(f"{tempfile.gettempdir()}/kernelwright-"), "it is compiled all the same"
    assert not Path(done.stdout.strip()).exists()
    first, second = [line for line in done.stderr.splitlines() if line.startswith("kernelwright: ")]
    assert first.endswith(
        "KERNELWRIGHT_ARCH has no effect: there is no such variable; did you mean KERNELWRIGHT_ARCHS?"
    )
    assert second.startswith("kernelwright: the cache folder /proc/kernelwright cannot be written: ")
