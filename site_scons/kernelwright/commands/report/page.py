"""Puts the page together. It is one file that loads nothing else, and its Content-Security-Policy forbids it to."""

from __future__ import annotations

import base64
import hashlib
import json
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from ...core.version import VERSION
from .code import package_sections
from .data import Report
from .timeline import colour_rules, run_sections, timeline_data
from .tuning import tuning_sections


def render(report: Report) -> bytes:
    """The page, in UTF-8; characters that UTF-8 does not have, parts of broken file names, become references."""
    style, script = _static("page.css") + colour_rules(), _static("page.js")
    names = ", ".join(package.name for package in report.packages)
    text = Template(_static("page.html")).substitute(
        title=escape(f"{names}: build report" if names else "Build report"),
        policy=_policy(style, script),
        style=style,
        body=_body(report, names),
        data=embedded_json(timeline_data(report.run) if report.run else None),
        script=script,
    )
    return text.encode("utf-8", "xmlcharrefreplace")


def embedded_json(value: Any) -> str:
    """JSON that may stand inside of a script element: no ``</script>``, ``<!--`` or entity can be in it."""
    text = json.dumps(value, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _body(report: Report, names: str) -> str:
    head = f"<header><h1>Build report</h1><p>{escape(names)}</p></header>"
    notes = [f'<p class="note callout">{escape(note)}</p>' for note in report.notes]
    run = [run_sections(report.run)] if report.run else []
    packages = [package_sections(package) for package in report.packages]
    tuning = [tuning_sections(report.tunings)] if report.tunings else []
    foot = f"<footer>Made by Kernelwright {escape(VERSION)} from what is in the build folder.</footer>"
    return "\n".join([head, *notes, *run, *packages, *tuning, foot])


def _policy(style: str, script: str) -> str:
    """A Content-Security-Policy that allows this style and this script, and no request at all."""
    allowed = f"style-src '{_source(style)}'; script-src '{_source(script)}'"
    return f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"


def _source(text: str) -> str:
    """How a policy names an inline element: the digest of its text (Content Security Policy Level 3, section 2.3.1)."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def _static(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
