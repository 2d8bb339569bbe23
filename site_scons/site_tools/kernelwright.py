"""Lets SCons find the tool by name: ``Environment(tools=["kernelwright"])``."""

import sys
from pathlib import Path

# SCons has entered this file into sys.modules under its plain name, which is that of the package, and put its folder
# first on the path, where it would hide the package. SCons restores the path afterwards.
sys.modules.pop("kernelwright", None)
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kernelwright.scons import exists, generate  # noqa: E402

__all__ = ["exists", "generate"]
