"""Tuning tables in use: what they choose is built and called, by scons and on demand, through every backend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from typing import Any

import pytest
from kernelwright.define.tuning import TableDevice, TunedConfig
from kernelwright.ondemand.record import note
from kernelwright.tune.device import device_of
from support.demand import Demand
from support.project import ADD, SCONSTRUCT, SITE_SCONS, Project
from support.tuned import BLOCKS, FILE, GPU, SMALL_AND_LARGE, scaled_on_both, table, tuned, write_project

WHICH = '''\
from kernelwright import grid, kernel
from tvm.script import tirx as T


@kernel(configs=grid(dtype=["float32", "int32"]), tune=grid(block=[1, 4, 16]), outputs=["out"])
def which(dtype: str, block: int):
    """Every element of out is the block of the variant that has run."""

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, out_handle: T.handle):
        m, n = T.int32(), T.int32()
        x = T.match_buffer(x_handle, (m, n), dtype)
        out = T.match_buffer(out_handle, (m,), dtype)
        for i in T.serial(m):
            with T.sblock("out"):
                j = T.axis.spatial(m, i)
                out[j] = T.cast(block, dtype)

    return main
'''

HERE = TableDevice("llvm", "x86-64-v3", device_of("cpu").name, device_of("cpu").count)
"""This machine. All levels of x86-64 that the tests need are its own."""

BY_M = tuned("float32", (8, {"block": 4}), (64, {"block": 1}), (None, {"block": 16}), by=("m",))
BY_BOTH = tuned("int32", (100, {"block": 1}), (None, {"block": 4}), by=("m", "n"))
OF_WHICH = "tuning/which.here.json"


def only(project: Project, name: str, definition: str) -> Project:
    """The project with this kernel in place of its own."""
    for path in (project.folder / "kernels").glob("*.py"):
        path.unlink()
    project.write(f"kernels/{name}.py", definition)
    return project


class Built:
    """The kernel ``which``, built by scons: what runs, and what was said."""

    def __init__(self, project: Project) -> None:
        self.project, self.said = only(project, "which", WHICH), ""

    def table(self, *configs: TunedConfig) -> None:
        self.project.write(OF_WHICH, table(*configs, device=HERE, kernel="which"))

    def ran(self, *sizes: tuple[int, int], dtype: str = "float32") -> list[int]:
        """The blocks of the variants that ran at some sizes."""
        self.said = self.project.scons("-j2").output
        program = f"""
            import demo, numpy as np
            print([int(np.from_dlpack(demo.which(np.zeros(size, {dtype!r})))[0]) for size in {sizes}])
        """
        found: list[int] = json.loads(self.project.python(program))
        return found

    def error(self) -> str:
        return self.project.scons("-j2", ok=False).output


class OnDemand(Built):
    """The same, compiled when it is called."""

    def __init__(self, project: Project) -> None:
        super().__init__(project)
        self.demand = Demand(project)

    def ran(self, *sizes: tuple[int, int], dtype: str = "float32") -> list[int]:
        program = f"""
            which = kw.load("kernels/which.py").which
            print([int(array(which(np.zeros(size, {dtype!r})))[0]) for size in {sizes}])
        """
        done = self.demand.run(program)
        self.said = done.stderr
        found: list[int] = json.loads(done.stdout)
        return found

    def error(self) -> str:
        return self.demand.run('kw.load("kernels/which.py").which(np.zeros((3, 3), "float32"))', ok=False).stderr


@pytest.fixture(params=[Built, OnDemand])
def driver(request: pytest.FixtureRequest, cpu_project: Project) -> Built:
    made: Built = request.param(cpu_project)
    return made


# ---- whatever builds


def test_a_table_decides_by_sizes_until_it_is_edited_or_removed(driver: Built) -> None:
    assert driver.ran((1, 3), (20, 3), (70, 3)) == [1, 1, 1], "the first point of the space"
    driver.table(BY_M, BY_BOTH)
    assert driver.ran((1, 3), (8, 3), (9, 3), (64, 3), (65, 3)) == [4, 4, 1, 1, 16]
    assert driver.ran((10, 10), (10, 11), dtype="int32") == [1, 4], "the product of both sizes decides"
    driver.project.replace(OF_WHICH, '"upto": 8,', '"upto": 9,')
    assert driver.ran((9, 3), (10, 3)) == [4, 1]
    (driver.project.folder / OF_WHICH).unlink()
    assert driver.ran((1, 3), (70, 3)) == [1, 1]


def test_a_point_that_is_gone_is_told_and_the_first_one_runs(driver: Built) -> None:
    driver.table(tuned("float32", (8, {"block": 5}), (None, {"block": 16}), by=("m",)))
    assert driver.ran((1, 3), (70, 3)) == [1, 16]
    assert f"{OF_WHICH}:" in driver.said and "does not have the point {'block': 5} any more" in driver.said


def test_a_damaged_table_is_an_error_with_its_line(driver: Built) -> None:
    driver.project.write(OF_WHICH, "{")
    assert f"{OF_WHICH}:1" in driver.error()


def test_tables_of_another_arch_do_not_count(driver: Built) -> None:
    driver.project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\narchs = ["x86-64"]\n')
    driver.table(BY_M)
    assert driver.ran((1, 3), (70, 3)) == [1, 1]


def test_targets_have_first_points_of_their_own(driver: Built) -> None:
    points = "tune=lambda target: grid(block=[4, 1] if target == 'llvm' else [1, 4])"
    driver.project.replace("kernels/which.py", f"tune={BLOCKS}", points)
    assert driver.ran((1, 3)) == [4]


# ---- packages


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


def test_a_table_adds_the_variants_that_it_chooses_and_an_edit_runs_no_compiler_of_kernels(cpu: Project) -> None:
    assert cpu.scons("-j2").labels["LOWER"] == 2 and lowered(cpu) == DECLARED
    assert entry(cpu)["declared"] == 2 and "tables" not in entry(cpu)
    cpu.write(FILE, SMALL_AND_LARGE)
    run = cpu.scons("-j2")
    assert [stage for stage in run.stages if stage.startswith("LOWER")] == [
        "LOWER scaled/dtype-float32_block-16 x86-64-v3",
        "LOWER scaled/dtype-float32_block-4 x86-64-v3",
    ]
    slugs = [variant["slug"] for variant in entry(cpu)["variants"]]
    assert slugs == [
        *("dtype-float32_block-1", "dtype-float64_block-1", "dtype-float32_block-4", "dtype-float32_block-16")
    ]
    assert entry(cpu)["declared"] == 2
    found = {"target": "llvm", "arch": "x86-64-v3", "name": "AMD EPYC 9B45", "count": 2}
    assert entry(cpu)["tables"] == [{**found, "rules": {"0": {"by": ["n"], "ranges": [[64, 2], [None, 3]]}}}]
    cpu.write(FILE, json.dumps(json.loads(SMALL_AND_LARGE), indent=3))
    assert cpu.scons("-j2").stages == [], "a text that says the same"
    assert cpu.scons("-j2", "build", "check").labels["CHECK"] == 4

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

    cpu.scons("-c")
    assert (cpu.folder / FILE).is_file() and not (cpu.folder / "build/kernels/demo").exists(), "cleaning leaves tables"
    (cpu.folder / FILE).unlink()
    assert cpu.scons("-j2").labels["LOWER"] == 2
    assert lowered(cpu) == DECLARED and "tables" not in entry(cpu)


STALE = (
    f"kernelwright: {FILE}:7: the space of scaled does not have the point {{'block': 4}} any more, so the first point"
)


def test_what_is_gone_from_the_definition_warns_each_time_and_is_an_error_with_strict(cpu: Project) -> None:
    cpu.write(FILE, SMALL_AND_LARGE)
    cpu.replace("kernels/scaled.py", BLOCKS, "grid(block=[1, 16])")
    first = cpu.scons("-j2")
    assert STALE in first.output and "kernelwright tune scaled" in first.output
    again = cpu.scons("-j2")
    assert again.stages == [] and STALE in again.output, "also where the kernel is settled"
    assert entry(cpu)["tables"][0]["rules"]["0"]["ranges"] == [[64, 0], [None, 2]]
    run = cpu.scons("-j2", "--strict", ok=False)
    assert f"{FILE}:7 scaled [tuning]: the space of scaled does not have the point" in run.output
    cpu.write(FILE, table(tuned("float16", (None, {"block": 16})), tuned("float32", (None, {"block": 16}))))
    said = f"{FILE}:5: config {{'dtype': 'float16'}} is not declared any more, so these rules do not count"
    assert said in cpu.scons("-j2").output
    assert entry(cpu)["tables"][0]["rules"] == {"0": {"by": [], "ranges": [[None, 2]]}}
    assert f"{FILE}:5 scaled [tuning]: config" in cpu.scons("-j2", "--strict", ok=False).output


def test_tables_that_do_not_fit_are_errors_with_their_line(cpu: Project) -> None:
    for text, said in (
        (SMALL_AND_LARGE.replace('"upto": 64', '"upto": -64'), f"{FILE}:7 scaled [tuning]: "),
        (SMALL_AND_LARGE.replace('"by": ["n"]', '"by": ["m"]'), f"{FILE}:5 scaled [tuning]: by names 'm'"),
    ):
        cpu.write(FILE, text)
        run = cpu.scons("-j2", ok=False)
        assert said in run.output and "remedy: " in run.output
    cpu.write(FILE, SMALL_AND_LARGE)
    cpu.write("tuning/scaled.other.json", SMALL_AND_LARGE)
    run = cpu.scons("-j2", ok=False)
    assert f"{FILE}:2 scaled [tuning]: it is of the same device as tuning/scaled.other.json" in run.output


def test_a_file_in_place_of_the_folder_of_tables_is_an_error_of_a_build(cpu: Project) -> None:
    cpu.write("kernels/scaled.py", ADD)
    cpu.scons("-j2")
    cpu.write("tuning", "no folder")
    run = cpu.scons("-j2", ok=False)
    assert "cannot be read as the folder of the tuning tables: Not a directory" in run.output
    assert 'remedy: remove or mend it, or set tuning = "FOLDER"' in run.output and "Traceback" not in run.output
    cpu.scons("-j2", "TUNING=tables")


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
    cpu.scons("-j2")
    gone = "tuning/gone.x86-64-v3-cpu-2.json"
    cpu.write(gone, table(kernel="gone"))
    cpu.write("tuning/add_one.x86-64-v3-cpu-2.json", table(kernel="add_one"))
    for _ in range(2):
        run = cpu.scons("-j2")
        assert f"kernelwright: {gone} has no effect: no kernel 'gone' is built" in run.output
        assert "kernelwright: tuning/add_one.x86-64-v3-cpu-2.json has no effect: add_one has no space" in run.output
        assert run.stages == [], "what is settled stays"
    (cpu.folder / gone).unlink()
    assert "gone" not in cpu.scons("-j2").output


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


def test_what_is_built_of_a_source_distribution_is_tuned(cpu, tmp_path_factory):
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


# ---- calls of packages


BACKENDS = ("tvm_ffi", "cython", "torch", "jax")

SIZES = [(1, 3, "float32"), (8, 3, "float32"), (9, 3, "float32"), (64, 3, "float32"), (65, 3, "float32")]
SIZES += [(10, 10, "int32"), (10, 11, "int32"), (101, 1, "int32")]
RAN = [4, 4, 1, 1, 16, 1, 4, 4]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project(tmp_path_factory.mktemp("tuning"))
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\narchs = ["x86-64-v3"]\n')
    project.write("kernels/which.py", WHICH)
    project.write(OF_WHICH, table(BY_M, BY_BOTH, device=HERE, kernel="which"))
    project.built("-j2", f"BACKENDS={','.join(BACKENDS)}")
    return project


CALLS = """
import json
import numpy as np
import demo

