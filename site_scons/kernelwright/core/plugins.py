"""What other distributions bring, front ends and backends: entry points name them.

Only a name that is used is looked up, and only that plug-in is imported.
"""

from __future__ import annotations

import contextlib
import importlib
import sys
import traceback
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import ClassVar, NamedTuple, TypeVar

from .errors import KernelwrightError, ToolchainError, Where, is_text, shown, text_of
from .files import sha256_of
from .need import Need, metadata_name
from .request import digest
from .surroundings import installed_digest

INTERFACE = 1
"""The version of what plug-ins are asked for and may call; docs/extending.md describes it."""

WHERE = Where(stage="plug-in")


class Kind(NamedTuple):
    """What a plug-in can be.

    Arguments:
        title: what messages call it.
        group: the group of its entry points.
    """

    title: str
    group: str


FRONT_ENDS = Kind("front end", "kernelwright.frontends")
BACKENDS = Kind("backend", "kernelwright.backends")


class Plugin:
    """What a distribution can bring: those of Kernelwright itself have the same class and no distribution."""

    kind: ClassVar[Kind]

    name: ClassVar[str]
    """The name by which definitions and settings know it."""

    interface: ClassVar[int] = 0
    """The version of the interface that a plug-in is written for, ``core.plugins.INTERFACE``."""

    targets: ClassVar[tuple[str, ...]] = ("llvm", "cuda")
    """The targets that it is for."""

    distribution: str = ""
    """The distribution that brings it; empty: it comes with Kernelwright."""

    version: str = ""
    """The version of that distribution."""

    content: Sequence[str] = ()
    """Digests of what it consisted of when this process imported it."""

    def required(self) -> Sequence[Need]:
        """What decides, besides its own files, what it makes."""
        return ()

    def told(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """What a plug-in is asked when it is found, so that faults are told at once: names for it, and questions."""
        return iter(())


Found = TypeVar("Found", bound=Plugin)


def installed(kind: Kind) -> list[str]:
    """The names of all plug-ins of a kind that are installed, sorted."""
    from importlib.metadata import entry_points  # takes 30 ms, and few runs have plug-ins

    return sorted({point.name for point in entry_points(group=kind.group)})


def is_installed(kind: Kind, name: object) -> bool:
    """Whether there is a plug-in of a name; it is not imported."""
    return isinstance(name, str) and name in installed(kind)


class Names(tuple[str, ...]):
    """Names of backends of Kernelwright; in it is also any that a plug-in has, which is looked for when it is asked."""

    def __contains__(self, name: object) -> bool:
        """Whether there is such a backend; no plug-in is imported."""
        return tuple.__contains__(self, name) or is_installed(BACKENDS, name)

    @property
    def listed(self) -> list[str]:
        """These and those of all plug-ins that are installed."""
        return [*self, *installed(BACKENDS)]


@cache
def find(name: str, base: type[Found], own: str = "") -> Found | None:
    """The plug-in of a name, for the rest of this process; None: none was installed when it was asked for.

    Arguments:
        base: the class that it has to be an object of.
        own: where Kernelwright itself has it, ``module:object``; empty: an entry point says so.

    Raises:
        ToolchainError: it cannot be imported, it is no such object, it is for another version of the interface, or two
            distributions have one of that name.
    """
    title, registered = base.kind.title, {"Kernelwright": (own, "")} if own else _entry_points(base.kind, name)
    if len(registered) > 1:
        both = " and ".join(sorted(registered))
        raise ToolchainError(f"{both} both have a {title} {name!r}", WHERE, "uninstall all of them but one")
    for distribution, (value, version) in registered.items():
        subject = f"the {title} {name!r} of {distribution}"
        with guarded(f"{subject} cannot be imported"), contextlib.nullcontext() if own else _without_bytecode():
            module, _, attribute = value.partition(":")
            plugin: Found = getattr(importlib.import_module(module), attribute)
        for wrong in _wrong(plugin, name, base, value, 0 if own else INTERFACE):
            raise ToolchainError(f"{subject} {wrong}", WHERE, f"mend {distribution}, or install another version of it")
        if not own:
            plugin.distribution, plugin.version = distribution, version
            plugin.content = _content(plugin)
        for what, ask in plugin.told():
            with guarded(f"{subject} does not tell {what}"):
                ask()
        return plugin
    return None


def _entry_points(kind: Kind, name: str) -> dict[str, tuple[str, str]]:
    """The distributions that have an entry point of a name: what it says, and their versions."""
    from importlib.metadata import entry_points

    points = [(point, point.dist) for point in entry_points(group=kind.group, name=name)]
    return {
        dist.name if dist else "a distribution without a name": (point.value, dist.version if dist else "")
        for point, dist in points
    }


@contextlib.contextmanager
def _without_bytecode() -> Iterator[None]:
    """Leave no bytecode of what is imported: Python takes it for that of a later text of equal size and second."""
    before, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    try:
        yield
    finally:
        sys.dont_write_bytecode = before


@contextlib.contextmanager
def guarded(problem: str) -> Iterator[None]:
    """Make what a plug-in raises an error of ours, in this process; in workers it is that of other front ends.

    Raises:
        ToolchainError: the problem, and what was raised.
    """
    try:
        yield
    except KernelwrightError:
        raise
    except Exception as error:
        message, remedy = f"{problem}: {type(error).__name__}: {text_of(error)}", "install what it needs, or repair it"
        raise ToolchainError(message, WHERE, remedy, detail=traceback.format_exc()) from error


def fault(plugin: Plugin, problem: str, where: Where, detail: str = "") -> ToolchainError:
    """The error for what a plug-in does wrong while it makes something."""
    remedy = f"mend {plugin.distribution or 'Kernelwright'}, or install another version of it"
    return ToolchainError(f"the {plugin.kind.title} {plugin.name!r} {problem}", where, remedy, detail)


def raised(plugin: Plugin, error: BaseException, where: Where) -> ToolchainError:
    """The same for what it raises, which is being handled."""
    return fault(plugin, f"raised {type(error).__name__}: {text_of(error)}", where, traceback.format_exc())


def require_form(plugin: Plugin, verb: str, value: object, form: type, where: Where) -> None:
    """Raise a ToolchainError unless a value that a plug-in gave is of a type; a text has to be one for files.

    Arguments:
        verb: what it did with the value, such as "answered".
    """
    if not isinstance(value, form):
        raise fault(plugin, f"{verb} {shown(value)}, expected {form.__name__}", where)
    if isinstance(value, str) and not is_text(value):
        raise fault(plugin, f"{verb} {shown(value)}, which no file can have", where)


def require_files(
    plugin: Plugin, made: Mapping[str, object], promised: Collection[str], form: type, where: Where
) -> None:
    """Raise a ToolchainError unless a plug-in has made the files that it promises: others might be anywhere.

    Arguments:
        made: name -> content.
        form: what a content has to be.
    """
    require_form(plugin, "made", made, Mapping, where)
    if {*made} != {*promised}:
        known = f"made {', '.join(map(shown, made)) or 'nothing'}, and promises {', '.join(promised) or 'nothing'}"
        raise fault(plugin, known, where)
    for name, content in made.items():
        require_form(plugin, f"made {name} of", content, form, where)


def folders_of(plugin: Plugin) -> list[Path]:
    """The folders of the modules of a plug-in; none if it is a single file."""
    return [Path(folder) for folder in getattr(_top_module(plugin), "__path__", ())]


def _top_module(plugin: Plugin) -> ModuleType:
    return sys.modules[type(plugin).__module__.partition(".")[0]]


def content_of(plugin: Plugin) -> list[str]:
    """Digests of a plug-in's own files and of the distributions that it needs: what may decide what it makes.

    There are none for what comes with Kernelwright.

    Raises:
        ToolchainError: they have changed since this process imported it. This process and its workers may run what
            was there before, so a result would count as that of another content.
    """
    if not plugin.distribution:
        return []
    require_content(plugin, _content(plugin))
    return list(plugin.content)


def described(plugin: Plugin) -> dict[str, str]:
    """The distribution of a plug-in, with a digest of :func:`content_of`; nothing for what comes with Kernelwright."""
    return {plugin.distribution: digest(content_of(plugin))} if plugin.distribution else {}


def require_content(plugin: Plugin, expected: Sequence[str]) -> None:
    """Raise a ToolchainError unless a plug-in consists of this; the argument is as of :func:`content_of`."""
    if list(plugin.content) != list(expected):
        title = plugin.kind.title
        message = f"{plugin.distribution}, which has the {title} {plugin.name!r}, has changed since it was imported"
        raise ToolchainError(message, WHERE, "start this process again")


def _content(plugin: Plugin) -> list[str]:
    """The same, now. The files themselves are read, because the record of an editable install does not list them."""
    files = [(p, p.relative_to(folder).as_posix()) for folder in folders_of(plugin) for p in folder.rglob("*")]
    files = files or [(Path(str(_top_module(plugin).__file__)), "")]
    own = [
        f"{name} {sha256_of(path)}"
        for path, name in sorted(files)
        if path.is_file() and "__pycache__" not in name and not name.endswith(".pyc")
    ]
    return [*own, *(f"{need.name} {installed_digest(metadata_name(need.name))}" for need in plugin.required())]


def _wrong(plugin: Plugin, name: str, base: type[Plugin], value: str, interface: int) -> Iterator[str]:
    """What is wrong with the object that the table, or an entry point, names."""
    if not isinstance(plugin, base):
        yield f"is of type {type(plugin).__name__}, expected a {base.__name__}, as {value} has to be"
    if plugin.interface != interface:
        yield f"is for version {plugin.interface} of the interface, and this Kernelwright has version {INTERFACE}"
    if plugin.name != name:
        yield f"has the name {plugin.name!r}, and its entry point another"
