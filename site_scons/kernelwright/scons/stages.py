"""The stages of one kernel, and the assembly of a package, each as a :class:`Stage`."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import backends
from ..backends.base import KernelPlan, LinkJob, LinkPlaces, LoweredUnit, VariantPlan
from ..discovery import DefinitionRecord, KernelRecord, remember_dependencies
from ..errors import SettingsError, Where
from ..files import digest_of, pretty_json
from ..launcher import LAUNCHER
from ..nvcc import NvccJob, compile_device_code, shell_script
from ..package.assemble import OUTPUTS, assemble, library_of, runtime_sources
from ..package.manifest import BuiltKernel, BuiltPackage, BuiltUnit, BuiltVariant
from ..plan import KernelSelection, lowering_arch
from ..toolchain import HostCompiler, Nvcc, describe, run_tool, tvm_ffi_includes
from ..version import VERSION
from ..workers.protocol import CheckRequest, LowerRequest
from .stage import Stage

if TYPE_CHECKING:
    from .graph import PackageGraph


@dataclass(frozen=True)
class UnitNodes:
    """The nodes of one lowering: its files by name, and the images compiled from it, by arch."""

    target: str
    archs: tuple[str, ...]
    files: Mapping[str, Any]
    images: Mapping[str, Any]
    resources: Mapping[str, Any]


@dataclass(frozen=True)
class VariantNodes:
    """The nodes of one variant."""

    slug: str
    config: Mapping[str, Any]
    units: tuple[UnitNodes, ...]


@dataclass(frozen=True)
class KernelNodes:
    """The nodes of one kernel."""

    record: KernelRecord
    variants: tuple[VariantNodes, ...]
    library: Stage
    checks: tuple[Stage, ...]


class KernelStages:
    """Adds the nodes of one kernel to a package's graph."""

    def __init__(self, graph: PackageGraph, definition: DefinitionRecord, selection: KernelSelection) -> None:
        self._graph = graph
        self._definition = definition
        self._record = selection.record
        self._selection = selection
        self._sources = graph.definition_nodes(definition)
        self._folder = graph.work.Dir(selection.record.name)

    def add(self) -> KernelNodes:
        """Add everything, from the lowering to the checks."""
        record = self._record
        variants = tuple(self._variant(slug, config) for slug, config in zip(record.slugs, record.configs, strict=True))
        wrapper = self._wrap(variants)
        library = self._link(variants, wrapper)
        checks = self._checks(variants, library) if record.has_reference else []
        return KernelNodes(record, variants, library, tuple(checks))

    @cached_property
    def _definition_identity(self) -> dict[str, Any]:
        """Contents of the definition's files. SCons has them too, but trusts a file's time if that is some days old."""
        return {"file": self._definition.file, "contents": dict(self._definition.dependencies)}

    def _remember(self, request: str, dependencies: Mapping[str, str]) -> dict[str, str]:
        """Note what a definition read only when it was called. It belongs into the signature that SCons stores.

        SCons computes that signature anew after the action, so options that the action changes are in it.
        """
        run = self._graph.run
        return remember_dependencies(self._definition, run.top, run.discovery, request, dependencies)

    def _where(self, stage: str, slug: str | None = None) -> Where:
        return Where(self._record.name, slug, stage, self._record.location)

    def _variant(self, slug: str, config: Mapping[str, Any]) -> VariantNodes:
        units = []
        for arch in self._selection.archs.get("llvm", ()):
            folder = self._folder.Dir(slug).Dir("llvm").Dir(arch)
            files = self._lower(slug, config, folder, "llvm", arch, ("module.tir", "signature.json", "host.o"))
            units.append(UnitNodes("llvm", (arch,), files, {}, {}))
        if archs := self._selection.archs.get("cuda"):
            folder = self._folder.Dir(slug).Dir("cuda")
            names = ("module.tir", "signature.json", "host.c", "device.cu")
            files = self._lower(slug, config, folder, "cuda", lowering_arch(archs), names)
            compiled = {arch: self._nvcc(slug, folder, files["device.cu"], arch) for arch in archs}
            images = {arch: stage.nodes[0] for arch, stage in compiled.items()}
            resources = {arch: stage.nodes[1] for arch, stage in compiled.items() if arch.startswith("sm_")}
            units.append(UnitNodes("cuda", archs, files, images, resources))
        return VariantNodes(slug, config, tuple(units))

    def _lower(
        self, slug: str, config: Mapping[str, Any], folder: Any, target: str, arch: str, names: tuple[str, ...]
    ) -> dict[str, Any]:
        record, run = self._record, self._graph.run
        file = self._definition.file
        subject = f"{record.name}/{slug} {arch if target == 'llvm' else target}"

        def make(scratch: Path) -> None:
            result = run.pool.call(LowerRequest(file, record.name, slug, dict(config), target, arch, str(scratch)))
            options["later"] = self._remember(subject, result["dependencies"])

        options = {
            "kernel": record.name,
            "slug": slug,
            "config": dict(config),
            "outputs": list(record.outputs),
            "target": target,
            "arch": arch,
            "tvm": self._graph.tools.lowerer.identity,
            "definition": self._definition_identity,
            "later": dict(self._definition.later.get(subject, {})),
        }
        files = {name: folder.File(name) for name in names}
        where = self._where("lower", slug)
        self._graph.stage("LOWER", subject, where, options, make, files, self._sources)
        return files

    def _nvcc(self, slug: str, folder: Any, source: Any, arch: str) -> Stage:
        tools = self._graph.tools
        nvcc = tools.nvcc
        if nvcc is None:
            raise SettingsError("CUDA code without nvcc", self._where("nvcc", slug))
        flags = (*self._graph.settings.nvcc_flags, *self._record.flags)
        job = NvccJob(arch, flags, Path(folder.get_abspath()), self._where("nvcc", slug))

        def make(scratch: Path) -> None:
            compile_device_code(job, nvcc, tools.host_compiler, scratch)

        options = {"arch": arch, "flags": list(flags), "nvcc": nvcc.identity}
        label = "PTX" if arch.startswith("compute_") else "CUBIN"
        targets = {name: folder.File(name) for name in job.outputs}
        return self._graph.stage(
            label, f"{self._record.name}/{slug} {arch}", job.where, options, make, targets, [source]
        )

    def _wrap(self, variants: tuple[VariantNodes, ...]) -> Stage:
        record = self._record
        backend = backends.get(self._selection.backends[0])
        signatures = [unit.files["signature.json"] for variant in variants for unit in variant.units]

        def make(scratch: Path) -> None:
            for name, text in backend.emit(self._plan(variants)).items():
                (scratch / name).write_text(text, encoding="utf-8")

        options = {
            "backend": backend.name,
            "variants": [[v.slug, dict(v.config), [[u.target, list(u.archs)] for u in v.units]] for v in variants],
            "outputs": list(record.outputs),
        }
        targets = {name: self._folder.File(name) for name in backend.files}
        return self._graph.stage(
            "WRAP",
            f"{record.name} {backend.name}",
            self._where("wrap"),
            options,
            make,
            targets,
            signatures,
        )

    def _plan(self, variants: tuple[VariantNodes, ...]) -> KernelPlan:
        """What the backend needs to know; paths relative to the package's work folder."""
        top = Path(self._graph.work.get_abspath())

        def relative(node: Any) -> str:
            return Path(node.get_abspath()).relative_to(top).as_posix()

        return KernelPlan(
            self._record.name,
            tuple(self._record.outputs),
            tuple(
                VariantPlan(
                    variant.slug,
                    variant.config,
                    tuple(
                        LoweredUnit.from_json(
                            read_signature(unit),
                            relative(unit.files["host.o" if unit.target == "llvm" else "host.c"]),
                            {arch: relative(image) for arch, image in unit.images.items()},
                        )
                        for unit in variant.units
                    ),
                )
                for variant in variants
            ),
        )

    def _link(self, variants: tuple[VariantNodes, ...], wrapper: Stage) -> Stage:
        name, graph = self._record.name, self._graph
        backend = backends.get(self._selection.backends[0])
        compiler = graph.tools.host_compiler
        units = [unit for variant in variants for unit in variant.units]
        objects = [unit.files["host.o"] for unit in units if unit.target == "llvm"]
        hosts = [unit.files["host.c"] for unit in units if unit.target == "cuda"]
        images = [image for unit in units for image in unit.images.values()]
        where = self._where("link")
        top = Path(graph.work.get_abspath())
        job = LinkJob(name, tuple(Path(node.get_abspath()).relative_to(top).as_posix() for node in objects))
        by_hand = backend.link_command(job, SYMBOLIC_PLACES, f"{name}/{name}.so")

        def make(scratch: Path) -> None:
            command = backend.link_command(job, real_places(compiler), str(scratch / f"{name}.so"))
            run_tool(command, top, scratch, where, f"the sources are below {top}")
            (scratch / "compile.sh").write_text(shell_script(compiler.version, "..", by_hand))

        options = {
            "compiler": compiler.identity,
            "command": by_hand,
            "launcher": digest_of(backend.link_inputs()),
            "tvm_ffi": graph.tools.lowerer.tvm_ffi,
        }
        targets = {output: self._folder.File(output) for output in (f"{name}.so", "compile.sh")}
        sources = [*wrapper.nodes, *objects, *hosts, *images]
        return graph.stage("LINK", name, where, options, make, targets, sources)

    def _checks(self, variants: tuple[VariantNodes, ...], library: Stage) -> list[Stage]:
        checks = []
        for index, variant in enumerate(variants):
            targets = {unit.target: unit for unit in variant.units}
            if "llvm" in targets:
                checks.append(self._check(index, variant, targets["llvm"], library, "cpu"))
            if "cuda" in targets and has_gpu():
                checks.append(self._check(index, variant, targets["cuda"], library, "cuda:0"))
        return checks

    def _check(self, index: int, variant: VariantNodes, unit: UnitNodes, library: Stage, device: str) -> Stage:
        record, run = self._record, self._graph.run
        file, slug = self._definition.file, variant.slug
        subject = f"{record.name}/{slug} {device}"

        def make(scratch: Path) -> None:
            signature = read_signature(unit)
            path = library.nodes[0].get_abspath()
            request = CheckRequest(file, record.name, slug, path, index, signature, device, record.tolerance)
            result = run.pool.call(request)
            options["later"] = self._remember(f"check {subject}", result.pop("dependencies"))
            (scratch / output.name).write_text(pretty_json(result))

        output = self._graph.checks.Dir(record.name).File(f"{slug}.{device.partition(':')[0]}.json")
        options = {
            "index": index,
            "device": device,
            "tolerance": record.tolerance,
            "definition": self._definition_identity,
            "later": dict(self._definition.later.get(f"check {subject}", {})),
        }
        sources = [library.nodes[0], unit.files["signature.json"], *self._sources]
        where = self._where("check", slug)
        return self._graph.stage("CHECK", subject, where, options, make, {output.name: output}, sources)


