"""What a wheel holds of a built package: the files that its manifest lists, and the manifest with their origin."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from ..errors import KernelwrightError, Where
from ..files import pretty_json
from ..package.loader import DIGEST_LINE
from ..records import Record, read_json
from .source import Source

REMEDY = "run scons again; if that does not help, remove the build folder"


def package_files(folder: Path, name: str, source: Source) -> dict[str, bytes]:
    """The files of a package, by their path in a wheel.

    Arguments:
        folder: the package's folder.
        name: its import name.
        source: where it was built from; the manifest in the wheel says so.

    Raises:
        KernelwrightError: the package is not built, or a file is not the one that its manifest lists.
    """
    where = Where(stage="wheel", location=f"{folder}/manifest.json")
    listed = read_json(folder / "manifest.json", _digests, REMEDY)
    if not any(path.startswith("_lib/") for path in listed):
        raise KernelwrightError(f"the package {name} has no built kernel", where, "build at least one for some target")
    inside = name.replace(".", "/")
    files = {f"{inside}/{path}": _verified(folder / path, digest) for path, digest in listed.items()}
    text = (folder / "manifest.json").read_text(encoding="utf-8")
    return {**files, f"{inside}/manifest.json": with_source(text, source).encode()}


def with_source(manifest: str, source: Source) -> str:
    """The text of a manifest that also says where its sources come from."""
    content = manifest.rpartition("," + DIGEST_LINE)[0]
    shown = pretty_json(source.as_json()).rstrip().replace("\n", "\n ")
    content = content.replace('\n "tools":', f'\n "source": {shown},\n "tools":', 1)
    digest = hashlib.sha256(content.encode()).hexdigest()
    return f"{content},{DIGEST_LINE}{json.dumps(digest)}\n}}\n"


def _digests(document: Record) -> dict[str, str]:
    files = document.record("files")
    return {name: files.record(name).text("sha256") for name in files.raw}


def _verified(path: Path, digest: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        where = Where(stage="wheel", location=str(path))
        raise KernelwrightError(f"it cannot be read: {error.strerror}", where, REMEDY) from error
    if hashlib.sha256(content).hexdigest() != digest:
        where = Where(stage="wheel", location=str(path))
        raise KernelwrightError("it is not the file that the manifest lists", where, REMEDY)
    return content
