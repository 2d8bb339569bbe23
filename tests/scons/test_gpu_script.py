"""The script for a machine with a GPU does what it says, where the CPU plays the GPU and the library is a small one."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from support.project import ROOT, Project
from support.recorded import recorded

GPU = ROOT / "tests" / "gpu"
KERNELS = "rope,saxpy"
"""An output in place, and the kernel that the experiments call."""

BACKENDS = "tvm_ffi,torch,jax,cuda_core"

LANGUAGES = "modes,recorded" if importlib.util.find_spec("triton") else "modes"

MISSING = [name for name in ("torch", "jax", "jax_tvm_ffi", "cuda") if importlib.util.find_spec(name) is None]

pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


@pytest.fixture(scope="module", autouse=True)
def _imports() -> Any:
    """The modules of tests/gpu can be imported, and nothing else is changed by it."""
    sys.path.insert(0, str(GPU))
    yield
    sys.path.remove(str(GPU))


def child(*words: str | Path, ok: bool | None = True, **more: str) -> str:
    """What a program prints on both streams; ``ok`` says whether it is expected to succeed, None: either."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    done = subprocess.run(
        [str(word) for word in words],
        cwd=ROOT,
        env=kept | {"OMP_NUM_THREADS": "1", "PYTHON": sys.executable} | more,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=550,
        check=False,
    )
    assert ok is None or (done.returncode == 0) == ok, done.stdout
    return done.stdout


def make_wheel(folder: Path, name: str, file: str) -> None:
    folder.mkdir(exist_ok=True)
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr(file, "")
        wheel.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{info}/RECORD", "")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A bundle of a small library for the CPU, with one wheel."""
    folder = tmp_path_factory.mktemp("gpu") / "bundle"
    small = ["--archs", "x86-64-v3,compute_80", "--backends", BACKENDS, "--kernels", KERNELS]
    pack, said = importlib.import_module("pack"), io.StringIO()

    def run_scons(work: Path, words: Sequence[str]) -> None:
        project = Project(work)
        if "recorded" in LANGUAGES:
            project.imported = ("support.torch_ready", *Project.imported)
        project.scons("-Q", *words)

    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(said):
        patch.setattr(pack, "run_scons", run_scons)  # most of what it takes is to start, and to import TVM
        patch.setitem(sys.modules, "torch", sys.modules.get("torch"))
        assert pack.main([str(folder), *small, "--languages", LANGUAGES, "--no-wheels"]) == 0
    assert re.search(r"bytes  packages\n.*bytes  the repository's files\n.*bytes  all\n", said.getvalue(), re.S)
    make_wheel(folder / "wheels", "demo_of_a_wheel", "demo_of_a_wheel.py")
    make_wheel(folder / "wheels", "nvidia_demo", "nvidia/cu13/bin/compute-sanitizer")
    return folder


def run_all(bundle: Path, out: Path, *words: str, ok: bool | None = None) -> tuple[str, dict[str, Any]]:
    """What a dry run prints, and its result."""
    said = child(GPU / "run_all.sh", "--dry-run", "--bundle", bundle, "--out", out, *words, ok=ok)
    return said, json.loads((out / "result.json").read_text())


@pytest.fixture(scope="module")
def dry(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any], Path]:
    out = tmp_path_factory.mktemp("gpu_results")
    return *run_all(bundle, out), out


def test_a_dry_run_goes_through_every_part_and_calls_every_variant_through_every_backend(dry, bundle):
    """It takes long: it runs every experiment once."""
    said, result, out = dry
    parts = {part["name"]: part for part in result["parts"]}
    others = ["experiments", "experiments, stand-in", "languages", "benchmarks", "sanitizer, none"]
    assert list(parts) == ["wheels", "tools", "tests, tvm_ffi,torch,jax", *others]
    assert {part["status"] for part in parts.values()} == {"passed"}, said
    assert result["passed"] and "\nPASSED: " in said
    log = (out / "log.txt").read_text()
    assert all(f"==== {name}: " in log for name in parts)
    index = json.loads((bundle / "cases" / "index.json").read_text())
    assert {case["kernel"] for case in index} == set(KERNELS.split(","))
    tested = parts["tests, tvm_ffi,torch,jax"]["counts"]
    assert tested["passed"] >= 3 * len(index) and not tested["failed"] and not tested["skipped"]
    variants = len({(case["kernel"], case["index"]) for case in index})
    assert parts["sanitizer, none"]["counts"]["variants"] == variants


