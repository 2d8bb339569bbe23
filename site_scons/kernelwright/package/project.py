"""What a wheel says of its project: ``[project]`` of pyproject.toml, checked and completed.

Fields and their meaning: https://packaging.python.org/en/latest/specifications/pyproject-toml/. A repository whose own
``[project]`` is another distribution (such as this one) has the kernel library's fields in
``[tool.kernelwright.project]``.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion
from pyproject_metadata import StandardMetadata
from pyproject_metadata.errors import ConfigurationError, ConfigurationWarning

from ..backends import get
from ..backends.base import Backend
from ..core.errors import shown
from ..define.debug import NO
from ..define.settings import Settings
from ..runtime.provider import GROUP
from .version import content_of, dynamic_version, project_table, refused

SHARED_FIELDS = ("authors", "keywords", "license", "license-files", "maintainers", "requires-python", "urls")
"""Fields of the project that its wheels of device code have too."""

ENTRY_POINTS = ("scripts", "gui-scripts", "entry-points")
"""Fields that refer to the package of the project's own wheel."""

ALL_EXTRA = "cuda"
"""The extra that installs the device code of all archs."""

REFERENCE = re.compile(r"{0}(?:\.{0})*(:{0}(?:\.{0})*)?".format(r"[^\W\d]\w*"))
"""What an entry point refers to: ``module`` or ``module.module:attribute.attribute``."""

SCRIPT = re.compile(r"[\w+-][\w.+-]*")
"""The name of a command, which becomes that of a file."""

TAKEN_SCRIPT = re.compile(r"(python|pip|(de)?activate)[\d.]*w?(\.\w+)?", re.IGNORECASE)
"""Commands that environments have themselves."""

POINT_GROUP = re.compile(r"\w+(?:\.\w+)*")

OUTDATED = r"Set \"project.license\" to an SPDX|'License ::' classifiers are deprecated"
"""Warnings about what is no longer recommended, and valid. All others are about wheels that installers refuse."""

METADATA_VERSION = "2.4"
"""Version of the core metadata; 2.4 is the first with license expressions, and package indexes know it."""


@dataclass(frozen=True)
class Project:
    """A project, as its wheel describes it.

    Arguments:
        name: normalised as in file names: ``my_kernels``.
        distribution: as the project writes it: ``My-Kernels``.
        version: normalised.
        metadata: the text of METADATA.
        entry_points: the text of entry_points.txt; empty: there are none.
        licenses: path in the wheel's license folder -> content.
        files: the files that all this was read from, relative to the project's folder.
        sboms: path in the wheel's folder ``.dist-info`` -> content; see :mod:`package.sbom`.
    """

    name: str
    distribution: str
    version: str
    metadata: bytes
    entry_points: str
    licenses: Mapping[str, bytes]
    files: tuple[str, ...]
    sboms: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True)
class Own:
    """What tells one wheel from other wheels of the same project and version.

    Arguments:
        name: of a distribution of its own; empty: it is that of the project.
        labels: what the version ends with, as its local part: ``("cu128",)`` makes ``1.0+cu128``.
    """

    name: str = ""
    labels: tuple[str, ...] = ()

    def labelled(self, label: str) -> Own:
        """The same with one label more."""
        return replace(self, labels=(*self.labels, label))

    def version(self, version: str) -> str:
        """The version of the wheel, for the version of the project."""
        begin = "." if "+" in version else "+"
        return f"{version}{begin}{'.'.join(self.labels)}" if self.labels else version


PARTIAL = "partial"
"""The label of a wheel whose package was built partially, which never has the name of one that lacks nothing."""

WHOLE = Own()
"""The wheel of a project that has no other one."""


def own_of(settings: Settings, name: str = "") -> Own:
    """What tells the wheel of a package from others, by its settings: the CUDA toolkit that they name, the first one if
    each has a wheel, and what is built for debuggers."""
    # All wheel variants have one version, so the toolkit is in their labels.
    label = settings.toolkits[0].label if settings.cuda_label == "yes" and settings.split != "variant" else ""
    debug = "" if settings.debug == NO else settings.debug
    return Own(name, tuple(filter(None, (label, debug))))


def read_project(
    root: Path,
    document: Mapping[str, Any],
    providers: Sequence[str] = (),
    called_through: Sequence[str] = ("tvm_ffi",),
    own: Own = WHOLE,
) -> Project:
    """Check a project's fields, and read the files that they name.

    Arguments:
        root: the folder of pyproject.toml.
        document: its content.
        providers: the CUDA archs whose device code is in wheels of their own; the project gets an extra for each.
        called_through: the backends of its kernels, the default first. What that needs is among the dependencies, and
            what another one needs is an extra of its name.
        own: what tells it from other wheels of the project. One with a name of its own has no entry points, because
            those of the project refer to another package.

    Raises:
        SettingsError: a field is missing or not valid, or a file that one names is not there. The message names it.
    """
    table, place, files = _checked_table(root, document, own)
    table |= _with_extras(table, place, providers) if providers else {}
    return _project(root, table | _with_needs(table, called_through), place, files)


