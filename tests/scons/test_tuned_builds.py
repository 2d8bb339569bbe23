"""Kernels with a space of tuning parameters: which variants are built, and what an edit of a table makes again."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from typing import Any

import pytest
from kernelwright.core.errors import SettingsError
from kernelwright.discover.tables import tables_in
from kernelwright.ondemand.record import note
from support.project import ADD, SITE_SCONS, Project
from support.tuned import BLOCKS, FILE, GPU, SCALED, SMALL_AND_LARGE, scaled_on_both, table, tuned, write_project


@pytest.fixture
def cpu(cpu_project: Project) -> Project:
    write_project(cpu_project)
    return cpu_project


def lowered(project: Project) -> set[str]:
    """The variants that there are files of."""
    return {path.parent.parent.parent.name for path in project.folder.glob("build/kernels/demo/scaled/*/*/*/host.o")}


def entry(project: Project, kernel: str = "scaled") -> dict[str, Any]:
    manifest = json.loads((project.folder / "build/demo/manifest.json").read_text())
    found: dict[str, Any] = manifest["kernels"][kernel]
    return found


DECLARED = {"dtype-float32_block-1", "dtype-float64_block-1"}


def test_without_a_table_only_the_first_points_are_built(cpu: Project) -> None:
    assert cpu.scons("-j2").labels["LOWER"] == 2
    assert lowered(cpu) == DECLARED
    assert entry(cpu)["declared"] == 2 and "tables" not in entry(cpu)
    assert [variant["config"] for variant in entry(cpu)["variants"]] == [
        {"dtype": "float32", "block": 1},
        {"dtype": "float64", "block": 1},
    ]
    assert cpu.scons("-j2").stages == []


def test_a_table_adds_the_variants_that_it_chooses_and_an_edit_runs_no_compiler_of_kernels(cpu: Project) -> None:
    cpu.scons("-j2")
    cpu.write(FILE, SMALL_AND_LARGE)
    run = cpu.scons("-j2")
    assert [stage for stage in run.stages if stage.startswith("LOWER")] == [
        "LOWER scaled/dtype-float32_block-16 x86-64-v3",
        "LOWER scaled/dtype-float32_block-4 x86-64-v3",
    ]
    slugs = [variant["slug"] for variant in entry(cpu)["variants"]]
    assert slugs == [
        "dtype-float32_block-1",
        "dtype-float64_block-1",
        "dtype-float32_block-4",
        "dtype-float32_block-16",
    ]
    assert entry(cpu)["declared"] == 2
    found = {"target": "llvm", "arch": "x86-64-v3", "name": "AMD EPYC 9B45", "count": 2}
    assert entry(cpu)["tables"] == [{**found, "rules": {"0": {"by": ["n"], "ranges": [[64, 2], [None, 3]]}}}]
    assert cpu.scons("-j2").stages == []

    cpu.write(FILE, table(tuned("float32", (128, {"block": 4}), (None, {"block": 16}))))
    labels = cpu.scons("-j2").labels
    assert labels.keys() <= {"WRAP", "CC", "LINK", "PACKAGE"} and labels.keys() >= {"WRAP", "LINK", "PACKAGE"}
    assert entry(cpu)["tables"][0]["rules"]["0"]["ranges"][0] == [128, 2]

    small = tuned("float32", (128, {"block": 1}), (None, {"block": 16}))
    cpu.write(FILE, table(small, tuned("float64", (None, {"block": 4}))))
    run = cpu.scons("-j2")
    assert [stage for stage in run.stages if stage.startswith("LOWER")] == [
        "LOWER scaled/dtype-float64_block-4 x86-64-v3"
    ]
    assert lowered(cpu) == {*DECLARED, "dtype-float32_block-16", "dtype-float64_block-4"}, "the other one is removed"
    rules = entry(cpu)["tables"][0]["rules"]
    assert rules == {"0": {"by": ["n"], "ranges": [[128, 0], [None, 2]]}, "1": {"by": [], "ranges": [[None, 3]]}}

    (cpu.folder / FILE).unlink()
    assert "LOWER" not in cpu.scons("-j2").labels
    assert lowered(cpu) == DECLARED and "tables" not in entry(cpu)


def test_a_text_that_says_the_same_makes_nothing(cpu: Project) -> None:
    cpu.write(FILE, SMALL_AND_LARGE)
    cpu.scons("-j2")
    cpu.write(FILE, json.dumps(json.loads(SMALL_AND_LARGE), indent=3))
    assert cpu.scons("-j2").stages == []
    assert cpu.scons("-j2").counts[1] > 0


def test_what_a_table_chooses_is_checked_and_called(cpu: Project) -> None:
    cpu.write(FILE, SMALL_AND_LARGE)
    assert cpu.scons("-j2", "build", "check").labels["CHECK"] == 4
    program = """
        import demo, numpy as np
        for n in (0, 1, 63, 64, 65, 1000):
            x = np.arange(n, dtype="float32")
            assert (np.from_dlpack(demo.scaled(x)) == 2 * x).all()
        print(len(demo.scaled.variants))
    """
    assert cpu.python(program) == "4\n"


STALE = (
    f"kernelwright: {FILE}:7: the space of scaled does not have the point {{'block': 4}} any more, so the first point"
)


def test_a_point_that_is_gone_warns_and_is_an_error_with_strict(cpu: Project) -> None:
    cpu.write(FILE, SMALL_AND_LARGE)
    cpu.replace("kernels/scaled.py", BLOCKS, "grid(block=[1, 16])")
    first = cpu.scons("-j2")
    assert STALE in first.output and "kernelwright tune scaled" in first.output
    again = cpu.scons("-j2")
    assert again.stages == [] and STALE in again.output, "also where the kernel is settled"
    assert entry(cpu)["tables"][0]["rules"]["0"]["ranges"] == [[64, 0], [None, 2]]
    run = cpu.scons("-j2", "--strict", ok=False)
    assert f"{FILE}:7 scaled [tuning]: the space of scaled does not have the point" in run.output


def test_a_config_that_is_gone_warns_and_is_an_error_with_strict(cpu: Project) -> None:
    cpu.write(FILE, table(tuned("float16", (None, {"block": 4})), tuned("float32", (None, {"block": 16}))))
    said = f"{FILE}:5: config {{'dtype': 'float16'}} is not declared any more, so these rules do not count"
    assert said in cpu.scons("-j2").output
    assert entry(cpu)["tables"][0]["rules"] == {"0": {"by": [], "ranges": [[None, 2]]}}
    run = cpu.scons("-j2", "--strict", ok=False)
    assert f"{FILE}:5 scaled [tuning]: config" in run.output


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"schema": 1,\n "kernel"}', f"{FILE}:2 scaled [tuning]: expected ':' behind 'kernel'"),
        (SMALL_AND_LARGE.replace('"upto": 64', '"upto": -64'), f"{FILE}:7 scaled [tuning]: "),
        (SMALL_AND_LARGE.replace('"by": ["n"]', '"by": ["m"]'), f"{FILE}:5 scaled [tuning]: by names 'm'"),
    ],
)
def test_a_table_that_is_wrong_is_an_error_with_its_line(cpu: Project, text: str, said: str) -> None:
    cpu.write(FILE, text)
    run = cpu.scons("-j2", ok=False)
    assert said in run.output and "remedy: " in run.output


@pytest.mark.parametrize(
    ("kind", "said"), [("file", "Not a directory"), ("dangling", "a link to nothing"), ("loop", "symbolic links")]
)
def test_what_is_no_folder_of_tables_does_not_count_as_none(cpu: Project, kind: str, said: str) -> None:
    folder = cpu.folder / "tuning"
    if kind == "file":
        folder.write_text("{}")
    else:
        folder.symlink_to("gone" if kind == "dangling" else "tuning")
    with pytest.raises(SettingsError, match=f"tuning.*cannot be read as the folder of the tuning tables: .*{said}"):
        tables_in(cpu.folder, "tuning")


def test_a_file_in_place_of_the_folder_of_tables_is_an_error_of_a_build(cpu: Project) -> None:
    cpu.write("kernels/scaled.py", ADD)
    cpu.scons("-j2")
    cpu.write("tuning", "no folder")
    run = cpu.scons("-j2", ok=False)
    assert "cannot be read as the folder of the tuning tables: Not a directory" in run.output
    assert 'remedy: remove or mend it, or set tuning = "FOLDER"' in run.output and "Traceback" not in run.output
    cpu.scons("-j2", "TUNING=tables")


def test_a_folder_of_tables_that_is_not_there_or_a_link_to_one_is_none_or_that_one(cpu: Project) -> None:
    assert tables_in(cpu.folder, "tuning") == tables_in(cpu.folder, "none/below") == {}
    cpu.write("elsewhere/scaled.cpu.json", "{}")
    (cpu.folder / "tuning").symlink_to("elsewhere")
    assert tables_in(cpu.folder, "tuning") == {"scaled": ("tuning/scaled.cpu.json",)}


def test_two_tables_of_one_device_are_an_error(cpu: Project) -> None:
    cpu.write(FILE, SMALL_AND_LARGE)
    cpu.write("tuning/scaled.other.json", SMALL_AND_LARGE)
    run = cpu.scons("-j2", ok=False)
    assert f"{FILE}:2 scaled [tuning]: it is of the same device as tuning/scaled.other.json" in run.output


def test_a_malformed_table_of_one_kernel_leaves_the_others_with_k_and_in_a_partial_package(cpu: Project) -> None:
    cpu.write("kernels/add_one.py", ADD)
    cpu.write(FILE, "{")
    run = cpu.scons("-j2", "-k", ok=False)
    assert "LINK add_one" in run.stages and f"{FILE}:1 scaled" in run.output
    run = cpu.scons("-j2", "--partial", ok=None)
    assert f"{FILE}:1 scaled" in run.output
    manifest = json.loads((cpu.folder / "build/demo/manifest.json").read_text())
    assert list(manifest["kernels"]) == ["add_one"] and manifest["missing"][0]["location"] == f"{FILE}:1"


def test_tables_of_no_kernel_and_of_kernels_without_a_space_are_told(cpu: Project) -> None:
    cpu.write("kernels/add_one.py", ADD)
    gone = "tuning/gone.x86-64-v3-cpu-2.json"
    cpu.write(gone, table(kernel="gone"))
    cpu.write("tuning/add_one.x86-64-v3-cpu-2.json", table(kernel="add_one"))
    for _ in range(2):
        output = cpu.scons("-j2").output
        assert f"kernelwright: {gone} has no effect: no kernel 'gone' is built" in output
        assert "kernelwright: tuning/add_one.x86-64-v3-cpu-2.json has no effect: add_one has no space" in output
    (cpu.folder / gone).unlink()
    assert "gone" not in cpu.scons("-j2").output


def test_a_new_table_for_a_settled_kernel_without_a_space_is_told(cpu: Project) -> None:
    cpu.write("kernels/add_one.py", ADD)
    cpu.scons("-j2")
    cpu.scons("-j2")
    cpu.write("tuning/add_one.x86-64-v3-cpu-2.json", table(kernel="add_one"))
    run = cpu.scons("-j2")
    assert "add_one has no space" in run.output and run.stages == []


def test_two_packages_share_the_folder_of_the_tables_or_have_one_each(cpu: Project) -> None:
    cpu.write("other/added.py", ADD)
    text = (cpu.folder / "SConstruct").read_text()
    cpu.write("SConstruct", f'{text}env.KernelPackage("second", env.Glob("other/*.py"))\n')
    cpu.write(FILE, SMALL_AND_LARGE)
    run = cpu.scons("-j2", ".")
    assert "has no effect" not in run.output and len(entry(cpu)["variants"]) == 4
    assert "has no effect" not in cpu.scons("-j2", ".").output
    apart = text.replace('Glob("kernels/*.py")', 'Glob("kernels/*.py"), tuning="more"')
    cpu.write("SConstruct", f'{apart}env.KernelPackage("second", env.Glob("other/*.py"))\n')
    run = cpu.scons("-j2", ".")
    assert f"{FILE} has no effect: no kernel 'scaled' is built" in run.output, "of the second package's folder"
    assert len(entry(cpu)["variants"]) == 2


def test_a_table_of_an_arch_that_is_not_built_adds_nothing(cpu: Project) -> None:
    cpu.write("tuning/scaled.sm_80-108.json", table(tuned("float32", (None, {"block": 4})), device=GPU))
    cpu.scons("-j2")
    assert lowered(cpu) == DECLARED and "tables" not in entry(cpu)


def test_a_table_adds_a_variant_for_its_arch_only(project: Project) -> None:
    write_project(project)
    project.write("pyproject.toml", '[tool.kernelwright]\narchs = ["x86-64-v2", "x86-64-v3", "sm_80", "sm_90a"]\n')
    text = SCALED.replace(
        "T.serial((n + block - 1) // block)", 'T.thread_binding((n + block - 1) // block, "blockIdx.x")'
    )
    text = text.replace("T.serial(block)", 'T.thread_binding(block, "threadIdx.x")')
    project.write("kernels/scaled.py", text.replace("grid(block=[1, 4, 16])", "grid(block=[4, 16])"))
    project.replace("kernels/scaled.py", "outputs=", 'targets=["cuda"], outputs=')
    project.write("tuning/scaled.sm_80-108.json", table(tuned("float32", (None, {"block": 16})), device=GPU))
    run = project.scons("-j2")
    assert [stage for stage in run.stages if stage.startswith("CUBIN") and "block-16" in stage] == [
        "CUBIN scaled/dtype-float32_block-16 sm_80"
    ]
    assert run.labels["CUBIN"] == 5
    assert entry(project)["variants"][2]["archs"] == ["sm_80"]
    assert entry(project)["tables"][0]["rules"] == {"0": {"by": [], "ranges": [[None, 2]]}}


def test_targets_have_declared_variants_of_their_own(cpu: Project) -> None:
    cpu.replace(
        "kernels/scaled.py", f"tune={BLOCKS}", "tune=lambda target: grid(block=[4, 1] if target == 'llvm' else [1, 4])"
    )
    cpu.scons("-j2")
    assert lowered(cpu) == {"dtype-float32_block-4", "dtype-float64_block-4"}


def test_recorded_configs_narrow_the_choices_and_tables_still_count(cpu: Project) -> None:
    cpu.write(FILE, SMALL_AND_LARGE)
    note(cpu.folder / "configs.json", "scaled", {"dtype": "float32", "block": 16})
    cpu.scons("-j2", "CONFIGS=configs.json")
    assert lowered(cpu) == {f"dtype-float32_block-{block}" for block in (1, 4, 16)}
    note(cpu.folder / "configs.json", "scaled", {"dtype": "float16", "block": 8})
    cpu.scons("-j2", "CONFIGS=configs.json")
    slugs = [variant["slug"] for variant in entry(cpu)["variants"]]
    assert slugs[:2] == ["dtype-float16_block-8", "dtype-float32_block-1"] and entry(cpu)["declared"] == 2


def test_a_partial_package_has_rules_for_what_was_made(cpu: Project) -> None:
    cpu.replace(
        "kernels/scaled.py", "    @T.prim_func", '    if block == 4:\n        raise ValueError("4")\n\n    @T.prim_func'
    )
    cpu.write(FILE, SMALL_AND_LARGE)
    cpu.scons("-j2", "--partial", ok=False)
    assert [variant["config"]["block"] for variant in entry(cpu)["variants"]] == [1, 1, 16]
    assert entry(cpu)["declared"] == 2
    assert entry(cpu)["tables"][0]["rules"] == {"0": {"by": ["n"], "ranges": [[64, 0], [None, 2]]}}


METADATA = """
[build-system]
requires = ["kernelwright"]
build-backend = "kernelwright.build"

