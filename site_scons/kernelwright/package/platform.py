"""The platform of a wheel: the one that wheels can be built on, and the tag, by what the libraries need (PEP 600)."""

from __future__ import annotations

import logging
import platform
import re
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..core.arch import FAMILIES
from ..core.errors import KernelwrightError, Where


def untagged(family: str) -> str:
    """The tag of a wheel for a family of CPUs, if its real one is not known yet."""
    return f"linux_{family}"


ANALYSING = threading.Lock()
"""Held while auditwheel looks into a wheel: it changes the folder of the whole process (6.8), and a logger here."""


def require_platform() -> None:
    """Refuse to build a wheel where its libraries would not be what its name says.

    Raises:
        KernelwrightError: this is not Linux with glibc, on CPUs of a family that there is code for.
    """
    system, machine, library = sys.platform, platform.machine(), platform.libc_ver()[0]
    # An interpreter that is linked statically does not know its C library.
    if system == "linux" and machine in FAMILIES and library in ("glibc", ""):
        return
    message = f"this is {system} on {machine} with {library or 'an unknown C library'}, and wheels can be built"
    remedy = "build it on such a machine, or in a container of one: docker run --platform linux/amd64"
    only = f"{message} on linux on {' or '.join(FAMILIES)} with glibc only"
    raise KernelwrightError(only, Where(stage="wheel"), remedy)


def platform_tag(wheel: Path, family: str, others: Iterable[str] = ()) -> str:
    """The tag of the oldest system that a wheel runs on.

    Arguments:
        wheel: one with any Linux tag.
        family: the family of CPUs that it is for.
        others: names of the libraries that it needs of other packages.

    Returns:
        Such as ``manylinux_2_17_x86_64``.

    Raises:
        KernelwrightError: its libraries need something that not every such system has, or cannot be read.
    """
    with ANALYSING:
        analysis = _analyse(wheel, family, frozenset(others))
    policy = analysis.overall_policy.name
    if not policy.startswith("manylinux"):
        remedy = 'name libraries of other packages in libraries; with glibc = "2.28" only those of glibc are needed'
        raise KernelwrightError(f"it runs on no manylinux system: {_reasons(analysis)}", Where(stage="wheel"), remedy)
    return str(re.sub(r"^manylinux(1|2010|2014)_", _numbered, policy))


def _analyse(wheel: Path, family: str, others: frozenset[str]) -> Any:
    from auditwheel.architecture import Architecture
    from auditwheel.error import AuditwheelError
    from auditwheel.libc import Libc
    from auditwheel.wheel_abi import analyze_wheel_abi
    from elftools.common.exceptions import ELFError

    from ..backends.commands import BESIDE_BY_PATH

    # It warns of each cubin that it is an ELF file for a machine that it does not know.
    logger = logging.getLogger("auditwheel")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        return analyze_wheel_abi(
            Libc.GLIBC,
            Architecture(family),
            wheel,
            # What is in the wheel itself; it looks into all of that.
            others | {f"{BESIDE_BY_PATH}/*"},
            # CPU levels are chosen at run time, by the launcher.
            disable_isa_ext_check=True,
            allow_graft=False,
        )
    # What is damaged in a file shows as any of these: elftools checks little.
    except (AuditwheelError, ELFError, LookupError, OSError, RuntimeError, TypeError, ValueError) as error:
        message = f"what its libraries need cannot be found out: {error}"
        raise KernelwrightError(message, Where(stage="wheel", location=str(wheel)), "build it again") from error
    finally:
        logger.setLevel(level)


def _reasons(analysis: Any) -> str:
    needed = sorted({name for reference in analysis.external_refs.values() for name in reference.libs})
    versions = sorted({version for names in analysis.versioned_symbols.values() for version in names})
    return f"it needs {', '.join([*needed, *versions]) or 'an unknown library'}"


def _numbered(match: re.Match[str]) -> str:
    """The older names, as PEP 600 has them."""
    return {"1": "manylinux_2_5_", "2010": "manylinux_2_12_", "2014": "manylinux_2_17_"}[match[1]]
