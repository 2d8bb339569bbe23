"""Finds what Triton's tuner has measured on a GPU, while a program is recorded without one.

Written for Triton 3.9, whose ``Autotuner.check_disk_cache`` names the file of a call. The name is a digest of Triton
itself, the arch, the function and what it calls, the configs, the key and the environment. The file says none of that
again but the key, so a file of another name is never taken, however much it looks like the right one.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from ...core.errors import SettingsError, Where
from ...core.files import read_record
from ...core.records import damage_named
from .in_force import replace

FILES = "*/*.autotune.json"
"""Where the tuner keeps times in a folder of caches."""

WANTED = (
    "name the folder of Triton's caches (TRITON_CACHE_DIR, or ~/.triton/cache) of a run with "
    "TRITON_CACHE_AUTOTUNING=1 on a GPU of the arch"
)


class _AskedError(Exception):
    """In place of the answer of a cache: the file that it was asked for."""


@dataclass(frozen=True)
class Timings:
    """The times in a folder.

    Arguments:
        folder: that of Triton's caches.
        times: file, relative to the folder -> configs as JSON, each with its times.
    """

    folder: Path
    times: Mapping[str, Sequence[tuple[Mapping[str, Any], list[float]]]]

    @classmethod
    def read(cls, folder: Path, where: Where) -> Timings:
        """Read all times in a folder.

        Raises:
            KernelwrightError: there are none, or a file is damaged.
        """
        times = {}
        for path in sorted(folder.glob(FILES)):
            with damage_named(path, "delete it, and tune anew on the GPU"):
                times[path.relative_to(folder).as_posix()] = _times_in(json.loads(read_record(path)))
        if not times:
            raise SettingsError(f"{folder} has no times of Triton's tuner ({FILES})", where, WANTED)
        return cls(folder, times)

    def fastest(self, look: Callable[..., Any], tuner: Any, key: tuple[Any, ...], configs: Sequence[Any]) -> Any:
        """The config that Triton would take for a call if these were its caches; None: it would measure.

        Arguments:
            look: Triton's ``Autotuner.check_disk_cache``.
            tuner, key, configs: what it is called with.
        """
        from triton.runtime import autotuner
        from triton.runtime.cache import _base32

        def asked(digest: str, name: str) -> None:
            raise _AskedError(f"{_base32(digest)}/{name}")

        def cache(digest: str) -> Any:
            return SimpleNamespace(get_file=lambda name: asked(digest, name))

        with ExitStack() as stack:
            replace(stack, autotuner, "get_cache_manager", cache)
            try:
                look(tuner, key, configs, lambda: None)
            except _AskedError as error:
                return self._fastest_in(str(error), configs)
        return None  # it keeps no times of configs that have hooks

    def _fastest_in(self, file: str, configs: Sequence[Any]) -> Any:
        known = self.times.get(file)
        config, times = min(known, key=lambda each: each[1]) if known else ({}, [math.inf])
        # Without a finite time, no config ran.
        return next((each for each in configs if vars(each) == config and math.isfinite(times[0])), None)


def _times_in(document: Any) -> list[tuple[Mapping[str, Any], list[float]]]:
    """What a file of the tuner has.

    Raises:
        ValueError: something else.
    """
    listed = document.get("configs_timings") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ValueError("it has no list configs_timings")
    return [_time_of(item) for item in listed]


def _time_of(item: Any) -> tuple[Mapping[str, Any], list[float]]:
    config, times = item if isinstance(item, list) and len(item) == 2 else (None, None)
    times = times if isinstance(times, list) else [times]
    if not isinstance(config, dict) or not times or not all(type(time) in (int, float) for time in times):
        raise ValueError("configs_timings has something else than configs with their times")
    return config, times
