"""Operators for PyTorch: what definitions may say, which PyTorch they need, their stubs, and what is in wheels."""

from __future__ import annotations

import ast
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright import kernel
from kernelwright.backends import torch_ops
from kernelwright.backends.description import description_of_operators
from kernelwright.core.errors import DefinitionError, ToolError, Where
from kernelwright.core.records import Record
from kernelwright.cuda import Operators
from kernelwright.frontends import get
from kernelwright.package.manifest import PackagedKernel, require_distinct_operators
from kernelwright.package.torch_operators import operator_problems
from kernelwright.runtime.torch_ops import _is_free
from kernelwright.stages.torch_library import _refused
from kernelwright.toolchain.pytorch import Torch, Undefined, sorted_out, stand_in_text, without_others

PACKAGE = "demo"
WHERE = Where("ops", "default", "lower", "ops.py:3")
TORCH = Torch("2.13.0+cpu", "0" * 64, Path("/nowhere"))


@pytest.mark.parametrize(
    ("operators", "message"),
    [
        (Operators(), "Operators names none"),
        (Operators("silu"), "Operators has 'silu', which is no name of one"),
        (Operators(3), "Operators has 3, which is no name of one"),  # type: ignore[arg-type]
        (Operators("a::silu", "b::silu"), "Operators has two that are called 'silu'"),
        (Operators("a::f_out", "a::f.out"), "Operators has two that are called 'f_out'"),
        (Operators("a::__call__"), "Operators has 'a::__call__', and what loads them has that name"),
        (Operators("a::preload"), "Operators has 'a::preload', and what loads them has that name for something else"),
        (Operators("a::silu", schemas={"a::gelu": "()"}), "schemas is {'a::gelu': '()'}"),
    ],
)
def test_what_is_no_list_of_operators_is_an_error(operators: Operators, message: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        operators.check(WHERE)
    assert caught.value.message.startswith(message) and caught.value.remedy and caught.value.where == WHERE


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"outputs": ["y"]}, "outputs"),
        ({"backends": ["torch"]}, "backends"),
        ({"configs": [{"n": 1}]}, "configs"),
        ({"requires": ["n > 1"]}, "requires"),
        ({"tolerance": 0.1}, "tolerance"),
    ],
)
def test_an_option_about_calls_is_an_error(options: dict[str, Any], named: str) -> None:
    def ops(n: int = 0) -> None: ...

    declared = kernel(frontend="torch", sources=["a.cu"], **options)(ops if "configs" in options else lambda_free)
    with pytest.raises(DefinitionError, match=f"it has {named}, which its operators cannot have") as caught:
        get("torch").check(declared, WHERE)
    assert caught.value.remedy and f"leave {named} out" in caught.value.remedy


def lambda_free() -> None: ...


def test_a_kernel_without_sources_is_an_error() -> None:
    with pytest.raises(DefinitionError, match="it has no sources, which would register its operators"):
        get("torch").check(kernel(frontend="torch")(lambda_free), WHERE)


@pytest.mark.parametrize(
    ("is_stable", "flags", "requirement"),
    [
        (False, ("-DTORCH_TARGET_VERSION=0x020A000000000000",), "torch==2.13.*"),
        (True, (), "torch>=2.13"),
        (True, ("-O2", "-DTORCH_TARGET_VERSION=0x020A000000000000"), "torch>=2.10"),
        (
            True,
            ("-DTORCH_TARGET_VERSION=0x020A000000000000", "-DTORCH_TARGET_VERSION=0x020C000000000000"),
            "torch>=2.12",
        ),
        (True, ("-D", "TORCH_TARGET_VERSION=0x0209000000000000ULL"), "torch>=2.9"),
    ],
)
def test_which_pytorch_a_library_needs(is_stable: bool, flags: tuple[str, ...], requirement: str) -> None:
    assert TORCH.requirement(is_stable, flags) == requirement


def test_what_a_library_calls_decides_whether_it_is_stable_and_needs_cuda() -> None:
    stream, guard = "_ZNK3c104cuda10CUDAStream6streamEv", "aoti_torch_create_cuda_guard"
    found = sorted_out([stream, guard, "_ZN2at4cuda24getCurrentDevicePropertiesEv", "cuInit", "lacking"], [])
    assert found.cuda == {
        "libc10_cuda.so": [stream],
        "libtorch_cuda.so": [guard, "_ZN2at4cuda24getCurrentDevicePropertiesEv"],
    }
    assert found.rest == ("cuInit", "lacking") and not found.is_stable
    stable = Undefined(("aoti_torch_get_sizes", "torch_library_impl"), {"libtorch_cuda.so": [guard]}, ())
    assert stable.is_stable and not Undefined(("_ZN3c105ErrorD1Ev",), {}, ()).is_stable
    assert f".globl {guard}\n" in stand_in_text([guard])


