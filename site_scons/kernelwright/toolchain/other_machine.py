"""Identifies a Python on CPUs of another family, such as one that qemu runs, by asking it what it is."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from ..core.errors import ToolchainError
from ..core.files import sha256_of
from ..core.request import ASIDE
from ..core.surroundings import PRELOADED
from .ask import WHERE, answer, identity

NEEDED = ("apache_tvm", "apache_tvm_ffi", *PRELOADED)
"""The distributions that a check needs there, as pip has recorded them."""

ASKED = """
import ctypes, glob, hashlib, json, os, platform, sys
value = ctypes.CDLL(None).getauxval
value.argtypes, value.restype = [ctypes.c_ulong], ctypes.c_ulong
records = [r for folder in sys.path for r in glob.glob(os.path.join(folder, "*.dist-info", "RECORD"))]
found = {r.split(os.sep)[-2]: hashlib.sha256(open(r, "rb").read()).hexdigest() for r in records[::-1]}
print(json.dumps([platform.machine(), sys.version, [value(16), value(26)], found]))
"""
"""What it runs. The numbers are those of AT_HWCAP and AT_HWCAP2, which say what its CPU can do."""


@dataclass(frozen=True)
class OtherMachine:
    """A Python on CPUs of another family.

    Arguments:
        python: the program that runs it.
        identity: digest of that program, of what its CPU can do, and of what is installed there.
    """

    python: str = field(metadata=ASIDE)
    identity: str


def ask_other_machine(family: str, setting: str) -> OtherMachine:
    """Run the Python that the setting ``cross_pythons`` names for a family.

    Arguments:
        setting: a path, which may begin with ``~``, or the name of a program on PATH.

    Raises:
        ToolchainError: it cannot be run, is for another family, or lacks what checks need.
    """
    named = f"cross_pythons names {setting!r} for {family}"
    remedy = f"name a Python for {family} that has {', '.join(NEEDED)}; a script may run one with qemu-{family}"
    python = shutil.which(os.path.expanduser(setting))  # noqa: PTH111
    if python is None:
        raise ToolchainError(f"{named}, and there is no such program", WHERE, remedy)
    path = os.path.abspath(python)  # noqa: PTH100 (links stay: one is how Python finds its environment)
    try:
        machine, *facts, found = json.loads(answer([path, "-s", "-c", ASKED], remedy))
    except ValueError as error:
        raise ToolchainError(f"{named}, which does not run Python: {error}", WHERE, remedy) from error
    if machine != family:
        raise ToolchainError(f"{named}, which is for {machine}", WHERE, remedy)
    if missing := [name for name in NEEDED if not any(each.startswith(f"{name}-") for each in found)]:
        raise ToolchainError(f"{named}, which does not have {', '.join(missing)}", WHERE, remedy)
    return OtherMachine(path, identity([sha256_of(Path(path)), *facts, found]))
