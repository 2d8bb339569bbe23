"""Times repeated calls on demand: ``eager_calls.py FOLDER CALLS``. It prints the ns for each kind of definition.

FOLDER is made, with a project in it. To compare two trees, run it with the ``PYTHONPATH`` of each, in turn.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

if sys.argv[3:] == ["without-torch"]:
    sys.modules["torch"] = None  # type: ignore[assignment]

import kernelwright as kw
import numpy as np
from tvm import te

BATCHES = 201

SETTLED_S = 2.5
"""So long after its last edit a file need not be read at each call."""

FACTOR, OFFSET, DTYPE = 2.0, 3.0, "float32"
OPTIONS = {"factor": 2.0}

FILE = """\
from pathlib import Path
from kernelwright import kernel
from tvm import te

FACTOR, OFFSET = (float(Path(__file__).with_name(name).read_text()) for name in ("factor.txt", "offset.txt"))


@kernel()
def watched():
    n = te.var("n")
    x, y = (te.placeholder((n,), "float32", name=name) for name in "xy")
    return te.create_prim_func([x, y, te.compute(x.shape, lambda i: x[i] * FACTOR + y[i] + OFFSET, name="z")])
"""


def helper() -> float:
    """A function that a definition calls."""
    return FACTOR


def program(factor: float, offset: float, dtype: str) -> Any:
    """What all definitions return."""
    n = te.var("n")
    x, y = (te.placeholder((n,), dtype, name=name) for name in "xy")
    return te.create_prim_func([x, y, te.compute(x.shape, lambda i: x[i] * factor + y[i] + offset, name="z")])


@kw.kernel()
def nothing() -> Any:
    """Reads no variable."""
    n = te.var("n")
    x, y = (te.placeholder((n,), "float32", name=name) for name in "xy")
    return te.create_prim_func([x, y, te.compute(x.shape, lambda i: x[i] + y[i], name="z")])


@kw.kernel()
def three() -> Any:
    """Reads three plain variables."""
    n = te.var("n")
    x, y = (te.placeholder((n,), DTYPE, name=name) for name in "xy")
    return te.create_prim_func([x, y, te.compute(x.shape, lambda i: x[i] * FACTOR + y[i] + OFFSET, name="z")])


@kw.kernel()
def helped() -> Any:
    """Calls functions."""
    return program(helper(), 1.0, "float32")


@kw.kernel()
def evaluated() -> Any:
    """Reads a dict, which no call can compare."""
    return program(OPTIONS["factor"], 1.0, "float32")


def main() -> None:
    """Measure, and print the result."""
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in {"watched.py": FILE, "factor.txt": "2", "offset.txt": "3", "SConstruct": ""}.items():
        (folder / name).write_text(text)
    functions = {
        "compiled": nothing.compile(),
        "no variable": nothing,
        "three variables": three,
        "a helper": helped,
        "a file and two that it reads": kw.load(folder / "watched.py").watched,
        "a dict": evaluated,
    }
    count = int(sys.argv[2])
    x, z = np.arange(8, dtype="float32"), np.zeros(8, dtype="float32")
    for function in functions.values():
        function(x, x, z)
    time.sleep(SETTLED_S)
    times: dict[str, list[float]] = {name: [] for name in functions}
    for batch in range(-1, BATCHES):
        for name, function in functions.items():
            calls = count if name != "a dict" else max(count // 1000, 1)
            start = time.perf_counter_ns()
            for _ in range(calls):
                function(x, x, z)
            if batch >= 0:  # the first one warms up
                times[name].append((time.perf_counter_ns() - start) / calls)
    print(json.dumps({name: round(min(listed)) for name, listed in times.items()}))


if __name__ == "__main__":
    main()
