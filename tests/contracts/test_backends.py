"""What each backend promises to those who call kernels: the same arguments, results, errors and attributes."""

from __future__ import annotations

import copy
import importlib.util
import sys
from collections.abc import Iterator
from contextlib import nullcontext
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from kernelwright.runtime.dtype import numpy_dtype
from kernelwright.testing import CALLS, Caller
from support.contract import (
    BACKENDS,
    KINDS,
    OF_ML_DTYPES,
    Backend,
    contracted,
    copied,
    forgotten,
    imported,
    wide_in_jax,
)
from support.demand import Demand
from support.kernel_library import installed_backends
from support.project import Project

__all__ = ["contracted"]

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(params=BACKENDS)
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    if request.param not in installed_backends():
        pytest.skip(f"what {request.param} needs is not installed")
    with wide_in_jax() if request.param == "jax" else nullcontext():
        yield BACKENDS[request.param]


@pytest.fixture
def kernels(contracted: Any, backend: Backend) -> Any:
    """The kernels of the package, as the backend has them."""
    return getattr(contracted.backends, backend.name)


def floats(*values: float) -> np.ndarray:
    return np.asarray(values, "float32")


def message_of(call: Any, *arguments: Any, **named: Any) -> str:
    """Kind and text of the error of a call."""
    with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
        call(*arguments, **named)
    return f"{caught.type.__name__}: {caught.value}"


# ---- numbers


def numbers_of(dtype: str) -> list[tuple[Any, Any]]:
    """Numbers of Python and NumPy, each with what it is as a number of the dtype; None, where it is out of range."""
    kinds: list[Any] = [np.bool_(True), True, np.int8(3), np.uint64(5), np.int64(7), 1]
    if dtype == "bool":
        return [(value, int(bool(value))) for value in kinds]
    if "int" in dtype:
        bits = int(dtype.lstrip("uint"))
        low, high = (0, 2**bits - 1) if dtype[0] == "u" else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
        kinds += [low, high, low - 1, high + 1, 2**63, 2**64 - 1, 2**64, np.uint64(2**64 - 1), -1]
        return [(value, int(value) if low <= int(value) <= high else None) for value in kinds]
    kinds += [1.3, -0.2, 7, 200.0, 1e-3, 5e-5, 0.0, np.float32(1.3), np.float16(0.7), np.float64(3.3), 2**63, -(2**70)]
    kinds += [ml_dtypes.bfloat16(0.3), float("inf"), -1e30, float("nan"), 10**400]

    def rounded(value: Any) -> float:
        return float(np.asarray(float(value)).astype(numpy_dtype(dtype)))

    return [(value, None if type(value) is int and value > 2**1023 else rounded(value)) for value in kinds]


def wrong_numbers(backend: Backend, name: str, dtype: str, kernel: Any) -> list[list[str]]:
    """The calls of ``y = a`` that give something else, or refuse a number without a word of the kernel."""
    wrong, like = [], backend.array(floats(0, 0))
    for value, expected in numbers_of(dtype):
        try:
            made = backend.numpy(kernel(like, value))
            got = made.astype(np.float64 if "float" in dtype else object)[0]
        except (ValueError, OverflowError) as error:
            got = None if f"kernel '{name}'" in str(error) else str(error)
        except backend.own_errors as error:
            is_huge = isinstance(value, int | np.integer) and not -(2**63) <= value < 2**63
            got = expected if is_huge else str(error)
        if got != expected and not (got != got and expected != expected):
            wrong.append([dtype, repr(value)[:40], str(got)[:200], str(expected)])
    return wrong


@np.errstate(all="ignore")
def test_a_number_of_any_dtype_and_of_any_kind_is_taken_or_out_of_range(kernels: Any, backend: Backend) -> None:
    for name, dtypes in KINDS.items():
        for dtype in dtypes:
            assert wrong_numbers(backend, name, dtype, getattr(kernels, name).variant(dtype=dtype)) == []


@pytest.mark.parametrize("value", [np.longdouble(2.5), Fraction(5, 2), Decimal("2.5")], ids=repr)
def test_any_real_number_is_passed_as_it_is(kernels: Any, backend: Backend, value: Any) -> None:
    x = backend.array(floats(0, 1, 2))
    assert backend.numpy(kernels.plus(value, x, x)).tolist() == [0, 3.5, 7]


