"""Writes inputs and expected outputs for the GPU tests, where TVM is; the tests themselves need only the package.

python tests/gpu/make_cases.py [build/gpu_cases [build/kw_kernels]]
"""

from __future__ import annotations

import importlib.util
import json
import math
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "build" / "kw_kernels"
LARGEST = 200_000
"""Bytes above which a case is large: a variant has a large one only if it has no other."""

BITS = 4
"""Bits of the significands that the numbers of a large case keep, so that they can be packed well."""

from kernelwright.core.converter import from_json  # noqa: E402
from kernelwright.core.dtype import numpy_dtype  # noqa: E402
from kernelwright.core.signature import UNKNOWN, Argument  # noqa: E402
from kernelwright.define.kernel import Kernel  # noqa: E402
from kernelwright.processes.protocol import CheckRequest  # noqa: E402
from kernelwright.worker.check import Check  # noqa: E402


def load_kernels(path: Path) -> list[Kernel]:
    """The kernels of a definition file."""
    spec = importlib.util.spec_from_file_location(f"cases_of_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module
    spec.loader.exec_module(module)
    return [
        value for value in vars(module).values() if isinstance(value, Kernel) and value.location.startswith(str(path))
    ]


def storable(value: Any) -> np.ndarray:
    """An array of a type that NumPy's files can hold: bfloat16 as its bits."""
    array = np.asarray(value)
    return array if array.dtype.isbuiltin == 1 else array.view(np.uint16)


def coarse(value: Any) -> Any:
    """An array whose numbers of floating point have few bits; anything else as it is."""
    if not isinstance(value, np.ndarray) or value.dtype.kind != "f":
        return value
    significand, exponent = np.frexp(value.astype(np.float64))
    return np.ldexp(np.round(significand * 2**BITS) / 2**BITS, exponent).astype(value.dtype)


def cases(kernel: Kernel, built: dict[str, Any], index: int) -> list[dict[str, Any]]:
    """The cases of a variant as arrays, smallest first: all small ones, or one that has elements if there is none."""
    # Of a space only some candidates are built.
    variant = next(variant for variant in kernel.variants if variant.slug == built["slug"])
    arguments = from_json(tuple[Argument, ...], built["arguments"])
    told = {name: built[name] for name in ("symbols", "multiples", "requires") if name in built}
    signature = replace(UNKNOWN, arguments=arguments, **told)
    request = CheckRequest("", kernel.name, variant.slug, "", index, signature, "cpu", kernel.options.tolerance)
    check = Check(request, kernel, variant, lambda what, function: function(), lambda doing: None)
    meta = described(kernel, built, index, check)

    def case(sizes: dict[str, int], inputs: dict[str, Any]) -> dict[str, Any]:
        arrays = {f"in_{name}": storable(value) for name, value in inputs.items()}
        arrays |= {f"out_{name}": storable(value) for name, value in check.expected(inputs).items()}
        return {"meta": np.asarray(json.dumps(meta | {"sizes": sizes})), **arrays}

    found, large = [], []
    for number, sizes in enumerate(check.drawing.sizes.sets()):
        count = input_bytes(check, built["arguments"], sizes)
        if count is not None and count > LARGEST:
            large.append((count, number, sizes))
        elif (inputs := check.drawing.values(sizes)) is not None:
            found.append((all(sizes.values()), case(sizes, inputs)))
    small = [(is_full, one) for is_full, one in found if size(one) < LARGEST]
    if any(is_full for is_full, _ in small):
        return sorted((one for _, one in small), key=size)
    full = [one for is_full, one in found if is_full]
    for _, _, sizes in [] if full else sorted(large):
        inputs = check.drawing.values(sizes) if all(sizes.values()) else None
        if inputs is not None:
            full = [case(sizes, {name: coarse(value) for name, value in inputs.items()})]
            break
    return sorted(full, key=size)[:1]


def input_bytes(check: Check, arguments: list[dict[str, Any]], sizes: dict[str, int]) -> int | None:
    """Bytes of the tensors that are inputs; None: these sizes are impossible."""
    shapes = check.drawing.shapes(sizes)
    tensors = [argument for argument in arguments if argument["kind"] == "tensor" and not argument["output"]]
    if shapes is None:
        return None
    return sum(math.prod(shapes[each["name"]]) * numpy_dtype(each["dtype"]).itemsize for each in tensors)


def described(kernel: Kernel, built: dict[str, Any], index: int, check: Check) -> dict[str, Any]:
    """What the cases of a variant have in common."""
    arguments = built["arguments"]
    return {
        "kernel": kernel.name,
        "variant": dict(built["config"]),
        "index": index,
        "targets": sorted({unit["target"] for unit in built["units"]}),
        "tolerance": {argument["name"]: check.tolerance(argument["dtype"]) for argument in arguments},
        "dtypes": sorted({argument["dtype"] for argument in arguments}),
        "has_outputs": any(argument["output"] for argument in arguments),
        "writes_inputs": any(argument["written"] and not argument["output"] for argument in arguments),
    }


def size(case: dict[str, Any]) -> int:
    """Bytes of a case."""
    return sum(array.nbytes for array in case.values())


def write_cases(kernel: Kernel, entry: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    """Write the cases of all variants of a kernel: all small ones, or one that has elements if there is none.

    Returns:
        for each of them what is said of it in the index.
    """
    written = []
    for index, built in enumerate(entry["variants"]):
        for number, case in enumerate(cases(kernel, built, index)):
            file = f"{kernel.name}-{index}-{number}.npz"
            np.savez_compressed(folder / file, **case)
            written.append({"file": file, "bytes": size(case), **json.loads(str(case["meta"]))})
    return written


def write_all(definitions: list[Path], package: Path, folder: Path) -> int:
    """Write the cases of a package that was built from some definition files, and their index; how many there are."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    manifest = json.loads((package / "manifest.json").read_text())
    index = []
    for path in definitions:
        for kernel in load_kernels(path):
            if kernel.name in manifest["kernels"]:
                index += write_cases(kernel, manifest["kernels"][kernel.name], folder)
    (folder / "index.json").write_text(json.dumps(index, indent=1) + "\n")
    return len(index)


def main() -> None:
    """Write the cases of the whole library."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build" / "gpu_cases")
    package = Path(sys.argv[2]) if len(sys.argv) > 2 else PACKAGE
    sys.path.insert(0, str(ROOT / "kernels"))
    total = write_all(sorted((ROOT / "kernels").glob("[!_]*.py")), package, folder)
    print(f"{total} cases in {folder}")


if __name__ == "__main__":
    main()