def provider_project(root: Path, document: Mapping[str, Any], arch: str, package: str, own: Own = WHOLE) -> Project:
    """What the wheel with the device code of one arch says of itself.

    Arguments:
        root, document: as for :func:`read_project`.
        arch: the arch.
        package: import name of the package that has the code.
        own: as for the wheel of the package.

    Raises:
        SettingsError: as :func:`read_project`.
    """
    table, place, files = _checked_table(root, document, own)
    name, version = table["name"], table["version"]
    text = f"The device code of {name} for {arch}. It is of use together with {name} {version} only."
    fields = {
        **{field: table[field] for field in SHARED_FIELDS if field in table},
        "name": distribution_of(name, arch),
        "version": version,
        "description": f"Device code of {name} for {arch}",
        "readme": {"text": f"{text}\n", "content-type": "text/markdown"},
        "dependencies": [f"{name}=={version}"],
        "entry-points": {GROUP: {package: package}},
    }
    return _project(root, fields, place, files)


def distribution_of(name: str, arch: str) -> str:
    """Name of the distribution with the device code of an arch: ``acme-kernels-sm-90a``."""
    return f"{name}-{extra_of(arch)}"


def extra_of(arch: str) -> str:
    """Name of the extra that installs the device code of an arch: ``sm-90a``, which is how pip writes ``sm_90a``."""
    return arch.replace("_", "-")


def _with_extras(table: Mapping[str, Any], place: str, providers: Sequence[str]) -> dict[str, Any]:
    """The project's extras, with one for each wheel of device code, and one for all of them."""
    given = table.get("optional-dependencies", {})
    pins = {arch: f"{distribution_of(table['name'], arch)}=={table['version']}" for arch in providers}
    extras: dict[str, list[str]] = {extra_of(arch): [pin] for arch, pin in pins.items()}
    extras[ALL_EXTRA] = list(pins.values())
    if not isinstance(given, dict):
        raise refused(f"{place}.optional-dependencies is {shown(given)}, expected a table", "mend it")
    for name in given:
        if canonicalize_name(str(name)) in extras:
            message = f"{place}.optional-dependencies has {name!r}, the name of an extra that split = 'arch' makes"
            raise refused(message, "give it another name")
    return {"optional-dependencies": {**given, **extras}}


def _checked_table(root: Path, document: Mapping[str, Any], own: Own) -> tuple[dict[str, Any], str, list[str]]:
    """The table of the fields of a wheel with its version, the table's name, and the files that both are read from."""
    (table, place), files = project_table(document), ["pyproject.toml"]
    if own.name:
        table = {name: value for name, value in table.items() if name not in ENTRY_POINTS} | {"name": own.name}
    if "version" in table.get("dynamic", ()):
        if "version" in table:
            message = f"{place} has version = {shown(table['version'])}, and says that the version is dynamic"
            raise refused(message, 'take one of them out: version, or "version" in dynamic')
        dynamic = [field for field in table["dynamic"] if field != "version"]
        table |= {"version": dynamic_version(root, document, files), "dynamic": dynamic}
    elif "version" not in table:
        raise refused(f"{place} has no version", 'write version = "1.0", or dynamic = ["version"]')
    if table.get("dynamic"):
        names = ", ".join(map(shown, table["dynamic"]))
        raise refused(f"{place}.dynamic has {names}", 'only "version" can be dynamic: write the others down')
    _check_license(table, place)
    fields = _fields(root, {name: table[name] for name in ("name", "version") if name in table}, place)
    # As it is in file names and in METADATA, so that all wheels name the same one.
    return {**table, "version": own.version(str(fields.version))}, place, files


def _fields(root: Path, table: Mapping[str, Any], place: str) -> Any:
    """The fields of a table, checked."""
    description = table.get("description")
    if isinstance(description, str) and len(description.splitlines()) > 1:
        raise refused(f"{place}.description is {shown(description)}, expected one line", "put more into the readme")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", ConfigurationWarning)
            warnings.filterwarnings("ignore", OUTDATED, ConfigurationWarning)
            return StandardMetadata.from_pyproject(
                {"project": table}, root, metadata_version=METADATA_VERSION, allow_extra_keys=False
            )
    except (ConfigurationError, ConfigurationWarning, InvalidVersion) as error:
        raise refused(_words(error, place), "see the specification of pyproject.toml") from error
    except (OSError, UnicodeDecodeError) as error:
        raise refused(f"a file that {place} names cannot be read: {error}", "mend it, or name another one") from error


