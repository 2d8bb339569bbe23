"""The stages of one kernel, and the assembly of a package, each as a :class:`Stage`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import backends
from ..backends.base import Places
from ..compile.fatbin import PackJob, needed_driver, pack
from ..compile.limits import check_limits, read_usage
from ..compile.nvcc import can_include, shell_script
from ..core.errors import DefinitionError, Where
from ..core.files import dependency_digest, digest_of, pretty_json
from ..core.records import read_json
from ..core.version import VERSION
from ..discover.discovery import DefinitionRecord, KernelRecord, remember_dependencies
from ..discover.selection import KernelSelection, lowering_arch
from ..library import wrapper as kernel_library
from ..library.plan import KernelPlan, LoweredUnit, VariantPlan
from ..library.wrapper import LinkJob
from ..package.assemble import IMAGES, library_of
from ..package.manifest import BuiltKernel, BuiltUnit, BuiltVariant, make_entry
from ..processes.protocol import CheckRequest, LowerRequest
from ..runtime.loader import gaps_text
from ..toolchain.probe import cuda_version
from .backend_stages import SYMBOLIC_PLACES, BackendStages, real_places
from .commands import entry
from .device import device_compiler
from .stage import Measured, Stage

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
    """The nodes of one kernel.

    Arguments:
        record: the kernel.
        backends: how it can be called, its default first.
        stages: those up to what the package gets of it.
        products: path in the package -> the node that is copied there.
        entry: the node of its part of the manifest.
        checks: the stages of its checks.
    """

    record: KernelRecord
    backends: tuple[str, ...]
    stages: tuple[Stage, ...]
    products: Mapping[str, Any]
    entry: Any
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
        self._glibc = graph.glibc_stage

    def add(self) -> KernelNodes:
        """Add everything, from the lowering to the checks."""
        record, made = self._record, self._graph.made
        before = len(made)
        variants = tuple(self._variant(slug, config) for slug, config in zip(record.slugs, record.configs, strict=True))
        chosen = [backends.get(name) for name in self._selection.backends]
        products: dict[str, Any] = {}
        library = None
        if any(backend.library for backend in chosen):
            wrapper = self._wrap(variants)
            library = self._link(variants, wrapper, self._compile(variants, wrapper))
            products[library_of(record.name)] = library.nodes[0]
        if self._graph.images_in == "package":
            products |= self._image_products(variants)
        for backend in chosen:
            added = BackendStages(self._graph, record, backend)
            plan, rest = (lambda: self._plan(variants)), self._rest(variants)
            products |= added.add(plan, self._sources_of(variants), rest)
        entry = library.targets["entry.json"] if library else self._entry(variants)
        finished = tuple(made[before:])
        checks = self._checks(variants, library) if record.has_reference and library else []
        return KernelNodes(record, self._selection.backends, finished, products, entry, tuple(checks))

    def _sources_of(self, variants: tuple[VariantNodes, ...]) -> list[Any]:
        """What the plan of a kernel is made of.

        It names images and does not read them, so that nvcc can run meanwhile; unless they may be lacking in the end.
        """
        units = [unit for variant in variants for unit in variant.units]
        images = [image for unit in units for image in unit.images.values()] if self._graph.run.partial else []
        return [*(unit.files["signature.json"] for unit in units), *images]

    def _whole(self, variants: tuple[VariantNodes, ...]) -> tuple[VariantNodes, ...]:
        """The variants with what was made of them; all, but for a run that goes on without what fails."""
        if self._graph.run.partial is None:
            return variants
        made = [replace(v, units=tuple(u for unit in v.units if (u := self._made(unit)) is not None)) for v in variants]
        return tuple(variant for variant in made if variant.units)

    def _made(self, unit: UnitNodes) -> UnitNodes | None:
        """A lowering with the archs that were made of it; None: there is nothing of use."""
        lacks = self._graph.run.lacks
        if any(map(lacks, unit.files.values())):
            return None
        images = {arch: image for arch, image in unit.images.items() if not lacks(image)}
        if unit.target == "cuda" and not images:
            return None
        archs = tuple(arch for arch in unit.archs if unit.target != "cuda" or arch in images)
        resources = {arch: node for arch, node in unit.resources.items() if arch in images}
        return replace(unit, archs=archs, images=images, resources=resources)

    def _image_products(self, variants: tuple[VariantNodes, ...]) -> dict[str, Any]:
        """The device images, for a package that has them as files."""
        images = [image for variant in variants for unit in variant.units for image in unit.images.values()]
        top = Path(self._graph.work.get_abspath())
        return {f"{IMAGES}/{Path(i.get_abspath()).relative_to(top).as_posix()}": i for i in images}

    @cached_property
    def _definition_identity(self) -> dict[str, Any]:
        """Contents of the definition's files. SCons has them too, but trusts a file's time if that is some days old.

        What is absent is left out: it changes the signature when it appears, and some names depend on Python's version.
        """
        contents = {name: digest for name, digest in self._definition.dependencies.items() if digest}
        return {"file": self._definition.file, "contents": contents}

    def _later(self, request: str, options: dict[str, Any]) -> Callable[[Mapping[str, str]], None]:
        """Put what a request read in earlier runs into its options; returns what notes the files that it reads now.

        They belong into the signature that SCons stores. SCons computes that anew after the action, so options that the
        action changes are in it.
        """
        options["later"] = dict(self._definition.later.get(request, {}))

        def remember(dependencies: Mapping[str, str]) -> None:
            run = self._graph.run
            found = remember_dependencies(self._definition, run.top, run.discovery, request, dependencies)
            options["later"] = found

        return remember

    def _call(self, request: LowerRequest | CheckRequest, where: Where) -> dict[str, Any]:
        """Have a worker answer a request.

        Raises:
            DefinitionError: the worker says so, or it has executed something else than what was discovered.
        """
        try:
            result: dict[str, Any] = self._graph.run.pool.call(request)
        except DefinitionError:
            # It may have read a file of which the editor had written the first half.
            self._require_unedited({n: dependency_digest(self._graph.run.top, n) for n in self._dependencies}, where)
            raise
        self._require_unedited(result["dependencies"], where)
        return result

    @property
    def _dependencies(self) -> Mapping[str, str]:
        return self._definition.dependencies

    def _require_unedited(self, dependencies: Mapping[str, str], where: Where) -> None:
        """Raise a DefinitionError if a file of the definition is not what it was when it was discovered."""
        for name, digest in self._dependencies.items():
            if dependencies.get(name, digest) != digest:
                raise DefinitionError(f"{name} was edited during the build", where, "run scons again")

    def _where(self, stage: str, slug: str | None = None) -> Where:
        return Where(self._record.name, slug, stage, self._record.location)

    def _variant(self, slug: str, config: Mapping[str, Any]) -> VariantNodes:
        if self._record.frontend == "cutedsl":
            return VariantNodes(slug, config, (self._cutedsl_unit(slug, config),))
        units = []
        for arch in self._selection.archs.get("llvm", ()):
            folder = self._folder.Dir(slug).Dir("llvm").Dir(arch)
            files = self._lower(slug, config, folder, "llvm", arch, ("module.tir", "signature.json", "host.o"))
            units.append(UnitNodes("llvm", (arch,), files, {}, {}))
        if archs := self._selection.archs.get("cuda"):
            folder = self._folder.Dir(slug).Dir("cuda")
            names = ("module.tir", "signature.json", "host.c", "device.cu")
            files = self._lower(slug, config, folder, "cuda", lowering_arch(archs), names)
            compiled = {arch: self._device_code(slug, folder, files["device.cu"], arch) for arch in archs}
            images = {arch: self._packed(slug, folder, arch, stage.nodes[0]) for arch, stage in compiled.items()}
            resources = {arch: stage.nodes[1] for arch, stage in compiled.items() if arch.startswith("sm_")}
            units.append(UnitNodes("cuda", archs, files, images, resources))
        return VariantNodes(slug, config, tuple(units))

    def _cutedsl_unit(self, slug: str, config: Mapping[str, Any]) -> UnitNodes:
        """CuTe DSL makes the device code itself, and exports the host code as an object and what adapts that."""
        archs = self._selection.archs["cuda"]
        folder = self._folder.Dir(slug).Dir("cuda")
        outputs = {arch: f"{arch}.{'ptx' if arch.startswith('compute_') else 'cubin'}" for arch in archs}
        usages = {arch: f"{arch}.json" for arch in archs if arch.startswith("sm_")}
        names = ("module.mlir", "signature.json", "host.c", "host.o", *outputs.values(), *usages.values())
        files = self._lower(slug, config, folder, "cuda", lowering_arch(archs), names, archs)
        images = {arch: self._packed(slug, folder, arch, files[name]) for arch, name in outputs.items()}
        resources = {arch: files[name] for arch, name in usages.items()}
        return UnitNodes("cuda", archs, files | {"module.tir": files["module.mlir"]}, images, resources)

    def _lower(
        self,
        slug: str,
        config: Mapping[str, Any],
        folder: Any,
        target: str,
        arch: str,
        names: tuple[str, ...],
        archs: tuple[str, ...] = (),
    ) -> dict[str, Any]:
        """Add the stage that lowers a variant.

        Arguments:
            names: what it makes.
            archs: those that the front end itself makes device code for.
        """
        record, run = self._record, self._graph.run
        file = self._definition.file
        subject = f"{record.name}/{slug} {arch if target == 'llvm' else target}"

        where = self._where("lower", slug)
        strict = run.strict

        def make(scratch: Path) -> None:
            made = scratch / "made"
            made.mkdir()
            request = LowerRequest(
                file, record.name, slug, dict(config), target, arch, str(made), strict, ",".join(archs)
            )
            result = self._call(request, where)
            write_anew(made, scratch, names)
            remember(result["dependencies"])
            stage.measured.cpu_seconds = result["cpu_seconds"]

        options: dict[str, Any] = {
            "kernel": record.name,
            "slug": slug,
            "config": dict(config),
            "outputs": list(record.outputs),
            "target": target,
            "arch": arch,
            "tvm": self._graph.tools.lowerer.identity,
            "definition": self._definition_identity,
        } | ({"strict": True} if strict else {})
        if record.frontend == "cutedsl":
            options |= {"archs": list(archs), "cutedsl": self._graph.cutedsl.identity}
        remember = self._later(subject, options)
        files = {name: folder.File(name) for name in names}
        made_for = (arch,) if target == "llvm" else self._selection.archs["cuda"]
        stage = Stage("LOWER", subject, where, options, make, files, self._sources, remember=remember, archs=made_for)
        self._graph.node(stage)
        return files

    def _device_code(self, slug: str, folder: Any, source: Any, arch: str) -> Stage:
        graph, subject = self._graph, f"{self._record.name}/{slug} {arch}"
        where = partial(self._where, slug=slug)
        compiler = device_compiler(graph, arch, self._flags, Path(folder.get_abspath()), where)
        job = compiler.job

        def make(scratch: Path) -> None:
            done = compiler.compile(scratch, subject)
            stage.measured = Measured(done.result.cpu_seconds, done.result.peak_kib)
            for note in done.notes:
                graph.run.progress.note_once(f"kernelwright: {note}")
            remember({header: dependency_digest(graph.run.top, header) for header in done.headers})

        graph.commands.append(entry(job.folder, "device.cu", compiler.command, job.output))
        options: dict[str, Any] = {"arch": arch, "flags": list(job.flags), **compiler.identity}
        remember = self._later(f"{job.where.stage} {subject}", options) if can_include(job.flags) else ignore
        label = "PTX" if arch.startswith("compute_") else "CUBIN"
        targets = {name: folder.File(name) for name in job.outputs}
        stage = Stage(label, subject, job.where, options, make, targets, [source], remember=remember, archs=(arch,))
        graph.node(stage)
        return stage

    def _packed(self, slug: str, folder: Any, arch: str, image: Any) -> Any:
        """The node of an image as it is loaded: compressed, if the settings say so."""
        graph, mode = self._graph, self._graph.settings.compress
        nvcc = graph.tools.nvcc
        if mode == "none" or nvcc is None:
            return image
        job = PackJob(arch, image.name, mode, Path(folder.get_abspath()), self._where("fatbinary", slug))
        subject, fatbinary = f"{self._record.name}/{slug} {arch}", graph.fatbinary

        def make(scratch: Path) -> None:
            done = pack(job, nvcc, fatbinary, scratch, graph.run.tools, subject)
            stage.measured = Measured(done.cpu_seconds, done.peak_kib)

        options = {"arch": arch, "mode": mode, "nvcc": nvcc.identity}
        targets = {name: folder.File(name) for name in job.outputs}
        stage = Stage("FATBIN", subject, job.where, options, make, targets, [image], archs=(arch,))
        return graph.node(stage).nodes[0]

    def _wrap(self, variants: tuple[VariantNodes, ...]) -> Stage:
        record = self._record

        def make(scratch: Path) -> None:
            for name, text in kernel_library.emit(self._plan(variants)).items():
                (scratch / name).write_text(text, encoding="utf-8")

        options = {
            "variants": [[v.slug, dict(v.config), [[u.target, list(u.archs)] for u in v.units]] for v in variants],
            "images": [self._graph.images_in, self._graph.settings.compress, self._toolkit],
        }
        targets = {name: self._folder.File(name) for name in kernel_library.FILES}
        subject = record.name
        stage = Stage("WRAP", subject, self._where("wrap"), options, make, targets, self._sources_of(variants))
        stage.rest = self._rest(variants)
        return self._graph.node(stage)

    def _rest(self, variants: tuple[VariantNodes, ...]) -> Callable[[], bool]:
        """What tells whether any variant was made."""
        return lambda: bool(self._whole(variants))

    @property
    def _toolkit(self) -> int:
        """The CUDA version of the compiler that makes the images. CuTe DSL has one of its own and does not tell."""
        compiler = self._graph.tools.cuda
        return cuda_version(compiler.version) if compiler and self._record.frontend != "cutedsl" else 0

    def _plan(self, variants: tuple[VariantNodes, ...]) -> KernelPlan:
        """What the backend needs to know; paths relative to the package's work folder."""
        top = Path(self._graph.work.get_abspath())

        def relative(node: Any) -> str:
            return Path(node.get_abspath()).relative_to(top).as_posix()

        def lowered(unit: UnitNodes) -> LoweredUnit:
            code = unit.files["host.o" if unit.target == "llvm" else "host.c"]
            images = {arch: relative(image) for arch, image in unit.images.items()}
            return LoweredUnit.from_json(read_signature(unit), relative(code), images)

        whole = self._whole(variants)
        planned = tuple(VariantPlan(v.slug, v.config, tuple(map(lowered, v.units))) for v in whole)
        # Their names; the definition may list positions.
        outputs = tuple(argument.name for argument in planned[0].units[0].arguments if argument.output)
        driver = needed_driver(self._graph.settings.compress)
        partial_run = self._graph.run.partial
        gaps = gaps_text(partial_run.behind(self._sources_of(variants))) if partial_run else ""
        split = bool(self._graph.images_in)
        return KernelPlan(self._record.name, outputs, planned, split, driver, self._toolkit, gaps)

    def _compile(self, variants: tuple[VariantNodes, ...], wrapper: Stage) -> Stage:
        """Compile the wrapper, with the host code of the cuda lowerings in it."""
        name, graph = self._record.name, self._graph
        compiler = graph.tools.host_compiler
        where = self._where("compile")
        top = Path(graph.work.get_abspath())
        places, output = real_places(compiler), f"{name}/wrapper.o"
        command = kernel_library.compile_command(name, places, output)
        graph.commands.append(entry(top, f"{name}/{kernel_library.FILES[0]}", command, output))
        by_hand = kernel_library.compile_command(name, SYMBOLIC_PLACES, output)

        def make(scratch: Path) -> None:
            command = kernel_library.compile_command(name, places, str(scratch / "wrapper.o"))
            remedy = f"the sources are below {top}"
            done = graph.run.tools.run(command, top, scratch, where, remedy, kind="cc", subject=name)
            stage.measured = Measured(done.cpu_seconds, done.peak_kib)
            (scratch / "compile_wrapper.sh").write_text(shell_script(compiler.version, "..", by_hand))

        options = {
            "compiler": compiler.identity,
            "command": by_hand,
            "headers": digest_of(kernel_library.launcher_sources()),
            "tvm_ffi": graph.tools.lowerer.tvm_ffi,
        }
        targets = {file: self._folder.File(file) for file in ("wrapper.o", "compile_wrapper.sh")}
        hosts = [unit.files["host.c"] for v in variants for unit in v.units if unit.target == "cuda"]
        stage = Stage("CC", name, where, options, make, targets, [wrapper.nodes[0], *hosts])
        stage.rest = self._rest(variants)
        return graph.node(stage)

    def _link(self, variants: tuple[VariantNodes, ...], wrapper: Stage, compiled: Stage) -> Stage:
        name, graph = self._record.name, self._graph
        compiler = graph.tools.host_compiler
        objects = self._objects(variants)
        folder, stubs = (graph.glibc.name, self._glibc.nodes) if self._glibc else ("", [])
        places = replace(real_places(compiler), glibc=folder)
        images = [image for variant in variants for unit in variant.units for image in unit.images.values()]
        where = self._where("link")
        top = Path(graph.work.get_abspath())
        output = f"{name}/{name}.so"
        listed, usages = self._described_by(variants)

        def command_for(linked: tuple[VariantNodes, ...], places: Places, output: str) -> list[str]:
            paths = (Path(node.get_abspath()) for node in self._objects(linked))
            job = LinkJob(name, tuple(path.relative_to(top).as_posix() for path in paths))
            return kernel_library.link_command(job, places, output)

        graph.commands.append(entry(top, f"{name}/wrapper.o", command_for(variants, places, output), output))
        symbolic = replace(SYMBOLIC_PLACES, glibc=folder)

        def make(scratch: Path) -> None:
            whole = self._whole(variants)
            self._check_limits(whole)
            command = command_for(whole, places, str(scratch / f"{name}.so"))
            by_hand = command_for(whole, symbolic, output)
            remedy = f"the sources are below {top}"
            done = graph.run.tools.run(command, top, scratch, where, remedy, kind="link", subject=name)
            stage.measured = Measured(done.cpu_seconds, done.peak_kib)
            (scratch / "compile.sh").write_text(shell_script(compiler.version, "..", by_hand))
            (scratch / "entry.json").write_text(make_entry(self._built(whole)), encoding="utf-8")

        options = {
            "compiler": compiler.identity,
            "command": command_for(variants, symbolic, output),
            "headers": digest_of(kernel_library.launcher_sources()),
            **self._entry_options,
        }
        targets = {file: self._folder.File(file) for file in (f"{name}.so", "compile.sh", "entry.json")}
        sources = [compiled.nodes[0], *wrapper.nodes[1:], *objects, *images, *listed, *usages, *stubs]
        stage = Stage("LINK", name, where, options, make, targets, sources, rest=self._rest(variants))
        return graph.node(stage)

    @staticmethod
    def _objects(variants: tuple[VariantNodes, ...]) -> list[Any]:
        """The nodes of the host objects."""
        units = (unit for variant in variants for unit in variant.units)
        return [unit.files["host.o"] for unit in units if "host.o" in unit.files]

    def _entry(self, variants: tuple[VariantNodes, ...]) -> Any:
        """Make the kernel's part of the manifest, where there is no library of which it would be a by-product."""
        listed, usages = self._described_by(variants)
        images = [image for v in variants for unit in v.units for image in unit.images.values()]

        def make(scratch: Path) -> None:
            whole = self._whole(variants)
            self._check_limits(whole)
            (scratch / "entry.json").write_text(make_entry(self._built(whole)), encoding="utf-8")

        targets = {"entry.json": self._folder.File("entry.json")}
        sources = [*listed, *usages, *images]
        where = self._where("entry")
        stage = Stage("ENTRY", self._record.name, where, self._entry_options, make, targets, sources)
        stage.rest = self._rest(variants)
        return self._graph.node(stage).nodes[0]

    @property
    def _entry_options(self) -> dict[str, Any]:
        graph = self._graph
        return {
            "limits": [graph.settings.max_registers, graph.settings.max_spills],
            "images": graph.images_in,
            "entry": [VERSION, self._tool_data, self._record.doc, self._flags, self._record.backward],
        }

    @staticmethod
    def _described_by(variants: tuple[VariantNodes, ...]) -> tuple[list[Any], list[Any]]:
        """The nodes that the manifest describes: signatures and sources, and resource usages."""
        units = [unit for variant in variants for unit in variant.units]
        listed = [unit.files[file] for unit in units for file in ("signature.json", "module.tir")]
        return listed, [node for unit in units for node in unit.resources.values()]

    def _check_limits(self, variants: tuple[VariantNodes, ...]) -> None:
        """Raise a KernelwrightError if a device function needs more than the settings allow."""
        settings = self._graph.settings
        resources = [(v.slug, arch, node) for v in variants for u in v.units for arch, node in u.resources.items()]
        for slug, arch, node in resources:
            usage = read_usage(Path(node.get_abspath()))
            where = self._where("nvcc" if self._graph.tools.nvrtc is None else "nvrtc", slug)
            check_limits(self._record.name, slug, arch, usage, settings.max_registers, settings.max_spills, where)

    @property
    def _tool_data(self) -> dict[str, Any]:
        """The tools that the kernel is made with, without paths."""
        own = {"cutedsl": asdict(self._graph.cutedsl)} if self._record.frontend == "cutedsl" else {}
        return self._graph.tool_data | own

    @property
    def _flags(self) -> tuple[str, ...]:
        """Flags of nvcc, which CuTe DSL does without."""
        if self._record.frontend == "cutedsl":
            return ()
        return (*self._graph.settings.nvcc_flags, *self._record.flags)

    def _built(self, variants: tuple[VariantNodes, ...]) -> BuiltKernel:
        record, graph = self._record, self._graph
        top = Path(graph.work.get_abspath()) if graph.images_in else None
        built = tuple(BuiltVariant(v.slug, v.config, tuple(_built_unit(u, top) for u in v.units)) for v in variants)
        called = [backends.get(name) for name in self._selection.backends]
        library = library_of(record.name) if any(backend.library for backend in called) else ""
        return BuiltKernel(
            record.name, record.doc, library, built, self._flags, self._tool_data, VERSION, record.backward
        )

    def _checks(self, variants: tuple[VariantNodes, ...], library: Stage) -> list[Stage]:
        checks = []
        for variant in variants:
            targets = {unit.target: unit for unit in variant.units}
            if "llvm" in targets:
                checks.append(self._check(variants, variant, targets["llvm"], library, "cpu"))
            if "cuda" in targets and self._graph.has_gpu:
                checks.append(self._check(variants, variant, targets["cuda"], library, "cuda:0"))
        return checks

    def _check(
        self,
        variants: tuple[VariantNodes, ...],
        variant: VariantNodes,
        unit: UnitNodes,
        library: Stage,
        device: str,
    ) -> Stage:
        record, run = self._record, self._graph.run
        file, slug = self._definition.file, variant.slug
        subject = f"{record.name}/{slug} {device}"

        def make(scratch: Path) -> None:
            signature = read_signature(unit)
            path = library.nodes[0].get_abspath()
            index = [built.slug for built in self._whole(variants)].index(slug)
            request = CheckRequest(
                file, record.name, slug, path, index, signature, device, record.tolerance, run.strict
            )
            result = self._call(request, where)
            remember(result.pop("dependencies"))
            (scratch / output.name).write_text(pretty_json(result))

        output = self._graph.checks.Dir(record.name).File(f"{slug}.{device.partition(':')[0]}.json")
        options: dict[str, Any] = {
            "index": variants.index(variant),
            "device": device,
            "tolerance": record.tolerance,
            "definition": self._definition_identity,
        } | ({"strict": True} if run.strict else {})
        remember = self._later(f"check {subject}", options)
        sources = [library.nodes[0], unit.files["signature.json"], *self._sources]
        where = self._where("check", slug)
        targets = {output.name: output}
        stage = Stage("CHECK", subject, where, options, make, targets, sources, remember=remember, cacheable=False)
        stage.rest = lambda: self._made(unit) is not None
        return self._graph.node(stage)


