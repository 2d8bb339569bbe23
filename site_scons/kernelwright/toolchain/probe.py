"""The toolchain of a build: each tool is found in every run, and probed when it is another one than before.

Probing costs a second, so its result is kept, keyed by the size, time and inode of each file that decides it, and by
what the machine computes with. What is known of the CUDA compilers is also kept for other trees and machines, keyed by
the contents of these files.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..core import arithmetic
from ..core.converter import from_json, to_json
from ..core.files import canonical_json, file_stamp
from ..core.need import Parts
from ..core.sealed import form_of, read_sealed, write_sealed
from ..processes.environment import require_plain_path
from .ask import REVISION, content_digest
from .cross_compiler import ZIG, find_cross_compiler, probe_cross_compiler, probe_zig, zig_records, zig_wrapper
from .cuda import version_of
from .distribution import Distribution, distribution_records, probe_distribution
from .host_compiler import HostCompiler, find_host_compiler, probe_host_compiler
from .nvcc import INSTALL_CUDA, Nvcc, find_nvcc, nvcc_parts, probe_nvcc
from .tvm import Lowerer, probe_tvm, tvm_records

if TYPE_CHECKING:
    from ..core.answers import Answers
    from .elsewhere import Elsewhere
    from .nvcc_probe import NvccPrograms
    from .nvdisasm import Nvdisasm
    from .nvrtc import Nvrtc

PLACES = ("path", "library", "include", "python")
"""Fields of tools that say where something is. These are no answers for other trees and machines."""

PROGRAM = b"\x7fELF"
"""How programs and libraries begin. A script may run another tool on another machine, whatever its own text is."""

Tool = TypeVar("Tool")


@dataclass(frozen=True)
class _KeptTool:
    """What is kept of a tool: the stamp of what decides it, and its JSON data."""

    stamp: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class _Kept:
    """The tools that are kept, by name and place."""

    tools: dict[str, _KeptTool] = field(default_factory=dict)


class Toolchain:
    """The tools of one build, probed when first asked for.

    Arguments:
        cache: file that keeps the results of probes.
        environment: variables that a search may look at (``CUDA_HOME``, ``PATH``).
        answers: gives what other trees and machines have found out; called when a tool has to be probed.

    Attributes:
        probed: the tools of which nothing was known, with the seconds of processor time that probing took.
    """

    def __init__(
        self, cache: Path, environment: Mapping[str, str], answers: Callable[[], Answers | None] = lambda: None
    ) -> None:
        self._cache = cache
        self._answers = answers
        self._environment = environment
        self._kept = read_sealed(cache, _Kept) or _Kept()
        self.probed: dict[str, float] = {}

    def nvcc(self, setting: str, host_compiler: HostCompiler, release: str = "") -> Nvcc:
        """The CUDA compiler, which runs that C compiler.

        Arguments:
            release: the CUDA release that it has to be of; empty: any.

        Raises:
            ToolchainError: there is none, a part of it is missing, or its parts have different versions.
        """
        path = find_nvcc(setting, self._environment, release)
        for part in (path, host_compiler.path):
            require_plain_path(part)
        parts = nvcc_parts(path)
        files = [*parts, Path(host_compiler.path)]

        def probe() -> Nvcc:
            facts = [version_of(path, INSTALL_CUDA), host_compiler.identity]
            places = {"path": path}
            return self._asked(Nvcc, "nvcc", parts, facts, places, lambda: probe_nvcc(path, parts, host_compiler))

        return self._probe(Nvcc, "nvcc", path, files, probe)

    def nvcc_programs(self, nvcc: Nvcc, host_compiler: HostCompiler) -> NvccPrograms:
        """The programs that nvcc runs. Only what compiles device code by itself asks, because it takes a second.

        Raises:
            ToolchainError: nvcc does not compile a small kernel.
        """
        # Imported here, because most runs know the tools.
        from .nvcc_probe import NvccPrograms, probe_programs

        parts = nvcc_parts(nvcc.path)

        def probe() -> NvccPrograms:
            facts = [nvcc.version, host_compiler.identity]
            return self._asked(
                NvccPrograms, "nvcc-programs", parts, facts, {}, lambda: probe_programs(nvcc, host_compiler)
            )

        files = [*parts, Path(host_compiler.path)]
        return self._probe(NvccPrograms, "nvcc-programs", nvcc.path, files, probe)

    def nvrtc(self, release: str = "") -> Nvrtc:
        """The CUDA compiler that is a library.

        Arguments:
            release: as for :meth:`nvcc`.

        Raises:
            ToolchainError: as :meth:`nvcc`.
        """
        # Imported here, because few builds use it.
        from .nvrtc import Nvrtc, find_nvrtc, include_beside, nvrtc_parts, probe_nvrtc

        library = find_nvrtc(self._environment, release)
        parts = nvrtc_parts(library)

        def probe() -> Nvrtc:
            places = {"library": str(library), "include": str(include_beside(library))}
            return self._asked(Nvrtc, "nvrtc", parts, [], places, lambda: probe_nvrtc(library, parts))

        return self._probe(Nvrtc, "nvrtc", str(library), parts, probe)

    def nvdisasm(self, nvcc: str) -> Nvdisasm:
        """The disassembler.

        Arguments:
            nvcc: path of the nvcc of the build; empty: it uses none.

        Raises:
            ToolchainError: there is none, or it does not answer.
        """
        # Imported here, because few builds use it.
        from .nvdisasm import Nvdisasm, find_nvdisasm, probe_nvdisasm

        path = find_nvdisasm(nvcc, self._environment)
        return self._probe(Nvdisasm, "nvdisasm", path, [Path(path)], lambda: probe_nvdisasm(path))

    def host_compiler(self, setting: str) -> HostCompiler:
        """The C compiler.

        Raises:
            ToolchainError: there is none, or it does not answer.
        """
        path = find_host_compiler(setting, self._environment)
        return self._probe(HostCompiler, "cc", path, [Path(path)], lambda: probe_host_compiler(path))

    def cross_compiler(self, family: str, named: str, glibc: str) -> HostCompiler:
        """The C compiler for CPUs of another family than this machine's.

        Arguments:
            family, named: as :func:`find_cross_compiler` has them.
            glibc: the oldest glibc that libraries are to run with; empty: that of the compiler.

        Raises:
            ToolchainError: there is none, it does not answer, or it compiles for another family.
        """
        path = find_cross_compiler(family, named, self._environment)
        if path != ZIG:
            return self._probe(HostCompiler, "cc", path, [Path(path)], lambda: probe_cross_compiler(path, family))
        wrapper, records = zig_wrapper(self._cache.parent / ZIG, family, glibc, self._environment), zig_records()
        return self._probe(
            HostCompiler, "cc", wrapper, [Path(wrapper), *records], lambda: probe_zig(wrapper, records, family)
        )

    def lowerer(self) -> Lowerer:
        """TVM and tvm-ffi.

        Raises:
            ToolchainError: one of them is not installed.
        """
        records = tvm_records()
        return self._probe(Lowerer, "tvm", "", records, lambda: probe_tvm(records))

    def distribution(self, name: str, parts: str = "") -> Distribution:
        """The compiler of a front end; its version is "absent" where it is not installed.

        Arguments:
            name, parts: as :func:`distribution_records` has them.
        """
        records = distribution_records(name, parts)
        return self._probe(Distribution, name, "", records, lambda: probe_distribution(name, records))

    def elsewhere(self, setting: str, parts: Parts) -> Elsewhere:
        """The compiler of a front end in another environment; its version is "absent" where there is none.

        Arguments:
            setting, parts: as :func:`find_elsewhere` has them.
        """
        # Imported here, because few builds use it.
        from .elsewhere import ABSENT, Elsewhere, find_elsewhere, probe_elsewhere

        if not setting:
            return ABSENT
        python, records = find_elsewhere(setting, parts)
        name, files = parts.distributions[0], parts.files(records)
        return self._probe(Elsewhere, name, python, files, lambda: probe_elsewhere(python, records, parts))

    def _probe(self, form: type[Tool], name: str, path: str, files: Iterable[Path], probe: Callable[[], Tool]) -> Tool:
        place = f"{name} {path}".rstrip()
        stamp = canonical_json([REVISION, arithmetic.stamp(), [_stamp(file) for file in files]])
        entry = self._kept.tools.get(place)
        kept = _restored(form, entry.values) if entry and entry.stamp == stamp else None
        if kept is not None:
            return kept
        before = _children_cpu_seconds()
        tool = probe()
        self.probed[name] = _children_cpu_seconds() - before
        self._kept.tools[place] = _KeptTool(stamp, to_json(tool))
        write_sealed(self._cache, self._kept)
        return tool

    def _asked(
        self,
        form: type[Tool],
        name: str,
        parts: Sequence[Path],
        facts: Sequence[str],
        places: Mapping[str, str],
        probe: Callable[[], Tool],
    ) -> Tool:
        """A tool as another tree or machine has probed it, with the places that it has here; otherwise it is probed.

        Arguments:
            parts: the files that decide what it makes, itself first.
            facts: what else decides that, and is known before it is probed.
            places: the fields that say where it is.
        """
        answers = self._answers() if _is_program(parts[0]) else None
        if answers is None:
            return probe()
        contents = [[part.name, digest] for part, digest in zip(parts, _digests(answers, parts), strict=True)]
        question = ["tool", name, REVISION, arithmetic.arithmetic(), form_of(form), facts, contents]
        known = answers.recall(question, lambda name: "")
        tool = _restored(form, {**known, **places}) if isinstance(known, dict) else None
        if tool is None:
            tool = probe()
            answers.remember(question, {n: v for n, v in to_json(tool).items() if n not in PLACES}, {})
        return tool


def _is_program(path: Path) -> bool:
    with path.open("rb") as stream:
        return stream.read(len(PROGRAM)) == PROGRAM


def _digests(answers: Answers, parts: Sequence[Path]) -> list[str]:
    """SHA-256 of some files. It takes a quarter of a second for those of nvcc, so it is done once on a machine."""
    question = ["contents", [[str(part), *file_stamp(part)] for part in parts]]
    known = answers.recall(question, lambda name: "", here=True)
    try:
        digests = from_json(list[str], known)
    except ValueError:
        digests = []
    if len(digests) != len(parts):
        digests = [content_digest(str(part), file_stamp(part)) for part in parts]
        answers.remember(question, digests, {}, here=True)
    return digests


def _children_cpu_seconds() -> float:
    """Processor time of the processes that this one has waited for."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _stamp(file: Path) -> list[Any]:
    try:
        status = file.stat()
    except OSError:
        return [str(file), None]
    return [str(file), status.st_size, status.st_mtime_ns, status.st_ino]


def _restored(form: type[Tool], values: Any) -> Tool | None:
    """A tool as it was kept; None if these are not the values that it has."""
    try:
        return from_json(form, values)
    except ValueError:
        return None
