"""The kernels that all launchers are called with in tests/contracts, and one package of them for each launcher."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from .launchers import Kernel, Process, Variant, make_driver, make_package
from .project import once

GRID = "min((n + 127) // 128, 2 * multiprocessors)"

ARCHS = ("sm_80", "sm_90", "sm_90a", "sm_100f", "compute_80")


def declared(function: str, grid: Any, passed: dict[str, Any], *, cluster: int = 0, **flags: Any) -> Any:
    """A launch with blocks of 128 threads."""
    from kernelwright.frontends.launches import DeclaredLaunch

    sizes = [("blockIdx.x", grid), ("threadIdx.x", 128), *([("clusterCtaIdx.x", cluster)] if cluster else [])]
    return DeclaredLaunch(function, passed, sizes, **flags)


def scale() -> Kernel:
    """y = x * alpha + beta + shift, with numbers of three types."""
    from kernelwright.cuda import Scalar, Size, Tensor

    numbers = {"alpha": Scalar("float32"), "beta": Scalar("float16"), "n": Size("n"), "shift": Scalar("int64")}
    passed = {"x": Tensor("float16", "n"), "y": Tensor("float16", "n"), **numbers}
    return Kernel([Variant.of("scale", declared("scale_kernel", "(n + 127) // 128", passed), outputs=["y"])])


def two_steps() -> Any:
    """Two launches with temporary memory between them; the second of them for more than 50 elements only."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float32", align=4)
        y = T.match_buffer(y_handle, (n,), "float32", align=4)
        assert n % 10 == 0, 'n has to be a multiple of "10"'
        middle = T.alloc_buffer((n,), "float32")
        for i in T.thread_binding(n, thread="blockIdx.x"):
            for _ in T.thread_binding(128, thread="threadIdx.x"):
                with T.sblock("middle"):
                    k = T.axis.spatial(n, i)
                    middle[k] = x[k] + T.float32(1)
        if n > 50:
            for i in T.thread_binding(n, thread="blockIdx.x"):
                for _ in T.thread_binding(128, thread="threadIdx.x"):
                    with T.sblock("y"):
                        k = T.axis.spatial(n, i)
                        y[k] = middle[k]

    return main


def resident() -> list[Any]:
    """Two launches: the first one has as many blocks as the device can run at once, and the second knows how many."""
    from kernelwright.cuda import Scalar, Size, Tensor, Workspace
    from kernelwright.frontends.launches import DeclaredLaunch

    count = Size("multiprocessors * occupancy", "int64")
    memory = Workspace("float32", "multiprocessors * occupancy")
    arguments = {"x": Tensor("float32", "n"), "memory": memory, "threads": Scalar("int32"), "bytes": Scalar("int32")}
    first = [("blockIdx.x", "multiprocessors * occupancy"), ("threadIdx.x", "threads"), ("threadIdx.y", 2)]
    launches = (
        ("first", arguments, first, "bytes"),
        ("second", {"memory": memory, "count": count}, [("threadIdx.x", 32)], 0),
    )
    return [DeclaredLaunch(f"{name}_kernel", passed, sizes, shared=shared) for name, passed, sizes, shared in launches]


def parts() -> Any:
    """A launch for whole parts of 64 elements, and one for the rest: one of them has no block in some calls."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float32", align=4)
        y = T.match_buffer(y_handle, (n,), "float32", align=4)
        for i in T.thread_binding(n // 64, thread="blockIdx.x"):
            for j in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("whole"):
                    k = T.axis.spatial(n, i * 64 + j)
                    y[k] = x[k]
        for i in T.thread_binding(n % 64, thread="blockIdx.x"):
            for _ in T.thread_binding(64, thread="threadIdx.x"):
                with T.sblock("rest"):
                    k = T.axis.spatial(n, n // 64 * 64 + i)
                    y[k] = x[k]

    return main


def fill() -> Any:
    """A number is the size of the output."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, count: T.int32, y_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float32", align=4)
        y = T.match_buffer(y_handle, (count,), "float32", align=4)
        for i in T.thread_binding(count, thread="blockIdx.x"):
            for _ in T.thread_binding(128, thread="threadIdx.x"):
                with T.sblock("y"):
                    k = T.axis.spatial(count, i)
                    y[k] = x[0]

    return main


