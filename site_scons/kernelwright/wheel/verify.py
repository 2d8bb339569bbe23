"""Checks a wheel: that its files are what it says they are, and that it can be passed on.

There are two kinds: a wheel of a package, and one with the device code of one arch of a split package. Run by
``scons wheel`` before a wheel gets into ``dist/``, and by ``kernelwright verify``.
"""

from __future__ import annotations

import base64
import contextlib
import csv
import hashlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from email import message_from_string
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ..compilers.fatbin import fatbin_ranges, images_in
from ..core.arch import CPU_LEVELS, is_ptx, real_arch, without_suffix
from ..core.errors import KernelwrightError, Where, printable, shown
from ..core.private import private_pattern
from ..core.records import Record, decoded
from ..define.package_name import TAKEN, is_importable
from ..package.assemble import provider_package
from ..runtime.loader import DIGEST_LINE
from ..runtime.provider import GROUP
from .archive import ANY, TAG
from .content import listed_images
from .members import Member, list_members, member_problems, open_regular, read_member
from .platform import platform_tag
from .project import REFERENCE, SCRIPT, TAKEN_SCRIPT, extra_of

CUDA = 190
"""ELF's number of NVIDIA's machine code (EM_CUDA)."""

PTX = re.compile(rb"\.version [0-9.]+\s+\.target (sm_[0-9]+[af]?)")
CPU_BUILDS = re.compile(rb"llvm \((x86[a-z0-9-]+(?:, x86[a-z0-9-]+)*)\)")
"""What a library says of itself in messages."""

MANIFEST = "manifest.json"

DESCRIBED = ("METADATA", "WHEEL", "RECORD", "entry_points.txt")
"""Files of the folder ``.dist-info``, besides those of ``licenses``. Others can tell installers to do more."""


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
    files = _read(wheel)
    if isinstance(files, list):
        return files
    if problems := [*_name_problems(wheel, files), *_record_problems(files), *_path_problems(files, private)]:
        return problems
    manifests = _manifests(files)
    if len(manifests) != 1:
        had = f"the manifests {', '.join(manifests)}" if manifests else f"no {MANIFEST}"
        return [f"it has {had}, so it is no wheel of a kernel package"]
    problems = [*_place_problems(manifests[0], files), *_manifest_problems(manifests[0], files)]
    problems += _point_problems(manifests[0], files, own_points)
    return problems or _tag_problems(wheel, files)


def manifest_of(wheel: Path) -> Record:
    """The manifest of a wheel, whatever the name of the file, if the content is what it says.

    Raises:
        KernelwrightError: it is no wheel of a kernel package, or it is damaged.
    """
    files = _read(wheel)
    problems, manifests = (files, []) if isinstance(files, list) else (list(_record_problems(files)), _manifests(files))
    if not problems and len(manifests) != 1:
        problems = [f"it has {len(manifests)} {MANIFEST}, so it is no wheel of a kernel package"]
    if not isinstance(files, list) and not problems:
        problems = list(_manifest_problems(manifests[0], files))
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
    found = [inside for wheel in wheels if (inside := _opened(wheel)) is not None]
    packages, providers = [p for p in found if not p.arch], [p for p in found if p.arch]
    problems = []
    for package in packages:
        own = [provider for provider in providers if (provider.package, provider.version) == package[1:3]]
        problems += [problem for provider in own for problem in _fit_problems(package, provider)]
    return problems


def gaps_of(wheel: Path) -> list[dict[str, Any]]:
    """What a wheel that is right lacks, because its package was built partially.

    Raises:
        KernelwrightError: the file is no wheel, or cannot be read.
    """
    opened = _opened(wheel)
    gaps = opened.manifest.raw.get("missing") if opened else None
    return [gap for gap in gaps if isinstance(gap, dict)] if isinstance(gaps, list) else []


