"""Turns the kernels of a package into SCons nodes: lower, nvcc, wrap, link, assemble and check.

Kernels that are settled (see ``settled``) get no nodes. So what only the others need is imported when there are some.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import SCons.Node
import SCons.Node.Alias
import SCons.Script
import SCons.Util

from .. import backends
from ..core.errors import KernelwrightError, SettingsError, ToolchainError, Where, printable
from ..core.files import canonical_json, digest_of
from ..core.version import VERSION
from ..define.settings import Settings
from ..library.launcher import LAUNCHER
from ..state.settled import Settled, SettledKernel, is_current, read_settled, stamps_of, trusted_stamps, write_settled
from ..toolchain.probe import CuteDsl, HostCompiler, Lowerer, Nvcc, describe
from .assembly import Assembly, Built, Part, remove_unknown
from .commands import NAME as COMMANDS
from .commands import add_compile_commands
from .run import BuildRun
from .stage import CODE, Measured, Stage, StageAction, code_digest

if TYPE_CHECKING:
    from ..backends.base import Backend
    from ..discover.discovery import DefinitionRecord
    from ..discover.selection import KernelSelection
    from ..toolchain.nvrtc import Nvrtc
    from .stages import KernelNodes

DONE = (SCons.Node.executed, SCons.Node.up_to_date)
"""The states of a node that was built, or that needed no building."""


@dataclass(frozen=True)
class Tools:
    """The probed tools of a package; nvcc and NVRTC only where CUDA code is built with them."""

    lowerer: Lowerer
    host_compiler: HostCompiler
    nvcc: Nvcc | None
    nvrtc: Nvrtc | None = None

    @property
    def cuda(self) -> Nvcc | Nvrtc | None:
        """What compiles CUDA code."""
        return self.nvrtc or self.nvcc


@dataclass(frozen=True)
class Unsettled:
    """A definition file that is looked into in this run: its record, and the nodes of those kernels that are built."""

    definition: DefinitionRecord
    kernels: dict[str, KernelNodes]
    notes: list[str]


class PackageGraph:
    """The nodes of one kernel package.

    Arguments:
        env: the user's environment; what is added to it are targets and aliases.
        run: the run of scons that it belongs to.
        settings: the package's settings.
        files: SCons file nodes of the definition files.
    """

    def __init__(self, env: Any, run: BuildRun, settings: Settings, files: list[Any]) -> None:
        self.run = run
        self.settings = settings
        self.made: list[Stage] = []
        self.unsettled: dict[str, KernelNodes] = {}
        self.commands: list[dict[str, Any]] = []
        self._looked_into: list[Unsettled] = []
        # They show what is wrong with definition files, whatever is asked for.
        self._failing: list[Any] = []
        self._required: set[str] = set()
        self._top = str(run.top)
        self._files = [self._name(node.get_abspath()) for node in files]
        self._user_env = env
        # A clone, so that the user's decider and scanners stay as they are: early cutoff needs contents compared, and
        # the stages name all their sources themselves.
        self.env = env.Clone(SCANNERS=[])
        self.env.Decider("content")
        base = _base_folder(env)
        self.work = base.Dir("kernels").Dir(settings.package)
        self.folder = base.Dir(settings.package.replace(".", "/"))
        self.checks = base.Dir("check").Dir(settings.package)
        self.wheels = base.Dir("wheels")
        run.bases.add(base.get_abspath())
        if str(self.folder) in run.packages:
            where = Where(stage="settings", location=f"KernelPackage({settings.package!r})")
            raise SettingsError("a package of that name exists already", where, "give each package its own name")
        run.packages.add(str(self.folder))

    @property
    def definitions(self) -> tuple[str, ...]:
        """The definition files, relative to the project's folder."""
        return tuple(self._files)

    @cached_property
    def tools(self) -> Tools:
        """Probe what the settings need.

        Raises:
            ToolchainError: a tool is missing or broken.
        """
        chain = self.run.toolchain
        start = time.monotonic()
        compiler = chain.host_compiler(self.settings.host_compiler)
        settings = self.settings
        uses_nvrtc = "cuda" in settings.targets and settings.cuda_compiler == "nvrtc"
        nvrtc = chain.nvrtc() if uses_nvrtc else None
        nvcc = None
        if "cuda" in settings.targets and not uses_nvrtc:
            nvcc = chain.nvcc(settings.nvcc, compiler)
        elif uses_nvrtc and settings.compress != "none":
            nvcc = self._nvcc_to_compress(compiler)
        tools = Tools(chain.lowerer(), compiler, nvcc, nvrtc)
        if tools.cuda is not None:
            require_archs(tools.cuda, settings.archs_of("cuda"))
        if chain.probed:
            subject, cpu_seconds = ", ".join(chain.probed), sum(chain.probed.values())
            self.run.trace.span("PROBE", subject, start, time.monotonic(), cpu_seconds=cpu_seconds)
        return tools

    def _nvcc_to_compress(self, compiler: HostCompiler) -> Nvcc:
        """The nvcc that comes with fatbinary, where NVRTC compiles."""
        mode = self.settings.compress
        try:
            nvcc: Nvcc = self.run.toolchain.nvcc(self.settings.nvcc, compiler)
        except ToolchainError as error:
            message = f"compress = {mode!r} needs fatbinary, which comes with nvcc: {error.message}"
            remedy = "pip install 'kernelwright[cuda]', or write compress = none; on the command line: COMPRESS=none"
            raise ToolchainError(message, error.where, remedy, error.detail) from error
        return nvcc

    @cached_property
    def cutedsl(self) -> CuteDsl:
        """NVIDIA's CuTe DSL, which a front end runs."""
        found: CuteDsl = self.run.toolchain.cutedsl()
        return found

    @cached_property
    def fatbinary(self) -> str:
        """Path of what compresses device code; empty: it is not compressed.

        Raises:
            KernelwrightError: there is none, or it is too old.
        """
        from ..compile.fatbin import find_fatbinary

        nvcc = self.tools.nvcc
        return find_fatbinary(nvcc) if nvcc is not None and self.settings.compress != "none" else ""

    @cached_property
    def tool_data(self) -> dict[str, Any]:
        """The tools as the manifest shows them, without paths."""
        tools = self.tools
        data = {"tvm": asdict(tools.lowerer), "host_compiler": describe(tools.host_compiler)[0]}
        if tools.nvcc is not None:
            data["nvcc"] = {"version": tools.nvcc.version, "identity": tools.nvcc.identity}
        if tools.nvrtc is not None:
            data["nvrtc"] = {"version": tools.nvrtc.version, "identity": tools.nvrtc.identity}
        return data

    @property
    def glibc(self) -> Any:
        """The folder of the libraries that stand in for the machine's C library; no kernel can have its name."""
        return self.work.Dir(f"glibc-{self.settings.glibc}")

    @cached_property
    def glibc_stage(self) -> Stage | None:
        """What makes these libraries; None: it is linked with the machine's own."""
        from ..compile.glibc import LIBRARIES, make_stubs

        floor, compiler = self.settings.glibc, self.tools.host_compiler
        if not floor:
            return None
        where = Where(stage="link")

        def make(scratch: Path) -> None:
            done = make_stubs(floor, compiler, scratch, self.run.tools, where)
            stage.measured = Measured(sum(run.cpu_seconds for run in done), max(run.peak_kib for run in done))

        options = {"floor": floor, "compiler": compiler.identity}
        targets = {f"{name}.so": self.glibc.File(f"{name}.so") for name in LIBRARIES}
        stage = self.node(Stage("GLIBC", floor, where, options, make, targets, []))
        return stage

    @cached_property
    def images_in(self) -> str:
        """Where the device images are, if libraries do not hold them: ``wheels`` of their own, or the ``package``."""
        if self.settings.split == "arch":
            return "wheels"
        return "package" if any(backend.images for backend in self._named) else ""

    @cached_property
    def _named(self) -> tuple[Backend, ...]:
        """The backends that the settings name; ``auto`` adds none that needs anything."""
        return tuple(backends.get(name) for name in self.settings.backends if name != backends.AUTO)

    def project_version(self, chosen: Sequence[Backend]) -> str:
        """The version of the project, if one of these backends needs it; empty: unknown."""
        if not any(backend.versioned for backend in chosen):
            return ""
        from ..define.settings import read_document
        from ..wheel.version import version_of

        return version_of(self.run.top, read_document(self.run.top / "pyproject.toml"))

    @cached_property
    def has_gpu(self) -> bool:
        """Whether an NVIDIA driver runs on this machine, so that CUDA code can be checked."""
        return Path("/dev/nvidiactl").exists() or Path("/dev/dxg").exists()

    def add(self) -> Any:
        """Add all nodes; the generated files of the package are returned.

        Raises:
            KernelwrightError: a tool is missing, or a definition is not valid and ``-k`` was not given.
        """
        if SCons.Script.GetOption("help"):
            return self.env.File([str(self.folder.File("manifest.json"))])
        if SCons.Script.GetOption("clean"):
            return self._clean()
        if not self._state.exists() and not self.run.discovery.exists() and not self.run.passive:
            # The first build: TVM takes a second to import, which the probes of the tools take as well.
            self.run.pool.warm_up(len(self._files))
        settled = read_settled(self._state, self._key)
        files, kept = self._split(settled)
        errors = self._discover(files, kept) if files else []
        if errors and not SCons.Script.GetOption("keep_going"):
            raise KernelwrightError("\n".join(str(error) for error in errors))
        self._failing = [node for n, error in enumerate(errors) for node in self._failure(n, error).nodes]
        result = self._assemble(settled, kept)
        self._alias(kept, files)
        self.run.settle.append(lambda: self._settle(settled, kept))
        return result

    @property
    def gaps(self) -> list[dict[str, Any]]:
        """What the package lacks, if this run goes on without what fails."""
        return self.run.partial.gaps(self.made) if self.run.partial else []

    @property
    def _state(self) -> Path:
        return self.run.state / "settled" / f"{self._name(self.folder.get_abspath()).replace('/', '.')}.json"

    @cached_property
    def _key(self) -> str:
        """Digest of everything that all kernels of the package depend on."""
        chosen = {name: value for name, value in asdict(self.settings).items() if name not in UNRELATED}
        code = [*(code_digest(label) for label in CODE), launcher_digest()]
        places = [self._name(folder.get_abspath()) for folder in (self.work, self.folder, self.checks)]
        needs = {backend.name: backend.build_versions() for backend in self._named}
        tools = [self.tool_data, self.cutedsl.identity, needs]
        identity = [VERSION, chosen, tools, code, places, self.has_gpu, self.run.strict]
        return hashlib.sha256(canonical_json(identity).encode()).hexdigest()

    def _split(self, settled: Settled) -> tuple[list[str], dict[str, SettledKernel]]:
        """The definition files that have to be looked into, and the kernels that nothing has to be done for."""
        if not self._may_settle:
            return self._files, {}
        files: list[str] = []
        kept: dict[str, SettledKernel] = {}
        for file in self._files:
            stamps = settled.files.get(file)
            kernels = settled.of_file.get(file, {})
            intact = {name: kernel for name, kernel in kernels.items() if self._is_intact(kernel)}
            if not stamps or len(intact) < len(kernels) or not is_current(self._top, stamps):
                files.append(file)
            else:
                kept |= intact
                self._tell(settled.notes.get(file, ()))
        return files, kept

    @cached_property
    def _may_settle(self) -> bool:
        """Whether kernels can be left out: all targets are ours, no tree is shown, and no content is to be verified."""
        targets = SCons.Script.COMMAND_LINE_TARGETS
        plain = all(isinstance(target, str) and target.isidentifier() for target in targets)
        return plain and COMMANDS not in targets and not self.run.strict and not SCons.Script.GetOption("tree_printers")

    @cached_property
    def _checking(self) -> bool:
        return "check" in SCons.Script.COMMAND_LINE_TARGETS

    def _is_intact(self, kernel: SettledKernel) -> bool:
        if self._checking and not (kernel.checks and is_current(self._top, kernel.check_outputs)):
            return False
        return is_current(self._top, kernel.outputs)

    def _discover(self, files: list[str], kept: dict[str, SettledKernel]) -> list[KernelwrightError]:
        """Make the nodes of the kernels in some files, and return what is wrong with the others.

        Kernels of these files that are settled themselves stay so.
        """
        from ..discover.discovery import discover
        from ..discover.selection import require_archs, select
        from .stages import KernelStages

        self.run.require_cache()
        records, errors = discover(
            [self.run.top / file for file in files],
            self.run.top,
            self.run.discovery,
            lambda: self.run.pool,
            f"{self.tools.lowerer.identity} {code_digest('DISCOVER')}{' strict' if self.run.strict else ''}",
            {name: kernel.file for name, kernel in kept.items()},
            self.run.strict,
            lambda name, start, end, failed: self.run.trace.span("DISCOVER", name, start, end, failed=failed),
        )
        for record in records:
            found, before = Unsettled(record, {}, []), len(errors)
            for kernel in record.kernels:
                try:
                    selection = select(kernel, self.settings)
                    self._require(selection.backends)
                    if self.tools.cuda is not None:
                        require_archs(kernel, self.tools.cuda)
                except KernelwrightError as error:
                    errors.append(error)
                    continue
                found.notes.extend(_notes(selection))
                # A name that is defined twice is among the errors already.
                if selection.archs and kernel.name not in self.unsettled:
                    found.kernels[kernel.name] = KernelStages(self, record, selection).add()
                    self.unsettled[kernel.name] = found.kernels[kernel.name]
            if len(errors) == before:
                self._looked_into.append(found)
            self._tell(found.notes)
        return errors

    def _require(self, names: Sequence[str]) -> None:
        """Raise a ToolchainError if what a backend needs to build is missing."""
        for name in names:
            if name not in self._required:
                backends.get(name).require_build()
                self._required.add(name)

    def _tell(self, notes: Sequence[str]) -> None:
        for note in notes:
            self.run.progress.note(note)

    def _failure(self, number: int, error: KernelwrightError) -> Stage:
        """A stage that reports an error of a definition file, so that ``-k`` can build the rest."""

        def make(scratch: Path) -> None:
            raise error

        place = printable(error.where.location or "definition")
        targets = {f"{number}.failed": self.work.File(f"{number}.failed")}
        return self.node(
            Stage("DISCOVER", place, error.where, {"error": str(error)}, make, targets, [], cacheable=False)
        )

    def _assemble(self, settled: Settled, kept: dict[str, SettledKernel]) -> Any:
        parts = [settled_part(name, kernel) for name, kernel in kept.items()]
        parts += [self._part(name, nodes) for name, nodes in self.unsettled.items()]
        self._assembly = Assembly(self, sorted(parts, key=lambda part: part.name), settled.copies)
        if not self.run.passive:
            self._assembly.require_folders()
        stage = self.node(self._assembly.stage())
        files = [built for part in parts for built in (part.entry, *part.products.values())]
        waits_for = [file.node for file in files if file.node] + self._failing
        self.env.Requires(stage.nodes, waits_for)
        return SCons.Util.NodeList(stage.nodes)

    def _part(self, name: str, nodes: KernelNodes) -> Part:
        def built(node: Any) -> Built:
            return Built(os.path.relpath(node.get_abspath(), self.work.get_abspath()), node)

        products = {path: built(node) for path, node in nodes.products.items()}
        return Part(name, nodes.backends, built(nodes.entry), products)

    def _alias(self, kept: dict[str, SettledKernel], files: list[str]) -> None:
        """Make the kernels' names, and ``check``, targets of the command line.

        Arguments:
            kept: the kernels that are settled.
            files: the definition files that were looked into.
        """
        for name, kernel in self.unsettled.items():
            self._user_env.Alias(name, [*(list(kernel.products.values()) or [kernel.entry]), *self._failing])
        requested = set(SCons.Script.COMMAND_LINE_TARGETS)
        if self._failing:
            self._alias_unknown(requested - kept.keys() - self.unsettled.keys(), files)
        for name, settled in kept.items():
            self.run.settled_stages += settled.stages + (settled.checks if self._checking else 0)
            if name in requested:
                self._user_env.Alias(name, self._failing)
            else:  # env.Alias takes twenty times as long
                SCons.Node.Alias.default_ans.Alias(name)
        nodes = [check.nodes[0] for kernel in self.unsettled.values() for check in kernel.checks]
        self._user_env.Alias("check", [*nodes, *self._failing])
        for node in nodes:
            # Without this, a build file without Default(), which builds everything, would run all checks.
            self._user_env.Ignore(node.dir, node)
        if COMMANDS in requested:
            libraries = [
                node for kernel in self.unsettled.values() for node in (kernel.entry, *kernel.products.values())
            ]
            add_compile_commands(self, self.commands, libraries)
        if self._checking:
            for name, kernel in self.unsettled.items():
                if not kernel.record.has_reference:
                    self._tell([f"kernelwright: {name} has no reference, so it is not checked"])
                elif not kernel.checks:
                    self._tell([f"kernelwright: {name} has nothing that can run on this machine, so it is not checked"])

    def _alias_unknown(self, names: set[Any], files: list[str]) -> None:
        """Have a target that may be a kernel of a file with errors show these, instead of being unknown to SCons."""
        well = {found.definition.file for found in self._looked_into}
        texts = [Path(self._top, file).read_text("utf-8", "replace") for file in files if file not in well]
        words = {word for text in texts for word in re.findall(r"\w+", text)}
        for name in names:
            if name in words and not Path(self._top, name).exists():
                self._user_env.Alias(name, self._failing)

    def _settle(self, settled: Settled, kept: dict[str, SettledKernel]) -> None:
        """Write down which kernels are finished now."""
        after = Settled(self._key, copies=self._assembly.copies)
        kept_files = {file for file in self._files if file in settled.files} - {
            u.definition.file for u in self._looked_into
        }
        after.files = {file: settled.files[file] for file in settled.files if file in kept_files}
        after.notes = {file: notes for file, notes in settled.notes.items() if file in kept_files}
        after.kernels = dict(kept)
        finished = set(kept)
        for found in self._looked_into:
            file = found.definition.file
            kernels = {name: self._finished(file, name, nodes) for name, nodes in found.kernels.items()}
            finished |= {name for name, kernel in kernels.items() if kernel}
            stamps = self._stamps(found) if all(kernels.values()) else None
            if stamps:
                after.files[file], after.notes[file] = stamps, found.notes
                after.kernels |= {name: kernel for name, kernel in kernels.items() if kernel}
        if self.run.passive:
            return
        if after != settled:
            write_settled(self._state, after)
        self._remove_logs(finished)

    def _remove_logs(self, finished: set[str]) -> None:
        """Remove the errors that partial builds kept of kernels that are finished now, or are no more."""
        unfinished = self.unsettled.keys() - finished
        work = self.work.get_abspath()
        for name in os.listdir(work) if os.path.isdir(work) else ():  # noqa: PTH112, PTH208
            logs = f"{work}/{name}/failed"
            gone = name in finished or (not self._failing and name not in unfinished)
            if gone and os.path.isdir(logs):  # noqa: PTH112
                remove_unknown(Path(logs), ())
                with contextlib.suppress(OSError):  # it has other things in it
                    os.rmdir(f"{work}/{name}")  # noqa: PTH106

    def _finished(self, file: str, name: str, nodes: KernelNodes) -> SettledKernel | None:
        """The kernel's state, if SCons has found or made all of it up to date."""
        made = [node for stage in nodes.stages for node in stage.nodes]
        if any(node.get_state() not in DONE or self.run.lacks(node) for node in made):
            return None
        checks = [s for s in nodes.checks if s.nodes[0].get_state() in DONE and not self.run.lacks(s.nodes[0])]
        part = self._part(name, nodes)
        files = [part.entry, *part.products.values()]
        known = {built.source: self.run.journal.output(built.node.get_abspath()) for built in files if built.node}
        if not all(known.values()):
            return None
        digests = {source: output[1] for source, output in known.items() if output}
        return SettledKernel(
            file,
            len(nodes.stages),
            stamps_of(self._top, (path for stage in nodes.stages for path in stage.paths)),
            len(checks) if len(checks) == len(nodes.checks) else 0,
            stamps_of(self._top, (path for stage in checks for path in stage.paths)),
            list(nodes.backends),
            {path: [built.source, digests[built.source]] for path, built in part.products.items()},
            digests[part.entry.source],
        )

    def _stamps(self, found: Unsettled) -> Any:
        """Stamps of all files that decide what the kernels of a definition file are."""
        digests = dict(found.definition.dependencies)
        for nodes in found.kernels.values():
            for stage in (*nodes.stages, *nodes.checks):
                digests |= stage.options.get("later", {})
        return trusted_stamps(self._top, digests)

    def node(self, stage: Stage) -> Stage:
        """Make a stage an SCons target."""
        self.made.append(stage)
        stage.logs = Path(self.work.get_abspath(), stage.where.kernel or "not-discovered", "failed")
        self.run.add(stage)
        nodes = self.env.Command(stage.nodes, stage.sources, StageAction(stage, self.run))
        # SCons's own cache has a file for each output, and takes no notice of what a stage finds out while it runs.
        self.env.NoCache(nodes)
        return stage

    def definition_nodes(self, definition: DefinitionRecord) -> list[Any]:
        """The files that a definition consists of: itself and the project files that it imports or reads.

        Folders whose listing it read, and files that it looked for in vain, are no nodes; they are in the signatures.
        """
        names = [name for name, digest in definition.dependencies.items() if digest and not name.endswith("/")]
        # Not env.File, which would expand a dollar sign in a name.
        return [self.env.fs.File("#" + name) for name in sorted(names)]

    def _name(self, path: str) -> str:
        """A path relative to the top, with forward slashes, if it is below it."""
        return path[len(self._top) + 1 :] if path.startswith(self._top + os.sep) else path

    def _clean(self) -> Any:
        """Nodes for ``scons -c``, which needs no discovery: whole folders go."""
        wheel = self.wheels.Dir(self.settings.package)
        self.run.require_folders(folder.get_abspath() for folder in (self.work, self.folder, self.checks, wheel))
        for folder in Path(self.work.get_abspath()).glob("*"):
            self._cleaned(folder.name, self.work.Dir(folder.name))
        self._cleaned("check", self.checks)
        self._cleaned("wheel", wheel)
        manifest = self.env.Command(self.folder.File("manifest.json"), [], "")
        made = [self.run.top / "build" / name for name in (".kernelwright", *SINGLE_FILES)]
        self.env.Clean(manifest, [self.work, self.folder, self.checks, wheel, *map(str, made)])
        return manifest

    def _cleaned(self, alias: str, folder: Any) -> None:
        node = self.env.Command(folder.File(".clean"), [], "")
        self.env.Clean(node, folder)
        self._user_env.Alias(alias, node)


