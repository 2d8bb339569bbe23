"""The arguments of a call are compared with the schema that an operator was registered with."""

from __future__ import annotations

import pytest
from kernelwright.backends.operators import registered_operators, require_schema
from kernelwright.core.errors import DefinitionError, Where

X = {"name": "x", "shape": ["n"]}
MAYBE = {"name": "x", "shape": ["n"], "optional": True}
F = {"name": "f"}


@pytest.mark.parametrize(
    ("schema", "arguments", "problem"),
    [
        ("(Tensor! out, Tensor x, float f) -> ()", [X, X, F], ""),
        ("(Tensor(a!)? out, *, Tensor x, float f=1.0, int[2] sizes=[1, 2]) -> Tensor(a!)", [MAYBE, X], ""),
        ("(Tensor!? x, bool b=False) -> (Tensor, Tensor)", [MAYBE, F], ""),
        ("() -> ()", [], ""),
        ("(Tensor x) -> ()", [X, F], "2 arguments are declared, and op has 1"),
        ("(Tensor x, float f, int i=1) -> ()", [X], "1 arguments are declared, and op has 3"),
        ("(float f, Tensor x) -> ()", [X, F], "argument 'x' is a tensor, and the schema of op has 'float f' there"),
        ("(Tensor f) -> ()", [F], "argument 'f' is a number, and the schema of op has 'Tensor f' there"),
        ("(Tensor[] x) -> ()", [X], "argument 'x' is a tensor, and the schema of op has 'Tensor[] x' there"),
        ("(Tensor x) -> ()", [MAYBE], "argument 'x' may be None, and the schema of op has 'Tensor x' there"),
    ],
)
def test_declared_arguments_are_those_of_the_schema(schema, arguments, problem):
    if not problem:
        return require_schema("op", schema, arguments, Where())
    with pytest.raises(DefinitionError) as caught:
        require_schema("op", schema, arguments, Where())
    assert problem in str(caught.value) and f"declare what its schema says: op{schema}" in str(caught.value)


def test_schemas_are_found_in_the_texts_of_an_object(tmp_path):
    texts = [b"mix(Tensor! out, Tensor x) -> ()", b"no schema", b"f()", b"one(int i) -> Tensor", b"a(b) -> "]
    (tmp_path / "object.o").write_bytes(b"\x7fELF\0" + b"\0".join(texts) + b"\0tail")
    assert registered_operators([tmp_path / "object.o"]) == {
        "mix": "(Tensor! out, Tensor x) -> ()",
        "one": "(int i) -> Tensor",
    }