class _Opened(NamedTuple):
    """What a wheel says of itself: its file's name, the package and version that it belongs to, and the arch."""

    wheel: str
    package: str
    version: str
    arch: str
    manifest: Record


def _opened(wheel: Path) -> _Opened | None:
    """What a wheel says of itself; None: it has no manifest, or a damaged one."""
    files = _read(wheel)
    if isinstance(files, list):
        return None
    try:
        (text,) = (files[name] for name in _manifests(files))
        manifest = Record(decoded(text), "")
        arch = manifest.text("arch") if manifest.has("arch") else ""
        described = _fields(files, "METADATA", "Version")
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
    listed = provider.manifest.record("files")
    for image in images:
        if image.file not in listed.raw or listed.record(image.file).text("sha256") != image.sha256:
            yield f"{package.wheel}: {image.file} is not the one in {provider.wheel}: they are of different builds"


def _read(wheel: Path) -> dict[str, bytes] | list[str]:
    """The files of a wheel, or what is wrong with it before their content is looked at."""
    try:
        with open_regular(wheel) as archive:
            members = list_members(archive)
            if problems := [*member_problems(members, os.fstat(archive.fileno()).st_size)]:
                return problems
            return _contents(archive, members)
    except (OSError, ValueError) as error:
        where = Where(stage="verify", location=str(wheel))
        message = f"it cannot be read: {str(error) or type(error).__name__}"
        raise KernelwrightError(message, where, "name a wheel of Kernelwright's, or get it again") from error


def _contents(archive: BinaryIO, members: Sequence[Member]) -> dict[str, bytes] | list[str]:
    """The content of each file, or which are damaged."""
    files, problems = {}, []
    for member in members:
        try:
            files[member.name] = read_member(archive, member)
        except ValueError as error:
            problems.append(f"{member.name} is damaged: {error}")
    return problems or files


def _manifests(files: Mapping[str, bytes]) -> list[str]:
    """The manifests of packages; a licence may have any name."""
    return sorted(name for name in files if name.endswith(f"/{MANIFEST}") and not _is_info(name))


def _is_info(name: str) -> bool:
    """Whether a file describes the wheel, and is not installed into a package."""
    return name.partition("/")[0].endswith(".dist-info")


def _name_problems(wheel: Path, files: Mapping[str, bytes]) -> Iterator[str]:
    """The name of the file, by which pip chooses, says of which project and version the content is.

    https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-name-convention
    """
    try:
        name, version, _, _ = parse_wheel_filename(wheel.name)
    except InvalidWheelFilename:
        yield "its name is not that of a wheel: NAME-VERSION-py3-none-PLATFORM.whl"
        return
    folder = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    folders = sorted({path.partition("/")[0] for path in files if _is_info(path)})
    if folders != [folder]:
        yield f"it has {' and '.join(folders) or 'no folder .dist-info'}, and by its name it should have {folder}"
    for path in sorted(filter(_is_info, files)):
        inside = path.partition("/")[2]
        if inside not in DESCRIBED and not inside.startswith("licenses/"):
            yield f"{path} is no file that the wheel of a kernel package has there"
    for field, named in (("Name", name), ("Version", version)):
        found = _fields(files, "METADATA", field)
        if not found:
            yield f"METADATA has no {field}"
        elif len(found) > 1:
            yield f"METADATA has {len(found)} fields {field}, of which installers read different ones"
        elif _normal(field, found[0]) != named:
            yield f"METADATA has the {field.lower()} {found[0]}, and the name of the wheel has {named}"
    for need in _fields(files, "METADATA", "Requires-Dist"):
        if "@" in need:
            yield f"it depends on {need}, which is at an address and in no index"
    for field in ("Wheel-Version", "Root-Is-Purelib"):
        if len(_fields(files, "WHEEL", field)) != 1:
            yield f"WHEEL does not have one field {field}"


