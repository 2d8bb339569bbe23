"""What the command line of scons asks for. It is looked up each time: build files may change SCons's options."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import SCons.Script

from ..core.errors import SettingsError, Where
from ..core.shard import Shard, parse_shard
from . import compat

OPTIONS = {
    "strict": "Refuse definitions that read what they do not declare, and verify all outputs by content.",
    "partial": "Make packages of what can be built, as with -k; manifest.json lists the rest. Status 2 if any failed.",
    "no-wait": "Fail if another scons works in this tree, instead of waiting.",
    "why": "Say of each stage that runs what differs from the last time.",
    "replace": "Let wheels take the place of wheels in dist that have the same name and other content.",
    "build-missing": "With --merge: compile what the shards lack.",
}
"""Our command line options that have no value -> help text."""

VALUED: dict[str, tuple[str, str, Any, str]] = {
    "shard": ("store", "2/8", False, "Build a fixed part of the kernels, here the second eighth, and no package."),
    "cluster": ("store", "ADDRESS", False, "Have the workers of a Dask cluster run compilers, as the setting cluster."),
    "merge": ("append", "FOLDER", [], "Take kernels from the build cache of a shard, and compile none."),
}
"""Our options that have a value -> action of the parser, name of the value in the help, default, help text."""

SHARD = "shard"
"""The target that makes the kernels of a shard. With ``--shard`` it is the target if none is named."""


def add_options() -> None:
    """Add our options to SCons's, once for all environments."""
    for name, text in OPTIONS.items():
        if given(name) is None:
            SCons.Script.AddOption(f"--{name}", dest=_variable(name), action="store_true", default=False, help=text)
    if given("shard") is None:
        for name, (how, metavar, default, text) in VALUED.items():
            SCons.Script.AddOption(
                f"--{name}", dest=_variable(name), action=how, metavar=metavar, default=default, help=text
            )
        compat.restore_defaults()


def given(option: str) -> Any:
    """The value of one of our options; None: it was not added yet."""
    return compat.option(_variable(option))


def is_given(option: str) -> bool:
    """Whether the command line has one of our options that have a value; the value may be empty."""
    return given(option) not in (None, False)


def _variable(option: str) -> str:
    if option not in OPTIONS and option not in VALUED:
        raise KeyError(option)
    return "kernelwright_" + option.replace("-", "_")


def targets() -> list[Any]:
    """The targets that the command line names."""
    return list(SCons.Script.COMMAND_LINE_TARGETS)


def is_passive() -> bool:
    """Whether scons only shows something (``-h``, ``-n``) or cleans, so that nothing may be made or removed."""
    return any(SCons.Script.GetOption(option) for option in ("help", "clean", "no_exec", "question"))


def jobs() -> int:
    """How many stages run at once."""
    return int(SCons.Script.GetOption("num_jobs"))


def merged_folders(top: Path) -> list[Path]:
    """The folders of the shards whose kernels are to be taken, for ``--merge``."""
    return [Path(os.path.normpath(top / folder)) for folder in given("merge") or ()]


def shard() -> Shard | None:
    """The shard that is to be built; None: all kernels are. If no target is named, the target is :data:`SHARD`.

    Raises:
        SettingsError: there is no such shard, or something is asked for that needs all kernels.
    """
    if not is_given("shard"):
        return None
    chosen, named = parse_shard(given("shard")), targets()
    merge = "build the shards without it, then run kernelwright merge FOLDER..."
    remedy = "build the shards with -k, then run kernelwright merge --build-missing FOLDER... -- --partial"
    for is_asked, message, way_out in (
        (SCons.Script.GetOption("clean"), "-c removes the outputs of all kernels", "leave --shard out"),
        (given("merge"), "--merge assembles packages, of all shards", "leave --shard out"),
        (given("partial"), "--partial assembles packages, and a shard makes none", remedy),
        ("wheel" in named, "a wheel has all kernels", f"{merge} -- wheel"),
        ("tune" in named, "tuning goes by kernels", "leave --shard out, and name kernels: KERNELS=gemm"),
    ):
        if is_asked:
            raise SettingsError(f"--shard does not fit here: {message}", Where(stage="settings"), way_out)
    if not named:
        compat.ask_for(SHARD)
    return chosen