def settled_part(name: str, kernel: SettledKernel) -> Part:
    """A kernel of the assembly that nothing has to be done for."""
    products = {path: Built(source, None, digest) for path, (source, digest) in kernel.products.items()}
    return Part(name, tuple(kernel.backends), Built(f"{name}/entry.json", None, kernel.entry), products)


def launcher_digest() -> str:
    """Digest of the C headers that kernel libraries and extension modules include."""
    return digest_of(path for path in LAUNCHER.rglob("*") if path.suffix in (".h", ".map"))


def _base_folder(env: Any) -> Any:
    """Where outputs go: the SConscript's variant_dir if it has one, otherwise ``build`` beside the SConstruct."""
    here = env.Dir(".")
    return here if here.srcnode() != here else env.Dir("#build")


def require_archs(compiler: Nvcc | Nvrtc, archs: tuple[str, ...]) -> None:
    """Raise a SettingsError for an arch that the CUDA compiler does not know."""
    for arch in archs:
        if arch not in compiler.archs:
            raise SettingsError(
                f"{compiler.name} {compiler.version} does not know the arch {arch!r}",
                Where(stage="settings"),
                f"use some of {', '.join(compiler.archs)}",
            )


def _notes(selection: KernelSelection) -> list[str]:
    """What a run says about targets that a kernel is not built for."""
    name = selection.record.name
    if not selection.archs and not selection.left_out:
        return [f"kernelwright: {name} is left out: it is for other targets"]
    notes = [f"kernelwright: {name} is not built for {t}: none of its archs is" for t in selection.left_out]
    return notes + [f"kernelwright: {name} has no target that backend {b} can call" for b in selection.unused]


SINGLE_FILES = ("trace.json", "report.html", "compile_commands.json")
"""Files in the build folder that no package has for itself."""

UNRELATED = (
    "worker_timeout",
    "tool_timeout",
    "memory_limit",
    "nvcc_memory",
    "pch_size",
    "cache_dir",
    "cache_size",
    "max_wheel_size",
)
"""Settings that do not change what is built."""
