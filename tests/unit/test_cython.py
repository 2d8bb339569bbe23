"""Extension modules of the cython backend: built of real kernels, called, and compared with those of tvm-ffi."""

from __future__ import annotations

import array
import ctypes
import gc
import inspect
import pickle
import re
import resource
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from kernelwright.backends.cython import RESERVED, Cython, check_headers
from kernelwright.backends.plan import LoweredUnit
from kernelwright.core.errors import ToolchainError
from kernelwright.runtime import cython_kernel
from support.extension_build import (
    Built,
    Loader,
    OnCuda,
    build_both,
    build_scale,
    compile_extension,
    entry_of,
    lower_ours,
    places,
)
from support.launcher_build import OPTIMISED, FakeTensor, c_unit, pair_plan, plan, scalar, signature, tensor
from support.workers_project import Project
from test_glibc import compiler, stubs

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")

ROOT = Path(__file__).parents[2]

# x, [y]: y = x, of any dtype.
COPY = """
#include <string.h>
BEGIN
  DLTensor *x = tensor(argument), *y = tensor(argument + 1);
  int64_t size = 1;
  for (int i = 0; i < x->ndim; ++i) size *= x->shape[i];
  memcpy(y->data, x->data, size * (x->dtype.bits / 8));
END
"""

# x: whether the thread has the GIL, as Python sees it.
GIL = """
#include <dlfcn.h>
BEGIN
  int (*has_gil)(void) = (int (*)(void))dlsym(dlopen(NULL, RTLD_NOW), "PyGILState_Check");
  *(int *)tensor(argument)->data = has_gil ? has_gil() : -1;
END
"""

DTYPES = ["bool", *(f"{sign}int{bits}" for bits in (8, 16, 32, 64) for sign in ("", "u"))]
DTYPES += ["float16", "float32", "float64", "bfloat16", "float8_e4m3fn", "float8_e5m2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cython")


@pytest.fixture(scope="module")
def saxpy(folder: Path) -> Built:
    """The tutorial's kernel: alpha, x, y, [z]."""
    project = Project(folder)
    with project.pool:
        return build_both(folder, lower_ours(project, "saxpy", ["z"]), flags=OPTIMISED)


@pytest.fixture(scope="module")
def pair(folder: Path) -> Built:
    return build_both(folder, pair_plan(folder), flags=OPTIMISED)


@pytest.fixture(scope="module")
def copies(folder: Path) -> Built:
    """A kernel with a variant for each dtype, of two dimensions."""

    def unit(dtype: str) -> LoweredUnit:
        arguments = [tensor(name, dtype, ["n", "m"], output=name == "y") for name in "xy"]
        return c_unit(folder, COPY, signature("copies", arguments, slug=dtype, symbols={"n": "int32", "m": "int32"}))

    return build_both(folder, plan("copies", *map(unit, DTYPES), outputs=["y"]))


def outcome(call: Callable[..., Any], arguments: tuple[Any, ...]) -> tuple[str, str]:
    """The kind of a call's exception and its message, or what it returned."""
    try:
        result = call(*arguments)
    except Exception as error:
        return type(error).__name__, str(error)
    return "returned", type(result).__name__


def floats(count: int = 4) -> np.ndarray:
    return np.arange(count, dtype="float32")


# ---- what is emitted


def test_files_and_versions_are_announced_and_what_one_variant_writes_the_kernel_writes():
    def unit(slug: str, written: bool) -> LoweredUnit:
        data = signature("k", [{**tensor("a", "float32", [4]), "written": written}], slug=slug)
        return LoweredUnit.from_json(data, "host.o")

    texts = Cython().emit(plan("k", unit("one", False), unit("two", True)))
    assert 'kw_parameter(b"a", KW_TENSOR, False, False, True)' in texts["_k.pyx"]
    assert set(texts) == set(Cython().files("k"))
    assert {"kernel.pxi", "call.h", "convert.h"} <= {path.name for path in Cython().headers()}
    assert set(Cython().build_versions()) == {"cython", "Python"}


EMPTY = "BEGIN (void)tensor, (void)argument; END"


