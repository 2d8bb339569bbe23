"""Kernel libraries, called through tvm-ffi on the CPU: what they are, CPU levels, services and outputs.

How calls are matched with variants is in tests/contracts.
"""

from __future__ import annotations

import _ctypes
import ctypes
import os
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from support.forked import starter
from support.launcher_build import (
    OPTIMISED,
    FakeTensor,
    build,
    c_unit,
    hardened,
    include_folders,
    link_apart,
    llvm_unit,
    pair_plan,
    plan,
    scalar,
    signature,
    tensor,
)

# x, y, [z]: z = x + y. Written by hand, in C, with only the checks that the launcher leaves to the host code.
ADD = """
BEGIN
  DLTensor *x = tensor(argument), *y = tensor(argument + 1), *z = tensor(argument + 2);
  int64_t size = 1;
  for (int i = 0; i < x->ndim; ++i) size *= x->shape[i];
  for (int64_t i = 0; i < size; ++i) ((TYPE *)z->data)[i] = ((TYPE *)x->data)[i] + ((TYPE *)y->data)[i];
END
"""

NOTHING = "BEGIN (void)tensor, (void)argument; END"


def load(library: Path) -> Any:
    return tvm_ffi.load_module(str(library))


def values(result: Any) -> np.ndarray:
    return np.from_dlpack(result)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("launcher")


@pytest.fixture(scope="module")
def add(folder: Path) -> Any:
    """Three variants: float32 of 4 columns, float32 of any shape, int32."""

    def unit(slug: str, dtype: str, shape: list[int | str], c_type: str) -> Any:
        arguments = [tensor(name, dtype, shape, output=name == "z") for name in "xyz"]
        symbols = {size: "int32" for size in shape if isinstance(size, str)}
        return c_unit(folder, ADD.replace("TYPE", c_type), signature("add", arguments, slug=slug, symbols=symbols))

    units = [unit("columns-4", "float32", ["n", 4], "float"), unit("any", "float32", ["n", "m"], "float")]
    units.append(unit("integer", "int32", ["n", "m"], "int"))
    return load(build(folder, plan("add", *units, outputs=["z"])))


@pytest.fixture(scope="module")
def pair(folder: Path) -> Any:
    return load(build(folder, pair_plan(folder)))


# ---- a kernel that TVM lowered


@pytest.fixture(scope="module")
def saxpy(folder: Path) -> Path:
    """The library of out = alpha * x + y for float32 and float64, lowered by TVM for two CPU levels."""
    from tvm.script import tirx as T

    def define(dtype: str) -> Any:
        @T.prim_func(s_tir=True)
        def main(x_handle: T.handle, y_handle: T.handle, out_handle: T.handle, alpha: T.float32):
            n = T.int32()
            x = T.match_buffer(x_handle, (n,), dtype, align=4)
            y = T.match_buffer(y_handle, (n,), dtype, align=4)
            out = T.match_buffer(out_handle, (n,), dtype, align=4)
            for i in T.parallel(n):
                with T.sblock("out"):
                    j = T.axis.spatial(n, i)
                    out[j] = T.cast(alpha, dtype) * x[j] + y[j]

        return main

    units = []
    for dtype in ("float32", "float64"):
        arguments = [tensor(name, dtype, ["n"], output=name == "out") for name in ("x", "y", "out")]
        for arch in ("x86-64-v2", "x86-64-v3"):
            data = signature("saxpy", [*arguments, scalar("alpha", "float32")], slug=dtype, arch=arch)
            units.append(llvm_unit(folder, define(dtype), data | {"symbols": {"n": "int32"}}))
    return build(folder, plan("saxpy", *units, outputs=["out"]), extra=OPTIMISED)


def undefined(library: Path) -> list[str]:
    """The symbols that a library has to find elsewhere."""
    listing = subprocess.run(["nm", "-D", "--undefined-only", library], capture_output=True, text=True, check=True)
    return [line.split()[-1] for line in listing.stdout.splitlines() if " w " not in line]


@pytest.fixture(scope="module")
def apart(saxpy: Path) -> tuple[Path, Path]:
    """The library, and its launcher beside it."""
    objects = sorted(str(path.relative_to(saxpy.parent)) for path in (saxpy.parent / "saxpy").rglob("host.o"))
    return saxpy.parent / "apart.so", link_apart(saxpy.parent, "saxpy", objects, "apart.so", "0123456789abcdef")


def test_the_library_is_hardened(saxpy: Path, apart: tuple[Path, Path]) -> None:
    """Arrays on the stack are guarded, too."""
    for library in (saxpy, *apart):
        hardened(library)
    assert "__stack_chk_fail@GLIBC_2.4" in undefined(apart[1]), "a wrapper has no arrays on the stack"


