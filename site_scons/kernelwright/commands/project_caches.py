"""``kernelwright cache push``, ``pull``, ``stats`` and ``keys``: the caches of a project, for people and for CI."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from .. import backends
from ..core.errors import KernelwrightError, SettingsError, Where, printable
from ..core.quantity import parse_size
from ..define.remote_address import SIGNING_KEY
from ..define.settings import Settings, environment_layer, merge, read_pyproject
from ..state.cache import BuildCache
from ..state.remote_opening import open_remote
from ..state.trace import CACHES, read_trace

PUSH_S = 3600.0
"""Seconds that ``push`` waits for unfinished writes: it has nothing else to do, and nobody waits for it."""


def run(action: str) -> int:
    """Do one of these actions for the project of the working folder; the exit status.

    Raises:
        KernelwrightError: the settings are wrong, or name no remote cache.
    """
    if action == "keys":
        return _keys()
    here = Path.cwd()
    top = next((place for place in (here, *here.parents) if (place / "pyproject.toml").is_file()), here)
    table = read_pyproject(top / "pyproject.toml")
    layers = [("pyproject.toml", table), ("environment", environment_layer(os.environ))]
    settings = merge([("defaults", {"archs": Settings().archs}), *layers], backends.choices())
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
    from ..state.remote_objects import new_keys

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
