"""What a package gets of its kernels: when it is assembled again, what is copied, swept, and put into ``dist``."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("SCons")

import SCons.Script.Main
from kernelwright.core.errors import KernelwrightError, Where
from kernelwright.core.files import sha256_of
from kernelwright.define.settings import Settings
from kernelwright.package.size_table import KernelSize
from kernelwright.scons.graph import PackageGraph
from kernelwright.scons.package import StageAction
from kernelwright.scons.progress import Progress
from kernelwright.stages import wheel as wheel_module
from kernelwright.stages.package import Assembly, Built, Part
from kernelwright.stages.partial import Partial
from kernelwright.stages.wheel import finish, put_into
from support import moments
from support.scons_tree import Inputs, graph_of, make_all, stages_of

LIBRARY = "_lib/gemm.so"


@pytest.fixture
def graph(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PackageGraph:
    """A package of one kernel for the CPU with two backends, which was made; its library was not copied yet."""
    settings = Settings(package="demo", targets=("llvm",), backends=("tvm_ffi", "torch"))
    graph = graph_of(tmp_path, monkeypatch, Inputs(settings))
    make_all(graph)
    return graph


def signature(graph: PackageGraph) -> str:
    return stages_of(graph)["PACKAGE demo"].fingerprint


def packaged(graph: PackageGraph, tmp_path: Path) -> Any:
    """Copy what the package gets of the kernel."""
    (tmp_path / "scratch").mkdir(exist_ok=True)
    return graph.assembly._packaged(graph.assembly._parts[0], tmp_path / "scratch")


def rewrite(graph: PackageGraph, name: str) -> None:
    """Have a stage make another content."""
    path = Path(graph.package.work.get_abspath(), "gemm", name)
    path.write_text("new")
    graph.run.journal.record([str(path)])


def turn_backends(graph: PackageGraph) -> None:
    """Have the kernel be called through the same backends, with another default."""
    (part,) = graph.assembly._parts
    assert len(part.backends) == 2
    graph.assembly._parts[0] = replace(part, backends=part.backends[::-1])


CHANGES: dict[str, Callable[[PackageGraph], None]] = {
    "library": lambda graph: rewrite(graph, "gemm.so"),
    "entry": lambda graph: rewrite(graph, "entry.json"),
    "order of backends": turn_backends,
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_another_content_of_what_a_package_gets_is_in_its_signature(graph, tmp_path, change):
    packaged(graph, tmp_path)
    before = signature(graph)
    assert signature(graph) == before
    change(graph)
    assert signature(graph) != before


def test_a_library_is_copied_with_its_digest_and_one_that_is_current_stays(graph, tmp_path):
    copy = Path(graph.package.folder.get_abspath(), LIBRARY)
    missing = signature(graph)
    assert packaged(graph, tmp_path).products[LIBRARY] == (sha256_of(copy), copy.stat().st_size)
    assert copy.read_text() == "gemm.so" and signature(graph) != missing
    before = copy.stat()
    packaged(graph, tmp_path)
    assert (copy.stat().st_ino, copy.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    rewrite(graph, "gemm.so")
    assert packaged(graph, tmp_path).products[LIBRARY] == (sha256_of(copy), 3) and copy.read_text() == "new"


def alter_without_a_trace(copy: Path) -> None:
    status = copy.stat()
    moments.rewrite(copy, b"damage.", (status.st_atime_ns, status.st_mtime_ns))
    assert (copy.stat().st_size, copy.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)


@pytest.mark.parametrize("damage", [lambda copy: copy.write_text("damage"), alter_without_a_trace, Path.unlink])
def test_a_damaged_copy_has_the_package_made_again_and_is_replaced(graph, tmp_path, damage):
    packaged(graph, tmp_path)
    whole, copy = signature(graph), Path(graph.package.folder.get_abspath(), LIBRARY)
    damage(copy)
    assert signature(graph) != whole
    packaged(graph, tmp_path)
    assert copy.read_text() == "gemm.so" and signature(graph) == whole


def test_a_strict_run_reads_copies_whose_stamps_say_nothing(graph, tmp_path):
    packaged(graph, tmp_path)
    whole, copy = signature(graph), Path(graph.package.folder.get_abspath(), LIBRARY)
    copy.write_text("damage.")
    (_, digest) = graph.assembly.copies[LIBRARY]
    status = copy.stat()
    forged = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    graph.assembly.copies[LIBRARY] = forged, digest
    assert signature(graph) == whole, "nothing else can find it"
    graph.run.strict = True
    assert signature(graph) != whole


def test_a_kernel_without_a_library_whose_part_of_the_manifest_fails_is_left_out_of_a_partial_package(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(SCons.Script.Main, "exit_status", 0)
    monkeypatch.setattr(SCons.Script.Main, "this_build_status", 0)
    settings = Settings(package="demo", targets=("cuda",), backends=("cuda_core",))
    graph = graph_of(tmp_path, monkeypatch, Inputs(settings))
    make_all(graph)
    graph.run.partial, graph.run.progress = Partial(tmp_path), Progress(silent=True)
    assert [part.name for part in graph.assembly._whole] == ["gemm"]
    entry = stages_of(graph)["ENTRY gemm"]

    def over_a_limit(*given: object) -> None:
        raise KernelwrightError("too many registers", entry.where)

    entry.instead = over_a_limit
    assert StageAction(entry, graph.run).execute([], [], None) is None
    assert graph.assembly._whole == []


def test_what_kernels_and_archs_of_earlier_runs_left_is_swept_and_forgotten_and_the_rest_stays(graph, tmp_path):
    packaged(graph, tmp_path)
    folder, work = Path(graph.package.folder.get_abspath()), Path(graph.package.work.get_abspath())
    kept = [path for top in (folder, work) for path in top.rglob("*") if path.is_file()]
    gone = [
        *(folder / "_lib/old.so", folder / "_runtime/old.py", folder / "backends/cython/_old.so", folder / "cython.py"),
        *(work / "old/old.so", work / "gemm/m-3/llvm/x86-64-v3/host.o", work / "glibc-2.17/libc.so"),
        Path(graph.package.checks.get_abspath(), "old/default.cpu.json"),
    ]
    mine = [folder / "mine.txt", folder / "data/mine.txt"]
    for path in (*gone, *mine):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    graph.assembly._sweep()
    assert [path for path in gone if path.exists()] == []
    assert all(path.exists() for path in (*kept, *mine))
    assert not (work / "old").exists() and not (work / "gemm/m-3").exists()
    known = {**graph.assembly.copies, "_lib/old.so": ((1, 2, 3, 4), "0" * 64)}
    assembly = Assembly(graph.package.context, graph.assembly._parts, known, graph.package.stages, "")
    assembly._sweep()
    launcher = f"_lib/{Path(graph.package.launcher_stage.paths[0]).name}"
    assert set(assembly.copies) == {LIBRARY, launcher, "backends/torch/_gemm.py"}


def test_the_objects_of_settled_kernels_stay_and_those_that_nobody_needs_go(graph, tmp_path):
    packaged(graph, tmp_path)
    objects = Path(graph.package.work.get_abspath(), "_objects")
    objects.mkdir()
    for name in ("needed.o", "old.o"):
        (objects / name).touch()
    made = {os.path.relpath(objects / "needed.o", graph.package.top): [1, 2, 3, 4]}
    settled = Part("other", ("torch",), Built("other/entry.json", None, ""), {}, made)
    graph.assembly._parts.append(settled)
    graph.assembly._sweep()
    assert [path.name for path in objects.iterdir()] == ["needed.o"]


@pytest.fixture
def built(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Two wheels that were built, the record of their names, and the notes that a run shows."""
    folder = tmp_path / "build"
    folder.mkdir()
    names = {"package": "demo-1.0-py3-none-any.whl", "sm_80": "demo_sm_80-1.0-py3-none-any.whl"}
    for stem in names:
        (folder / f"{stem}.whl").write_text(f"new {stem}")
    (folder / "wheel.json").write_text(json.dumps({"names": names}))
    notes: list[str] = []
    monkeypatch.setattr(wheel_module, "kernel_sizes", lambda *folders: [])
    run = SimpleNamespace(note=notes.append, top=tmp_path)
    context = SimpleNamespace(run=run, package=None, work=None, device_work=None)
    wheels = [folder / f"{stem}.whl" for stem in names]
    dist = tmp_path / "dist"
    return SimpleNamespace(
        names=names,
        notes=notes,
        dist=dist,
        put=lambda: put_into(dist, wheels, folder / "wheel.json", context),
        finish=lambda: finish([SimpleNamespace(outputs={"wheel.json": folder / "wheel.json"})], context),
    )


