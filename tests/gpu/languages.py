"""Packages in the other languages, and built in the other ways, as experiments: see ``trials.py`` for the commands.

``KERNELWRIGHT_TEST_PACKAGES`` is the folder of the library; beside it are ``languages``, which ``pack_languages.py``
makes, and the cases. What could not be built is listed there, and is left out. With the driver that stands in for
NVIDIA's (``KERNELWRIGHT_TEST_DEVICE=standin``) all calls go through, and nothing is computed.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from devices import Device, Unseen, named, packages
from example_calls import EXAMPLES, Call, comparable, garbage
from trials import RIGHT, Experiment, Program, main, said

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PROGRAM_FOLDER = HERE / "triton_program"

MODES = {
    "kw_split": "split by arch",
    "kw_compressed": "compressed",
    "kw_nvrtc": "compiled by NVRTC",
    "kw_ptx": "PTX of compute_80 only",
}
"""Package of some kernels of the library -> how it was built."""

RECORDED = "triton_program"

OWN_HOST_CODE = ("rms_norm",)
"""Kernels that launch by themselves: they call more of CUDA than the driver that stands in has."""

LAUNCHES, BATCHES = 2000, 5


def folder_of_languages() -> Path:
    """The folder of these packages."""
    return packages().parent / "languages"


def imported(package: str) -> Any:
    """One of these packages."""
    folder = str(folder_of_languages())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    return importlib.import_module(package)


def summary(results: Mapping[str, str]) -> str:
    """What is wrong, or that nothing is."""
    wrong = {name: result for name, result in results.items() if result != RIGHT}
    return "; ".join(f"{name}: {result}" for name, result in wrong.items()) if wrong or not results else RIGHT


def judged(device: Device, array: Any, expected: np.ndarray, dtype: str, tolerance: float) -> str:
    """What is to be said of an array that a kernel has written."""
    from kernelwright.worker.compare import compare

    got = device.values(array)
    if isinstance(got, Unseen):
        return RIGHT
    if got.shape != expected.shape:
        return f"the shape is {got.shape} and not {expected.shape}"
    _, mismatch = compare(comparable(expected, dtype), comparable(got, dtype), tolerance)
    return RIGHT if mismatch is None else str(mismatch)


# ---- calls of kernels


class Prepared:
    """A call with arrays of PyTorch on the device.

    Arguments:
        device: where.
        kernels: those of a backend of the package.
        arguments: what the package's manifest says of the kernel's arguments.
        call: what is to be called.
        leave_out: whether the outputs are.
    """

    def __init__(
        self, device: Device, kernels: Any, arguments: list[dict[str, Any]], call: Call, leave_out: bool
    ) -> None:
        self._device, self._call = device, call
        self._outputs = [argument["name"] for argument in arguments if argument["output"]] if leave_out else []
        kernel = getattr(kernels, call.kernel)
        self._function = kernel.variant(**call.config) if call.config else kernel
        self.arrays: dict[str, Any] = {}
        self._passed = [self._value(a["name"]) for a in arguments if a["name"] not in self._outputs]

    def _value(self, name: str) -> Any:
        call = self._call
        value = call.inputs[name] if name in call.inputs else garbage(call.expected[name], call.dtypes[name])
        if not isinstance(value, np.ndarray) or name not in call.dtypes:
            return value.item() if isinstance(value, np.ndarray) else value
        self.arrays[name] = self._device.make("torch", value, call.dtypes[name])
        return self.arrays[name]

    def __call__(self) -> None:
        """Call it."""
        returned = self._function(*self._passed)
        if self._outputs:
            self.arrays |= dict(zip(self._outputs, returned if len(self._outputs) > 1 else [returned], strict=True))

    def result(self) -> str:
        """What is to be said of what it has written."""
        call = self._call
        return summary(
            {
                name: judged(self._device, self.arrays[name], expected, call.dtypes[name], call.tolerance[name])
                for name, expected in call.expected.items()
                if name in call.dtypes
            }
        )


def arguments_of(package: Any, call: Call) -> list[dict[str, Any]]:
    """The arguments of a kernel: all variants have the same names."""
    return list(package.manifest()["kernels"][call.kernel]["variants"][0]["arguments"])


def text_of(call: Call) -> str:
    shapes = "x".join(str(value.shape) for value in call.inputs.values() if isinstance(value, np.ndarray))
    return f"{call.kernel} {sorted(set(call.dtypes.values()))} {dict(call.config)} {shapes}"


def run_calls(device: Device, package: Any, kernels: Any, calls: Iterator[Call]) -> str:
    """Call some kernels, with outputs that are passed, and with those that the package makes."""
    results = {}
    for call in calls:
        arguments = arguments_of(package, call)
        has_outputs = any(argument["output"] for argument in arguments)
        for leave_out in (False, True) if device.capability and has_outputs else (False,):

            def work(call: Call = call, leave_out: bool = leave_out, arguments: Any = arguments) -> str:
                prepared = Prepared(device, kernels, arguments, call, leave_out)
                prepared()
                return prepared.result()

            results[text_of(call) + (" allocated" if leave_out else "")] = said(work)
    return summary(results)


def example(device: Device, package: str, kernel: str) -> str:
    """All calls of a kernel, where the dispatcher chooses the variant, or the config names it."""
    found = imported(package)
    return run_calls(device, found, found, EXAMPLES[package][kernel]())


def each_variant(device: Device, package: str, kernel: str) -> str:
    """The first call of a dtype with each variant for that dtype: with the points of a space, too."""
    found, calls = imported(package), {}
    for call in EXAMPLES[package][kernel]():
        calls.setdefault(call.config.get("causal", next(iter(call.dtypes.values()))), call)

    def listed() -> Iterator[Call]:
        for variant in found.manifest()["kernels"][kernel]["variants"]:
            config = dict(variant["config"])
            call = calls[config.get("causal", config.get("dtype", "float32"))]
            yield replace(call, config=config)

    return run_calls(device, found, found, listed())


def example_in_graph(device: Device, package: str) -> str:
    """The first call of each kernel in a graph, which is replayed with other inputs."""
    found, results = imported(package), {}
    for name, calls in EXAMPLES[package].items():
        if name not in OWN_HOST_CODE or device.capability:
            results[name] = said(lambda calls=calls: in_graph(device, found, next(calls())))
    return summary(results)


def in_graph(device: Device, package: Any, call: Call) -> str:
    """Capture a call while all inputs are zero, and replay it with those that were meant."""
    inputs = {name: np.zeros_like(value) if name in call.dtypes else value for name, value in call.inputs.items()}
    empty = replace(call, inputs=inputs)
    prepared = Prepared(device, package, arguments_of(package, call), empty, leave_out=False)
    prepared()  # what the first call of a kernel does is not what is tried here
    device.wait()
    replay, _ = device.captured(prepared)
    for name, value in call.inputs.items():
        if name in prepared.arrays:
            prepared.arrays[name].copy_(device.make("torch", value, call.dtypes[name]))
    replay()
    return prepared.result()


def threads_of_rows(device: Device) -> str:
    """A function without declared arguments returns a number."""
    found = imported("norm_kernels").rms_norm_threads
    numbers = [found(columns) for columns in (16, 1024, 8192)]
    sound = all(isinstance(number, int) and 32 <= number <= 1024 for number in numbers) and sorted(numbers) == numbers
    return RIGHT if sound else f"got {numbers}"


# ---- kernels of the library, built in other ways


def cases_of(package: Any, capability: int) -> Iterator[Call]:
    """The cases of ``make_cases.py`` for the variants of a package that have code for a GPU of that capability."""
    folder = packages().parent / "cases"
    for case in json.loads((folder / "index.json").read_text()):
        variant = variant_of(package, case)
        if variant is None or not suits(variant, capability):
            continue
        with np.load(folder / case["file"], allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in stored.files if name != "meta"}
        dtypes = {one["name"]: one["dtype"] for one in variant["arguments"] if one["kind"] == "tensor"}
        inputs = {name[3:]: value for name, value in arrays.items() if name.startswith("in_")}
        expected = {name[4:]: value for name, value in arrays.items() if name.startswith("out_")}
        yield Call(case["kernel"], inputs, expected, dtypes, case["tolerance"], case["variant"])


def variant_of(package: Any, case: Mapping[str, Any]) -> Any:
    """What the manifest says of the variant of a case; None: it was not built for the archs of this package."""
    variants = package.manifest()["kernels"].get(case["kernel"], {"variants": []})["variants"]
    return next((one for one in variants if dict(one["config"]) == case["variant"]), None)


def suits(variant: Mapping[str, Any], capability: int) -> bool:
    """Whether a variant has code for a GPU of that compute capability."""
    from kernelwright.runtime.arch import suitable

    archs = [arch for unit in variant["units"] if unit["target"] == "cuda" for arch in unit["archs"]]
    return bool(archs) and bool(suitable(archs, capability))


def mode(device: Device, package: str, backend: str) -> str:
    """All cases of the kernels of a package."""
    found = imported(package)
    kernels = importlib.import_module(f"{package}.backends.{backend}")
    calls = list(cases_of(found, device.capability or 90))
    kernels_called = {call.kernel for call in calls}
    if kernels_called != set(found.manifest()["kernels"]):
        return f"there are cases of {sorted(kernels_called)} only"
    return run_calls(device, found, kernels, iter(calls))


def is_built_so(device: Device, package: str) -> str:
    """A package has what its name says: images beside it, packed ones, PTX only; else its calls would show nothing."""
    manifest = imported(package).manifest()
    folder = folder_of_languages()
    others = sorted(path.name for path in folder.glob(f"{package}_*") if path.is_dir())
    archs = {
        arch
        for kernel in manifest["kernels"].values()
        for v in kernel["variants"]
        for u in v["units"]
        if u["target"] == "cuda"
        for arch in u["archs"]
    }
    seen = {
        "kw_split": "device_code" in manifest and bool(others),
        "kw_compressed": "compress" in manifest,
        "kw_nvrtc": "nvrtc" in manifest["tools"],
        "kw_ptx": bool(archs) and all(arch.startswith("compute_") for arch in archs),
    }
    return RIGHT if seen[package] else f"it is not: archs {sorted(archs)}, beside it {others}, {[*manifest]}"


# ---- the recorded program


def host() -> Any:
    """The host code of the program, which does not need Triton."""
    if str(PROGRAM_FOLDER) not in sys.path:
        sys.path.insert(0, str(PROGRAM_FOLDER))
    return importlib.import_module("host")


def on_device(device: Device, case: Any) -> dict[str, Any]:
    return {name: device.make("torch", array) for name, array in case.inputs.items()}


def outcome(device: Device, case: Any, arrays: Mapping[str, Any], inputs: Mapping[str, np.ndarray]) -> str:
    """What is to be said of the output of a case."""
    expected = case.expected(inputs)
    tolerance = 0 if case.is_exact else 2e-3 if expected.dtype == np.float16 else 2e-5
    return judged(device, arrays["out"], expected, expected.dtype.name, tolerance)


def each_case(device: Device, work: Callable[[Any], str]) -> str:
    return summary({name: said(lambda case=case: work(case)) for name, case in host().CASES.items()})


def recorded_values(device: Device) -> str:
    """The program runs the package's code."""
    package = imported(RECORDED)

    def work(case: Any) -> str:
        arrays = on_device(device, case)
        case.run(package, arrays)
        return outcome(device, case, arrays, case.inputs)

    return each_case(device, work)