def test_on_demand_numbers_names_and_several_outputs_are_the_same(tmp_path: Path, contracted: Any) -> None:
    code = """
        import json, sys
        import numpy as np
        import kernelwright
        from kernelwright.runtime.dtype import numpy_dtype
        numbers, arrays = (kernelwright.load(f"kernels/{name}.py") for name in ("numbers", "arrays"))
        like = np.zeros(2, "float32")
        real, natural = numbers.real.compile(dtype="float8_e4m3fn"), numbers.natural.compile(dtype="uint64")
        made = [real(like, 200.0), real(like, np.float16(0.7)), natural(like, 2**64 - 1), natural(a=5, x=like)]
        try:
            natural(like, -1)
        except ValueError as error:
            print("kernel 'natural'" in str(error))
        pair = arrays.pair(x=like + 1)
        narrow = np.ones(3, numpy_dtype("bfloat16"))
        arrays.same(narrow * 2, y=narrow)
        print([float(np.from_dlpack(one)[0]) for one in made])
        print(type(pair).__name__, *(np.from_dlpack(one).tolist() for one in pair), narrow.astype(float).tolist())
    """
    project = Project(contracted.folder.parents[1])
    printed = Demand(project).run(code).stdout.splitlines()
    real = [float(np.float32(value).astype(ml_dtypes.float8_e4m3fn)) for value in (200.0, np.float16(0.7))]
    assert printed[-3:] == [
        "True",
        str([*real, float(2**64 - 1), 5.0]),
        "tuple [2.0, 2.0, 0.0] [2.0, 2.0] [2.0, 2.0, 2.0]",
    ]


# ---- calls


@pytest.mark.parametrize("promise", CALLS, ids=lambda promise: promise.__name__)
def test_a_backend_keeps_what_plug_ins_promise(kernels: Any, backend: Backend, promise: Any) -> None:
    promise(Caller(backend.name, backend.array, backend.numpy, backend.writes), kernels)


def test_arguments_can_be_given_by_name(kernels: Any, backend: Backend) -> None:
    whole, like = kernels.whole.variant(dtype="int64"), backend.array(floats(0, 0))
    for made in (whole(x=like, a=3), whole(like, a=3), whole(a=3, x=like)):
        assert backend.numpy(made).tolist() == [3, 3]
    assert whole.choice(a=3, x=like).config == {"dtype": "int64"}
    if backend.writes:
        y, z = floats(0, 0, 0), floats(0, 0)
        kernels.two(y=backend.array(y), x=backend.array(floats(1, 1)), z=backend.array(z))
        assert (y.tolist(), z.tolist()) == ([1, 1, 0], [2, 2])
    assert "'x'" in message_of(whole, like, x=like, a=1)
    assert "'b'" in message_of(whole, like, b=1)
    assert "TypeError" in message_of(whole, like)


def test_arrays_that_numpy_hands_to_nobody_are_taken(kernels: Any, backend: Backend) -> None:
    values = [0.5, -1.5, 2.0, 8.0]
    for dtype in OF_ML_DTYPES:
        x = np.asarray(values).astype(numpy_dtype(dtype))
        same = kernels.same.variant(dtype=dtype)
        if backend.name == "torch":  # which takes its own tensors only
            assert "argument 'x' is a numpy.ndarray, expected a tensor of PyTorch" in message_of(same, x)
            continue
        x.flags.writeable = False
        made = [same(x), same(x[:0]), kernels.same(x[1:])]
        assert [tuple(one.shape) for one in made] == [(4,), (0,), (3,)]
        if backend.writes:
            y = np.zeros_like(x)
            same(x, y)
            assert y.astype(float).tolist() == values
            assert "a read-only array, and the kernel writes it" in message_of(same, x, x)
        else:
            assert [np.asarray(one).astype(float).tolist() for one in made] == [values, [], values[1:]]


# ---- errors


X = floats(1, 2, 3)
WRONG: dict[str, tuple[tuple[Any, ...], str]] = {
    "another dtype": ((1.0, X, X.astype("float16")), "TypeError: kernel 'plus': "),
    "another rank": ((1.0, X[None], X), "TypeError: kernel 'plus': "),
    "another size": ((1.0, X, X[:2]), "ValueError: kernel 'plus': Mismatched y.shape[0] on argument #2"),
    "too few": ((1.0,), "TypeError: "),
    "too many": ((1.0, X, X, X, X), "TypeError: "),
    "a text for a number": (("a", X, X), ""),
    "None for a number": ((None, X, X), ""),
    "a complex number": ((2 + 3j, X, X), ""),
    "an array for a number": ((X, X, X), ""),
    "a list for an array": ((1.0, [1.0], X), ""),
    "a number for an array": ((1.0, X, 3), ""),
}


