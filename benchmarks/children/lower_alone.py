"""Lowers one after the other, as a compiler driver without workers would: ``lower_alone.py PROJECT REQUESTS``.

REQUESTS is a file of JSON lines, see ``benchmarks/lowerings.py``. It prints a JSON object: seconds of the import of
TVM, and of each lowering; the definitions were executed before. TVM is imported once. What is lowered of one definition
file is lowered in one fork of this process, because a process executes one file only.
"""

from __future__ import annotations

import gc
import json
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any


def lower_file(project: Path, requests: Sequence[Mapping[str, Any]]) -> list[float]:
    """Execute a definition file, and do the lowerings of it; their seconds."""
    from kernelwright.processes.messages import encode
    from kernelwright.processes.protocol import DiscoverRequest, LowerRequest
    from kernelwright.worker.definitions import Definitions
    from kernelwright.worker.environment import Variables
    from kernelwright.worker.server import Server

    answers: list[dict[str, Any]] = []
    server = Server(Definitions(project, Variables()), lambda line: answers.append(json.loads(line)))

    def ask(request: DiscoverRequest | LowerRequest) -> dict[str, Any]:
        server.answer(encode(1, request))
        if "result" not in answers[-1]:
            raise SystemExit(json.dumps(answers[-1], indent=1))
        return dict(answers[-1]["result"]["value"])

    ask(DiscoverRequest(requests[0]["file"]))
    seconds = []
    for request in requests:
        with tempfile.TemporaryDirectory() as scratch:
            asked = dict(request) | {"out": request["out"] or scratch}
            seconds.append(float(ask(LowerRequest(**asked))["seconds"]))
    return seconds


def main() -> None:
    """Import TVM, lower, and print the times."""
    project, requests = Path(sys.argv[1]), Path(sys.argv[2])
    start = time.perf_counter()
    from kernelwright.worker.tvm_import import load

    # As the workers do: where PyTorch is installed, importing TVM alone loads that too, in three times the time.
    if isinstance(loaded := load(), Exception):
        raise loaded
    imported_s = time.perf_counter() - start

    gc.collect()
    gc.freeze()  # as the worker does: TVM's own objects stay
    listed = [json.loads(line) for line in requests.read_text().splitlines()]
    files = [(project, list(group)) for _, group in groupby(listed, key=lambda request: request["file"])]
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as forks:
        seconds = [one for many in forks.starmap(lower_file, files, chunksize=1) for one in many]
    print(json.dumps({"import_s": imported_s, "lower_s": seconds}))


if __name__ == "__main__":
    main()