def write_anew(made: Path, folder: Path, names: Iterable[str]) -> None:
    """Have files that a worker has made be files of the build: with its umask, whatever that of the worker is by now.

    Arguments:
        made: where they are; what is missing there, or is no regular file, is left out.
        folder: where they are written to.
    """
    for name in names:
        path = made / name
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)  # a umask may have taken even the right to read
            (folder / name).write_bytes(path.read_bytes())


def read_signature(unit: UnitNodes) -> dict[str, Any]:
    """The content of a unit's signature.json."""
    path = Path(unit.files["signature.json"].get_abspath())
    return read_json(path, lambda document: document.raw, "remove it and run scons again")


def _built_unit(unit: UnitNodes, split_in: Path | None) -> BuiltUnit:
    """What the manifest says of a unit.

    Arguments:
        split_in: the folder that the names of images are relative to, if the library does not hold them.
    """
    resources = {arch: Path(node.get_abspath()) for arch, node in unit.resources.items()}
    paths = {arch: Path(node.get_abspath()) for arch, node in unit.images.items()} if split_in else {}
    images = {arch: (path.relative_to(split_in or "").as_posix(), path) for arch, path in paths.items()}
    return BuiltUnit(read_signature(unit), Path(unit.files["module.tir"].get_abspath()), resources, unit.archs, images)


def ignore(dependencies: Mapping[str, str]) -> None:
    """Remember nothing: flags that cannot include a file need no list of headers."""
