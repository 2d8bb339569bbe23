"""Compiles on demand, or uses a built package, and says how long that took: ``on_demand.py WAY START PLACE JOBS``.

``load`` compiles on demand: PLACE is the folder of the definition files, and JOBS is JSON, a list of pairs of a kernel
and a config. Each one is found, loaded and called. ``package`` does the same with a built package; PLACE is its name.
``products`` compiles a kernel for sm_90a with ``par_compile``, and calls nothing: PLACE is the definition file, and
JOBS is a pair of the number of workers and a list of configs. START is when this process was started, on the clock of
``time.monotonic``: "begin_s" is how long it took from there to the first line that is measured.
With ``without-torch`` tvm-ffi does not find PyTorch, whose import would take most of the time.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

if sys.argv[5:] == ["without-torch"]:
    sys.modules["torch"] = None  # type: ignore[assignment]

Config = dict[str, Any]


def arguments(name: str, config: Config) -> tuple[Any, ...]:
    """What the kernel is called with."""
    if name == "saxpy":
        return 2.0, np.ones(8, "float32"), np.ones(8, "float32"), np.zeros(8, "float32")
    shape = (2, config["columns"])
    return np.ones(shape, config["dtype"]), np.zeros(shape, config["dtype"])


def loading(place: str) -> Callable[[str, Config], Any]:
    """What gives a compiled kernel, by name and config, of a folder of definition files."""
    import kernelwright as kw

    def get(name: str, config: Config) -> Any:
        return getattr(kw.load(Path(place, f"{name}.py")), name).compile(**config)

    return get


def packaged(place: str) -> Callable[[str, Config], Any]:
    """What gives a kernel of a built package, by name."""
    package = importlib.import_module(place)
    return lambda name, config: getattr(package, name)


def call_each(way: Callable[[str], Callable[[str, Config], Any]], place: str, jobs: list[Any]) -> dict[str, Any]:
    """Seconds until each kernel's first call has returned, from the one before on, and which ones were cached."""
    seconds, cached = [], []
    before = time.perf_counter()
    get = way(place)
    for name, config in jobs:
        kernel = get(name, config)
        values = arguments(name, config)
        kernel(*values)
        now = time.perf_counter()
        seconds.append(now - before)
        cached.append(getattr(kernel, "cached", True))
        assert float(values[-1].max()) > 0, values
        before = now
    return {"seconds": seconds, "cached": cached}


def compile_products(place: str, workers: int, configs: list[Config]) -> dict[str, Any]:
    """Compile a matrix product for sm_90a with each of the configs."""
    import kernelwright as kw

    start = time.perf_counter()
    kernel = kw.load(place, targets=["cuda"], archs=["sm_90a"]).products
    kernels = kernel.par_compile(configs, num_workers=workers)
    assert [list(one.variants) for one in kernels] == [[config] for config in configs]
    return {"seconds": [time.perf_counter() - start], "cached": [one.cached for one in kernels]}


def main() -> None:
    """Do what the first argument says, and print it as JSON."""
    way, start, place, jobs = sys.argv[1], float(sys.argv[2]), sys.argv[3], json.loads(sys.argv[4])
    begin = time.monotonic() - start
    if way == "products":
        said = compile_products(place, *jobs)
    else:
        said = call_each(loading if way == "load" else packaged, place, jobs)
    print(json.dumps({**said, "begin_s": begin}))


if __name__ == "__main__":
    main()