def test_the_wheel_of_the_package_comes_last_what_is_there_stays_and_one_of_an_earlier_build_is_named(
    built, monkeypatch
):
    replaced: list[str] = []
    replace = Path.replace
    monkeypatch.setattr(Path, "replace", lambda part, target: replaced.append(target.name) or replace(part, target))
    built.put()
    assert replaced == [built.names["sm_80"], built.names["package"]]
    assert {p.name: p.read_text() for p in built.dist.iterdir()} == {n: f"new {s}" for s, n in built.names.items()}
    assert [note for note in built.notes if "dist/" in note] == [
        f"kernelwright: dist/{name} ({len(f'new {stem}'):,} bytes)" for stem, name in built.names.items()
    ]
    before = (built.dist / built.names["sm_80"]).stat()
    cu126 = "demo-1.0+cu126-py3-none-any.whl"
    for name in ("demo_sm_90a-1.0-py3-none-any.whl", "demo-1.0-py3-none-manylinux_2_28_x86_64.whl", cu126):
        (built.dist / name).touch()
    for name in ("demo-1.1-py3-none-any.whl", "demo_more-1.0-py3-none-any.whl", "demo-1.0.tar.gz", "demo-1x0-a.whl"):
        (built.dist / name).touch()
    built.notes.clear()
    built.put()
    assert built.finish() is None
    assert (built.dist / built.names["sm_80"]).stat() == before
    assert [note for note in built.notes if "remove it" in note] == [
        f"kernelwright: dist/{cu126} has this version and is of an earlier build: remove it",
        "kernelwright: dist/demo-1.0-py3-none-manylinux_2_28_x86_64.whl has this version and is of an earlier build: "
        "remove it",
        "kernelwright: dist/demo_sm_90a-1.0-py3-none-any.whl has this version and is of an earlier build: remove it",
    ]


