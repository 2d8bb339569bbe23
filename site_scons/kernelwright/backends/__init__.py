"""Execution backends: how Python calls a kernel. One module per backend, each with one subclass of ``Backend``.

A backend's module is imported when the backend is used: a build with nothing to do needs only the names.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..errors import SettingsError

if TYPE_CHECKING:
    from .base import Backend

CLASSES = {"tvm_ffi": "TvmFfi"}
"""Name of a backend, which is its module's -> its class; the default comes first."""


def names() -> tuple[str, ...]:
    """The names of the backends, the default first."""
    return tuple(CLASSES)


def get(name: str) -> Backend:
    """The backend of that name.

    Raises:
        SettingsError: there is none; the message lists the names.
    """
    if name not in CLASSES:
        raise SettingsError(f"unknown backend {name!r}", remedy=f"the backends are: {', '.join(names())}")
    backend: Backend = getattr(importlib.import_module(f".{name}", __name__), CLASSES[name])()
    return backend


__all__ = ["get", "names"]