[project]
name = "demo"
version = "1.0"
"""


def test_what_is_built_of_a_source_distribution_is_tuned(
    cpu: Project, tmp_path_factory: pytest.TempPathFactory
) -> None:
    cpu.write("pyproject.toml", f'[tool.kernelwright]\npackage = "demo"\ntargets = ["llvm"]\n{METADATA}')
    cpu.write(FILE, SMALL_AND_LARGE)
    for command in (
        ["init", "-q"],
        ["add", "-A"],
        ["-c", "user.name=x", "-c", "user.email=x@y.z", "commit", "-qm", "x"],
    ):
        subprocess.run(["git", *command], cwd=cpu.folder, check=True)
    out = tmp_path_factory.mktemp("out")
    program = f"from kernelwright.build import build_sdist; build_sdist({str(out)!r})"
    environment = {**os.environ, "PYTHONPATH": str(SITE_SCONS)}
    subprocess.run([sys.executable, "-c", program], cwd=cpu.folder, env=environment, check=True)
    with tarfile.open(out / "demo-1.0.tar.gz") as packed:
        packed.extractall(out, filter="data")
    unpacked = Project(out / "demo-1.0")
    unpacked.scons("-j2")
    cpu.scons("-j2")
    assert entry(unpacked) == entry(cpu) and len(entry(cpu)["tables"]) == 1


def test_cleaning_leaves_the_tables(cpu: Project) -> None:
    cpu.write(FILE, SMALL_AND_LARGE)
    cpu.scons("-j2")
    cpu.scons("-c")
    assert (cpu.folder / FILE).is_file() and not (cpu.folder / "build/kernels/demo").exists()


def test_a_table_of_one_target_leaves_what_is_declared_for_another_one(project: Project) -> None:
    """It has chosen what is declared for the CPU, for one arch: a call on another GPU is not compared with that."""
    write_project(project)
    archs = '["x86-64-v2", "sm_80", "sm_90a"]'
    project.write("pyproject.toml", f'[tool.kernelwright]\ntargets = ["llvm", "cuda"]\narchs = {archs}\n')
    project.write("kernels/scaled.py", scaled_on_both().replace('"float32", "float64"', '"float32"'))
    project.write("tuning/scaled.sm_80-108.json", table(tuned("float32", (None, {"block": 16})), device=GPU))
    project.scons("-j2")
    of_cpu, of_gpu = entry(project)["variants"]
    assert (of_cpu["archs"], of_cpu["tabled"]) == (["x86-64-v2", "sm_80"], ["cuda"])
    assert of_gpu["archs"] == ["sm_80", "sm_90a"] and "tabled" not in of_gpu
    program = """
        import demo, numpy as np
        demo.scaled.preload("cpu")
        assert demo.scaled.supported("cpu") and (np.from_dlpack(demo.scaled(np.ones(3, "float32"))) == 2).all()
    """
    assert project.python(program) == ""