def test_arguments_with_any_name_can_be_passed_and_most_by_name(folder: Path) -> None:
    free = ["object", "bytes", "complex", "str", "bool", "list", "type", "api", "public", "inline", "nogil", "struct"]
    free += ["cython", "kernel", "call", "linux", "errno", "tensor", "result", "count", "argument", "Function"]
    names = [*sorted(RESERVED), "__x", "kw_call", "KW_INT", "PyObject", *free]
    kernel = plan("odd", c_unit(folder, EMPTY, signature("odd", [scalar(name, "int32") for name in names])))
    odd = build_both(folder, kernel).cython()
    assert odd(*range(len(names))) is None
    assert odd(*range(len(names) - len(free)), **dict.fromkeys(free, 1)) is None
    with pytest.raises(TypeError, match=rf"kernel 'odd': takes {len(names)} arguments \(.*\), {len(free)} were given"):
        odd(**dict.fromkeys(free, 1))
    compile(Cython().stub("odd", entry_of(kernel)), "stub.pyi", "exec")
    nothing = build_both(folder, plan("nothing", c_unit(folder, EMPTY, signature("nothing", [])))).cython()
    assert nothing() is None
    with pytest.raises(TypeError, match=r"kernel 'nothing': takes 0 arguments \(\), 1 were given"):
        nothing(1)


# ---- the binary


def test_the_module_is_small_needs_old_libraries_only_and_exports_one_function(folder: Path, saxpy: Built) -> None:
    module = folder / "backends/cython/_saxpy.abi3.so"
    assert module.stat().st_size < 80_000
    listing = subprocess.run(["nm", "-D", module], capture_output=True, text=True, check=True).stdout.splitlines()
    assert [line.split()[-1] for line in listing if " T " in line] == ["PyInit__saxpy"]
    undefined = [line.split()[-1] for line in listing if " U " in line]
    assert [name for name in undefined if not name.startswith(("Py", "_Py")) and "@GLIBC" not in name] == []
    needed = subprocess.run(["readelf", "-d", module], capture_output=True, text=True, check=True).stdout
    assert set(re.findall(r"NEEDED.*\[(\w+)", needed)) <= {"libc", "libdl"}
    assert str(ROOT).encode() not in module.read_bytes() and str(folder).encode() not in module.read_bytes()


def test_only_functions_of_the_limited_api_are_used(folder: Path, saxpy: Built) -> None:
    """Python 3.11 lists its stable ABI in this file, from which its own tests are made."""
    known = pytest.importorskip("test.test_stable_abi_ctypes").SYMBOL_NAMES
    module = folder / "backends/cython/_saxpy.abi3.so"
    listing = subprocess.run(["nm", "-D", module], capture_output=True, text=True, check=True).stdout
    used = {line.split()[-1] for line in listing.splitlines() if " U Py" in line or " U _Py" in line}
    assert used and used - set(known) == set()


SCRIPT = """
import array, sys
from acme._runtime import cython_kernel
class Loader:
    package = "acme"
    def verified(self, relative): return {folder!r} + "/" + relative
    def library(self, name): return {folder!r} + "/" + name + ".so"
    def manifest(self): return {{}}
entry = {entry!r}
kernel = cython_kernel.load(Loader(), "pair", entry)
x, total, product = (array.array("f", [1, 2]) for _ in range(3))
assert kernel(total, x, 3.0, 1, product) is None
assert total.tolist() == [5, 6] and product.tolist() == [3, 6], total
made, _ = kernel(x, factor=2, steps=0)
assert made.__dlpack_device__() == (1, 0), made
assert kernel.supported() is True and kernel.preload() is None
assert "tvm_ffi" not in sys.modules and "numpy" not in sys.modules
try:
    kernel(b"12345678", x, 3.0, 1, product)
except ValueError as error:
    assert str(error).startswith("kernel 'pair': argument 'sum' is a read-only array"), error
references = sys.getrefcount(None)
for _ in range(20_000):
    kernel(total, x, 3.0, 1, product)
    kernel.preload()
    kernel(x, 3.0, 1)
assert abs(sys.getrefcount(None) - references) < 1000
print("works")
"""