def recorded_in_graph(device: Device) -> str:
    """Calls are captured with inputs of zeros, and replayed with the true ones, and with these times two."""
    package = imported(RECORDED)

    def work(case: Any) -> str:
        arrays = on_device(device, case)
        case.run(package, arrays)  # the code is loaded before the capture
        inputs = {name: array for name, array in case.inputs.items() if name != "out"}
        for name in inputs:
            arrays[name].mul_(0)
        device.wait()
        replay, _ = device.captured(lambda: case.run(package, arrays))
        results = []
        for factor in (1, 2):
            changed = {name: (array * factor).astype(array.dtype) for name, array in inputs.items()}
            for name, array in changed.items():
                arrays[name].copy_(device.make("torch", array))
            replay()
            results.append(outcome(device, case, arrays, {**case.inputs, **changed}))
        return RIGHT if results == [RIGHT, RIGHT] else "; ".join(results)

    return each_case(device, work)


def recorded_on_stream(device: Device) -> str:
    """The inputs come late on a stream of PyTorch, which is the current one in a block."""
    package = imported(RECORDED)

    def work(case: Any) -> str:
        arrays = on_device(device, case)
        case.run(package, arrays)
        late = on_device(device, case)
        for name in late:
            if name != "out":
                arrays[name].mul_(0)
        device.wait()
        stream = device.stream()
        with device.on(stream):
            device.sleep(stream)
            for name, array in late.items():
                arrays[name].copy_(array)
            case.run(package, arrays)
        device.wait(stream)
        return outcome(device, case, arrays, case.inputs)

    return each_case(device, work)


