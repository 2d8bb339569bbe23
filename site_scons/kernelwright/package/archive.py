"""Writes a wheel: the same bytes for the same content, whoever builds it and where."""

from __future__ import annotations

import stat
import time
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wheel.wheelfile import WheelFile

from ..core.version import VERSION
from .project import Project
from .wheel_variants import INFO_FILE

TAG = "py3-none"
"""Kernel libraries are loaded through tvm-ffi, and know nothing of the Python that does so."""

ANY = "any"
"""The platform tag of device code, which is the same whatever the machine around the GPU is."""


def wheel_name(project: Project, platform: str, label: str = "") -> str:
    """The file name of a wheel for a platform tag such as ``manylinux_2_17_x86_64``; ``label`` is a wheel variant's."""
    return f"{project.name}-{project.version}-{TAG}-{platform}{f'-{label}' if label else ''}.whl"


def info_files(project: Project, platform: str) -> dict[str, bytes]:
    """The files that describe a wheel, by their paths in the folder ``.dist-info``; RECORD is not among them.

    Arguments:
        platform: as for :func:`write_wheel`.
    """
    pure = str(platform == ANY).lower()
    tags = "".join(f"Tag: {TAG}-{tag}\n" for tag in platform.split("."))
    return {
        "METADATA": project.metadata,
        "WHEEL": f"Wheel-Version: 1.0\nGenerator: kernelwright {VERSION}\nRoot-Is-Purelib: {pure}\n{tags}".encode(),
        **({"entry_points.txt": project.entry_points.encode()} if project.entry_points else {}),
        **{f"licenses/{name}": content for name, content in project.licenses.items()},
        **project.sboms,
    }


def write_wheel(
    path: Path, project: Project, files: Mapping[str, bytes], platform: str, seconds: int, variant: str = ""
) -> None:
    """Write a wheel.

    Arguments:
        path: where to; the name must be that of :func:`wheel_name`.
        project: what it says of itself.
        files: its content but for the folder ``.dist-info``: path in the wheel -> bytes.
        platform: the platform tag, or several that are joined with dots; ``any``: nothing in it is for a platform.
        seconds: time of all files, in seconds since 1970; zip counts even seconds, in no time zone.
        variant: the text of ``variant.json``; empty: it is no wheel variant.
    """
    moment = time.gmtime(seconds)
    with _Archive(path, moment[:6]) as archive:
        described = info_files(project, platform) | ({INFO_FILE: variant.encode()} if variant else {})
        info = {f"{archive.dist_info_path}/{name}": data for name, data in described.items()}
        for name, content in (*sorted(files.items()), *sorted(info.items())):
            archive.writestr(name, content)


class _Archive(WheelFile):  # type: ignore[misc]
    """A wheel all of whose files, RECORD too, have the same time and permissions."""

    def __init__(self, path: Path, moment: tuple[int, int, int, int, int, int]) -> None:
        super().__init__(path, "w")
        self._moment = moment

    def writestr(self, zinfo_or_arcname: Any, data: Any, compress_type: Any = None) -> None:
        """Add a file under a name."""
        entry = zipfile.ZipInfo(str(zinfo_or_arcname), self._moment)
        entry.compress_type = zipfile.ZIP_DEFLATED
        entry.external_attr = (stat.S_IFREG | 0o644) << 16
        entry.create_system = 3  # Unix, whose permissions these are
        super().writestr(entry, data)
