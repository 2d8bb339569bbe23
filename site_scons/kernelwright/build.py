"""The build backend for pip and other front ends: ``build-backend = "kernelwright.build"``.

The hooks are those of PEP 517 and PEP 660 (https://packaging.python.org/en/latest/specifications/pyproject-toml/). The
front end calls them in the project's folder, each in a process of its own. They run scons as a user would.

Config settings: those of ``[tool.kernelwright]`` by their names, ``jobs`` for scons's ``-j``, and ``provider`` for the
wheel with the device code of one arch of a split package: ``pip wheel . --config-settings archs=sm_90a``.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from . import backends
from .core.arch import native_family
from .core.errors import KernelwrightError, SettingsError, ToolError, Where, is_text, printable, shown
from .core.files import pretty_json
from .define.settings import COMMAND_LINE, SETTINGS, Settings, merge, read_document, read_pyproject
from .package import OWN_FAMILY, WHEEL_LIST
from .package.archive import ANY, info_files, wheel_name, write_wheel
from .package.assemble import provider_package
from .package.platform import require_platform, untagged
from .package.project import Project, own_of, provider_project, read_project
from .package.sdist import choose_files, read_files, words_for
from .package.source import RECORD, find_source
from .stages.wheel import require_no_other, write_indexes

EDITABLE = "build/editable"
"""Folder with links to the packages of a project, and nothing else that could be imported."""

PROVIDER = "provider"
"""The config setting that names the arch whose wheel is wanted."""

Config = Mapping[str, Any] | None


def build_wheel(wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None) -> str:
    """Build the project's wheel, and return its name.

    All wheels that ``scons wheel`` makes are put into the folder, and the name is that of the project's own, or of the
    one that the config setting ``provider`` asks for: the interface has a single name to return.
    """
    with _plain_errors():
        require_platform()
        config = dict(config_settings or {})
        wanted = _provider(config)
        config.pop(PROVIDER, None)
        with tempfile.TemporaryDirectory() as folder:
            made = Path(folder, "wheels")
            _scons(["wheel"], config, {WHEEL_LIST: str(made)})
            lines = made.read_text().splitlines() if made.exists() else []
        wheels = {name: Path(path) for name, _, path in (line.partition("\t") for line in lines)}
        project = _project(config, wanted)
        name = next((name for name in wheels if name.startswith(f"{project.name}-{project.version}-")), "")
        if not name:
            where = Where(stage="wheel", location="SConstruct")
            made_names = f"made {', '.join(wheels)}" if wheels else "made no wheel"
            message = f"scons wheel {made_names}, and none for {wanted or f'{project.name} {project.version}'}"
            remedy = (
                "call env.KernelWheel, and set archs, split and cuda in [tool.kernelwright] and not in the build file"
            )
            raise SettingsError(message, where, remedy)
        if metadata_directory is not None:
            _require_same(Path(metadata_directory), name, wheels[name])
        require_no_other({Path(wheel_directory, each): path for each, path in wheels.items()})
        for each, path in wheels.items():
            Path(wheel_directory, each).write_bytes(path.read_bytes())
        write_indexes(Path(wheel_directory), wheels)
        return name


def build_editable(wheel_directory: str, config_settings: Config = None, metadata_directory: str | None = None) -> str:
    """Build the project's packages, and a wheel that has Python find them in the build folder."""
    with _plain_errors():
        require_platform()
        root = Path.cwd()
        project = _project(config_settings or {})
        package = read_pyproject(root / "pyproject.toml").get("package", "")
        if not package:
            where = Where(stage="wheel", location="pyproject.toml")
            raise SettingsError("[tool.kernelwright] names no package", where, 'write package = "name"')
        links = root / EDITABLE
        line = _path_line(links)
        _scons([], config_settings, {})
        links.mkdir(parents=True, exist_ok=True)
        top = package.partition(".")[0]
        (links / top).unlink(missing_ok=True)
        (links / top).symlink_to(Path("..", top))
        platform = untagged(native_family())
        name, content = wheel_name(project, platform), {f"__editable__.{project.name}.pth": line}
        write_wheel(Path(wheel_directory, name), project, content, platform, find_source(root).time)
        return name


def build_sdist(sdist_directory: str, config_settings: Config = None) -> str:
    """Archive the project's sources, and return the name of the archive."""
    with _plain_errors():
        root, project = Path.cwd(), _project()
        source = find_source(root)
        base = f"{project.name}-{project.version}"
        chosen = choose_files(root, read_document(root / "pyproject.toml"), project.files)
        if words := words_for(chosen.left_out):
            print(words, file=sys.stderr)
        content = {**read_files(root, set(chosen.files)), "PKG-INFO": project.metadata}
        digests = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(content.items())}
        content[RECORD] = pretty_json({**source.as_json(), "time": source.time, "files": digests}).encode()
        target = Path(sdist_directory, f"{base}.tar.gz")
        with target.open("wb") as raw, gzip.GzipFile("", "wb", mtime=source.time, fileobj=raw) as packed:
            _archive(packed, base, content, root, source.time)
        return target.name