@pytest.mark.parametrize("case", WRONG)
def test_a_wrong_call_is_an_error_that_names_the_kernel(kernels: Any, backend: Backend, case: str) -> None:
    arguments, expected = WRONG[case]
    taken = [backend.array(one) if isinstance(one, np.ndarray) else one for one in arguments]
    said = message_of(kernels.plus, *taken)
    assert said.startswith(expected) and "plus" in said


def test_an_error_says_for_programs_why_a_call_is_refused(kernels: Any, backend: Backend) -> None:
    from contracted._runtime.refusal import refusal_of

    like = backend.array(floats(0, 0))
    calls: list[tuple[Any, tuple[Any, ...], str]] = [
        (kernels.whole, (kernels, 1), "by_kernel"),
        (kernels.natural, (like, -1), "by_kernel"),
        (kernels.flag, (like[None], 1), "no_variant"),
        *((kernels.whole, (what, 1), "by_kernel") for what in ([1.0], {}, None, len)),
    ]
    for kernel, arguments, why in calls:
        with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
            kernel(*arguments)
        assert refusal_of(caught.value) == why


def noted(before: list[dict[str, Any]], after: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Kernel, dtype, shape, device and count of what was noted meanwhile."""
    found = []
    for call in after:
        earlier = next((one["count"] for one in before if one["arguments"] == call["arguments"]), 0)
        x = call["arguments"][0]
        if call["count"] > earlier:
            found.append((call["kernel"], x["dtype"], x["shape"], x.get("device"), call["count"] - earlier))
    return found


def test_calls_that_no_variant_fits_are_noted_and_those_that_are_mistaken_are_not(contracted, kernels, backend):
    before = contracted.misses()
    like = backend.array(floats(1, 2))
    half = backend.array(np.ones(2, "float16"))
    for bad in (half, like[:, None], half):
        message_of(kernels.two, bad)
    for mistaken in ((), (like, like, like, like), ("text",)):
        message_of(kernels.two, *mistaken)
    message_of(kernels.plus, 1.0, like, like[:1])
    message_of(kernels.flag.variant(dtype="bool"), half, True)
    kernels.two(like)
    found = noted(before, contracted.misses())
    device = None if backend.name == "jax" else "cpu"
    count = found[0][-1]
    assert found == [("two", "float16", [2], device, count), ("two", "float32", [2, 1], device, count // 2)]
    assert count in (2, 4), "JAX traces a call again"


# ---- the objects


def test_a_kernel_says_what_it_has_and_where_it_runs(kernels: Any, backend: Backend) -> None:
    whole = kernels.whole
    assert whole.variants == tuple({"dtype": dtype} for dtype in KINDS["whole"]) and whole.devices == {"cpu"}
    assert whole.supported() and whole.supported("cpu") and not whole.supported("cuda")
    assert whole.preload() is None
    assert "kernel 'whole': it cannot run on cuda" in message_of(whole.preload, "cuda")
    assert "unknown device 'tpu'" in message_of(whole.preload, "tpu")
    assert kernels.plus.__doc__.startswith("z = alpha * x + y")
    assert "whole" in repr(whole) and {"plus", "whole"} < set(dir(kernels))
    with pytest.raises(AttributeError, match="has no kernel 'scael'; it has "):
        kernels.scael  # noqa: B018


def test_a_named_variant_runs_and_no_other_and_keeps_what_is_not_said(kernels: Any, backend: Backend) -> None:
    like = backend.array(floats(0, 0))
    chosen = kernels.whole.variant(dtype="int8")
    assert chosen.variants == ({"dtype": "int8"},)
    assert chosen.variant(dtype="uint8").variants == ({"dtype": "uint8"},) and chosen.variant().variants[0] == {
        "dtype": "int8"
    }
    assert backend.numpy(chosen.variant(dtype="uint8")(like, 200)).tolist() == [200, 200]
    assert "200" in message_of(chosen, like, 200)
    with pytest.raises(KeyError) as caught:
        kernels.whole.variant(dtype="int7")
    assert str(caught.value).startswith("whole has no variant with dtype='int7'; built are: dtype='int8'; dtype=")


def test_the_threads_are_set_whatever_backend_is_the_default(contracted, kernels, backend, monkeypatch) -> None:
    loader = type(contracted._loader)(contracted.__file__, ("plus",), "contracted")
    entry = loader.entry
    monkeypatch.setattr(loader, "entry", lambda name: {**entry(name), "backends": [backend.name]})
    loader._kernels["plus", ""] = kernels.plus
    before = loader.num_threads()
    loader.set_num_threads(before + 1)
    assert loader.num_threads() == contracted.num_threads() == before + 1
    loader.set_num_threads(before)
    for bad in (0, -1, "2", True):
        assert f"expected a positive integer, got {bad!r}" in message_of(loader.set_num_threads, bad)


def test_a_kernel_can_be_copied_and_its_objects_are_made_once(contracted: Any, kernels: Any, backend: Backend) -> None:
    assert getattr(kernels, "plus") is kernels.plus  # noqa: B009
    assert copy.deepcopy(kernels.plus) is kernels.plus
    if backend.name in ("torch", "jax"):
        assert kernels.whole.variant(dtype="int8") is kernels.whole.variant(dtype="int8")
    if backend.name == "jax":
        assert contracted.jax is kernels


def test_a_package_that_is_imported_again_works_and_so_do_the_kernels_that_were_there(contracted, kernels, backend):
    before, x = kernels.plus, backend.array(floats(1, 2))
    with forgotten("contracted"):
        again = getattr(imported(contracted.folder.parent, "contracted").backends, backend.name)
        assert again is not kernels
        for function in (again.plus, before):
            assert backend.numpy(function(2.0, x, x)).tolist() == [3, 6]
        if backend.name == "torch":
            assert again.plus.op is before.op


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_another_build_of_the_same_package_and_version_is_refused(contracted: Any, tmp_path: Path, name: str) -> None:
    assert getattr(contracted.backends, name).plus
    entries = contracted.manifest()["kernels"]
    other = {**entries, "plus": {**entries["plus"], "doc": "something else"}}
    with forgotten("contracted"):
        again = getattr(copied(contracted.folder, tmp_path, kernels=other).backends, name)
        with pytest.raises(
            ImportError, match=r"another build of 'contracted' has registered(.|\n)*start a new Python process"
        ):
            again.plus  # noqa: B018


# ---- in a process of its own


HIDDEN = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {module!r}:
            raise ModuleNotFoundError(name)
sys.meta_path.insert(0, Hidden())
import contracted
try:
    contracted.backends.{backend}.plus
except ImportError as error:
    print(error)
"""


def test_a_missing_package_is_named_with_the_line_that_installs_it(contracted: Any, backend: Backend) -> None:
    module, line = backend.module
    printed = Project(contracted.folder.parents[1]).python(HIDDEN.format(module=module, backend=backend.name))
    assert printed.startswith(f"kernel 'plus' of 'contracted' needs {module}, which is not installed"), printed
    assert f"  remedy: {line}" in printed


def test_a_package_is_imported_and_described_without_any_array_library(contracted: Any) -> None:
    printed = Project(contracted.folder.parents[1]).python("""
        import sys, importlib.util
        heavy = {"torch", "jax", "numpy", "tvm_ffi", "typing", "json", "hashlib", "contracted._runtime.misses"}
        before = heavy & sys.modules.keys()
        import contracted
        assert contracted.backends.__all__ and dir(contracted)
        print(sorted(heavy & sys.modules.keys() - before), sorted(dir(contracted.backends)))
        assert contracted.manifest()["kernels"]["plus"]
        print(sorted({"torch", "jax", "numpy", "tvm_ffi"} & sys.modules.keys() - before))
        from contracted.backends.cython import add_to
        import array
        total = array.array("f", [1, 2])
        add_to(total, total)
        print(total.tolist(), sorted({"torch", "jax", "numpy", "tvm_ffi"} & sys.modules.keys() - before))
        print(contracted.misses(), "contracted._runtime.misses" in sys.modules)
        sys.modules["torch"] = None  # tvm-ffi would import it
        import numpy as np, tvm_ffi
        x = np.ones(2, "float32")
        contracted.backends.tvm_ffi.add_to(x, contracted.backends.cython.plus(2.0, x, x))
        print(x, "after the library was loaded without its module")
    """)
    assert printed.splitlines() == [
        *("[] ['cython', 'jax', 'torch', 'tvm_ffi']", "[]", "[2.0, 4.0] []", "[] False"),
        "[4. 4.] after the library was loaded without its module",
    ]


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("torch", "backends/torch/_plus.py"),
        ("jax", "_runtime/jax_kernel.py"),
        ("cython", "backends/cython/_plus.abi3.so"),
        ("tvm_ffi", "_runtime/misses.py"),
    ],
)
def test_a_file_of_a_backend_that_was_altered_is_not_loaded(contracted, tmp_path, name, file):
    with forgotten("contracted"):
        other = copied(contracted.folder, tmp_path, version="1.3.0")
        with (tmp_path / "contracted" / file).open("a") as stream:
            stream.write("raise SystemExit('it runs')\n")
        with pytest.raises(ImportError, match=f"{Path(file).name}: was altered"):
            getattr(other.backends, name).plus(1.0, *[np.ones(2, "float16")] * 2)


