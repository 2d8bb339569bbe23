"""A kernel's part of the ``.pyi`` of a package: a class with its calls, its documentation, and a variable."""

from __future__ import annotations

import keyword
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.dtype import number_kind
from ..runtime.passed import optional_in
from ..runtime.size import argument_text

_Arguments = list[Mapping[str, Any]]


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
    result = _result([types.result] * len(outputs) + ([] if types.writes else _updated(entry, inputs, types)))
    # What comes behind an argument that a call leaves out is named.
    left_out = next((i for i, argument in enumerate(inputs) if argument["optional"]), len(inputs))
    split = next((i for i in range(left_out, len(inputs)) if not inputs[i]["optional"]), len(inputs))
    first, behind = inputs[:split], inputs[split:]
    calls: list[tuple[_Arguments, _Arguments, str]] = [(inputs, [], result)]
    calls += [(first, behind, result)] if behind else []
    if outputs and types.writes:
        named = [(first, behind + outputs, "None")] if left_out < len(inputs) else []
        calls = [(arguments, [], "None"), *named, *calls]
    decorator = "    @_overload\n" if len(calls) > 1 else ""
    methods = "".join(
        f"{decorator}    def __call__({_parameters(listed, named, types)}) -> {made}: ...\n"
        for listed, named, made in calls
    )
    return _class_stub(kernel, entry, types, methods)


def _result(types: Sequence[str]) -> str:
    """The type of what a call returns, which are values of these types."""
    return f"_b.tuple[{', '.join(types)}]" if types[1:] else "".join(types) or "None"


def _updated(entry: Mapping[str, Any], inputs: _Arguments, types: StubTypes) -> list[str]:
    """The types of the new contents of inputs that the kernel writes, and that a call returns instead."""
    written = {item["name"] for variant in entry["variants"] for item in variant["arguments"] if item.get("written")}
    updated = [item for item in inputs if item["name"] in written]
    return [f"{types.result} | None" if item["optional"] else types.result for item in updated]


def _class_stub(kernel: str, entry: Mapping[str, Any], types: StubTypes, methods: str) -> str:
    return class_stub(kernel, entry, types.base, methods)


def class_stub(kernel: str, entry: Mapping[str, Any], base: str, methods: str) -> str:
    """A class with some methods, and a variable of the kernel's name.

    Arguments:
        kernel, entry: as of :func:`kernel_stub`.
        base: the base class.
        methods: their text, indented.
    """
    name = f"_kernel_{kernel}"
    doc = textwrap.indent(documentation(kernel, entry), "    ").strip()
    return f'\nclass {name}({base}):\n    """{doc}\n    """\n\n{methods}\n{kernel}: {name}\n'


def _parameters(listed: _Arguments, named: _Arguments, types: StubTypes) -> str:
    """Parameters that are passed by position or by name, and then those that are passed by name only."""
    taken = {"self", *keyword.kwlist, *(text.partition(":")[0] for text in types.keywords)}
    complete = any(argument["output"] for argument in listed)  # then a call leaves nothing out
    texts = []
    for i, argument in enumerate([*listed, *named]):
        name = f"_{i}" if argument["name"] in taken else argument["name"]
        preset = "" if complete else default(listed[i:] or [argument])
        texts.append(f"{name}: {annotation(argument, types)}{preset}")
    only = [*texts[len(listed) :], *types.keywords]
    return ", ".join(["self", *(["/"] if texts else []), *texts[: len(listed)], *(["*", *only] if only else [])])


def call_arguments(entry: Mapping[str, Any]) -> _Arguments:
    """What the manifest says of a kernel's arguments, with ``optional``: whether a call may leave it out."""
    optional = optional_in(entry["variants"])
    return [{**item, "optional": item["name"] in optional} for item in entry["variants"][0]["arguments"]]


def default(arguments: Sequence[Mapping[str, Any]]) -> str:
    """What follows the annotation of the first of the last arguments of a call: a default, if all of them have one."""
    return f" = {arguments[0].get('default')}" if all(argument.get("optional") for argument in arguments) else ""


def annotation(argument: Mapping[str, Any], types: StubTypes) -> str:
    """The type of an argument in a ``.pyi``, by a name that the file imports."""
    kind = "" if argument["kind"] == "tensor" else number_kind(argument["dtype"])
    text = f"_b.{kind if kind in ('bool', 'float') else 'int'}" if kind else types.tensor
    return f"{text} | None" if argument.get("optional") else text


def documentation(kernel: str, entry: Mapping[str, Any]) -> str:
    """A kernel's docstring: the definition's, and the variants."""
    printable = "".join(c for c in entry["doc"] if c.isprintable() or c in "\n\t")
    doc = printable.replace("\\", "\\\\").replace('"""', "'''") or f"Kernel {kernel}."
    if "recorded" in entry:
        parameters = ", ".join(entry["recorded"]["parameters"])
        return f"{doc}\n\nIt is called as {kernel}[grid]({parameters})."
    if "operators" in entry:
        registered = entry["operators"]["registered"]
        listed = "\n".join(f"    {name}{registered[name]['schema']}" for name in entry["operators"]["names"])
        return f"{doc}\n\nOperators of PyTorch:\n{listed}"
    variants = "\n".join(f"    {_describe(variant)}" for variant in entry["variants"])
    return f"{doc}\n\nVariants, the first being the default:\n{variants}"


def _describe(variant: Mapping[str, Any]) -> str:
    def text(a: Mapping[str, Any]) -> str:
        shape, folds = a.get("shape", ()), a.get("folds", False)
        return argument_text(a["kind"], a["dtype"], shape, {}, (), a.get("given", True), folds=folds)

    arguments = ", ".join(f"{a['name']}: {text(a)}" for a in variant["arguments"])
    return f"{variant['slug']}: ({arguments}) for {', '.join(variant['archs'])}"
