"""The example that puts a kernel in the place of vLLM's: found, made, traced and captured as vLLM would do it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.engine_standin import install_engine
from support.environments import environment, install, run, site_of
from support.project import ROOT, Project
from support.standin_calls import call, launches, make_standin

pytest.importorskip("torch", reason="operators need PyTorch")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the example, with the wheels of both of its packages."""
    project = Project(tmp_path_factory.mktemp("engine") / "vllm-plugin")
    ignored = shutil.ignore_patterns("build", "dist", ".scons*", "*.egg-info")
    shutil.copytree(ROOT / "examples/vllm-plugin", project.folder, ignore=ignored)
    project.scons("-j2", "wheel", "ARCHS=x86-64-v3,sm_80")
    command = [sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", "../dist", "."]
    subprocess.run(command, cwd=project.folder / "plugin", check=True, stdout=subprocess.DEVNULL)
    make_standin(project)
    return project


@pytest.fixture(scope="module")
def home(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An environment with both wheels, and with what stands in for vLLM."""
    home = environment(tmp_path_factory.mktemp("engine") / "home")
    wheels = sorted((built.folder / "dist").glob("*.whl"))
    assert [wheel.name.partition("-")[0] for wheel in wheels] == ["gate_kernels", "gate_plugin"]
    install(home, "--no-deps", *wheels)
    install_engine(site_of(home))
    return home


PROGRAM = """
import os, sys, torch, torch._dynamo

def layer_of(custom_ops):
    os.environ["CUSTOM_OPS"] = custom_ops
    from vllm.plugins import load_general_plugins
    load_general_plugins()
    from vllm.model_executor.layers.activation import SiluAndMul
    return SiluAndMul, SiluAndMul()

def eager(custom_ops):
    SiluAndMul, layer = layer_of(custom_ops)
    from importlib.metadata import entry_points
    (plugin,) = entry_points(group="vllm.general_plugins")
    plugin.load()()  # some processes load it twice
    for dtype in (torch.bfloat16, torch.float16, torch.float32):
        for shape in ((7, 64), (2, 3, 128), (0, 8)):
            x = torch.randn(shape).to(dtype)
            expected = SiluAndMul.forward_native(x.float()).to(dtype)
            torch.testing.assert_close(layer(x), expected)
    print(type(layer).__name__, isinstance(layer, SiluAndMul), type(SiluAndMul()).__name__)

def compiled(custom_ops):
    SiluAndMul, layer = layer_of(custom_ops)
    from torch._dynamo.backends.common import aot_autograd
    seen, graphs = set(), []
    def keep(graph, _):
        seen.update(str(node.target) for node in graph.graph.nodes if "gate" in str(node.target))
        graphs.append(graph)
        return graph
    backend = aot_autograd(fw_compiler=keep)
    compiled = torch.compile(lambda x: layer(x * 2) + 1, fullgraph=True, dynamic=True, backend=backend)
    with torch.inference_mode():
        for rows in (4, 9, 33):
            x = torch.randn(rows, 64)
            torch.testing.assert_close(compiled(x), SiluAndMul.forward_native(x * 2) + 1)
    print(sorted(seen), len(graphs))

for function, custom_ops in ((eager, "all"), (compiled, "none +SiluAndMul"), (compiled, "none")):
    if not (child := os.fork()):  # an engine of its own, without another import of PyTorch
        function(custom_ops)
        sys.stdout.flush()
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, (function, custom_ops)
"""


def test_the_engine_finds_the_plug_in_and_calls_its_operator_eagerly_in_graphs_of_any_size_or_never(home: Path) -> None:
    assert [line for line in run(home, PROGRAM, also=True).splitlines() if "True" in line or line.startswith("[")] == [
        "PrebuiltSiluAndMul True PrebuiltSiluAndMul",
        "['gate_kernels_0_1_0.silu_and_mul.default'] 1",  # with its version
        "[] 1",  # it is left to the engine's compiler
    ]


CAPTURED = """
import os
x, y = (on_cuda(8, columns, dtype=(4, 16, 1)) for columns in (64, 32))
demo.preload("cuda")
os.environ["STANDIN_CAPTURE"] = "0x50"
with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0x50):
    demo.silu_and_mul(x, y)
"""


def test_a_preloaded_kernel_is_captured_in_a_graph(built: Project) -> None:
    built.write("build/demo.py", "from gate_kernels import *\n")
    _, log = call(built, CAPTURED, capability=80)
    assert [line for line in log if line.startswith("launch ") and "stream 0x50" in line] != [], log
    assert len(launches(log)) == 1
