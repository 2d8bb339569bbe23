"""Pieces of HTML: escaped text, numbers for people, tables that can be sorted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape

UNKNOWN = "\u2013"
"""An en dash."""

MISSING = f'<td class="number missing">{UNKNOWN}</td>'
"""A cell for a value that is not known; it has no value to sort by, and comes last."""


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Arguments:
        title: its heading.
        numeric: whether it is aligned to the right and sorted with the largest first.
        hint: what the heading means, shown when the pointer rests on it.
    """

    title: str
    numeric: bool = False
    hint: str = ""


def text_cell(text: str, hint: str = "", kind: str = "") -> str:
    """A cell with a text, which may be of any content."""
    attributes = f' class="{kind}"' if kind else ""
    attributes += f' title="{escape(hint)}"' if hint else ""
    return f"<td{attributes}>{escape(text)}</td>"


def name_cell(text: str, hint: str = "") -> str:
    """A cell with a name out of the user's code."""
    return text_cell(text, hint, "name")


def arch_cell(text: str) -> str:
    """A cell with the name of one arch, which is never broken into lines."""
    return text_cell(text, kind="name arch")


def prose_cell(doc: str) -> str:
    """A cell with the first line of a docstring, and all of it as a hint; ````x```` is code, as in reStructuredText."""
    lines = doc.strip().splitlines() or [""]
    shown = re.sub(r"``(.+?)``", r"<code>\1</code>", escape(lines[0]))
    hint = f' title="{escape(doc)}"' if len(lines) > 1 else ""
    return f'<td class="prose"{hint}>{shown}</td>'


def number_cell(value: float | None, shown: str | None = None, kind: str = "") -> str:
    """A cell with a number; ``shown`` is its text, without which it is a whole number with separators."""
    if value is None:
        return MISSING
    classes = f"number {kind}".strip()
    return f'<td class="{classes}" data-value="{value!r}">{shown or f"{value:,}"}</td>'


def table(label: str, columns: Sequence[Column], rows: Iterable[Sequence[str]], *, sortable: bool = True) -> str:
    """A table of cells.

    Arguments:
        label: what the table holds, for readers that do not see it.
        rows: the cells of each row, each of them HTML.
        sortable: whether a click on a heading sorts it.
    """
    head = "".join(_heading(column, sortable) for column in columns)
    body = "\n".join(f"<tr>{''.join(cells)}</tr>" for cells in rows)
    return (
        f'<div class="scroll" role="region" aria-label="{escape(label)}" tabindex="0"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody></table></div>"
    )


def _heading(column: Column, sortable: bool) -> str:
    kind = ' class="number"' if column.numeric else ""
    hint = f' title="{escape(column.hint)}"' if column.hint else ""
    title = escape(column.title)
    shown = f'<button type="button">{title}</button>' if sortable and title else title
    return f'<th scope="col"{kind}{hint}>{shown}</th>'


def duration(seconds: float) -> str:
    """A time for people: ``0.42 s``, ``41.2 s``, ``3 min 5 s``."""
    if seconds < 10:
        return f"{seconds:.2f} s"
    if seconds < 119.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
