"""Execution backends: how Python calls a kernel. One module per backend, each with one subclass of ``Backend``.

A backend's module is imported when the backend is used: a build with nothing to do needs only the names. Other
distributions may bring more of them (``core/plugins.py``).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import TYPE_CHECKING, TypeVar

from ..core import plugins
from ..core.errors import KernelwrightError, SettingsError, Where, one_of
from ..core.files import digest_of
from ..core.plugins import Names

if TYPE_CHECKING:
    from ..processes.pool import WorkerPool
    from .base import Backend
    from .plan import KernelPlan

Answer = TypeVar("Answer")
OfPackage = tuple[str, str, tuple[str, ...]]
NO_PACKAGE: OfPackage = ("", "", ())

MODULES = ("tvm_ffi", "cython", "cuda_core", "torch", "jax")
"""The names of the backends, which are those of their modules here; the default comes first."""

OF_FRONT_ENDS = ("torch_ops",)
"""Those of kernels whose front end leaves no choice (``FrontEnd.backends``). A package that has only such kernels may
name them in its settings, so that it needs nothing else."""

OWN = {name: f"{__name__}.{name}:BACKEND" for name in (*MODULES, *OF_FRONT_ENDS)}
"""Name -> where it is; as the entry points of plug-ins say it."""

AUTO = "auto"
"""In settings: for each target of a kernel the first backend that can call it."""


def names() -> Names:
    """The names of the backends, the default first."""
    return Names(MODULES)


def all_names() -> Names:
    """The names of all backends that a package may have, those of front ends last."""
    return Names((*MODULES, *OF_FRONT_ENDS))


def get(name: str) -> Backend:
    """The backend of that name.

    Raises:
        SettingsError: no backend has this name; the message lists the names.
        ToolchainError: it is a plug-in that cannot be used.
    """
    from .base import Backend

    plugin: Backend | None = plugins.find(name, Backend, OWN.get(name, ""))
    if plugin is None:
        remedy = one_of(name, "the backends are", names().listed)
        raise SettingsError(f"unknown backend {name!r}", remedy=f"{remedy}; or install what has another")
    return plugin


def headers(backend: Backend) -> str:
    """Digest of the files of ours that commands of a backend read."""
    return digest_of(answer(backend, backend.headers, plugins.WHERE, list))


def needed(backend: Backend) -> dict[str, str]:
    """The versions of what a backend needs to build."""
    return answer(backend, backend.build_versions, plugins.WHERE, dict)


def versions(backend: Backend) -> dict[str, str]:
    """What a backend needs to build, and of a plug-in also itself: name -> version or digest."""
    return needed(backend) | plugins.described(backend)


def answer(backend: Backend, ask: Callable[[], Answer], where: Where, form: type = object) -> Answer:
    """What a backend answers.

    Arguments:
        form: what the answer of a plug-in has to be.

    Raises:
        KernelwrightError: it cannot.
        ToolchainError: it is a plug-in that raises something else, or answers with something else.
    """
    try:
        answered = ask()
    except KernelwrightError:
        raise
    except (Exception, SystemExit) as error:
        if not backend.distribution:
            raise  # a defect of ours
        raise plugins.raised(backend, error, where) from error
    if backend.distribution:
        plugins.require_form(backend, "answered", answered, form, where)
    return answered


def texts_of(
    backend: Backend,
    plan: KernelPlan | None,
    package: OfPackage,
    where: Where,
    pool: Callable[[], WorkerPool] | None,
) -> dict[str, str]:
    """Files that a backend writes; the arguments are as of :func:`emitted`.

    Arguments:
        pool: gives the workers, so that a plug-in may hang or die; None: it writes the files in this process.

    Raises:
        KernelwrightError: as for :func:`answer`, also for other files than a plug-in promises.
        WorkerError: it took too long, or ended the process.
    """
    if not backend.distribution or pool is None:
        return emitted(backend, plan, package, where)
    # Imported here, because few builds have plug-ins.
    from ..core.converter import to_json
    from ..processes.pool import WRITER
    from ..processes.protocol import EmitRequest

    request = EmitRequest(backend.name, backend.content, None if plan is None else to_json(plan), package, where)
    return dict(pool().of(WRITER).call(request).texts)


def emitted(backend: Backend, plan: KernelPlan | None, package: OfPackage, where: Where) -> dict[str, str]:
    """Files that a backend writes in this process: name -> text.

    Arguments:
        plan: that of a kernel whose files they are; None: they are those of a package.
        package: the name of the package, the version of its project, and the names of its kernels.
    """

    def emit() -> dict[str, str]:
        if plan is None:
            return backend.emit_package(*package)
        backend.check(plan)
        return backend.emit(plan)

    texts = answer(backend, emit, where)
    promised = backend.package_files(package[0]) if plan is None else backend.files(plan.name)
    plugins.require_files(backend, texts, promised, str, where)
    return texts


def choices() -> Names:
    """What the setting ``backends`` may list."""
    return Names((AUTO, *all_names()))


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
