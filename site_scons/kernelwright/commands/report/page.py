"""Renders the page from its templates, in which all that a user's text contains is shown as text."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from ...core.quantity import in_words, plural
from ...core.version import VERSION
from ...state.tuning_result import DEFAULT
from . import text
from .data import Report
from .heatmap import DENSE, SIGNS, WITHIN, heat_maps
from .plot import GREY, panels
from .roofline import BenchView
from .timeline import RunView, colour_rules
from .tuning import ConfigView, spaced

FOLDER = Path(__file__).parent

PANELS = 6
"""The most pairs of plots of one config."""

OWN_FILTERS = (text.code_split, text.duration, text.fixed, text.microseconds, text.percent, text.words)
FILTERS: tuple[Callable[..., Any], ...] = (in_words, plural, heat_maps, panels, spaced, *OWN_FILTERS)

NAMES = {"DEFAULT": DEFAULT, "GREY": GREY, "PANELS": PANELS, "SIGNS": SIGNS}
NAMES |= {"DENSE": DENSE, "UNKNOWN": text.UNKNOWN, "VERSION": VERSION, "WITHIN": WITHIN}


def render(report: Report) -> bytes:
    """The page, in UTF-8; characters that UTF-8 does not have, parts of broken file names, become references."""
    style, script = ((FOLDER / name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    page = (
        _environment()
        .get_template("page.html")
        .render(
            report=report,
            run=RunView(report.run) if report.run else None,
            tunings=[(one, [ConfigView(one.kernel, config) for config in one.configs]) for one in report.tunings],
            benches=[BenchView(results) for results in report.benches],
            style=style + colour_rules(),
            script=script,
        )
    )
    return page.encode("utf-8", "xmlcharrefreplace")


@cache
def _environment() -> Environment:
    """The environment of the templates, which it reads once. It escapes all texts; an unknown name is an error."""
    jinja = Environment(loader=FileSystemLoader(FOLDER), autoescape=True, undefined=StrictUndefined)
    jinja.trim_blocks = jinja.lstrip_blocks = True
    jinja.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    jinja.filters |= {function.__name__: function for function in (*FILTERS, digest)}
    jinja.globals |= NAMES
    return jinja


def digest(content: str) -> str:
    """How a policy names an inline element: the digest of its text (Content Security Policy Level 3, section 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}"
