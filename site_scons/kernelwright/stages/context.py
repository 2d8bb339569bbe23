"""What stages are made from: the package and the kernel."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..core.arch import native_family
from ..core.dependencies import IN_PACKAGE, dependency_name, is_portable, present_digest
from ..core.errors import DefinitionError, EditedError, SettingsError, ToolchainError, Where
from ..core.surroundings import OUTSIDE, interpreter
from ..define import debug
from .runs import Run, Services, lacks

if TYPE_CHECKING:
    from ..backends.files import UnitFiles, VariantFiles
    from ..define.record import DefinitionRecord, KernelRecord
    from ..define.settings import Settings
    from ..frontends.base import FrontEnd
    from ..processes.protocol import CheckRequest, LowerRequest
    from ..toolchain.distribution import Distribution
    from ..toolchain.elsewhere import Elsewhere
    from ..toolchain.libraries import Library
    from ..toolchain.other_machine import OtherMachine
    from .selection import KernelSelection
    from .stage import Stage
    from .tools import Tools


@dataclass(frozen=True)
class Context:
    """What all stages of a package are made from.

    Arguments:
        run: what runs the stages.
        settings: the package's settings.
        tools: the tools, probed.
        work: the folder of the kernels' files, ``build/kernels/<package>``.
        package: the folder of the package.
        checks: the folder of what checks found.
        wheels: the folder of the wheels.
        images_in: where the device images are, if libraries do not hold them: ``wheels`` of their own, or the
            ``package``.
        has_gpu: whether CUDA code can be checked on this machine.
        common: path of its first output -> a stage that kernels have in common, as far as there are kernels yet.
        device: the folder of the device code, if that of the kernels does not hold it: CPUs do not decide it, so the
            packages for all families have it from the first.
        device_stages: path of its first output -> a stage that makes device code, for all these packages.
        machine: what checks run on, if this machine cannot run the package's code for the CPU.
    """

    run: Run
    settings: Settings
    tools: Tools
    work: Path
    package: Path
    checks: Path
    wheels: Path
    images_in: str = ""
    has_gpu: bool = False
    common: dict[str, Stage] = field(default_factory=dict)
    device: Path | None = None
    device_stages: dict[str, Stage] = field(default_factory=dict)
    machine: OtherMachine | None = None

    @property
    def device_work(self) -> Path:
        """The folder of the kernels' device code."""
        return self.device or self.work

    @property
    def cross_cuda(self) -> str:
        """The folder of a CUDA toolkit for the CPUs of another family; empty: no setting names one."""
        folder = self.settings.cross_cuda
        return str(self.run.top / Path(folder).expanduser()) if folder else ""

    @property
    def is_native(self) -> bool:
        """Whether this machine can run the package's code for the CPU."""
        return self.settings.family == native_family()

    @cached_property
    def interpreter(self) -> list[Any]:
        """What all definitions see; it is read from files of installed distributions, so once for all of them."""
        return interpreter()

    @property
    def glibc(self) -> str:
        """Name of the folder of the libraries that stand in for the machine's C library; no kernel can have it."""
        return f"glibc-{self.settings.glibc}"