def test_a_missed_call_is_compiled_on_demand_if_the_user_says_so(contracted, tmp_path, monkeypatch):
    monkeypatch.setenv("KERNELWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    text = (contracted.folder.parents[1] / "kernels/arrays.py").read_text()
    definition = Project(tmp_path).write("kernels/arrays.py", text.replace(repr(OF_ML_DTYPES), repr(["float16"])))
    Project(tmp_path).write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    for backend in (BACKENDS[name] for name in ("tvm_ffi", "torch") if name in installed_backends()):
        same = getattr(contracted.backends, backend.name).same
        x, given = backend.array(np.ones(3, "float16")), np.zeros(3, "float16")
        assert "no built variant accepts" in message_of(same, x)
        contracted.set_fallback("compile", definition)
        try:
            assert backend.numpy(same(x)).tolist() == [1, 1, 1]
            assert same(x, backend.array(given)) is None and given.tolist() == [1, 1, 1]
        finally:
            contracted.set_fallback(None)
        assert "no built variant accepts" in message_of(same, x)
    assert list((tmp_path / "cache/kernels").iterdir())


def test_without_kernelwright_nothing_can_be_compiled(contracted: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "kernelwright")
    known = importlib.util.find_spec
    hidden = {"kernelwright": None}
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: hidden[name] if name in hidden else known(name))
    with pytest.raises(ImportError, match="pip install kernelwright"):
        contracted.set_fallback("compile", "kernels/arrays.py")