def _project(root: Path, table: Mapping[str, Any], place: str, files: list[str]) -> Project:
    _check_points(table, place)
    fields = _fields(root, table, place)
    try:
        text = bytes(fields.as_rfc822())
    except ConfigurationError as error:
        raise refused(_words(error, place), "see the specification of pyproject.toml") from error
    licenses = {path.as_posix(): content_of(root / path) for path in fields.license_files or []}
    readme = fields.readme.file if fields.readme is not None else None
    files += [os.path.relpath(root / readme, root)] if readme else []
    return Project(
        name=canonicalize_name(fields.name).replace("-", "_"),
        distribution=fields.name,
        version=str(fields.version),
        metadata=text,
        entry_points=entry_points(fields),
        licenses=licenses,
        files=tuple(dict.fromkeys([*files, *licenses])),
    )


def entry_points(fields: Any) -> str:
    """The text of entry_points.txt."""
    groups = {"console_scripts": fields.scripts, "gui_scripts": fields.gui_scripts, **fields.entrypoints}
    parts = []
    for group, points in groups.items():
        if points:
            lines = "".join(f"{name} = {value}\n" for name, value in sorted(points.items()))
            parts.append(f"[{group}]\n{lines}")
    return "\n".join(parts)


def _check_license(table: Mapping[str, Any], place: str) -> None:
    given = table.get("license")
    if isinstance(given, str):
        try:
            canonicalize_license_expression(given)
        except InvalidLicenseExpression as error:
            message = f"{place}.license is {given!r}, which is no SPDX license expression: {error}"
            raise refused(message, 'write one such as "MIT", or "LicenseRef-My-Own" and license-files') from error


def _check_points(table: Mapping[str, Any], place: str) -> None:
    """Refuse entry points that installers cannot read, or would read as others.

    https://packaging.python.org/en/latest/specifications/entry-points/
    """
    for group in ("scripts", "gui-scripts"):
        _check_group(table.get(group, {}), f"{place}.{group}", scripts=True)
    groups = table.get("entry-points", {})
    if not isinstance(groups, dict):
        raise refused(f"{place}.entry-points is {shown(groups)}, expected a table of tables", "mend it")
    for group, points in groups.items():
        if POINT_GROUP.fullmatch(group) is None:
            message = f"{place}.entry-points has the group {shown(group)}"
            raise refused(message, "use letters, digits and underscores, with dots between them")
        if group in ("console_scripts", "gui_scripts"):
            instead = group.replace("console_", "").replace("_", "-")
            raise refused(f"{place}.entry-points has the group {group}", f"write it as {place}.{instead}")
        _check_group(points, f"{place}.entry-points.{group}", scripts=False)


def _check_group(points: Any, place: str, scripts: bool) -> None:
    """Refuse entry points of one group; scripts are files, and what they refer to is called."""
    if not isinstance(points, dict):
        raise refused(f"{place} is {shown(points)}, expected a table", "mend it")
    forbidden = r"[=\[\]/\s]" if scripts else r"[=\[\]]"
    for name, value in points.items():
        odd = not name.isprintable() or name != name.strip() or name[:1] in ("", "#", ";")
        if scripts and TAKEN_SCRIPT.fullmatch(name):
            raise refused(f"{place} has the name {shown(name)}, which environments have", "choose another name")
        if odd or name in (".", "..") or re.search(forbidden, name):
            raise refused(f"{place} has the name {shown(name)}", "use letters, digits, underscores, dots and dashes")
        reference = REFERENCE.fullmatch(value) if isinstance(value, str) else None
        if reference is None or (scripts and reference[1] is None):
            form = "module:function" if scripts else "module or module:attribute"
            raise refused(f"{place}.{name} is {shown(value)}, expected {form}", "name what Python can import")


def _with_needs(table: Mapping[str, Any], called_through: Sequence[str]) -> dict[str, Any]:
    """The project's dependencies and extras, and what its kernels need to be called."""
    default, *others = (get(name) for name in called_through)
    extras = table.get("optional-dependencies", {})
    if isinstance(extras, dict) and others:
        known = {canonicalize_name(str(name)) for name in extras}
        added = {canonicalize_name(b.name): [need.requirement for need in b.run_needs] for b in others}
        extras = {**extras, **{name: needs for name, needs in added.items() if name not in known}}
    own = {"optional-dependencies": extras} if extras else {}
    return {"dependencies": _dependencies(table.get("dependencies", []), default), **own}


def _dependencies(given: Any, backend: Backend) -> Any:
    """The project's dependencies, and what a backend needs unless the project asks for a version itself."""
    if not isinstance(given, list):
        return given
    named = {canonicalize_name(re.split(r"[^\w.-]", str(item).strip(), maxsplit=1)[0]) for item in given}
    return [*given, *(need.requirement for need in backend.run_needs if need.name not in named)]


def _words(error: Exception, place: str) -> str:
    """What a library says of a field, with the table that we have read."""
    known = isinstance(error, (ConfigurationError, ConfigurationWarning))
    return str(error).replace('"project', f'"{place.strip("[]")}') if known else str(error)
