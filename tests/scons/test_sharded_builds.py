"""``scons --shard`` and ``kernelwright merge``: the same package and wheel as one build makes."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from kernelwright import cli
from kernelwright.core.shard import Shard
from kernelwright.define.recorded import text_of
from kernelwright.state.cache import BuildCache
from support import tuned
from support.project import ADD, CUBE, NO_TOOLS, SCALE, SCONSTRUCT, Project, Run, new_project, once

SETTINGS = """\
[project]
name = "demo-kernels"
version = "1.0"

[tool.kernelwright]
archs = ["x86-64-v3", "sm_80"]
backends = ["tvm_ffi", "cython", "cuda_core", "torch", "jax"]
split = "arch"
"""

COUNT = 3
SHARDS = [Shard(number, COUNT) for number in range(1, COUNT + 1)]
KERNELS = {"add_one": 2, "cube": 1, "cube_backward": 3, "scale": 2, "scaled": 1}
"""Each kernel with its shard. That of `cube` also has the definition of `cube_backward`."""


def write(folder: Path) -> Project:
    """A project with tuning tables, a backward kernel, device code in wheels of its own, and every backend."""
    project = Project(folder)
    project.write("SConstruct", SCONSTRUCT + 'env.KernelWheel("demo")\n')
    project.write("pyproject.toml", SETTINGS)
    calls = 'backends=["tvm_ffi", "cuda_core", "torch", "jax"], '  # Cython takes two seconds for each kernel
    cpu = 'targets=["llvm"], '
    kernels = {
        "scale": (SCALE, calls),
        "cube": (CUBE, calls),
        "add_one": (ADD, calls + cpu),
        "scaled": (tuned.SCALED, cpu),
    }
    for name, (text, more) in kernels.items():
        single = re.sub(r'"float32", "float\d+"', '"float32"', text)
        project.write(f"kernels/{name}.py", single.replace("@kernel(", f"@kernel({more}"))
    project.write(tuned.FILE, tuned.SMALL_AND_LARGE)
    return project


def merged(project: Project, *words: str, ok: bool = True) -> Run:
    """What ``kernelwright merge`` gives in a project: its exit status is that of scons, but 1 in place of 2."""
    run = project.scons(*command_of(words), ok=ok)
    return Run(run.status, run.output)


def command_of(words: Iterable[str]) -> list[str]:
    """The arguments with which ``kernelwright merge`` runs scons."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        commands.append(command)
        return type("Done", (), {"returncode": 0})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("subprocess.run", run)
        assert cli.main(["merge", *words]) == 0
    (command,) = commands
    assert command[:3] == [sys.executable, "-m", "SCons"]
    return command[3:]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one build, and with the build caches of all shards, which tests must not change."""

    def make(folder: Path) -> None:
        write(folder / "one").scons("-j2", "wheel")
        for shard in SHARDS:
            project = write(folder / f"project-{shard.number}")
            run = project.scons("-j2", "--shard", str(shard), f"CACHE_DIR={folder}/shard-{shard.number}")
            own = sorted(name for name, number in KERNELS.items() if number == shard.number)
            noun = f"{len(own)} kernel{'s' * (len(own) > 1)}"
            assert f"kernelwright: shard {shard} of demo has {noun}\n" in run.output
            linked = {line.split()[1] for line in run.stages if line.startswith("LINK")}
            assert sorted(linked) == own and "PACKAGE" not in run.labels
            assert not (project.folder / "build/demo").exists()
            lowered = {line.split()[1].partition("/")[0] for line in run.stages if line.startswith("LOWER")}
            assert sorted(lowered) == own

    return once(tmp_path_factory, "sharded-builds", make)


def caches(built: Path, *numbers: int) -> list[str]:
    return [str(built / f"shard-{number}") for number in numbers]


def test_merged_shards_give_the_bytes_of_one_build_and_start_no_compiler(built, tmp_path, capsys):
    project = write(tmp_path / "merged")
    project.write("SConstruct", NO_TOOLS + (project.folder / "SConstruct").read_text())
    run = merged(project, *caches(built, 1, 2, 3), "--", "wheel")
    assert set(run.labels) == {"CACHED", "PACKAGE", "WHEEL"}
    assert "kernelwright: what is not in the build cache is taken from the shards 1/3, 2/3, 3/3\n" in run.output
    one = Project(built / "one")
    assert len(one.files("dist")) == 2, "the package, and its device code"
    for folder in ("build/demo", "build/kernels", "dist"):
        assert project.files(folder) == one.files(folder), folder
    wheels = sorted(map(str, (project.folder / "dist").iterdir()))
    assert [cli.main(["diff", str(one.folder / "dist" / Path(wheel).name), wheel]) for wheel in wheels] == [0, 0]
    assert cli.main(["diff", wheels[0], str(one.folder / "build/demo")]) == 0
    said = capsys.readouterr().out.splitlines()
    assert said == [f"kernels: 0 added, 0 removed, 0 changed, {number} as before" for number in (5, 1, 5)]
    project.kernelwright("merge", *caches(built, 1))  # what is there already needs no shard


def test_a_missing_shard_is_named_with_its_kernels_and_can_be_built(built: Path, tmp_path: Path) -> None:
    project = write(tmp_path / "merged")
    said = project.kernelwright("merge", *caches(built, 1, 3), status=1)
    assert "scons: *** [merge]: the shards lack 2 kernels of demo" in said
    assert "shard 2/3, which was not merged: add_one, scale" in said
    assert not (project.folder / "build/demo").exists() and "[ LOWER ]" not in said
    run = merged(project, "--build-missing", *caches(built, 1, 3), "--", "-j2")
    lowered = {line.split()[1].partition("/")[0] for line in run.stages if line.startswith("LOWER")}
    assert lowered == {"add_one", "scale"}
    assert project.files("build/demo") == Project(built / "one").files("build/demo")


def test_a_damaged_entry_is_reported_and_its_kernel_named(built: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(built / "shard-2", tmp_path / "shard-2"))
    entries = [path for _, _, path in BuildCache(folder, 0).entries()]
    (damaged,) = (path for path in entries if b'"name":"scale.so"' in path.read_bytes()[:1000])
    damaged.write_bytes(damaged.read_bytes()[:-1])
    project = write(tmp_path / "merged")
    run = merged(project, str(folder), *caches(built, 1, 3), ok=False)
    assert run.output.count(f"left out, because it is damaged: {damaged}: ") == 1
    assert "scale: the build cache has no intact entry with what LINK makes in shard 2/3" in run.output
    assert "--partial" not in run.output, "a merge finds out nothing"
    assert "kernels/scale.py:" in run.output and run.output.count("no intact entry") == 2, "once, and in the summary"
    assert not (project.folder / "build/demo").exists()


def test_shards_of_other_settings_and_sources_are_told(built: Path, tmp_path: Path) -> None:
    project = write(tmp_path / "merged")
    run = merged(project, *caches(built, 1, 2, 3), "--", "ARCHS=x86-64-v2", ok=False)
    assert "shard 3/3, which was built with other settings, tools or Kernelwright: cube_backward" in run.output
    project.replace("kernels/add_one.py", "+ 1.0", "+ 2.0")
    run = merged(project, *caches(built, 1, 2, 3), ok=False)
    assert "shard 2/3, whose cache lacks them: they failed, were up to date before, or have" in run.output
    assert "other sources: add_one\n" in run.output
    assert "LOWER" not in run.labels


def test_a_shard_is_checked_and_named_kernels_are_built_where_they_are(built: Path, tmp_path: Path) -> None:
    project = Project(built / "project-2").copied(tmp_path / "project")
    words = ("--shard", "2/3", f"CACHE_DIR={built}/shard-2")
    null = project.scons(*words)
    assert "shard 2/3 of demo has 2 kernels" in null.output and null.counts[0] == 0
    run = project.scons(*words, "check")
    assert run.stages == ["CHECK add_one/default cpu", "CHECK scale/dtype-float32 cpu"]
    run = project.scons(*words, "cube", "scale", "add_one")
    assert "kernelwright: cube is in shard 1/3\n" in run.output and run.counts[0] == 0
    run = project.scons(*words, "nothing", ok=False)
    assert "nothing" in run.output
    project.write(tuned.FILE, tuned.SMALL_AND_LARGE)
    assert "has no effect" not in project.scons(*words).output
    missing = {line.split()[1] for line in project.scons("-n").stages if line.startswith("LINK")}
    assert missing == {"cube", "cube_backward", "scaled"}, "a whole build makes what the shard has left out"


def test_what_does_not_fit_a_shard_is_refused_with_a_remedy(tmp_path: Path) -> None:
    project = new_project(tmp_path)
    for words, message in (
        (("--shard=9/8",), "--shard is '9/8', expected a number of a shard"),
        (("--shard=1/8", "wheel"), "a wheel has all kernels\n  remedy: build the shards without it, then run kernelw"),
        (("--shard=1/8", "--partial"), "a shard makes none\n  remedy: build the shards with -k, then run kernelw"),
        (("--shard=1/8", "-c"), "-c removes the outputs of all kernels"),
        (("--shard=1/8", "tune"), "tuning goes by kernels"),
        (("--shard=1/8", "--merge=x"), "--merge assembles packages"),
        (("--shard=1/8", "--cache-disable"), "by way of the build cache, which this run cannot write\n  remedy: leave"),
        (("--shard=1/8", "--cache-readonly"), "by way of the build cache, which this run cannot write\n  remedy"),
        (("--merge=kernels",), f"'{tmp_path}/kernels' is not the build cache of a shard"),
        (("--merge=kernels", "--cache-disable"), "a merge takes what shards have built by way of the build cache, wh"),
    ):
        run = project.scons(*words, ok=False)
        assert run.status == 2 and "scons: *** [" in run.output and message in run.output
    assert not (project.folder / "build/kernels").exists()


def test_without_kernels_a_shard_is_well_and_failures_are_those_of_its_own(cpu_project: Project) -> None:
    empty = next(s for s in (Shard(n, 9) for n in range(1, 10)) if not any(map(s.has, ("scale", "add_one"))))
    cpu_project.write("configs.json", text_of({"scale": [{"dtype": "float32"}]}))
    run = cpu_project.scons("--shard", str(empty), "CONFIGS=configs.json")
    assert f"shard {empty} of demo has 0 kernels" in run.output and "Nothing to be done" in run.output
    assert "configs.json names" not in run.output, "another shard builds that kernel"
    cpu_project.replace("kernels/scale.py", "T.cast(2.0, dtype)", "T.cast(2.0, 'nothing')")
    well = next(s for s in (Shard(n, 9) for n in range(1, 10)) if s.has("add_one"))
    failing = next(s for s in (Shard(n, 9) for n in range(1, 10)) if s.has("scale"))
    assert cpu_project.scons("--shard", str(well)).labels["LINK"] == 1
    assert "scale" in cpu_project.scons("-k", "--shard", str(failing), ok=False).output