def test_a_wheel_for_a_family_of_cpus_that_was_dropped_is_named(tmp_path: Path) -> None:
    mine, arm = (f"demo-1.0-py3-none-manylinux_2_17_{family}" for family in ("x86_64", "aarch64"))
    for name in (f"{mine}.whl", f"{arm}.whl", f"{mine}-sm_80.whl", f"{arm}-sm_80.whl"):
        (tmp_path / name).touch()
    lines = list(wheel_module._leftovers(tmp_path, [f"{mine}.whl", f"{mine}-sm_80.whl"]))
    assert [line.partition(" has this version and ")[0] for line in lines] == [
        f"dist/{arm}-sm_80.whl",
        f"dist/{arm}.whl",
    ]
    assert all("is for aarch64, and this build is not: remove it, unless another machine" in line for line in lines)


def test_the_index_of_variants_has_those_of_this_build_and_of_other_families(tmp_path, monkeypatch):
    properties = lambda path: {"nvidia": {"sm_arch": [path.stem.rpartition("-")[2]]}}  # noqa: E731
    monkeypatch.setattr("kernelwright.package.variant_checks.properties_of", properties)
    mine, arm = (f"demo-1.0-py3-none-manylinux_2_17_{family}" for family in ("x86_64", "aarch64"))
    names = [f"{mine}.whl", f"{mine}-sm_80.whl"]
    for name in (*names, f"{mine}-sm_90.whl", f"{arm}-sm_100.whl", f"{mine}-sm_70.whl".replace("1.0", "1.1")):
        (tmp_path / name).touch()
    (index,) = wheel_module.write_indexes(tmp_path, names)
    assert set(json.loads((tmp_path / index).read_text())["variants"]) == {"sm_80", "sm_100"}


def test_a_wheel_that_cannot_be_copied_keeps_all_others_back(built):
    for stem in built.names:
        (built.dist).mkdir(exist_ok=True)
        for name in built.names.values():
            (built.dist / name).write_text("old")
        blocked = built.dist / built.names[stem]
        blocked.unlink()
        (blocked / "mine").mkdir(parents=True)
        with pytest.raises(IsADirectoryError):
            built.put()
        others = [p for p in built.dist.iterdir() if p != blocked]
        assert [(p.name in built.names.values(), p.read_text()) for p in others] == [(True, "old")]
        (blocked / "mine").rmdir()
        blocked.rmdir()


def test_a_wheel_may_have_just_the_largest_size_and_the_largest_kernels_are_named(tmp_path, monkeypatch):
    sizes = [
        KernelSize(name, {"sm_80": code}, library)
        for name, code, library in (("a", 9, 1), ("b", 5, 7), ("c", 7, 7), ("d", 8, 2))
    ]
    monkeypatch.setattr(wheel_module, "kernel_sizes", lambda *folders: sizes)
    for check in ("verify_wheel", "verify_together"):
        monkeypatch.setattr(f"kernelwright.package.verify.{check}", lambda *given, **named: [])
    wheel, small = tmp_path / "demo-1.0-py3-none-any.whl", tmp_path / "small.whl"
    wheel.write_bytes(bytes(2048))
    small.touch()

    def require(stem: str, limit: str, *providers: str) -> None:
        request = SimpleNamespace(limit=limit, providers=providers, variants=(), folder=None, work=None, device=None)
        stage: Any = SimpleNamespace(run=SimpleNamespace(top=tmp_path), where=Where(stage="wheel"))
        wheel_module._check({"package": small, "sm_80": small, stem: wheel}, request, stage)

    require("package", "2K")
    require("package", "")
    wheel.write_bytes(bytes(2049))
    with pytest.raises(KernelwrightError, match=r"\]: the wheel has 2,049 bytes, and max_wheel_size is 2K") as caught:
        require("package", "2K")
    assert caught.value.remedy.endswith("the largest kernels are b (7 bytes), c (7 bytes), d (2 bytes)")
    with pytest.raises(KernelwrightError, match=r"\]: the wheel demo-1.0-py3-none-any.whl has") as caught:
        require("sm_80", "2K", "sm_80")
    assert caught.value.remedy.endswith("the largest kernels are a (9 bytes), d (8 bytes), c (7 bytes)")
