"""The graph of a small package, made in this process: real nodes and stages, and tools that are only named."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace

import pytest

pytest.importorskip("SCons")

import SCons.Environment
import SCons.Node
import SCons.Node.Alias
import SCons.Node.FS
from kernelwright.define.kernel_options import KernelOptions
from kernelwright.define.record import DefinitionRecord, KernelRecord
from kernelwright.define.settings import Settings
from kernelwright.scons import run as run_module
from kernelwright.scons.graph import PackageGraph
from kernelwright.scons.package import Package
from kernelwright.scons.run import BuildRun
from kernelwright.scons.settling import Settling
from kernelwright.stages.execution import publish
from kernelwright.stages.selection import select
from kernelwright.stages.stage import Stage
from kernelwright.stages.stage_run import StageRun
from kernelwright.stages.tools import Tools
from kernelwright.toolchain.distribution import Distribution
from kernelwright.toolchain.host_compiler import HostCompiler
from kernelwright.toolchain.nvcc import Nvcc
from kernelwright.toolchain.nvdisasm import Nvdisasm
from kernelwright.toolchain.nvrtc import Nvrtc
from kernelwright.toolchain.tvm import Lowerer

FILE = "kernels/gemm.py"
ARCHS = ("sm_80", "sm_90a", "compute_80")

TOOLS = Tools(
    Lowerer("0.27.0", "0.1.15", "identity of TVM"),
    HostCompiler("/usr/bin/cc", "cc 12", "identity of cc"),
    Nvcc("/cuda/bin/nvcc", "13.0.88", "identity of nvcc", ARCHS),
)
NVDISASM = Nvdisasm("/cuda/bin/nvdisasm", "13.2.78", "identity of nvdisasm")
NVRTC = Nvrtc("/cuda/lib/libnvrtc.so.13", "/cuda/include", "13.0.88", "identity of NVRTC", ARCHS)

GEMM = KernelRecord(
    name="gemm",
    doc="A product.",
    location=f"{FILE}:4",
    configs=({"m": 1}, {"m": 2}),
    slugs=("m-1", "m-2"),
    options=KernelOptions(outputs=("c",)),
    reference=(),
    takes_target=False,
)


@dataclass(frozen=True)
class Inputs:
    """What a package is made from.

    Arguments:
        kernel: the kernel that the definition file declares.
        others: further kernels of that file.
        contents: the definition's files, with their digests.
        lowered: the digest of the definition file without what only checks call.
        later: request -> file that it turned out to read -> digest.
        surroundings: what the definition sees besides, with digests.
        listings: the texts of device code that are asked for.
    """

    settings: Settings = field(default_factory=lambda: Settings(package="demo"))
    kernel: KernelRecord = GEMM
    others: tuple[KernelRecord, ...] = ()
    tools: Tools = TOOLS
    contents: Mapping[str, str] = field(default_factory=lambda: {FILE: "1" * 64})
    lowered: str = ""
    later: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    surroundings: Mapping[str, str] = field(default_factory=dict)
    shared: bool = True
    strict: bool = False
    nvdisasm: Nvdisasm = NVDISASM
    listings: tuple[str, ...] = ()

    @property
    def definition(self) -> DefinitionRecord:
        kernels = (self.kernel, *self.others)
        of_file = FILE, self.contents, kernels, self.later, {}, self.surroundings, self.shared
        return DefinitionRecord(*of_file, lowered=self.lowered)


def new_run(top: Path, monkeypatch: pytest.MonkeyPatch, settings: Settings | None = None) -> BuildRun:
    """A run of scons in a folder, as it is before anything is built. It does nothing when this process ends."""
    monkeypatch.setattr(SCons.Node.FS, "default_fs", SCons.Node.FS.FS(str(top)))
    monkeypatch.setattr(SCons.Node.Alias, "default_ans", SCons.Node.Alias.AliasNameSpace())
    monkeypatch.setattr(run_module, "atexit", SimpleNamespace(register=lambda function: None))
    monkeypatch.setattr(
        run_module, "gc", SimpleNamespace(**dict.fromkeys(("disable", "enable", "freeze"), lambda: None))
    )
    env = SCons.Environment.Environment(tools=[], platform="posix")
    return BuildRun(env, top, settings or Settings(package="demo"))


def new_graph(top: Path, monkeypatch: pytest.MonkeyPatch, inputs: Inputs) -> PackageGraph:
    """A package without kernels, whose tools are those of the inputs."""
    run = new_run(top, monkeypatch, inputs.settings)
    run.strict = run.tree._verify = inputs.strict
    graph = PackageGraph(Package(run.env, run, inputs.settings, [run.env.fs.File(f"#{FILE}")]))
    tools = replace(inputs.tools)
    tools.__dict__.update(of_front_ends={"cutedsl": Distribution("absent", "absent")}, fatbinary="fatbinary")
    tools.__dict__.update(nvdisasm=inputs.nvdisasm)
    graph.package.__dict__.update(tools=tools, has_gpu=True)  # in place of what would be probed
    graph.package.asked = replace(graph.package.asked, listings=inputs.listings)
    return graph


def graph_of(top: Path, monkeypatch: pytest.MonkeyPatch, inputs: Inputs) -> PackageGraph:
    """A package with the kernels of one file, and with its assembly."""
    graph = new_graph(top, monkeypatch, inputs)
    for kernel in inputs.definition.kernels:
        graph.definitions.add_kernel(inputs.definition, select(kernel, inputs.settings))
    graph.assemble(Settling(graph.package))
    return graph


def stages_of(graph: PackageGraph) -> dict[str, Stage]:
    """The stages by their label and subject."""
    return {f"{stage.label} {stage.subject}": stage for stage in graph.package.stages}


def make_all(graph: PackageGraph) -> None:
    """Make all outputs, as far as SCons and the journal are concerned; each has its own name as content."""
    graph.run.caches.__dict__["build"] = None
    for stage in graph.package.stages:

        def make(scratch: Path, running: StageRun) -> None:
            for name in running.stage.outputs:
                (scratch / name).parent.mkdir(parents=True, exist_ok=True)
                (scratch / name).write_text(name)

        stage.instead = make
        publish(stage, graph.run)
        for node in graph.run.nodes.nodes_of(stage):
            node.set_state(SCons.Node.executed)
