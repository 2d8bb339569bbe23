"""manifest.json: what is in a kernel package, and where it came from. ``docs/manifest.md`` describes the schema.

Each kernel's part, its entry, is made when the kernel is linked. So a package of a thousand kernels of which one
changed is assembled from a thousand finished texts.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..backends import get
from ..backends.files import UnitFiles, VariantFiles, usages_of
from ..core.converter import from_json, to_json
from ..core.errors import DefinitionError, KernelwrightError, Where, shown
from ..core.files import canonical_json, digest_of, pretty_json, sha256_of
from ..core.request import ASIDE
from ..core.signature import RecordedCall, function_of
from ..define.debug import NO
from ..define.kernel_options import KernelOptions
from ..runtime.arguments import outputs_of
from ..runtime.loader import DIGEST_LINE, SCHEMA
from ..runtime.tables import DeviceTable
from ..toolchain.contained import Contained
from ..toolchain.pytorch import LIBRARIES as TORCH
from .drivers import needed_by
from .sbom import parts_of

DEFAULT = KernelOptions.frontend
"""The front end that an entry does not name."""

REMEDY = "try again; if that does not help, remove the build folder"


@dataclass(frozen=True)
class EntrySource:
    """What a kernel's part of the manifest is made from.

    Arguments:
        doc: the kernel's docstring.
        library: path of its library, relative to the package; empty: it has none.
        launcher: likewise, of the library that this one needs.
        variants: the files of its variants.
        flags: its nvcc flags.
        tools: tool -> what the toolchain says of it, without paths.
        version: Kernelwright's version.
        backward: name of the kernel that computes its gradients; None: there is none.
        images_below: the folder that names of device images are relative to, if the library does not hold them.
        own_tools: those tools that not all kernels of a package are made with, which its units name.
        declared, tables, tabled, meaning: as of a plan; see :class:`backends.plan.KernelPlan`.
        frontend: what its definition is written in.
        libraries: those of other packages that it needs: name, folder below one of ``sys.path``, what pip installs.
        source_libraries: paths of the libraries of its sources with host code of their own, relative to the package.
        operators: what its library registers with PyTorch, and which PyTorch it needs; empty: it has no operators.
        parts: the distributions that have sources and headers which its code is made of.
        written: what of others the compilers put into it: distribution, version, licence, and what of it.
        debug: what was built for debuggers, one of :data:`define.debug.LEVELS`.
    """

    doc: str
    library: str
    launcher: str
    variants: tuple[VariantFiles, ...]
    flags: tuple[str, ...]
    tools: Mapping[str, Any]
    version: str
    backward: str | None = None
    images_below: Path | None = field(default=None, metadata=ASIDE)
    own_tools: Mapping[str, Any] = field(default_factory=dict)
    declared: int | None = None
    tables: tuple[DeviceTable, ...] = ()
    tabled: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    frontend: str = DEFAULT
    meaning: tuple[str, ...] = ()
    libraries: tuple[tuple[str, str, str], ...] = ()
    source_libraries: tuple[str, ...] = ()
    operators: Mapping[str, Any] = field(default_factory=dict)
    parts: tuple[Contained, ...] = ()
    written: tuple[tuple[str, str, str, str], ...] = ()
    debug: str = NO


@dataclass(frozen=True)
class PackagedKernel:
    """What the assembly of a package needs of one kernel.

    Arguments:
        name: the kernel's name.
        entry: the text that :func:`make_entry` made.
        backends: how it can be called, its default first.
        products: path in the package -> SHA-256 and bytes.
    """

    name: str
    entry: str
    backends: tuple[str, ...]
    products: Mapping[str, tuple[str, int]]


@dataclass(frozen=True)
class BuiltPackage:
    """All that the assembly of a package needs.

    Arguments:
        name: import name.
        version: Kernelwright's version.
        tools: tool -> what the toolchain says of it, without paths.
        backends: the execution backends of its kernels, the default first.
        kernels: sorted by name.
        compress: the compression of device code: ``mode``, and the oldest ``cuda`` of a driver; empty: there is none.
        device_code: where it is, if libraries do not hold it: ``folder``, relative to the package, and ``packages``,
            arch -> import name of the package that a wheel would have it in; empty: libraries hold it.
        project: version of the project that it belongs to; empty: unknown.
        missing: what failed and is left out of a partial package; empty: it is complete.
        key: of a kernel that is compiled on demand: the digest of all that decides what is in its folder.
        machine: the family of CPUs that libraries of the package are for.
    """

    name: str
    version: str
    tools: Mapping[str, Any]
    backends: tuple[str, ...]
    kernels: tuple[PackagedKernel, ...]
    compress: Mapping[str, Any] = field(default_factory=dict)
    device_code: Mapping[str, Any] = field(default_factory=dict)
    project: str = ""
    missing: Sequence[Mapping[str, Any]] = ()
    key: str = ""
    machine: str = ""

    @property
    def has_libraries(self) -> bool:
        """Whether a file of the package is for a family of CPUs."""
        return any(path.endswith(".so") for kernel in self.kernels for path in kernel.products)


OF_SIZES = ("stride_symbols", "multiples", "limited", "requires")
"""What a variant's part of the manifest has of a signature only if it says something of these."""