def test_the_library_stays_loaded_when_it_is_closed_and_exports_ffi_functions_only(saxpy, tmp_path):
    """Its threads run on in it, and other libraries use what it has."""
    library = shutil.copy(saxpy, tmp_path / "closed.so")
    _ctypes.dlclose(ctypes.CDLL(str(library))._handle)
    assert str(library) in Path("/proc/self/maps").read_text()
    listing = subprocess.run(["nm", "-D", "--defined-only", saxpy], capture_output=True, text=True, check=True).stdout
    streams = ["kw_current_stream", "kw_for_xla", "kw_order", "kw_refuse_captured", "kw_synchronize"]
    services = [*streams, "kw_num_threads", "kw_preload", "kw_set_num_threads", "kw_supported"]
    services += [f"kw_{one}{number}" for one in ("choice", "looking") for number in ("", "__0", "__1")]
    names = ["saxpy", "saxpy__0", "saxpy__1", *services]
    assert {line.split()[-1] for line in listing.splitlines()} == {f"__tvm_ffi_{name}" for name in names}


# ---- which CPU build


def in_process(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    program = "import sys, numpy as np, tvm_ffi\n" + code
    return starter("numpy", "tvm_ffi").run(program, *arguments, env=os.environ | environment)


CALL = """
module = tvm_ffi.load_module(sys.argv[1])
print(repr(module["kw_supported"](1, 0)))
x = np.ones(3, "float32")
print(np.from_dlpack(module["saxpy"](x, x, 2.0)))
"""


def test_a_cpu_below_all_builds_gets_an_error_and_not_an_illegal_instruction_and_an_invalid_level_is_one(saxpy):
    done = in_process(CALL, saxpy, KERNELWRIGHT_CPU_LEVEL="x86-64")
    message = "RuntimeError: kernel 'saxpy': this CPU supports x86-64, and variant float32 was built for x86-64-v3, "
    assert message + "x86-64-v2 only\n  remedy: add x86-64 to its archs" in done.stderr
    assert "this CPU supports x86-64" in done.stdout, "kw_supported gives the reason"
    done = in_process(CALL, saxpy, KERNELWRIGHT_CPU_LEVEL="haswell")
    assert "ValueError: kernel 'saxpy': KERNELWRIGHT_CPU_LEVEL is 'haswell', expected x86-64, " in done.stderr


@pytest.mark.parametrize("level", ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"])
def test_the_highest_level_that_fits_is_called(folder: Path, level: str) -> None:
    levels = ["x86-64", "x86-64-v2", "x86-64-v3", "x86-64-v4"]
    highest = 3 if "avx512vl" in Path("/proc/cpuinfo").read_text() else 2
    if not (folder / "level.so").exists():
        body = "BEGIN *(int *)tensor(argument)->data = {}; END"
        units = [
            c_unit(folder, body.format(i), signature("level", [tensor("x", "int32", [1])], arch=arch))
            for i, arch in enumerate(levels)
        ]
        build(folder, plan("level", *units))
    code = "x = np.zeros(1, 'int32'); tvm_ffi.load_module(sys.argv[1])['level'](x); print(x[0])"
    done = in_process(code, folder / "level.so", KERNELWRIGHT_CPU_LEVEL=level)
    assert done.stdout == f"{min(levels.index(level), highest)}\n", done.stderr


# ---- services


def test_the_services_check_their_arguments_and_those_for_streams_have_nothing_to_do_without_cuda_code(
    add, monkeypatch
):
    assert add["kw_preload"](1, 0) is None
    assert add["kw_supported"](1, 0) == ""
    for name, arguments in {"kw_preload": (1,), "kw_supported": ("cpu", 0), "kw_num_threads": (1,)}.items():
        with pytest.raises(TypeError, match=f"{name} takes . integers"):
            add[name](*arguments)
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", "libnone.so.7")
    for name, arguments in {"kw_order": (0, 5, 7), "kw_refuse_captured": (0, 5), "kw_synchronize": (0, -1)}.items():
        assert add[name](*arguments) is None
        with pytest.raises(TypeError, match=f"{name} takes . integers"):
            add[name](*arguments, 1)
    assert add["kw_synchronize"](0, 5) is None
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), 0x70):
        assert add["kw_current_stream"](0) == 0x70
    assert add["kw_for_xla"](tvm_ffi.convert(lambda number: number + 1))(1) == 2


# ---- sizes


