"""A kernel's part of the ``.pyi`` of a package: a class with its calls, its documentation, and a variable."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.dtype import number_kind
from ..runtime.passed import optional_in
from ..runtime.size import argument_text


@dataclass(frozen=True)
class StubTypes:
    """The types in a kernel's part of a ``.pyi``.

    Arguments:
        base: the base class of the kernel.
        tensor: the type of an argument that is a tensor.
        result: the type of a new output.
        writes: whether outputs can be passed, to be written in place.
        keywords: parameters that are passed by name only.
    """

    base: str = "_Kernel"
    tensor: str = "_Tensor"
    result: str = "_Any"
    writes: bool = True
    keywords: tuple[str, ...] = ()


def kernel_stub(kernel: str, entry: Mapping[str, Any], types: StubTypes | None = None) -> str:
    """A kernel's part of a ``.pyi``: a class with its calls, and a variable.

    Arguments:
        kernel: the kernel's name.
        entry: its part of the manifest.
        types: the types of the kernel, its arguments and its results; None: the defaults.
    """
    types = types or StubTypes()
    if "recorded" in entry:
        return _class_stub(kernel, entry, types, "    def __getitem__(self, grid: _Any) -> _Any: ...\n")
    if entry.get("opaque"):
        return _class_stub(kernel, entry, types, "    def __call__(self, *arguments: _Any) -> _Any: ...\n")
    arguments = call_arguments(entry)
    outputs = [argument for argument in arguments if argument["output"]]
    inputs = [argument for argument in arguments if not argument["output"]]
    calls = [(arguments, "None")] if types.writes or not outputs else []
    if outputs:
        several = f"_b.tuple[{', '.join([types.result] * len(outputs))}]"
        calls.append((inputs, types.result if len(outputs) == 1 else several))
    decorator = "    @_overload\n" if len(calls) > 1 else ""
    methods = "".join(
        f"{decorator}    def __call__(self, {_parameters(listed, types)}) -> {result}: ...\n"
        for listed, result in calls
    )
    return _class_stub(kernel, entry, types, methods)


def _class_stub(kernel: str, entry: Mapping[str, Any], types: StubTypes, methods: str) -> str:
    name = f"_kernel_{kernel}"
    doc = textwrap.indent(documentation(kernel, entry), "    ").strip()
    return f'\nclass {name}({types.base}):\n    """{doc}\n    """\n\n{methods}\n{kernel}: {name}\n'


def _parameters(arguments: list[Mapping[str, Any]], types: StubTypes) -> str:
    listed = [f"{a['name']}: {annotation(a, types)}{default(arguments[i:])}" for i, a in enumerate(arguments)]
    return ", ".join([*listed, *(["/"] if listed else []), *(["*", *types.keywords] if types.keywords else [])])


def call_arguments(entry: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """What the manifest says of a kernel's arguments, with ``optional``: whether a call may leave it out."""
    optional = optional_in(entry["variants"])
    return [{**item, "optional": item["name"] in optional} for item in entry["variants"][0]["arguments"]]


def default(arguments: Sequence[Mapping[str, Any]]) -> str:
    """What follows the annotation of the first of the last arguments of a call: a default, if all of them have one."""
    return f" = {arguments[0].get('default')}" if all(argument.get("optional") for argument in arguments) else ""


def annotation(argument: Mapping[str, Any], types: StubTypes) -> str:
    """The type of an argument in a ``.pyi``, by a name that the file imports."""
    if argument["kind"] == "tensor":
        return f"{types.tensor} | None" if argument.get("optional") else types.tensor
    kind = number_kind(argument["dtype"])
    return f"_b.{kind}" if kind in ("bool", "float") else "_b.int"


def documentation(kernel: str, entry: Mapping[str, Any]) -> str:
    """A kernel's docstring: the definition's, and the variants."""
    printable = "".join(c for c in entry["doc"] if c.isprintable() or c in "\n\t")
    doc = printable.replace("\\", "\\\\").replace('"""', "'''") or f"Kernel {kernel}."
    if "recorded" in entry:
        parameters = ", ".join(entry["recorded"]["parameters"])
        return f"{doc}\n\nIt is called as {kernel}[grid]({parameters})."
    variants = "\n".join(f"    {_describe(variant)}" for variant in entry["variants"])
    return f"{doc}\n\nVariants, the first being the default:\n{variants}"


def _describe(variant: Mapping[str, Any]) -> str:
    def text(a: Mapping[str, Any]) -> str:
        shape, folds = a.get("shape", ()), a.get("folds", False)
        return argument_text(a["kind"], a["dtype"], shape, {}, (), a.get("given", True), folds=folds)

    arguments = ", ".join(f"{a['name']}: {text(a)}" for a in variant["arguments"])
    return f"{variant['slug']}: ({arguments}) for {', '.join(variant['archs'])}"