def make_entry(kernel: EntrySource) -> str:
    """The text of a kernel's part of the manifest."""
    described = [(variant, [unit.read_signature() for unit in variant.units]) for variant in kernel.variants]
    first = described[0][1][0]
    drivers = needed_by(unit for variant in kernel.variants for unit in variant.units)
    entry = {
        "doc": kernel.doc,
        **({"frontend": kernel.frontend} if kernel.frontend != DEFAULT else {}),
        **({"library": kernel.library} if kernel.library else {}),
        **({"launcher": kernel.launcher} if kernel.launcher else {}),
        **({"source_libraries": kernel.source_libraries} if kernel.source_libraries else {}),
        **({"operators": kernel.operators} if kernel.operators else {}),
        **({"libraries": kernel.libraries} if kernel.libraries else {}),
        **({"contains": [part.shown for part in kernel.parts]} if kernel.parts else {}),
        **({"written": [list(part) for part in kernel.written]} if kernel.written else {}),
        **({"debug": kernel.debug} if kernel.debug != NO else {}),
        **({"opaque": True} if first.get("opaque") else {}),
        **({"recorded": _recorded(described)} if "recorded" in first else {}),
        "outputs": outputs_of(first),
        **({"backward": kernel.backward} if kernel.backward else {}),
        **({"drivers": drivers} if drivers else {}),
        **({"meaning": list(kernel.meaning)} if kernel.meaning else {}),
        **({"declared": kernel.declared} if kernel.declared is not None else {}),
        **({"tables": [table.to_json() for table in kernel.tables]} if kernel.tables else {}),
        "variants": [
            {
                "slug": variant.slug,
                "config": dict(variant.config),
                "archs": [arch for unit in variant.units for arch in unit.archs],
                **({"tabled": list(kernel.tabled[variant.slug])} if variant.slug in kernel.tabled else {}),
                **({"exported": signatures[0]["exported"]} if "exported" in signatures[0] else {}),
                "arguments": signatures[0]["arguments"],
                "symbols": signatures[0]["symbols"],
                **{name: signatures[0][name] for name in OF_SIZES if name in signatures[0]},
                "units": [_unit(kernel, *both) for both in zip(variant.units, signatures, strict=True)],
            }
            for variant, signatures in described
        ],
    }
    return pretty_json(entry)


def make_manifest(package: BuiltPackage, texts: Mapping[str, str]) -> str:
    """The text of manifest.json.

    Arguments:
        texts: the other generated files of the package, by name.
    """
    files = {name: listed(text.encode()) for name, text in texts.items()}
    files |= {path: _file(*product) for kernel in package.kernels for path, product in kernel.products.items()}
    entries = {kernel.name: json.loads(_with_backends(kernel)) for kernel in package.kernels}
    head = {
        "schema": SCHEMA,
        "package": package.name,
        **({"version": package.project} if package.project else {}),
        "kernelwright": package.version,
        **({"key": package.key} if package.key else {}),
        **({"machine": package.machine} if package.machine and package.has_libraries else {}),
        "tools": package.tools,
        "licenses": parts_of(package.version, package.tools, entries),
        "backends": described_backends(package.backends),
        **({"compress": dict(package.compress)} if package.compress else {}),
        **({"device_code": dict(package.device_code)} if package.device_code else {}),
        **({"missing": list(package.missing)} if package.missing else {}),
    }
    kernels = ",\n  ".join(f"{json.dumps(k.name)}: {_indented(_with_backends(k), 2)}" for k in package.kernels)
    parts = [pretty_json(head).removesuffix("\n}\n"), f'\n "kernels": {{\n  {kernels}\n }}']
    return sealed_manifest(
        ",".join([*parts, f'\n "files": {_indented(pretty_json(dict(sorted(files.items()))).rstrip(), 1)}'])
    )


def linked_libraries(manifest: Mapping[str, Any]) -> dict[str, str]:
    """The libraries of other packages that kernels of a manifest are linked with -> what pip installs."""
    kernels = list(manifest["kernels"].values())
    torch = {name: kernel["operators"]["torch"] for kernel in kernels if "operators" in kernel for name in TORCH}
    linked = [library for kernel in kernels for library in kernel.get("libraries", ())]
    return torch | {name: requirement for name, _, requirement in linked}


