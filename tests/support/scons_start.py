"""Starts ``scons`` as a fork of a process that has imported SCons and TVM, which is most of what a small build takes.

The fork is a process of its own, with a working folder, environment and output of its own, and runs SCons's own
``main()``. Its first fork server is a fork as well, a child of the ``scons`` process like any other; later ones, and
everything else that a build starts, are started as always. What differs from a start of ``python -m SCons``: the
modules are there, and hash values are the same in every run.
"""

from __future__ import annotations

import importlib
import pkgutil
import runpy
import sys
from pathlib import Path

from support import tvm_ready

# isort: split
import auditwheel.wheel_abi  # noqa: F401 (for wheels, and the next one for the stage GLIBC)
import elftools.elf.elffile  # noqa: F401
import SCons.Platform.posix
import SCons.Script  # (after what workers have imported)
import SCons.Tool
from kernelwright import backends, state, toolchain
from kernelwright import package as of_packages
from kernelwright import scons as of_scons
from kernelwright.core.pipeline import KINDS
from kernelwright.scons import package as kernel_package
from kernelwright.scons import tool
from kernelwright.stages.code import code_digest, loaded_code
from kernelwright.toolchain import torch_registry

# What builds import, and SCons for the environment that it makes folders with.
for package in (SCons.Tool, backends, of_packages, of_scons, state, toolchain):
    for found in pkgutil.iter_modules(package.__path__, f"{package.__name__}."):
        importlib.import_module(found.name)

# Our own code stays as it is, and each run would read all of it.
for label in KINDS:
    code_digest(label)
loaded_code()
kernel_package.own_code = loaded_code

TESTS = Path(__file__).resolve().parents[1]
SITE_SCONS = str(Path(tool.__file__).parents[2])


def main() -> None:
    """Be ``scons``; ``sys.argv`` has its arguments."""
    others = [path for path in sys.path if path and TESTS not in (Path(path), *Path(path).parents)]
    sys.path[:] = dict.fromkeys([SITE_SCONS, *others])
    tvm_ready.prepare(1)
    client = Path(tvm_ready.OBJECTS).parent / "registry/client.py"
    if client.exists():  # see ``operators``
        torch_registry.__file__ = str(client)
    for name in tvm_ready.ONLY_TVM:
        sys.modules.pop(name, None)
    sys.path.insert(0, str(Path.cwd()))
    runpy.run_module("SCons", run_name="__main__", alter_sys=True)
