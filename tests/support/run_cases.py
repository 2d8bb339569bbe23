"""Calls the kernels of a package that a backend has through it: ``run_cases.py PACKAGE BACKEND CASES``.

The cases are those of ``tests/gpu/make_cases.py``. Prints how many calls there were, and each one that went wrong.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path[:0] = [str(ROOT / "site_scons")]

from kernelwright.worker.compare import compare  # noqa: E402


def in_numpy(array: np.ndarray, dtype: str) -> Any:
    """An array for backends that take any library's: NumPy's, where it has the dtype."""
    return in_torch(array, dtype) if dtype == "bfloat16" else np.ascontiguousarray(array).copy()


def in_torch(array: np.ndarray, dtype: str) -> Any:
    import torch

    tensor = torch.from_numpy(np.ascontiguousarray(array).copy())
    return tensor.view(torch.bfloat16) if dtype == "bfloat16" else tensor


def in_jax(array: np.ndarray, dtype: str) -> Any:
    import jax

    return jax.numpy.asarray(array.view(jax.numpy.bfloat16) if dtype == "bfloat16" else array)


MAKERS = {"torch": in_torch, "jax": in_jax}


def traced_by_torch(call: Any, passed: list[Any]) -> Any:
    """What PyTorch believes that a call returns."""
    import torch

    with torch._subclasses.FakeTensorMode() as mode:
        return call(*(mode.from_tensor(value) if torch.is_tensor(value) else value for value in passed))


def traced_by_jax(call: Any, passed: list[Any]) -> Any:
    """What JAX believes that a call returns."""
    import jax

    places = [place for place, value in enumerate(passed) if isinstance(value, jax.Array)]

    def program(*arrays: Any) -> Any:
        given = dict(zip(places, arrays, strict=True))
        return call(*(given.get(place, value) for place, value in enumerate(passed)))

    return jax.eval_shape(program, *(passed[place] for place in places))


TRACERS = {"torch": traced_by_torch, "jax": traced_by_jax}


def shapes_of(returned: Any) -> list[tuple[tuple[int, ...], str]]:
    """Shape and dtype of each result."""
    results = returned if isinstance(returned, tuple) else () if returned is None else (returned,)
    return [(tuple(one.shape), str(one.dtype)) for one in results]


def to_numpy(value: Any, dtype: str) -> np.ndarray:
    """The values of a result; those of bfloat16 as float32."""
    if type(value).__module__.partition(".")[0] == "torch":
        import torch

        return (value.float() if value.dtype == torch.bfloat16 else value).detach().numpy()
    if dtype == "bfloat16" and hasattr(value, "astype"):
        return np.asarray(value.astype("float32"))
    if dtype == "bfloat16":
        import torch

        return torch.from_dlpack(value).float().numpy()
    return np.from_dlpack(value) if hasattr(value, "__dlpack__") else np.asarray(value)


def widened(array: np.ndarray, dtype: str) -> np.ndarray:
    """What is expected, as :func:`to_numpy` has it: bfloat16 comes as its bits, the upper half of a float32."""
    return (array.astype(np.uint32) << 16).view(np.float32) if dtype == "bfloat16" else array


def calls_of(case: Any, specification: list[dict[str, Any]], make: Any, leave_out: bool) -> tuple[dict[str, Any], list]:
    """The tensors of a call by name, and all its arguments."""
    tensors, passed = {}, []
    for argument in specification:
        name, dtype = argument["name"], argument["dtype"]
        if argument["output"]:
            if leave_out:
                continue
            value = np.zeros_like(case[f"out_{name}"])
        else:
            value = case[f"in_{name}"]
        if argument["kind"] == "tensor":
            tensors[name] = value = make(value, dtype)
        else:
            value = value.item()
        passed.append(value)
    return tensors, passed


def run_case(package: Any, backend: str, path: Path, leave_out: bool) -> str | None:
    """What is wrong with a call, or None."""
    case = np.load(path, allow_pickle=False)
    meta = json.loads(str(case["meta"]))
    entry = package.manifest()["kernels"][meta["kernel"]]
    specification = entry["variants"][meta["index"]]["arguments"]
    call = getattr(getattr(package.backends, backend), meta["kernel"]).variant(**meta["variant"])
    tensors, passed = calls_of(case, specification, MAKERS.get(backend, in_numpy), leave_out)
    traced = shapes_of(TRACERS[backend](call, passed)) if backend in TRACERS else None
    returned = call(*passed)
    if traced is not None and traced != shapes_of(returned):
        return f"a tracer is told {traced}, and the result is {shapes_of(returned)}"
    results = list(entry["outputs"]) if leave_out else []
    if backend == "jax":  # whose arrays cannot be written: what would be written comes back behind the outputs
        results += [a["name"] for a in specification if a["written"] and not a["output"]]
    if results:
        tensors |= dict(zip(results, returned if len(results) > 1 else [returned], strict=True))
    for argument in specification:
        name, dtype = argument["name"], argument["dtype"]
        if argument["kind"] == "tensor" and f"out_{name}" in case.files:
            expected, got = widened(case[f"out_{name}"], dtype), to_numpy(tensors[name], dtype)
            if got.shape != expected.shape:
                return f"{name} has the shape {got.shape}, expected {expected.shape}"
            _, mismatch = compare(expected, got, meta["tolerance"][name])
            if mismatch is not None:
                return f"{name} at {meta['sizes']}: {mismatch}"
    return None


def main() -> None:
    """Run all cases, with outputs passed where the backend allows that, and with outputs left out."""
    folder, backend, cases = Path(sys.argv[1]), sys.argv[2], sorted(Path(sys.argv[3]).glob("*.npz"))
    sys.path.insert(0, str(folder.parent))
    package = importlib.import_module(folder.name)
    entries = package.manifest()["kernels"]
    names = {path: path.stem.rsplit("-", 2)[0] for path in cases}
    names = {path: name for path, name in names.items() if backend in entries[name]["backends"]}
    count = 0
    for path in names:
        for leave_out in (True,) if backend == "jax" else (False, True):
            count += 1
            try:
                problem = run_case(package, backend, path, leave_out)
            except Exception as error:
                problem = f"{type(error).__name__}: {error}"
            if problem is not None:
                print(f"{path.stem} {'allocated' if leave_out else 'in place'}: {problem}")
    print(f"{count} calls of {len(set(names.values()))} kernels")


if __name__ == "__main__":
    main()
