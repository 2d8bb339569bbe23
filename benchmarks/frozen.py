"""The library as one commit built it: the peer of a clean build, which so stays what it is."""

from __future__ import annotations

import subprocess
from pathlib import Path

from .harness import ROOT, Bench, Skip
from .projects import Project, built, library

COMMIT = "de8e9b6b2eee69177267b8bf7067c55e5a0a1e30"
"""The last commit whose build runs nvcc once for each image, and the C compiler once for each kernel with the launcher
in its wrapper: what anybody would write by hand."""

PARTS = ("SConstruct", "pyproject.toml", "kernels", "site_scons")


def plain(bench: Bench) -> Project:
    """The library of that commit, built by the code of that commit.

    Raises:
        Skip: this is not a clone with the history that has the commit.
    """
    source = _source(bench)
    return built(bench, library(bench, "library-plain", source, source / "site_scons"))


def ours(bench: Bench) -> Project:
    """The same kernels and settings, for the measured code to build."""
    return library(bench, "library-ours", _source(bench))


def _source(bench: Bench) -> Path:
    """A folder with what the commit has."""
    folder = bench.work / "frozen"
    if not folder.exists():
        archive = bench.work / "frozen.tar"
        command = ["git", "-C", str(ROOT), "archive", f"--output={archive}", COMMIT, *PARTS]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = done.stderr.strip().splitlines()[-1]
            raise Skip(f"the peer is an earlier commit, and git does not have it ({reason}): git fetch --unshallow")
        folder.mkdir()
        subprocess.run(["tar", "-xf", str(archive), "-C", str(folder)], check=True)
    return folder
