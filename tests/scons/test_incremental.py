"""What runs again after which change. Each test is a real project and real ``scons`` runs."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path

from support.project import SCONSTRUCT

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
    project.scons("-j2")
    project.write("SConstruct", SCONSTRUCT + SHOW_WORKERS)
    # PYTHONPROFILEIMPORTTIME lists every module that scons imports.
    run = project.scons(env={"PYTHONPROFILEIMPORTTIME": "1"})
    assert run.stages == []
    assert "workers started: 0" in run.output
    assert "| SCons.Script" in run.output
    imported = {line.rpartition("|")[2].strip() for line in run.output.splitlines()}
    assert not [name for name in imported if name.split(".")[0] == "tvm" or name == "kernelwright.stages.kernel"]
    project.replace("kernels/scale.py", "    return main", "    # a comment\n    return main")
    assert re.search("workers started: [12]", project.scons("-j2").output), "the counter counts"


def test_cache_dir_of_the_build_file_is_the_build_cache(cpu_project):
    cpu_project.write("SConstruct", SCONSTRUCT.replace("package =", 'env.CacheDir("cache")\npackage ='))
    cpu_project.built("-j2")
    assert not (cpu_project.folder / "build/.kernelwright/cache").exists()
    shutil.rmtree(cpu_project.folder / "build")
    assert cpu_project.scons("-j2").labels == {"CACHED": 11, "PACKAGE": 1}


def test_compile_commands_lists_every_run_of_a_compiler(project):
    project.scons("-j2", "compile_commands")
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
    assert project.scons("compile_commands").stages == []


def test_timeline_and_report_of_a_build(project):
    project.scons("-j2")
    trace = json.loads((project.folder / "build/trace.json").read_text())
    spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    assert sorted({event["cat"] for event in spans}) == [
        *("CC", "CUBIN", "DISCOVER", "GLIBC", "LAUNCHER", "LINK", "LOWER", "PACKAGE", "PTX", "WRAP")
    ]
    assert len(spans) == 21 + len(list(project.folder.glob("kernels/[!_]*.py")))
    assert all(
        event["args"]["cpu_seconds"] > 0
        for event in spans
        if event["cat"] in ("CC", "CUBIN", "GLIBC", "LAUNCHER", "LINK", "LOWER", "PTX")
    )
    assert str(project.folder) not in json.dumps(trace)
    project.kernelwright("report")
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


def test_an_edit_of_what_only_checks_call_lowers_nothing_and_the_check_sees_it(cpu_project):
    cpu_project.built("-j2", ".", "check")
    scale = "kernels/scale.py"
    cpu_project.replace(scale, "return x * 2", "return x * 2.0")
    assert cpu_project.scons("-j2", ".", "check").labels == {"CHECK": 2}
    cpu_project.replace(scale, "return x * 2.0", "return x * 3.0")
    failed = cpu_project.scons("-j2", ".", "check", ok=False)
    assert failed.labels["CHECK"] == 2 and "LOWER" not in failed.labels, failed.output
    cpu_project.replace(scale, "return x * 3.0", "double = 2.0\n    return x * double")
    assert cpu_project.scons("-j2", ".", "check").labels == {"LOWER": 2, "CHECK": 2}, "lines that move may count"
    cpu_project.replace(scale, "T.cast(2.0", "T.cast(5.0")
    assert cpu_project.scons("-j2", ".").labels["LOWER"] == 2 and cpu_project.value() == 5