@dataclass(frozen=True)
class KernelContext:
    """What the stages of one kernel are made from.

    Arguments:
        front_end: what the definition is written in.
    """

    package: Context
    definition: DefinitionRecord
    selection: KernelSelection
    front_end: FrontEnd

    @property
    def record(self) -> KernelRecord:
        """The kernel, as it was discovered."""
        return self.selection.record

    @property
    def name(self) -> str:
        """The kernel's name."""
        return self.record.name

    @property
    def run(self) -> Run:
        """What runs the stages."""
        return self.package.run

    @property
    def tools(self) -> Tools:
        """The tools, probed."""
        return self.package.tools

    def with_toolkit_for(self, arch: str) -> KernelContext:
        """The same with the CUDA toolkit that makes the code for an arch."""
        tools = self.tools.for_arch(arch)
        return self if tools is self.tools else replace(self, package=replace(self.package, tools=tools))

    @property
    def folder(self) -> Path:
        """The folder of the kernel's files."""
        return self.package.work / self.name

    @property
    def own_tools(self) -> dict[str, Any]:
        """The tools that only kernels in its front end are made with, without paths."""
        data = self.tools.data_of_front_end(self.front_end.name)
        return {self.front_end.name: data} if data else {}

    @property
    def own_tool(self) -> Distribution | Elsewhere | None:
        """The tool that only kernels in its front end are made with."""
        return self.tools.of_front_end(self.front_end.name)

    @property
    def python(self) -> str:
        """The interpreter of the environment that its front end has for itself; empty: it has none."""
        return self.own_tool.python if self.own_tool and self.front_end.own_environment else ""

    @property
    def flags(self) -> tuple[str, ...]:
        """Flags of the CUDA compiler, if that compiles the kernel."""
        if self.front_end.compiles_device_code:
            return ()
        given = *self.package.settings.nvcc_flags, *self.record.options.flags
        return (*self.front_end.flags, *debug.FLAGS[debug_level(self)], *given)

    def flags_in(self, folder: Path) -> tuple[str, ...]:
        """The flags of a compiler that runs in a folder; the author's files are beside the definition."""
        if not (self.front_end.includes_sources or self.front_end.has_host_code):
            return self.flags
        own = {"": self._beside, **self.own_folders}
        named = (str(path) if name[:1] == "/" else os.path.relpath(path, folder) for name, path in own.items())
        paths = (*named, *map(str, self.package_folders.values()))
        return (*(word for path in paths for word in ("-I", path)), *self.flags)

    @property
    def _beside(self) -> Path:
        return (self.run.top / self.definition.file).parent

    @property
    def own_folders(self) -> dict[str, Path]:
        """The folders of headers in the project or with an absolute path, by their names among ``includes``."""
        return {name: self._beside / name for name in self.record.options.includes if not name.startswith(IN_PACKAGE)}

    @cached_property
    def package_folders(self) -> dict[str, Path]:
        """The folders of headers in installed packages, by their names among ``includes``.

        Raises:
            DefinitionError: there is no such folder.
            ToolchainError: what brings the headers of its front end is not installed.
        """
        from ..toolchain.package_folder import package_folder

        for need in self.front_end.needs if self.front_end.includes else ():
            if not need.is_installed:
                message = f"definitions in {self.front_end.name} need {need.name} where kernels are built"
                raise ToolchainError(message, self.where("settings"), need.install)
        own = (name for name in self.record.options.includes if name.startswith(IN_PACKAGE))
        names = dict.fromkeys([*self.front_end.first_includes, *own, *self.front_end.includes])
        return {name: package_folder(name, self.where("settings")) for name in names}

    @cached_property
    def libraries(self) -> tuple[Library, ...]:
        """The libraries of installed packages that its sources call.

        Raises:
            DefinitionError: no package has one, or they are for other CPUs.
        """
        if self.record.options.libraries and not self.package.is_native:
            message = f"its libraries are those that are installed here, and {self.package.settings.family} has others"
            raise DefinitionError(message, self.where("link"), NATIVE_ONLY)
        if not self.record.options.libraries or self.tools.nvcc is None:
            return ()
        from ..toolchain.libraries import find_library

        toolkit = Path(self.tools.nvcc.path).resolve().parent.parent
        return tuple(find_library(name, toolkit, self.where("link")) for name in self.record.options.libraries)

    @property
    def listed_slugs(self) -> list[str]:
        """The slugs that the definition lists; the selection may have others, whose configs somebody asked for."""
        return [slug for found in self.definition.kernels if found.name == self.name for slug in found.slugs]

    def where(self, stage: str, slug: str | None = None) -> Where:
        """The place for error messages."""
        return Where(self.name, slug, stage, self.record.location)

    @cached_property
    def definition_files(self) -> list[str]:
        """Paths of the files that the definition consists of: itself and the project files that it imports or reads.

        Files outside of the project, folders whose listing it read, and files that it looked for in vain are only in
        the fingerprints.
        """
        known = [name for name, digest in self.definition.dependencies.items() if digest and not name.endswith("/")]
        names = [name for name in known if not name.startswith(("/", "../"))]
        return [f"{self.run.top}/{name}" for name in sorted(names)]

    @cached_property
    def definition_identity(self) -> dict[str, Any]:
        """What decides what the definition does: the contents of its files, and what it sees besides.

        SCons has the contents too, but trusts a file's time if that is some days old.

        What is absent is left out: it changes the fingerprint when it appears, and some names depend on Python's
        version.
        """
        contents = {name: digest for name, digest in self.definition.dependencies.items() if digest}
        seen = {"interpreter": self.package.interpreter, "surroundings": dict(self.definition.surroundings)}
        if self.package.settings.environment:
            seen["declared"] = sorted(self.package.settings.environment)
        return {"file": self.definition.file, "contents": contents, **seen}

    def remembering(self, stage: Stage, request: str, *, whole: bool = False) -> Stage:
        """A stage that finds out what it reads: it knows what it read in earlier runs, and whom it may ask.

        Arguments:
            request: its name in the record of the definition.
            whole: whether its request does not have the definition's own dependencies, so that it has to compare those
                that it reads, too: a definition may look into a header that a compiler reads.
        """
        # Imported here, because most runs discover nothing.
        from .discovery import DefinitionRecords

        later, covers = self.definition.later.get(request, {}), self.definition.covers
        stage.later = {name: digest for name, digest in later.items() if whole or not covers(name)}
        records = DefinitionRecords(self.run.top, self.run.discovery)
        stage.note = partial(records.remember, self.definition, request, whole=whole)
        stage.ask = self.call
        return stage

    def in_common(self, stage: Stage, request: str = "") -> Stage:
        """A stage that other kernels of the package may have, too: that which one of them has made, or this one.

        Arguments:
            stage: it makes the same as any other one whose first output has the same path.
            request: its name in the records of the definitions, if it finds out what it reads.
        """
        from .common import Readers
        from .discovery import DefinitionRecords

        stage = self.package.common.setdefault(stage.paths[0], stage)
        stage.users[self.name] = self.record.location
        if request:
            stage.note = stage.note or Readers(DefinitionRecords(self.run.top, self.run.discovery), request)
            if isinstance(stage.note, Readers):
                stage.note.join(stage, self.definition)
        return stage

    def call(self, request: LowerRequest | CheckRequest, where: Where) -> Any:
        """Have a worker answer a request; the result is of the type that the request has.

        Raises:
            DefinitionError: the worker says so.
            EditedError: it has executed something else than what was discovered.
        """
        if request.python:
            _require_environment(self)
        from ..processes.pool import ON_OTHER_MACHINE  # a run with nothing to do has no workers

        known, top = self.definition.dependencies, self.run.top
        machine = self.package.machine if request.stage == "check" else None
        try:
            pool = self.run.pool
            result: Any = (pool.of(ON_OTHER_MACHINE, machine.python) if machine else pool).call(request)
        except DefinitionError:
            # It may have read a file of which the editor had written the first half.
            _require_unedited(self.definition, {name: present_digest(top, name) for name in known}, where)
            raise
        if machine:
            # Files outside of the project are others there, and its identity has what is installed.
            ours = {name: digest for name, digest in result.dependencies.items() if not name.startswith("/")}
            result = replace(result, dependencies=ours)
        _require_unedited(self.definition, result.dependencies, where)
        cache = self.run.cache
        is_sent = cache is not None and cache.remote is not None
        unnamed = [name for name in result.dependencies if name != OUTSIDE and not is_portable(name)]
        for line in told(self.definition.file, result.untracked, unnamed if is_sent else ()):
            self.run.note_once(line)
        return result


