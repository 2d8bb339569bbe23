"""Identifies a tool: runs it, and makes a digest of its version and its files.

An identity is made from versions and contents, never from paths or times, so that two machines with the same tools
agree, if they also compute alike (see ``core.arithmetic``).
"""

from __future__ import annotations

import functools
import hashlib
import subprocess
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from ..core.arithmetic import arithmetic
from ..core.errors import ToolchainError, Where
from ..core.files import Stamp, canonical_json, sha256_of
from ..processes.environment import tool_environment

WHERE = Where(stage="settings")

REVISION = 9
"""Raise when a probe reads something else, so that kept results are not used."""

TIMEOUT_S = 120


def identity(facts: Sequence[Any], contents: Iterable[bytes] = ()) -> str:
    """Digest of everything that decides what a tool makes: JSON data, and what its files hold."""
    digest = hashlib.sha256(canonical_json([REVISION, arithmetic(), *facts]).encode())
    for content in contents:
        digest.update(content)
    return digest.hexdigest()


@functools.cache
def content_digest(path: str, stamp: Stamp) -> str:
    """SHA-256 of a part of a tool, read once for each stamp that it has: some are large, and asked for twice."""
    return sha256_of(Path(path))


def answer(command: Sequence[str], remedy: str) -> str:
    """The output of a tool. If it cannot be started, the error has this remedy.

    Raises:
        ToolchainError: it cannot be run, or it failed.
    """
    done = run_tool(command, f"{command[0]} cannot be run", remedy)
    if done.returncode != 0:
        raise failure(f"{command[0]} ended with exit status {done.returncode}", "repair or replace it", command, done)
    return done.stdout


def run_tool(
    command: Sequence[str], problem: str, remedy: str, folder: Path | None = None, scratch: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a tool in the fixed environment; the result has its exit status and its output.

    Arguments:
        command: the tool, and its arguments.
        problem: how an error begins.
        remedy: what to do about one.
        folder: the folder that it runs in; None: this process's.
        scratch: the folder for its temporary files; None: the system's.

    Raises:
        ToolchainError: it cannot be started, or takes too long; the message begins with ``problem``.
    """
    try:
        return subprocess.run(
            command,
            cwd=folder,
            capture_output=True,
            text=True,
            errors="replace",
            env=tool_environment() | ({"TMPDIR": str(scratch)} if scratch else {}),
            timeout=TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ToolchainError(f"{problem}: {error}", WHERE, remedy) from error


def failure(
    problem: str, remedy: str, command: Sequence[str], done: subprocess.CompletedProcess[str]
) -> ToolchainError:
    """The error of a tool that failed; it shows the command and what that printed."""
    return ToolchainError(problem, WHERE, remedy, f"$ {' '.join(command)}\n{done.stdout}{done.stderr}")
