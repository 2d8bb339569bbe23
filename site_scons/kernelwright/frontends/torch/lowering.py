"""Notes which operators a definition names. What they take is known when their library is linked."""

from __future__ import annotations

from collections.abc import Callable

from ...core.files import pretty_json
from ...core.signature import SCHEMA
from ..base import SIGNATURE
from ..unit import LoweredKernel, Unit
from .operators import Operators

SCHEDULE = "as written"


def lower(operators: Operators, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """The names, and a signature without arguments.

    Raises:
        DefinitionError: they are no names of operators.
    """
    operators.check(unit.where)
    signature = {
        "schema": SCHEMA,
        **{"kernel": unit.kernel, "slug": unit.slug, "target": unit.target, "arch": unit.arch, "entry": ""},
        **{"schedule": SCHEDULE, "arguments": [], "symbols": {}, "device_kernels": [], "opaque": True},
        "operators": {name: " ".join(operators.schemas.get(name, "").split()) for name in operators.names},
    }
    text = "".join(f"{name}{operators.schemas.get(name, '')}\n" for name in operators.names)
    files = {"operators.txt": text.encode(), SIGNATURE: pretty_json(dict(sorted(signature.items()))).encode()}
    return LoweredKernel(files, SCHEDULE)
