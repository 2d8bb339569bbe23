"""manifest.json: what is in a kernel package, and where it came from. ``docs/manifest.md`` describes the schema."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..files import canonical_json, sha256_of
from .loader import SCHEMA, manifest_digest


@dataclass(frozen=True)
class BuiltUnit:
    """One lowering of one variant, and what was compiled from it.

    Arguments:
        signature: the content of signature.json.
        tir: path of module.tir.
        resources: arch -> path of the resource usage that nvcc reported; empty for the CPU.
        archs: the archs that the library has code for.
    """

    signature: Mapping[str, Any]
    tir: Path
    resources: Mapping[str, Path]
    archs: tuple[str, ...]


@dataclass(frozen=True)
class BuiltVariant:
    """A variant with its units, one for each CPU arch and one for CUDA."""

    slug: str
    config: Mapping[str, Any]
    units: tuple[BuiltUnit, ...]


@dataclass(frozen=True)
class BuiltKernel:
    """A kernel whose library is built; ``library`` is its path relative to the package."""

    name: str
    doc: str
    library: str
    variants: tuple[BuiltVariant, ...]


@dataclass(frozen=True)
class BuiltPackage:
    """All that the assembly of a package needs.

    Arguments:
        name: import name.
        version: Kernelwright's version.
        tools: tool -> what the toolchain says of it, without paths.
        flags: kernel -> nvcc flags.
        backends: execution backends, the default first.
        kernels: sorted by name.
    """

    name: str
    version: str
    tools: Mapping[str, Any]
    flags: Mapping[str, tuple[str, ...]]
    backends: tuple[str, ...]
    kernels: tuple[BuiltKernel, ...]


def make_manifest(package: BuiltPackage, folder: Path, texts: Mapping[str, str]) -> str:
    """The text of manifest.json.

    Arguments:
        folder: the package's folder, in which the libraries are.
        texts: the other generated files of the package, by name.
    """
    files = {
        name: _entry(hashlib.sha256(text.encode()).hexdigest(), len(text.encode())) for name, text in texts.items()
    }
    for kernel in package.kernels:
        library = folder / kernel.library
        files[kernel.library] = _entry(sha256_of(library), library.stat().st_size)
    manifest = {
        "schema": SCHEMA,
        "package": package.name,
        "kernelwright": package.version,
        "tools": package.tools,
        "backends": list(package.backends),
        "kernels": {kernel.name: _kernel(package, kernel) for kernel in package.kernels},
        "files": dict(sorted(files.items())),
    }
    return json.dumps({**manifest, "digest": manifest_digest(json.loads(json.dumps(manifest)))}, indent=1) + "\n"


def _entry(digest: str, size: int) -> dict[str, Any]:
    return {"sha256": digest, "size": size}


def _kernel(package: BuiltPackage, kernel: BuiltKernel) -> dict[str, Any]:
    first = kernel.variants[0].units[0].signature
    return {
        "doc": kernel.doc,
        "library": kernel.library,
        "outputs": [argument["name"] for argument in first["arguments"] if argument["output"]],
        "variants": [
            {
                "slug": variant.slug,
                "config": dict(variant.config),
                "archs": [arch for unit in variant.units for arch in unit.archs],
                "arguments": variant.units[0].signature["arguments"],
                "symbols": variant.units[0].signature["symbols"],
                "units": [_unit(package, kernel.name, unit) for unit in variant.units],
            }
            for variant in kernel.variants
        ],
    }


def _unit(package: BuiltPackage, kernel: str, unit: BuiltUnit) -> dict[str, Any]:
    source = sha256_of(unit.tir)
    target = unit.signature["target"]
    flags = list(package.flags.get(kernel, ())) if target == "cuda" else []
    identity = [package.version, package.tools, flags, list(unit.archs), source, unit.signature]
    return {
        "target": target,
        "archs": list(unit.archs),
        "schedule": unit.signature["schedule"],
        "source_digest": source,
        "signature": hashlib.sha256(canonical_json(identity).encode()).hexdigest(),
        "resources": {arch: json.loads(path.read_text())["kernels"] for arch, path in unit.resources.items()},
    }