def recorded_errors(device: Device) -> str:
    """What is refused: a tensor on the CPU, and calls that were not recorded."""
    package, case = imported(RECORDED), host().CASES["combine, 1024"]
    arrays = on_device(device, case)
    here = Device().make("torch", case.inputs["x"])

    def refused(x: Any, count: Any, **named: Any) -> str:
        call = package.combine[(4,)]
        return said(lambda: str(call(arrays["out"], x, arrays["y"], count, 2.0, 3.0, 7, 90.0, **named)))

    found = {
        "a tensor on the CPU": refused(here, 1024, BLOCK=256),
        "another constant": refused(arrays["x"], 1024, BLOCK=512),
        "another type": refused(arrays["x"], 1024.0, BLOCK=256),
        "a count of 1": refused(arrays["x"], 1, BLOCK=256),
        "an option": refused(arrays["x"], 1024, BLOCK=256, num_warps=8),
        "no constant": refused(arrays["x"], 1024),
    }
    case.run(package, arrays)  # and it works as before
    after = outcome(device, case, arrays, case.inputs)
    return "\n".join(f"{name}: {text}" for name, text in [*found.items(), ("afterwards", after)])


REFUSALS = "\n".join(
    (
        r"a tensor on the CPU: \w+Error: kernel 'combine'.*",
        r"another constant: ValueError: kernel 'combine'.*",
        r"another type: ValueError: kernel 'combine'.*",
        r"a count of 1: ValueError: kernel 'combine'.*",
        r"an option: ValueError: kernel 'combine'.*",
        r"no constant: TypeError: kernel 'combine'.*",
        f"afterwards: {RIGHT}",
    )
)