def _require_environment(kernel: KernelContext) -> None:
    """Raise a ToolchainError if pip has not installed the front end's compiler in its environment.

    Nobody would notice another one there.
    """
    tool, environment = kernel.own_tool, kernel.front_end.own_environment
    if tool and environment and tool.python and not tool.path:
        message = f"{environment.setting} is {tool.python!r}, where pip has not installed {environment.title}"
        raise ToolchainError(message, kernel.where("lower"), environment.remedy)


def _require_unedited(definition: DefinitionRecord, dependencies: Mapping[str, str], where: Where) -> None:
    """Raise an EditedError if a file of the definition is not what it was when it was discovered."""
    for name, digest in definition.dependencies.items():
        if dependencies.get(name, digest) != digest:
            raise EditedError(f"{name} was edited meanwhile", where, "try again")


def debug_level(kernel: KernelContext) -> str:
    """What is built of a kernel for debuggers, one of :data:`define.debug.LEVELS`.

    Raises:
        SettingsError: the compiler of its language cannot do that.
    """
    front_end, level = kernel.front_end, kernel.record.options.debug or kernel.package.settings.debug
    if level == debug.NO or level in front_end.debugs:
        return level
    can = ", ".join(front_end.debugs) or "nothing"
    message = f"a definition in {front_end.name} cannot have debug = {level!r}: it can have {can}"
    raise SettingsError(message, kernel.where("settings"), 'write debug="no" in @kernel, or build without DEBUG')