def assemble_stage(
    graph: PackageGraph, kernels: list[KernelNodes], failing: list[Stage], sweep: Callable[[], None]
) -> Stage:
    """The stage that makes the generated files of a package."""
    name, tools = graph.settings.package, graph.tools
    tool_data = {"tvm": asdict(tools.lowerer), "host_compiler": describe(tools.host_compiler)[0]}
    if tools.nvcc is not None:
        tool_data["nvcc"] = {"version": tools.nvcc.version, "identity": tools.nvcc.identity}
    ordered = sorted(kernels, key=lambda kernel: kernel.record.name)
    flags = {k.record.name: (*graph.settings.nvcc_flags, *k.record.flags) for k in ordered}

    def make(scratch: Path) -> None:
        built = tuple(_built_kernel(kernel) for kernel in ordered)
        package = BuiltPackage(name, VERSION, tool_data, flags, graph.settings.backends, built)
        (scratch / "_lib").mkdir()
        for kernel, entry in zip(ordered, built, strict=True):
            shutil.copyfile(kernel.library.nodes[0].get_abspath(), scratch / entry.library)
        for relative, text in assemble(package, scratch).items():
            (scratch / relative).parent.mkdir(exist_ok=True)
            (scratch / relative).write_text(text, encoding="utf-8")
        sweep()

    options = {
        "package": name,
        "version": VERSION,
        "tools": tool_data,
        "backends": list(graph.settings.backends),
        "flags": {kernel: list(listed) for kernel, listed in flags.items()},
        "kernels": [[k.record.name, k.record.doc, [v.slug for v in k.variants]] for k in ordered],
        "runtime": digest_of(runtime_sources()),
    }
    # The package gets copies of the libraries, so that building one kernel alone never leaves it with a stale manifest.
    sources = [node for kernel in ordered for node in _assembly_sources(kernel)]
    sources += [stage.nodes[0] for stage in failing]
    targets = {
        output: graph.folder.File(output) for output in (*OUTPUTS, *(library_of(k.record.name) for k in ordered))
    }
    where = Where(stage="assemble")
    return Stage("PACKAGE", name, where, options, make, targets, sources)