def test_what_only_looks_like_pytorchs_is_not_taken_to_be_there(tmp_path: Path) -> None:
    header = tmp_path / "include/torch/csrc/inductor/aoti_torch/generated/c_shim_cuda.h"
    header.parent.mkdir(parents=True)
    header.write_text("AOTITorchError aoti_torch_cuda_sum(void*);")
    names = ["aoti_torch_cuda_sum", "torch_acme_cuda_sum", "lacking"]
    found = without_others(sorted_out(names, []), replace(TORCH, folder=tmp_path / "lib"))
    assert found.cuda == {"libtorch_cuda.so": ["aoti_torch_cuda_sum"]}
    assert found.rest == ("lacking", "torch_acme_cuda_sum")


@pytest.mark.parametrize("assembler", ["as", "aarch64-linux-gnu-as"])
def test_stand_ins_are_assembled_for_both_families(assembler: str, tmp_path: Path) -> None:
    if not (path := shutil.which(assembler)):
        pytest.skip(f"there is no {assembler}")
    subprocess.run([path, "-o", tmp_path / "a.o"], input=stand_in_text(["f", "g"]), text=True, check=True)


@pytest.mark.parametrize(
    ("schema", "method"),
    [
        ("(Tensor x, float eps=1.0000000000000001e-05) -> Tensor", "f(self, x: Tensor, eps: float=...) -> Tensor"),
        ("(Tensor(a!) out, Tensor x) -> ()", "f(self, out: Tensor, x: Tensor) -> None"),
        ("(Tensor? x, int[2] n, *, SymInt[]? s=None) -> Tensor[]", None),
        ("(Tensor(a!)[] out, ScalarType? d=None) -> (Tensor, Tensor(a!), int)", None),
        (
            '(int[2] n=[1, -2], *, str mode="a, (b", Tensor x) -> ()',
            "f(self, n: int | list[int]=..., *, mode: str=..., x: Tensor) -> None",
        ),
        (
            "(Tensor(a!) x, Tensor(b!) y) -> (Tensor(a!), Tensor(b!))",
            "f(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]",
        ),
        ("(Tensor self, Device device) -> bool", "f(self, *arguments: _Any, **named: _Any) -> bool"),
        ("(__torch__.torch.classes.acme.Queue q) -> Any", "f(self, q: _Any) -> _Any"),
    ],
)
def test_a_stub_has_the_types_of_a_schema(schema: str, method: str | None) -> None:
    entry = {"doc": "Some.", "operators": {"names": ["a::f"], "registered": {"a::f": {"schema": schema, "keys": []}}}}
    class_, _ = ast.parse(torch_ops.BACKEND.stub("ops", entry)).body
    assert isinstance(class_, ast.ClassDef)
    methods = [node for node in class_.body if isinstance(node, ast.FunctionDef)]
    assert [node.name for node in methods] == ["f", "__call__"]
    text = ast.unparse(methods[0]).replace("_torch.", "").replace("_b.", "").split("def ")[1].partition(":\n")[0]
    if method:
        assert text == method
    elif "SymInt" in schema:
        assert text == "f(self, x: Tensor | None, n: int | list[int], *, s: list[int] | None=...) -> list[Tensor]"
    else:
        assert text == "f(self, out: list[Tensor], d: dtype | None=...) -> tuple[Tensor, Tensor, int]"
    assert f"a::f{schema}" in (ast.get_docstring(class_) or "")


REFUSED = {
    "Tried to register an operator (a::f(Tensor x) -> Tensor) with the same name and overload name multiple times. "
    "Each overload's schema should only be registered with a single call to def(). Duplicate registration: registered "
    "at k/b.cpp:5. Original registration: registered at k/a.cpp:4\nException raised from registerDef": (
        "two sources register the operator a::f: k/a.cpp:4 and k/b.cpp:5"
    ),
    "Only a single TORCH_LIBRARY can be used to register the namespace a; please put all of your definitions in a "
    "single TORCH_LIBRARY block.  If you were trying to specify implementations, consider using TORCH_LIBRARY_IMPL "
    "(which can be duplicated).  Previous registration of TORCH_LIBRARY was registered at k/a.cpp:4; latest "
    "registration was registered at k/b.cpp:5": "two sources have TORCH_LIBRARY(a, m): k/a.cpp:4 and k/b.cpp:5",
    "no valid kernel": "PyTorch refuses its library: no valid kernel",
}
"""What PyTorch 2.13 says when it ends the process -> what an error says."""