def called(backend, taken, made):
    which, found = getattr(demo.backends, backend).which, []
    for m, n, dtype in SIZES:
        x = made(m, n, dtype)
        found.append([int(taken(which(x))[0]), which.choice(x).config["block"], which.choice(x).reason])
    print(json.dumps(found))

zeros = lambda m, n, dtype: np.zeros((m, n), dtype)
called("tvm_ffi", np.from_dlpack, zeros)
"""

OTHER_CALLS = """
import jax, torch
called("cython", np.from_dlpack, zeros)
called("torch", lambda y: y, lambda m, n, dtype: torch.zeros(m, n, dtype=getattr(torch, dtype)))
called("jax", lambda y: y, lambda m, n, dtype: jax.numpy.zeros((m, n), dtype))
which = demo.backends.torch.which
x = torch.zeros(3, 130).t()  # 130 rows, not contiguous: a call copies it
print(int(which(x)[0]), which.choice(x).config["block"])
compiled = torch.compile(which, fullgraph=True, backend="eager")
print([int(compiled(torch.zeros(m, 3))[0]) for m in (1, 20, 70)])
jitted = jax.jit(demo.backends.jax.which)
print([int(jitted(jax.numpy.zeros((m, 3), "float32"))[0]) for m in (1, 20, 70)])
"""


def test_each_size_runs_the_variant_of_the_table_through_every_backend_compiled_or_not(built: Project) -> None:
    *lines, copied, compiled, jitted = built.python(f"SIZES = {SIZES}\n{CALLS}{OTHER_CALLS}").splitlines()
    known = f"the tuning table of '{HERE.name}' (count {HERE.count}), which is this device, has "
    for backend, found in zip(BACKENDS, map(json.loads, lines), strict=True):
        assert [ran for ran, _, _ in found] == [block for _, block, _ in found] == RAN, backend
        reasons = [reason for _, _, reason in found]
        assert reasons[0] == f"{known}dtype-float32_block-4 for m = 1, up to 8"
        assert reasons[4] == f"{known}dtype-float32_block-16 for m = 65, above 64"
        assert reasons[5] == f"{known}dtype-int32_block-1 for m * n = 100, up to 100"
    assert (copied, compiled, jitted) == ("16 16", "[4, 1, 16]", "[4, 1, 16]")


def test_variants_that_only_tables_name_are_not_listed_in_errors_and_not_compared(built: Project) -> None:
    code = """
        import demo, numpy as np
        try:
            demo.which(np.zeros((3, 3), "float64"))
        except TypeError as error:
            print(str(error).count("expects:"))
        print(len(demo.which.variants), len(demo.misses()))
        print(demo.which.supported("cpu"))
        demo.preload()
        alone = demo.which.variant(dtype="float32", block=16)
        x = np.zeros((1, 3), "float32")
        print(int(np.from_dlpack(alone(x))[0]), alone.choice(x).config["block"], alone.choice(x).reason)
    """
    assert built.python(code).splitlines() == ["2", "5 1", "True", "16 16 it is the variant that was asked for"]


def test_the_choice_raises_what_a_call_raises_and_takes_what_it_takes(built: Project) -> None:
    code = """
        import demo, numpy as np
        x = np.zeros((3, 3), "float32")
        y = x.copy()
        y.flags.writeable = False
        for backend in ("tvm_ffi", "cython"):
            which = getattr(demo.backends, backend).which
            print(which.choice(y).config["block"], which.choice(x, np.zeros(3, "float32")).config["block"])
            for arguments in ((x, x, x), (x.astype("float64"),), ("text",), (x, y[0])):
                texts = []
                for function in (which, which.choice):
                    try:
                        function(*arguments)
                    except Exception as error:
                        texts.append(f"{type(error).__name__}: {error}")
                assert len(texts) == 2 and texts[0] == texts[1], texts
        print(which.choice(x=x).variant, len(demo.misses()))
    """
    said = built.python(code).splitlines()
    assert said == ["4 4", "4 4", "dtype-float32_block-4 1"]


NEAREST = TableDevice("llvm", "x86-64-v3", "another CPU", HERE.count + 4)


def test_a_table_of_another_device_counts_until_there_is_one_of_this(built: Project) -> None:
    """An edit of tables makes no code for devices again."""
    always = (tuned("float32", (None, {"block": 16}), by=()), tuned("int32", (None, {"block": 1}), by=()))
    built.write(OF_WHICH, table(*always, device=NEAREST, kernel="which"))
    try:
        labels = built.scons("-j2", f"BACKENDS={','.join(BACKENDS)}").labels
        assert "LOWER" not in labels
        found = json.loads(built.python(f"SIZES = {SIZES}\n{CALLS}"))
        assert [ran for ran, _, _ in found[:5]] == [16] * 5
        assert f"of 'another CPU' (count {HERE.count + 4}), the nearest to this device, '{HERE.name}'" in found[0][2]
    finally:
        built.write(OF_WHICH, table(BY_M, BY_BOTH, device=HERE, kernel="which"))


# ---- on demand


@pytest.fixture
def demand(cpu_project: Project) -> Demand:
    write_project(cpu_project)
    return Demand(cpu_project)


def test_a_callers_config_means_the_first_point_and_all_keys_mean_that_candidate(demand: Demand) -> None:
    demand.run("""
        scaled = kw.load("kernels/scaled.py").scaled
        first = scaled.compile(dtype="float64")
        assert list(first.variants) == [{"dtype": "float64", "block": 1}]
        again = scaled.compile(block=1, dtype="float64")
        assert (again.key, again.cached) == (first.key, True), "one kernel, however it is named"
        other = scaled.compile(dtype="float64", block=16)
        assert list(other.variants) == [{"dtype": "float64", "block": 16}] and other.key != first.key
        unlisted = scaled.compile(dtype="float64", block=3)
        assert list(unlisted.variants) == [{"dtype": "float64", "block": 3}]
        assert list(scaled.compile().variants) == [{"dtype": "float32", "block": 1}]
        assert [one.variants[0] for one in scaled.par_compile()] == [
            {"dtype": "float32", "block": 1}, {"dtype": "float64", "block": 1}
        ]
        x = np.arange(1000, dtype="float64")
        for one in (first, other, unlisted):
            assert (array(one(x)) == 2 * x).all()
        with pytest.raises(kw.KernelwrightError, match="'m' is not a parameter"):
            scaled.compile(dtype="float64", m=3)
    """)


def test_a_candidate_is_the_one_that_a_build_makes(demand: Demand) -> None:
    demand.project.write(FILE, SMALL_AND_LARGE)
    demand.project.scons("-j2")
    ran = demand.run(
        'kw.load("kernels/scaled.py").scaled.compile(dtype="float32", block=4)', env={"KERNELWRIGHT_VERBOSE": "1"}
    )
    assert "[ CACHED ] LOWER scaled/dtype-float32_block-4 x86-64-v3" in ran.stderr
    assert "[ LOWER ]" not in ran.stderr


def test_a_running_program_sees_when_a_table_is_edited(demand: Demand) -> None:
    first = table(tuned("float32", (64, {"block": 4}), (None, {"block": 16})), device=HERE)
    second = table(tuned("float32", (None, {"block": 16})), device=HERE)
    demand.project.write("first.json", first)
    demand.project.write("second.json", second)
    demand.run(f"""
        import pathlib, shutil
        scaled = kw.load("kernels/scaled.py").scaled
        small, large, double = np.ones(64, "float32"), np.ones(65, "float32"), np.ones(64, "float64")
        def chosen(x):
            assert (array(scaled(x)) == 2 * x).all()
            return list(scaled._eager._choices.chosen.values())[-1].choice(x).variant.rpartition("-")[2]
        assert [chosen(small), chosen(large), chosen(double)] == ["1", "1", "1"]
        pathlib.Path("tuning").mkdir()
        shutil.copy("first.json", {FILE!r})
        assert [chosen(small), chosen(large), chosen(double)] == ["4", "16", "1"]
        assert list(scaled.compile(dtype="float32").variants) == [{{"dtype": "float32", "block": 1}}]
        shutil.copy("second.json", {FILE!r})
        assert [chosen(small), chosen(large), chosen(double)] == ["16", "16", "1"]
        pathlib.Path({FILE!r}).write_text("{{")
        with pytest.raises(kw.KernelwrightError, match="expected a name") as caught:
            scaled(small)
        assert {FILE!r} + ":1" in str(caught.value)
    """)


def test_a_recorded_program_names_the_declared_variants(demand: Demand) -> None:
    demand.project.write(FILE, table(tuned("float32", (None, {"block": 16})), device=HERE))
    demand.run(
        """
        scaled = kw.load("kernels/scaled.py").scaled
        scaled(np.ones(3, "float32"))
        scaled.compile(dtype="float64", block=4)
    """,
        env={"KERNELWRIGHT_RECORD": "configs.json"},
    )
    seen = json.loads((demand.project.folder / "configs.json").read_text())["kernels"]["scaled"]
    assert seen == [{"block": 1, "dtype": "float32"}, {"block": 4, "dtype": "float64"}]


BOTH = """
from kernelwright import kernel
from tvm import te