@pytest.mark.parametrize(
    ("shape", "dtype", "place", "may_be"),
    [
        (((4,), (2,)), (2, 32, 1), {"data": 0x10004}, True),
        (((4,), (2,)), (2, 32, 1), {"byte_offset": 4}, True),
        (((4,), (2,)), (2, 32, 1), {"data": 0x10000}, False),
        (((4,), (3,)), (2, 32, 1), {"data": 0x10004}, False),
        (((4,), None), (2, 32, 1), {"data": 0x10004}, False),
        (((4, 1), (2, 1)), (2, 16, 1), {"data": 0x10002}, True),
        (((4, 2), (1, 4)), (2, 16, 1), {"data": 0x10002}, False),
        (((), None), (2, 64, 1), {"data": 0x10008}, True),
        (((4,), (2,)), (0, 32, 1), {"data": 0x10004}, False),
        (((4,), None), (5, 64, 1), {"data": 0x10000}, True),
    ],
)
def test_what_may_be_the_imaginary_part_of_a_conjugate_is_to_be_looked_at_before_it_is_passed(
    add: Any, shape: Any, dtype: tuple[int, int, int], place: dict[str, int], may_be: bool
) -> None:
    x = tvm_ffi.from_dlpack(FakeTensor(shape[0], dtype, strides=shape[1], **place))
    if may_be:
        assert add["kw_looking"](x) is True
    else:
        with pytest.raises(TypeError, match="takes 3 arguments"):
            add["kw_looking"](x)


def test_a_variant_takes_tensors_as_large_as_its_own_sizes_can_say(folder: Path) -> None:
    def unit(dtype: str) -> Any:
        symbols = {"n": dtype, "m": dtype}
        return c_unit(
            folder, NOTHING, signature("large", [tensor("x", "int8", ["n", "m"])], slug=dtype, symbols=symbols)
        )

    module = load(build(folder, plan("large", unit("int32"), unit("int64"))))
    large = tvm_ffi.from_dlpack(FakeTensor((2**32, 2**30), (0, 8, 1)))
    assert module["large__1"](large) is None
    with pytest.raises(ValueError, match="dimension of 4294967296, beyond the 2147418112 that int32 sizes allow"):
        module["large__0"](large)
    with pytest.raises(ValueError, match="has more elements than the 9223372036854775807 that int64 sizes allow"):
        module["large__1"](tvm_ffi.from_dlpack(FakeTensor((2**32, 2**32), (0, 8, 1))))


# ---- outputs


def test_new_outputs_are_aligned_and_live_as_long_as_they_are_used(add: Any) -> None:
    x = np.ones((3, 5), "float32")
    views = [values(add["add"](x, x)) for _ in range(50)]
    assert all(view.ctypes.data % 64 == 0 and (view == 2).all() for view in views)
    assert values(add["add"](np.zeros((0, 5), "float32"), np.zeros((0, 5), "float32"))).shape == (0, 5)


def virtual_memory() -> int:
    return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize("factor", [2.0, 13.0], ids=["success", "failure"])
def test_outputs_are_freed(pair: Any, factor: float) -> None:
    x = np.zeros(2**22, "float32")  # outputs of 16 MiB
    before = []
    for _ in range(41):
        with pytest.raises(IndexError, match="thirteen") if factor == 13 else nullcontext():
            pair["pair"](x, factor, 0)
        before.append(virtual_memory())
    assert before[-1] - before[0] < 400 * 2**20, "one that stayed of each call would be 640 MiB, a thread's heap is 64"


def test_outputs_before_one_that_cannot_be_are_freed(folder: Path) -> None:
    outputs = [tensor("first", "int8", ["n"], output=True), tensor("second", "int8", ["k + 1"], output=True)]
    data = signature("sizes", [tensor("x", "int8", ["n"]), scalar("k", "int32"), *outputs], symbols={"n": "int32"})
    unit = c_unit(folder, NOTHING, data)
    sizes = load(build(folder, plan("sizes", unit, outputs=["first", "second"])))["sizes"]
    x, before = np.zeros(2**24, "int8"), virtual_memory()
    for _ in range(40):
        with pytest.raises(ValueError, match=r"kernel 'sizes': output 'second' would have the shape \[-1\], expected"):
            sizes(x, -2)
    assert virtual_memory() - before < 10 * 2**24


SIZES = [
    *(("k * k * k", 2**30, None), ("k + k + 9223372036854775807", 1, None), ("-k - 9223372036854775807", 2, None)),
    *(("(k * k * k) % 7", 2**30, None), ("min(k * k * k, 5)", 2**30, None), ("max(k * k * k, 5)", 2**30, None)),
    *(("5 // k", 0, None), ("5 % k + 3", 0, None), ("-(k * k - 10)", 3, 1), ("-7 // k", -2, 3)),
    *(("k // 3 + 100", -7, 97), ("k % 7", -6, 1), ("8 // k + 100", -3, 97), ("8 % k + 100", -3, 99)),
    *(("min(k, 3) * 2", 5, 6), ("max(k, 5)", 2, 5)),
]
"""An expression over k, a number, and its value; None if it has none in int64."""


