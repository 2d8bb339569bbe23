"""Calls every variant once, with its smallest case that has elements: what compute-sanitizer looks at.

compute-sanitizer --tool memcheck python tests/gpu/sanitize.py

PyTorch only holds the arrays; with its cache of memory off, each has an allocation of its own, so that a kernel which
reads or writes behind the end of one is seen.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

os.environ.setdefault("PYTORCH_NO_CUDA_MEMORY_CACHING", "1")

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "site_scons")]

from devices import device_of, named, packages  # noqa: E402
from test_kernels import check, listed, passed  # noqa: E402


def smallest() -> list[dict[str, Any]]:
    """One case of each variant."""
    found: dict[tuple[str, int], dict[str, Any]] = {}
    for case in sorted(listed(), key=lambda case: int(case["bytes"])):
        if all(size > 0 for size in case["sizes"].values()):
            found.setdefault((case["kernel"], case["index"]), case)
    return list(found.values())


def main() -> None:
    """Call, and compare what comes out, so that nothing is left out without a word."""
    sys.path.insert(0, str(packages()))
    import kw_kernels

    device, chosen = device_of(named()), smallest()
    for case in chosen:
        arguments = kw_kernels.manifest()["kernels"][case["kernel"]]["variants"][case["index"]]["arguments"]
        values, tensors = passed(device, case, arguments, "torch", leave_out=False)
        getattr(kw_kernels, case["kernel"]).variant(**case["variant"])(*values)
        check(device, case, arguments, tensors)
    print(json.dumps({"variants": len(chosen)}))


if __name__ == "__main__":
    main()