def require_distinct_operators(
    package: str, kernels: Sequence[PackagedKernel], locations: Mapping[str, str] = MappingProxyType({})
) -> None:
    """Raise a DefinitionError if two kernels register one operator or namespace: PyTorch ends a process with both.

    Arguments:
        package: its name, which is the namespace of kernels for the backend ``torch``, beside that with the version.
        locations: name of a kernel -> where it is defined, for the error.
    """

    def both(other: str, kernel: str) -> tuple[str, Where]:
        place = f" ({locations[other]})" if other in locations else ""
        return f"the kernels {other}{place} and {kernel} both", Where(kernel, None, "assemble", locations.get(kernel))

    named = {f"{package}::{kernel.name}": kernel.name for kernel in kernels if "torch" in kernel.backends}
    owners: dict[str, str] = {}
    for kernel in kernels:
        entry = json.loads(kernel.entry) if '"operators": ' in kernel.entry else {}
        operators = entry.get("operators", {"registered": (), "namespaces": ()})
        for name in operators["registered"]:
            if other := owners.get(name, named.get(name.partition(".")[0])):
                said, where = both(other, kernel.name)
                raise DefinitionError(
                    f"{said} register the operator {name}", where, "register it in one of them only, or rename one"
                )
            owners[name] = kernel.name
        for name in operators["namespaces"]:
            if name in owners:
                said, where = both(owners[name], kernel.name)
                raise DefinitionError(
                    f"{said} have TORCH_LIBRARY({name}, m)",
                    where,
                    f"write TORCH_LIBRARY_FRAGMENT({name}, m) in one of them",
                )
            owners[name] = kernel.name


def sealed_manifest(content: str) -> str:
    """Close a manifest: ``content`` is a JSON object without its last brace, and its digest becomes the last key."""
    digest = hashlib.sha256(content.encode()).hexdigest()
    return f"{content},{DIGEST_LINE}{json.dumps(digest)}\n}}\n"


def sealed_document(document: Mapping[str, Any]) -> str:
    """The text of a manifest with these keys, and with its digest as the last one."""
    covered = {key: value for key, value in document.items() if key != "digest"}
    return sealed_manifest(pretty_json(covered).removesuffix("\n}\n"))


def described_backends(names: Iterable[str]) -> dict[str, Any]:
    """What loads kernels for each backend, and what has to be installed: what is imported, and what pip installs."""
    chosen = {name: get(name) for name in names}
    needs = {name: [[need.module, need.requirement] for need in backend.run_needs] for name, backend in chosen.items()}
    return {name: {"modules": list(backend.runtime), "needs": needs[name]} for name, backend in chosen.items()}


def listed(content: bytes) -> dict[str, Any]:
    """What a manifest says of a file."""
    return _file(hashlib.sha256(content).hexdigest(), len(content))


def _with_backends(kernel: PackagedKernel) -> str:
    """A kernel's part with its backends as the first key; its text was made without them."""
    before, brace, members = kernel.entry.strip().partition("{")
    if before or not brace:
        message = f"entry.json is {shown(kernel.entry)}, expected a JSON object"
        raise KernelwrightError(message, Where(kernel.name, stage="package"), REMEDY)
    return f'{{\n "backends": {json.dumps(kernel.backends)},{members}'


def _recorded(described: Iterable[tuple[VariantFiles, Sequence[Mapping[str, Any]]]]) -> dict[str, Any]:
    """What callers of a recorded function have to know, whose calls make the variants."""
    calls = [
        (unit.archs, from_json(RecordedCall, signature["recorded"]))
        for variant, signatures in described
        for unit, signature in zip(variant.units, signatures, strict=True)
    ]
    function: dict[str, Any] = to_json(function_of(calls))
    return function


def _indented(text: str, depth: int) -> str:
    return text.replace("\n", "\n" + " " * depth)


def _file(digest: str, size: int) -> dict[str, Any]:
    return {"sha256": digest, "size": size}


def _image(path: Path, folder: Path) -> dict[str, Any]:
    return {"file": path.relative_to(folder).as_posix(), **_file(sha256_of(path), path.stat().st_size)}


def _source_digest(unit: UnitFiles) -> str:
    """What stands for a unit's source. The module does not tell what a source includes; the code made of it does."""
    if unit.named_in or unit.own:
        return digest_of(map(Path, [unit.module, *unit.images.values(), *unit.own]))
    return sha256_of(Path(unit.module))


def _unit(kernel: EntrySource, unit: UnitFiles, signature: Mapping[str, Any]) -> dict[str, Any]:
    source, folder = _source_digest(unit), kernel.images_below
    flags = list(kernel.flags) if unit.target == "cuda" else []
    images = {arch: _image(Path(path), folder) for arch, path in unit.images.items()} if folder else {}
    identity = [kernel.version, {**kernel.tools, **kernel.own_tools}, flags, list(unit.archs), source, signature]
    return {
        "target": unit.target,
        "archs": list(unit.archs),
        **({"source_arch": unit.own_arch} if unit.own_arch and unit.target == "cuda" else {}),
        "schedule": signature["schedule"],
        "source_digest": source,
        "signature": hashlib.sha256(canonical_json(identity).encode()).hexdigest(),
        "resources": {arch: usage["kernels"] for arch, usage in usages_of(unit).items()},
        **({"images": images} if images else {}),
        **({"tools": dict(kernel.own_tools)} if kernel.own_tools else {}),
    }
