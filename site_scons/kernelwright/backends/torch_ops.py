"""The backend of sources for PyTorch: their operators are called through ``torch.ops``, and by nothing of ours."""

from __future__ import annotations

import keyword
import re
from collections.abc import Mapping
from typing import Any

from ..core.need import Need
from .base import Backend
from .operators import parts_of
from .stubs import class_stub

TYPES = {
    **{"Tensor": "_torch.Tensor", "int": "_b.int", "SymInt": "_b.int", "float": "_b.float", "bool": "_b.bool"},
    **{"str": "_b.str", "Scalar": "_b.complex", "ScalarType": "_torch.dtype", "Device": "_torch.device"},
    **{"Layout": "_torch.layout", "MemoryFormat": "_torch.memory_format", "Generator": "_torch.Generator"},
}
"""A type in a schema -> the one of Python that callers pass or get."""

REPEATED = ("int", "float")
"""Types of which lists of a given length may be one number in a call."""

KIND = re.compile(r"(\w+)(?:\([^)]*\))?((?:\[\d*\]|\?)*)(?:\([^)]*\))?((?:\[\d*\]|\?)*)")
"""A type in a schema: its name, that of what aliases it, and whether it is a list, or may be None."""


class TorchOps(Backend):
    """Called as operators of PyTorch that the sources of a kernel register themselves."""

    name = "torch_ops"
    targets = ("cuda",)
    run_needs = (Need("torch", "torch>=2.4"),)
    runtime = ("torch_ops.py",)

    def stub_imports(self, runtime: str) -> str:
        """See :meth:`Backend.stub_imports`."""
        return f"import torch as _torch\n\nfrom {runtime}.torch_ops import Operators as _Operators\n"

    def stub(self, kernel: str, entry: Mapping[str, Any]) -> str:
        """See :meth:`Backend.stub`."""
        operators = entry["operators"]
        named = {name: operators["registered"][name]["schema"] for name in operators["names"]}
        methods = [_method(name.rpartition("::")[2].replace(".", "_"), schema) for name, schema in named.items()]
        methods += [_method("__call__", schema) for schema in named.values() if len(named) == 1]
        return class_stub(kernel, entry, "_Operators", "".join(methods))


def _method(name: str, schema: str) -> str:
    """The stub of an operator.

    Arguments:
        schema: without a name: ``(Tensor x, float eps=1e-5) -> Tensor``.
    """
    parameters, _, result = schema[1:].rpartition(") -> ")
    listed, names = ["self"], list[str]()
    for part in parts_of(parameters):
        if part == "*":
            listed.append("*")
            continue
        declared, is_optional, _ = part.partition("=")
        kind, _, called = declared.rpartition(" ")
        names.append(called)
        listed.append(f"{called}: {_python_type(kind)}{' = ...' if is_optional else ''}")
    if any(keyword.iskeyword(called) or called == "self" for called in names):  # PyTorch calls it self, too
        listed = ["self", "*arguments: _Any", "**named: _Any"]
    inside = result[1:-1] if result.startswith("(") and "," in result else result
    results = [_python_type(part.partition(" ")[0]) for part in parts_of(inside)]
    made = results[0] if len(results) == 1 else f"_b.tuple[{', '.join(results)}]"
    return f"    def {name}({', '.join(listed)}) -> {made}: ...\n"


def _python_type(kind: str) -> str:
    """The type of Python for one in a schema."""
    if kind == "()":
        return "None"
    match = KIND.fullmatch(kind)
    if match is None:
        return "_Any"
    text = TYPES.get(match[1], "_Any")
    for mark in re.findall(r"\[\d*\]|\?", match[2] + match[3]):
        # For a list of a given length, PyTorch takes one number as well: each element is that.
        one = f"{text} | " if match[1] in REPEATED and mark[1:-1] else ""
        text = f"{text} | None" if mark == "?" else f"{one}_b.list[{text}]"
    return text


BACKEND = TorchOps()
