"""What runs again after which change. Each test is a real project and real ``scons`` runs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.moments import Gate, rewrite
from support.project import ADD, SCALE, SCONSTRUCT, SITE_SCONS, Project

SHOW_WORKERS = """
import atexit
from kernelwright.processes.pool import WorkerPool
started = []
call = WorkerPool.call
def counted(self, request):
    result = call(self, request)
    started.append(self.started)
    return result
WorkerPool.call = counted
atexit.register(lambda: print("workers started:", max(started, default=0)))
"""


def test_null_build_starts_no_worker_and_imports_no_tvm(project):
    project.built("-j2")
    project.write("SConstruct", SCONSTRUCT + SHOW_WORKERS)
    # PYTHONPROFILEIMPORTTIME lists every module that scons imports.
    run = project.scons(env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert run.stages == []
    assert "workers started: 0" in run.output
    assert "| SCons.Script" in run.output
    assert not [line for line in run.output.splitlines() if line.rpartition("|")[2].strip().split(".")[0] == "tvm"]
    project.replace("kernels/scale.py", "    return main", "    # a comment\n    return main")
    assert re.search("workers started: [12]", project.scons("-j2").output), "the counter counts"


def test_ptx_that_did_not_change_is_not_assembled_again(project):
    project.built("-j2")
    # nvcc parses the function and leaves it out.
    project.write("kernels/more.h", "static __device__ int unused() { return 1; }\n")
    flags = f"NVCC_FLAGS=-include {project.folder}/kernels/more.h"
    assert project.scons("-j2", flags).labels == {"CUBIN": 3, "LINK": 2, "PACKAGE": 1, "PTX": 3}
    project.replace("kernels/more.h", "return 1", "return 2")
    assert project.scons("-j2", flags).labels == {"PTX": 3}
    project.write("kernels/more.h", "#define float4 double4\n")
    assert project.scons("-j2", flags).labels["PTX"] == 3


def test_another_nvcc_version_runs_nvcc_and_what_follows(project):
    nvcc = shutil.which("nvcc", path=str(Path(sys.executable).parent)) or real_nvcc()
    wrapper = project.write(
        "nvcc-wrapper",
        f"""\
        #!/bin/sh
        [ "$1" = --version ] && echo "Cuda compilation tools, release 13.0, V13.0.99" && exit
        exec {nvcc} "$@"
        """,
    )
    wrapper.chmod(0o755)
    project.scons("-j2")
    run = project.scons("-j2", f"NVCC={wrapper}")
    assert run.labels["CUBIN"] == 3
    assert "LOWER" not in run.labels
    wrapper_text = (project.folder / "build/kernels/demo/scale/wrapper.c").read_text()
    assert "  .toolkit = 13000,\n" in wrapper_text, "errors compare it with the version of the driver"
    assert project.scons("-j2", f"NVCC={wrapper}").stages == []


def real_nvcc() -> str:
    from kernelwright.toolchain.nvcc import find_nvcc

    return find_nvcc("", dict(os.environ))


@pytest.mark.parametrize(
    "output",
    [
        "build/kernels/demo/scale/dtype-float32/cuda/device.cu",
        "build/kernels/demo/scale/dtype-float32/cuda/sm_80.cubin",
        "build/kernels/demo/scale/wrapper.c",
        "build/demo/_lib/scale.so",
        "build/demo/__init__.py",
        "build/demo/manifest.json",
    ],
)
@pytest.mark.parametrize("damage", ["delete", "edit"])
def test_damaged_output_is_restored(built_project, output, damage):
    path = built_project.folder / output
    before = path.read_bytes()
    if damage == "delete":
        path.unlink()
    else:
        rewrite(path, before[:-1] + bytes([before[-1] ^ 1]))
    run = built_project.scons("-j2")
    assert path.read_bytes() == before
    assert run.stages
    assert "PACKAGE" not in run.labels or "/demo/_" in output or "manifest" in output


@pytest.fixture(scope="module")
def built_folder(tmp_path_factory):
    project = Project(tmp_path_factory.mktemp("built"))
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", '[tool.kernelwright]\narchs = ["x86-64-v3", "sm_80"]\n')
    project.write("kernels/scale.py", SCALE)
    project.write("kernels/add_one.py", ADD)
    project.scons("-j2")
    return project.folder


@pytest.fixture
def built_project(built_folder):
    return Project(built_folder)


def test_kernel_alias_builds_that_kernel_only(cpu_project):
    run = cpu_project.scons("-j2", "add_one")
    first = ["CC add_one", "GLIBC 2.28", "LAUNCHER launcher", "LINK add_one"]
    assert run.stages == [*first, "LOWER add_one/default x86-64-v3", "WRAP add_one"]


def test_same_bytes_for_any_jobs_and_folder(project, tmp_path_factory):
    # The compiler of other projects would give a copy of what it has made in another folder.
    compiler = f"HOST_COMPILER={shutil.which('cc')}"
    project.scons("-j1", compiler)
    other = Project(tmp_path_factory.mktemp("a folder with spaces"))
    shutil.copytree(
        project.folder, other.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("build", ".sconsign*")
    )
    other.know_tools(compiler)
    other.scons("-j4", compiler, fresh=True)  # where hash values are others
    assert project.files("build/kernels", "build/demo") == other.files("build/kernels", "build/demo")


@pytest.fixture
def gate(tmp_path_factory):
    """A gate for definitions, outside of the project."""
    with Gate(tmp_path_factory.mktemp("gate") / "gate") as gate:
        yield gate


def start_over(project, cache: str | None = None) -> None:
    """Remove what was built and all that is known of it, but not the build cache."""
    kept = project.folder / "kept-cache"
    source = project.folder / (cache or "build/.kernelwright/cache")
    source.rename(kept)
    shutil.rmtree(project.folder / "build")
    source.parent.mkdir(parents=True, exist_ok=True)
    kept.rename(source)


def test_build_cache_gives_back_what_was_built(project):
    project.built("-j2")
    before = project.files("build/kernels", "build/demo")
    start_over(project)
    run = project.scons("-j2")
    assert run.labels == {"CACHED": 20, "PACKAGE": 1}
    assert "21 built (20 from the cache), 0 reused, 0 failed" in run.output
    assert project.files("build/kernels", "build/demo") == before
    assert project.scons("-j2").stages == []


@pytest.fixture
def cached_project(cpu_project):
    cpu_project.write("SConstruct", SCONSTRUCT.replace("package =", 'env.CacheDir("cache")\npackage ='))
    return cpu_project


def test_cache_dir_of_the_build_file_is_the_build_cache(cached_project):
    cached_project.built("-j2")
    assert not (cached_project.folder / "build/.kernelwright/cache").exists()
    start_over(cached_project, "cache")
    assert cached_project.scons("-j2").labels == {"CACHED": 11, "PACKAGE": 1}


def test_cache_can_be_left_out(cpu_project):
    assert "CACHED" not in cpu_project.scons("-j2", "CACHE_DIR=").labels
    assert not (cpu_project.folder / "build/.kernelwright/cache").exists()
    cpu_project.scons("-j2", "-c")
    assert "CACHED" not in cpu_project.scons("-j2", "--cache-disable").labels
    assert not (cpu_project.folder / "build/.kernelwright/cache").exists()


def test_cache_does_not_hide_what_is_imported_inside_of_a_definition(cached_project):
    cached_project.write("kernels/lib.py", "FACTOR = 2.0\n")
    cached_project.replace("kernels/scale.py", "    @T.prim_func", "    from lib import FACTOR\n\n    @T.prim_func")
    cached_project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(FACTOR")
    cached_project.replace("SConstruct", 'env.Glob("kernels/*.py")', '["kernels/scale.py"]')
    cached_project.scons("-j2")
    start_over(cached_project, "cache")
    cached_project.write("kernels/lib.py", "FACTOR = 5.0\n")
    cached_project.scons("-j2")
    assert cached_project.value() == 5


@pytest.mark.parametrize("setting", [".", "kernels", "notes"])
def test_cache_in_a_folder_with_other_things_in_it_is_refused_and_nothing_goes(cpu_project, setting):
    cpu_project.write("py/precious.txt", "mine")
    cpu_project.write("notes/ab/precious.txt", "mine")
    before = cpu_project.files(".")
    run = cpu_project.scons(f"CACHE_DIR={setting}", "CACHE_SIZE=1K", ok=False)
    assert run.status == 2 and run.stages == []
    assert "has other things in it" in run.output and "cache_dir" in run.output
    left = {name: text for name, text in cpu_project.files(".").items() if not name.startswith("build/")}
    assert left == before
    cpu_project.scons("-c", f"CACHE_DIR={setting}")
    assert cpu_project.files("py", "notes") == dict.fromkeys(("py/precious.txt", "notes/ab/precious.txt"), b"mine")


def test_question_mode_removes_nothing(built_project):
    path = built_project.folder / "build/demo/py.typed"
    path.write_text("edited")
    built_project.scons("-q")
    assert path.read_text() == "edited"
    built_project.scons("-j2")
    assert path.read_text() == ""


def imported(run) -> set[str]:
    """The modules that scons has imported, of a run with PYTHONPROFILEIMPORTTIME."""
    return {line.rpartition("|")[2].strip() for line in run.output.splitlines() if "|" in line}


def test_settled_kernels_have_no_nodes(cpu_project):
    cpu_project.scons("-j2")
    profile = {"PYTHONPROFILEIMPORTTIME": "1"}
    assert "kernelwright.stages.kernel" not in imported(cpu_project.scons(env=profile))
    assert "kernelwright.stages.kernel" not in imported(cpu_project.scons("scale", env=profile))
    path = "build/kernels/demo/scale/scale.so"
    assert "kernelwright.stages.kernel" in imported(cpu_project.scons(path, env=profile)), "a path needs its node"
    cpu_project.write("kernels/other.py", SCALE)
    run = cpu_project.scons(ok=False)
    assert run.status == 2 and "a kernel named 'scale' is also defined at kernels/scale.py" in run.output
    assert run.stages == []


def test_touched_definition_goes_back_to_scons_and_changes_nothing(cpu_project):
    cpu_project.scons("-j2")
    os.utime(cpu_project.folder / "kernels/scale.py", (1_000_000_000, 1_000_000_000))
    run = cpu_project.scons(env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert run.counts == (0, 12, 0)
    assert "kernelwright.stages.kernel" in imported(run)


def test_clean_tree_at_another_place_with_other_times_is_up_to_date(cpu_project, tmp_path_factory):
    cpu_project.built("-j2")
    copy = Project(tmp_path_factory.mktemp("copy"))
    shutil.copytree(cpu_project.folder, copy.folder, dirs_exist_ok=True, copy_function=shutil.copyfile)
    assert copy.scons("-j2").stages == []


def test_definition_that_is_written_while_it_is_lowered_is_an_error_and_not_a_wrong_signature(cpu_project, gate):
    cpu_project.replace("kernels/scale.py", "    @T.prim_func", f"    {gate.python}\n\n    @T.prim_func")
    process = cpu_project.start("scale")
    gate.wait()
    before = (cpu_project.folder / "kernels/scale.py").read_text()
    (cpu_project.folder / "kernels/scale.py").write_text(before[:200])
    gate.open()
    seen = process.communicate()[0]
    cpu_project.write("kernels/scale.py", before)
    cpu_project.scons("-j2")
    assert cpu_project.value() == 2
    assert process.returncode == 2 and "edited meanwhile" in seen


def test_strict_names_what_a_definition_reads_without_declaring_it(cpu_project):
    cpu_project.write("kernels/factor.txt", "2")
    read = "    from pathlib import Path\n    factor = float(Path(__file__).with_name('factor.txt').read_text())\n\n"
    cpu_project.replace("kernels/scale.py", "    @T.prim_func", f"{read}    @T.prim_func")
    cpu_project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(factor")
    cpu_project.scons("-j2")
    run = cpu_project.scons("-j2", "--strict", ok=False)
    assert run.status == 2
    line = 1 + (cpu_project.folder / "kernels/scale.py").read_text().splitlines().index(read.splitlines()[1])
    assert f"kernels/scale.py:{line} scale/dtype-float" in run.output
    assert "kernels/factor.txt" in run.output and "reads" in run.output
    cpu_project.replace("kernels/scale.py", 'outputs=["y"])', 'outputs=["y"], reads=["factor.txt"])')
    cpu_project.scons("-j2", "--strict")
    assert cpu_project.value() == 2
    assert cpu_project.scons("-j2", "--strict").stages == []


def test_compile_commands_lists_every_run_of_a_compiler(project):
    compiler = f"HOST_COMPILER={shutil.which('cc')}"
    project.scons("-j2", "compile_commands", compiler)
    commands = json.loads((project.folder / "build/compile_commands.json").read_text())
    outputs = [str(Path(command["directory"], command["output"])) for command in commands]
    assert sorted(Path(output).name for output in outputs) == [
        "add_one.so",
        "scale.so",
        *["sm_80.cubin"] * 3,
        *["wrapper.o"] * 2,
    ]
    assert all(Path(output).is_file() for output in outputs)
    for command in commands:
        before = Path(command["directory"], command["output"]).read_bytes()
        arguments = [word.replace(command["output"], "again") for word in command["arguments"]]
        subprocess.run(arguments, cwd=command["directory"], check=True, capture_output=True)
        again = Path(command["directory"], "again")
        assert command["output"].endswith(".so") or again.read_bytes() == before
    assert project.scons("compile_commands", compiler).stages == []


def test_timeline_and_report_of_a_build(project):
    project.scons("-j2", fresh=True)
    trace = json.loads((project.folder / "build/trace.json").read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert sorted({event["cat"] for event in spans}) == [
        *("CC", "CUBIN", "DISCOVER", "GLIBC", "LAUNCHER", "LINK", "LOWER", "PACKAGE", "PROBE", "PTX", "WRAP")
    ]
    assert len(spans) == 21 + 1 + len(list(project.folder.glob("kernels/[!_]*.py")))
    assert all(
        event["args"]["cpu_seconds"] > 0
        for event in spans
        if event["cat"] in ("CC", "CUBIN", "GLIBC", "LAUNCHER", "LINK", "LOWER", "PROBE", "PTX")
    )
    assert str(project.folder) not in json.dumps(trace)
    command = [sys.executable, "-m", "kernelwright", "report"]
    subprocess.run(command, cwd=project.folder, env={**os.environ, "PYTHONPATH": str(SITE_SCONS)}, check=True)
    page = (project.folder / "build/report.html").read_text()
    assert "scale/dtype-float32 sm_80" in page and "Content-Security-Policy" in page


def test_a_run_that_does_not_make_the_package_leaves_it_as_it_is(cpu_project):
    cpu_project.built("-j2")
    before = cpu_project.files("build/demo")
    cpu_project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(3.0")
    cpu_project.replace("kernels/scale.py", "x * 2", "x * 3")
    for target in ("check", "check", "scale", "scale", "compile_commands"):
        run = cpu_project.scons("-j2", target)
        assert "making it again" not in run.output
        assert cpu_project.files("build/demo") == before
    assert cpu_project.scons("-j2").labels == {"PACKAGE": 1}
    assert cpu_project.value() == 3
    # A copy that was damaged or removed stays so until the package is asked for.
    copy = cpu_project.folder / "build/demo/_lib/scale.so"
    whole = copy.read_bytes()
    copy.write_bytes(b"damage")
    cpu_project.scons("-j2", "scale")
    assert copy.read_bytes() == b"damage" and (cpu_project.folder / "build/demo/manifest.json").exists()
    run = cpu_project.scons("-j2")
    assert "build/demo/_lib/scale.so is not as it was built: making it again" in run.output
    assert copy.read_bytes() == whole and run.labels == {"PACKAGE": 1}
    copy.unlink()
    assert cpu_project.scons("-j2").labels == {"PACKAGE": 1} and copy.read_bytes() == whole
    assert cpu_project.scons("-j2").labels == {}


@pytest.mark.parametrize("setting", ["build", "build/demo", "build/kernels", "build/.kernelwright/tmp", "build/new"])
def test_cache_among_the_outputs_of_builds_is_refused(cpu_project, setting):
    run = cpu_project.scons("-j2", f"CACHE_DIR={setting}", ok=False)
    assert run.status == 2 and run.stages == []
    assert f"/{setting}: builds write into build" in run.output and "cache_dir" in run.output


def test_cache_in_something_that_is_no_folder_is_refused(cpu_project):
    cpu_project.write("file", "mine")
    (cpu_project.folder / "dangling").symlink_to("nowhere")
    for setting in ("file", "file/in", "dangling", "/dev/null"):
        run = cpu_project.scons("-j2", f"CACHE_DIR={setting}", ok=False)
        assert run.status == 2 and run.stages == []
        assert f"{setting}: that is no folder" in run.output
    assert (cpu_project.folder / "file").read_text() == "mine"