def _normal(field: str, text: str) -> object:
    """The name or the version of a project, so that it can be compared."""
    try:
        return Version(text) if field == "Version" else canonicalize_name(text)
    except InvalidVersion:
        return None


def _record_problems(files: Mapping[str, bytes]) -> Iterator[str]:
    """RECORD has every file and its digest.

    https://packaging.python.org/en/latest/specifications/recording-installed-packages/
    """
    records = [name for name in files if _is_info(name) and name.partition("/")[2] == "RECORD"]
    if len(records) != 1:
        yield f"it has {len(records)} files RECORD, expected one"
        return
    try:
        rows = list(csv.reader(io.StringIO(files[records[0]].decode("utf-8", "replace"))))
    except csv.Error as error:
        yield f"{records[0]} is damaged: {error}"
        return
    expected = {name: [name, *_listed(files[name])] for name in files} | {records[0]: [records[0], "", ""]}
    listed = {row[0]: row for row in rows if row}
    if len(listed) != len(rows):
        yield f"{records[0]} has a file twice, or an empty line"
    for name in sorted(files.keys() - listed.keys()):
        yield f"{name} is not in RECORD"
    for name in sorted(listed.keys() - files.keys()):
        yield f"{printable(name)} is in RECORD, and missing"
    for name in sorted(files.keys() & listed.keys()):
        if listed[name] != expected[name]:
            yield f"{name} is not the file that RECORD lists"


def _listed(content: bytes) -> tuple[str, str]:
    """What RECORD says of a file: its digest and its size."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}", str(len(content))


def _path_problems(files: Mapping[str, bytes], private: Sequence[str]) -> Iterator[str]:
    pattern = private_pattern(private)
    for name, content in sorted(files.items()):
        # What people write about their project is theirs.
        if not _is_info(name) and (found := pattern.search(content)):
            yield f"{name} has a path of the machine that built it: {found[0].decode('utf-8', 'replace')}"


def _place_problems(manifest: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Nothing is installed but the folder of the package and the description of the wheel."""
    folder = manifest.removesuffix(MANIFEST)
    for name in sorted(files):
        if not name.startswith(folder) and not _is_info(name):
            yield f"{name} is outside of {folder}, and would be installed beside the package"
        elif name.endswith((".pyc", ".pth")):
            yield f"{name} is code that Python may run in place of other code, and no file of a kernel package"


def _point_problems(manifest: str, files: Mapping[str, bytes], own: bool) -> Iterator[str]:
    """Entry points have other programs run the code of a wheel, so only those that were asked for are right.

    https://packaging.python.org/en/latest/specifications/entry-points/
    """
    package, group = manifest.removesuffix(f"/{MANIFEST}").replace("/", "."), ""
    for line in _described(files, "entry_points.txt").split("\n"):
        name, _, module = (part.strip() for part in line.partition("="))
        found = REFERENCE.fullmatch(module)
        if heading := re.fullmatch(r"\[([\w.]+)\]", line):
            group = heading[1]
        elif line and (found is None or not line.isprintable() or line != line.strip()):
            yield f"entry_points.txt has the line {shown(line)}, which not every installer understands alike"
        elif line and (group, name, module) != (GROUP, package, package):
            yield from _foreign_point(f"{name} = {module} of the group {group}", module, package, own)


def _foreign_point(point: str, module: str, package: str, own: bool) -> Iterator[str]:
    """What is wrong with an entry point that is not that of device code."""
    name = point.partition(" = ")[0]
    if not SCRIPT.fullmatch(name) or TAKEN_SCRIPT.fullmatch(name):
        yield f"it has the entry point {point}, whose name is a path, or that of a program which environments have"
    elif not f"{module.partition(':')[0]}.".startswith(f"{package}."):
        yield f"it has the entry point {point}, which is not in its package {package}"
    elif not own:
        yield f"it has the entry point {point}: accept those of the package itself with --entry-points"


