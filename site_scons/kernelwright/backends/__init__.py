"""Execution backends: how Python calls a kernel. One module per backend, each with one subclass of ``Backend``."""

from __future__ import annotations

from ..errors import SettingsError
from .base import Backend
from .tvm_ffi import TvmFfi


def _all() -> dict[str, Backend]:
    return {backend.name: backend for backend in (TvmFfi(),)}


def names() -> tuple[str, ...]:
    """The names of the backends, the default first."""
    return tuple(_all())


def get(name: str) -> Backend:
    """The backend of that name.

    Raises:
        SettingsError: there is none; the message lists the names.
    """
    try:
        return _all()[name]
    except KeyError:
        raise SettingsError(f"unknown backend {name!r}", remedy=f"the backends are: {', '.join(names())}") from None


__all__ = ["Backend", "get", "names"]
