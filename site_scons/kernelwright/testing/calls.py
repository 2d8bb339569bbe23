"""What every backend promises to callers on the CPU: a function for each promise, with a real build of some kernels."""

from __future__ import annotations

import importlib
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .languages import SCONSTRUCT

INTEGERS = tuple(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64))
DTYPES = ("bool", *INTEGERS, "float16", "float32", "float64")
"""The dtypes of arrays that every backend takes."""

CALLED = f"""\
from kernelwright import kernel
from tvm import te
from tvm.script import tirx as T


@kernel(outputs=["y"], configs=[{{"dtype": dtype}} for dtype in {DTYPES}])
def each(dtype):
    '''y = x'''
    n = te.var("n")
    x = te.placeholder((n,), dtype, name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i], name="y")])


@kernel(outputs=["z"])
def plus():
    '''z = alpha * x + y'''
    n, alpha = te.var("n"), te.var("alpha", "float32")
    x, y = te.placeholder((n,), "float32", name="x"), te.placeholder((n,), "float32", name="y")
    return te.create_prim_func([alpha, x, y, te.compute((n,), lambda i: alpha * x[i] + y[i], name="z")])


@kernel(outputs=["y", "z"])
def two():
    '''z = 2 * x, and y = x and a zero'''
    n = te.var("n")
    x = te.placeholder((n,), "float32", name="x")
    z = te.compute((n,), lambda i: x[i] * 2.0, name="z")
    y = te.compute((n + 1,), lambda i: te.if_then_else(i < n, x[te.min(i, n - 1)], 0.0), name="y")
    return te.create_prim_func([x, z, y])


@kernel
def add_to():
    '''total += x'''
    @T.prim_func(s_tir=True)
    def main(total_handle: T.handle, x_handle: T.handle):
        n = T.int32()
        total = T.match_buffer(total_handle, (n,), "float32")
        x = T.match_buffer(x_handle, (n,), "float32")
        for i in range(n):
            with T.sblock("total"):
                j = T.axis.spatial(n, i)
                total[j] = total[j] + x[j]
    return main


@kernel(outputs=["y"])
def rows():
    '''y = 2 * x, whose rows may have gaps between them'''
    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        m, n, step = T.int32(), T.int32(), T.int32()
        x = T.match_buffer(x_handle, (m, n), "float32", strides=(step, 1))
        y = T.match_buffer(y_handle, (m, n), "float32")
        for i, j in T.grid(m, n):
            with T.sblock("y"):
                vi, vj = T.axis.remap("SS", [i, j])
                y[vi, vj] = x[vi, vj] * T.float32(2)
    return main
"""
"""The definitions of the kernels that are called."""


LAUNCHED = '''\
from kernelwright import kernel
from kernelwright.cuda import Scalar, Size, Source, Tensor, ceildiv

SOURCE = """
extern "C" __global__ void add(const float *x, const float *bias, float alpha, float *y, int n) {
  int i = blockIdx.x * 256 + threadIdx.x;
  if (i < n) y[i] = alpha * x[i] + (bias ? bias[i] : 0);
}
"""


@kernel(frontend="cuda", outputs=["y"])
def add():
    """y = alpha * x + bias"""
    row, bias, alpha = Tensor("float32", "n"), Tensor("float32", "n", optional=True), Scalar("float32", default=2.0)
    arguments = {"x": row, "bias": bias, "alpha": alpha, "y": row, "n": Size("n")}
    return Source(SOURCE, "add", **arguments, grid=ceildiv("n", 256), block=256)
'''
"""The definition of the kernel that is launched. It has arguments that calls leave out."""


def in_stream_of_tvm_ffi(kernel: Callable[..., Any], stream: int, *arguments: Any) -> Any:
    """Call a kernel of a backend that launches in the current stream of TVM-FFI, on the first device."""
    import tvm_ffi

    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), stream):
        return kernel(*arguments)


@dataclass(frozen=True)
class Caller:
    """How the kernels of a backend are called.

    Arguments:
        backend: its name.
        array: makes an array that it takes of one of NumPy; the two share their memory, if outputs can be passed.
        numpy: the content of what it returns, as an array of NumPy.
        writes: whether outputs can be passed, and inputs written; otherwise they are always new.
        device_array: makes an array that it takes of a ``DeviceArray``; None: it takes only arrays of a framework,
            which has none without a GPU, so that it cannot be asked for ``LAUNCHES``.
        in_stream: calls a kernel in a stream of the first device: kernel, handle of the stream, and the arguments.
    """

    backend: str
    array: Callable[[Any], Any]
    numpy: Callable[[Any], Any]
    writes: bool = True
    device_array: Callable[[Any], Any] | None = None
    in_stream: Callable[..., Any] = in_stream_of_tvm_ffi

    def kernels(self, folder: Path) -> Any:
        """The kernels of a package that is built for the backend in a folder, imported by this process."""
        return self._built(folder, "called", 'targets = ["llvm"]', CALLED)

    def launched(self, folder: Path) -> Any:
        """The same for CUDA, with one kernel, ``add``: it takes nvcc, which the extra ``cuda`` has."""
        return self._built(folder, "launched", 'targets = ["cuda"]\narchs = ["sm_80"]', LAUNCHED)

    def _built(self, folder: Path, what: str, settings: str, definitions: str) -> Any:
        name = f"{what}_through_{self.backend}"
        files = {
            "SConstruct": SCONSTRUCT.replace("demo", name),
            "pyproject.toml": f'[tool.kernelwright]\n{settings}\nbackends = ["{self.backend}"]\n',
            f"kernels/{what}.py": definitions,
        }
        for path, text in files.items():
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(text)
        command = [sys.executable, "-m", "SCons", "-Q"]
        done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        assert done.returncode == 0, done.stdout
        sys.path.insert(0, str(folder / "build"))
        try:
            return getattr(importlib.import_module(name).backends, self.backend)
        finally:
            sys.path.remove(str(folder / "build"))


