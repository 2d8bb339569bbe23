"""To see the IR after each of TVM's passes. Real builds."""

from __future__ import annotations

import itertools
import re

import pytest
from support.project import ADD, SCALE, Project

SCALE_CUDA = "build/kernels/demo/scale/dtype-float16/cuda"
IR_STAGES = ["IR add_one/default x86-64-v3", "IR scale/dtype-float16 cuda"]


@pytest.fixture
def project(project: Project) -> Project:
    """It has a function of TE for the CPU, and one in TVMScript for CUDA: IR takes long, and is made for each alike."""
    project.write("kernels/add_one.py", ADD.replace("@kernel(", '@kernel(targets=["llvm"], '))
    project.write(
        "kernels/scale.py", SCALE.replace("@kernel(", '@kernel(targets=["cuda"], ').replace('"float32", ', "")
    )
    return project


def ir_of(project: Project, folder: str = SCALE_CUDA) -> dict[str, str]:
    return {name.rpartition("/")[2]: content.decode() for name, content in project.files(f"{folder}/ir").items()}


def test_ir_is_written_when_it_is_asked_for_and_changes_nothing_else(project: Project) -> None:
    project.built("-j2")
    built = project.files("build/kernels", "build/demo")
    run = project.scons("-j2", "ir")
    assert run.stages == IR_STAGES
    assert {n: c for n, c in project.files("build/kernels", "build/demo").items() if "/ir/" not in n} == built

    files = ir_of(project)
    names = sorted(files.keys() - {"index.txt"})
    assert len(names) > 20 and [int(name[:3]) for name in names] == list(range(len(names)))
    assert names[:2] == ["000-definition.tir", "001-tirx.BindTarget.tir"]
    assert all("def main" in files[name] or "def scale" in files[name] for name in names[:30])
    listed = files["index.txt"].splitlines()
    assert listed[0] == "# the IR of scale/dtype-float16 for cuda (sm_80) after each pass, in order"
    assert [line.split()[0] for line in listed if line[0] != "#"] == names
    for before, name in itertools.pairwise(names):
        assert (f"{name} unchanged" in listed) == (files[name] == files[before])
    cpu = "build/kernels/demo/add_one/default/llvm/x86-64-v3"
    assert len(ir_of(project, cpu)) > 20

    assert project.scons("ir").stages == []
    assert project.scons().stages == [] and ir_of(project) == files, "other builds leave it alone"


def test_ir_is_renewed_by_an_edit_and_when_a_file_of_it_is_lost_or_edited(project: Project) -> None:
    project.scons("-j2", "ir", "TARGETS=cuda")
    assert not (project.folder / "build/demo").exists(), "nothing is built for it"
    files = ir_of(project)
    project.write(f"{SCALE_CUDA}/ir/001-tirx.BindTarget.tir", "edited")
    project.write(f"{SCALE_CUDA}/ir/999-of_an_earlier_run.tir", "stale")
    (project.folder / SCALE_CUDA / "ir/002-s_tir.CanonicalizeLoop.tir").unlink()
    assert project.scons("ir", "TARGETS=cuda").stages == ["IR scale/dtype-float16 cuda"]
    assert ir_of(project) == files
    project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(3.0")
    run = project.scons("-j2", "ir", "TARGETS=cuda")
    assert run.stages == ["IR scale/dtype-float16 cuda"]
    assert ir_of(project).keys() == files.keys()
    assert ir_of(project)["000-definition.tir"] == files["000-definition.tir"].replace("2.0", "3.0")


def test_ir_of_a_variant_goes_with_it_and_that_of_others_stays(project: Project) -> None:
    project.replace("kernels/scale.py", '["float16"]', '["float32", "float16"]')
    project.scons("-j2", ".", "ir", "TARGETS=cuda")
    files = ir_of(project, SCALE_CUDA.replace("16", "32"))
    assert files and (project.folder / "build/demo/manifest.json").is_file()
    project.replace("kernels/scale.py", ', "float16"]', "]")
    project.scons("-j2", "TARGETS=cuda")
    assert not (project.folder / SCALE_CUDA).parent.exists()
    assert ir_of(project, SCALE_CUDA.replace("16", "32")) == files
    project.scons("-c", "ir")
    assert not [name for name in project.files("build/kernels") if "/ir/" in name]
    assert project.scons("TARGETS=cuda").stages == []


def test_with_dump_ir_every_build_writes_it_and_builds_the_same(project: Project) -> None:
    project.built("-j2")
    built = project.files("build/demo")
    run = project.scons("-j2", "DUMP_IR=yes")
    assert run.stages == IR_STAGES, "nothing else runs again"
    assert project.files("build/demo") == built
    project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(3.0")
    assert "IR scale/dtype-float16 cuda" in project.scons("-j2", "scale", "DUMP_IR=yes").stages
    assert project.scons("-j2", "DUMP_IR=yes").labels == {"PACKAGE": 1}
    assert project.scons("-j2", "DUMP_IR=yes").stages == []


FAILS = """\
from kernelwright import kernel
from tvm.script import tirx as T


@kernel
def broken():
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((8,), "float32")):
        for i in T.thread_binding(8, thread="threadIdx.x"):
            with T.sblock("x"):
                j = T.axis.spatial(8, i)
                x[j] = T.call_extern("float32", "f", T.call_intrin("float32", "tirx.start_profile_intrinsic"))

    return main
"""


def test_ir_of_a_lowering_that_fails_is_there_up_to_the_failure(project: Project) -> None:
    project.write("kernels/broken.py", FAILS)
    run = project.scons("ir", "TARGETS=cuda", "-k", ok=False)
    assert "broken/default [lower]: TVM cannot lower the function for cuda (sm_80)" in run.output
    folder = "build/kernels/demo/broken/default/cuda"
    files = ir_of(project, folder)
    assert len(files) > 5 and "index.txt" not in files
    assert re.search(rf"the IR up to the failure is in {folder}/ir$", run.output, re.M)
    assert ir_of(project), "that of other kernels is complete"


def test_ir_is_not_written_through_a_link(project: Project) -> None:
    elsewhere = project.write("elsewhere/001-mine.tir", "mine").parent
    folder = project.folder / SCALE_CUDA
    folder.mkdir(parents=True)
    (folder / "ir").symlink_to(elsewhere)
    run = project.scons("ir", "TARGETS=cuda", ok=False)
    assert f"{SCALE_CUDA}/ir is a symbolic link, where builds have a folder" in run.output
    assert project.files("elsewhere") == {"elsewhere/001-mine.tir": b"mine"}
