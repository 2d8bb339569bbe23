"""Makes kernel objects of compiled kernels: the same objects that packages have, with a few attributes more."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Callable, Mapping
from functools import partial
from importlib import import_module
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from .. import backends, frontends, runtime
from ..backends.base import RUNTIME_FOLDER
from ..core.arch import real_arch, target_of, virtual_arch
from ..core.dependencies import present_digest
from ..core.errors import KernelwrightError, Where
from ..runtime.loader import DamageError, Loader, read_manifest, read_regular
from ..runtime.provider import Provider
from .build import Compiled, Job, compile_job, kernel_context
from .cache_place import PRIVATE, CacheError
from .kernel_folders import AGAIN, damage
from .monitor import tell

PREFIX = "kernelwright_on_demand_"
"""The names of the packages of compiled kernels begin so. These packages are only in this process's memory."""

ATTEMPTS = 3
"""How often a kernel is compiled if somebody changes or removes its files before they are loaded."""


class KernelLoader(Loader):
    """Loads the kernels of a folder of the cache. The modules that load them are those of Kernelwright itself.

    Device code in files is loaded later than the kernel itself, and others may have removed the folder by then. So this
    process keeps a copy of it for as long as it lives.

    Arguments:
        compiled: the folder.
        name: the kernel.
    """

    remedy = AGAIN

    def __init__(self, compiled: Compiled, name: str) -> None:
        first = package = f"{PREFIX}{name}_{compiled.key[:16]}"
        number = 1
        while package in sys.modules:  # of another folder, or of what the folder had in it before
            number += 1
            package = f"{first}_{number}"
        super().__init__(str(compiled.folder / "__init__.py"), (name,), package)
        self._number = number
        self._providers: dict[str, Any] = {}
        self._register()

    def verified(self, relative: str) -> Path:
        """See :meth:`Loader.verified`; modules of ours need no digest."""
        if relative.startswith("_runtime/"):
            return Path(runtime.__file__).parent / relative.removeprefix("_runtime/")
        path = super().verified(relative)
        return self._spelled(relative) if self._number > 1 else path

    def provider(self, name: str) -> Any:
        """See :meth:`Loader.provider`. The first call copies the device code; :meth:`_load` sees to that."""
        with self._lock:
            if name not in self._providers:
                kept, manifest = PRIVATE.make(), self.manifest()
                for relative in manifest["files"]:
                    if relative.startswith(f"{manifest['device_code']['folder']}/"):
                        (kept / relative).parent.mkdir(parents=True, exist_ok=True)
                        shutil.copyfile(self.verified(relative), kept / relative)
                self._providers[name] = Provider(kept, manifest, name, read_manifest, read_regular, self.remedy)
            return self._providers[name]

    def _load(self, name: str, backend: str) -> Any:
        if "device_code" in self.manifest():
            self.provider(name)
        return super()._load(name, backend)

    def _spelled(self, relative: str) -> Path:
        """A path to a file, spelled as no earlier loader has spelled it.

        The system knows loaded libraries by the texts of their paths, and would not load the file that is there now.
        """
        ways = {"0": f"../{self.folder.name}", "1": f"../../{self.folder.parent.name}/{self.folder.name}"}
        return Path(self.folder, *(ways[digit] for digit in f"{self._number:b}"), relative)

    def _register(self) -> None:
        """Let modules that a backend has written import what they need, from the folder and from the runtime."""
        module = ModuleType(self.package)
        module.__path__ = [str(self.folder)]
        sys.modules[self.package] = module
        sys.modules[f"{self.package}._runtime"] = runtime

    def through(self, module: str, name: str) -> Any:
        """See :meth:`Loader.through`. What a backend has written sees the modules of the runtime, and no copies."""
        for name_of, backend in self.manifest()["backends"].items():
            for file in backend["modules"] if module in backend["modules"] else ():
                shared = file.removesuffix(".py")
                _require_module(name_of, file)
                sys.modules[f"{self.package}._runtime.{shared}"] = import_module(f"{runtime.__name__}.{shared}")
        return super().through(module, name)


