"""Finds, verifies and loads the kernels of this package when they are first used.

Only the standard library is imported here; tvm-ffi comes in with the first kernel.
"""

from __future__ import annotations

import os
import sys
import threading

TYPE_CHECKING = False
if TYPE_CHECKING:  # importing typing and pathlib would take most of this module's time
    from pathlib import Path
    from typing import Any

SCHEMA = 3
"""Revision of the manifest's format."""

MOST_GAPS = 5
"""The most missing parts of a kernel that an error lists."""

INSTALL_AGAIN = "install the package again"
"""What to do about a package whose files are not what they should be."""

DIGEST_LINE = '\n "digest": '
"""The beginning of a manifest's last entry. The digest is that of all bytes before the comma in front of it."""


class DamageError(ImportError):
    """A file of a package is missing, or is not what the package says of it.

    Arguments:
        problem: the file, and what is wrong with it.
        remedy: what to do about it.
    """

    def __init__(self, problem: str, remedy: str = INSTALL_AGAIN) -> None:
        super().__init__(f"{problem}; {remedy}")
        self.problem = problem


class Contents:
    """The contents of a package, by its manifest. Thread-safe, and usable after a fork.

    Arguments:
        module: path of the package's ``__init__.py``.
    """

    remedy = INSTALL_AGAIN
    """What to do about a file that is missing or was altered."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._manifest: dict[str, Any] | None = None
        self._lock = threading.RLock()
        # A child of fork() has only the forking thread, so a lock that another thread holds would never be released.
        os.register_at_fork(after_in_child=self._renew_lock)

    @property
    def folder(self) -> Path:
        """The package's folder."""
        from pathlib import Path

        return Path(self._module).resolve().parent

    @property
    def version(self) -> str:
        """The version of the project that the package belongs to; ``0`` if that is not known."""
        return str(self.manifest().get("version", "0"))

    def _renew_lock(self) -> None:
        self._lock = threading.RLock()

    def manifest(self) -> dict[str, Any]:
        """The content of manifest.json, read and verified once."""
        with self._lock:
            if self._manifest is None:
                self._manifest = read_manifest(self.folder / "manifest.json", self.remedy)
            return self._manifest

    def entry(self, name: str) -> dict[str, Any]:
        """A kernel's part of the manifest."""
        kernels = self.manifest().get("kernels")
        kernels = kernels if isinstance(kernels, dict) else {}
        entry = kernels.get(name)
        if entry is None or not is_entry(entry):
            place = self.folder / "manifest.json"
            raise ImportError(f"{place}: has no kernel {name!r} in the form of schema {SCHEMA}")
        found: dict[str, Any] = entry
        absent = found["backward"] if found.get("backward", name) not in kernels else name
        gaps = [gap for gap in self._gaps() if gap.get("kernel") in (name, absent)]
        if not gaps:
            return found
        # A kernel can be called without its backward kernel.
        kept = {key: value for key, value in found.items() if key != "backward" or absent == name}
        return {**kept, "missing": gaps}

    def lacks(self, name: str) -> str:
        """What to add to an error about a missing kernel: why it is missing, if the package was built partially."""
        try:
            # If a definition file failed in discovery, the names of its kernels are not known.
            return gaps_text([gap for gap in self._gaps() if gap.get("kernel", name) == name])
        except ImportError:  # the manifest is damaged; the first use of a kernel that exists says so
            return ""

    def _gaps(self) -> list[dict[str, Any]]:
        """The manifest's entries about what failed in a partial build."""
        gaps = self.manifest().get("missing", [])
        return [gap for gap in gaps if isinstance(gap, dict)] if isinstance(gaps, list) else []

    def described(self, name: str) -> dict[str, Any]:
        """The manifest's description of a backend."""
        backends = self.manifest().get("backends")
        described: Any = backends.get(name) if isinstance(backends, dict) else None
        if not is_backend(described):
            raise ImportError(f"{self.folder / 'manifest.json'}: does not describe the backend {name!r}")
        found: dict[str, Any] = described
        return found

    def library(self, name: str) -> Path:
        """The path of a kernel's library, after that and the libraries of the package that it needs are verified."""
        entry = self.entry(name)
        library = entry.get("library")
        if library is None:
            raise ImportError(f"{self.folder / 'manifest.json'}: lists no library of kernel {name!r}")
        for needed in (*filter(None, [entry.get("launcher")]), *entry.get("source_libraries", ())):
            self.verified(needed)
        for described in entry.get("libraries", ()):
            load_needed(name, *described)
        return self.verified(library)

    def verified(self, relative: str) -> Path:
        """The path of a file of the package, after its content is verified.

        Raises:
            ImportError: the file is missing, or its content is not the one that the manifest lists.
        """
        import hashlib

        files = self.manifest().get("files")
        listed = files.get(relative) if isinstance(files, dict) else None
        expected = listed.get("sha256") if isinstance(listed, dict) else None
        # A digest finds damage, not malice. Still, a manifest must not name files outside of its package.
        if expected is None or "\0" in relative or relative.startswith("/") or ".." in relative.split("/"):
            raise ImportError(f"{self.folder / 'manifest.json'}: does not list {relative!r} as a file of the package")
        path = self.folder / relative
        try:
            content = read_regular(path)
        except OSError as error:
            raise DamageError(f"{path}: cannot be read ({error.strerror})", self.remedy) from error
        if hashlib.sha256(content).hexdigest() != expected:
            raise DamageError(f"{path}: was altered, its content is not what manifest.json lists", self.remedy)
        return path