@pytest.mark.parametrize("said", REFUSED)
def test_what_pytorch_refuses_is_said_with_the_places_in_the_sources(said: str) -> None:
    output = f"terminate called after throwing an instance of 'c10::Error'\n  what():  {said}\n"
    stage: Any = SimpleNamespace(where=WHERE, sources=[])
    error = _refused(ToolError(["python"], -6, output, WHERE), stage)
    assert error.message == REFUSED[said] and error.remedy and error.where == WHERE


OPERATORS = {
    "torch": "torch>=2.10",
    "built_with": "2.13.0",
    "needs_cuda": False,
    "names": ["a::f"],
    "namespaces": ["a"],
    "registered": {"a::f": {"schema": "(Tensor x) -> Tensor", "keys": ["CPU"]}},
}


def problems(*needs: str, described: dict[str, Any] | None = None) -> list[str]:
    said = described or OPERATORS
    library = description_of_operators("ops", OPERATORS).encode()
    return list(operator_problems("ops", Record({"operators": said}, ""), library, needs))


def test_a_wheel_asks_for_a_pytorch_that_suits() -> None:
    for need in (
        "torch>=2.10",
        "torch==2.12.*",
        "Torch ~= 2.11",
        "torch>=2.10,<3",
        "torch==2.13.1",
        "torch==2.12.1+cu130",
    ):
        assert problems("numpy", need) == []
    for need in (
        "torch",
        "torch>=2.9",
        "torch<2.12",
        "torch>=2.10; extra == 'gpu'",
        "torchvision>=2.10",
        "torch===odd",
        "torch==2.9.1",
    ):
        assert 'add "torch>=2.10" to project.dependencies' in "".join(problems(need)), need


def test_a_manifest_of_other_operators_than_the_library_has_is_found() -> None:
    other = {**OPERATORS, "names": ["a::g"]}
    assert [line for line in problems("torch>=2.10", described=other) if "does not register 'a::g'" in line]
    assert [line for line in problems("torch>=2.10", described=other) if "not what the manifest says" in line]
    with pytest.raises(ValueError, match="needs_cuda"):
        problems("torch>=2.10", described={key: value for key, value in OPERATORS.items() if key != "needs_cuda"})


def test_two_kernels_with_one_operator_or_namespace_are_an_error() -> None:
    def packaged(name: str, *operators: str, namespaces: str = "[]") -> PackagedKernel:
        registered = ", ".join(f'"{operator}": {{}}' for operator in operators)
        entry = f'{{"frontend": "torch", "operators": {{"registered": {{{registered}}}, "namespaces": {namespaces}}}}}'
        return PackagedKernel(name, entry, ("torch_ops",), {})

    require_distinct_operators(
        PACKAGE, [packaged("a", "a::f"), packaged("b", "a::g"), PackagedKernel("c", "{", (), {})]
    )
    both, places = [packaged("a", "a::f"), packaged("b", "a::g", "a::f")], {"a": "own.py:3", "b": "more.py:9"}
    with pytest.raises(
        DefinitionError, match=r"the kernels a \(own.py:3\) and b both register the operator a::f"
    ) as said:
        require_distinct_operators(PACKAGE, both, places)
    assert str(said.value.where) == "more.py:9 b [assemble]"
    block = '["a"]'
    require_distinct_operators(PACKAGE, [packaged("a", "a::f", namespaces=block), packaged("b", "a::g")])
    with pytest.raises(DefinitionError, match=r"the kernels a and b both have TORCH_LIBRARY\(a, m\)") as caught:
        require_distinct_operators(
            PACKAGE, [packaged(*each, namespaces=block) for each in (("a", "a::f"), ("b", "a::g"))]
        )
    assert caught.value.remedy == "write TORCH_LIBRARY_FRAGMENT(a, m) in one of them"
    for operator in ("demo::silu", "demo::silu.out"):
        require_distinct_operators("demo_2", [packaged("b", operator), PackagedKernel("silu", "{", ("torch",), {})])
        require_distinct_operators(PACKAGE, [packaged("b", operator), PackagedKernel("silu", "{", ("tvm_ffi",), {})])
        with pytest.raises(DefinitionError, match=f"the kernels silu and b both register the operator {operator}"):
            require_distinct_operators(PACKAGE, [packaged("b", operator), PackagedKernel("silu", "{", ("torch",), {})])


def test_a_namespace_is_taken_as_long_as_a_library_has_it() -> None:
    library = pytest.importorskip("torch").library.Library("kernelwright_taken", "DEF")
    assert not _is_free("kernelwright_taken")
    library._destroy()
    assert _is_free("kernelwright_taken") and _is_free("kernelwright_taken")
