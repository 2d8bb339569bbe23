"""``kernelwright init NAME``: a new kernel project that can be built, tested and installed at once."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from ..core.errors import SettingsError, Where, refused
from ..define.package_name import BUILD_FOLDERS, TAKEN, is_importable
from .command import Command, argument

TEMPLATE = Path(__file__).resolve().parent / "template"
HIDDEN = {"gitignore": ".gitignore", "github": ".github"}
"""Names in the template -> in a project; package data leaves hidden files out."""

NAME = re.compile(r"[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]")
"""Names of distributions (https://packaging.python.org/en/latest/specifications/name-normalization/)."""


def make_project(name: str, parent: Path) -> Path:
    """Write a new project into a folder of its name.

    Arguments:
        name: that of its distribution, such as ``acme-kernels``.
        parent: the folder that gets the project's folder, which may be there already if it is empty.

    Returns:
        The project's folder.

    Raises:
        SettingsError: a project cannot have this name, or its folder is not empty.
    """
    package = re.sub(r"[-.]+", "_", name).lower()
    where = Where(stage="init", location=name)
    if not NAME.fullmatch(name) or not package.isidentifier():
        remedy = "begin with a letter, and use letters, digits and dashes: acme-kernels"
        raise SettingsError("a project cannot have this name", where, remedy)
    if not is_importable(package) or package in {*BUILD_FOLDERS, *TAKEN}:
        message = f"the package {package!r} would take the name of something else"
        raise SettingsError(message, where, "choose another name, such as acme-kernels")
    folder = parent / name
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(
            "a file, or a folder that is not empty, has this name", where, "choose another name, or remove it"
        )
    for source in sorted(path for path in TEMPLATE.rglob("*") if path.is_file()):
        parts = source.relative_to(TEMPLATE).parts
        target = folder.joinpath(HIDDEN.get(parts[0], parts[0]), *parts[1:])
        target = target.with_name(target.name.removesuffix(".in"))  # so that no tool takes it for a module of ours
        target.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        target.write_text(text.replace("@NAME@", name).replace("@PACKAGE@", package), encoding="utf-8")
    return folder


def run(options: argparse.Namespace) -> int:
    """Make a new project in the working folder."""
    try:
        folder = make_project(options.name, Path.cwd())
    except OSError as error:
        raise refused(error, Where(stage="init", location=options.name)) from error
    print(f"{folder.name} is made. Next: cd {folder.name} && pip install --no-build-isolation '.[test]' && pytest")
    return 0


COMMAND = Command(
    "init",
    "make a new project with a kernel, its test and a CI workflow",
    run,
    (
        argument(
            "name", "name of the project, such as acme-kernels; a folder of that name is made here", metavar="NAME"
        ),
    ),
)
