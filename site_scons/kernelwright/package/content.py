"""What wheels hold of a built package: the files that its manifest lists, and the manifest with their origin.

The device code of a split package is in wheels of its own, each with a package of files and a manifest.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..core.errors import KernelwrightError, Where
from ..core.records import Record, decoded, read_json
from ..core.version import VERSION
from ..runtime.arch import version_text
from ..runtime.loader import SCHEMA
from .assemble import provider_package
from .device_code import drivers_of
from .images import IMAGES, Image, kept_images, listed_images
from .manifest import listed, sealed_document
from .project import Project, distribution_of
from .source import Source
from .wheel_variants import Group

REMEDY = "run scons again; if that does not help, remove the build folder"

PROVIDER_INIT = (
    '"""The device code of {package} for {arch}. There is nothing to import: {package} reads the files."""\n'
)


@dataclass(frozen=True)
class BuiltFiles:
    """What wheels are made of.

    Arguments:
        folder: the package's folder.
        name: its import name.
        manifest: the text of its manifest.
        digests: path relative to the package -> SHA-256.
        images: the device code of a split package.
        head: what the manifest says of the device code of a split package; empty: it is not split.
        is_partial: whether it was built partially, and lacks something.
        licenses: what of others is in it, as the manifest says it.
    """

    folder: Path
    name: str
    manifest: str
    digests: Mapping[str, str]
    images: Sequence[Image]
    head: Mapping[str, Any] = field(default_factory=dict)
    is_partial: bool = False
    licenses: Sequence[Mapping[str, str]] = ()


def read_built(folder: Path, name: str) -> BuiltFiles:
    """What was built of a package.

    Arguments:
        folder: the package's folder.
        name: its import name.

    Raises:
        KernelwrightError: the package is not built.
    """
    path = folder / "manifest.json"
    digests, images, head, is_partial = read_json(path, _contents, REMEDY)
    text = path.read_text(encoding="utf-8")
    if not any(path.startswith(("_lib/", IMAGES)) for path in digests):
        where = Where(stage="wheel", location=str(path))
        raise KernelwrightError(f"the package {name} has no built kernel", where, "build at least one for some target")
    more = {"head": head, "is_partial": is_partial, "licenses": decoded(text).get("licenses", [])}
    return BuiltFiles(folder, name, text, digests, tuple(images), **more)


def package_files(built: BuiltFiles, project: Project, source: Source) -> dict[str, bytes]:
    """The files of a package, by their path in a wheel.

    Arguments:
        built: the package.
        project: what its wheel says of itself.
        source: where it was built from; the manifest in the wheel says so.

    Raises:
        KernelwrightError: a file is not the one that the manifest lists.
    """
    inside = built.name.replace(".", "/")
    files = {f"{inside}/{path}": _verified(built.folder / path, digest) for path, digest in built.digests.items()}
    text = with_source(built.manifest, source, _placed(built, project))
    return {**files, f"{inside}/manifest.json": text.encode()}


def variant_files(
    built: BuiltFiles, project: Project, source: Source, label: str, group: Group | None
) -> dict[str, bytes]:
    """The files of a wheel variant: those of the package, with the device code for one group of GPUs.

    Arguments:
        built, project, source: as for :func:`package_files`.
        label: that of the variant.
        group: the GPUs that it is for; None: all machines that no other variant is for.

    Raises:
        KernelwrightError: no kernel has code for the group, or a file is not the one that the manifest lists.
    """
    document = decoded(built.manifest.encode())
    kept = kept_images(Record(document, ""), group)
    if group and not any(group.has(image.arch) for image in kept.values()):
        where = Where(stage="wheel", location=str(built.folder / "manifest.json"))
        message = f"no kernel has device code of its own for sm_{group.first}, and its wheel would be as another one"
        remedy = "remove it from archs, or from kernels what keeps it out, such as their own lists of archs or sources"
        raise KernelwrightError(message, where, remedy)
    files = {path: said for path, said in document["files"].items() if not path.startswith(IMAGES) or path in kept}
    place = {**document["device_code"], "label": label, "name": project.distribution, "version": project.version}
    text = with_source(sealed_document({**document, "files": files, "device_code": place}), source)
    inside = built.name.replace(".", "/")
    digests = {path: said["sha256"] for path, said in files.items()}
    content = {f"{inside}/{path}": _verified(built.folder / path, digest) for path, digest in digests.items()}
    return {**content, f"{inside}/manifest.json": text.encode()}


def _with_code_in_libraries(built: BuiltFiles, arch: str) -> list[str]:
    """The kernels of a split package that have code for an arch in libraries of their sources, and not in images."""
    kernels = Record(decoded(built.manifest.encode()), "").members("kernels")
    having = ("source_libraries", "operators")
    return [
        name
        for name, kernel in kernels
        if any(map(kernel.has, having))
        and any(arch in variant.texts("archs") for variant in kernel.records("variants"))
    ]


def provider_files(built: BuiltFiles, project: Project, source: Source, arch: str) -> dict[str, bytes]:
    """The files with the device code of one arch, by their path in a wheel.

    Raises:
        KernelwrightError: no kernel has code for the arch, or a file is not the one that the manifest lists.
    """
    where = Where(stage="wheel", location=str(built.folder / "manifest.json"))
    images = [image for image in built.images if image.arch == arch]
    if not images and (own := _with_code_in_libraries(built, arch)):
        message = (
            f"all code for {arch} is in libraries of sources with host code of their own, those of {', '.join(own)}"
        )
        remedy = 'write split = "none", or put kernels without such sources into a package that is split'
        raise KernelwrightError(
            f"{message}; these stay in the wheel of the package, and that for {arch} would be empty", where, remedy
        )
    if not images:
        remedy = "remove it from archs, or from the kernels' own lists of archs what keeps it out"
        raise KernelwrightError(f"no kernel is built for {arch}, and its wheel would be empty", where, remedy)
    work = built.folder / built.head["folder"]
    content = {"__init__.py": PROVIDER_INIT.format(package=built.name, arch=arch).encode()}
    content |= {image.file: _verified((work / image.file).resolve(), image.sha256) for image in images}
    manifest = {
        "schema": SCHEMA,
        "package": built.name,
        "arch": arch,
        "version": project.version,
        "driver": version_text(max((d for data in content.values() for d in drivers_of(data).values()), default=0)),
        "kernelwright": VERSION,
        "licenses": list(built.licenses),
        "source": source.as_json(),
        "files": {name: listed(data) for name, data in sorted(content.items())},
    }
    content["manifest.json"] = sealed_document(manifest).encode()
    inside = provider_package(built.name, arch).replace(".", "/")
    return {f"{inside}/{name}": data for name, data in content.items()}


def with_source(manifest: str, source: Source, device_code: Mapping[str, Any] | None = None) -> str:
    """The text of a manifest that also says where its sources come from and, if it is split, its device code."""
    document: dict[str, Any] = {}
    for key, value in decoded(manifest).items():
        if key == "tools":
            document["source"] = source.as_json()
        document[key] = device_code if key == "device_code" and device_code else value
    return sealed_document(document)


def _placed(built: BuiltFiles, project: Project) -> dict[str, Any]:
    """What the manifest in a wheel says of device code that is in other wheels; empty: it is in this one."""
    if not built.head:
        return {}
    packages = built.head["packages"]
    wheels = {arch: distribution_of(project.distribution, arch) for arch in packages}
    return {"name": project.distribution, "version": project.version, "packages": packages, "wheels": wheels}


def _contents(document: Record) -> tuple[dict[str, str], list[Image], dict[str, Any], bool]:
    files = document.record("files")
    digests, is_partial = {name: files.record(name).text("sha256") for name in files.raw}, document.has("missing")
    if not document.has("device_code") or not document.record("device_code").record("packages").raw:
        return digests, [], {}, is_partial  # libraries hold it, or the package has it in files of its own
    head = document.record("device_code")
    packages = head.record("packages")
    named = {arch: packages.text(arch) for arch in packages.raw}
    return digests, list(listed_images(document)), {"folder": head.text("folder"), "packages": named}, is_partial


def _verified(path: Path, digest: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        where = Where(stage="wheel", location=str(path))
        raise KernelwrightError(f"it cannot be read: {error.strerror}", where, REMEDY) from error
    if hashlib.sha256(content).hexdigest() != digest:
        where = Where(stage="wheel", location=str(path))
        raise KernelwrightError("it is not the file that the manifest lists", where, REMEDY)
    return content
