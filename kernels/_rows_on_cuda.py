"""Row-wise kernels on CUDA: threads share a row, read and write it 16 bytes at a time, and combine what they find."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from typing import Any

from kernelwright import grid
from tvm import DataType
from tvm.script import tirx as T

WARP = 32

PER_THREAD = 32
"""Elements of a row that a thread holds in registers, unless a point of the space says otherwise."""


def with_fallback(configs: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The configs, and behind them the same for tensors that are not aligned to 16 bytes.

    A call runs the first variant that its data is aligned for, so callers need not know of the second ones.
    """
    listed = [dict(config) for config in configs]
    return [*listed, *({**config, "aligned": False} for config in listed)]


def piece_width(columns: int, dtype: str, aligned: bool) -> int:
    """Elements that a thread reads and writes at once: 16 bytes if tensors and rows begin at multiples of that."""
    itemsize = DataType(dtype).itemsize
    return 16 // itemsize if aligned and columns * itemsize % 16 == 0 else 1


def row_space(target: str, aligned: bool = True) -> list[dict[str, Any]]:
    """The space of a row-wise kernel: on CUDA, how many elements of a row a thread holds; the CPU as of `cpu_space`."""
    return [{}, {"per_thread": 16}, {"per_thread": 8}] if target == "cuda" else cpu_space(aligned)


def block_space(target: str, aligned: bool = True) -> list[dict[str, Any]]:
    """The space of a kernel whose threads all do the same: how many of them a block has; the CPU as of `cpu_space`."""
    return [{}, {"threads": 128}] if target == "cuda" else cpu_space(aligned)


def cpu_space(aligned: bool) -> list[dict[str, Any]]:
    """Whether the rows go to all cores or stay on one, faster for few. The code takes data of any alignment."""
    return grid(cores=["all", "one"]) if aligned else []


class SharedRow:
    """A row in the registers of a warp or, if it has more elements than a warp holds, of a block.

    Thread ``tx`` holds ``shape = (turns, width)`` elements: in each turn, the threads of the row take pieces of
    ``width`` elements side by side. What lies beyond the end of the row is never read or written.

    Arguments:
        columns: elements of a row.
        dtype: their type in memory; they are float32 in registers.
        aligned: whether the memory of every tensor is aligned to 16 bytes.
        per_thread: elements that a thread holds; more if the row is too long for the threads of a block.
    """

    def __init__(self, columns: int, dtype: str, aligned: bool, per_thread: int) -> None:
        self.columns = columns
        self.width = piece_width(columns, dtype, aligned)
        self.warps = min(math.ceil(columns / (WARP * per_thread)), 32)
        self.threads = WARP * self.warps
        self.shape = (math.ceil(columns / (self.threads * self.width)), self.width)
        self.rows = 4 if self.warps == 1 else 1  # of a block
        self.read, self.write = _read_and_write(columns, dtype, self.threads, self.shape)
        self.largest = _combined(self.warps, "max", T.max)
        self.sum = _combined(self.warps, "sum", operator.add)

    def holds(self, turn: Any, tx: Any) -> Any:
        """Whether a thread holds elements of the row in a turn."""
        return (turn * self.threads + tx) * self.width < self.columns


def _read_and_write(columns: int, dtype: str, threads: int, shape: tuple[int, int]) -> tuple[Any, Any]:
    turns, width = shape

    @T.inline
    def read(values, at, tx, beyond):
        """Read the elements ``at(column)`` of a row; ``beyond`` stands for those that there are not."""
        piece = T.alloc_buffer((turns, width), dtype, scope="local")
        for turn in T.unroll(turns):
            column = T.meta_var((turn * threads + tx) * width)
            if column < columns:
                for i in T.vectorized(width):
                    piece[turn, i] = at(column + i)
                for i in T.unroll(width):
                    values[turn, i] = T.cast(piece[turn, i], "float32")
            else:
                for i in T.unroll(width):
                    values[turn, i] = T.float32(beyond)

    @T.inline
    def write(y, row, tx, value):
        """Write ``value(turn, i)``, in float32, to a row of y."""
        piece = T.alloc_buffer((width,), dtype, scope="local")
        for turn in T.unroll(turns):
            column = T.meta_var((turn * threads + tx) * width)
            if column < columns:
                for i in T.unroll(width):
                    piece[i] = T.cast(value(turn, i), dtype)
                for i in T.vectorized(width):
                    y[row, column + i] = piece[i]

    return read, write


def _combined(warps: int, name: str, operation: Any) -> Any:
    @T.inline
    def combined(result, tx):
        """Replace ``result[0]`` by the combination of those of all threads of the row."""
        result[0] = T.cuda.warp_reduce(result[0], name)
        if warps > 1:
            of_warps = T.alloc_buffer((warps,), "float32", scope="shared")
            if tx % WARP == 0:
                of_warps[tx // WARP] = result[0]
            T.tvm_storage_sync("shared")
            result[0] = of_warps[0]
            for warp in T.unroll(1, warps):
                result[0] = operation(result[0], of_warps[warp])

    return combined