def strided() -> Any:
    """An array whose rows are as far apart as only its stride tells, and one whose rows are twice as far apart."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        m, n, s = T.int32(), T.int32(), T.int32()
        x = T.match_buffer(x_handle, (m, n), "float32", strides=(s, 1), align=4)
        y = T.match_buffer(y_handle, (m, n), "float32", strides=(s * 2, 1), align=4)
        for i in T.thread_binding(m, thread="blockIdx.x"):
            for j in T.thread_binding(n, thread="threadIdx.x"):
                with T.sblock("y"):
                    vi, vj = T.axis.remap("SS", [i, j])
                    y[vi, vj] = x[vi, vj]

    return main


def norm() -> Kernel:
    """Four variants by size and dtype; those of float16 have a second one for data that is aligned less."""
    from kernelwright.cuda import Tensor

    variants = []
    for hidden, dtype, alignment in ((64, "float16", 16), (64, "float16", 2), (64, "float32", 4), (128, "float32", 8)):
        slug, config = f"v{len(variants)}", {"hidden": hidden, "dtype": dtype, "alignment": alignment}
        array = Tensor(dtype, "tokens", hidden, alignment=alignment)
        launch = declared(f"norm_{len(variants)}", "tokens", {"x": array, "y": array})
        variants.append(Variant.of("norm", launch, slug=slug, config=config, outputs=["y"]))
    return Kernel(variants)


def product() -> Kernel:
    """Two variants, the first of which takes b transposed."""
    from kernelwright.cuda import Tensor

    variants = []
    for number, b in enumerate((("n", "k"), ("k", "n"))):
        passed = {"a": Tensor("float32", "m", "k"), "b": Tensor("float32", *b), "c": Tensor("float32", "m", "n")}
        launch = declared(f"product_{number}", "m", passed)
        variants.append(Variant.of("product", launch, slug=f"v{number}", outputs=["c"]))
    return Kernel(variants)


def head(name: str, meaning: tuple[str, ...]) -> Kernel:
    """Variants that differ in their output only."""
    from kernelwright.cuda import Tensor

    variants = []
    for number, (k, block) in enumerate(((8, 1), (8, 2), (32, 1))):
        launch = declared(f"{name}_{number}", "n", {"x": Tensor("int8", "n"), "y": Tensor("int8", k)})
        config = {"k": k, "block": block}
        variants.append(Variant.of(name, launch, slug=f"v{number}", config=config, outputs=["y"]))
    return Kernel(variants, options={"meaning": meaning})


def biased() -> Kernel:
    """A bias that may be None, in front of the array that tells its size, in two variants by dtype."""
    from kernelwright.cuda import Size, Tensor

    variants = []
    for dtype in ("float32", "float16"):
        bias = Tensor(dtype, "n", alignment=16, optional=True)
        passed = {
            "bias": bias,
            "x": Tensor(dtype, "m", "n"),
            "n": Size("n"),
            "scale": Tensor("float32", 1, optional=True),
        }
        launch = declared("biased_kernel", "m", {**passed, "y": Tensor(dtype, "m", "n")})
        variants.append(Variant.of("biased", launch, slug=dtype, config={"dtype": dtype}, outputs=["y"]))
    return Kernel(variants)


def masked() -> Kernel:
    """A mask of other sizes than the inputs' in one variant, and None in the other one. Nothing is an output."""
    from kernelwright.cuda import Tensor

    variants = []
    for given in (True, False):
        passed = {"x": Tensor("float32", "n"), "mask": Tensor("int8", "n", "k", given=given)}
        launch = declared(f"masked_{given}", "n", passed)
        variants.append(Variant.of("masked", launch, slug=f"given_{given}", config={"given": given}))
    return Kernel(variants)


def told() -> Kernel:
    """A number tells the size of an array that may be None."""
    from kernelwright.cuda import Scalar, Tensor

    passed = {"x": Tensor("float32", "m"), "b": Tensor("float32", "k", optional=True), "k": Scalar("int32")}
    return Kernel([Variant.of("told", declared("told_kernel", "m * k", passed))])


def apart() -> Kernel:
    """Arrays that may be None: one in front of the array that tells its stride, and one of more rows and any stride."""
    from kernelwright.cuda import Size, Stride, Tensor

    passed = {
        "bias": Tensor("float32", "n", strides=("s",), optional=True),
        "x": Tensor("float32", "n", "m", strides=("s", 1)),
        "rest": Tensor("float32", "8 * n", "m", strides="dense", optional=True),
        "step": Size("s"),
        "rest_step": Stride("rest", 0),
    }
    lowered = Variant.of("apart", declared("apart_kernel", "n", passed))
    signature = {**lowered.signature, "requires": ["s >= m"]}
    return Kernel([replace(lowered, signature=signature)])


RULES: tuple[dict[str, bool | None], ...] = (
    {"a": True, "b": True, "c": None},
    {"a": True, "b": False, "c": None},
    {"a": False, "b": None, "c": False},
)
"""What the variants of the kernel ``rules`` take for three arrays: an array (True), None (False), or either (None)."""


def large() -> Kernel:
    """Rows that are any number of elements apart; the function gets this, and how many rows there are, as int32."""
    from kernelwright.cuda import Size, Stride, Tensor

    passed = {
        "x": Tensor("int8", "m", "n", strides="dense"),
        "y": Tensor("int8", "m", "n", 4096, written=True),
        "m": Size("m"),
        "step": Stride("x", 0),
        "n": Size("n", "int64"),
        "bytes": Size("m * n * 4096", "int64"),
    }
    return Kernel([Variant.of("large", declared("large_kernel", "m", passed))])


