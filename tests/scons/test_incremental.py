"""What runs again after which change. Each test is a real project and real ``scons`` runs."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ADD, SCALE, SCONSTRUCT, SITE_SCONS, Project

SHOW_WORKERS = """
import atexit
from kernelwright.workers.pool import WorkerPool
started = []
call = WorkerPool.call
def counted(self, request):
    result = call(self, request)
    started.append(self.started)
    return result
WorkerPool.call = counted
atexit.register(lambda: print("workers started:", max(started, default=0)))
"""

EVERYTHING = {"CUBIN": 3, "LINK": 2, "LOWER": 6, "PACKAGE": 1, "WRAP": 2}


def test_first_build_makes_everything_and_the_second_nothing(project):
    first = project.scons("-j2")
    assert first.labels == EVERYTHING
    assert first.counts == (14, 0, 0)
    second = project.scons("-j2")
    assert second.stages == []
    assert second.counts == (0, 14, 0)


def test_null_build_starts_no_worker_and_imports_no_tvm(project):
    project.scons("-j2")
    project.write("SConstruct", SCONSTRUCT + SHOW_WORKERS)
    # PYTHONPROFILEIMPORTTIME lists every module that scons imports.
    run = project.scons(env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert run.stages == []
    assert "workers started: 0" in run.output
    assert "| SCons.Script" in run.output
    assert not [line for line in run.output.splitlines() if line.rpartition("|")[2].strip().split(".")[0] == "tvm"]
    project.replace("kernels/scale.py", "    return main", "    # a comment\n    return main")
    assert "workers started: 2" in project.scons("-j2").output, "the counter counts"


def test_comment_lowers_that_file_again_and_stops_there(project):
    project.scons("-j2")
    project.replace("kernels/scale.py", "    return main", "    # a comment\n    return main")
    run = project.scons("-j2")
    assert run.stages == [
        "LOWER scale/dtype-float16 cuda",
        "LOWER scale/dtype-float16 x86-64-v3",
        "LOWER scale/dtype-float32 cuda",
        "LOWER scale/dtype-float32 x86-64-v3",
    ]


def test_constant_rebuilds_that_kernel_only(project):
    project.scons("-j2")
    project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(3.0")
    run = project.scons("-j2")
    assert run.labels == {"CUBIN": 2, "LINK": 1, "LOWER": 4, "PACKAGE": 1}
    assert all("add_one" not in stage for stage in run.stages)
    assert (
        project.python("import numpy, demo; print(numpy.from_dlpack(demo.scale(numpy.ones(2, 'float32'))))")
        == "[3. 3.]\n"
    )


def test_same_size_edit_within_a_second_is_seen(cpu_project):
    cpu_project.scons()
    path = cpu_project.folder / "kernels/scale.py"
    status = path.stat()
    cpu_project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(7.0")
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert "LINK scale" in cpu_project.scons().stages


def test_added_config_builds_that_variant_and_links(project):
    project.scons("-j2")
    project.replace("kernels/scale.py", '"float16"]', '"float16", "float64"]')
    run = project.scons("-j2")
    built = [stage for stage in run.stages if not stage.startswith("LOWER")]
    assert built == ["CUBIN scale/dtype-float64 sm_80", "LINK scale", "PACKAGE demo", "WRAP scale tvm_ffi"]
    assert "LOWER scale/dtype-float64 cuda" in run.stages


def test_removed_config_goes_from_the_build_folder(project):
    project.scons("-j2")
    project.replace("kernels/scale.py", ', "float16"]', "]")
    project.scons("-j2")
    assert not (project.folder / "build/kernels/demo/scale/dtype-float16").exists()
    assert project.python("import demo; print(demo.scale.variants)") == "({'dtype': 'float32'},)\n"


def test_added_arch_compiles_for_that_arch_only(project):
    project.scons("-j2")
    run = project.scons("-j2", "ARCHS=sm_80,sm_90a")
    assert run.labels == {"CUBIN": 3, "LINK": 2, "PACKAGE": 1, "WRAP": 2}
    assert all("sm_90a" in stage for stage in run.stages if stage.startswith("CUBIN"))


def test_changed_helper_rebuilds_the_kernels_that_import_it(cpu_project):
    project = cpu_project
    project.write("kernels/lib/__init__.py", "")
    project.write("kernels/lib/deep/__init__.py", "from .constants import FACTOR\n")
    project.write("kernels/lib/deep/constants.py", "FACTOR = 2.0\n")
    project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(FACTOR")
    project.replace(
        "kernels/scale.py", "from kernelwright import", "from lib.deep import FACTOR\nfrom kernelwright import"
    )
    project.scons("-j2")
    project.write("kernels/lib/deep/constants.py", "FACTOR = 5.0\n")
    run = project.scons("-j2")
    assert run.labels == {"LINK": 1, "LOWER": 2, "PACKAGE": 1}
    assert all("add_one" not in stage for stage in run.stages)


def test_changed_flag_runs_nvcc_and_what_follows(project):
    project.scons("-j2")
    # Line information changes every cubin; fast math would not change those of kernels as simple as these.
    run = project.scons("-j2", "NVCC_FLAGS=-lineinfo")
    assert run.labels == {"CUBIN": 3, "LINK": 2, "PACKAGE": 1}


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
    assert project.scons("-j2", f"NVCC={wrapper}").stages == []


def real_nvcc() -> str:
    from kernelwright.toolchain import find_nvcc

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
        path.write_bytes(before[:-1] + bytes([before[-1] ^ 1]))
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


def test_removed_definition_goes_with_its_artifacts_and_its_entry(cpu_project):
    cpu_project.scons("-j2")
    (cpu_project.folder / "kernels/add_one.py").unlink()
    run = cpu_project.scons("-j2")
    assert run.stages == ["PACKAGE demo"]
    assert not (cpu_project.folder / "build/demo/_lib/add_one.so").exists()
    assert not (cpu_project.folder / "build/kernels/demo/add_one").exists()
    assert "add_one" not in (cpu_project.folder / "build/demo/manifest.json").read_text()
    assert "add_one" not in (cpu_project.folder / "build/demo/__init__.py").read_text()


def test_explain_names_the_reason(cpu_project):
    cpu_project.scons("-j2")
    cpu_project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(3.0")
    run = cpu_project.scons("-j2", "--debug=explain")
    assert "because `kernels/scale.py' changed" in run.output.replace("\n", " ").replace("  ", " ")


def test_kernel_alias_builds_that_kernel_only(cpu_project):
    run = cpu_project.scons("-j2", "add_one")
    assert run.stages == ["LINK add_one", "LOWER add_one/default x86-64-v3", "WRAP add_one tvm_ffi"]


def test_check_runs_again_only_after_a_change(cpu_project):
    assert cpu_project.scons("-j2", "check").labels["CHECK"] == 3
    assert "CHECK" not in cpu_project.scons("-j2", "check").labels
    cpu_project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(2.5")
    run = cpu_project.scons("-j2", "check", ok=False)
    assert "scale" in run.output and "float32" in run.output


def test_clean_removes_everything(cpu_project):
    cpu_project.scons("-j2", "check")
    cpu_project.scons("-c")
    assert cpu_project.files("build") == {}


def test_moved_tree_rebuilds_nothing(cpu_project, tmp_path):
    cpu_project.scons("-j2")
    moved = tmp_path.parent / (tmp_path.name + "-moved")
    cpu_project.folder.rename(moved)
    assert Project(moved).scons("-j2").stages == []


def test_same_bytes_for_any_jobs_and_folder(project, tmp_path_factory):
    project.scons("-j1")
    other = Project(tmp_path_factory.mktemp("a folder with spaces"))
    shutil.copytree(
        project.folder, other.folder, dirs_exist_ok=True, ignore=shutil.ignore_patterns("build", ".sconsign*")
    )
    other.scons("-j4")
    assert project.files("build/kernels", "build/demo") == other.files("build/kernels", "build/demo")


def value(project) -> str:
    """What the built kernel makes out of 1."""
    return project.python("import numpy, demo; print(numpy.from_dlpack(demo.scale(numpy.ones(1, 'f4'))))").strip()


def test_edit_under_an_old_unchanged_time_is_seen(cpu_project):
    path = cpu_project.folder / "kernels/scale.py"
    os.utime(path, (978307200, 978307200))
    cpu_project.scons("-j2")
    cpu_project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(4.0")
    os.utime(path, (978307200, 978307200))
    cpu_project.scons("-j2")
    assert value(cpu_project) == "[4.]"


@pytest.mark.parametrize("ending", [signal.SIGKILL, signal.SIGINT])
def test_outputs_of_a_run_that_was_ended_are_not_taken_for_those_of_the_run_before(cpu_project, ending):
    cpu_project.scons("-j2")
    cpu_project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(3.0")
    slow = ADD.replace("add_one", "zz_slow").replace("    n = te", "    import time; time.sleep(60)\n    n = te")
    cpu_project.write("kernels/zz_slow.py", slow)
    process = subprocess.Popen(
        [sys.executable, "-m", "SCons", "-Q", "-j2"],
        cwd=cpu_project.folder,
        env={**os.environ, "PYTHONPATH": str(SITE_SCONS)},
        stdout=subprocess.PIPE,
        text=True,
    )
    for line in process.stdout:
        if "zz_slow" in line:
            process.send_signal(ending)
            break
    process.communicate()
    (cpu_project.folder / "kernels/zz_slow.py").unlink()
    cpu_project.replace("kernels/scale.py", "T.cast(3.0", "T.cast(2.0")
    cpu_project.scons("-j2")
    assert value(cpu_project) == "[2.]"
    assert cpu_project.scons("-j2").stages == []


def test_changed_file_that_a_reference_reads_when_called_runs_the_check_again(cpu_project):
    cpu_project.write("kernels/factor.txt", "2")
    reference = "    from pathlib import Path\n    return x * int(Path(__file__).with_name('factor.txt').read_text())"
    cpu_project.replace("kernels/scale.py", "    return x * 2", reference)
    cpu_project.scons("-j2", "check")
    assert cpu_project.scons("-j2", "check").stages == []
    cpu_project.write("kernels/factor.txt", "5")
    run = cpu_project.scons("-j2", "check", ok=False)
    assert "scale/dtype-float" in run.output and "differs from the reference" in run.output


def test_file_that_is_imported_inside_of_a_definition_is_a_dependency(cpu_project):
    cpu_project.write("kernels/_lib.py", "FACTOR = 2.0\n")
    cpu_project.replace("kernels/scale.py", "    @T.prim_func", "    from _lib import FACTOR\n\n    @T.prim_func")
    cpu_project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(FACTOR")
    cpu_project.scons("-j2")
    assert cpu_project.scons("-j2").stages == []
    cpu_project.write("kernels/_lib.py", "FACTOR = 6.0\n")
    assert cpu_project.scons("-j2").labels == {"LINK": 1, "LOWER": 2, "PACKAGE": 1}
    assert value(cpu_project) == "[6.]"
    assert cpu_project.scons("-j2").stages == []


@pytest.fixture
def cached_project(cpu_project):
    cpu_project.write("SConstruct", SCONSTRUCT.replace("package =", 'env.CacheDir("cache")\npackage ='))
    return cpu_project


def start_over(project) -> None:
    shutil.rmtree(project.folder / "build")
    (project.folder / ".sconsign.dblite").unlink()


def test_cache_dir_gives_back_what_was_built(cached_project):
    cached_project.scons("-j2")
    before = cached_project.files("build/kernels", "build/demo")
    start_over(cached_project)
    run = cached_project.scons("-j2")
    assert set(run.labels) == {"LOWER"}, "a lowering's key is complete only after it ran, so it is not kept"
    assert cached_project.files("build/kernels", "build/demo") == before
    assert cached_project.scons("-j2").stages == []


def test_damaged_cache_entry_is_a_miss(cached_project):
    cached_project.scons("-j2")
    before = cached_project.files("build/kernels", "build/demo")
    start_over(cached_project)
    for entry in (cached_project.folder / "cache").rglob("*"):
        if entry.is_file() and entry.name not in ("config", "CACHEDIR.TAG"):
            content = bytearray(entry.read_bytes())
            content[len(content) // 2] ^= 1
            entry.write_bytes(content)
    assert cached_project.scons("-j2").labels["LINK"] == 2
    assert cached_project.files("build/kernels", "build/demo") == before


def test_cache_dir_does_not_hide_what_is_imported_inside_of_a_definition(cached_project):
    cached_project.write("kernels/lib.py", "FACTOR = 2.0\n")
    cached_project.replace("kernels/scale.py", "    @T.prim_func", "    from lib import FACTOR\n\n    @T.prim_func")
    cached_project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(FACTOR")
    cached_project.replace("SConstruct", 'Glob("kernels/*.py")', '["kernels/scale.py"]')
    cached_project.scons("-j2")
    start_over(cached_project)
    cached_project.write("kernels/lib.py", "FACTOR = 5.0\n")
    cached_project.scons("-j2")
    assert value(cached_project) == "[5.]"


def test_second_scons_in_a_tree_waits_for_the_first(cpu_project):
    cpu_project.write(
        "kernels/slow.py",
        ADD.replace("add_one", "slow").replace("    n = te", "    import time; time.sleep(8)\n    n = te"),
    )
    command = [sys.executable, "-m", "SCons", "-Q"]
    env = {**os.environ, "PYTHONPATH": str(SITE_SCONS)}
    first = subprocess.Popen(command, cwd=cpu_project.folder, env=env, stdout=subprocess.PIPE, text=True)
    for line in first.stdout:
        if "slow" in line:
            break
    second = cpu_project.scons("-Q")
    first.communicate()
    assert first.returncode == 0
    assert "another scons works in this tree, waiting" in second.output
    assert second.stages == []


def test_question_mode_removes_nothing(built_project):
    path = built_project.folder / "build/demo/py.typed"
    path.write_text("edited")
    built_project.scons("-q")
    assert path.read_text() == "edited"
    built_project.scons("-j2")
    assert path.read_text() == ""
