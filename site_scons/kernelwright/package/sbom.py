"""The code of others that is in a package, with its licences: for the manifest, and as an SBOM in wheels (PEP 770).

The form is CycloneDX 1.6 (https://cyclonedx.org/docs/1.6/json/), and licences are expressions of SPDX. The SBOM has
no time and no serial number: equal packages have equal files.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from email import message_from_bytes
from typing import TYPE_CHECKING, Any

from ..core.files import pretty_json
from ..core.records import Record, decoded
from ..core.version import VERSION
from ..core.written import APACHE, CUDA, NVIDIA

if TYPE_CHECKING:
    from .project import Project

FILE = "sboms/kernelwright.cdx.json"
"""Where a wheel has the SBOM, in its folder ``.dist-info``."""


@dataclass(frozen=True, order=True)
class Part:
    """Something of others that is in a package.

    Arguments:
        name: of the distribution, or of the program that it is a part of.
        version: empty if it is not known.
        license: an expression of SPDX; ``NOASSERTION`` if the distribution does not say it in that form.
        what: what of it is in the package.
    """

    name: str
    version: str
    license: str
    what: str


def parts_of(version: str, tools: Mapping[str, Any], kernels: Mapping[str, Any]) -> list[dict[str, str]]:
    """What of others is in a package.

    Arguments:
        version: Kernelwright's.
        tools, kernels: as in the manifest.
    """
    own = Part("kernelwright", version, APACHE, "the modules that load kernels, and the launcher")
    parts = {own, *(part for kernel in kernels.values() for part in _of_kernel(kernel, tools))}
    return [asdict(part) for part in sorted(parts)]


def _of_kernel(kernel: Mapping[str, Any], tools: Mapping[str, Any]) -> Iterator[Part]:
    if "library" in kernel:
        yield Part("apache-tvm-ffi", tools.get("tvm", {}).get("tvm_ffi", ""), APACHE, "headers of tvm-ffi and DLPack")
    units = [unit for variant in kernel.get("variants", ()) for unit in variant.get("units", ())]
    for name, version, license_, what in kernel.get("written", ()):
        if name != CUDA:
            yield Part(name, version, license_, what)
        elif any(unit["target"] == "cuda" for unit in units):
            yield from (Part(name, tool["version"], license_, what) for tool in _cuda(tools))
    if "source_libraries" in kernel or "operators" in kernel:
        yield from (Part(CUDA, tool["version"], NVIDIA, "CUDA's runtime") for tool in _cuda(tools))
    for name, version, license_ in kernel.get("contains", ()):
        yield Part(name, version, license_, "sources or headers that definitions name")


def _cuda(tools: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The CUDA compilers that a package was built with."""
    return [tool for name, tool in tools.items() if name.partition(" ")[0] in ("nvcc", "nvrtc")]


def with_sbom(project: Project, files: Mapping[str, bytes]) -> Project:
    """A project whose wheel with these files has an SBOM."""
    (manifest,) = (content for name, content in files.items() if name.endswith("/manifest.json"))
    return replace(project, sboms={FILE: sbom(project.metadata, decoded(manifest).get("licenses", []))})


def sbom(metadata: bytes, parts: Sequence[Mapping[str, str]]) -> bytes:
    """The SBOM of a wheel.

    Arguments:
        metadata: its METADATA, which has name, version and licence of the project.
        parts: as in its manifest.
    """
    fields = message_from_bytes(metadata)
    project = {"type": "library", "name": str(fields["Name"]), "version": str(fields["Version"])}
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "tools": {"components": [{"type": "application", "name": "kernelwright", "version": VERSION}]},
            "component": {"bom-ref": "project", **project, **_licence(str(fields.get("License-Expression", "")))},
        },
        "components": [
            {
                "bom-ref": f"part-{number}",
                "type": "library",
                "name": part["name"],
                **({"version": part["version"]} if part["version"] else {}),
                "description": part["what"],
                **_licence(part["license"]),
            }
            for number, part in enumerate(parts)
        ],
        "dependencies": [{"ref": "project", "dependsOn": [f"part-{number}" for number in range(len(parts))]}],
    }
    return pretty_json(document).encode()


def licence_problems(manifest: Record, files: Mapping[str, bytes]) -> Iterator[str]:
    """The licences are those of what the manifest has, and the SBOM says the same.

    Arguments:
        manifest: of a package that is right otherwise, or of device code.
        files: all of the wheel.
    """
    keys = ("name", "version", "license", "what")
    parts = [{key: part.text(key) for key in keys} for part in manifest.records("licenses")]
    raw = manifest.raw
    if not manifest.has("arch") and parts != parts_of(raw["kernelwright"], raw["tools"], raw["kernels"]):
        yield "its manifest lists other licences than those of what is in it"
    inside = {name.partition("/")[2]: content for name, content in files.items() if ".dist-info/" in name}
    if inside.get(FILE) != sbom(inside["METADATA"], parts):
        yield f"{FILE} is not the list of licences that its manifest has"


def _licence(expression: str) -> dict[str, Any]:
    known = expression not in ("", "NOASSERTION")
    return {"licenses": [{"expression": expression}]} if known else {}