def triton_kernels(device: Device) -> Any:
    """The program's own kernels, which Triton compiles; None: there is no Triton here that could."""
    host()
    if device.capability is None:
        return None
    os.environ.setdefault("TRITON_CACHE_DIR", tempfile.mkdtemp())
    try:
        return importlib.import_module("_kernels")
    except ModuleNotFoundError:
        return None


NO_TRITON = "Triton is not here"


def against_triton(device: Device) -> str:
    """The program runs through Triton, and through the package, with the same arrays."""
    package, kernels = imported(RECORDED), triton_kernels(device)
    if kernels is None:
        return NO_TRITON
    import torch

    equal, apart = 0, 0.0
    for name, case in host().CASES.items():
        ours, theirs = on_device(device, case), on_device(device, case)
        case.run(package, ours)
        case.run(kernels, theirs)
        device.wait()
        if torch.equal(ours["out"], theirs["out"]):
            equal += 1
            continue
        if case.is_exact or not torch.allclose(ours["out"], theirs["out"], rtol=1e-3, atol=1e-5):
            return f"{name}: the results differ"
        apart = max(apart, float((ours["out"].float() - theirs["out"].float()).abs().max()))
    return f"{equal} of {len(host().CASES)} are equal, the others {apart:.1e} apart at most"


def in_its_place(device: Device) -> str:
    """``kernelwright.triton.use``: the program calls functions of Triton, and the package's code runs."""
    kernels = triton_kernels(device)
    if kernels is None:
        return NO_TRITON
    from kernelwright.triton import use

    def work(case: Any) -> str:
        arrays = on_device(device, case)
        case.run(kernels, arrays)
        return outcome(device, case, arrays, case.inputs)

    with use(imported(RECORDED)):
        return each_case(device, work)


def launch_times(device: Device) -> str:
    """What a launch takes of the host: by the package, and by Triton in the same process."""
    package, kernels = imported(RECORDED), triton_kernels(device)
    found = []
    for name in host().LAUNCHES:
        ours = host_time(device, name, package)
        theirs = None if kernels is None else host_time(device, name, kernels)
        beside = NO_TRITON if theirs is None else f"Triton {theirs:.2f} us, ratio {theirs / ours:.2f}"
        found.append(f"{name}: package {ours:.2f} us, {beside}")
    return "; ".join(found)


def host_time(device: Device, name: str, functions: Any) -> float:
    """Microseconds of a launch: the median of some batches."""
    launch, arrays, times = host().LAUNCHES[name], on_device(device, host().CASES[name]), []
    launch(functions, arrays, 10)
    for _ in range(BATCHES):
        device.wait()
        start = time.perf_counter_ns()
        launch(functions, arrays, LAUNCHES)
        times.append((time.perf_counter_ns() - start) / LAUNCHES / 1000)
    device.wait()
    return statistics.median(times)


# ---- the program of examples/triton-programs