def _require_module(backend: str, file: str) -> None:
    """Import a module of the runtime that a plug-in has, under the name by which ours would be imported."""
    name = f"{runtime.__name__}.{file.removesuffix('.py')}"
    for path in backends.get(backend).runtime_sources() if name not in sys.modules else ():
        if path.name == file and path.parent != RUNTIME_FOLDER:
            spec = spec_from_file_location(name, path)
            assert spec and spec.loader
            sys.modules[name] = module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])


def load_kernel(job: Job, note: Callable[[str], None]) -> Any:
    """The kernel object of a job, which is compiled unless the cache has it.

    Raises:
        KernelwrightError: a stage failed, or something keeps damaging the cache.
        ImportError: a package that the backend needs is not installed.
    """
    anew = False
    for _ in range(ATTEMPTS):
        compiled = compile_job(job, note, anew)
        try:
            kernel = _loaded(compiled, job)
            break
        except (ImportError, OSError, RuntimeError) as error:
            # Somebody has changed or removed a file of the cache. Another process may have put that right by now.
            anew, problem = bool(damage(compiled.folder)), getattr(error, "problem", error)
            if not anew and not isinstance(error, DamageError):
                raise
    else:
        where = Where(job.record.name, job.slug, "cache", job.record.location)
        remedy = "find out what changes the cache, or set KERNELWRIGHT_DISABLE_CACHE=1"
        raise CacheError(f"its files are damaged as soon as they are made: {problem}", where, remedy)
    kernel.cached = compiled.cached
    if job.settings.dump_ir == "yes":
        write_ir(job, compiled.folder, note)
    return kernel


def _loaded(compiled: Compiled, job: Job) -> Any:
    """The kernel object, loaded once in a process for each folder, which never has the content of another key."""
    loaded, place = job.session.loaded, (compiled.key, str(compiled.folder))
    if place not in loaded:
        begin = time.monotonic()
        kernel = KernelLoader(compiled, job.record.name).kernel(job.record.name)
        tell("load", job.record.name, job.slug, time.monotonic() - begin)
        kernel.key = compiled.key
        kernel.artifacts = compiled.folder / job.record.name
        kernel.source = partial(source_of, job, kernel.artifacts, compiled.later)
        kernel._later = compiled.later
        loaded[place] = kernel
    return loaded[place]


FILES = {"cuda": "device.cu", "host": "host.c"}
"""Kind of source -> the name of its file; that of ``tir`` is told by the front end."""

KINDS = ("tir", *FILES, "ptx", "sass")


def source_of(job: Job, artifacts: Path, later: Mapping[str, str], kind: str = "cuda", arch: str | None = None) -> str:
    """A text of a compiled kernel.

    Arguments:
        job: what was compiled.
        artifacts: the kernel's folder.
        later: what its stages turned out to read, with digests: PTX that is made now must read the same.
        kind: ``tir`` (the scheduled function), ``cuda`` (the device code), ``host`` (the host code of CUDA, in C),
            ``ptx`` or ``sass``.
        arch: the arch that it is of; None: the first CUDA arch, or else the CPU's.

    Raises:
        KernelwrightError: there is no such text, and the message says what there is; or the kernel's files have gone.
    """
    where = Where(job.record.name, job.slug, "source", job.record.location)
    if kind not in KINDS:
        raise KernelwrightError(f"there is no source {kind!r}", where, f"the kinds are {', '.join(KINDS)}")
    archs = job.selection.archs
    cuda = archs.get("cuda", ())
    compiled = cuda if job.selection.compiled is None else job.selection.compiled
    known = (*compiled, *archs.get("llvm", ()))
    if arch is not None and arch not in known:
        raise KernelwrightError(f"it is not compiled for {arch}", where, f"its archs are {', '.join(known)}")
    folder = artifacts / job.slug
    if kind != "tir" and (not compiled or arch in archs.get("llvm", ())):
        remedy = "compile it for CUDA: using(archs=['sm_90a']); of code for the CPU there is 'tir'"
        raise KernelwrightError(f"there is no {kind} of code for the CPU", where, remedy)
    arch = arch or known[0]
    module = frontends.of(job.record, where).files(target_of(arch), ()).module
    try:
        if arch in archs.get("llvm", ()):
            return _read(folder / "llvm" / arch, module, where)
        unit = folder / "cuda" / (real_arch(arch) if job.record.options.per_arch else "")
        name = module if kind == "tir" else FILES.get(kind)
        return _read(unit, name, where) if name else _made(job, unit, kind, arch, later)
    except (OSError, ValueError) as error:
        message = f"its files are no longer in the cache: {artifacts.parent} has gone, or is damaged"
        raise KernelwrightError(message, where, AGAIN) from error


