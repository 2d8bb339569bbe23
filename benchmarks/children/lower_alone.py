"""Lowers in this one process, as a compiler driver without workers would: ``lower_alone.py PROJECT REQUESTS``.

REQUESTS is a file of JSON lines, see ``benchmarks/lowerings.py``. It prints a JSON object: seconds of the import of
TVM, and of each lowering; the definitions were executed before.
"""

from __future__ import annotations

import gc
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any


def main() -> None:
    """Import TVM, lower, and print the times."""
    project, requests = Path(sys.argv[1]), Path(sys.argv[2])
    start = time.perf_counter()
    from kernelwright.workers.protocol import DiscoverRequest, LowerRequest, encode_request
    from kernelwright.workers.server import Server, load

    # As the workers do: where PyTorch is installed, importing TVM alone loads that too, in three times the time.
    if isinstance(loaded := load(), Exception):
        raise loaded
    imported_s = time.perf_counter() - start

    gc.collect()
    gc.freeze()  # as the worker does: TVM's own objects stay
    answers: list[dict[str, Any]] = []
    server = Server(project, lambda line: answers.append(json.loads(line)))

    def ask(request: DiscoverRequest | LowerRequest) -> dict[str, Any]:
        server.answer(encode_request(1, request))
        if not answers[-1].get("ok"):
            raise SystemExit(json.dumps(answers[-1], indent=1))
        return dict(answers[-1]["result"])

    listed = [json.loads(line) for line in requests.read_text().splitlines()]
    for file in dict.fromkeys(request["file"] for request in listed):
        ask(DiscoverRequest(file))
    seconds = []
    for request in listed:
        with tempfile.TemporaryDirectory() as scratch:
            seconds.append(ask(LowerRequest(**request | {"out": request["out"] or scratch}))["seconds"])
    print(json.dumps({"import_s": imported_s, "lower_s": seconds}))


if __name__ == "__main__":
    main()