@pytest.fixture(scope="module")
def sized(folder: Path) -> Any:
    """A kernel with a variant for each of these sizes."""

    def unit(number: int, expression: str) -> Any:
        outputs = [tensor("y", "complex64", [4, expression], output=True)]
        arguments = [tensor("x", "int8", [1]), scalar("k", "int64"), *outputs]
        return c_unit(folder, NOTHING, signature("sized", arguments, slug=f"v{number}", symbols={"k": "int64"}))

    units = [unit(number, expression) for number, (expression, _, _) in enumerate([*SIZES, ("k", 0, 0)])]
    # Warnings are errors, and so is arithmetic that C leaves undefined.
    trap = ["-fsanitize=signed-integer-overflow", "-fsanitize-undefined-trap-on-error"]
    return load(build(folder, plan("sized", *units, outputs=["y"]), extra=trap))


@pytest.mark.parametrize("number", range(len(SIZES)), ids=[expression for expression, _, _ in SIZES])
def test_a_size_that_cannot_be_computed_is_refused(sized: Any, number: int) -> None:
    _, k, size = SIZES[number]
    x, kernel = np.zeros(1, "int8"), sized[f"sized__{number}"]
    if size is not None:
        assert kernel(x, k).shape == (4, size)
        return
    message = "kernel 'sized': dimension 1 of output 'y' cannot be computed: it overflows int64, or divides by 0"
    with pytest.raises(ValueError, match=message):
        kernel(x, k)


@pytest.mark.parametrize("k", [2**54, 2**56])
def test_an_output_whose_bytes_cannot_be_counted_is_refused(sized: Any, k: int) -> None:
    """Of four rows of k elements of 64 bits each. With 2**56 there are 2**64 bits."""
    message = rf"kernel 'sized': output 'y' would have the shape \[4, {k}\], expected sizes from 0, with a product"
    with pytest.raises(ValueError, match=message):
        sized[f"sized__{len(SIZES)}"](np.zeros(1, "int8"), k)


def test_new_outputs_without_elements_may_have_the_strides_of_a_framework(folder: Path) -> None:
    """Also where no input is empty: y has four columns less than x. PyTorch's strides are those of size 1 there."""
    torch = pytest.importorskip("torch")
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        n = T.int32()
        m = T.int32()
        x = T.match_buffer(x_handle, (n, m), "float32", align=4)
        y = T.match_buffer(y_handle, (n, m - 4), "float32", align=4)
        for i, j in T.grid(n, m - 4):
            with T.sblock("y"):
                a, b = T.axis.remap("SS", [i, j])
                y[a, b] = x[a, b] + T.float32(1)

    arguments = [tensor("x", "float32", ["n", "m"]), tensor("y", "float32", ["n", "m - 4"], output=True)]
    data = signature("increment", arguments, symbols={"n": "int32", "m": "int32"})
    increment = load(build(folder, plan("increment", llvm_unit(folder, main, data), outputs=["y"])))["increment"]
    for shape, strides in {(4, 4): (1, 1), (0, 8): (4, 1), (0, 4): (1, 1), (2, 7): (3, 1)}.items():
        y = increment(torch.ones(shape))
        assert (y.shape, y.stride(), float(y.sum())) == ((shape[0], shape[1] - 4), strides, 2.0 * y.numel())


@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_launcher_and_wrapper_compile_without_warnings(compiler: str, tmp_path: Path) -> None:
    if not shutil.which(compiler):
        pytest.skip(f"{compiler} is not installed")
    from kernelwright.backends.commands import compile_flags
    from kernelwright.backends.launcher import LAUNCHER

    table = 'static const kw_kernel kw_this = {.name = "k", .outline = "x", .num_arguments = 1};\n'
    text = f'#define KW_LLVM\n#include "kernelwright.h"\n{table}#include "exports.h"\nKW_EXPORT_KERNEL(k)\n'
    (tmp_path / "k.c").write_text(text)
    folders = [f"-I{item}" for item in (LAUNCHER, *include_folders())]
    options = [*compile_flags(), "-Wall", "-Wextra", "-Werror", *folders]
    for dialect in (["-std=gnu11"], ["-std=c11", "-fsyntax-only"]):
        for source in ("k.c", str(LAUNCHER / "launcher.c")):
            subprocess.run([compiler, *options, *dialect, "-c", source], cwd=tmp_path, check=True)
