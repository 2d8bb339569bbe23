"""What a wheel says of itself to installers: its name, METADATA, WHEEL, RECORD and entry points.

A field that installers read in different ways, or refuse, is one that no build writes.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
from collections.abc import Iterator, Mapping
from email import message_from_string
from pathlib import Path

from packaging.metadata import ExceptionGroup, Metadata
from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from ..core.errors import printable, shown
from ..runtime.provider import GROUP
from .archive import ANY, TAG
from .project import REFERENCE, SCRIPT, TAKEN_SCRIPT
from .sbom import FILE
from .wheel_variants import INFO_FILE, without_label

DESCRIBED = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", INFO_FILE)
"""Files of the folder ``.dist-info``, besides those of ``licenses``. Others can tell installers to do more."""

LICENSES = "licenses/"

WHEEL_FIELDS = {"wheel-version": "1.0", "generator": None, "root-is-purelib": None, "tag": None, "build": None}
"""The fields of WHEEL -> their only value."""

NAMED = re.compile(rf"[^-]+-[^-]+(?:-(?P<build>\d[^-]*))?-{TAG}-(?P<platform>[^-]+)\.whl")
"""How the wheel of a kernel package is called."""


def is_info(name: str) -> bool:
    """Whether a file describes the wheel, and is not installed into a package."""
    return name.partition("/")[0].endswith(".dist-info")


def described(files: Mapping[str, bytes], name: str) -> str:
    """A file of the folder .dist-info; empty: there is none."""
    contents = (content for path, content in files.items() if is_info(path) and path.partition("/")[2] == name)
    return next(contents, b"").decode("utf-8", "replace")


def fields(files: Mapping[str, bytes], name: str, field: str) -> list[str]:
    """The values of a field in METADATA or WHEEL, read as installers do: any case, nothing behind a blank line."""
    return [str(value) for value in message_from_string(described(files, name)).get_all(field, [])]


def platform_of(wheel: Path) -> str:
    """The platform tag in the name of a wheel; empty: it is not called as the wheel of a kernel package is."""
    match = NAMED.fullmatch(without_label(wheel.name))
    return match["platform"] if match else ""


def name_problems(wheel: Path, files: Mapping[str, bytes]) -> Iterator[str]:
    """The name of the file, by which pip chooses, says of which project and version the content is.

    https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-name-convention
    """
    try:
        name, version, _, _ = parse_wheel_filename(without_label(wheel.name))
    except InvalidWheelFilename:
        yield "its name is not that of a wheel: NAME-VERSION-py3-none-PLATFORM.whl"
        return
    folder = "-".join(wheel.name.split("-")[:2]) + ".dist-info"
    folders = sorted({path.partition("/")[0] for path in files if is_info(path)})
    if folders != [folder]:
        yield f"it has {' and '.join(folders) or 'no folder .dist-info'}, and by its name it should have {folder}"
    inside = {path: path.partition("/")[2] for path in sorted(filter(is_info, files))}
    for path, name_inside in inside.items():
        if name_inside not in (*DESCRIBED, FILE) and not name_inside.startswith(LICENSES):
            yield f"{path} is no file that the wheel of a kernel package has there"
        elif name_inside in DESCRIBED and not _is_text(files[path]):
            yield f"{path} is no text in UTF-8"
    for field, named in (("Name", name), ("Version", version)):
        values = fields(files, "METADATA", field)
        if not values:
            yield f"METADATA has no {field}"
        elif len(values) > 1:
            yield f"METADATA has {len(values)} fields {field}, of which installers read different ones"
        elif _normal(field, values[0]) != named:
            yield f"METADATA has the {field.lower()} {values[0]}, and the name of the wheel has {named}"
    yield from _metadata_problems(files, {n.removeprefix(LICENSES) for n in inside.values() if n.startswith(LICENSES)})
    yield from _wheel_problems(wheel, files)


def _metadata_problems(files: Mapping[str, bytes], licenses: set[str]) -> Iterator[str]:
    """What is wrong with METADATA besides name and version.

    https://packaging.python.org/en/latest/specifications/core-metadata/
    """
    for need in fields(files, "METADATA", "Requires-Dist"):
        if "@" in need:
            yield f"it depends on {need}, which is at an address and in no index"
    if licenses != {*fields(files, "METADATA", "License-File")}:
        yield f"METADATA lists other licences than those that are there: {', '.join(sorted(licenses)) or 'none'}"
    try:
        Metadata.from_email(described(files, "METADATA"))
    except ExceptionGroup as group:
        yield from (f"METADATA is not valid, and installers may refuse it: {error}" for error in group.exceptions)


def requirements(files: Mapping[str, bytes]) -> set[str]:
    """The names of the distributions that a wheel depends on, whatever the environment is or is asked for."""
    names = set[str]()
    for text in fields(files, "METADATA", "Requires-Dist"):
        try:
            need = Requirement(text)
        except InvalidRequirement:
            continue
        names |= set() if need.marker and "extra" in str(need.marker) else {canonicalize_name(need.name)}
    return names


def _wheel_problems(wheel: Path, files: Mapping[str, bytes]) -> Iterator[str]:
    """WHEEL has the version that installers know, and says what the name does.

    https://packaging.python.org/en/latest/specifications/binary-distribution-format/#file-contents
    """
    text = message_from_string(described(files, "WHEEL"))
    for field in ("Wheel-Version", "Root-Is-Purelib"):
        if len(text.get_all(field, [])) != 1:
            yield f"WHEEL does not have one field {field}"
    for field, value in text.items():
        only = WHEEL_FIELDS.get(field.lower(), "")
        if only is not None and value != only:
            known = f"and installers know {only}" if only else "which no build writes"
            yield f"WHEEL has the {field} {shown(value)}, {known}"
    named = NAMED.fullmatch(without_label(wheel.name))
    if named is None:
        yield f"its name is not for {TAG}, as those of kernel packages are, which know nothing of Python"
        return
    platform, build = named["platform"], [named["build"]] if named["build"] else []
    if (tags := fields(files, "WHEEL", "Tag")) != [f"{TAG}-{platform}"]:
        yield f"WHEEL has the tags {', '.join(tags) or 'none'}, and the name has {TAG}-{platform}"
    if fields(files, "WHEEL", "Build") not in ([], build):
        yield f"WHEEL has another build number than the name, which has {build[0] if build else 'none'}"
    if fields(files, "WHEEL", "Root-Is-Purelib") != [str(platform == ANY).lower()]:
        yield f"WHEEL says that it is for {'a' if platform == ANY else 'any'} platform, and its name says {platform}"


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True


def _normal(field: str, text: str) -> object:
    """The name or the version of a project, so that it can be compared."""
    try:
        return Version(text) if field == "Version" else canonicalize_name(text)
    except InvalidVersion:
        return None


def record_problems(files: Mapping[str, bytes]) -> Iterator[str]:
    """RECORD has every file and its digest.

    https://packaging.python.org/en/latest/specifications/recording-installed-packages/
    """
    records = [name for name in files if is_info(name) and name.partition("/")[2] == "RECORD"]
    if len(records) != 1:
        yield f"it has {len(records)} files RECORD, expected one"
        return
    try:
        rows = list(csv.reader(io.StringIO(files[records[0]].decode("utf-8", "replace"))))
    except csv.Error as error:
        yield f"{records[0]} is damaged: {error}"
        return
    expected = {name: [name, *_listed(files[name])] for name in files} | {records[0]: [records[0], "", ""]}
    row_of = {row[0]: row for row in rows if row}
    if len(row_of) != len(rows):
        yield f"{records[0]} has a file twice, or an empty line"
    for name in sorted(files.keys() - row_of.keys()):
        yield f"{name} is not in RECORD"
    for name in sorted(row_of.keys() - files.keys()):
        yield f"{printable(name)} is in RECORD, and missing"
    for name in sorted(files.keys() & row_of.keys()):
        if row_of[name] != expected[name]:
            yield f"{name} is not the file that RECORD lists"


def _listed(content: bytes) -> tuple[str, str]:
    """What RECORD says of a file: its digest and its size."""
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"sha256={digest}", str(len(content))


def point_problems(manifest: str, files: Mapping[str, bytes], own: bool) -> Iterator[str]:
    """Entry points have other programs run the code of a wheel, so only those that were asked for are right.

    https://packaging.python.org/en/latest/specifications/entry-points/
    """
    package, group = manifest.removesuffix("/manifest.json").replace("/", "."), ""
    for line in described(files, "entry_points.txt").split("\n"):
        name, _, module = (part.strip() for part in line.partition("="))
        reference = REFERENCE.fullmatch(module)
        if heading := re.fullmatch(r"\[([\w.]+)\]", line):
            group = heading[1]
        elif line and (reference is None or not line.isprintable() or line != line.strip()):
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