def _manifest_problems(name: str, files: Mapping[str, bytes]) -> Iterator[str]:
    text = files[name].decode("utf-8", "replace")
    content, _, last = text.rpartition("," + DIGEST_LINE)
    if not content or last.strip("\n }") != json.dumps(hashlib.sha256(content.encode()).hexdigest()):
        yield f"{name} is damaged: its digest does not fit"
        return
    try:
        yield from _package_problems(Record(decoded(text), ""), name.removesuffix(MANIFEST), files)
    except ValueError as error:
        yield f"{name} is not a manifest: {error}"


def _package_problems(document: Record, folder: str, files: Mapping[str, bytes]) -> Iterator[str]:
    source = document.record("source")
    _ = source.text("commit"), source.flag("dirty")
    yield from _package_name_problems(document, folder)
    yield from _file_problems(document, folder, files)
    if document.has("arch"):
        yield from _provider_problems(document, folder, files)
        return
    inside = document.has("device_code") and not document.record("device_code").record("packages").raw
    if inside:
        yield from _image_problems(document, folder, files)
    elif document.has("device_code"):
        yield from _split_problems(document, files)
    exact = document.has("compress")
    kernels, libraries = document.record("kernels"), set[str]()
    for name in kernels.raw:
        kernel = kernels.record(name)
        if kernel.has("library") and kernel.text("library") in libraries:
            yield f"kernel {name} has the library of another kernel"
            return
        libraries |= {kernel.text("library")} if kernel.has("library") else set()
        library = files.get(folder + kernel.text("library"), b"") if kernel.has("library") else b""
        if kernel.has("launcher") and Path(kernel.text("launcher")).name.encode() not in library:
            yield f"kernel {name} was not linked with {kernel.text('launcher')}, which the manifest lists"
        claimed = {arch for variant in kernel.records("variants") for arch in variant.texts("archs")}
        if any(variant.has("exported") for variant in kernel.records("variants")):
            yield from _own_code_problems(name, claimed, library)
            continue
        if document.has("device_code"):
            claimed = {arch for arch in claimed if arch in CPU_LEVELS}
        yield from _arch_problems(name, claimed, library, exact)


def _own_code_problems(kernel: str, claimed: set[str], library: bytes) -> Iterator[str]:
    """As :func:`_arch_problems`, of a library whose sources have host code of their own, and need no device code.

    nvcc puts it into fatbins, which such a library holds in any package.
    """
    with contextlib.suppress(ValueError):  # damaged code is found below
        if not list(device_archs(library)):
            return
    yield from _arch_problems(kernel, claimed, library, exact=True)


def _package_name_problems(document: Record, folder: str) -> Iterator[str]:
    """The folder is that of the package which the manifest is about, and no other package is replaced."""
    package = document.text("package")
    own = provider_package(package, document.text("arch")) if document.has("arch") else package
    if folder != f"{own.replace('.', '/')}/":
        yield f"{folder}{MANIFEST} is about the package {own}, which is in another folder"
    if folder.partition("/")[0] in TAKEN or not is_importable(folder.rstrip("/").replace("/", ".")):
        yield f"{folder} would take the place of something else that programs import, or cannot be imported"


