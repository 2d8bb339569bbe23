"""Small functions in TVMScript for the comparison with ``tvm.compile``: those in the files of ``tvmscript``.

All are lowered twice, with ``s_tir=True`` and without, unless a comment before them names one ``mode``. Other comments
name what they are called ``with`` on the CPU, a ``config`` of TVM's passes, and that they have ``helpers``.
"""

from __future__ import annotations

import linecache
import re
import sys
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from mmap import mmap
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from kernelwright.core.dtype import numpy_dtype
from numpy.typing import NDArray

Array = NDArray[Any]

FOLDER = Path(__file__).parents[1] / "unit/tvmscript"

HEAD = """\
from tvm.script import ir as I, tirx as T
from tvm.tirx import Var
from tvm.tirx.script import tile as Tx

m, n, s, t = (Var(name, "int32") for name in "mnst")
p, q = (Var(name, "int64") for name in "pq")


def A(*shape, dtype="float32", **more):
    return T.Buffer(shape, dtype, **more)


"""
"""What all functions see."""

HELPERS = """\
@T.prim_func(private=True, MODE)
def part(p: T.handle("float32"), q: T.handle("float32"), at: T.int32):
    v = T.decl_buffer((72,), "float32", data=p)
    w = T.decl_buffer((72,), "float32", data=q)
    for j in T.vectorized(8):
        w[at * 8 + j] = v[at * 8 + j] + T.float32(1)
"""
"""Private functions of a module, in which the function that calls them is ``main``."""

LINE = r"((?:# \w+ .*\n)*)def (\w+)(\(.*\n(?:(?:    .*)?\n)+)"
"""Comments, the name of a function, and the rest of it."""


@dataclass(frozen=True)
class Function:
    """A function of the table.

    Arguments:
        name: its name.
        text: parameters and body.
        values: what it is called with, as a list in Python.
        modes: the arguments of ``T.prim_func``.
        pass_configs: configs of TVM's passes.
        helpers: other functions of its module; empty: there is no module.
    """

    name: str
    text: str
    values: str = "numbers(256), zeros(256)"
    modes: tuple[str, ...] = ("", "s_tir=True")
    pass_configs: tuple[str, ...] = ()
    helpers: str = ""

    def arrays(self) -> list[Any]:
        """Arrays and numbers to call it with, on the CPU."""
        made: list[Any] = eval(f"[{self.values}]")
        return made

    def definition(self, mode: str) -> Any:
        """The function, or its module, made in one of its modes."""
        name = "main" if self.helpers else self.name
        text = f"@T.prim_func({mode})\ndef {name}{self.text}"
        if self.helpers:
            helpers = self.helpers.replace("MODE", mode)
            text = f"@I.ir_module\nclass {self.name}:\n{textwrap.indent(helpers + text, '    ')}"
        return _executed(HEAD + text.replace("NAME", self.name), f"<{self.name} {mode}>", self.name)


def functions(table: str) -> Mapping[str, Function]:
    """The functions of a file, by name."""
    text = (FOLDER / f"{table}.txt").read_text()
    found = [_function(*match.groups()) for match in re.finditer(LINE, text)]
    assert len(found) == text.count("\ndef ") + text.startswith("def ")
    return {function.name: function for function in found}


def numbers(*shape: int, dtype: Any = "float32") -> Array:
    """An array of different small numbers, some of them negative, at the alignment that TVM takes for granted."""
    array = zeros(*shape, dtype=dtype)
    array[...] = np.arange(array.size).reshape(shape) * 7 % 23 - (0 if array.dtype.kind in "ub" else 5)
    return array


def zeros(*shape: int, dtype: Any = "float32") -> Array:
    """An array of zeros, at that alignment."""
    kind, count = numpy_dtype(dtype), int(np.prod(shape))
    return np.frombuffer(mmap(-1, count * kind.itemsize), "uint8", count * kind.itemsize).view(kind).reshape(shape)


def into(y: Array) -> list[Array]:
    """What to call a function with that writes to an array."""
    return [numbers(*y.shape), y]


def _function(comments: str, name: str, text: str) -> Function:
    told = dict(re.findall(r"# (\w+) (.*)", comments))
    values, modes = told.pop("with", Function.values), (told.pop("mode"),) if "mode" in told else Function.modes
    configs = tuple(told.pop("config", "").split())
    return Function(name, text, values, modes, configs, HELPERS if told.pop("helpers", "") else "", **told)


@cache
def _executed(text: str, file: str, name: str) -> Any:
    """The value of a name after the execution of a text, which TVMScript reads as the source of what is made in it."""
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    module = ModuleType(file)
    module.__file__ = file
    sys.modules[file] = module
    exec(compile(text, file, "exec"), vars(module))
    return getattr(module, name)
