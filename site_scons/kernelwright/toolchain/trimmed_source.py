"""Runs the front end of nvcc on a source with only those declarations of its headers that it needs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..processes.environment import place_for_shell
from .nvcc_steps import Steps
from .trimming import Headers, has_numbers, next_part, own_part, parted, read_headers, trimmed


@dataclass(frozen=True)
class TrimmedSource:
    """A source from which PTX is made.

    Arguments:
        path: the file.
        steps: what nvcc would run for it.
        scratch: a folder for what the programs pass on.
        run: runs a command in the folder of the source.
        translate: likewise, for the one that makes PTX of what was preprocessed.
        headers_of: what is known of some headers, by their text and by what those before them leave, or else what the
            function gives that it gets.
        in_parts: whether its headers are read in parts, which other sources may have, too. Those with ``#pragma once``
            cannot be: it counts within a part only.
    """

    path: Path
    steps: Steps
    scratch: Path
    run: Callable[[Sequence[str]], None]
    translate: Callable[[Sequence[str]], None]
    headers_of: Callable[[str, Headers | None, Callable[[], Headers]], Headers]
    in_parts: bool = True

    def make_ptx(self, *, checked: bool) -> bool:
        """Make PTX; False: what is made does not count, because the source needs all of its headers.

        Arguments:
            checked: as :meth:`Steps.front_end` has it.

        Raises:
            ValueError: the headers or the steps have another form than is known; and what ``run`` raises.
        """
        parts = parted(self.path.read_text(encoding="utf-8", errors="surrogateescape"))
        if parts is None:
            return False
        heads, rest = parts
        headers = self._headers(heads if self.in_parts else ["\n".join(heads)])
        own = own_part(headers, rest)
        text = None if own is None else trimmed(headers, self._preprocessed("own", own, has_built_in=False))
        if text is None:
            return False
        _write(self.path.parent / self.steps.preprocessed, text)
        self.translate(self.steps.translating(checked=checked))
        return not has_numbers((self.path.parent / self.steps.ptx).read_text(encoding="utf-8", errors="replace"))

    def _headers(self, parts: Sequence[str]) -> Headers:
        """What the first parts of a source leave."""
        *others, part = parts
        before = self._headers(others) if others else None

        def read() -> Headers:
            text = next_part(before, part) if before else part
            preprocessed = self._preprocessed("headers", f"{text}\n", has_built_in=before is None, macros=True)
            return read_headers(preprocessed, before)

        return self.headers_of("\n".join(parts), before, read)

    def _preprocessed(self, name: str, text: str, *, has_built_in: bool, macros: bool = False) -> str:
        source, output = (self.scratch / f"{name}{suffix}" for suffix in (".cu", ".ii"))
        _write(source, text)
        places = (place_for_shell(file, self.path.parent) for file in (source, output))
        self.run(self.steps.preprocessing(*places, has_built_in=has_built_in, macros=macros))
        return output.read_text(encoding="utf-8", errors="surrogateescape")


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8", errors="surrogateescape")
