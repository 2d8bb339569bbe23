"""The page for users of a package: each of its examples runs as it is printed, in an environment of its own."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
from support.consumers import acme
from support.environments import run
from support.project import ROOT

PAGE = (ROOT / "docs/using.md").read_text(encoding="utf-8")

RUNNER = """
import doctest, sys
parser, runner = doctest.DocTestParser(), doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
for heading, text in {sections!r}:
    test = parser.get_doctest(text, {{}}, heading, None, 0)
    assert len(test.examples) >= text.count(">>>") > 0
    runner.run(test)
sys.exit(runner.summarize().failed > 0)
"""


def sections() -> dict[str, str]:
    """Heading -> the examples below it, one after the other."""
    parts = re.split(r"^## (.*)$", PAGE, flags=re.M)[1:]
    found = {
        heading: "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.M | re.S))
        for heading, text in zip(parts[::2], parts[1::2], strict=True)
    }
    return {heading: text for heading, text in found.items() if text}


def test_all_sections_with_examples_are_known() -> None:
    headings = ["What you need", "NumPy", "PyTorch", "JAX", "Arguments that fit", "Which variant runs"]
    assert list(sections()) == [*headings, "What a call costs"]


@pytest.mark.parametrize(("heading", "library"), [("", ""), ("PyTorch", "torch"), ("JAX", "jax")])
def test_the_examples_give_what_the_page_says(tmp_path_factory: pytest.TempPathFactory, heading: str, library: str):
    """Those without a library share a process."""
    if library and importlib.util.find_spec(library) is None:
        pytest.skip(f"{heading} is not installed")
    home: Path = acme(tmp_path_factory)
    chosen = [item for item in sections().items() if (item[0] if item[0] in ("PyTorch", "JAX") else "") == heading]
    assert len(chosen) == (1 if library else 5)
    run(home, RUNNER.format(sections=chosen), also=bool(library))
