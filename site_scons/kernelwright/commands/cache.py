"""``kernelwright cache``: shows what is in the cache of compile on demand, and removes parts of it."""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .. import backends
from ..core.errors import KernelwrightError, SettingsError, Where, printable
from ..core.quantity import in_words, parse_size, plural
from ..define.remote_address import SIGNING_KEY
from ..define.settings import Settings, environment_layer, merge, read_pyproject
from ..ondemand.cache_place import PLACE, CacheError, cache_folder
from ..ondemand.kernel_folders import KEY_SHOWN, damage, folder_size, manifest_of
from ..ondemand.store import KernelStore, stages_in
from ..state.cache import BuildCache
from ..state.remote_objects import new_keys
from ..state.remote_opening import open_remote
from ..state.trace import CACHES, read_trace
from .command import Command, argument

PUSH_S = 3600.0
"""Seconds that ``push`` waits for unfinished writes: it has nothing else to do, and nobody waits for it."""

HEADER = ("kernel", "config", "archs", "backend", "size", "last used", "key")


@dataclass(frozen=True)
class StoredKernel:
    """A kernel's folder, as its manifest describes it.

    Arguments:
        folder: where it is.
        name: the kernel; with a damaged manifest, as far as the folder's name tells.
        key: the whole key; with a damaged manifest, its first digits.
        configs: the slugs of its variants.
        archs, backends: what it is compiled for.
        size: bytes of all files.
        used: time of the last use, in seconds since 1970.
        facts: the manifest; empty, if it is damaged.
    """

    folder: Path
    name: str
    key: str
    size: int
    used: float
    configs: tuple[str, ...] = ()
    archs: tuple[str, ...] = ()
    backends: tuple[str, ...] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, folder: Path) -> StoredKernel:
        """The kernel in a folder. Raises OSError if it is removed meanwhile."""
        name, key = folder.name.partition("-")[0], folder.name.rpartition("-")[2]
        size, used = folder_size(folder), folder.stat().st_mtime
        try:
            facts = manifest_of(folder)
            kernels = facts["kernels"]
            name = next(iter(kernels))
            variants = kernels[name]["variants"]
            return cls(
                folder,
                str(name),
                str(facts["key"]),
                configs=tuple(str(variant["slug"]) for variant in variants),
                archs=tuple(dict.fromkeys(str(arch) for variant in variants for arch in variant["archs"])),
                backends=tuple(map(str, kernels[name]["backends"])),
                size=size,
                used=used,
                facts=facts,
            )
        except (ImportError, KeyError, TypeError, AttributeError, StopIteration):
            return cls(folder, name, key, size=size, used=used)

    def row(self) -> list[str]:
        """What ``list`` shows of it."""
        archs = " ".join(self.archs) if self.facts else "damaged"
        texts = (self.name, " ".join(self.configs), archs, " ".join(self.backends), in_words(self.size))
        return [printable(text) for text in (*texts, _moment(self.used), self.key[:KEY_SHOWN])]


def stored(store: KernelStore) -> list[StoredKernel]:
    """The kernels in a cache, the one used last first."""
    found = []
    for folder in store.kernels():
        try:
            found.append(StoredKernel.of(folder))
        except OSError:  # another process has removed it
            continue
    return sorted(found, key=lambda kernel: -kernel.used)


def run(options: argparse.Namespace) -> int:
    """Do an action with the cache of compile on demand that is named, or else is used in the working folder.

    Raises:
        KernelwrightError: it cannot be done; the message says why.
    """
    place = Path(options.dir).absolute() if options.dir else cache_folder(Path.cwd(), os.environ)
    store, action = KernelStore(place), options.action
    if not place.is_dir():
        print(f"there is no cache in {printable(str(place))}")
        return 0 if action != "show" else 1
    if action == "list":
        _print_rows([HEADER, *(kernel.row() for kernel in stored(store))])
    elif action == "show":
        return _show(store, options.key)
    elif action == "size":
        _print_sizes(store)
    elif action == "verify":
        return _verify(store, options.remove)
    else:
        before = store.size()
        store.require_removable()
        store.clear() if action == "clear" else store.prune(_bytes(options.to))
        print(f"removed {in_words(before - store.size())}, {in_words(store.size())} are left")
    return 0


def _bytes(text: str) -> int:
    if text == "0":
        return 0
    try:
        return parse_size(text) * 1024
    except ValueError as error:
        raise CacheError(f"--to: {error}", PLACE) from None


def _print_rows(rows: Sequence[Sequence[str]]) -> None:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        print("  ".join(map(str.ljust, row, widths)).rstrip())


def _print_sizes(store: KernelStore) -> None:
    stages = [size for size, _, _ in stages_in(store.folder).entries()]
    parts = [("kernel", _sizes(store.kernels())), ("stage", stages), ("failed compile", _sizes(store.failures()))]
    for noun, sizes in parts:
        print(f"{plural(len(sizes), noun)}: {in_words(sum(sizes))}")
    total = sum(sum(sizes) for _, sizes in parts)
    print(f"together {in_words(total)} in {printable(str(store.folder))}")


