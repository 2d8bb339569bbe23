"""The sources with host code of their own that a kernel lists: files, and texts that its definition makes."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ..core.dependencies import IN_PACKAGE
from ..core.errors import DefinitionError, Where, is_text, shown
from .kernel_options import BESIDE, is_relative
from .space import given

ENDINGS = (".cu", ".cc", ".cpp", ".cxx")
"""Endings of files that nvcc compiles."""

HEADERS = (".h", ".hpp", ".hxx", ".cuh", ".inc", ".inl")
"""Endings of texts that are not compiled: those that are include them."""

WRITE = 'write sources=["scale.cu"], or a function of keys of a config that returns such a list'

NAME = re.compile(r"\w[\w.+-]{0,99}", re.ASCII)
"""The name of a text: that of its file."""


EVERY = ""
"""In place of a slug: every variant."""


@dataclass(frozen=True)
class Text:
    """A source, or a header of sources, that a definition makes, in the place of a file.

    Arguments:
        name: what its file is called: ``rms_norm.cu``, or ``config.inc`` for what others include.
        text: its content.
    """

    name: str
    text: str


@dataclass(frozen=True)
class OwnSource:
    """What a kernel lists as one of its sources.

    Arguments:
        path: of a file, as the definition has it; or the name of a text.
        text: the content that the definition has made; None: it is in a file.
    """

    path: str
    text: str | None = None

    def __post_init__(self) -> None:
        """Raises ValueError for a text whose name is not that of a file: records are read back from anywhere."""
        if self.text is not None and not NAME.fullmatch(self.path):
            raise ValueError(f"a text is called {shown(self.path)}")

    @property
    def is_compiled(self) -> bool:
        """Whether a compiler makes an object of it. If not, it is a header."""
        return self.path.endswith(ENDINGS)


def listed_sources(
    sources: Any, variants: Iterable[tuple[str, Mapping[str, Any]]], where: Where
) -> dict[str, tuple[OwnSource, ...]]:
    """The sources of each variant, by its slug; or with the key :data:`EVERY` those of all variants.

    Arguments:
        sources: what ``@kernel`` was given: a list of paths and of :class:`Text`, or a function that returns one; it
            is called with the keys of a config that it has parameters for.
        variants: slug and config of each.

    Raises:
        DefinitionError: it is something else, or an entry cannot be a source.
    """
    if not callable(sources):
        return {EVERY: _checked(() if sources is None else sources, "sources", where)}
    function: Callable[..., Any] = sources
    known: dict[str, tuple[OwnSource, ...]] = {}
    listed = {}
    for slug, config in variants:
        arguments = given(function, config, "sources", where)
        if (key := repr(arguments)) not in known:
            subject = f"sources, for {shown(arguments)}," if arguments else "sources"
            known[key] = _checked(function(**arguments), subject, where)
            if not known[key]:
                raise DefinitionError(f"{subject} is an empty list", where, WRITE)
        listed[slug] = known[key]
    return listed


def paths_of(listed: Mapping[str, Iterable[OwnSource]]) -> tuple[str, ...]:
    """What several variants list, each path and each name once."""
    return tuple(dict.fromkeys(source.path for sources in listed.values() for source in sources))


def has_texts(listed: Mapping[str, Iterable[OwnSource]]) -> bool:
    """Whether the definition makes one of the sources."""
    return any(source.text is not None for sources in listed.values() for source in sources)


def _checked(value: Any, subject: str, where: Where) -> tuple[OwnSource, ...]:
    if isinstance(value, (str, Text, Mapping)) or not isinstance(value, Iterable):
        raise DefinitionError(f"{subject} is {shown(value)}, expected a list", where, WRITE)
    sources = [
        _of_text(one, subject, where) if isinstance(one, Text) else _of_file(one, subject, where) for one in value
    ]
    for number, source in enumerate(sources):
        if source in sources[:number]:
            message = f"{subject} lists {source.path!r} twice"
            raise DefinitionError(message, where, "remove one of them")
        if any(source.path == other.path and other.text for other in sources[:number] if source.text):
            message = f"{subject} has two texts that are called {source.path!r}, and they differ"
            raise DefinitionError(message, where, "give one of them another name")
    if sources and not any(source.is_compiled for source in sources):
        message = f"{subject} has nothing that is compiled"
        raise DefinitionError(message, where, f"list a file or a Text whose name ends in {', '.join(ENDINGS)}")
    return tuple(sources)


def _of_file(path: Any, subject: str, where: Where) -> OwnSource:
    if not isinstance(path, str) or not is_text(path):
        raise DefinitionError(f"{subject} contains {shown(path)}, expected a path or a Text", where, WRITE)
    if not is_relative(path.removeprefix(IN_PACKAGE)) or not path.endswith(ENDINGS):
        message = f"{subject} contains {path!r}, which is no path of a source"
        raise DefinitionError(message, where, f"{BESIDE}, of files that end in {', '.join(ENDINGS)}")
    return OwnSource(path)


def _of_text(one: Text, subject: str, where: Where) -> OwnSource:
    if not isinstance(one.name, str) or not NAME.fullmatch(one.name) or not one.name.endswith(ENDINGS + HEADERS):
        message = f"{subject} has a Text that is called {shown(one.name)}, which is no name of a source or a header"
        remedy = f"write a name without a folder that ends in {', '.join(ENDINGS + HEADERS)}"
        raise DefinitionError(message, where, remedy)
    if not isinstance(one.text, str) or not one.text.strip() or not is_text(one.text):
        message = f"{subject} has the Text {one.name!r} whose content is {shown(one.text)}, expected a source"
        raise DefinitionError(message, where, "see what makes it")
    return OwnSource(one.name, one.text)
