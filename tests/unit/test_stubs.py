"""What stubs say of a kernel's arguments, calls and documentation."""

from __future__ import annotations

import ast
from typing import Any

import pytest
from kernelwright.backends.stubs import StubTypes, annotation, documentation, kernel_stub
from support.launcher_build import scalar, tensor


def entry_of(*arguments: dict[str, Any], doc: str = "A kernel.") -> dict[str, Any]:
    variant = {"slug": "default", "config": {}, "archs": ["sm_80"], "arguments": list(arguments)}
    return {"doc": doc, "variants": [variant]}


def calls_of(text: str) -> list[tuple[str, str]]:
    """Parameters and result of each call in a stub."""
    (class_,) = [node for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    functions = [node for node in class_.body if isinstance(node, ast.FunctionDef)]
    return [(ast.unparse(node.args).removeprefix("self, /, "), ast.unparse(node.returns)) for node in functions]


@pytest.mark.parametrize(
    ("dtype", "type_"),
    [
        *(("bool", "_b.bool"), ("int8", "_b.int"), ("uint64", "_b.int"), ("float16", "_b.float")),
        *(("float64", "_b.float"), ("bfloat16", "_b.float"), ("float8_e4m3fn", "_b.float")),
    ],
)
def test_a_number_has_the_type_that_python_has_for_it(dtype: str, type_: str) -> None:
    assert annotation(scalar("a", dtype), StubTypes()) == type_
    assert annotation(tensor("a", dtype, ["n"]), StubTypes()) == "_Tensor"


def test_a_kernel_is_called_with_its_outputs_or_without_them() -> None:
    x, y, z = tensor("x", "float32", ["n"]), tensor("y", "float32", ["n"], output=True), scalar("z", "bool")
    one = kernel_stub("f", entry_of(x, y, z))
    assert calls_of(one) == [("x: _Tensor, y: _Tensor, z: _b.bool", "None"), ("x: _Tensor, z: _b.bool", "_Any")]
    two = kernel_stub("f", entry_of(y, x, {**y, "name": "w"}))
    assert calls_of(two)[1] == ("x: _Tensor", "_b.tuple[_Any, _Any]")
    assert calls_of(kernel_stub("f", entry_of(x))) == [("x: _Tensor", "None")]
    types = StubTypes(writes=False, result="_T", keywords=("stream: _Any = None",))
    assert calls_of(kernel_stub("f", entry_of(x, y), types)) == [("x: _Tensor, *, stream: _Any=None", "_T")]
    total = {**x, "name": "total", "written": True}  # of which such a call returns the new content
    assert calls_of(kernel_stub("f", entry_of(total), types))[0][1] == "_T"
    assert (
        calls_of(kernel_stub("f", entry_of({**total, "given": None}, x, y), types))[0][1] == "_b.tuple[_T, _T | None]"
    )
    assert calls_of(kernel_stub("f", entry_of(total)))[0][1] == "None"
    # A call that leaves something out and passes outputs names them, and names what is behind it.
    bias, eps = {**x, "name": "bias", "given": None}, {**scalar("eps", "float32"), "default": 1e-06}
    preset = "bias: _Tensor | None=None"
    assert calls_of(kernel_stub("f", entry_of(bias, x, y, eps))) == [
        ("bias: _Tensor | None, x: _Tensor, y: _Tensor, eps: _b.float | None", "None"),
        (f"{preset}, *, x: _Tensor, eps: _b.float | None=1e-06, y: _Tensor", "None"),
        ("bias: _Tensor | None, x: _Tensor, eps: _b.float | None=1e-06", "_Any"),
        (f"{preset}, *, x: _Tensor, eps: _b.float | None=1e-06", "_Any"),
    ]


@pytest.mark.parametrize("doc", ['"""\nimport os\n"""', "a\\", 'ends with "', "bell \x07 \x1b[0m", "\\N{BULLET}", ""])
def test_a_docstring_stays_a_docstring_whatever_is_in_it(doc: str) -> None:
    text = kernel_stub("f", entry_of(tensor("x", "float32", ["n", 4]), doc=doc))
    class_, variable = ast.parse(text).body
    assert isinstance(class_, ast.ClassDef) and isinstance(variable, ast.AnnAssign)
    said = ast.get_docstring(class_) or ""
    assert "default: (x: float32[n, 4]) for sm_80" in said
    assert not set(said) & {"\x07", "\x1b"} and (doc or not said.startswith("\n"))
    assert documentation("f", entry_of()).startswith("A kernel.")