def prepare_metadata_for_build_wheel(metadata_directory: str, config_settings: Config = None) -> str:
    """Write the folder ``.dist-info``, which needs no build."""
    with _plain_errors():
        config = config_settings or {}
        arch = _provider(config)
        project = _project(config, arch)
        folder = Path(metadata_directory, f"{project.name}-{project.version}.dist-info")
        platform = ANY if arch or _is_pure(config) else untagged(_settings(config).family)
        for name, content in info_files(project, platform).items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
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


def _project(config: Mapping[str, Any] = MappingProxyType({}), provider: str = "") -> Project:
    """What a wheel says of itself.

    Arguments:
        config: the config settings; extras follow from them.
        provider: the arch whose device code the wheel has; empty: it is that of the package.
    """
    root = Path.cwd()
    document = read_document(root / "pyproject.toml")
    settings = _settings(config)
    if provider:
        package = provider_package(settings.package, provider)
        return provider_project(root, document, provider, package, own_of(settings))
    called = backends.resolve(settings.backends, settings.targets)
    own = own_of(settings)
    return read_project(root, document, providers=settings.providers, called_through=called, own=own)


def _is_pure(config: Mapping[str, Any]) -> bool:
    """Whether the package has no compiled host code."""
    settings = _settings(config)
    called = [backends.get(name) for name in backends.resolve(settings.backends, settings.targets)]
    return not any(backend.library for backend in called)


def _settings(config: Mapping[str, Any]) -> Settings:
    """The settings as far as they are known without the build file."""
    given = {name: value for name, value in config.items() if name in COMMAND_LINE.values()}
    table = read_pyproject(Path.cwd() / "pyproject.toml")
    return merge([("pyproject.toml", table), ("--config-settings", given)], backends.choices())


def _provider(config: Mapping[str, Any]) -> str:
    """The arch whose wheel is asked for; empty: that of the package is.

    Raises:
        SettingsError: the package has no such wheel.
    """
    arch = config.get(PROVIDER, "")
    known = _settings(config).providers
    if arch and arch not in known:
        has = f"the archs are {', '.join(known)}" if known else "it needs split = 'arch' and a CUDA arch"
        raise _bad(f"{PROVIDER} is {shown(arch)}; {has}")
    return str(arch)


def _require_same(prepared: Path, called: str, wheel: Path) -> None:
    """Raise a SettingsError if a wheel does not say of itself what the front end has been told already."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        # What its device code needs of a driver is known when it is built, and is nothing that installers look for.
        lines = archive.read(name).splitlines(keepends=True)
        told = b"".join(line for line in lines if not line.startswith(b"Requires-External: "))
        if told == (prepared / "METADATA").read_bytes():
            return
    remedy = "set archs and split in [tool.kernelwright], and not in the build file alone"
    message = f"the metadata of {called} is not what pyproject.toml says"
    raise SettingsError(message, Where(stage="wheel", location="SConstruct"), remedy)


def _scons(targets: list[str], config: Config, variables: dict[str, str]) -> None:
    """Run scons in the project, with its output shown."""
    command = [sys.executable, "-m", "SCons", "-Q", *_arguments(config or {}), *targets]
    sys.stdout.flush()
    done = subprocess.run(command, env={**os.environ, **variables, OWN_FAMILY: "1"}, check=False)
    if done.returncode != 0:
        where = Where(stage="wheel", location="SConstruct")
        raise ToolError(command, done.returncode, "", where, "the messages above say what is wrong")


def _path_line(folder: Path) -> bytes:
    """A line of a ``.pth`` file that adds a folder to Python's path.

    Python executes such a line if it begins with ``import``, so the path must not become several.

    Raises:
        SettingsError: the path has a line break in it, of whatever kind, or is no text.
    """
    text = str(folder)
    if len(text.splitlines()) != 1 or not is_text(text):
        where = Where(stage="wheel", location=printable(text))
        message = "Python cannot be told of a folder whose path has a line break or is not in UTF-8"
        raise SettingsError(message, where, "move the project, or install it without -e")
    return f"{text}\n".encode()


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
            raise _bad(f"there is no config setting {name!r}; they are jobs, {PROVIDER}, {', '.join(names)}")
        listed = isinstance(value, (list, tuple))
        text = SETTINGS[name].kind.text(tuple(map(str, value))) if listed else str(value)
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