def _read(folder: Path, name: str, where: Where) -> str:
    if name in {path.name for path in folder.iterdir()}:
        return read_regular(folder / name).decode()
    remedy = f"the files that it has are in {folder}"
    raise KernelwrightError(f"this kernel has no {name}", where, remedy)


def _made(job: Job, folder: Path, kind: str, arch: str, later: Mapping[str, str]) -> str:
    """The PTX or the SASS of an arch, which a stage makes of the files of the kernel."""
    from ..stages import device, sass
    from ..stages.execution import attempt
    from .run import OnDemandRun

    there, ptx = {path.name for path in folder.iterdir()}, f"{virtual_arch(arch)}.ptx"
    if kind == "ptx" and ptx in there:
        return read_regular(folder / ptx).decode()
    if kind == "ptx" and "device.cu" not in there:
        where = Where(job.record.name, job.slug, "source", job.record.location)
        message = f"this kernel has no PTX: {job.record.options.frontend} compiles its device code itself"
        raise KernelwrightError(message, where, f"compile it for PTX, too: using(archs=[..., {virtual_arch(arch)!r}])")
    with job.session.store.scratch(job.record.name) as scratch:
        kernel = kernel_context(job, OnDemandRun(job.session, lambda text: None), scratch)
        # Not in the cache: it may be read-only, and its folders have only what their manifests list.
        source = scratch / job.slug / ("device.cu" if kind == "ptx" else f"{arch}.cubin")
        source.parent.mkdir(parents=True)
        source.write_bytes(read_regular(folder / source.name))
        make = device.ptx_of if kind == "ptx" else sass.make
        stage = make(kernel, job.slug, str(source), arch)
        if (problem := attempt(stage, kernel.run)) is not None:
            raise problem
        _require_unedited(job, later if kind == "ptx" else {})
        return Path(stage.paths[0]).read_text(encoding="utf-8")


def _require_unedited(job: Job, later: Mapping[str, str]) -> None:
    """Raise a KernelwrightError if a text was made now from other headers than the kernel."""
    for name, digest in later.items():
        if present_digest(job.session.root, name) != digest:
            where = Where(job.record.name, job.slug, "source", job.record.location)
            message = f"its PTX cannot be made any more: {name} is not what the kernel was compiled with"
            raise KernelwrightError(message, where, f"{AGAIN}, and ask the new one")


def write_ir(job: Job, folder: Path, note: Callable[[str], None]) -> None:
    """Write the IR after each of TVM's passes into the folder of a compiled kernel, unless it is there.

    The files are in ``<kernel>/<slug>/<target>/ir``; they are no part of what the kernel's manifest lists.

    Raises:
        KernelwrightError: the folder cannot be written.
    """
    from ..stages import ir
    from ..stages.execution import attempt
    from .run import OnDemandRun

    run = OnDemandRun(job.session, note)
    for stage in ir.make_all(kernel_context(job, run, folder)):
        if not Path(stage.paths[0]).is_file() and (problem := attempt(stage, run)) is not None:
            raise problem
