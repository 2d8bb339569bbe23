"""The docs build into a site without a warning, and every link leads somewhere, there and on a code host."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.project import ROOT, WITHOUT_TORCH

DOCS = ROOT / "docs"
PAGES = [*ROOT.glob("*.md"), *DOCS.glob("*.md"), *ROOT.glob("*/README.md")]

FENCE = re.compile(r"^( *)```.*?^\1```$", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def make_site(sources: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build a site with the configuration of ours; a warning is an error."""
    start = f"{WITHOUT_TORCH}\nfrom sphinx.cmd.build import main; sys.exit(main(sys.argv[1:]))"
    command = [sys.executable, "-c", start, "-q", "-W", "--keep-going", "-c", str(DOCS), str(sources), str(site)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def prose(page: Path) -> str:
    """The text of a page without its blocks of code."""
    return FENCE.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> Iterator[str]:
    """What links call the headings of a page on code hosts: lower case, dashes for blanks, no punctuation."""
    for heading in re.findall(r"^#+ (.*)$", prose(page), re.M):
        yield re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


def test_the_site_builds_without_a_warning_and_has_every_page_and_interface(tmp_path: Path) -> None:
    built = make_site(DOCS, tmp_path)
    assert (built.returncode, built.stderr) == (0, "")
    assert {page.stem for page in DOCS.glob("*.md")} <= {page.stem for page in tmp_path.glob("*.html")}
    shown = "".join(page.read_text(encoding="utf-8") for page in tmp_path.glob("api-*.html"))
    documented = set(re.findall(r'<dt class="sig[^"]*" id="kernelwright\.([\w.]+)"', shown))
    listed = "kernel grid Kernel Variant KernelwrightError cutedsl.Program cuda.Source cuda.Tensor cuda.Scalar"
    listed += " cuda.ceildiv tilelang.Program triton.Program scons.generate build.build_wheel build.build_editable"
    listed += " build.build_sdist backends.base.Backend backends.base.Backend.emit backends.plan.KernelPlan"
    loader = (f"runtime.loader.Loader.{name}" for name in ("manifest", "preload", "set_num_threads", "num_threads"))
    call = (f"runtime.kernel.Kernel.{name}" for name in ("__call__", "variant", "devices", "supported", "function"))
    assert documented >= {*listed.split(), *loader, *call}
    assert "max_regist" in (tmp_path / "searchindex.js").read_text(), "the search knows the text of the pages"
    for address in re.findall(r'(?:src|href)="(\w+://[^"]+)"', (tmp_path / "tutorial.html").read_text()):
        assert not re.search(r"\.(js|css|woff2?)\b", address), "a page loads nothing from elsewhere"


def test_a_link_that_leads_nowhere_is_an_error_of_the_site(tmp_path: Path) -> None:
    links = ["missing.md", "../missing.json", "other.md#no-such-heading", "#nor-such-a-one"]
    text = "".join(f"A [link]({link}).\n\n" for link in links)
    (tmp_path / "index.md").write_text(f"# A page\n\n{text}And [another](other.md#a-heading).\n")
    (tmp_path / "other.md").write_text("---\norphan: true\n---\n# Another\n\n## A heading\n\nText.\n")
    built = make_site(tmp_path, tmp_path / "site")
    assert built.returncode == 1
    for number, link in enumerate(links):
        pattern = rf"index.md:{3 + 2 * number}: WARNING: .*{re.escape(link.removesuffix('.md').rpartition('#')[2])}"
        assert re.search(pattern, built.stderr), built.stderr
    assert built.stderr.count("WARNING") == len(links)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_to_files_and_headings_on_a_code_host(page: Path) -> None:
    for link in LINK.findall(prose(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT) and target.exists(), link
        assert not anchor or anchor in anchors(target), link


@pytest.mark.parametrize("page", sorted(DOCS.glob("*.md")), ids=lambda page: page.name)
def test_a_page_begins_with_who_needs_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    included = re.match(r"```\{include\} (\S+)", text)
    if included and page.stem != "index":
        text = (DOCS / included[1]).read_text(encoding="utf-8")
    if page.stem not in ("index", "changelog"):
        assert re.match(r"# [^\n]+\n\nThis page is for those ", text), "say in the first sentence who needs the page"


def test_the_kernel_of_the_readme_is_that_of_the_tutorial() -> None:
    readme, *_ = re.findall(r"```python\n# kernels/saxpy.py\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "tutorial.md").read_text(), re.S)
    (kernel,) = (block for block in blocks if "def saxpy" in block)
    (reference,) = (block for block in blocks if "@saxpy.reference" in block)
    assert readme == f"{kernel}\n\n{reference}"


def test_the_page_of_the_kernels_lists_each_of_them() -> None:
    page = (ROOT / "kernels/README.md").read_text(encoding="utf-8")
    assert set(re.findall(r"^\| `(\w+)` \|", page, re.M)) == {path.stem for path in ROOT.glob("kernels/[a-z]*.py")}
