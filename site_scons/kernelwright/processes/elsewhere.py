"""What another machine has to know to run a tool: who the tool is, which files it reads, and which it makes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class SharedTool:
    """A tool that other machines may have as well.

    Arguments:
        name: ``nvcc``, ``nvrtc`` or ``cc``.
        version: for people.
        identity: digest of everything that decides what it makes, without paths: equal identities mean equal results.
        places: what commands have in place of a path -> the path on this machine.
    """

    name: str
    version: str
    identity: str
    places: Mapping[str, str]


@dataclass(frozen=True)
class Elsewhere:
    """What a run needs on another machine.

    Arguments:
        tool: what is run. It brings its own headers and libraries.
        inputs: all other files that the run reads, absolute paths below its folder or its folder for temporary files.
        outputs: the files that it makes in the folder for temporary files, absolute paths.
        command: the command, if it is another one than here; empty: it is the same.
    """

    tool: SharedTool
    inputs: tuple[Path, ...]
    outputs: tuple[Path, ...]
    command: tuple[str, ...] = ()