def pythons() -> dict[str, str]:
    """The Pythons of this machine, by version."""
    found = {}
    for path in [*Path(sys.base_prefix).parent.glob("3.*/bin/python"), Path("/usr/bin/python3"), Path(sys.executable)]:
        if path.exists():
            found[asked(str(path), "'%d.%d' % sys.version_info[:2]")] = str(path)
    return found


def asked(python: str, expression: str) -> str:
    """What another Python prints."""
    command = [python, "-c", f"import sys, sysconfig; print({expression})"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def runs_in(python: str, folder: Path, built: Built, place: Path) -> subprocess.CompletedProcess[str]:
    """Run the script above in another Python, without any package but the library of tvm-ffi."""
    runtime = place / "acme" / "_runtime"
    runtime.mkdir(parents=True, exist_ok=True)
    for name in (*Cython.runtime, "loader.py", "passed.py"):  # every package has the last two
        shutil.copy(Path(cython_kernel.__file__).parent / name, runtime)
    if not (place / "tvm_ffi").exists():
        (place / "tvm_ffi").symlink_to(Path(tvm_ffi.__file__).parent)
    script = SCRIPT.format(folder=str(folder), entry=dict(built.entry))
    return subprocess.run([python, "-c", script], cwd=place, capture_output=True, text=True)


@pytest.mark.parametrize("version", ["3.12"])
def test_a_binary_made_with_later_headers_serves_older_pythons_too(version: str, pair: Built, tmp_path: Path) -> None:
    include = asked(pythons()[version], "sysconfig.get_paths()['include']") if version in pythons() else ""
    if not Path(include, "Python.h").exists():
        pytest.skip(f"there are no headers of Python {version} here")
    compile_extension(tmp_path, pair.plan, replace(places(), python_include=include))
    shutil.copy(pair.folder / "pair.so", tmp_path)
    for python in {sys.executable, pythons()[version]}:
        result = runs_in(python, tmp_path, pair, tmp_path)
        assert result.stdout == "works\n", result.stderr


@pytest.mark.parametrize(("name", "value"), [("version_info", (3, 10, 13)), ("abiflags", "t")])
def test_a_python_with_another_abi_is_refused(pair, monkeypatch, name, value):
    monkeypatch.setattr(sys, name, value)
    with pytest.raises(ImportError, match=r"kernel 'pair': the cython backend needs CPython 3\.11 or later with a GIL"):
        pair.cython()


def test_the_module_is_linked_for_an_old_glibc(pair: Built, tmp_path: Path) -> None:
    glibc = stubs(tmp_path, "2.28", compiler())
    module = compile_extension(tmp_path, pair.plan, replace(places(), glibc=str(glibc)))
    listing = subprocess.run(["readelf", "-V", "--wide", module], capture_output=True, text=True, check=True).stdout
    versions = {tuple(map(int, version.split("."))) for version in re.findall(r"Name: GLIBC_([0-9.]+)", listing)}
    assert versions and max(versions) <= (2, 28)
    shutil.copy(pair.folder / "pair.so", tmp_path)
    assert runs_in(sys.executable, tmp_path, pair, tmp_path).stdout == "works\n"


def test_a_library_that_cannot_be_loaded_and_a_missing_tvm_ffi_are_import_errors_that_say_what_to_do(
    pair, tmp_path, monkeypatch
):
    shutil.copytree(pair.folder / "backends", tmp_path / "backends")
    (tmp_path / "pair.so").write_text("no library")
    with pytest.raises(ImportError, match=re.escape(f"{tmp_path}/pair.so: cannot be loaded: ")):
        cython_kernel.load(Loader(tmp_path), "pair", dict(pair.entry))
    monkeypatch.setattr(cython_kernel.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(
        ImportError, match=r"tvm-ffi is not installed.*\n  remedy: python -m pip install 'apache-tvm-ff"
    ):
        pair.cython()


def test_headers_of_python_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Cython().require_build()
    with pytest.raises(ToolchainError, match=r"the backend cython needs Python\.h, .*\n.*apt install python3-dev"):
        check_headers(tmp_path)
    (tmp_path / "Python.h").touch()
    (tmp_path / "patchlevel.h").write_text("#define PY_MAJOR_VERSION\t3\n#define PY_MINOR_VERSION\t10\n")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    with pytest.raises(ToolchainError, match=r"headers of Python 3\.11 or later, these are of 3\.10"):
        Cython().require_build()


# ---- results


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, jax.numpy.asarray, tvm_ffi.from_dlpack])
def test_a_new_output_is_of_the_library_of_the_first_array(saxpy: Built, make: Callable[[Any], Any]) -> None:
    for count in (4, 0):
        x, y = make(floats()[:count].copy()), make(np.ones(4, "float32")[:count].copy())
        for result in (saxpy.cython()(2.0, x, y), saxpy.cython()(2.0, x, floats() * 0 + 1)) if count else ():
            assert type(result) is type(x)
            np.testing.assert_array_equal(np.from_dlpack(result), 2 * floats() + 1)
        assert saxpy.cython()(2.0, x, y).shape == (count,)
    parameter = torch.nn.Parameter(torch.ones(4))
    assert torch.equal(saxpy.cython()(2.0, parameter, T), torch.full((4,), 3.0))


