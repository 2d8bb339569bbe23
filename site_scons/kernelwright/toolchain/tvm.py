"""Finds and identifies TVM and tvm-ffi by the RECORD files of pip, without importing them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.errors import ToolchainError
from ..core.surroundings import installed_record
from .ask import WHERE, identity


@dataclass(frozen=True)
class Lowerer:
    """TVM and tvm-ffi as they are installed: versions, and a digest of the installed files' hashes."""

    tvm: str
    tvm_ffi: str
    identity: str


def tvm_records() -> list[Path]:
    """The records of TVM and of tvm-ffi; raises a ToolchainError if one of them is not installed."""
    return [find_record("apache_tvm"), find_record("apache_tvm_ffi")]


def find_record(distribution: str) -> Path:
    """The RECORD file of a distribution; raises a ToolchainError if it is not installed."""
    record = installed_record(distribution)
    if record is None:
        name = distribution.replace("_", "-")
        raise ToolchainError(f"{name} is not installed", WHERE, f"pip install {name}")
    return record


def tvm_ffi_includes() -> tuple[Path, Path]:
    """The folders of tvm-ffi's headers and of DLPack's, which it brings along."""
    top = find_record("apache_tvm_ffi").parent.parent / "tvm_ffi"
    return top / "include", top / "3rdparty" / "dlpack" / "include"


def tvm_ffi_library() -> Path:
    """tvm-ffi's own library, which is loaded before any kernel's."""
    return find_record("apache_tvm_ffi").parent.parent / "tvm_ffi" / "lib" / "libtvm_ffi.so"


def probe_tvm(records: Sequence[Path]) -> Lowerer:
    """Read the records of TVM and of tvm-ffi."""
    tvm, tvm_ffi = (re.sub(r".*-(.+)\.dist-info$", r"\1", str(record.parent)) for record in records)
    return Lowerer(tvm, tvm_ffi, identity([[tvm, tvm_ffi]], map(_hashes, records)))


def _hashes(record: Path) -> bytes:
    """The hashes of shared libraries and sources.

    The rows of pip's own files (INSTALLER, ``*.pyc``) differ between installs, and those of extension modules between
    Python versions, which does not change what is lowered.
    """
    rows = [row for row in record.read_text().splitlines() if re.search(r"\.(so|py|h)(\.\d+)*,", row)]
    return "\n".join(sorted(row for row in rows if ".cpython-" not in row and ".abi3" not in row)).encode()
