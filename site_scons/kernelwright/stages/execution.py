"""Runs a stage: fetches its outputs from the build cache or makes them, and publishes all of them or none."""

from __future__ import annotations

import contextlib
import os
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..core.dependencies import present_digest
from ..core.errors import KernelwrightError, refused
from ..core.files import make_way, scratch_folder
from .runs import Engine
from .stage import Stage
from .stage_run import StageRun


def attempt(stage: Stage, run: Engine) -> KernelwrightError | None:
    """Publish a stage; what went wrong, as an error that a user can read."""
    try:
        publish(stage, run)
    except KernelwrightError as error:
        problem = error
    except OSError as error:
        problem = refused(error, stage.where, stage.paths[0])
    except Exception as error:
        # A defect of ours must look like one, and count as a failure.
        message = f"an unexpected {type(error).__name__}: {error}"
        remedy = "report this as a defect of Kernelwright"
        problem = KernelwrightError(message, stage.where, remedy, traceback.format_exc())
    else:
        return None
    if ":" not in (problem.where.location or ""):
        # The definition's line, where nothing more exact is known.
        problem.where = replace(problem.where, location=stage.where.location)
    return problem


def publish(stage: Stage, run: Engine) -> None:
    """Fetch a stage's outputs from the cache or run it, in a scratch folder; then move all of them into place.

    Raises:
        KernelwrightError: the stage failed, or did not make a declared output. No output exists then.
    """
    cache = run.cache if stage.cacheable else None
    key = stage.cache_key(run.journal.digest) if cache is not None else None
    alone = contextlib.nullcontext() if cache is None or key is None else cache.alone(key)
    with alone, scratch_folder(run.state / "scratch") as scratch:
        stage.key = key
        stage.cached = key is not None and _fetch(stage, run, key, scratch)
        run.started(stage.line)
        if not stage.cached:
            stage.make(scratch, StageRun(run, stage))
        missing = [name for name in stage.outputs if not (scratch / name).is_file()]
        if missing:
            message = f"the stage did not make {', '.join(missing)}"
            raise KernelwrightError(message, stage.where, "report this as a defect of Kernelwright")
        if key is not None and cache is not None and not stage.cached:
            cache.store(key, scratch, list(stage.outputs), stage.later, stage.here)
        run.require_folders({path.rpartition("/")[0] for path in stage.paths})
        for name, path in stage.outputs.items():
            move(scratch / name, Path(path))
    run.journal.record(stage.paths)
    stage.published = True


def _fetch(stage: Stage, run: Engine, key: str, scratch: Path) -> bool:
    """Whether the stage's outputs were in the cache, and are in the scratch folder now."""
    if run.cache is None:
        return False
    names = list(stage.outputs)
    later = run.cache.fetch(key, scratch, names, lambda name: present_digest(run.top, name), stage.here)
    if later is not None:
        stage.remember(later)
    return later is not None


def move(source: Path, target: Path) -> None:
    """Rename a file; the target's folder may have been swept away as empty in the meantime."""
    for _ in range(3):
        target.parent.mkdir(parents=True, exist_ok=True)
        make_way(target)
        try:
            os.replace(source, target)  # noqa: PTH105
            return
        except FileNotFoundError:
            continue
    os.replace(source, target)  # noqa: PTH105


def tell_of_alteration(path: str, top: Path, note: Callable[[str], None]) -> None:
    """Say that an output is not as it was built."""
    note(f"kernelwright: {os.path.relpath(path, top)} is not as it was built: making it again")


def remove(path: str) -> None:
    """Remove an output, whatever is in its place, so that it is made again."""
    make_way(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)  # noqa: PTH108
