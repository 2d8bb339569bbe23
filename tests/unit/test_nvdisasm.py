"""Finding the disassembler, and what is listed of which kernel. Fake tools are shell scripts in a temporary folder."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("SCons")

from kernelwright.core.arch import virtual_arch
from kernelwright.core.errors import ToolchainError
from kernelwright.core.pipeline import LISTINGS
from kernelwright.define.settings import Settings
from kernelwright.stages.tools import Tools
from kernelwright.toolchain import nvdisasm as module
from kernelwright.toolchain.cuda import in_wheels
from kernelwright.toolchain.nvdisasm import find_nvdisasm
from kernelwright.toolchain.probe import Toolchain
from support.scons_tree import GEMM, TOOLS, Inputs, graph_of, stages_of
from support.scripts import script

ANSWER = "echo 'Cuda compilation tools, release 13.2, V13.2.78'"


@pytest.fixture
def no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "in_wheels", lambda name: [])


def test_the_wheel_wins_over_what_is_beside_nvcc(tmp_path: Path) -> None:
    wheels = in_wheels("bin/nvdisasm")
    if not wheels:
        pytest.skip("the wheel of nvdisasm is not installed")
    script(tmp_path / "bin/nvdisasm", ANSWER)
    assert find_nvdisasm(str(script(tmp_path / "bin/nvcc", ANSWER)), {"PATH": ""}) == str(wheels[0])


def test_one_beside_nvcc_wins_over_cuda_home_and_that_over_path_and_none_says_how_to_install_it(tmp_path, no_wheels):
    beside, home, on_path = (script(tmp_path / name / "bin/nvdisasm", ANSWER) for name in ("cuda", "home", "path"))
    environment = {"CUDA_HOME": str(tmp_path / "home"), "PATH": str(on_path.parent)}
    assert find_nvdisasm(str(script(tmp_path / "cuda/bin/nvcc", ANSWER)), environment) == str(beside)
    assert find_nvdisasm("", environment) == str(home)
    assert find_nvdisasm("", {"PATH": str(on_path.parent)}) == str(on_path)
    real = script(tmp_path / "cuda/bin/nvcc", f"echo '#$ TOP={tmp_path / 'cuda'}'")
    script(tmp_path / "cuda/bin/ptxas", ANSWER)
    beside = script(tmp_path / "cuda/bin/nvdisasm", ANSWER)
    wrapper = script(tmp_path / "local/bin/nvcc", f'exec {real} "$@"')
    assert find_nvdisasm(str(wrapper), {"PATH": ""}) == str(beside)
    script(tmp_path / "home/bin/nvdisasm", ANSWER).chmod(0o644)
    other = script(tmp_path / "path/nvdisasm", ANSWER)
    assert find_nvdisasm("", {"CUDA_HOME": str(tmp_path / "home"), "PATH": str(other.parent)}) == str(other)
    with pytest.raises(ToolchainError, match="no nvdisasm") as caught:
        find_nvdisasm(str(script(tmp_path / "nvcc", ANSWER)), {"PATH": str(tmp_path)})
    assert "pip install 'kernelwright[sass]'" in str(caught.value)


def found(tmp_path: Path) -> module.Nvdisasm:
    return Toolchain(tmp_path / "cache.json", {"PATH": str(tmp_path)}).nvdisasm("")


def test_it_is_asked_once_and_again_when_it_is_another_one(tmp_path: Path, no_wheels: None) -> None:
    log = tmp_path / "log"
    path = script(tmp_path / "nvdisasm", f"echo run >> {log}\n{ANSWER}")
    first = found(tmp_path)
    assert (first.path, first.version) == (str(path), "13.2.78")
    assert found(tmp_path) == first and log.read_text() == "run\n"
    script(path, f"echo run >> {log}\n{ANSWER} # another one")
    assert found(tmp_path).identity != first.identity and log.read_text() == "run\nrun\n"


@pytest.mark.parametrize("body", ["exit 3", "echo nonsense", "kill -9 $$"])
def test_one_that_answers_nonsense_is_an_error(tmp_path: Path, no_wheels: None, body: str) -> None:
    script(tmp_path / "nvdisasm", body)
    with pytest.raises(ToolchainError, match="nvdisasm"):
        found(tmp_path)


def test_tools_look_beside_their_own_nvcc(tmp_path: Path, no_wheels: None) -> None:
    nvcc, beside = script(tmp_path / "cuda/nvcc", ANSWER), script(tmp_path / "cuda/nvdisasm", ANSWER)
    chain = Toolchain(tmp_path / "cache.json", {"PATH": ""})
    tools = Tools(TOOLS.lowerer, TOOLS.host_compiler, replace(TOOLS.nvcc, path=str(nvcc)), chain=chain)
    assert tools.nvdisasm.path == str(beside)


# What is listed.


def listed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, inputs: Inputs) -> set[str]:
    """The stages that are there because of listings."""
    plain = stages_of(graph_of(tmp_path, monkeypatch, replace(inputs, listings=())))
    return stages_of(graph_of(tmp_path, monkeypatch, inputs)).keys() - plain.keys()


BOTH = Inputs(listings=LISTINGS)
WHOLE = replace(BOTH, tools=replace(TOOLS, known_obstacle="it is a script"))


@pytest.mark.parametrize("listings", [(), ("sass",), ("ptx",), ("sass", "ptx")])
def test_each_cubin_of_each_variant_has_the_texts_that_are_asked_for(tmp_path, monkeypatch, listings):
    # compute_80 is an arch of the package.
    archs = {"sass": ("sm_80", "sm_90a"), "ptx": ("compute_90a",)}
    expected = {
        f"{name.upper()} gemm/{slug} {arch}" for name in listings for slug in GEMM.slugs for arch in archs[name]
    }
    assert listed(tmp_path, monkeypatch, replace(WHOLE, listings=listings)) == expected


def test_code_for_the_cpu_and_ptx_have_none_and_cubins_of_a_front_end_have_no_ptx(tmp_path, monkeypatch):
    for settings in (Settings(package="demo", targets=("llvm",)), Settings(package="demo", archs=("compute_80",))):
        assert listed(tmp_path, monkeypatch, replace(BOTH, settings=settings)) == set()
    inputs = replace(BOTH, kernel=GEMM.with_options(frontend="cutedsl"))
    assert {name.split()[0] for name in listed(tmp_path, monkeypatch, inputs)} == {"SASS"}


def test_texts_are_made_of_the_cubin_and_of_the_source_also_if_images_are_packed(tmp_path, monkeypatch):
    inputs = replace(WHOLE, settings=Settings(package="demo", compress="size"))
    stages = stages_of(graph_of(tmp_path, monkeypatch, inputs))
    texts = {"SASS gemm/m-1 sm_90a": ("sm_90a.cubin", "sm_90a.sass")}
    texts["PTX gemm/m-1 compute_90a"] = ("device.cu", "compute_90a.ptx")
    for name, (source, output) in texts.items():
        stage = stages[name]
        folder = Path(stages["CUBIN gemm/m-1 sm_90a"].paths[0]).parent
        assert (stage.sources, stage.paths[0]) == ([f"{folder}/{source}"], f"{folder}/{output}")
        assert not stage.shipped and stages["CUBIN gemm/m-1 sm_90a"].shipped


def test_the_virtual_arch_has_the_suffix_of_the_real_one() -> None:
    assert list(map(virtual_arch, ("sm_80", "sm_90a", "sm_100f"))) == ["compute_80", "compute_90a", "compute_100f"]
