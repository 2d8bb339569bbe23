"""Execution backends: how Python calls a kernel. One module per backend, each with one subclass of ``Backend``.

A backend's module is imported when the backend is used: a build with nothing to do needs only the names.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection, Iterable
from typing import TYPE_CHECKING

from ..core.errors import SettingsError

if TYPE_CHECKING:
    from .base import Backend

MODULES = ("tvm_ffi", "cython", "cuda_core", "torch", "jax")
"""The names of the backends, which are those of their modules here; the default comes first."""

OF_FRONT_ENDS = ("torch_ops",)
"""Those of kernels whose front end leaves no choice (``FrontEnd.backends``). A package that has only such kernels may
name them in its settings, so that it needs nothing else."""

AUTO = "auto"
"""In settings: for each target of a kernel the first backend that can call it."""


def names() -> tuple[str, ...]:
    """The names of the backends, the default first."""
    return MODULES


def all_names() -> tuple[str, ...]:
    """The names of all backends that a package may have, those of front ends last."""
    return (*MODULES, *OF_FRONT_ENDS)


def get(name: str) -> Backend:
    """The backend of that name.

    Raises:
        SettingsError: no backend has this name; the message lists the names.
    """
    if name not in all_names():
        raise SettingsError(f"unknown backend {name!r}", remedy=f"the backends are: {', '.join(names())}")
    backend: Backend = importlib.import_module(f".{name}", __name__).BACKEND
    return backend


def choices() -> tuple[str, ...]:
    """What the setting ``backends`` may list."""
    return (AUTO, *all_names())


def resolve(listed: Iterable[str], targets: Collection[str]) -> tuple[str, ...]:
    """The backends of a kernel, from a list in the settings: in order, and only those that can call its targets.

    Arguments:
        listed: names of backends, or ``auto``.
        targets: the targets that the kernel is built for.
    """
    chosen: dict[str, None] = {}
    for name in listed:
        first = [next(b for b in MODULES if target in get(b).targets) for target in targets] if name == AUTO else [name]
        chosen |= {backend: None for backend in first if not set(get(backend).targets).isdisjoint(targets)}
    return tuple(chosen)


__all__ = ["AUTO", "all_names", "choices", "get", "names", "resolve"]