def rules() -> Kernel:
    """Variants that differ in the arrays that may be None."""
    from kernelwright.cuda import Tensor

    variants = []
    for number, rule in enumerate(RULES):
        said = {True: {}, False: {"given": False}, None: {"optional": True}}
        optional = {name: Tensor("float32", "n", **said[given]) for name, given in rule.items()}
        passed = {"x": Tensor("float32", "n"), **optional, "y": Tensor("float32", "n")}
        launch = declared(f"rules_{number}", "n", passed)
        variants.append(Variant.of("rules", launch, slug=f"v{number}", outputs=["y"]))
    return Kernel(variants)


def leading() -> Kernel:
    """Two variants whose arrays have any leading dimensions; the rows of two are any number of elements apart."""
    from kernelwright.cuda import Size, Stride, Tensor

    variants = []
    for dtype in ("float32", "float16"):
        passed = {
            "y": Tensor(dtype, (..., "m"), "d"),
            "bias": Tensor(dtype, (..., "m"), "d", optional=True),
            "x": Tensor(dtype, (..., "m"), "2 * d", strides="dense"),
            "w": Tensor(dtype, "d"),
            "sums": Tensor("float32", (..., "m")),
            "rows": Size("m"),
            "step": Stride("x", 0),
        }
        lowered = Variant.of("leading", declared(f"leading_{dtype}", "m", passed), slug=dtype, outputs=["y", "sums"])
        variants.append(replace(lowered, signature={**lowered.signature, "requires": ["m < 1000"]}))
    return Kernel(variants)


def kernels() -> dict[str, Kernel]:
    """All of them, by name."""
    from kernelwright.cuda import Scalar, Size, Tensor, Workspace

    x, flags = Tensor("float32", "n"), {"cooperative": True, "dependent": True, "shared": 65536}
    numbers = {"parts": Scalar("int32"), "flag": Scalar("bool")}
    defaults = {"x": x, "k": Scalar("int32", default=7), "scale": Scalar("float32", default=0.25)}
    kinds = {name: Scalar(dtype) for name, dtype in (("a", "int8"), ("b", "uint16"), ("c", "int64"), ("d", "float64"))}
    launches = {
        "special": declared("special_kernel", "n * 2", {"x": x}, cluster=2, **flags),
        "shared": declared("shared_kernel", "n", {"x": x}, shared=32768),
        "divide": declared("divide_kernel", Size("n") // "parts", {"x": x, **numbers}),
        "default": declared("default_kernel", "k", defaults),
        "square": declared("square_kernel", 1, {"x": Tensor("int8", "n", "n"), "y": Tensor("int8", "n", "m")}),
    }
    made = {name: Kernel([Variant.of(name, launch)]) for name, launch in launches.items()}
    both = {"x": Tensor("float32", "n", "2 * d + 1"), "w": Tensor("float32", "2*d+1"), "y": Tensor("float32", "n", "d")}
    gated = declared("gated_kernel", "n * d", {**both, "d": Size("d"), "twice": Size("2 * d", dtype="int64")})
    made["gated"] = Kernel([Variant.of("gated", gated, outputs=["y"])])
    x_of_ends = Tensor("float32", "n", "2 * d + 1", strides=("4 * d", 1), multiples={"d": 4})
    ends = declared("ends_kernel", "d // 4", {"x": x_of_ends, "y": Tensor("float32", "3 * d"), "d": Size("d")})
    made["ends"] = Kernel([Variant.of("ends", ends, outputs=["y"])])
    other = declared("other_kernel", 1, {"x": Tensor("float16", "n"), **kinds})
    numbers_of = {"default": declared("numbers_kernel", 1, {"x": x, **kinds}), "other": other}
    made["numbers"] = Kernel([Variant.of("numbers", launch, slug=slug) for slug, launch in numbers_of.items()])
    of_tir = {"two_steps": two_steps(), "parts": parts(), "fill": fill()}
    made |= {name: Kernel([Variant.of(name, function, outputs=["y"])]) for name, function in of_tir.items()}
    made["strided"] = Kernel([Variant.of("strided", strided())])
    memory = {"x": x, "memory": Workspace("float32", "n - 5", "k"), "k": Scalar("int32")}
    sms = {"sms": Size("multiprocessors"), "memory": Workspace("float32", "min(n, multiprocessors)", 16)}
    made["persistent"] = Kernel([Variant.of("persistent", declared("persistent_kernel", GRID, {"x": x, **sms}))])
    made["resident"] = Kernel([Variant.of("resident", resident())])
    made["memory"] = Kernel([Variant.of("memory", declared("memory_kernel", "n", memory))])
    made |= {"head": head("head", ()), "knows": head("knows", ("k",))}
    made |= {"biased": biased(), "masked": masked(), "rules": rules(), "told": told()}
    made |= {"apart": apart(), "large": large(), "leading": leading()}
    return made | {"scale": scale(), "norm": norm(), "product": product()}


def driver_of(factory: pytest.TempPathFactory) -> Path:
    """The folder of the driver."""
    return once(factory, "launched_driver", make_driver)  # type: ignore[arg-type]


def process_of(factory: pytest.TempPathFactory, launcher: str) -> Process:
    """Processes in which these kernels are called through a launcher."""
    folder = once(factory, f"launched_{launcher}", lambda made: make_package(made, kernels(), ARCHS, launcher=launcher))
    return Process(folder, driver_of(factory))
