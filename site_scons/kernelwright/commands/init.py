"""``kernelwright init FOLDER``: a new kernel project, or a front end, that can be built and tested at once."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import SettingsError, Where, refused
from ..define.package_name import BUILD_FOLDERS, TAKEN, is_importable
from ..frontends import names
from .command import Command, argument

TEMPLATE = Path(__file__).resolve().parent / "template"
HIDDEN = {"gitignore": ".gitignore", "github": ".github"}
"""Names in a template -> in a project; package data leaves hidden files out."""

PACKAGE = "package"
"""The folder in a template that gets the name of the package."""

NAME = re.compile(r"[A-Za-z0-9]|[A-Za-z0-9][A-Za-z0-9._-]*[A-Za-z0-9]")
"""Names of distributions (https://packaging.python.org/en/latest/specifications/name-normalization/)."""

USUAL_ARCHS = '["sm_80", "sm_90a", "compute_80"]'


@dataclass(frozen=True)
class Language:
    """What a new project has for the language of its first kernel.

    Arguments:
        folders: those below the template that the project has.
        extras: what has to be installed of Kernelwright.
        settings: lines of ``[tool.kernelwright]``.
        devices: what its kernels run on.
        set_up: what a shell has to do before the project is built, with ``&&`` at its end.
        install: what pip installs.
    """

    folders: tuple[str, ...]
    extras: str = "cuda"
    settings: str = f'targets = ["cuda"]\narchs = {USUAL_ARCHS}'
    devices: str = "NVIDIA GPUs"
    set_up: str = ""
    install: str = "'.[test]'"


LANGUAGES = {
    "tir": Language(
        ("project", "tir"),
        settings=f'targets = ["llvm", "cuda"]\narchs = {USUAL_ARCHS} '
        "# and for CPUs like the one that builds: x86-64-v3, or neoverse-n1 on Arm",
        devices="the CPU and for NVIDIA GPUs",
    ),
    "cuda": Language(("project", "cuda", "gpu")),
    "triton": Language(("project", "triton", "gpu"), "cuda,triton", set_up="pip install 'kernelwright[triton]' && "),
    "tilelang": Language(
        ("project", "tilelang", "gpu"),
        settings='targets = ["cuda"]\narchs = ["sm_80", "sm_90a"]\ntilelang_python = ".venv-tilelang/bin/python"',
        set_up="python3 -m venv .venv-tilelang && .venv-tilelang/bin/pip install tilelang==0.1.15 && ",
    ),
    "cutedsl": Language(
        ("project", "cutedsl", "gpu"),
        "cuda,cutedsl",
        settings='targets = ["cuda"]\narchs = ["sm_80", "sm_90a"]',
        set_up="pip install 'kernelwright[cutedsl]' && ",
    ),
}
"""Front end of the first kernel -> what its project has."""

FRONT_END = Language(("front_end",), install="-e '.[test]'")
"""What a distribution has that brings a front end."""


def make_project(place: str, language: Language = LANGUAGES["tir"]) -> Path:
    """Write a new project.

    Arguments:
        place: the project's folder; its last part is the name of the project's distribution, such as ``acme-kernels``.
            The folder may be there already if it is empty.
        language: one of :data:`LANGUAGES`, or :data:`FRONT_END`.

    Returns:
        The project's folder.

    Raises:
        SettingsError: a project cannot have this name, or its folder is not empty.
    """
    folder = Path(place)
    name = folder.resolve().name if place else ""
    package = re.sub(r"[-.]+", "_", name).lower()
    where = Where(stage="init", location=place)
    if not NAME.fullmatch(name) or not package.isidentifier():
        remedy = "begin with a letter, and use letters, digits and dashes: acme-kernels"
        raise SettingsError("a project cannot have this name", where, remedy)
    if not is_importable(package) or package in {*BUILD_FOLDERS, *TAKEN, *names()}:
        message = f"the package {package!r} would take the name of something else"
        raise SettingsError(message, where, "choose another name, such as acme-kernels")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise SettingsError(
            "a file, or a folder that is not empty, has this name", where, "choose another name, or remove it"
        )
    words = {
        **{"NAME": name, "PACKAGE": package, "EXTRAS": language.extras, "SETTINGS": language.settings},
        **{"DEVICES": language.devices, "SET_UP": language.set_up},
    }
    for source, target in _files(language, package):
        written = folder / target
        written.parent.mkdir(parents=True, exist_ok=True)
        text = source.read_text(encoding="utf-8")
        written.write_text(re.sub("@([A-Z_]+)@", lambda word: words[word[1]], text), encoding="utf-8")
    return folder


def _files(language: Language, package: str) -> Iterator[tuple[Path, Path]]:
    """The files of the template that a project gets, and their paths in the project."""
    for part in language.folders:
        for source in sorted(path for path in (TEMPLATE / part).rglob("*") if path.is_file()):
            first, *others = source.relative_to(TEMPLATE / part).parts
            target = Path({**HIDDEN, PACKAGE: package}.get(first, first), *others)
            yield source, target.with_name(target.name.removesuffix(".in"))  # so that no tool takes it for one of ours


def run(options: argparse.Namespace) -> int:
    """Make a new project."""
    try:
        language = FRONT_END if options.frontend else LANGUAGES[options.language]
        folder = make_project(options.folder, language)
    except OSError as error:
        raise refused(error, Where(stage="init", location=options.folder)) from error
    print(f"{folder.resolve().name} is made. Next:")
    # A project is built by Kernelwright, which is here already; a front end by what pip gets for it.
    pip = "pip install" if options.frontend else "pip install --no-build-isolation"
    print(f"cd {options.folder} && {language.set_up}{pip} {language.install} && pytest")
    return 0


COMMAND = Command(
    "init",
    "make a new project with a kernel, its test and CI workflows",
    run,
    (
        argument(
            "folder",
            "folder to make, such as acme-kernels or ../acme-kernels; its last part is the name of the project",
            metavar="FOLDER",
        ),
        argument(
            "--language",
            f"what the kernel is written in: {', '.join(LANGUAGES)} (default: tir)",
            choices=LANGUAGES,
            default="tir",
            metavar="LANGUAGE",
        ),
        argument("--frontend", "make a distribution with a front end, a language of definitions", action="store_true"),
    ),
)
