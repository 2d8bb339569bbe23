"""Writes inputs and expected outputs for the GPU tests, where TVM is; the tests themselves need only the package.

python tests/gpu/make_cases.py [build/gpu_cases [build/kw_kernels]]
"""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "build" / "kw_kernels"
LARGEST = 200_000
"""Bytes above which a case is left out."""

from kernelwright.declare import Kernel  # noqa: E402
from kernelwright.workers.check import Check, size_sets  # noqa: E402
from kernelwright.workers.protocol import CheckRequest  # noqa: E402


def load_kernels(path: Path) -> list[Kernel]:
    """The kernels of a definition file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return [
        value for value in vars(module).values() if isinstance(value, Kernel) and value.location.startswith(str(path))
    ]


def storable(value: Any) -> np.ndarray:
    """An array of a type that NumPy's files can hold: bfloat16 as its bits."""
    array = np.asarray(value)
    return array if array.dtype.isbuiltin == 1 else array.view(np.uint16)


def cases(kernel: Kernel, built: dict[str, Any], index: int) -> list[dict[str, Any]]:
    """The cases of a variant as arrays, smallest first."""
    variant = kernel.variants[index]
    signature = {key: built[key] for key in ("arguments", "symbols")}
    request = CheckRequest("", kernel.name, variant.slug, "", index, signature, "cpu", kernel.tolerance)
    check = Check(request, kernel, variant, lambda what, function: function(), lambda doing: None)
    tolerance = {argument["name"]: check.tolerance(argument["dtype"]) for argument in built["arguments"]}
    found = []
    for sizes in size_sets(list(built["symbols"])):
        inputs = check.inputs(sizes)
        if inputs is None:
            continue
        expected = check.expected(inputs)
        meta = {"kernel": kernel.name, "variant": dict(variant.config), "sizes": sizes, "index": index}
        arrays = {f"in_{name}": storable(value) for name, value in inputs.items()}
        arrays |= {f"out_{name}": storable(value) for name, value in expected.items()}
        found.append({"meta": np.asarray(json.dumps(meta | {"tolerance": tolerance})), **arrays})
    return sorted(found, key=size)


def size(case: dict[str, Any]) -> int:
    """Bytes of a case."""
    return sum(array.nbytes for array in case.values())


def write_cases(kernel: Kernel, entry: dict[str, Any], folder: Path) -> int:
    """Write the cases of all variants of a kernel that are small enough to carry, two of each at least."""
    count = 0
    for index, built in enumerate(entry["variants"]):
        for number, case in enumerate(cases(kernel, built, index)):
            if number < 2 or size(case) < LARGEST:
                np.savez_compressed(folder / f"{kernel.name}-{index}-{number}.npz", **case)
                count += 1
    return count


def main() -> None:
    """Write the cases of the whole library."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "gpu_cases")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    package = Path(sys.argv[2]) if len(sys.argv) > 2 else PACKAGE
    manifest = json.loads((package / "manifest.json").read_text())
    sys.path.insert(0, str(ROOT / "kernels"))
    total = 0
    for path in sorted((ROOT / "kernels").glob("[!_]*.py")):
        for kernel in load_kernels(path):
            total += write_cases(kernel, manifest["kernels"][kernel.name], folder)
    print(f"{total} cases in {folder}")


if __name__ == "__main__":
    main()
