"""All stages of one kernel, from the lowering to the checks."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import backends
from ..backends.base import Backend
from ..backends.commands import LIBRARIES
from ..backends.files import UnitFiles, VariantFiles, images_of
from ..core.arch import image_file, is_ptx, virtual_arch
from ..define.record import KernelRecord
from ..package.assemble import library_of, product_of
from ..package.images import IMAGES
from . import cc, check, device, entry, ext, fatbin, link, lower, sass, sources, torch_library, wrap
from . import object as object_files
from .context import KernelContext
from .places import SYMBOLIC_PLACES
from .stage import Stage


def _named_in(compiled: Mapping[str, Stage], archs: Collection[str]) -> dict[str, str]:
    """For each arch what tells the function's name: PTX, which is there first, or the image itself."""
    return {arch: compiled.get(virtual_arch(arch), compiled[arch]).paths[0] for arch in archs}


@dataclass(frozen=True)
class KernelBuild:
    """The stages of one kernel, and what they make.

    Arguments:
        record: the kernel.
        backends: how it can be called, its default first.
        stages: those up to what the package gets of it.
        products: path in the package -> path of the file that is copied there.
        entry: path of its part of the manifest.
        checks: the stages of its checks.
        listings: the stages that make texts of its device code.
        common: the stages that other kernels have in common with it.
    """

    record: KernelRecord
    backends: tuple[str, ...]
    stages: tuple[Stage, ...]
    products: Mapping[str, str]
    entry: str
    checks: tuple[Stage, ...]
    listings: tuple[Stage, ...] = ()
    common: tuple[Stage, ...] = ()


def make(kernel: KernelContext, glibc: Stage | None, launcher: Stage, listings: Collection[str] = ()) -> KernelBuild:
    """The stages of a kernel.

    Arguments:
        glibc: what makes the libraries that stand in for the machine's C library, if any does.
        launcher: what makes the launcher.
        listings: the texts of device code to make, some of ``core.pipeline.LISTINGS``.

    Raises:
        ToolchainError: a listing needs a tool that is missing.
    """
    return _Kernel(kernel, glibc, launcher).make(listings)