class Loader(Contents):
    """The kernels of one package.

    Arguments:
        module: path of the package's ``__init__.py``.
        names: the kernels' names.
        package: the name by which the package was imported.
    """

    def __init__(self, module: str, names: tuple[str, ...], package: str) -> None:
        super().__init__(module)
        self.package = package
        self._names = names
        self._kernels: dict[tuple[str, str], Any] = {}
        self._misses: Any = None

    def kernel(self, name: str, backend: str = "") -> Any:
        """The kernel of that name, loaded once.

        Arguments:
            name: the kernel.
            backend: how it is called; empty: its default.

        Raises:
            AttributeError: the package has no such kernel, or not with that backend.
            ImportError: a file is missing or was altered, or a package that the backend needs is not installed.
        """
        if name not in self._names:
            known = ", ".join(self._names)
            raise AttributeError(f"package {self.package!r} has no kernel {name!r}; it has {known}{self.lacks(name)}")
        with self._lock:
            if (name, backend) not in self._kernels:
                self._kernels[name, backend] = self._load(name, backend)
            return self._kernels[name, backend]

    def kernels(self, backend: str) -> tuple[str, ...]:
        """The names of the kernels that can be called through a backend."""
        return tuple(name for name in self._names if backend in self.entry(name)["backends"])

    def preload(self, device: Any = "cpu", backend: str = "") -> None:
        """Load every kernel that is built for a kind of device, with its device code, ahead of the first call.

        Arguments:
            device: ``"cpu"``, ``"cuda"``, ``"cuda:1"``, or an object whose ``str()`` is one of these.
            backend: how kernels are called; empty: each kernel's default.

        Raises:
            RuntimeError: the device, or its driver, cannot run a kernel; the message says why.
            ValueError: no kernel is built for devices of that kind.
        """
        names, kind = self.kernels(backend) if backend else self._names, str(device).partition(":")[0]
        if kind == "cpu":  # operators that need a PyTorch for CUDA have nothing to load here
            others = tuple(name for name in names if not self.entry(name).get("operators", {}).get("needs_cuda"))
            names = others or names
        kernels = [self.kernel(name, backend) for name in names]
        built = [kernel for kernel in kernels if kind in kernel.devices]
        for kernel in built or kernels[:1]:
            kernel.preload(device)

    def set_num_threads(self, count: int) -> None:
        """Set how many threads a parallel loop of a CPU kernel uses, for the whole process.

        Raises:
            ValueError: count is not a positive integer.
            RuntimeError: no kernel of the package has CPU code.
        """
        self._threaded().set_num_threads(count)

    def num_threads(self) -> int:
        """How many threads a parallel loop of a CPU kernel uses.

        Raises:
            RuntimeError: no kernel of the package has CPU code.
        """
        return int(self._threaded().num_threads())

    def _threaded(self) -> Any:
        """A kernel object with the launcher's threads."""
        for name in self._names:
            if "operators" in self.entry(name):  # PyTorch has threads of its own, and might be missing
                continue
            kernel = self.kernel(name)
            if "kernel.py" in self.described(self.entry(name)["backends"][0])["modules"]:
                kernel = self.through("kernel.py", name)  # the objects of some backends call this one
            if hasattr(kernel, "num_threads"):
                return kernel
        raise RuntimeError(f"no kernel of package {self.package!r} has CPU code, so there are no threads to set")

    def misses(self) -> list[dict[str, Any]]:
        """The calls that no built variant fits. Equal calls are listed once, in the order of their first one.

        Each has ``kernel``, ``arguments``, and ``count``: how often the call was made. An argument has ``name``, and
        ``dtype``, ``shape`` and ``device`` of an array, or ``kind`` and ``value`` of a number. At most 1000 are kept.
        Calls of a single ``variant(...)`` are not among them.
        """
        return [] if self._misses is None else list(self._misses.calls())

    def set_fallback(self, mode: str | None, *definitions: Any) -> None:
        """Say what is done about calls that no built variant fits.

        Arguments:
            mode: ``"compile"``: Kernelwright, which has to be installed, compiles the variant on demand, and the call
                is made with that. None: they are errors, as they are by default.
            definitions: the definition files that the kernels are in.

        Raises:
            ValueError: there is no such mode, or there are no definition files.
            FileNotFoundError: there is no such file.
            ImportError: Kernelwright is not installed.
        """
        if mode is not None:
            require("kernelwright", "pip install kernelwright, or set_fallback(None)", f"set_fallback({mode!r})")
        self.missed_calls().set_fallback(mode, definitions)

    def missed_calls(self) -> Any:
        """The object that notes the calls that no built variant fits."""
        with self._lock:
            if self._misses is None:
                for module in ("refusal.py", "passed.py", "misses.py"):
                    self.verified(f"_runtime/{module}")
                from .misses import Misses

                self._misses = Misses()
            return self._misses

    def image(self, name: str, slug: str, archs: str, device: int, capability: int) -> tuple[str, Path]:
        """The best image for a device among those that are installed, verified.

        Arguments:
            name, slug: kernel and variant.
            archs: the archs that suit the device, best first, with blanks between them.
            device: number of the device.
            capability: its compute capability, 10 * major + minor.

        Raises:
            RuntimeError: there is none, or it is damaged; the message says what to install.
        """
        from pathlib import Path

        arch, _, found = self.provider(name).find(slug, archs, device, capability).partition(" ")
        if not arch:
            raise RuntimeError(f"kernel {name!r}: {found}")
        return arch, Path(found)

    def provider(self, name: str) -> Any:
        """The object that finds a kernel's device code if libraries do not hold it."""
        self.verified("_runtime/provider.py")
        from .provider import Provider

        return Provider(self.folder, self.manifest(), name, read_manifest, read_regular, self.remedy)

    def through(self, module: str, name: str) -> Any:
        """The kernel object that a module of ``_runtime`` loads, once; also for a backend that is built on another.

        Raises:
            ImportError: a file is missing or was altered.
        """
        from importlib import import_module

        with self._lock:
            if (module, name) not in self._kernels:
                self.verified(f"_runtime/{module}")
                loaded = import_module(f".{module.removesuffix('.py')}", __package__)
                kernel = self._kernels[module, name] = loaded.load(self, name, self.entry(name))
                if hasattr(kernel, "_missed"):
                    kernel._loader = self
            return self._kernels[module, name]

    def module(self, name: str) -> Any:
        """A module of the package, for an attribute of it: ``backends``, or a backend's module at the top."""
        from importlib import import_module

        return import_module(f".{name}", self.package)

    def _load(self, name: str, backend: str) -> Any:
        built = self.entry(name)["backends"]
        if backend and backend not in built:
            raise AttributeError(
                f"kernel {name!r} of {self.package!r} is built for {', '.join(built)}, not {backend!r}"
            )
        described = self.described(backend or built[0])
        self._require_machine()
        own = self.entry(name).get("operators", {})  # says which PyTorch this library needs
        for module, requirement in described["needs"]:
            require(module, f"pip install '{own.get(module, requirement)}'", f"kernel {name!r} of {self.package!r}")
        for module in described["modules"]:
            self.verified(f"_runtime/{module}")
        if "recorded" in self.entry(name):
            self.verified("_runtime/heuristic.py")
            return self.through("recorded_kernel.py", name)
        return self.through(described["modules"][0], name)

    def _require_machine(self) -> None:
        """Raise an ImportError if the libraries of the package are for other CPUs than this machine's."""
        machine, here = self.manifest().get("machine", ""), os.uname().machine
        if machine and machine != here:
            message = f"{self.folder}: the package is for CPUs of the family {machine}, and this machine's is {here}"
            raise ImportError(f"{message}; install the wheel for {here}")


