"""Asks git about a project, in an environment in which git starts no program that the repository itself names.

The configuration of a repository can name programs that git starts when it is merely asked something: a file system
monitor, hooks, filters, checks of signatures. A folder that somebody hands over with its ``.git`` brings them along.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

KEPT = (
    *("PATH", "HOME", "XDG_CONFIG_HOME", "TMPDIR", "LD_LIBRARY_PATH", "SUDO_UID"),
    *("GIT_CEILING_DIRECTORIES", "GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM"),
)
"""Variables of the user's that git sees: where programs and the user's own configuration are, and no other."""

FIXED = {
    "LC_ALL": "C",
    "GIT_NO_REPLACE_OBJECTS": "1",  # a replaced commit has other files than those of its name
    "GIT_OPTIONAL_LOCKS": "0",  # asking writes no index, so no hook is told of one
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_PAGER": "cat",
    "GIT_NO_LAZY_FETCH": "1",  # with the next one: nothing is fetched, by whatever program
    "GIT_ALLOW_PROTOCOL": "",
}

SETTINGS = {
    "core.fsmonitor": "false",
    "core.hooksPath": os.devnull,
    "core.untrackedCache": "false",
    "core.checkStat": "default",
    "core.trustctime": "true",
    "log.showSignature": "false",
    "gpg.program": "false",
    "safe.bareRepository": "explicit",
}
"""What wins over every configuration: what would start a program, and what would hide changes."""

MARK = "core.fsmonitor"
"""The setting that shows whether git minds these; versions before 2.31 do not, and are not asked further."""

SECONDS = 60
"""How long git may take to answer."""


SUBMODULE = "160000"
"""The mode of a submodule in git's index."""

DEEPEST = 8
"""Submodules in submodules that are looked at for filters; with more of them git is not asked."""


class Tracked(NamedTuple):
    """A file that git tracks: path relative to the project, and whether git was told not to look for changes in it."""

    name: str
    unwatched: bool


@dataclass(frozen=True)
class Repository:
    """What git is asked through.

    Arguments:
        root: the folder that it is asked about.
        environment: in which it runs.
    """

    root: Path
    environment: Mapping[str, str]

    def ask(self, *arguments: str) -> str | None:
        """What git prints; None: it refuses, or takes too long."""
        return _run(self.root, arguments, self.environment)

    def tracked(self) -> list[Tracked]:
        """The files below the folder that git tracks, those of submodules too."""
        files = []
        answer = self.ask("ls-files", "-v", "-z", "--stage", "--", ".") or ""
        for entry in filter(None, answer.split("\0")):
            head, _, name = entry.partition("\t")
            tag, mode, *_ = head.split()
            if mode != SUBMODULE:
                files.append(Tracked(name, tag != "H"))
            elif (self.root / name / ".git").exists():  # without it git would answer for the repository around it
                inner = Repository(self.root / name, self.environment).tracked()
                files += [Tracked(f"{name}/{file.name}", file.unwatched) for file in inner]
        return files


def repository_of(root: Path) -> Repository | None:
    """The repository that a folder is in; None: there is none, or no git, or one that cannot be asked safely."""
    filters = _filters(root, 0)
    if filters is None:
        return None
    repository = Repository(root, _environment({**SETTINGS, **dict.fromkeys(sorted(filters), "")}))
    return repository if repository.ask("rev-parse", "--is-inside-work-tree") == "true\n" else None


@contextlib.contextmanager
def for_this_process(repository: Repository) -> Iterator[None]:
    """Have git run in its environment also where a library starts it; for code that no other thread runs beside."""
    before = dict(os.environ)
    git = {name: value for name, value in repository.environment.items() if name not in KEPT or name.startswith("GIT_")}
    for name in [name for name in before if name.startswith("GIT_")]:
        del os.environ[name]
    os.environ.update(git)
    try:
        yield
    finally:
        for name in git:
            os.environ.pop(name, None)
        os.environ.update(before)


def _filters(root: Path, depth: int) -> set[str] | None:
    """The settings by which a repository, or one of its submodules, has git start filters.

    git runs the filters of the user's own configuration, such as that of git-lfs; those of the repository's are empty.
    """
    base = _environment(SETTINGS)
    answer = _run(root, ["config", "--show-scope", "-z", "--get-regexp", rf"^(filter\..*|{MARK})$"], base)
    words = (answer or "").split("\0")
    pairs = [(scope, entry.partition("\n")[0]) for scope, entry in zip(words[::2], words[1::2], strict=False)]
    if ("command", MARK.lower()) not in pairs or depth > DEEPEST:
        return None
    names = {name for scope, name in pairs if scope in ("local", "worktree") and name.startswith("filter.")}
    # From the top of the repository, because that is where some commands begin.
    staged = _run(root, ["ls-files", "-z", "--stage", "--", ":/"], base) or ""
    for entry in staged.split("\0"):
        folder = root / entry.partition("\t")[2]
        if entry.startswith(SUBMODULE) and (folder / ".git").exists():
            inner = _filters(folder, depth + 1)
            if inner is None:
                return None
            names |= inner
    return names


def _environment(settings: Mapping[str, str]) -> dict[str, str]:
    """An environment in which some settings win over those of all files."""
    environment = {name: os.environ[name] for name in KEPT if name in os.environ} | FIXED
    for number, (name, value) in enumerate(settings.items()):
        environment |= {f"GIT_CONFIG_KEY_{number}": name, f"GIT_CONFIG_VALUE_{number}": value}
    return environment | {"GIT_CONFIG_COUNT": str(len(settings))}


def _run(root: Path, arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """What git prints; names of files that are not in UTF-8 are as Python has them."""
    try:
        done = subprocess.run(
            ["git", "--no-pager", "-C", str(root), *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    return os.fsdecode(done.stdout) if done.returncode == 0 else None