def test_the_allocator_of_a_calls_library_is_used_in_that_call_only(saxpy: Built) -> None:
    ask = ctypes.CDLL(str(tvm_ffi.libinfo.find_libtvm_ffi())).TVMFFIEnvGetDLPackManagedTensorAllocator
    ask.restype = ctypes.c_void_p
    before = ask()
    kernel = saxpy.cython()
    assert isinstance(kernel(2.0, T, T), torch.Tensor) and ask() == before
    assert outcome(kernel, (2.0, T, T[:3]))[0] == "ValueError" and ask() == before


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_dtype_gets_through_every_library(copies: Built, dtype: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(6).reshape(2, 3).astype(getattr(np, dtype, None) or getattr(ml_dtypes, dtype))
    result = copies.cython()(x)
    assert result.dtype == x.dtype
    np.testing.assert_array_equal(result, x)
    of_torch = torch.arange(6).reshape(2, 3).to(getattr(torch, dtype))
    result = copies.cython()(of_torch)
    assert result.dtype == of_torch.dtype and torch.equal(result.view(torch.uint8), of_torch.view(torch.uint8))
    if dtype in ("bfloat16", "float8_e4m3fn", "float16", "int8", "bool"):
        of_jax = jax.numpy.asarray(x)
        result = copies.cython()(of_jax)
        assert result.dtype == of_jax.dtype and bool((result == of_jax).all())


def test_an_output_that_numpy_has_no_dtype_for_can_be_taken_by_others(folder: Path) -> None:
    arguments = [tensor("x", "int16", ["n"]), tensor("y", "bfloat16", ["n"], output=True)]
    unit = c_unit(folder, COPY, signature("to_bfloat16", arguments, symbols={"n": "int32"}))
    kernel = build_both(folder, plan("to_bfloat16", unit, outputs=["y"])).cython()
    x = torch.tensor([1, 2], dtype=torch.bfloat16)
    result = kernel(x.view(torch.int16).numpy())
    assert torch.equal(torch.from_dlpack(result), x) and torch.equal(torch.from_dlpack(result), x)


CODES = dict(zip("bBhHiIlLqQfd", [*DTYPES[1:9], *DTYPES[7:9], "float32", "float64"], strict=True))


@pytest.mark.parametrize("code", CODES)
def test_buffers_are_arrays(copies: Built, code: str) -> None:
    data = array.array(code, range(6))
    x, y = memoryview(data).cast("B").cast(code, (2, 3)), memoryview(bytearray(data.itemsize * 6))
    assert copies.cython()(x, y.cast(code, (2, 3))) is None
    assert y.cast(code).tolist() == list(range(6))
    result = copies.cython()(x)  # of no library that has arrays
    np.testing.assert_array_equal(np.from_dlpack(result), np.arange(6, dtype=CODES[code]).reshape(2, 3))
    assert torch.equal(torch.from_dlpack(result), torch.from_numpy(np.from_dlpack(result)))


def test_arrays_of_ctypes_are_buffers_and_what_cannot_be_one_is_refused(saxpy: Built) -> None:
    kernel, x = saxpy.cython(), (ctypes.c_float * 4)(1, 2, 3, 4)
    np.testing.assert_array_equal(np.from_dlpack(kernel(2.0, x, x)), [3, 6, 9, 12])
    deep = ctypes.c_float
    for _ in range(65):
        deep *= 1
    with pytest.raises(TypeError, match=r"'x' is a .* that cannot be passed: it has 65 dimensions, and 64 are"):
        kernel(2.0, deep(), x)
    with pytest.raises(TypeError, match=r"kernel 'saxpy': argument 'x' is a memoryview that cannot be passed"):
        kernel(1.0, memoryview(bytearray(16)).cast("c"), Y, Z)


# ---- calls


def test_arguments_are_passed_by_position_or_by_name_and_none_is_an_output_that_is_left_out(saxpy, pair):
    """By name alone: tests/contracts/test_backends.py."""
    kernel, x, y, z = saxpy.cython(), floats(), np.ones(4, "float32"), np.zeros(4, "float32")
    for positional, named in [((2.0, x, y, None), {}), ((2.0, x, y), {"z": None, "stream": None})]:
        np.testing.assert_array_equal(kernel(*positional, **named), 2 * x + 1)
    two = pair.cython()
    for positional, named in [((x, 2.0, 1), {}), ((x,), {"steps": 1, "factor": 2.0}), ((None, x, 2.0, 1, None), {})]:
        total, product = two(*positional, **named)
        np.testing.assert_array_equal(total, x + 3)
        np.testing.assert_array_equal(product, x * 2)
    assert two(z, x, 2.0, 1, product=y) is None
    np.testing.assert_array_equal(y, x * 2)
    assert str(inspect.signature(kernel)) == "(alpha, x, y, z=None, *, stream=None)"
    assert str(inspect.signature(two)) == "(sum, x, factor, steps, product=None, *, stream=None)"


def test_mistakes_in_passing_name_the_kernel_and_the_argument(pair: Built) -> None:
    kernel, x = pair.cython(), floats()
    for positional, named, message in [
        ((x, x, 2.0, 1), {"x": x}, "argument 'x' was given by its position and by its name"),
        ((x, 2.0, 1, x), {}, "takes 5 arguments .*, or 3 with the outputs left out; 4 were given"),
        ((), {"sum": x, "product": x, "x": x}, "argument 'factor' is missing"),
        ((None, x, 2.0, 1, x), {}, "argument 'sum' is missing\n  remedy: pass all arguments, or all but the outputs"),
        ((x, None, 2.0, 1, x), {}, "argument 'x' is None, expected a tensor"),
        ((x, x, 2.0), {}, "argument 'steps' is missing|no built variant accepts"),
    ]:
        with pytest.raises(TypeError, match=f"^kernel 'pair': (.|\n)*({message})"):
            kernel(*positional, **named)
    with pytest.raises(TypeError, match="unexpected keyword argument 'fuctor'"):
        kernel(x, fuctor=1, steps=2)


FROZEN = floats()
FROZEN.flags.writeable = False
F, Y, Z = floats(), np.ones(4, "float32"), np.zeros(4, "float32")
T = torch.ones(4)
IMAGINARY = torch.ones(4, dtype=torch.complex64).conj().imag

ELSEWHERE = {
    "on a GPU": FakeTensor((4,), device=(2, 0)),
    "on a device of another kind": FakeTensor((4,), device=(8, 0)),
    "of a negative size": FakeTensor((-4,)),
    "of a huge size": FakeTensor((2**40,)),
}


@pytest.mark.parametrize("case", ELSEWHERE)
def test_arrays_that_cannot_be_read_are_refused_as_by_tvm_ffi(saxpy: Built, case: str) -> None:
    """Other arrays are in ``tests/contracts/test_arrays.py``."""
    ours, theirs = (outcome(kernel, (1.0, ELSEWHERE[case], Y, Z)) for kernel in (saxpy.cython(), saxpy.tvm_ffi()))
    assert ours == theirs
    assert ours[0] in ("TypeError", "ValueError") and ours[1].startswith("kernel 'saxpy': ")


def test_right_calls_are_those_that_tvm_ffi_takes(saxpy: Built) -> None:
    """Others are in ``tests/contracts/test_arrays.py``: signs that are not marked are no reason to refuse."""
    for x in (IMAGINARY[2:3].resolve_neg(), torch.ones(4)[1:2], F[1:2]):
        for kernel in (saxpy.cython(), saxpy.tvm_ffi()):
            assert np.from_dlpack(kernel(2.0, x, x)) == 3 * x[0]
    read_only = memoryview(FROZEN.tobytes()).cast("f")
    np.testing.assert_array_equal(saxpy.cython()(1.0, read_only, Y, Z) or Z, FROZEN + 1)


def test_errors_of_the_kernel_keep_their_kind_and_a_function_that_was_not_loaded_says_so(pair, saxpy):
    with pytest.raises(IndexError, match=r"^thirteen$"):
        pair.cython()(floats(), 13.0, 1)
    function = type(saxpy.cython()).__bases__[1]()
    with pytest.raises(RuntimeError, match="was not loaded"):
        function(1.0, F, Y)


# ---- the kernel object


def test_a_kernel_object_cannot_be_pickled(copies: Built) -> None:
    with pytest.raises(TypeError, match="kernel copies cannot be pickled"):
        pickle.dumps(copies.cython())


# ---- what is held, and for how long


class Exporter:
    """An array of some library that has nothing but DLPack, in its newer form or in the older one."""

    def __init__(self, memory: np.ndarray, newest: bool) -> None:
        self.memory, self.newest = memory, newest
        self.asked: list[dict[str, Any]] = []

    def __dlpack_device__(self) -> tuple[int, int]:
        return (1, 0)

    def __dlpack__(self, **named: Any) -> Any:
        self.asked.append(named)
        if not self.newest and "max_version" in named:
            raise TypeError("unexpected keyword argument 'max_version'")
        return self.memory.__dlpack__(**named)


@pytest.mark.parametrize("newest", [True, False])
def test_both_forms_of_dlpack_are_taken_and_given_back(saxpy: Built, newest: bool) -> None:
    kernel, memory = saxpy.cython(), floats()
    x = Exporter(memory, newest)
    before = sys.getrefcount(memory)
    np.testing.assert_array_equal(kernel(1.0, x, Y, Z) or Z, memory + 1)
    assert x.asked[0] == {"max_version": (1, 0)} and x.asked[1:] == ([] if newest else [{}])
    for wrong in [(1.0, x, Y[:3], Z), (1.0, x, 3, Z), ("a", x, Y, Z), (1.0, x, Y, FROZEN)]:
        assert outcome(kernel, wrong)[0] in ("TypeError", "ValueError")
    assert sys.getrefcount(memory) == before


def test_exports_that_cannot_be_taken_are_refused(saxpy: Built) -> None:
    kernel = saxpy.cython()
    assert kernel(1.0, Exporter(FROZEN, True), Y, Z) is None
    with pytest.raises(ValueError, match="kernel 'saxpy': argument 'z' is a read-only array, and the kernel writes it"):
        kernel(1.0, F, Y, Exporter(FROZEN, True))
    no_capsule = type("NoCapsule", (Exporter,), {"__dlpack__": lambda self, **named: 7, "__module__": "elsewhere"})
    with pytest.raises(TypeError, match=r"argument 'x' is a elsewhere\.NoCapsule that cannot be passed"):
        kernel(1.0, no_capsule(F, True), Y, Z)


def test_buffers_can_be_resized_after_a_call_and_after_a_failed_one(saxpy: Built) -> None:
    kernel, x = saxpy.cython(), array.array("f", [1, 2, 3, 4])
    kernel(1.0, x, Y, Z)
    x.append(5)  # BufferError, if it were still exported
    assert outcome(kernel, (1.0, x, Y, Z))[0] == "ValueError"
    assert outcome(kernel, (1.0, x, 3, Z))[0] == "TypeError"
    x.append(6)


def memory() -> int:
    """The memory that this process has now, in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.parametrize("make", [np.asarray, torch.from_numpy, lambda x: Exporter(x, False)])
def test_many_calls_keep_nothing(saxpy: Built, make: Callable[[Any], Any]) -> None:
    kernel, x, y = saxpy.cython(), make(floats(20_000)), make(floats(20_000))
    objects = [x, y, type(x), kernel]

    def calls(count: int) -> None:
        for _ in range(count):
            kernel(1.0, x, y)
            kernel(1.0, x=x, y=y)
            outcome(kernel, (1.0, x, F))
            outcome(kernel, (1.0, x, None, y))

    calls(20)
    gc.collect()
    before, references = memory(), [sys.getrefcount(item) for item in objects]
    calls(1000)  # each output that stayed would be 80 kB
    gc.collect()
    assert [sys.getrefcount(item) for item in objects] == references
    assert memory() - before < 20_000_000


def test_a_new_output_is_exported_where_it_is_and_outlives_the_arguments_and_the_kernel_object(pair, copies):
    output, _ = pair.cython()(array.array("f", [1, 2]), 1.0, 1)
    assert output.__dlpack_device__() == (1, 0)
    assert output.__dlpack__(dl_device=(1, 0)) is not None
    for named in ({"copy": True}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError, match="is exported where it is"):
            output.__dlpack__(**named)
    result = copies.cython()(np.full((100, 100), 7, "int32"))
    gc.collect()
    assert result.sum() == 70_000 and result.flags.writeable


# ---- threads


def test_a_call_releases_the_gil(folder: Path) -> None:
    unit = c_unit(folder, GIL, signature("gil", [tensor("x", "int32", [1])]))
    kernel, x = build_both(folder, plan("gil", unit)).cython(), np.full(1, 7, "int32")
    kernel(x)
    assert x == [0]


def test_threads_share_a_kernel_and_types_that_are_too_many_to_remember_still_work(saxpy):
    kernel = saxpy.cython()

    def is_right(number: int) -> bool:
        makers = [np.asarray, torch.from_numpy]
        for i in range(300):
            make, x = makers[i % 2], np.full(8, number, "float32")
            result = kernel(2.0, make(x), make(x))
            if not (np.asarray(result) == 3 * number).all() or outcome(kernel, (1.0, make(x)))[0] != "TypeError":
                return False
        return True

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(is_right, range(4))) == [True] * 4
    kernel = saxpy.cython()
    for number in range(100):
        kind = type(f"Exporter{number}", (Exporter,), {})
        assert kernel(1.0, kind(F, True), Y, Z) is None
    assert kernel(1.0, F, T, Z) is None


# ---- streams


@pytest.mark.parametrize(
    ("stream", "error", "message"),
    [
        *((stream, ValueError, "a stream was given for a call on the CPU\n  remedy: ") for stream in (0, 7)),
        *((stream, TypeError, r"the stream is (.|\n)*remedy: pass a stream of") for stream in ("x", 1.5, True, object)),
    ],
)
def test_a_stream_for_a_call_on_the_cpu_and_what_is_no_stream_are_refused(saxpy, stream, error, message):
    with pytest.raises(error, match=f"^kernel 'saxpy': {message}"):
        saxpy.cython()(1.0, F, Y, Z, stream=stream)


# ---- device code that is not in the library


def test_device_code_is_found_by_a_function(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scale = build_scale(folder)
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", str(folder / "libstandin.so"))
    monkeypatch.setenv("STANDIN_LOG", str(tmp_path / "log"))
    shutil.copytree(scale.folder / "scale", tmp_path / "scale")
    built = build_both(tmp_path, replace(scale.plan, split=True))
    asked: list[tuple[Any, ...]] = []

    def provider(*arguments: Any) -> str:
        asked.append(arguments)
        if len(asked) == 1:
            raise LookupError("no wheel today")
        return f"sm_80 {tmp_path}/scale/default/cuda/sm_80.cubin"

    kernel = cython_kernel.load(Loader(tmp_path, device_code=provider), "scale", dict(built.entry))
    assert outcome(kernel, (OnCuda(), OnCuda(), 1.0)) == ("RuntimeError", "no wheel today")
    kernel(OnCuda(), OnCuda(), 1.0)
    kernel(OnCuda(), OnCuda(), 1.0)
    assert asked == [("default", "sm_80", 0, 80)] * 2
    assert (tmp_path / "log").read_text().count("\nlaunch ") == 2


def test_a_library_with_its_device_code_takes_no_such_function(saxpy: Built) -> None:
    with pytest.raises(ImportError, match="has no function __tvm_ffi_kw_set_provider"):
        saxpy.cython().find_device_code(print)
