"""``kernelwright merge``: assembles packages from what shards have built."""

from __future__ import annotations

import argparse
import subprocess
import sys

from .command import Command, argument


def run(options: argparse.Namespace) -> int:
    """Have scons assemble packages from the build caches of shards."""
    command = [sys.executable, "-m", "SCons", "-Q", *(f"--merge={folder}" for folder in options.folders)]
    command += [*(["--build-missing"] if options.build_missing else []), *options.rest]
    sys.stdout.flush()
    return 1 if subprocess.run(command, check=False).returncode else 0


COMMAND = Command(
    "merge",
    "assemble this folder's packages from what shards have built (scons --shard 2/8), and compile nothing",
    run,
    (
        argument("folders", "build cache of a shard, as its cache_dir names it", nargs="+", metavar="FOLDER"),
        argument("--build-missing", "compile here what the shards lack", action="store_true"),
    ),
    {1: "kernels are missing, which are named with their shards, or scons fails"},
    rest="What follows -- is for scons: -- wheel ARCHS=sm_90a",
)