def words_of(experiments: Any, name: str) -> dict[str, Any]:
    return dict(getattr(experiments.EXPERIMENTS[name].run, "keywords", {}))


def test_all_experiments_that_the_cpu_can_play_have_run(dry: tuple[str, dict[str, Any], Path]) -> None:
    experiments = importlib.import_module("experiments")
    on_cpu = {name for name, one in experiments.EXPERIMENTS.items() if not one.only_cuda}
    expected = {name for name in on_cpu if words_of(experiments, name).get("backend") != "cython"}
    found = dry[1]["experiments"]
    assert set(found) == expected and len(expected) > 30
    assert {re.sub(r"\w+: ", "", text) for one in found.values() for text in one["got"].split("; ")} == {"right values"}


def test_experiments_of_cuda_have_run_with_the_driver_that_stands_in(dry: tuple[str, dict[str, Any], Path]) -> None:
    found = dry[1]["experiments_with_standin"]
    wanted = ("PTX only, cold", "PTX only, too new", "PTX only, damaged", "PTX only, altered", "a fork after use")
    wanted += ("a fork before the first use", "a new thread", "no context", "capture, first call, over 48 kB shared")
    for backend in ("tvm_ffi", "cuda_core"):
        assert {f"{name}, {backend}" for name in wanted} <= set(found)
    assert all(one["passed"] for one in found.values())
    assert "kernel 'staged'" in found["PTX only, too new, cuda_core"]["got"]


def test_packages_that_were_built_in_other_ways_and_the_recorded_program_have_been_called(dry):
    languages, found = importlib.import_module("languages"), dry[1]["languages"]
    packages = [*languages.MODES, *([languages.RECORDED] if "recorded" in LANGUAGES else [])]
    assert set(found) == {name for name in languages.EXPERIMENTS if name.partition(",")[0] in packages}
    assert len(found) >= 12 and all(one["passed"] for one in found.values())
    assert found["kw_split, is split by arch"]["got"] == "right values"


@pytest.mark.skipif("recorded" not in LANGUAGES, reason="Triton is not installed")
def test_what_the_recorded_program_refuses_says_why(dry: tuple[str, dict[str, Any], Path]) -> None:
    found = dry[1]["languages"]
    said = found["triton_program, errors"]["got"]
    assert "the tensors are on several devices, cuda:0 and cpu" in said and "BLOCK = the int 512" in said
    times = found["triton_program, times of launches"]["got"]
    assert re.fullmatch(r"(.*: package \d+\.\d\d us, Triton is not here(; |$)){2}", times)
    assert f"triton_program, times of launches: {times}" in dry[0]


def test_parts_can_be_chosen(bundle: Path, tmp_path: Path) -> None:
    words = ("--budget", "0", "--only", "benchmarks,languages")
    _, result = run_all(bundle, tmp_path, *words, ok=False)
    assert [part["name"] for part in result["parts"]] == ["wheels", "tools", "languages", "benchmarks"]
    said = child(GPU / "run_all.sh", "--dry-run", "--bundle", bundle, "--only", "language", ok=False)
    assert "there is no part language: there are tests, experiments, languages" in said