def read_regular(path: Path) -> bytes:
    """The content of a file; a link to one is followed.

    Raises:
        OSError: it cannot be read, or is no regular file: a pipe or a device would keep the caller waiting for ever.
    """
    from errno import EINVAL
    from stat import S_ISREG

    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        if not S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(EINVAL, "it is no regular file", str(path))
        with open(descriptor, "rb", closefd=False) as stream:
            return stream.read()
    finally:
        os.close(descriptor)


def gaps_text(gaps: list[dict[str, Any]]) -> str:
    """What to add to an error about a kernel that lacks something; empty, if it lacks nothing.

    Arguments:
        gaps: the entries of ``missing`` of the manifest that are about the kernel.
    """
    if not gaps:
        return ""
    lines = [f"\n    {gap_text(gap)}" for gap in gaps[:MOST_GAPS]]
    more = f"\n    and {len(gaps) - MOST_GAPS} more, see manifest.json" if len(gaps) > MOST_GAPS else ""
    return f"\n  this package was built partially (scons --partial), without what failed:{''.join(lines)}{more}"


def gap_text(gap: dict[str, Any]) -> str:
    """One entry of ``missing`` of the manifest, in a line."""
    name = "/".join(str(gap[key]) for key in ("kernel", "variant") if key in gap) or str(gap.get("location"))
    archs = gap.get("archs")
    listed = f" for {', '.join(map(str, archs))}" if isinstance(archs, list) else ""
    return f"{name}{listed} [{gap.get('stage')}]: {gap.get('error')}"


