"""How Sphinx makes a site of these pages: `sphinx-build docs build/site`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "site_scons"))

from kernelwright.core.version import VERSION

if TYPE_CHECKING:
    from sphinx.application import Sphinx

project = "Kernelwright"
release = VERSION
html_title = f"Kernelwright {VERSION}"
html_theme = "furo"
html_show_copyright = False
html_static_path = ["style"]
html_css_files = ["site.css"]

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
myst_heading_anchors = 3  # as on code hosts, so that a link to a heading works in both

# Docstrings have the sections of Google's style. Their types are those of the signatures.
napoleon_numpy_docstring = False
napoleon_use_rtype = False
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
suppress_warnings = ["ref.python"]  # Kernel is a class of definitions, and one of packages


def setup(app: Sphinx) -> None:
    """Attributes have no types in their docstrings: Napoleon would take the words before a colon for one."""
    app.connect("autodoc-process-docstring", _begin_attribute, priority=400)


def _begin_attribute(app: Sphinx, what: str, name: str, thing: Any, options: Any, lines: list[str]) -> None:
    if what in ("attribute", "property", "data"):
        lines[:0] = ["..", ""]  # an empty comment
