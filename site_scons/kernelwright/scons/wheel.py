"""``scons wheel``: the nodes of a package's wheel, and its way into ``dist/``."""

from __future__ import annotations

import os
import shutil
import sys
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import KernelwrightError, Where
from ..files import SCRATCH, make_way, pretty_json, sha256_of
from ..memory import parse_size
from ..records import read_json
from ..version import VERSION
from ..wheel import WHEEL_LIST
from ..wheel.sizes import KernelSize, kernel_sizes, size_table
from .stage import Stage

if TYPE_CHECKING:
    from .graph import PackageGraph

NAME = "wheel"

WRITERS = ("auditwheel", "packaging", "pyproject-metadata", "wheel")
"""Distributions that decide what a wheel's bytes are."""


def add_wheel(graph: PackageGraph, package: list[Any]) -> Any:
    """Add a package's wheel to the alias ``wheel``; the alias is returned.

    Arguments:
        package: the nodes of the package's generated files.
    """
    stage = _stage(graph, next(node for node in package if node.name == "manifest.json"))
    dist = graph.run.top / "dist"

    def publish(target: Any, source: Any, env: Any) -> None:
        wheel, record = (Path(node.get_abspath()) for node in stage.nodes)
        put_into(dist, wheel, record, graph)

    return graph.env.AlwaysBuild(graph.env.Alias(NAME, stage.nodes, env_action(graph, publish)))


def env_action(graph: PackageGraph, function: Any) -> Any:
    """An action that shows no line of its own."""
    return graph.env.Action(function, lambda target, source, env: None)


def put_into(dist: Path, wheel: Path, record: Path, graph: PackageGraph) -> None:
    """Copy a finished wheel to where users look for it, unless it is there."""
    name = read_json(record, lambda document: document.text("name"), "run scons again")
    target = dist / name
    if not target.is_file() or sha256_of(target) != sha256_of(wheel):
        dist.mkdir(exist_ok=True)
        make_way(target)
        part = dist / f"{SCRATCH}{os.getpid()}-{name}"
        try:
            shutil.copyfile(wheel, part)
            part.replace(target)
        finally:
            part.unlink(missing_ok=True)
    if listed := os.environ.get(WHEEL_LIST):
        with Path(listed).open("a") as stream:
            stream.write(f"{target}\n")
    for line in size_table(_sizes(graph)):
        graph.run.progress.note(f"  {line}")
    graph.run.progress.note(f"kernelwright: dist/{name} ({wheel.stat().st_size:,} bytes)")


def _sizes(graph: PackageGraph) -> list[KernelSize]:
    return kernel_sizes(Path(graph.folder.get_abspath()), Path(graph.work.get_abspath()))


def _require_size(wheel: Path, graph: PackageGraph, where: Where) -> None:
    """Raise a KernelwrightError if a wheel is larger than the settings allow."""
    limit, size = graph.settings.max_wheel_size, wheel.stat().st_size
    if limit and size > parse_size(limit) * 1024:
        largest = ", ".join(f"{kernel.name} ({kernel.library:,} bytes)" for kernel in _sizes(graph)[:3])
        message = f"the wheel has {size:,} bytes, and max_wheel_size is {limit}"
        raise KernelwrightError(message, where, f"build fewer archs or variants; the largest kernels are {largest}")


def _stage(graph: PackageGraph, manifest: Any) -> Stage:
    from ..settings import read_document
    from ..wheel.platform import require_platform
    from ..wheel.project import read_project
    from ..wheel.source import find_source

    require_platform()
    top, name = graph.run.top, graph.settings.package
    project = read_project(top, read_document(top / "pyproject.toml"))
    source = find_source(top)
    where = Where(stage=NAME)

    def make(scratch: Path) -> None:
        from ..wheel.archive import wheel_name, write_wheel
        from ..wheel.content import package_files
        from ..wheel.platform import UNTAGGED, platform_tag
        from ..wheel.verify import verify_wheel

        files = package_files(Path(graph.folder.get_abspath()), name, source)
        draft = scratch / wheel_name(project, UNTAGGED)
        write_wheel(draft, project, files, UNTAGGED, source.time)
        tag = platform_tag(draft)
        final = scratch / wheel_name(project, tag)
        write_wheel(final, project, files, tag, source.time)
        problems = verify_wheel(final, [str(top), sys.prefix, os.path.expanduser("~")])  # noqa: PTH111
        if problems:
            remedy = "report this as a defect of Kernelwright, or mend what the definitions put into their code"
            raise KernelwrightError(f"the wheel is not right: {'; '.join(problems)}", where, remedy)
        _require_size(final, graph, where)
        (scratch / "wheel.json").write_text(pretty_json({"name": final.name}), encoding="utf-8")
        final.rename(scratch / "package.whl")

    options = {
        "limit": graph.settings.max_wheel_size,
        "package": name,
        "version": project.version,
        "metadata": project.metadata.decode("utf-8", "replace"),
        "source": [source.commit, source.dirty, source.time],
        "writers": [VERSION, *(f"{writer} {version(writer)}" for writer in WRITERS)],
    }
    folder = graph.wheels.Dir(name)
    targets = {file: folder.File(file) for file in ("package.whl", "wheel.json")}
    sources = [manifest, *(graph.env.File(f"#{file}") for file in project.files)]
    return graph.node(Stage("WHEEL", project.name, where, options, make, targets, sources, cacheable=False))