def require(module: str, remedy: str, subject: str) -> None:
    """Check that a module is installed, without importing it.

    Raises:
        ImportError: it is not.
    """
    from importlib.util import find_spec

    try:
        found = module in sys.modules or find_spec(module) is not None
    except (ImportError, ValueError):  # the package that it should be in is missing, or no package
        found = False
    if not found:
        raise ImportError(f"{subject} needs {module}, which is not installed\n  remedy: {remedy}")


def is_entry(entry: Any) -> bool:
    """Whether a kernel's part of the manifest has all fields that are used, in their form."""
    if not isinstance(entry, dict) or not isinstance(entry.get("variants"), list):
        return False
    backends = entry.get("backends")
    listed = isinstance(backends, list) and bool(backends) and all(isinstance(name, str) for name in backends)
    texts = isinstance(entry.get("doc"), str) and all(
        isinstance(entry.get(key, ""), str) for key in ("library", "launcher", "backward")
    )
    own = entry.get("source_libraries", [])
    texts &= isinstance(own, list) and all(isinstance(path, str) for path in own)
    needed = entry.get("libraries", [])
    texts &= isinstance(needed, list) and all(isinstance(n, list) and list(map(type, n)) == [str] * 3 for n in needed)
    return listed and texts and bool(entry["variants"]) and all(_is_variant(variant) for variant in entry["variants"])


