"""Tells whether a manifest describes a library: the library has a digest of what the manifest says about the kernel.

So a manifest with other dtypes, sizes or variants than the library, and a library in the place of another one, are
found without running either. The digest is no signature: whoever makes a library can put any text into it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..core.converter import to_json
from ..core.files import canonical_json
from ..core.signature import Argument

if TYPE_CHECKING:
    from ..core.records import Record
    from .plan import KernelPlan

MARK = "kernelwright describes"


def description_of(kernel: KernelPlan) -> str:
    """The text that is put into the library of a kernel."""
    variants = [
        {
            "slug": variant.slug,
            "config": dict(variant.config),
            "tabled": list(variant.tabled),
            "exported": variant.units[0].exported,
            "arguments": list(_arguments(variant.units[0].arguments)),
            "symbols": dict(variant.units[0].symbols),
            "multiples": dict(variant.units[0].multiples),
            **_strides(variant.units[0].stride_symbols),
            **_limited(variant.units[0].limited),
            **_requires(variant.units[0].requires),
        }
        for variant in kernel.variants
    ]
    tables = [table.to_json() for table in kernel.tables]
    described = {"outputs": list(kernel.outputs), "declared": kernel.declared, "meaning": list(kernel.meaning)}
    described |= _recorded(to_json(kernel.recorded) if kernel.recorded else None)
    return _text(kernel.name, {**described, "tables": tables, "variants": variants})


def description_in(name: str, entry: Record) -> str:
    """The text that must be in the library of a kernel, according to the kernel's part of a manifest.

    Raises:
        ValueError: that part does not have its form.
    """
    variants = [
        {
            "slug": variant.text("slug"),
            "config": variant.mapping("config"),
            "tabled": variant.texts("tabled") if variant.has("tabled") else [],
            "exported": variant.text("exported") if variant.has("exported") else "",
            "arguments": list(_arguments(variant.typed(tuple[Argument, ...], "arguments"))),
            "symbols": variant.mapping("symbols"),
            "multiples": variant.mapping("multiples") if variant.has("multiples") else {},
            **_strides(variant.mapping("stride_symbols") if variant.has("stride_symbols") else {}),
            **_limited(variant.mapping("limited") if variant.has("limited") else None),
            **_requires(variant.texts("requires") if variant.has("requires") else ()),
        }
        for variant in entry.records("variants")
    ]
    tables = [table.raw for table in entry.records("tables")] if entry.has("tables") else []
    meaning = entry.texts("meaning") if entry.has("meaning") else []
    described = {"outputs": entry.texts("outputs"), "declared": entry.optional(entry.count, "declared")}
    described |= _recorded(entry.mapping("recorded") if entry.has("recorded") else None)
    return _text(name, {**described, "meaning": meaning, "tables": tables, "variants": variants})


def description_of_operators(name: str, operators: Mapping[str, Any]) -> str:
    """The text that is in a library which registers operators with PyTorch.

    Arguments:
        name: the kernel's.
        operators: what the manifest says of them.
    """
    return _text(name, {"operators": dict(operators)})


def _strides(symbols: Mapping[str, str]) -> dict[str, Any]:
    """The symbols that only strides have. Kernels without any get no entry, so their digests are what they were."""
    return {"stride_symbols": dict(symbols)} if symbols else {}


def _limited(numbers: Mapping[str, str] | None) -> dict[str, Any]:
    """What device functions get in which types. Kernels that compute with sizes themselves get no entry."""
    return {} if numbers is None else {"limited": dict(numbers)}


def _requires(texts: Iterable[str]) -> dict[str, Any]:
    """What the sizes of a call have to be. Other kernels get no entry, as with strides."""
    return {"requires": list(texts)} if texts else {}


def _recorded(function: Mapping[str, Any] | None) -> dict[str, Any]:
    """What callers must know of a recorded function. Other kernels get no entry, as with strides."""
    return {"recorded": dict(function)} if function else {}


def _arguments(arguments: Iterable[Argument]) -> Iterator[list[Any]]:
    """What callers must know about arguments: not the alignment, in which the images of a variant may differ."""
    for argument in arguments:
        kind = [argument.name, argument.kind, argument.dtype, argument.output, argument.written]
        given = [] if argument.given is True else [argument.given]
        default = [] if argument.default is None else [{"default": argument.default}]
        folds = ["folds"] if argument.folds else []
        yield [*kind, list(argument.shape), list(argument.strides), *given, *default, *folds]


def _text(name: str, described: Mapping[str, Any]) -> str:
    digest = hashlib.sha256(canonical_json([name, described]).encode()).hexdigest()
    return f"{MARK} {name} {digest}"
