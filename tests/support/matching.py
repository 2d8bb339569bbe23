"""Kernels whose calls are compared in C, by their libraries, and in Python, by what a manifest says of them."""

from __future__ import annotations

from typing import Any

import numpy as np
from kernelwright.runtime.expected import Described

from .launcher_build import FakeTensor, scalar, signature, tensor

PARTS = ["(n - width) // max(m, 2) + 1", "min(n, m, 3) * 2", "n % width"]


def _variant(*arguments: dict[str, Any], slug: str = "default", **more: Any) -> dict[str, Any]:
    """A signature without the name of its kernel."""
    sizes = {size: "int32" for a in arguments for size in a.get("shape", ()) if str(size).isidentifier()}
    return {"slug": slug, "arguments": arguments, "symbols": sizes, **more}


def _x(dtype: str, *shape: int | str, name: str = "x", output: bool = False) -> dict[str, Any]:
    return tensor(name, dtype, list(shape), output=output)


KERNELS: dict[str, list[dict[str, Any]]] = {
    "saxpy": [
        _variant(scalar("alpha", "float32"), *(_x("float32", "n", name=name, output=name == "z") for name in "xyz"))
    ],
    "rms_norm": [
        _variant(
            _x(dtype, "tokens", hidden),
            _x(dtype, hidden, name="weight"),
            _x(dtype, "tokens", hidden, name="y", output=True),
            slug=f"hidden-{hidden}_dtype-{dtype}",
        )
        for hidden in (64, 128)
        for dtype in ("float16", "float32")
    ],
    "windows": [
        _variant(
            _x("float32", "n", "m"),
            scalar("width", "int32"),
            _x("float32", *PARTS, name="parts", output=True),
            _x("int64", "-(-n // width)", name="order", output=True),
        )
    ],
    "copied": [_variant(_x("float32", "n", name="y", output=True), _x("float32", "n"))],
    "flags": [
        _variant(
            *(scalar("on", "bool"), scalar("level", "int8"), scalar("count", "uint8"), _x("bool", "n")),
            symbols={"n": "int64"},
        )
    ],
    "product": [
        _variant(
            *(_x("float32", "m", "k", name="a"), _x("float32", *sizes, name="b")),
            _x("float32", "m", "n", name="c", output=True),
            slug=slug,
        )
        for slug, sizes in {"turned": ("n", "k"), "plain": ("k", "n")}.items()
    ],
    "masked": [
        _variant(
            *(_x("float32", "m", "k", name="a"), _x("float32", *sizes, name="b")),
            _x("float32", *(["m"] if given is None else []), name="mask") | {"given": given},
            _x("float32", "m", "n", name="c", output=True),
            slug=slug,
        )
        for slug, sizes, given in (("turned", ("n", "k"), None), ("plain", ("k", "n"), False))
    ],
    "classes": [
        _variant(_x("int8", "n"), slug="n-16", multiples={"n": 16}),
        _variant(_x("int8", "n", "n"), slug="square"),
    ],
    "large": [_variant(*(_x("bool", "n", "m", name=name) for name in "xy"))],
    "strided": [
        _variant(
            {**_x("bool", "n", "m"), "strides": ["row", 1]},
            symbols=dict.fromkeys("nm", "int64"),
            stride_symbols={"row": "int32"},
        )
    ],
    "limits": [
        _variant(
            {**_x("bool", "n", "m"), "strides": ["row", 1]},
            *(scalar("k", "int64"), _x("bool", "n", name="y", output=True)),
            symbols=dict.fromkeys("nm", "int64"),
            stride_symbols={"row": "int64"},
            slug=f"most-{most}",
            requires=[f"n <= {most}", "n % k != 1", "row >= m * 2", "k + n <= 9223372036854775807"],
        )
        for most in (16, 64)
    ],
    "leading": [
        _variant(
            _x("float32", "m", name="sums", output=True) | {"folds": True},
            _x("float32", *(["m", "d"] if given is None else []), name="bias")
            | {"given": given}
            | ({} if given is False else {"folds": True}),
            {**_x("float32", "m", "2 * d"), "folds": True, "strides": ["s", 1]},
            *(_x("float32", "d", name="w"), _x("float32", "m", "d", name="y", output=True) | {"folds": True}),
            slug=slug,
            stride_symbols={"s": "int32"},
            requires=requires,
        )
        for slug, given, requires in (("small", None, ["m < 100", "s <= 2 * d"]), ("apart", False, ["m < 1000"]))
    ],
    "gated": [
        _variant(
            *(_x(dtype, "n", size), _x(dtype, "n", 32 if size == 64 else "d", name="y", output=True)),
            slug=slug,
            symbols=dict.fromkeys("n" if size == 64 else "nd", "int64"),
            **more,
        )
        for slug, dtype, size, more in (
            ("even", "float32", "2 * d", {"multiples": {"d": 3}}),
            ("odd", "float16", "1 + d * 2", {"requires": ["d < 50"]}),
            ("special", "bool", 64, {}),
            ("general", "bool", "d + 32", {}),
        )
    ],
    "longer": [_variant(_x("bool", "n", "m"), _x("bool", "n + 1", "m", name="y", output=True))],
}
"""Kernel -> what signature.json says of its variants."""

MISSING = {"masked": [{"kernel": "masked", "archs": ["sm_80"], "stage": "nvcc", "error": "large"}]}
"""Kernel -> what a manifest says that it lacks."""


def outputs_of(name: str) -> list[str]:
    """The names of a kernel's outputs."""
    return [argument["name"] for argument in KERNELS[name][0]["arguments"] if argument["output"]]


def signatures_of(name: str) -> list[dict[str, Any]]:
    """The signature.json of each variant."""
    return [
        signature(name, v["arguments"], slug=v["slug"], symbols=v["symbols"])
        | {key: v[key] for key in ("stride_symbols", "multiples", "requires") if key in v}
        for v in KERNELS[name]
    ]


def entry_of(name: str) -> dict[str, Any]:
    """What the manifest would say."""
    variants = [{**variant, "units": [{"target": "llvm"}]} for variant in KERNELS[name]]
    return {"variants": variants, "outputs": outputs_of(name), "missing": MISSING.get(name, [])}


class Large(FakeTensor):
    """An array of bool, of any shape."""

    dtype = "bool"

    def __init__(self, *shape: int) -> None:
        super().__init__(shape, (6, 8, 1))
        self.shape = shape


def described(argument: Any) -> Described:
    """An argument as Python compares it."""
    if hasattr(argument, "__dlpack__"):
        strides = getattr(argument, "strides", None)
        told = strides and tuple(stride // argument.itemsize for stride in strides)
        return Described(str(argument.dtype), argument.shape, device="cpu", strides=told)
    return Described(value=argument)


def f32(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def f16(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float16)