def _assembly_sources(kernel: KernelNodes) -> list[Any]:
    units = [unit for variant in kernel.variants for unit in variant.units]
    listed = [unit.files[name] for unit in units for name in ("signature.json", "module.tir")]
    return [kernel.library.nodes[0], *listed, *(node for unit in units for node in unit.resources.values())]


def _built_kernel(kernel: KernelNodes) -> BuiltKernel:
    variants = tuple(
        BuiltVariant(variant.slug, variant.config, tuple(_built_unit(unit) for unit in variant.units))
        for variant in kernel.variants
    )
    return BuiltKernel(kernel.record.name, kernel.record.doc, library_of(kernel.record.name), variants)


def read_signature(unit: UnitNodes) -> dict[str, Any]:
    """The content of a unit's signature.json."""
    return dict(json.loads(Path(unit.files["signature.json"].get_abspath()).read_text(encoding="utf-8")))


def _built_unit(unit: UnitNodes) -> BuiltUnit:
    resources = {arch: Path(node.get_abspath()) for arch, node in unit.resources.items()}
    return BuiltUnit(read_signature(unit), Path(unit.files["module.tir"].get_abspath()), resources, unit.archs)


SYMBOLIC_PLACES = LinkPlaces("@CC@", "@LAUNCHER@", ("@TVM_FFI@", "@DLPACK@"))
"""Words that compile.sh has in place of this machine's paths."""


def real_places(compiler: HostCompiler) -> LinkPlaces:
    """Where the compiler and the headers are on this machine."""
    return LinkPlaces(compiler.path, str(LAUNCHER), tuple(str(folder) for folder in tvm_ffi_includes()))


def require_archs(nvcc: Nvcc, archs: tuple[str, ...]) -> None:
    """Raise a SettingsError for an arch that this nvcc does not know."""
    for arch in archs:
        if arch not in nvcc.archs:
            raise SettingsError(
                f"nvcc {nvcc.version} does not know the arch {arch!r}",
                Where(stage="settings"),
                f"use some of {', '.join(nvcc.archs)}",
            )


def has_gpu() -> bool:
    """Whether an NVIDIA driver runs on this machine."""
    return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()