@kernel(configs=[{"dtype": "float32"}], tune=lambda target: [{"factor": n} for n in POINTS[target]], outputs=["y"])
def times(dtype: str, factor: int):
    n = te.var("n")
    x = te.placeholder((n, 4), dtype, name="x")
    y = te.compute((n, 4), lambda i, j: x[i, j] * te.const(factor, dtype), name="y")
    return te.create_prim_func([x, y])
"""


def test_a_kernel_for_both_targets_has_the_first_point_of_each(demand: Demand) -> None:
    demand.project.write(
        "kernels/times.py", BOTH.replace("@kernel", 'POINTS = {"llvm": [2, 3], "cuda": [4, 2]}\n\n\n@kernel')
    )
    demand.run("""
        times = kw.load("kernels/times.py").times.using(archs=["x86-64-v3", "sm_80"])
        kernel = times.compile(dtype="float32")
        assert [config["factor"] for config in kernel.variants] == [2, 4]
        assert [entry["archs"] for entry in kernel._entry["variants"]] == [["x86-64-v3"], ["sm_80"]]
        x = np.ones((2, 4), "float32")
        assert array(kernel(x)).max() == array(times(x)).max() == 2
        archs = [entry["archs"] for entry in times.compile(factor=2)._entry["variants"]]
        assert archs == [["x86-64-v3", "sm_80"]], "it is in the space of both"
        assert [entry["archs"] for entry in times.compile(factor=4)._entry["variants"]] == [["sm_80"]]
    """)


def test_a_config_without_a_point_for_a_target_is_not_compared_with_calls_on_it(demand: Demand) -> None:
    demand.project.replace(
        "kernels/scaled.py",
        f"tune={BLOCKS}",
        "tune=lambda target, dtype: grid(block=[4]) if (target, dtype) != ('llvm', 'float64') else []",
    )
    assert demand.project.scons("-j2").labels["LOWER"] == 1
    demand.run("""
        scaled = kw.load("kernels/scaled.py").scaled
        assert array(scaled(np.ones(3, "float32"))).max() == 2
        with pytest.raises(TypeError, match="no listed config fits"):
            scaled(np.ones(3, "float64"))
        with pytest.raises(kw.KernelwrightError, match="compiled for CUDA only"):
            scaled.compile(dtype="float64")
    """)


def test_a_kernel_of_a_notebook_has_its_first_point(demand: Demand) -> None:
    demand.run("""
        from tvm import te

        @kw.kernel(configs=[{"dtype": "float32"}], tune=[{"factor": 2}, {"factor": 3}], outputs=["y"])
        def times(dtype, factor):
            n = te.var("n")
            x = te.placeholder((n, 4), dtype, name="x")
            y = te.compute((n, 4), lambda i, j: x[i, j] * te.const(factor, dtype), name="y")
            return te.create_prim_func([x, y])

        x = np.ones((2, 4), "float32")
        assert array(times(x)).max() == 2
        assert array(times.compile(factor=3)(x)).max() == 3
        assert list(times.compile().variants) == [{"dtype": "float32", "factor": 2}]
    """)
