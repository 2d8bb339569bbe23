"""The code blocks of a page of the docs, and whether what a program printed is what the page shows."""

from __future__ import annotations

import doctest
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Block:
    """A code block of a page, with the prose before it."""

    language: str
    text: str
    prose: str


def blocks(page: Path) -> Iterator[Block]:
    """All code blocks of a page in order."""
    text, end = page.read_text(encoding="utf-8"), 0
    for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.M | re.S):
        yield Block(match[1], match[2], " ".join(text[end : match.start()].split()))
        end = match.end()


def commands(block: Block) -> list[tuple[str, str]]:
    """The commands of a block with what they print, as the page shows it."""
    found = re.findall(r"^\$ (.*)\n((?:(?!\$ ).*\n)*)", block.text, re.M)
    assert found, block
    return found


def normal(output: str) -> str:
    """Output without what differs from run to run: times, and with -j the order of the stages."""
    lines = re.sub(r"in \d+\.\d s$", "in T s", output, flags=re.M).splitlines(keepends=True)
    stages = sorted(line for line in lines if line.startswith("[ "))
    return "".join([*stages, *(line for line in lines if not line.startswith("[ "))])


def agrees(expected: str, output: str) -> bool:
    """Whether output is what the page shows; ``...`` there stands for anything."""
    flags = doctest.ELLIPSIS
    if "..." not in expected.splitlines():
        expected, output = normal(expected), normal(output)
    return doctest.OutputChecker().check_output(expected, output, flags)
