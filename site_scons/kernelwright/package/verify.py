"""Checks a wheel: that its files are what it says they are, and that it can be passed on.

There are two kinds: a wheel of a package, and one with the device code of one arch of a split package. Run by
``scons wheel`` before a wheel gets into ``dist/``, and by ``kernelwright verify``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..core.errors import KernelwrightError, Where
from ..core.private import private_pattern
from ..core.records import Record, decoded
from .archive import ANY
from .described import fields, is_info, name_problems, platform_of, point_problems, record_problems
from .device_code import is_for_cpu
from .images import listed_images
from .manifest import linked_libraries
from .members import files_of
from .package_files import MANIFEST, content_of, file_problems, package_problems
from .platform import platform_tag
from .variant_checks import misfits, variant_problems


def verify_wheel(wheel: Path, private: Sequence[str] = (), own_points: bool = False) -> list[str]:
    """What is wrong with a wheel, a line for each; nothing, if all is well.

    Nothing is unpacked before names, types and sizes are right, and nothing is understood before the digests are.

    Arguments:
        wheel: the file.
        private: further folders that no file may name, such as that of the project.
        own_points: whether it may have entry points, such as commands, that refer to its own package.

    Raises:
        KernelwrightError: the file is no wheel, or cannot be read.
    """
    files = files_of(wheel)
    if isinstance(files, list):
        return files
    if problems := [*name_problems(wheel, files), *record_problems(files), *_path_problems(files, private)]:
        return problems
    manifests = _manifests(files)
    if len(manifests) != 1:
        had = f"the manifests {', '.join(manifests)}" if manifests else f"no {MANIFEST}"
        return [f"it has {had}, so it is no wheel of a kernel package"]
    problems = [*_place_problems(manifests[0], files), *_manifest_problems(manifests[0], files, whole=True)]
    problems += point_problems(manifests[0], files, own_points)
    problems = problems or list(variant_problems(wheel, files, Record(decoded(files[manifests[0]]), "")))
    return problems or list(_tag_problems(wheel, files))


def manifest_of(wheel: Path) -> Record:
    """The manifest of a wheel, whatever the name of the file, if the content is what it says.

    Raises:
        KernelwrightError: it is no wheel of a kernel package, or it is damaged.
    """
    files = files_of(wheel)
    problems, manifests = (files, []) if isinstance(files, list) else (list(record_problems(files)), _manifests(files))
    if not problems and len(manifests) != 1:
        problems = [f"it has {len(manifests)} {MANIFEST}, so it is no wheel of a kernel package"]
    if not isinstance(files, list) and not problems:
        problems = list(_manifest_problems(manifests[0], files, whole=False))
    if isinstance(files, list) or problems:
        more = f", and {len(problems) - 1} problems more" if len(problems) > 1 else ""
        where = Where(stage="verify", location=str(wheel))
        raise KernelwrightError(f"{problems[0]}{more}", where, "get the wheel again; kernelwright verify lists all")
    return Record(decoded(files[manifests[0]]), "")


def verify_together(wheels: Sequence[Path]) -> list[str]:
    """What does not fit among wheels that are right by themselves: packages, and the device code that belongs to them.

    Arguments:
        wheels: any; those of other packages or versions have nothing to do with each other.

    Raises:
        KernelwrightError: a file is no wheel, or cannot be read.
    """
    opened = {wheel: inside for wheel in wheels if (inside := _opened(wheel)) is not None}
    contents = list(opened.values())
    packages, providers = [p for p in contents if not p.arch], [p for p in contents if p.arch]
    problems = []
    for package in packages:
        own = [provider for provider in providers if (provider.package, provider.version) == package[1:3]]
        problems += [problem for provider in own for problem in _fit_problems(package, provider)]
    return [*problems, *misfits({wheel: inside.manifest for wheel, inside in opened.items() if not inside.arch})]


def gaps_of(wheel: Path) -> list[dict[str, Any]]:
    """What a wheel that is right lacks, because its package was built partially.

    Raises:
        KernelwrightError: the file is no wheel, or cannot be read.
    """
    opened = _opened(wheel)
    gaps = opened.manifest.raw.get("missing") if opened else None
    return [gap for gap in gaps if isinstance(gap, dict)] if isinstance(gaps, list) else []


def debug_builds(manifest: Record) -> dict[str, list[str]]:
    """The kernels of a wheel that is right which were built for debuggers, by their level of ``debug``."""
    found: dict[str, list[str]] = {}
    for name, kernel in manifest.members("kernels") if manifest.has("kernels") else ():
        if kernel.has("debug"):
            found.setdefault(kernel.text("debug"), []).append(name)
    return found


class _Opened(NamedTuple):
    """What a wheel says of itself: its file's name, the package and version that it belongs to, and the arch."""

    wheel: str
    package: str
    version: str
    arch: str
    manifest: Record


