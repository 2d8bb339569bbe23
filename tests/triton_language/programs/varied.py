"""A program in Triton that makes some of many possible calls; a test makes others of the same functions."""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl

FLOATS, HALVES = torch.zeros(64), torch.zeros(64, dtype=torch.float16)
POINTERS = {"floats": FLOATS, "odd floats": FLOATS[1:], "halves": HALVES, "odd halves": HALVES[1:], "None": None}
"""What a call can pass for a pointer, by name."""


@triton.jit
def untyped(y, x, n):
    """An optional pointer, and something that may be an int of any size, a bool, a float or None."""
    value = 0.0
    if x is not None:
        value += tl.load(x)
    if n is not None:
        value += n
    tl.store(y, value)


@triton.jit(do_not_specialize=["k"], do_not_specialize_on_alignment=["x"])
def typed(y, x, m: tl.int64, k):
    """A number of a declared type, and parameters that the code is not specialized for."""
    tl.store(y, tl.load(x) + m + k)


@triton.jit
def constant(y, f: tl.float32, COUNT: tl.constexpr):
    """A float of a declared type, and a constant."""
    tl.store(y, f + COUNT)


def calls() -> Iterator[tuple[str, tuple[object, ...]]]:
    """The calls of the program: a function, and what is passed behind ``y``."""
    for name, n in (
        *(("floats", n) for n in (1, 16, 17, 2**31, 2**40 + 1, 2**63, True, None)),
        *(("odd floats", n) for n in (5, 32, 2**64 - 1, 0.5)),
        *(("None", n) for n in (1, 0, -1)),
        *(("halves", n) for n in (1, 48)),
    ):
        yield "untyped", (POINTERS[name], n)
    for name, m, k in (("floats", 1, 1), ("odd floats", 16, 2), ("floats", 32, 2**40), ("halves", 3, 2**63)):
        yield "typed", (POINTERS[name], m, k)
    for count in (1, True, 1.5, 0.0):
        yield "constant", (2.5, count)


if __name__ == "__main__":
    for function, arguments in calls():
        globals()[function][(1,)](FLOATS, *arguments)