def _sizes(folders: Iterable[Path]) -> list[int]:
    """Bytes of the folders that no other process removes meanwhile."""
    sizes = []
    for folder in folders:
        with contextlib.suppress(OSError):
            sizes.append(folder_size(folder))
    return sizes


def _verify(store: KernelStore, remove: bool) -> int:
    stages = stages_in(store.folder)
    entries = [path for _, _, path in stages.entries()]
    kernels = list(store.kernels())
    found = [(path, problem) for path in entries if (problem := stages.damage(path))]
    found += [(folder, problem) for folder in kernels for problem in _damage(folder)]
    # Others may remove something meanwhile.
    found = [(path, problem) for path, problem in found if os.path.lexists(path)]
    kernels = list(filter(os.path.lexists, kernels))
    for path, problem in found:
        print(printable(f"{path.relative_to(store.folder)}: {problem.removeprefix(f'{path}/')}"))
    damaged = list(dict.fromkeys(path for path, _ in found))
    print(f"{plural(len(entries), 'stage')} and {plural(len(kernels), 'kernel')}, {len(damaged)} damaged")
    if not remove or not damaged:
        return 1 if damaged else 0
    store.require_removable()
    for path in damaged:
        store.discard(path)
    print("removed what is damaged")
    return 0


def _damage(folder: Path) -> list[str]:
    """What is wrong with a kernel's folder, also with its name."""
    try:
        kernel = StoredKernel.of(folder)
    except OSError as error:
        return [f"cannot be read ({error.strerror})"]
    if kernel.facts and not folder.name.endswith(f"-{kernel.key[:KEY_SHOWN]}"):
        return ["has the name of another key"]
    return damage(folder)


def _show(store: KernelStore, key: str) -> int:
    found = [kernel for kernel in stored(store) if kernel.key.startswith(key)]
    failed = [path for path in store.failures() if path.name.rpartition("-")[2].startswith(key[:KEY_SHOWN])]
    if not key or len(found) + len(failed) != 1:
        if not found and not failed:
            raise CacheError(f"no kernel has a key that begins with {key!r}", PLACE, "kernelwright cache list")
        names = [f"{kernel.key[:KEY_SHOWN]} ({kernel.name})" for kernel in found]
        names += [f"{path.name} (failed)" for path in failed]
        raise CacheError(f"{key!r} is the begin of several keys", PLACE, f"one of {', '.join(names)}")
    if failed:
        print(f"failed to compile, see {printable(str(failed[0] / 'log.txt'))}")
        return 0
    problems = _damage(found[0].folder)
    for label, value in _facts(found[0], problems):
        print(f"{label + ':':10} {printable(value)}")
    return 1 if problems else 0


def _facts(kernel: StoredKernel, problems: Sequence[str]) -> Iterator[tuple[str, str]]:
    """What ``show`` shows: labels and texts."""
    yield "kernel", kernel.name
    yield "key", kernel.key
    yield "folder", str(kernel.folder)
    for variant in kernel.facts.get("kernels", {}).get(kernel.name, {}).get("variants", ()):
        config = ", ".join(f"{name}={value!r}" for name, value in variant.get("config", {}).items())
        yield "config", config or str(variant["slug"])
    yield "archs", " ".join(kernel.archs)
    yield "backend", " ".join(kernel.backends)
    yield "made by", f"Kernelwright {kernel.facts.get('kernelwright', '(unknown)')}"
    for name, tool in kernel.facts.get("tools", {}).items():
        versions = ", ".join(f"{k} {v}" for k, v in tool.items() if k != "identity") if isinstance(tool, dict) else tool
        yield "tool", f"{name}: {versions}"
    yield "size", in_words(kernel.size)
    yield "last used", _moment(kernel.used)
    for path in sorted(kernel.folder.rglob("*")):
        if path.is_file():
            yield "file", str(path.relative_to(kernel.folder))
    yield "files", "intact" if not problems else "damaged"
    for problem in problems:
        yield "damage", problem


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M", time.localtime(seconds))


def run_shared(options: argparse.Namespace) -> int:
    """Do an action for the caches of the working folder's project; the exit status.

    Raises:
        KernelwrightError: the settings are wrong, or name no remote cache.
    """
    action = options.action
    if action == "keys":
        return _keys()
    here = Path.cwd()
    top = next((place for place in (here, *here.parents) if (place / "pyproject.toml").is_file()), here)
    table = read_pyproject(top / "pyproject.toml")
    layers = [("pyproject.toml", table), ("environment", environment_layer(os.environ))]
    settings = merge(layers, backends.choices())
    if action == "stats":
        return _stats(top, settings)
    if not settings.remote_cache or not settings.cache_dir:
        lacking = "remote_cache" if settings.cache_dir else "cache_dir"
        message = f"there is nothing to {action}: {lacking} is empty"
        raise SettingsError(message, Where(stage="settings"), f"set {lacking}, in pyproject.toml or the environment")
    return _push(top, settings) if action == "push" else _pull(top)