def test_a_bundle_without_languages_does_not_pass_for_one_with_them(bundle: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    (folder / "packages").symlink_to(bundle / "packages")
    session = make_session(folder, tmp_path)
    session.run([session._languages()])
    (part,) = json.loads((tmp_path / "out" / "result.json").read_text())["parts"]
    assert (part["status"], part["message"]) == ("not run", "no languages in bundle: run tests/gpu/pack.py")


def test_what_could_not_be_built_is_said(tmp_path: Path) -> None:
    (tmp_path / "left_out.json").write_text('{"tile_kernels": "it needs TileLang"}')
    (tmp_path / "found.json").write_text('{"a call": {"passed": true, "got": "right values"}}')
    read = importlib.import_module("run_all").read_languages
    found = read(tmp_path / "found.json", tmp_path / "left_out.json", 0, "")
    assert found == (True, {"passed": 1, "failed": 0, "left out": 1}, "left out: tile_kernels: it needs TileLang")


def test_an_example_is_left_out_if_its_language_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    packing = importlib.import_module("pack_languages")
    monkeypatch.delenv(packing.TILELANG, raising=False)
    assert packing.Example("a", "b").problem() == ""
    assert packing.Example("a", "b", ("no_such_language",)).problem() == "there is no module no_such_language here"
    assert packing.Example("a", "b", needs_tilelang=True).problem() == f"{packing.TILELANG} names no interpreter"
    monkeypatch.setenv(packing.TILELANG, sys.executable)
    assert packing.Example("a", "b", needs_tilelang=True).problem() == ""


def test_every_example_has_calls() -> None:
    packing, calls = importlib.import_module("pack_languages"), importlib.import_module("example_calls")
    examples = {path.name for path in (ROOT / "examples").iterdir()} - {"cutile", "gluon"}  # which are plug-ins
    assert {one.folder for one in packing.EXAMPLES} == examples
    assert {one.package for one in packing.EXAMPLES} == {*calls.EXAMPLES, "model_kernels"}  # whose programs are run


@pytest.mark.parametrize(
    "example", ["cuda-cpp", "tilelang", "vllm-plugin", *(["triton"] if "recorded" in LANGUAGES else [])]
)
def test_what_is_expected_of_an_example_is_what_its_own_references_say(example, monkeypatch):
    import numpy as np

    packing, calls = importlib.import_module("pack_languages"), importlib.import_module("example_calls")
    package = next(one.package for one in packing.EXAMPLES if one.folder == example)
    folder = ROOT / "examples" / example / "kernels"
    monkeypatch.syspath_prepend(str(folder))
    load = importlib.import_module("make_cases").load_kernels
    kernels = {kernel.name: kernel for path in folder.glob("*.py") for kernel in load(path)}
    compared = set()
    for call in (call for listed in calls.EXAMPLES[package].values() for call in listed()):
        if "bfloat16" not in call.dtypes.values():
            ((name, expected),) = call.expected.items()
            made = kernels[call.kernel].reference_function(**call.inputs, **call.config)
            assert made.dtype == expected.dtype
            np.testing.assert_allclose(made, expected, rtol=0, atol=call.tolerance[name])
            compared.add(call.kernel)
    assert compared == {name for name, kernel in kernels.items() if kernel.reference_function}


def test_a_wrong_result_of_a_package_is_seen() -> None:
    import numpy as np

    languages, cpu = importlib.import_module("languages"), importlib.import_module("devices").Device()
    array = np.linspace(0, 1, 100, dtype=np.float32)
    assert languages.judged(cpu, cpu.tensor(array), array, "float32", 0) == "right values"
    assert "index=(99,)" in languages.judged(cpu, cpu.tensor(np.append(array[:-1], 2)), array, "float32", 1e-3)
    bits = importlib.import_module("example_calls").bits_of(array)
    assert languages.judged(cpu, cpu.tensor(bits, "bfloat16"), bits, "bfloat16", 0) == "right values"
    assert languages.summary({}) != "right values"
    assert languages.summary({"a": "right values", "b": "wrong"}) == "b: wrong"


INTERPRETED = """\
import sys
sys.path[:0] = [sys.argv[1], sys.argv[2]]
import _kernels, host, languages
from devices import Device
# The interpreter has nothing that measures; the last config that is tried is as good as any.
vars(_kernels.matmul)["do_bench"] = lambda call, quantiles: (call(), [1.0, 1.0, 1.0])[1]
def run(case):
    arrays = languages.on_device(Device(), case)
    case.run(_kernels, arrays)
    return languages.outcome(Device(), case, arrays, case.inputs)
print(languages.each_case(Device(), run))
"""


@pytest.mark.skipif("recorded" not in LANGUAGES, reason="Triton is not installed")
def test_the_recorded_program_computes_what_is_expected_of_it() -> None:
    said = child(sys.executable, "-c", INTERPRETED, GPU, GPU / "triton_program", TRITON_INTERPRET="1")
    assert said.splitlines()[-1] == "right values"


@pytest.mark.skipif("recorded" not in LANGUAGES, reason="Triton is not installed")
def test_the_recording_is_that_of_the_program(tmp_path: Path) -> None:
    program = GPU / "triton_program"
    recorded(tmp_path, str(program / "record_calls.py"), "--arch", "sm_90a")
    assert (tmp_path / "calls.json").read_text() == (program / "calls.json").read_text()


def test_the_benchmark_has_rows_of_every_kernel_and_of_launches(dry: tuple[str, dict[str, Any], Path]) -> None:
    document = json.loads((dry[2] / "gpu.json").read_text())
    shown = " ".join(row["what"] for row in document["rows"])
    assert all(f"{name} " in shown for name in KERNELS.split(","))
    assert all(f"a launch of three arrays, {name}" in shown for name in ("tvm_ffi", "torch", "jax"))
    assert document["details"]["problems"] == []
    assert all(row["peers"] and row["ours"] > 0 for row in document["rows"])


def test_every_kernel_of_the_library_has_a_workload() -> None:
    sys.path.insert(0, str(ROOT / "benchmarks" / "children"))
    try:
        workloads = importlib.import_module("gpu_workloads")
    finally:
        sys.path.pop(0)
    library = {path.stem for path in (ROOT / "kernels").glob("[!_]*.py")}
    assert set(workloads.SIZES) == library
    made = list(workloads.Maker("cpu", tiny=True).all(library))
    assert {one.kernel for one in made} == library
    assert all(one.bytes > 0 and one.peers and all(call() is not None for call in one.peers.values()) for one in made)


def test_without_time_nothing_runs_and_that_is_no_success(bundle: Path, tmp_path: Path) -> None:
    said, result = run_all(bundle, tmp_path, "--budget", "0", ok=False)
    assert {(part["status"], part["message"]) for part in result["parts"]} == {
        ("not run", "no time was left of the budget")
    }
    assert not result["passed"] and "NOT PASSED" in said


def test_a_part_that_takes_too_long_is_killed_and_the_others_run(bundle: Path, tmp_path: Path) -> None:
    session = make_session(bundle, tmp_path)
    part = importlib.import_module("run_all").Part
    endless = [sys.executable, "-c", "import subprocess as s, sys\ns.run([sys.executable, '-c', 'while True: pass'])"]
    short = [sys.executable, "-c", "print('done')"]

    def read(status: int, text: str) -> tuple[bool, dict[str, int], str]:
        return status == 0, {}, text.strip()

    session.run([part("endless", endless, 0.5, read), part("short", short, 60, read)])
    found = {one["name"]: one for one in json.loads((tmp_path / "out" / "result.json").read_text())["parts"]}
    assert found["endless"]["status"] == "timed out"
    assert (found["short"]["status"], found["short"]["message"]) == ("passed", "done")


def make_session(bundle: Path, folder: Path) -> Any:
    script = importlib.import_module("run_all")
    options = script.parsed(["--dry-run", "--bundle", str(bundle), "--out", str(folder / "out")])
    (folder / "work").mkdir()
    return script.Session(options, folder / "work")


def test_a_result_that_cannot_be_read_fails_its_own_part_only(bundle: Path, tmp_path: Path) -> None:
    session = make_session(bundle, tmp_path)
    part = importlib.import_module("run_all").Part
    command = [sys.executable, "-c", ""]
    session.run(
        [
            part("broken", command, 60, lambda status, text: json.loads(text)),
            part("sound", command, 60, lambda status, text: (True, {}, "")),
            part("absent", [], 60, lambda status, text: (True, {}, ""), problem="there is none"),
        ]
    )
    found = json.loads((tmp_path / "out" / "result.json").read_text())
    assert [(one["name"], one["status"]) for one in found["parts"]] == [
        ("absent", "not run"),
        ("broken", "failed"),
        ("sound", "passed"),
    ]
    assert not found["passed"]


def test_tools_are_found_and_hide_no_package_of_the_machine(bundle: Path, tmp_path: Path) -> None:
    session = make_session(bundle, tmp_path)
    session.run(session._wheels())
    assert (session.site / "demo_of_a_wheel.py").is_file() and not (session.site / "nvidia").exists()
    assert session.sanitizer() is not None
    assert str(session.tools) not in session.environment()["PYTHONPATH"]


def test_a_wrong_kernel_fails_the_run(bundle: Path, tmp_path: Path) -> None:
    """One expected value of one case is changed: the tests say which, and the sanitizer's program ends, too."""
    import numpy as np

    folder = tmp_path / "bundle"
    folder.mkdir()
    for name in ("packages", "wheels"):
        (folder / name).symlink_to(bundle / name)
    (folder / "cases").mkdir()
    listed = json.loads((bundle / "cases" / "index.json").read_text())
    index = [case for case in listed if case["kernel"] == "saxpy" and case["sizes"]["n"]][:1]
    (folder / "cases" / "index.json").write_text(json.dumps(index))
    with np.load(bundle / "cases" / index[0]["file"]) as stored:
        arrays = dict(stored)
    arrays["out_z"] = arrays["out_z"] + 1
    np.savez(folder / "cases" / index[0]["file"], **arrays)
    session = make_session(folder, tmp_path)
    session.run([session._tests("tvm_ffi"), session._sanitizer("none")])
    tests, program = json.loads((tmp_path / "out" / "result.json").read_text())["parts"]
    assert tests["status"] == program["status"] == "failed"
    assert "test_variant_agrees_with_its_reference" in tests["message"] and "z at" in tests["message"]
    assert tests["counts"]["failed"] >= 1 and tests["counts"]["passed"] >= 1


def test_with_a_gpu_required_a_skipped_test_has_failed(tmp_path: Path) -> None:
    command = (sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", "tests/gpu/test_kernels.py")
    more = {"KERNELWRIGHT_TEST_PACKAGES": str(tmp_path), "KERNELWRIGHT_TEST_DEVICE": "cpu"}
    said = child(*command, ok=True, **more)
    assert re.search(r"\b\d+ skipped", said) and "failed" not in said
    required = child(*command, ok=False, **more, KERNELWRIGHT_TEST_GPU="1")
    assert "KERNELWRIGHT_TEST_GPU=1 allows no skipped test" in required
    assert "no packages in" in required and " skipped" not in required.splitlines()[-1]


def test_packing_says_why_a_build_failed(tmp_path: Path) -> None:
    pack = importlib.import_module("pack")
    with pytest.raises(SystemExit) as caught:
        pack.build(tmp_path / "work", "demo", [], pack.parsed(["--backends", "tvm_ffi"]), "sm_12345x")
    assert "ended with status" in str(caught.value) and "sm_12345x" in str(caught.value)


def test_a_bundle_that_is_too_large_is_an_error(bundle: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack = importlib.import_module("pack")
    assert pack.report(bundle, pack.LIMIT) == 0
    assert pack.report(bundle, 1000) == 1
    assert "remedy: fewer archs" in capsys.readouterr().out
    assert pack.report(bundle, pack.LIMIT) == 0  # and the record says so again


def test_what_a_sanitizer_says_is_understood() -> None:
    read = importlib.import_module("run_all").read_sanitizer
    sound = '========= COMPUTE-SANITIZER\n{"variants": 49}\n========= ERROR SUMMARY: 0 errors\n'
    assert read(0, sound) == (True, {"variants": 49, "errors": 0}, "")
    wrong = sound.replace("0 errors", "3 errors")
    assert read(99, wrong)[:2] == (False, {"variants": 49, "errors": 3})
    races = '{"variants": 49}\n========= RACECHECK SUMMARY: 0 hazards displayed (0 errors, 0 warnings)\n'
    assert read(0, races)[0]
    assert not read(0, '{"variants": 49}\n========= Error: Device not supported\n')[0]
    assert not read(0, "")[0]


@pytest.mark.parametrize("edit", ["newer", "damaged"])
def test_ptx_is_spoilt_so_that_only_the_driver_can_see_it(tmp_path: Path, edit: str) -> None:
    pack = importlib.import_module("pack")
    from kernelwright.package.manifest import sealed_manifest
    from kernelwright.runtime.loader import read_manifest

    package = tmp_path / "demo"
    image = package / "_images" / "scale" / "compute_80.ptx"
    image.parent.mkdir(parents=True)
    image.write_text(".version 9.0\n.target sm_80\nst.global.f32 [%rd1], %f1;\n")
    digest = sha256(image.read_bytes()).hexdigest()
    content = json.dumps({"schema": 3, "kernels": {"scale": digest}}, indent=1).removesuffix("\n}")
    (package / "manifest.json").write_text(sealed_manifest(content))
    before = image.read_text()
    pack.edit_ptx(package, getattr(pack, edit), seal=True)
    assert image.read_text() != before
    assert read_manifest(package / "manifest.json")["kernels"]["scale"] == sha256(image.read_bytes()).hexdigest()


def test_everything_that_the_gpu_is_asked_for_exists_in_pytorch() -> None:
    """The calls of PyTorch that no test can make without a GPU: their names are in its build for the CPU, too."""
    import torch

    text = "".join(path.read_text() for path in [*GPU.glob("*.py"), ROOT / "benchmarks/children/gpu.py"])
    names = set(re.findall(r"\btorch\.(cuda\.\w+)", text))
    assert {"cuda.Stream", "cuda.CUDAGraph", "cuda._sleep", "cuda.Event"} <= names
    missing = [name for name in names if not hasattr(torch.cuda, name.removeprefix("cuda."))]
    assert missing == []
