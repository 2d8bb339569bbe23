"""PACKAGE: assembles a package: generated modules, manifest, and copies of the kernels' libraries."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .. import backends
from ..backends.base import Backend
from ..backends.commands import LIBRARIES, SOURCE_LIBRARY
from ..core.errors import KernelwrightError, Where
from ..core.files import Stamp, digest_of, file_stamp, lasting_stamp, sha256_of
from ..core.plugins import described
from ..core.request import ASIDE
from ..core.version import VERSION
from ..define.settings import Settings
from ..package.assemble import outputs, provider_package, runtime_sources
from ..package.images import IMAGES
from .context import Context
from .execution import move, remove, tell_of_alteration
from .object import FOLDER as OBJECTS
from .runs import lacks
from .stage import Stage, files_in
from .stage_run import StageRun

if TYPE_CHECKING:
    from .tools import Tools

SWEPT = (LIBRARIES, "_runtime", "backends", IMAGES)
"""The folders of a package. What is in them and was not made for it is removed."""


@dataclass(frozen=True)
class Built:
    """A file that the package needs of a kernel.

    Arguments:
        source: its path relative to the folder of the kernels.
        path: its absolute path, if a stage of this run makes it.
        digest: its SHA-256, if none does.
    """

    source: str
    path: str | None
    digest: str = ""


@dataclass(frozen=True)
class Part:
    """A kernel in the assembly.

    Arguments:
        name: the kernel's name.
        backends: how it can be called, its default first.
        entry: its part of the manifest.
        products: path in the package -> what is copied there.
        made: the files that its stages have made, relative to the top, if it is settled.
        location: where it is defined, for errors; if it is settled, the file.
    """

    name: str
    backends: tuple[str, ...]
    entry: Built
    products: Mapping[str, Built]
    made: Collection[str] = ()
    location: str = field(default="", kw_only=True)


@dataclass(frozen=True)
class Package:
    """What is in a package besides its kernels. Those are known late, when all of them are made.

    Arguments:
        runtime: digest of the modules that are copied into it.
        plugins: the distributions that bring some of its backends, with digests of what they consist of.
        machine: the family of CPUs that it is for.
        assembly: what makes it of its kernels.
    """

    name: str
    version: str
    tools: Mapping[str, Any]
    backends: tuple[str, ...]
    project: str
    runtime: str
    plugins: Mapping[str, str]
    compress: Mapping[str, Any]
    device_code: Mapping[str, Any]
    machine: str
    assembly: Assembly = field(metadata=ASIDE)

    def make(self, scratch: Path, stage: StageRun) -> None:
        """Assemble the package."""
        self.assembly.make(self, scratch)


class Assembly:
    """Makes the stage that assembles a package.

    The package has copies of the kernels' files, so that building one kernel alone never leaves it with a stale
    manifest. They are no outputs of the stage, since there may be thousands: their contents are in its fingerprint.

    Arguments:
        context: the package.
        parts: its kernels, sorted by name.
        copies: path in the package -> stamp and SHA-256 of the copies that an earlier run made.
        stages: all stages of the package; it is complete when the stage runs.
        project: version of the project that the package belongs to; empty: unknown.
    """

    def __init__(
        self,
        context: Context,
        parts: list[Part],
        copies: Mapping[str, tuple[Stamp, str]],
        stages: Sequence[Stage],
        project: str,
    ) -> None:
        self._context = context
        self._run = context.run
        self._parts = parts
        self.copies = dict(copies)
        self._before = copies
        self._stages = stages
        self._project = project
        self._work = str(context.work)
        self._folder = str(context.package)
        self._checks = str(context.checks)

    @cached_property
    def _backends(self) -> tuple[Backend, ...]:
        """All backends of all kernels: first those of the settings, in that order."""
        return backends_of(self._context, self._parts)

    def stage(self) -> Stage:
        """The stage. It names no sources, because it differs from run to run which of them stages make."""
        settings = self._context.settings
        request = Package(
            name=settings.package,
            version=VERSION,
            tools=self._context.tools.data,
            backends=tuple(backend.name for backend in self._backends),
            project=self._project,
            runtime=digest_of(runtime_sources(self._backends, bool(self._device_code))),
            plugins={name: text for backend in self._backends for name, text in described(backend).items()},
            compress=compression(settings, self._context.tools),
            device_code=self._device_code,
            machine=settings.family,
            assembly=self,
        )
        paths = files_in(self._context.package, self._outputs)
        where = Where(stage="assemble")
        subject = settings.labelled(settings.package)
        stage = Stage("PACKAGE", subject, where, request, paths, [], cacheable=False)
        stage.late = lambda: [*map(self._late, self._whole), *self._gaps, *self._damaged()]
        return stage

    @property
    def _whole(self) -> list[Part]:
        """The kernels that this run has made. If a kernel lacks variants, its part lacks their files."""
        if self._run.partial is None:
            return self._parts
        return [part for part in map(self._made, self._parts) if part is not None]

    def _made(self, part: Part) -> Part | None:
        """A kernel without the code of variants that were not made; None: it cannot be used."""
        # Each variant needs its image, or the library of its sources.
        of_variants = re.compile(rf"{IMAGES}/.*|{SOURCE_LIBRARY.pattern}")
        needed = [product.path for path, product in part.products.items() if not of_variants.fullmatch(path)]
        if any(lacks(self._run, path) for path in (part.entry.path, *needed)):
            return None
        return replace(part, products={path: p for path, p in part.products.items() if not lacks(self._run, p.path)})

    @property
    def _gaps(self) -> list[dict[str, Any]]:
        """What the package lacks, if this run goes on without what fails."""
        return self._run.partial.gaps(self._stages) if self._run.partial else []

    @property
    def _device_code(self) -> dict[str, Any]:
        """What the manifest says of device code that libraries do not hold, where it was built."""
        settings = self._context.settings
        packages = {arch: provider_package(settings.package, arch) for arch in settings.providers}
        if self._context.images_in == "package":
            return {"folder": IMAGES, "packages": {}}
        folder = os.path.relpath(self._context.device_work, self._folder)
        return {"folder": folder, "packages": packages} if packages else {}

    @cached_property
    def _outputs(self) -> tuple[str, ...]:
        return outputs(self._context.settings.package, self._backends, bool(self._device_code))

    def _damaged(self) -> list[list[str]]:
        """The copies that are not what the package has to have. None is left when the package has been assembled.

        They are in the fingerprint, which is asked for only in a run that is to make the package: any other run leaves
        the package as it is, also if the kernels are newer by now.
        """
        # Once each: all kernels have the launcher's library among theirs.
        products = dict.fromkeys((path, self._digest(p)) for part in self._whole for path, p in part.products.items())
        lost = [path for path, digest in products if not self._is_current(path, digest)]
        return [["damaged", *lost]] if lost else []

    def require_folders(self, *more: str) -> None:
        """Raise a KernelwrightError if a folder that is swept, or one of some more, is a symbolic link."""
        self._run.require_folders([self._work, self._checks, *map(self._place, SWEPT), *more])

    def _is_current(self, path: str, expected: str) -> bool:
        known, place = self.copies.get(path), self._place(path)
        try:
            stamp = file_stamp(place)
            if known is None or known[0] != stamp or self._run.strict:
                known = self.copies[path] = (lasting_stamp(place), sha256_of(Path(place)))
        except OSError:
            return False
        return known[1] == expected

    def _late(self, part: Part) -> list[Any]:
        products = sorted((path, self._digest(product)) for path, product in part.products.items())
        return [part.name, part.backends, self._digest(part.entry), products]

    def _digest(self, built: Built) -> str:
        """SHA-256 of a file; empty as long as it is not built."""
        if built.path is None:
            return built.digest
        output = self._run.journal.output(built.path)
        return output[1] if output else ""

    def _place(self, path: str) -> str:
        return os.path.join(self._folder, path)  # noqa: PTH118

    def make(self, request: Package, scratch: Path) -> None:
        """Copy what is not in the package yet, and write what is generated."""
        from ..package.assemble import assemble
        from ..package.manifest import BuiltPackage, require_distinct_operators

        # Once for all of them: there may be thousands of products in one folder.
        self.require_folders(*{os.path.dirname(self._place(path)) for part in self._whole for path in part.products})  # noqa: PTH120
        gaps = self._gaps
        if gaps and not self._whole:
            remedy = f"mend what is listed in {self._work}"
            raise KernelwrightError("no kernel is well, so there is no package", Where(stage="assemble"), remedy)
        kernels = tuple(self._packaged(part, scratch) for part in self._whole)
        require_distinct_operators(request.name, kernels, {part.name: part.location for part in self._whole})
        package = BuiltPackage(
            *(request.name, request.version, request.tools, request.backends, kernels),
            compress=request.compress,
            device_code=request.device_code,
            project=request.project,
            missing=gaps,
            machine=request.machine,
        )
        for relative, text in assemble(package, lambda: self._run.pool).items():
            (scratch / relative).parent.mkdir(parents=True, exist_ok=True)
            (scratch / relative).write_text(text, encoding="utf-8")
        self._sweep()
        if gaps:
            text = f"kernelwright: {request.name} is built partially; manifest.json lists what it lacks"
            self._run.note(text)

    def _packaged(self, part: Part, scratch: Path) -> Any:
        """What the package needs to know of a kernel; copies what it has made if the package has something else."""
        from ..package.manifest import PackagedKernel

        for path, product in part.products.items():
            if not self._is_current(path, self._digest(product)):
                self._tell_of_damage(path)
                shutil.copyfile(Path(self._work, product.source), scratch / "product")
                move(scratch / "product", Path(self._place(path)))
                self.copies[path] = (lasting_stamp(self._place(path)), sha256_of(Path(self._place(path))))
        entry = Path(self._work, part.entry.source).read_text(encoding="utf-8")
        products = {path: (self.copies[path][1], self.copies[path][0][0]) for path in part.products}
        return PackagedKernel(part.name, entry, part.backends, products)

    def _tell_of_damage(self, path: str) -> None:
        """Say so if a copy is neither what has to be there nor what an earlier run copied."""
        now, before = self.copies.get(path), self._before.get(path)
        if now and before and now[1] != before[1] and os.path.exists(self._place(path)):  # noqa: PTH110
            tell_of_alteration(self._place(path), self._run.top, self._run.note)
            remove(self._place(path))

    def _sweep(self) -> None:
        """Remove what earlier definitions, configs and archs left behind."""
        known = {path for stage in self._stages for path in stage.paths} | {
            self._place(path) for part in self._whole for path in part.products
        }
        known |= {str(path) for stage in self._stages if stage.keeps for path in stage.keeps.glob("*")}
        known |= self._run.partial.logs(self._stages) if self._run.partial else set()
        self.copies = {path: copy for path, copy in self.copies.items() if self._place(path) in known}
        for inside in SWEPT:
            remove_unknown(Path(self._folder, inside), known)
        for alias in (f"{name}{suffix}" for name in backends.all_names() for suffix in (".py", ".pyi")):
            remove_unknown(Path(self._folder, alias), known)
        # Settled kernels need what they have in common with others: libraries, and the objects of sources.
        settled = (product.source for part in self._parts for product in part.products.values() if not product.path)
        known |= {f"{self._work}/{source}" for source in settled}
        known |= {f"{self._run.top}/{path}" for part in self._parts for path in part.made if f"/{OBJECTS}/" in path}
        # If all kernels are settled, nothing has named the launcher.
        made_launcher = any(stage.label == "LAUNCHER" for stage in self._stages)
        for top in (Path(self._work), Path(self._checks)):
            kept = {part.name for part in self._parts if part.entry.path is None}
            kept |= {self._context.glibc} if made_launcher else {self._context.glibc, LIBRARIES}
            for folder in [path for path in top.glob("*") if path.name not in kept]:
                remove_unknown(folder, known)


def named_backends(settings: Settings) -> tuple[Backend, ...]:
    """The backends that the settings name; ``auto`` adds none that needs anything."""
    return tuple(backends.get(name) for name in settings.backends if name != backends.AUTO)


def images_in(settings: Settings) -> str:
    """Where the device images are, if libraries do not hold them: ``wheels`` of their own, or the ``package``."""
    if settings.split == "arch":
        return "wheels"
    in_files = settings.split == "variant" or any(backend.images for backend in named_backends(settings))
    return "package" if in_files else ""


def compression(settings: Settings, tools: Tools) -> dict[str, Any]:
    """What a manifest says of the compression of device code; empty: it is not compressed."""
    if settings.compress == "none" or not tools.nvcc:
        return {}
    # Imported here, because a build with nothing to do needs none of it.
    from ..toolchain.fatbin import described

    return described(settings.compress)


def backends_of(context: Context, parts: Iterable[Part]) -> tuple[Backend, ...]:
    """All backends of some kernels: first those of the settings, in that order."""
    used = {name for part in parts for name in part.backends}
    ordered = dict.fromkeys((*context.settings.backends, *backends.all_names(), *sorted(used)))
    return tuple(backends.get(name) for name in ordered if name in used)


def remove_unknown(path: Path, known: Iterable[str]) -> None:
    """Remove the files below a folder that are not known, and the folders that are empty then."""
    keep = known if isinstance(known, set) else set(known)
    if path.is_symlink() or not path.is_dir():
        if str(path) not in keep:
            path.unlink(missing_ok=True)
        return
    for inner in path.iterdir():
        remove_unknown(inner, keep)
    # Not empty, or just being filled by a stage that runs at the same time.
    with contextlib.suppress(OSError):
        path.rmdir()
