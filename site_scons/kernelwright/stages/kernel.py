"""All stages of one kernel, from the lowering to the checks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .. import backends
from ..backends.base import Backend
from ..core.arch import image_file, is_ptx
from ..discover.discovery import KernelRecord
from ..library.files import UnitFiles, VariantFiles, images_of
from ..package.assemble import IMAGES, library_of, product_of
from . import cc, check, device, entry, ext, fatbin, link, lower, wrap
from .context import KernelContext
from .places import SYMBOLIC_PLACES
from .stage import Stage


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
    """

    record: KernelRecord
    backends: tuple[str, ...]
    stages: tuple[Stage, ...]
    products: Mapping[str, str]
    entry: str
    checks: tuple[Stage, ...]


def make(kernel: KernelContext, glibc: Stage | None) -> KernelBuild:
    """The stages of a kernel.

    Arguments:
        glibc: what makes the libraries that stand in for the machine's C library, if any does.
    """
    return _Kernel(kernel, glibc).make()


class _Kernel:
    """Collects the stages of a kernel."""

    def __init__(self, kernel: KernelContext, glibc: Stage | None) -> None:
        self._kernel = kernel
        self._glibc = glibc
        self._stages: list[Stage] = []

    def make(self) -> KernelBuild:
        kernel, record = self._kernel, self._kernel.record
        variants = tuple(self._variant(slug, config) for slug, config in zip(record.slugs, record.configs, strict=True))
        chosen = [backends.get(name) for name in kernel.selection.backends]
        products: dict[str, str] = {}
        library = self._library(variants) if any(backend.library for backend in chosen) else None
        if library:
            products[library_of(record.name)] = library.paths[0]
        if kernel.package.images_in == "package":
            products |= self._images(variants)
        for backend in chosen:
            products |= self._backend(variants, backend)
        described = library or self._add(entry.make(kernel, variants))
        checks = check.make_all(kernel, variants, library) if record.has_reference and library else []
        entry_path = described.outputs["entry.json"]
        return KernelBuild(record, kernel.selection.backends, tuple(self._stages), products, entry_path, tuple(checks))

    def _add(self, stage: Stage) -> Stage:
        self._stages.append(stage)
        return stage

    def _variant(self, slug: str, config: Mapping[str, Any]) -> VariantFiles:
        archs = self._kernel.selection.archs
        units = [self._cpu(slug, config, arch) for arch in archs.get("llvm", ())]
        if archs.get("cuda"):
            own = self._kernel.record.frontend == "cutedsl"
            units.append((self._compiled if own else self._cuda)(slug, config, archs["cuda"]))
        return VariantFiles(slug, config, tuple(units))

    def _cpu(self, slug: str, config: Mapping[str, Any], arch: str) -> UnitFiles:
        files = self._add(lower.make(self._kernel, slug, config, "llvm", (arch,))).outputs
        host = files["host.o"]
        return UnitFiles("llvm", (arch,), files["signature.json"], files["module.tir"], host, (host,))

    def _cuda(self, slug: str, config: Mapping[str, Any], archs: tuple[str, ...]) -> UnitFiles:
        """The lowering gives CUDA code, which is compiled for each arch."""
        files = self._add(lower.make(self._kernel, slug, config, "cuda", archs)).outputs
        images, usages = {}, {}
        for arch in archs:
            compiled = self._add(device.make(self._kernel, slug, files["device.cu"], arch))
            images[arch], usage, _ = compiled.paths
            if not is_ptx(arch):
                usages[arch] = usage
        described = files["signature.json"], files["module.tir"], files["host.c"]
        return UnitFiles("cuda", archs, *described, (), self._packed(slug, images), usages)

    def _compiled(self, slug: str, config: Mapping[str, Any], archs: tuple[str, ...]) -> UnitFiles:
        """The front end makes the device code itself, and gives the host code as an object and what adapts that."""
        files = self._add(lower.make(self._kernel, slug, config, "cuda", archs)).outputs
        images = {arch: files[image_file(arch)] for arch in archs}
        usages = {arch: files[f"{arch}.json"] for arch in archs if f"{arch}.json" in files}
        described = files["signature.json"], files["module.mlir"], files["host.c"]
        return UnitFiles("cuda", archs, *described, (files["host.o"],), self._packed(slug, images), usages)

    def _packed(self, slug: str, images: dict[str, str]) -> dict[str, str]:
        """The images as they are loaded: compressed, if the settings say so."""
        if self._kernel.package.settings.compress == "none" or self._kernel.tools.nvcc is None:
            return images
        return {
            arch: self._add(fatbin.make(self._kernel, slug, image, arch)).paths[0] for arch, image in images.items()
        }

    def _library(self, variants: tuple[VariantFiles, ...]) -> Stage:
        wrapped = self._add(wrap.make(self._kernel, variants))
        compiled = self._add(cc.make(self._kernel, variants, wrapped))
        return self._add(link.make(self._kernel, variants, wrapped, compiled, self._glibc))

    def _images(self, variants: tuple[VariantFiles, ...]) -> dict[str, str]:
        """The device images, for a package that has them as files."""
        top = self._kernel.package.work
        return {f"{IMAGES}/{Path(image).relative_to(top).as_posix()}": image for image in images_of(variants)}

    def _backend(self, variants: tuple[VariantFiles, ...], backend: Backend) -> dict[str, str]:
        """Add the stages of a backend; what the package gets of them, by the path in the package."""
        name = self._kernel.name
        if not backend.files(name):
            return {}
        wrapped = self._add(wrap.make_for(self._kernel, variants, backend))
        outputs = dict(wrapped.outputs)
        if backend.commands(name, SYMBOLIC_PLACES, ""):
            outputs |= self._add(ext.make(self._kernel, backend, wrapped, self._glibc)).outputs
        return {product_of(backend.name, file): outputs[file] for file in backend.products(name)}