def load_needed(kernel: str, name: str, folder: str, requirement: str) -> None:
    """Load a library of another package that a kernel is linked with by name, unless the process has it.

    Arguments:
        kernel: the kernel, for messages.
        name: what the dynamic linker calls it.
        folder: where it is below a folder of ``sys.path``.
        requirement: what pip installs.

    Raises:
        ImportError: it is not there, or cannot be loaded.
    """
    import ctypes

    # One that PyTorch or another package has loaded serves, wherever it comes from; so does the system's.
    installed = [path for path in (f"{top or '.'}/{folder}/{name}" for top in sys.path) if os.path.exists(path)]  # noqa: PTH110
    problems = []
    for path, mode in ((name, os.RTLD_NOLOAD), *((path, 0) for path in installed[:1]), (name, 0)):
        try:
            ctypes.CDLL(path, mode=os.RTLD_NOW | mode)
            return
        except OSError as error:
            problems.append(str(error))
    message = f"kernel {kernel!r} needs {name}: {problems[1]}"
    raise ImportError(f"{message}\n  remedy: pip install '{requirement}'")


def is_backend(described: Any) -> bool:
    """Whether a backend's part of the manifest has all fields that are used, in their form."""
    if not isinstance(described, dict):
        return False
    modules: Any = described.get("modules")
    needs: Any = described.get("needs")
    named = isinstance(modules, list) and all(isinstance(m, str) and m[:-3].isidentifier() for m in modules)
    listed = isinstance(needs, list) and all(isinstance(need, list) and len(need) == 2 for need in needs)
    return named and bool(modules) and listed and all(isinstance(text, str) for need in needs for text in need)


def _is_variant(variant: Any) -> bool:
    if not isinstance(variant, dict) or not isinstance(variant.get("units"), list):
        return False
    units = all(isinstance(unit, dict) and isinstance(unit.get("target"), str) for unit in variant["units"])
    return units and isinstance(variant.get("slug"), str) and isinstance(variant.get("config"), dict)


def read_manifest(path: Path, remedy: str = INSTALL_AGAIN) -> dict[str, Any]:
    """Read and verify a manifest.

    Arguments:
        remedy: what to do if it is damaged.

    Raises:
        DamageError: the file is missing, altered, or of another schema.
    """
    try:
        content = read_regular(path)
    except OSError as error:
        raise DamageError(f"{path}: cannot be read ({error.strerror})", remedy) from error
    return manifest_in(content, path, remedy)


def manifest_in(content: bytes, path: Any, remedy: str = INSTALL_AGAIN) -> dict[str, Any]:
    """Parse and verify the content of a manifest.

    Arguments:
        path: where it is, for errors.
        remedy: what to do if it is damaged.

    Raises:
        DamageError: it is altered, or of another schema.
    """
    import hashlib
    import json

    try:
        manifest = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DamageError(f"{path}: is not valid JSON ({error})", remedy) from error
    if not isinstance(manifest, dict) or manifest.get("schema") != SCHEMA:
        raise DamageError(f"{path}: has another schema than {SCHEMA}", remedy)
    covered, line, rest = content.rpartition(b"," + DIGEST_LINE.encode())
    if not line or rest != f'"{hashlib.sha256(covered).hexdigest()}"\n}}\n'.encode():
        raise DamageError(f"{path}: was altered, its content does not fit its digest", remedy)
    return manifest