def _file_problems(document: Record, folder: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """The files are those that the manifest lists."""
    listed = document.record("files")
    for path in sorted(listed.raw):
        content = files.get(folder + path)
        if content is None:
            yield f"{folder}{path} is in the manifest, and missing"
        elif hashlib.sha256(content).hexdigest() != listed.record(path).text("sha256"):
            yield f"{folder}{path} is not the file that the manifest lists"
    extra = {name.removeprefix(folder) for name in files if name.startswith(folder)} - listed.raw.keys() - {MANIFEST}
    for path in sorted(extra):
        yield f"{folder}{path} is not in the manifest"


def _provider_problems(document: Record, folder: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Every file of device code is for the arch that the wheel is for, and the wheel can be found and is pinned."""
    arch, version = document.text("arch"), document.text("version")
    for path in sorted(document.record("files").raw):
        if not path.endswith((".py", ".pyi")):
            exact = path.endswith(".fatbin")
            try:
                found = set(device_archs(files.get(folder + path, b"")))
            except ValueError as error:
                yield f"{folder}{path} is damaged: {error}"
                continue
            if found != {_claim(arch, exact)}:
                has = ", ".join(sorted(found)) or "no arch"
                yield f"{folder}{path} has code for {has}, and the wheel is for {arch}"
    package = folder.rstrip("/").replace("/", ".")
    points = _described(files, "entry_points.txt").splitlines()
    if f"[{GROUP}]" not in points or f"{package} = {package}" not in points:
        yield f"it has no entry point {package} in the group {GROUP}, so its device code would not be found"
    needs = _fields(files, "METADATA", "Requires-Dist")
    if not any(re.fullmatch(rf"\S+=={re.escape(version)}", need) for need in needs):
        yield f"it does not depend on version {version} of {document.text('package')}, to which it belongs"


def _image_problems(document: Record, folder: str, files: Mapping[str, bytes]) -> Iterator[str]:
    """Every file of device code is there, and for the arch that the manifest says."""
    place = document.record("device_code").text("folder")
    for image in listed_images(document):
        name, exact = f"{folder}{place}/{image.file}", image.file.endswith(".fatbin")
        try:
            found = set(device_archs(files.get(name, b"")))
        except ValueError as error:
            yield f"{name} is damaged: {error}"
            continue
        if found != {_claim(image.arch, exact)}:
            yield f"{name} has code for {', '.join(sorted(found)) or 'no arch'}, and the manifest says {image.arch}"


def _split_problems(document: Record, files: Mapping[str, bytes]) -> Iterator[str]:
    """A package without device code says where to get that of each arch, and has extras that do."""
    place = document.record("device_code")
    version, packages, wheels = place.text("version"), place.record("packages"), place.record("wheels")
    needs, extras = (_fields(files, "METADATA", field) for field in ("Requires-Dist", "Provides-Extra"))
    for arch in sorted({image.arch for image in listed_images(document)}):
        _ = packages.text(arch)
        extra = extra_of(arch)
        pin = f'{wheels.text(arch)}=={version}; extra == "{extra}"'
        if extra not in extras or pin not in needs:
            yield f"it has no extra {extra} that installs {wheels.text(arch)}=={version}, which has its code for {arch}"


def _described(files: Mapping[str, bytes], name: str) -> str:
    """A file of the folder .dist-info; empty: there is none."""
    found = (content for path, content in files.items() if _is_info(path) and path.partition("/")[2] == name)
    return next(found, b"").decode("utf-8", "replace")


def _fields(files: Mapping[str, bytes], name: str, field: str) -> list[str]:
    """The values of a field in METADATA or WHEEL, read as installers do: any case, nothing behind a blank line."""
    return [str(value) for value in message_from_string(_described(files, name)).get_all(field, [])]


def _claim(arch: str, exact: bool) -> str:
    """An arch as :func:`device_archs` has it; only fatbins tell ``sm_90a`` from ``sm_90``."""
    named = real_arch(arch if exact else without_suffix(arch))
    return f"ptx {named}" if is_ptx(arch) else named


def _arch_problems(kernel: str, claimed: set[str], library: bytes, exact: bool = False) -> Iterator[str]:
    """The code in a library is for the archs that the manifest says, and for no others.

    Arguments:
        exact: the device code is in fatbins.
    """
    wanted = {_claim(arch, exact) for arch in claimed if arch not in CPU_LEVELS}
    try:
        found = set(device_archs(library))
    except ValueError as error:
        yield f"kernel {kernel} has damaged device code: {error}"
        return
    for arch in sorted(wanted - found):
        yield f"kernel {kernel} has no device code for {arch}, which the manifest lists"
    for arch in sorted(found - wanted):
        yield f"kernel {kernel} has device code for {arch}, which the manifest does not list"
    built = CPU_BUILDS.search(library)
    levels = set(built[1].decode().split(", ")) if built else set()
    for level in sorted(levels ^ {arch for arch in claimed if arch in CPU_LEVELS}):
        yield f"kernel {kernel} {'has' if level in levels else 'lacks'} code for {level}, unlike the manifest"


def device_archs(data: bytes) -> Iterator[str]:
    """The archs of the device code in a library or another file: ``sm_90`` for a cubin, ``ptx sm_80`` for PTX.

    A cubin does not tell sm_90 from sm_90a: the number is all that the flags of its header have. A fatbin does. What is
    in a fatbin must be for the same arch as the fatbin says, as far as this Python can decompress it.

    Raises:
        ValueError: a fatbin is damaged, or has other code in it than its header says.
    """
    begin = 0
    for start, end in fatbin_ranges(data):
        yield from _bare_archs(data[begin:start])
        for image in images_in(data[start:end]):
            inside = set(_bare_archs(image.content)) if image.content is not None else None
            if inside is not None and inside != {_claim(image.arch, False)}:
                raise ValueError(f"a fatbin for {image.arch} has code for {', '.join(inside) or 'no arch'} in it")
            yield _claim(image.arch, True)
        begin = end
    yield from _bare_archs(data[begin:])


def _bare_archs(data: bytes) -> Iterator[str]:
    """The archs of cubins and PTX that are in no fatbin."""
    for match in re.finditer(rb"\x7fELF\x02\x01", data):
        header = data[match.start() : match.start() + 64]
        if int.from_bytes(header[18:20], "little") == CUDA:
            flags = int.from_bytes(header[48:52], "little")
            # The ABI of CUDA 13 has the number in the second byte, older ones in the first.
            yield f"sm_{flags >> 8 & 0xFF if header[8] >= 8 else flags & 0xFF}"
    for target in PTX.finditer(data):
        yield f"ptx {without_suffix(target[1].decode())}"


def _tag_problems(wheel: Path, files: Mapping[str, bytes]) -> list[str]:
    python, tag = re.split(r"-(?=[^-]+$)", wheel.name.removesuffix(".whl"))
    inside = [tag.rpartition("-")[2] for tag in _fields(files, "WHEEL", "Tag")]
    if not python.endswith(f"-{TAG}"):
        return [f"its name is not for {TAG}, as those of kernel packages are, which know nothing of Python"]
    if tag == ANY:
        return _any_problems(inside, files)
    try:
        needed = platform_tag(wheel)
    except KernelwrightError as error:
        return [error.message]
    problems = [] if inside == [tag] else [f"WHEEL has the tags {inside}, the name has {tag}"]
    if _glibc(tag) is None or _glibc(needed) is None or _glibc(tag) < _glibc(needed):
        problems.append(f"its libraries need {needed}, its name says {tag}")
    return problems


def _any_problems(inside: list[str], files: Mapping[str, bytes]) -> list[str]:
    """The tag ``any`` is right for device code, which any machine can install, and for nothing that runs on a CPU."""
    problems = [] if inside == [ANY] else [f"WHEEL has the tags {inside}, the name has {ANY}"]
    if _fields(files, "WHEEL", "Root-Is-Purelib") != ["true"]:
        problems.append("WHEEL says that it is for a platform, and its name says any")
    for name, content in sorted(files.items()):
        if content.startswith(b"\x7fELF") and int.from_bytes(content[18:20], "little") != CUDA:
            problems.append(f"{name} is code for a CPU, and the name of the wheel says any platform")
    return problems


def _glibc(tag: str) -> Any:
    match = re.fullmatch(r"manylinux_(\d+)_(\d+)_x86_64", tag)
    return (int(match[1]), int(match[2])) if match else None
