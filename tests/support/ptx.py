"""Runs PTX with NumPy: the few instructions that kernels of our tests consist of, one block after the other.

All threads of a block go through an instruction at once. Where they part, those that are furthest behind go first, so
that they meet again. It is slow, knows no warps but for broadcasts, and refuses what it does not know.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

Values = np.ndarray[Any, Any]

TYPES: Mapping[str, Any] = {
    **{f"u{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"s{bits}": np.dtype(f"int{bits}") for bits in (8, 16, 32, 64)},
    **{f"b{bits}": np.dtype(f"uint{bits}") for bits in (8, 16, 32, 64)},
    **{f"f{bits}": np.dtype(f"float{bits}") for bits in (16, 32, 64)},
}

BINARY: Mapping[str, Callable[[Values, Values], Values]] = {
    **{"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "min": np.minimum, "max": np.maximum},
    **{"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor, "shl": np.left_shift, "shr": np.right_shift},
}

COMPARED: Mapping[str, Callable[[Values, Values], Values]] = {
    **{"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater},
    "ge": np.greater_equal,
}


class Kernel:
    """One entry function.

    Arguments:
        text: PTX with one entry function.
    """

    def __init__(self, text: str) -> None:
        head, _, body = re.sub(r"//.*", "", text).partition(".reqntid")
        size, _, body = body.partition("{")
        self.threads = math.prod(int(number) for number in size.split(","))
        self._parameters = re.findall(r"\b\w+_param_\d+\b", head.partition(".entry")[2])
        self._lines: list[tuple[str, str, list[str]]] = []
        self._labels: dict[str, int] = {}
        for part in re.split(r";|(?<=:)\s", body.rpartition("}")[0]):
            self._add(part.strip())

    def _add(self, line: str) -> None:
        if line.endswith(":"):
            self._labels[line[:-1]] = len(self._lines)
        elif line and not line.startswith("."):
            match = re.fullmatch(r"(@!?%\w+)?\s*(\S+)\s*(.*)", line, re.DOTALL)
            assert match, line
            operands = re.findall(r"\{[^}]*\}|\[[^\]]*\]|[^\s,]+", match[3])
            self._lines.append((match[1] or "", match[2], operands))

    def run(self, grid: tuple[int, int, int], parameters: list[bytes], memory: Values, shared_bytes: int) -> None:
        """Run all blocks.

        Arguments:
            parameters: the bytes of each.
            memory: global memory (uint8); address 0 is its beginning.
            shared_bytes: of dynamic shared memory.
        """
        assert len(parameters) == len(self._parameters)
        named = dict(zip(self._parameters, parameters, strict=True))
        for place in np.ndindex(*reversed(grid)):
            block = _Block(self.threads, tuple(reversed(place)), named, memory, np.zeros(shared_bytes, np.uint8))
            self._run(block)

    def _run(self, block: _Block) -> None:
        at = np.zeros(self.threads, np.int64)
        while (least := int(at.min())) < len(self._lines):
            guard, name, operands = self._lines[least]
            here = at == least
            active = here & block.predicate(guard) if guard else here
            at[here] += 1
            if name.startswith("bra"):
                at[active] = self._labels[operands[0]]
            elif name == "ret":
                at[active] = len(self._lines)
            elif name.startswith("bar."):
                assert here.all(), "threads have parted before a barrier"
            else:
                block.do(name.split("."), operands, active)


class _Block:
    """Registers and memory of one block. A register is an array of 64 bits for each thread."""

    def __init__(
        self, threads: int, place: tuple[int, ...], parameters: Mapping[str, bytes], memory: Values, shared: Values
    ) -> None:
        self._threads = threads
        self._registers: dict[str, Values] = {"%tid.x": np.arange(threads, dtype=np.uint64)}
        for axis, index in zip("xyz", place, strict=True):
            self._registers[f"%ctaid.{axis}"] = np.full(threads, index, np.uint64)
        self._parameters = parameters
        self._spaces = {"global": memory, "shared": shared}

    def predicate(self, guard: str) -> Values:
        value = self._registers[guard.lstrip("@!")].astype(bool)
        return ~value if "!" in guard else value

    def read(self, operand: str, dtype: Any) -> Values:
        """An operand's value for each thread."""
        if operand in self._registers:
            raw = self._registers[operand]
            return raw.astype(bool) if dtype.kind == "b" else raw.view(dtype)[:: 8 // dtype.itemsize]
        if operand.startswith("%"):
            return np.zeros(self._threads, dtype)  # no thread has come by its definition yet
        if operand.startswith("0f"):
            return np.full(self._threads, int(operand[2:], 16), np.uint32).view(dtype)
        if not re.match(r"-?\d", operand):
            return np.zeros(self._threads, dtype)  # the name of the dynamic shared memory
        bits = 8 * dtype.itemsize
        return np.full(self._threads, int(operand, 0) % 2**bits, f"uint{bits}").view(dtype)

    def write(self, operand: str, value: Values, active: Values) -> None:
        old = self._registers.get(operand, np.zeros(self._threads, np.uint64))
        if value.dtype.kind != "b":
            value = np.ascontiguousarray(value).view(f"uint{8 * value.dtype.itemsize}")
        self._registers[operand] = np.where(active, value.astype(np.uint64), old)

    def do(self, name: list[str], operands: list[str], active: Values) -> None:
        """Execute one instruction for the active threads."""
        operation, kind = name[0], name[-1]
        target, *sources = operands
        if operation in ("ld", "st"):
            self._access(name, operands, active)
            return
        if operation == "shfl":
            assert name[1] == "sync"
            threads, other = np.arange(self._threads), self.read(sources[1], np.dtype(np.uint32))
            lanes = {"idx": threads // 32 * 32 + other, "bfly": threads ^ other}[name[2]]
            self.write(target.partition("|")[0], self.read(sources[0], TYPES[kind])[lanes], active)
            return
        self.write(target, self._value(operation, name, kind, sources), active)

    def _value(self, operation: str, name: list[str], kind: str, sources: list[str]) -> Values:
        dtype = np.dtype(bool) if kind == "pred" else TYPES[kind]
        if operation == "cvt":
            rounded = self.read(sources[0], dtype)
            result: Values = rounded.astype(TYPES[name[-2]])
            return result
        if operation == "setp":
            return COMPARED[name[1]](self.read(sources[0], dtype), self.read(sources[1], dtype))
        if operation == "selp":
            return np.where(self.read(sources[2], np.dtype(bool)), *(self.read(s, dtype) for s in sources[:2]))
        if operation == "ex2":
            exponent: Values = self.read(sources[0], dtype)
            return np.exp2(exponent)
        if operation in ("mov", "cvta", "neg", "not"):
            value = self.read(sources[0], dtype)
            return value if operation in ("mov", "cvta") else -value if operation == "neg" else ~value
        if operation in ("fma", "mad"):
            first, second, third = (self.read(source, dtype) for source in sources)
            return first * second + third
        if operation == "mul" and name[1] == "wide":
            wide = np.dtype(f"{dtype.name.rstrip('0123456789')}{16 * dtype.itemsize}")
            return self.read(sources[0], dtype).astype(wide) * self.read(sources[1], dtype).astype(wide)
        assert operation in BINARY, f"an unknown instruction: {'.'.join(name)}"
        shift = np.dtype(np.uint32) if operation in ("shl", "shr") else dtype
        return BINARY[operation](self.read(sources[0], dtype), self.read(sources[1], shift).astype(dtype))

    def _access(self, name: list[str], operands: list[str], active: Values) -> None:
        """Load or store one or several values."""
        dtype, space = TYPES[name[-1]], name[1]
        place, registers = (operands[1], operands[0]) if name[0] == "ld" else (operands[0], operands[1])
        base, _, offset = place.strip("[]").partition("+")
        for index, register in enumerate(re.findall(r"[^\s,{}]+", registers)):
            more = int(offset or 0) + index * dtype.itemsize
            if space == "param":
                value = np.frombuffer(self._parameters[base.strip()], dtype, 1, more)
                self.write(register, np.full(self._threads, value[0], dtype), active)
                continue
            address = self.read(base.strip(), TYPES["u64" if space == "global" else "u32"]).astype(np.int64) + more
            where = address[active, None] + np.arange(dtype.itemsize)
            memory = self._spaces[space]
            if name[0] == "st":
                memory[where] = self.read(register, dtype)[active].reshape(-1, 1).view(np.uint8)
            else:
                value = np.zeros(self._threads, dtype)
                value[active] = memory[where].view(dtype)[:, 0]
                self.write(register, value, active)