def _opened(wheel: Path) -> _Opened | None:
    """What a wheel says of itself; None: it has no manifest, or a damaged one."""
    files = files_of(wheel)
    if isinstance(files, list):
        return None
    try:
        (text,) = (files[name] for name in _manifests(files))
        manifest = Record(decoded(text), "")
        arch = manifest.text("arch") if manifest.has("arch") else ""
        described = fields(files, "METADATA", "Version")
        version = described[0] if described and not arch else manifest.text("version")
        return _Opened(wheel.name, manifest.text("package"), version, arch, manifest)
    except ValueError:
        return None


def _fit_problems(package: _Opened, provider: _Opened) -> Iterator[str]:
    """Compare the device code that a package lists with that in one wheel; other wheels may be missing."""
    has_images = package.manifest.has("device_code")
    images = [i for i in (listed_images(package.manifest) if has_images else ()) if i.arch == provider.arch]
    if not has_images:
        yield f"{provider.wheel} is of another build: {package.wheel} has all of its device code in itself"
    elif not images:
        yield f"{provider.wheel} is of another build: {package.wheel} lists no device code for {provider.arch}"
    files = provider.manifest.record("files")
    for image in images:
        if files.raw.get(image.file) != {"sha256": image.sha256, "size": image.size}:
            yield f"{package.wheel}: {image.file} is not the one in {provider.wheel}: they are of different builds"


def _manifests(files: Mapping[str, bytes]) -> list[str]:
    """The manifests of packages; a licence may have any name."""
    return sorted(name for name in files if name.endswith(f"/{MANIFEST}") and not is_info(name))


def _path_problems(files: Mapping[str, bytes], private: Sequence[str]) -> Iterator[str]:
    pattern = private_pattern(private)
    for name, content in sorted(files.items()):
        # What people write about their project is theirs.
        if not is_info(name) and (match := pattern.search(content)):
            yield f"{name} has a path of the machine that built it: {match[0].decode('utf-8', 'replace')}"


def _place_problems(manifest: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Nothing is installed but the folder of the package and the description of the wheel."""
    folder = manifest.removesuffix(MANIFEST)
    for name in sorted(files):
        if not name.startswith(folder) and not is_info(name):
            yield f"{name} is outside of {folder}, and would be installed beside the package"
        elif name.endswith((".pyc", ".pth")):
            yield f"{name} is code that Python may run in place of other code, and no file of a kernel package"


def _manifest_problems(name: str, files: Mapping[str, bytes], whole: bool) -> Iterator[str]:
    """What is wrong with a manifest and the files that it lists; ``whole``: also with what it says of them."""
    try:
        content = content_of(name, files)
        problems = list(file_problems(content))
        yield from problems or (package_problems(content) if whole else ())
    except ValueError as error:
        yield f"{name} is no manifest of a build: {error}"


def _tag_problems(wheel: Path, files: Mapping[str, bytes]) -> Iterator[str]:
    """The name promises no older system than the libraries need."""
    tag = platform_of(wheel)
    libraries = [name for name, content in sorted(files.items()) if is_for_cpu(content)]
    if tag == ANY:
        yield from (f"{name} is code for a CPU, and the name of the wheel says any platform" for name in libraries)
        return
    if not libraries:
        yield f"it has no code for a CPU, and its name says {tag}"
        return
    try:
        family = content_of(_manifests(files)[0], files).family
        needed = platform_tag(wheel, family, linked_libraries(decoded(files[_manifests(files)[0]])))
    except KernelwrightError as error:
        yield error.message
        return
    if _glibc(tag, family) is None or _glibc(needed, family) is None or _glibc(tag, family) < _glibc(needed, family):
        yield f"its libraries need {needed}, its name says {tag}"


def _glibc(tag: str, family: str) -> Any:
    match = re.fullmatch(rf"manylinux_(\d+)_(\d+)_{family}", tag)
    return (int(match[1]), int(match[2])) if match else None