class _Kernel:
    """Collects the stages of a kernel."""

    def __init__(self, kernel: KernelContext, glibc: Stage | None, launcher: Stage) -> None:
        self._kernel = kernel
        self._glibc = glibc
        self._launcher = launcher
        self._stages: list[Stage] = []
        self._common: list[Stage] = []
        self._source_libraries: dict[tuple[str, ...], Stage] = {}

    def make(self, listings: Collection[str]) -> KernelBuild:
        kernel, record = self._kernel, self._kernel.record
        variants = tuple(self._variant(slug, config) for config, slug in record.listed)
        chosen = [backends.get(name) for name in kernel.selection.backends]
        products: dict[str, str] = {}
        library = None
        if kernel.front_end.backends:
            library = self._add(torch_library.make(kernel, variants, self._glibc))
        elif any(backend.library for backend in chosen):
            library = self._library(variants)
            for path in [self._launcher.paths[0], *(stage.paths[0] for stage in self._source_libraries.values())]:
                products[f"{LIBRARIES}/{Path(path).name}"] = path
        if library:
            products[library_of(record.name)] = library.paths[0]
        if kernel.package.images_in == "package":
            products |= self._images(variants)
        for backend in chosen:
            products |= self._backend(variants, backend)
        describing = library or self._add(entry.make(kernel, variants))
        can_run = kernel.package.is_native or kernel.package.machine
        is_checked = record.has_reference and library and can_run
        checks = check.make_all(kernel, variants, library) if is_checked and library else []
        entry_path = describing.outputs["entry.json"]
        texts = tuple(stage for variant in variants for stage in self._listed(variant, listings))
        stages = tuple(self._stages)
        described = (record, kernel.selection.backends, stages, products, entry_path)
        return KernelBuild(*described, checks=tuple(checks), listings=texts, common=tuple(self._common))

    def _add(self, stage: Stage) -> Stage:
        self._stages.append(stage)
        return stage

    def _once(self, stage: Stage) -> Stage:
        """A stage that makes device code, or that of another package that has the same from there."""
        return self._kernel.package.device_stages.setdefault(stage.paths[0], stage)

    def _variant(self, slug: str, config: Mapping[str, Any]) -> VariantFiles:
        units = [self._unit(*unit) for unit in lower.units_of(self._kernel, slug, config)]
        return VariantFiles(slug, config, tuple(units))

    def _unit(self, unit: lower.VariantUnit, wanted: tuple[str, ...]) -> UnitFiles:
        """Lower a variant, and compile the CUDA code for some archs, unless the front end makes device code itself."""
        slug, target, front_end = unit.slug, unit.target, self._kernel.front_end
        lowered = front_end.files(target, unit.archs)
        lowering = lower.make(unit)
        files = self._add(lowering if target == "llvm" else self._once(lowering)).outputs
        images = {arch: files[name] for arch, name in lowered.images.items()}
        usages = {arch: files[name] for arch, name in lowered.usages.items()}
        made = device.make_all(self._kernel, slug, files[lowered.source], wanted) if lowered.source else {}
        compiled = {arch: self._once(stage) for arch, stage in made.items()}
        self._stages += compiled.values()
        for arch in wanted if lowered.source else ():
            images[arch], usage, _ = compiled[arch].paths
            if not is_ptx(arch):
                usages[arch] = usage
        host = files[lowered.host[0]] if lowered.host else ""
        texts = files["signature.json"], files[lowered.module], host
        objects = tuple(files[name] for name in lowered.host if name.endswith(".o"))
        own = self._own_objects(slug) if front_end.has_host_code else []
        library = self._source_library(own) if own and not front_end.backends else ""
        return UnitFiles(
            *(target, wanted, *texts, objects),
            images=self._packed(slug, images),
            usages=usages,
            named_in=_named_in(compiled, wanted) if front_end.includes_sources else {},
            own_arch=unit.own_arch,
            own=tuple(stage.paths[0] for stage in own),
            reports=tuple(stage.paths[1] for stage in own),
            own_library=Path(library).name,
            own_library_path=library,
        )

    def _own_objects(self, slug: str) -> list[Stage]:
        """The stages of a variant's sources with host code of their own, which others may have in common with it."""
        made = object_files.make_all(self._kernel, slug, self._kernel.selection.archs["cuda"])
        self._common += [*made.texts, *made.objects]
        return list(made.objects)

    def _source_library(self, objects: list[Stage]) -> str:
        """The path of the library of these objects, which a stage makes."""
        key = tuple(stage.paths[0] for stage in objects)
        if key not in self._source_libraries:
            self._source_libraries[key] = sources.make(self._kernel, objects, self._glibc, self._launcher)
            self._common.append(self._source_libraries[key])
        return self._source_libraries[key].paths[0]

    def _packed(self, slug: str, images: dict[str, str]) -> dict[str, str]:
        """The images as they are loaded: compressed, if the settings say so."""
        if self._kernel.package.settings.compress == "none" or self._kernel.tools.nvcc is None:
            return images
        stages = {arch: self._once(fatbin.make(self._kernel, slug, image, arch)) for arch, image in images.items()}
        return {arch: self._add(stage).paths[0] for arch, stage in stages.items()}

    def _listed(self, variant: VariantFiles, listings: Collection[str]) -> Iterator[Stage]:
        """The stages that make texts of a variant's device code.

        Those of a front end that compiles device code itself have no source that a CUDA compiler could make PTX of.
        """
        for unit in (unit for unit in variant.units if unit.target == "cuda"):
            folder, source = Path(unit.module).parent, self._kernel.front_end.files("cuda", unit.archs).source
            for arch in (arch for arch in unit.archs if not is_ptx(arch) and "sass" in listings):
                yield sass.make(self._kernel, variant.slug, f"{folder}/{image_file(arch)}", arch)
            if "ptx" in listings and source:
                yield from device.make_ptx(self._kernel, variant.slug, f"{folder}/{source}", unit.archs)

    def _library(self, variants: tuple[VariantFiles, ...]) -> Stage:
        wrapped = self._add(wrap.make(self._kernel, variants))
        compiled = self._add(cc.make(self._kernel, variants, wrapped))
        own = tuple(self._source_libraries.values())
        linked = link.make(self._kernel, variants, wrapped, compiled, self._glibc, self._launcher, own=own)
        return self._add(linked)

    def _images(self, variants: tuple[VariantFiles, ...]) -> dict[str, str]:
        """The device images, for a package that has them as files."""
        top = self._kernel.package.device_work
        return {f"{IMAGES}/{Path(image).relative_to(top).as_posix()}": image for image in images_of(variants)}

    def _backend(self, variants: tuple[VariantFiles, ...], backend: Backend) -> dict[str, str]:
        """Add the stages of a backend; what the package gets of them, by the path in the package."""
        name = self._kernel.name
        if not backend.files(name):
            return {}
        wrapped = self._add(wrap.make(self._kernel, variants, backend))
        outputs = dict(wrapped.outputs)
        if backends.answer(backend, lambda: backend.commands(name, SYMBOLIC_PLACES, ""), self._kernel.where("compile")):
            outputs |= self._add(ext.make(self._kernel, backend, wrapped, self._glibc)).outputs
        return {product_of(backend.name, file): outputs[file] for file in backend.products(name)}