def every_dtype_and_size_is_taken(caller: Caller, kernels: Any) -> None:
    """Arrays of each dtype, of several elements, of one and of none; a framework may lack some dtypes."""
    import numpy as np

    taken = 0
    for dtype in DTYPES:
        for size in (3, 1, 0):
            x = np.arange(size).astype(dtype)
            given = caller.array(x)
            if caller.numpy(given).dtype != x.dtype:
                continue
            taken += 1
            made = caller.numpy(kernels.each(given))
            assert (made.dtype, made.tolist()) == (x.dtype, x.tolist()), f"{dtype}[{size}] gives {made!r}"
    assert taken >= 3 * 3, "it takes hardly any dtype"


def outputs_are_made_or_written(caller: Caller, kernels: Any) -> None:
    """Outputs that are left out are new, several are a tuple in the order of the definition; others are written."""
    import numpy as np

    for size in (3, 1, 0):
        x, y = np.arange(size, dtype="float32"), np.full(size, 5, "float32")
        expected = 2 * x + y
        assert caller.numpy(kernels.plus(2.0, caller.array(x), caller.array(y))).tolist() == expected.tolist()
        if caller.writes:
            z = np.zeros_like(x)
            assert kernels.plus(2.0, caller.array(x), caller.array(y), caller.array(z)) is None
            assert z.tolist() == expected.tolist()
    made = kernels.two(caller.array(np.ones(2, "float32")))
    assert type(made) is tuple and [caller.numpy(one).tolist() for one in made] == [[1, 1, 0], [2, 2]]
    total = np.ones(2, "float32")
    made = kernels.add_to(caller.array(total), caller.array(np.ones(2, "float32")))
    assert (made is None) == caller.writes
    assert (total if caller.writes else caller.numpy(made)).tolist() == [2, 2]


def strides_are_taken_or_refused(caller: Caller, kernels: Any) -> None:
    """A view with the strides that a kernel declares is taken. One that it does not is refused, or taken rightly."""
    import numpy as np

    whole = np.arange(12, dtype="float32").reshape(3, 4)
    for view in (whole[:, :3], whole[::2], whole[:1, 1:]):
        assert caller.numpy(kernels.rows(caller.array(view))).tolist() == (2 * view).tolist()
    column = whole[:, 1]
    try:
        made = caller.numpy(kernels.plus(1.0, caller.array(column), caller.array(column))).tolist()
    except (TypeError, ValueError, RuntimeError) as error:
        assert "plus" in str(error) and "compact" in str(error), error
    else:
        assert made == (2 * column).tolist()


def a_wrong_call_names_the_kernel(caller: Caller, kernels: Any) -> None:
    """A wrong dtype, rank, size or count is an error that names the kernel, and writes nothing."""
    import numpy as np

    x, z = np.ones(3, "float32"), np.zeros(3, "float32")
    wrong = [(2.0, x, x.astype("float16")), (2.0, x[None], x), (2.0, x, x[:2]), (2.0,), ("a", x, x), (2.0, x, None)]
    wrong += [(2.0, x, x[:2], z)] if caller.writes else []
    for arguments in wrong:
        given = [caller.array(one) if isinstance(one, np.ndarray) else one for one in arguments]
        try:
            made = kernels.plus(*given)
        except (TypeError, ValueError, RuntimeError) as error:
            assert "plus" in str(error), f"{arguments}: {error}"
        else:
            raise AssertionError(f"{arguments} gives {made!r}")
    assert z.tolist() == [0, 0, 0]


def a_kernel_says_what_it_has(caller: Caller, kernels: Any) -> None:
    """Its variants, where it runs, and one variant by its config; another one is an error that lists these."""
    import numpy as np

    assert kernels.each.variants == tuple({"dtype": dtype} for dtype in DTYPES)
    assert kernels.each.devices == {"cpu"} and kernels.each.supported() and not kernels.each.supported("cuda")
    assert kernels.each.preload() is None
    chosen = kernels.each.variant(dtype="float32")
    assert chosen.variants == ({"dtype": "float32"},)
    assert caller.numpy(chosen(caller.array(np.ones(2, "float32")))).tolist() == [1, 1]
    try:
        kernels.each.variant(dtype="float7")
    except KeyError as error:
        assert "dtype='float32'" in str(error)
    else:
        raise AssertionError("there is a variant of float7")


CALLS: tuple[Callable[[Caller, Any], None], ...] = (
    every_dtype_and_size_is_taken,
    outputs_are_made_or_written,
    strides_are_taken_or_refused,
    a_wrong_call_names_the_kernel,
    a_kernel_says_what_it_has,
)
"""What every backend promises to callers on the CPU. Each takes the caller, and its kernels."""