# Of PyTorch and JAX only what stubs name and programs call: all of them would take 15 seconds.
TYPES = """\
[mypy]
[mypy-torch.*,jax.*,jaxlib.*,jax_tvm_ffi.*,numpy.*]
follow_imports = skip
[mypy-torch,torch._tensor,torch._C,jax,jax._src.basearray]
follow_imports = silent
"""
USE = """\
import contracted
import torch
from contracted.backends import cython, jax, torch as of_torch, tvm_ffi
x = torch.ones(3)
made: torch.Tensor = of_torch.plus(2.0, x, x)
of_torch.plus(2.0, x, x, made)
y, z = of_torch.pair(x)
y.shape
cython.plus(2.0, x, x, x, stream=None)
tvm_ffi.plus(2.0, x, x)
found = jax.plus(2.0, x, x)
print(of_torch.plus.op, jax.plus.target, cython.plus.devices, tvm_ffi.plus.variants)
tvm_ffi.plus(2.0, x, x, x).nothing  # wrong: None has no attributes
tvm_ffi.plus()  # wrong: too few
tvm_ffi.plus(alpha=2.0, x=x, y=x).nothing
tvm_ffi.plus(alpha=2.0, x=x)  # wrong: too few
tvm_ffi.scael(2.0, x, x)  # wrong: misspelt
contracted.set_num_threads("2")  # wrong: no integer
configs: tuple[dict[str, object], ...] = tvm_ffi.plus.variants
found_: bool = tvm_ffi.plus.supported("cpu")
name: int = tvm_ffi.plus.name  # wrong: a str
of_torch.plus("x", x, x)  # wrong
of_torch.plus(2.0, x)  # wrong
jax.plus(2.0, x, x, x)  # wrong
tvm_ffi.plus(2.0, x, x, x, x)  # wrong
cython.plus(alhpa=2.0, x=x, y=x)  # wrong
"""


def test_stubs_tell_a_type_checker_right_calls_from_wrong_ones(contracted: Any) -> None:
    assert (contracted.folder / "py.typed").exists()
    project = Project(contracted.folder.parents[1])
    path = project.write("use.py", USE)
    project.write("types.ini", TYPES)
    printed = project.python(f"""
        import os, subprocess, sys
        command = [sys.executable, "-m", "mypy", "--strict", "--config-file=types.ini", "--cache-dir", os.devnull]
        command.append({str(path)!r})
        print(subprocess.run(command, env=os.environ | {{"MYPYPATH": "build"}}, capture_output=True, text=True).stdout)
    """)
    errors = [line.partition(": error:")[0] for line in printed.splitlines() if ": error:" in line]
    wrong = [number for number, line in enumerate(USE.splitlines(), 1) if "  # wrong" in line]
    assert list(dict.fromkeys(errors)) == [f"use.py:{number}" for number in wrong], printed