def _push(top: Path, settings: Settings) -> int:
    if not (top / settings.cache_dir).is_dir():
        message = f"there is nothing to push: there is no build cache {printable(settings.cache_dir)} in {top}"
        raise SettingsError(message, Where(stage="settings"), "build first, and call this in a folder of the project")
    # Whoever calls this wants to write, whatever the settings say for builds.
    writing = replace(settings, remote_mode="read-write")
    remote = open_remote(writing, top, os.environ, lambda text: print(text, file=sys.stderr))
    if remote is None or not remote.writable:
        return 1
    if remote.has(secrets.token_hex(32)):
        message = "what answers at remote_cache is no store: it has an object that nobody has written"
        raise SettingsError(message, Where(stage="settings"), "see whether it sends everybody to a login")
    complete = False
    try:
        _cache(top, settings).push(remote)
        remote.close(PUSH_S)
        complete = not remote.lacks_something
    except KeyboardInterrupt:
        remote.close(0)
    print(f"{remote.counts.written} entries are new in the remote cache, {remote.counts.sent / 1e6:.1f} MB")
    if not complete:
        print("kernelwright: some entries may be missing in the remote cache; push again", file=sys.stderr)
    return 0 if complete else 1


def _pull(top: Path) -> int:
    """Have scons do it: what a project needs is known when its build file is read."""
    return subprocess.call([sys.executable, "-m", "SCons", "-Q", "cache-pull"], cwd=top)


def _stats(top: Path, settings: Settings) -> int:
    if settings.cache_dir:
        sizes = [size for size, _, _ in _cache(top, settings).entries()]
        print(f"build cache: {len(sizes)} entries, {sum(sizes) / 1e6:.1f} MB in {printable(settings.cache_dir)}")
    else:
        print("build cache: none, cache_dir is empty")
    where = f"{printable(settings.remote_cache)}, {settings.remote_mode}" if settings.remote_cache else "none"
    print(f"remote cache: {where}")
    try:
        caches = read_trace(top / "build" / "trace.json").summary.caches
    except KernelwrightError:
        print("no build is known that used them")
        return 0
    for name in CACHES:
        if name in caches:
            print(f"last build, {name}: {caches[name]}")
    return 0


def _keys() -> int:

    try:
        public, private = new_keys()
    except ImportError:
        remedy = "pip install 'kernelwright[signed]'"
        raise SettingsError("keys need the package cryptography", Where(stage="settings"), remedy) from None
    print(f'remote_key = "{public}"  # for [tool.kernelwright] in pyproject.toml')
    print(f"{SIGNING_KEY}={private}  # a secret: for the environment of the CI job that writes, and nobody else")
    return 0


def _cache(top: Path, settings: Settings) -> BuildCache:
    place = top / settings.cache_dir
    owned = settings.cache_dir == Settings().cache_dir
    return BuildCache(place, parse_size(settings.cache_size or "1T") * 1024, writable=False, owned=owned)


DIR = argument("--dir", "the cache (default: the one that is used in this folder)", metavar="FOLDER")

COMMAND = Command(
    "cache",
    "look at caches, remove something, or share it",
    actions=(
        Command("list", "list the compiled kernels, the one used last first", run, (DIR,)),
        Command(
            "show",
            "show config, archs, tools and files of a kernel, and whether these are intact, or a failure's log",
            run,
            (DIR, argument("key", "a key as in the list, or its first digits", metavar="KEY")),
            {1: "a file is damaged, or there is no cache"},
        ),
        Command("size", "show how much kernels, stages and failed compiles take", run, (DIR,)),
        Command(
            "prune",
            "remove what was used least recently, down to a size, but nothing that was used in the last minute",
            run,
            (DIR, argument("--to", "what is kept at most (default: 2G)", metavar="SIZE", default="2G")),
        ),
        Command("clear", "remove all that can be made again, but for what others compile now", run, (DIR,)),
        Command(
            "verify",
            "compare every stage and every kernel with its digests",
            run,
            (DIR, argument("--remove", "remove what is damaged", action="store_true")),
            {1: "a file is damaged, and --remove is not given"},
        ),
        Command(
            "push",
            "write all entries of the project's build cache that the remote cache lacks, whatever remote_mode says",
            run_shared,
            exits={1: "some entries may be missing there"},
        ),
        Command(
            "pull",
            "take all finished kernels of the project out of the remote cache, as scons cache-pull, and build nothing",
            run_shared,
        ),
        Command(
            "stats",
            "say what the build cache has, and what the last build took from it and from the remote cache",
            run_shared,
        ),
        Command("keys", "make a pair of keys, to sign what is in the remote cache", run_shared),
    ),
)
