"""The arguments of a call are compared with the schema that an operator was registered with."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kernelwright.backends.operators import (
    ambiguous_operators,
    registered_operators,
    require_one_result,
    require_schema,
)
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
        ("(str? f) -> ()", [F], "argument 'f' is a number, and the schema of op has 'str? f' there"),
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


def object_with(path: Path, texts: list[str]) -> Path:
    # The first one follows code, without a zero in between.
    lines = [
        ".text",
        ".quad -1, aoti_torch_library_init_fragment",
        '.section .rodata.str1.8,"aMS",@progbits,1',
        *(f'.string "{text}"' for text in texts),
    ]
    command = ["gcc", "-c", "-x", "assembler", "-", "-o", str(path)]
    subprocess.run(command, input="\n".join([*lines, ""]), text=True, check=True)
    return path


def test_schemas_are_found_in_the_texts_of_an_object(tmp_path):
    texts = ["mix(Tensor! out, Tensor x) -> ()", "no schema", "f()", "one(int i) -> Tensor", "a(b) -> "]
    assert registered_operators([object_with(tmp_path / "object.o", texts)]) == {
        "mix": "(Tensor! out, Tensor x) -> ()",
        "one": "(int i) -> Tensor",
    }


def test_an_operator_with_two_schemas_is_two_operators(tmp_path):
    first = object_with(tmp_path / "a.o", ["silu(Tensor x) -> Tensor", "gelu(Tensor x) -> Tensor"])
    second = object_with(tmp_path / "b.o", ["silu(Tensor x, float a) -> Tensor", "gelu(Tensor x) -> Tensor"])
    third = object_with(tmp_path / "c.o", ["add(Tensor x) -> Tensor", "add(Tensor x, float a) -> Tensor"])
    assert ambiguous_operators([first]) == {}
    assert ambiguous_operators([first, second, third]) == {
        "silu": [first, second],
        "gelu": [first, second],  # equal schemas: two namespaces have one name
        "add": [third, third],
    }


def test_one_value_is_returned_to_a_call_without_declared_arguments():
    for schema in ("(Tensor x) -> Tensor(a!)", "() -> ()", "() -> (int)"):
        require_one_result("op", schema, Where())
    with pytest.raises(DefinitionError, match=r"op returns \(Tensor, int\), and a call without declared arguments"):
        require_one_result("op", "(Tensor x, int y) -> (Tensor, int)", Where())