def whole(run: Services, variants: tuple[VariantFiles, ...]) -> tuple[VariantFiles, ...]:
    """The variants with what was made of them; all, but for a run that goes on without what fails."""
    if run.partial is None:
        return variants
    left = [replace(v, units=tuple(u for unit in v.units if (u := made(run, unit)) is not None)) for v in variants]
    return tuple(variant for variant in left if variant.units)


def made(run: Services, unit: UnitFiles) -> UnitFiles | None:
    """The lowering with those archs whose images were made; None if there is no such arch."""
    if any(
        lacks(run, path)
        for path in (unit.signature, unit.module, unit.host, *unit.objects, *unit.own, unit.own_library_path)
    ):
        return None
    if unit.own:
        return unit
    images = {arch: image for arch, image in unit.images.items() if not lacks(run, image)}
    if unit.target == "cuda" and not images:
        return None
    archs = tuple(arch for arch in unit.archs if unit.target != "cuda" or arch in images)
    usages = {arch: path for arch, path in unit.usages.items() if arch in images}
    return replace(unit, archs=archs, images=images, usages=usages)


NATIVE_ONLY = "build that package on such a machine, or leave archs of that family out here"
"""What to do about a kernel that cannot be built for another family of CPUs."""


RELOCATABLE = re.compile(
    r"(?<!\S)(?:(?:-rdc|--relocatable-device-code)[= ]true|-dc|--device-c|-dlink|--device-link|-dlto|--dlink-time-opt)"
    r"(?!\S)"
)
"""Flags of nvcc for code that a device linker has to link."""


def require_no_device_linker(flags: Iterable[str], where: Where) -> None:
    """Raise a DefinitionError for flags of code that a device linker would have to link, since there is none."""
    if match := RELOCATABLE.search(" ".join(flags)):
        remedy = "leave it out, and include what a source calls on the device instead of linking it"
        raise DefinitionError(f"its flags have {match[0]}, and there is no device linker", where, remedy)


def require_folders(folders: Mapping[str, Path], top: Path, where: Where) -> None:
    """Raise a DefinitionError if a folder of headers is not there; compilers take no notice of that.

    So it does for an absolute path into the project or its repository, which would mean nothing in another checkout.

    It is called when something is compiled, so that only its kernel fails.

    Arguments:
        folders: those of :attr:`KernelContext.own_folders`.
        top: the project's folder.
    """
    beside = Path((where.location or "").rpartition(":")[0]).parent
    for name, path in folders.items():
        if not path.is_dir():
            place = "on this machine" if name[0] == "/" else "beside the definition"
            remedy = f"give paths relative to {beside.as_posix()}, or make the folder"
            raise DefinitionError(f"includes names {name!r}, which is no folder {place}", where, remedy)
        if name[0] == "/" and (ours := dependency_name(path, top, {}))[0] != "/":
            message = f"includes names {name!r}, which other checkouts of the project do not have"
            raise DefinitionError(message, where, f"write {os.path.relpath(ours, beside)!r}")


def told(file: str, untracked: Iterable[str], unnamed: Iterable[str]) -> list[str]:
    """What a run says of a definition file whose results stay on the machine.

    Arguments:
        untracked: what it did that no digest can tell.
        unnamed: the files that it read and that have no name on other machines.
    """
    rest = "so what it makes stays on this machine"
    return [
        *(f"kernelwright: {what}: a build does not notice when the answer changes, {rest}" for what in untracked),
        *(f"kernelwright: {file} reads {name}, which has no name on other machines, {rest}" for name in unnamed),
    ]
