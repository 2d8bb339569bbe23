"""Checks what a wheel says of operators that its libraries register with PyTorch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier
from packaging.utils import canonicalize_name

from ..backends.description import description_of_operators
from ..core.errors import shown
from ..core.records import Record

FIELDS = ("torch", "built_with", "needs_cuda", "names", "namespaces", "registered")
"""What the manifest says of the operators of a kernel."""

PROBES = tuple(f"{major}.{minor}.{patch}" for major in range(1, 4) for minor in range(60) for patch in (0, 9))
"""Versions of PyTorch, those to come among them. Those that a dependency names are tried as well."""


def operator_problems(name: str, kernel: Record, library: bytes, needs: Iterable[str]) -> Iterator[str]:
    """The operators are those of the library, and the wheel asks for a PyTorch that the library was built for.

    Arguments:
        name, kernel: a kernel, and its part of the manifest, which has ``operators``.
        library: its content.
        needs: what the wheel depends on, as in its metadata.

    Raises:
        ValueError: the part has another form.
    """
    described = kernel.record("operators")
    described.require_names(*FIELDS)
    wanted, _ = described.text("torch"), (described.flag("needs_cuda"), described.texts("namespaces"))
    registered = described.record("registered")
    for operator, one in described.members("registered"):
        one.require_names("schema", "keys")
        _ = one.texts("keys")
        if not one.text("schema").startswith("("):
            yield f"kernel {name} registers {shown(operator)} with the schema {shown(one.text('schema'))}"
    if unknown := sorted({*described.texts("names")} - registered.raw.keys()):
        yield f"kernel {name} does not register {shown(unknown[0])}, which it has by name"
    if description_of_operators(name, described.raw).encode() not in library:
        yield f"the library of kernel {name} is not what the manifest says of its operators"
    if not any(_suits(need, wanted) for need in needs):
        remedy = f'add "{wanted}" to project.dependencies'
        yield f"it does not depend on {shown(wanted)}, for which kernel {name} was built: {remedy}"


def _suits(need: str, wanted: str) -> bool:
    """Whether a dependency installs PyTorch in every case, and only in versions that are wanted."""
    try:
        given, allowed = Requirement(need), Requirement(wanted).specifier
    except (InvalidRequirement, InvalidSpecifier):
        return False
    if canonicalize_name(given.name) != "torch" or given.marker is not None:
        return False
    named = [one.version for one in given.specifier if one.operator != "===" and "*" not in one.version]
    installed = set(given.specifier.filter((*PROBES, *named)))
    return bool(installed) and installed <= set(allowed.filter(installed))
