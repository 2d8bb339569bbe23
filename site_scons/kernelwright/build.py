"""The build backend for pip and other front ends: ``build-backend = "kernelwright.build"``.

The hooks are those of PEP 517 and PEP 660 (https://packaging.python.org/en/latest/specifications/pyproject-toml/). The
front end calls them in the project's folder, each in a process of its own. They run scons as a user would.

Config settings: those of ``[tool.kernelwright]`` by their names, and ``jobs`` for scons's ``-j``:
``pip wheel . --config-settings archs=sm_90a``.
"""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .errors import KernelwrightError, SettingsError, ToolError, Where, shown
from .files import pretty_json
from .settings import COMMAND_LINE, read_document, read_pyproject
from .wheel import WHEEL_LIST
from .wheel.archive import write_wheel
from .wheel.platform import require_platform
from .wheel.project import Project, read_project
from .wheel.source import RECORD, find_source, is_source_file, tracked_files

EDITABLE = "build/editable"
"""Folder with links to the packages of a project, and nothing else that could be imported."""

Config = Mapping[str, Any] | None


def build_wheel(wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None) -> str:
    """Build the project's wheel, and return its name."""
    with _plain_errors():
        require_platform()
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "wheels")
            _scons(["wheel"], config_settings, {WHEEL_LIST: str(made)})
            wheels = [Path(line) for line in made.read_text().splitlines()] if made.exists() else []
        if len(wheels) != 1:
            where = Where(stage="wheel", location="SConstruct")
            message = f"scons wheel made {len(wheels)} wheels, and a project has one"
            raise SettingsError(message, where, "call env.KernelWheel once")
        target = Path(wheel_directory, wheels[0].name)
        target.write_bytes(wheels[0].read_bytes())
        return target.name


def build_editable(wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None) -> str:
    """Build the project's packages, and a wheel that has Python find them in the build folder."""
    with _plain_errors():
        require_platform()
        root = Path.cwd()
        project = _project()
        package = read_pyproject(root / "pyproject.toml").get("package", "")
        if not package:
            where = Where(stage="wheel", location="pyproject.toml")
            raise SettingsError("[tool.kernelwright] names no package", where, 'write package = "name"')
        _scons([], config_settings, {})
        links = root / EDITABLE
        links.mkdir(parents=True, exist_ok=True)
        top = package.partition(".")[0]
        (links / top).unlink(missing_ok=True)
        (links / top).symlink_to(Path("..", top))
        name = f"{project.name}-{project.version}-py3-none-linux_x86_64.whl"
        content = {f"__editable__.{project.name}.pth": f"{links}\n".encode()}
        write_wheel(Path(wheel_directory, name), project, content, "linux_x86_64", find_source(root).time)
        return name


def build_sdist(sdist_directory: str, config_settings: Config = None) -> str:
    """Archive the project's sources, and return the name of the archive."""
    with _plain_errors():
        root, project = Path.cwd(), _project()
        source = find_source(root)
        base = f"{project.name}-{project.version}"
        content = {name: (root / name).read_bytes() for name in tracked_files(root) if is_source_file(root, name)}
        content["PKG-INFO"] = project.metadata
        content[RECORD] = pretty_json({**source.as_json(), "time": source.time}).encode()
        target = Path(sdist_directory, f"{base}.tar.gz")
        with target.open("wb") as raw, gzip.GzipFile("", "wb", mtime=source.time, fileobj=raw) as packed:
            _archive(packed, base, content, root, source.time)
        return target.name


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Config = None) -> str:
    """Write the folder ``.dist-info``, which needs no build."""
    with _plain_errors():
        project = _project()
        folder = Path(metadata_directory, f"{project.name}-{project.version}.dist-info")
        folder.mkdir()
        (folder / "METADATA").write_bytes(project.metadata)
        (folder / "WHEEL").write_text("Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n")
        if project.entry_points:
            (folder / "entry_points.txt").write_text(project.entry_points)
        for name, text in project.licenses.items():
            (folder / "licenses" / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / "licenses" / name).write_bytes(text)
        return folder.name


prepare_metadata_for_build_editable = prepare_metadata_for_build_wheel


class _plain_errors:
    """Ends the process with the message of an error of ours; front ends would show a traceback."""

    def __enter__(self) -> None:
        """Nothing is needed."""

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, KernelwrightError):
            sys.stdout.flush()
            raise SystemExit(f"kernelwright: {error}") from None


def _project() -> Project:
    root = Path.cwd()
    return read_project(root, read_document(root / "pyproject.toml"))


def _scons(targets: list[str], config: Config, variables: dict[str, str]) -> None:
    """Run scons in the project, with its output shown."""
    command = [sys.executable, "-m", "SCons", "-Q", *_arguments(config or {}), *targets]
    sys.stdout.flush()
    done = subprocess.run(command, env={**os.environ, **variables}, check=False)
    if done.returncode != 0:
        where = Where(stage="wheel", location="SConstruct")
        raise ToolError(command, done.returncode, "", where, "the messages above say what is wrong")


def _arguments(config: Mapping[str, Any]) -> list[str]:
    names = {name: variable for variable, name in COMMAND_LINE.items()}
    jobs = config.get("jobs", len(os.sched_getaffinity(0)))
    if not str(jobs).isdecimal() or int(jobs) < 1:
        raise _bad(f"jobs is {shown(jobs)}, expected a number from 1 up")
    arguments = [f"-j{jobs}"]
    for name, value in config.items():
        if name == "jobs":
            continue
        if name not in names:
            raise _bad(f"there is no config setting {name!r}; they are jobs, {', '.join(names)}")
        text = ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        arguments.append(f"{names[name]}={text}")
    return arguments


def _bad(message: str) -> SettingsError:
    return SettingsError(message, Where(stage="settings", location="--config-settings"), "mend it")


def _archive(stream: Any, base: str, content: Mapping[str, bytes], root: Path, seconds: int) -> None:
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for name, data in sorted(content.items()):
            entry = tarfile.TarInfo(f"{base}/{name}")
            entry.size, entry.mtime = len(data), seconds
            path = root / name
            entry.mode = 0o755 if path.is_file() and os.access(path, os.X_OK) else 0o644
            archive.addfile(entry, io.BytesIO(data))