def printed(folder: Path, *words: str) -> str:
    """What a program of the example prints, which finds the packages, and Kernelwright."""
    paths = [str(folder_of_languages()), str(ROOT / "site_scons"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    done = subprocess.run([sys.executable, *words], cwd=folder, env=variables, capture_output=True, text=True)
    return done.stdout if not done.returncode else f"ended with status {done.returncode}: {done.stderr[-1500:]}"


def served(device: Device, package: str) -> str:
    """``serve.py``, which needs no Triton, prints how far its result is from that of PyTorch."""
    text = printed(ROOT / "examples/triton-programs", "serve.py")
    return RIGHT if re.fullmatch(r"0\.00\d\d\n", text) else text


IN_PLACE = """\
import kernelwright.triton, {package}, runpy
with kernelwright.triton.use({package}):
    runpy.run_path("model.py", run_name="__main__")
"""


def unchanged(device: Device, package: str) -> str:
    """``model.py`` is as near to PyTorch with the package's code as with that of Triton here, gradients as well."""
    folder = ROOT / "examples/triton-programs"
    texts = [printed(folder, "-c", IN_PLACE.format(package=package)), printed(folder, "model.py")]
    ours, theirs = ([float(number) for number in re.findall(r"\b\d+\.\d{4}\b", text)] for text in texts)
    # Sixteen numbers, each of which is a distance from PyTorch's results.
    near = [one <= 2 * other + 0.005 for one, other in zip(ours, theirs, strict=False)]
    return RIGHT if len(ours) == len(theirs) == len(near) == 16 and all(near) else "; ".join(texts)


# ---- the list


def _examples() -> dict[str, Experiment]:
    found = {}
    for package, kernels in EXAMPLES.items():
        for kernel in kernels:
            run = functools.partial(example, package=package, kernel=kernel)
            found[f"{package}, {kernel}"] = Experiment(run, only_cuda=kernel in OWN_HOST_CODE)
        found[f"{package}, in a graph"] = Experiment(functools.partial(example_in_graph, package=package))
    for kernel in ("softmax", "matmul", "attention"):
        run = functools.partial(each_variant, package="attention_kernels", kernel=kernel)
        found[f"attention_kernels, each variant of {kernel}"] = Experiment(run)
    found["norm_kernels, a function without declared arguments"] = Experiment(threads_of_rows)
    return found


def _modes() -> dict[str, Experiment]:
    found = {}
    for package, how in MODES.items():
        found[f"{package}, is {how}"] = Experiment(functools.partial(is_built_so, package=package))
        for backend in ("tvm_ffi", "cuda_core"):
            found[f"{package}, {backend}"] = Experiment(functools.partial(mode, package=package, backend=backend))
    return found


def _recorded() -> dict[str, Experiment]:
    time_of = rf"[^;:]+: package [\d.]+ us, (Triton [\d.]+ us, ratio [\d.]+|{NO_TRITON})"
    apart = r"\d+ of \d+ are equal, the others \S+ apart at most"
    tried = {
        "values": Experiment(recorded_values),
        "in a graph": Experiment(recorded_in_graph),
        "a side stream": Experiment(recorded_on_stream),
        "errors": Experiment(recorded_errors, REFUSALS),
        "against Triton": Experiment(against_triton, f"{apart}|{NO_TRITON}", limit_s=150),
        "in place of Triton": Experiment(in_its_place, f"{RIGHT}|{NO_TRITON}"),
        "times of launches": Experiment(launch_times, f"{time_of}; {time_of}", limit_s=150, alone=True),
    }
    found = {f"{RECORDED}, {name}": one for name, one in tried.items()}
    for name, run in (("a program without Triton", served), ("a program of Triton", unchanged)):
        work = functools.partial(run, package="model_kernels")
        found[f"model_kernels, {name}"] = Experiment(work, only_cuda=True, limit_s=150)
    return found


EXPERIMENTS = {**_examples(), **_modes(), **_recorded()}


@functools.cache
def built() -> tuple[str, ...]:
    """The packages that there are."""
    return tuple(path.parent.name for path in sorted(folder_of_languages().glob("*/manifest.json")))


def package_of(experiment: Experiment) -> str:
    words = experiment.run.keywords if isinstance(experiment.run, functools.partial) else {}
    return str(words.get("package", "norm_kernels" if experiment.run is threads_of_rows else RECORDED))


def can_run(experiment: Experiment) -> bool:
    """Whether the package of an experiment is there, and this device can play what it needs."""
    return package_of(experiment) in built() and named() in (("cuda",) if experiment.only_cuda else ("cuda", "standin"))


PROGRAM = Program(__file__, EXPERIMENTS, can_run)

if __name__ == "__main__":
    sys.exit(main(PROGRAM, sys.argv[1:]))
