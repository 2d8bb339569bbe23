"""Runs the CUDA code of kernels on the CPU: ``device.cu`` compiled by g++ with ``cuda_on_cpu.h`` in place of CUDA.

It finds wrong results, missing barriers, and accesses that are out of bounds or not aligned; it says nothing about
speed. Of the instructions of PTX it knows those in ``PTX``; other ones cannot be run.

    comparison = Comparison(lowered(kernel, kernel.variants[0]), tmp_path)
    comparison.compare({"rows": 33})
"""

from __future__ import annotations

import copy
import ctypes
import importlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from kernelwright.backends.plan import LoweredUnit
from kernelwright.core.converter import from_json
from kernelwright.core.dtype import numpy_dtype
from kernelwright.core.errors import ToolchainError
from kernelwright.core.signature import Launch, Signature, TensorMap
from kernelwright.define.configs import Variant
from kernelwright.define.kernel import Kernel
from kernelwright.define.unit import Unit, unit_symbol
from kernelwright.frontends.tir.front_end import Tir
from kernelwright.processes.protocol import CheckRequest
from kernelwright.runtime.cuda_core_launch import truncdiv, truncmod
from kernelwright.toolchain.nvcc import find_nvcc
from kernelwright.toolchain.nvdisasm import find_nvdisasm
from kernelwright.worker.check import Check
from kernelwright.worker.strided import barely_aligned
from numpy.typing import NDArray
from support.project import ROOT, Project, once_in

Array = NDArray[Any]
Values = dict[str, Any]

HEADER = Path(__file__).with_name("cuda_on_cpu.h")
MACHINE = [Path(__file__).with_name(name) for name in ("cuda_on_cpu.cpp", "wgmma_on_cpu.cpp")]

FLAGS = (
    *("-std=c++17", "-O1", "-fPIC", "-w", "-fvisibility=hidden", "-fno-gnu-unique", "-U_FORTIFY_SOURCE"),
    *("-fno-strict-aliasing", "-ffp-contract=off", "-fsanitize=alignment,bounds", "-fno-sanitize-recover=all"),
)
"""For g++. The two sanitizers call functions of the header, so that nothing is linked for them."""

MARGIN = 4096
"""Bytes around the memory of each tensor: NaN to those who read them, and an error for those who write them."""

PTX = {
    r"mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 .*": "mma_m16n8k16",
    r"ldmatrix.sync.aligned.m8n8.x4.shared.b16 .*": "ldmatrix_x4",
    r"ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 .*": "ldmatrix_x4_trans",
    r"cp.async.cg.shared.global \[%0\], \[%1\], 16;": "cp_async_16",
    r"cp.async.commit_group;": "cp_async_commit_group",
    r"cp.async.wait_group (\d+);": "cp_async_wait_group",
    r"cvt.rn.f16x2.f32 %0, %1, %2;": "cvt_f16x2",
    r"st.global.b32 \[%0\], %1;": "st_global",
    r"mbarrier.init.shared.b64 \[%0\], %1;": "mbarrier_init",
    r"mbarrier.arrive.shared.b64 _, \[%0\];": "mbarrier_arrive",
    r"mbarrier.arrive.expect_tx.shared.b64 _, \[%0\], %1;": "mbarrier_arrive_expect_tx",
    r"\{.*LAB_WAIT:\s*mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 P1, \[%0\], %1, %2;.*\}": "mbarrier_wait",
    r"fence.mbarrier_init.release.cluster;": "fence_for_copies",
    r"fence.proxy.async(?:.shared::cta)?;": "fence_for_copies",
    r"cp.async.bulk.tensor.\dd.shared::cluster.global(?:.tile)?.mbarrier::complete_tx::bytes .*": "tma_load",
    r"wgmma.fence.sync.aligned;": "wgmma_fence",
    r"wgmma.commit_group.sync.aligned;": "wgmma_commit_group",
    r"wgmma.wait_group.sync.aligned (\d+);": "wgmma_wait_group",
    r"\{.*wgmma.mma_async.sync.aligned.m64n(\d+)k16.f32.f16.f16 .*, ps0, (-?1), (-?1), ([01]), ([01]); \}": "wgmma_f16",
}
"""Patterns of instructions -> the function of the header that is called with their operands and their numbers."""

SHARED = r"extern __shared__ (?:__align__\(\d+\) )?([\w ]+?) (\w+)\[\];"
"""Dynamic shared memory: its type and its name."""

FUNCTIONS = {"min": min, "max": max, "truncdiv": truncdiv, "truncmod": truncmod}
"""What expressions of a launch call."""


class EmulationError(Exception):
    """A kernel did what hardware leaves undefined, or what cannot be emulated."""


class _Geometry(ctypes.Structure):
    _fields_ = (
        ("grid", ctypes.c_uint * 3),
        ("block", ctypes.c_uint * 3),
        ("dynamic", ctypes.c_uint),
        ("reversed", ctypes.c_int),
    )


class _TensorMap(ctypes.Structure):
    _fields_ = (
        ("address", ctypes.c_void_p),
        *((name, ctypes.c_uint32) for name in ("rank", "itemsize", "swizzle")),
        *((name, ctypes.c_uint64 * 5) for name in ("sizes", "strides")),
        *((name, ctypes.c_uint32 * 5) for name in ("box", "steps")),
    )


@dataclass(frozen=True)
class Lowered:
    """A variant lowered for CUDA: ``signature.json`` and ``device.cu``, and what they come from."""

    kernel: Kernel
    variant: Variant
    signature: Mapping[str, Any]
    source: str


def kernels_in(name: str) -> list[Kernel]:
    """The kernels of a definition file of the library, such as ``softmax``."""
    folder = str(ROOT / "kernels")
    if folder not in sys.path:
        sys.path.insert(0, folder)
    module = importlib.import_module(name)
    return [value for value in vars(module).values() if isinstance(value, Kernel)]


def lowered(kernel: Kernel, variant: Variant, arch: str = "sm_80") -> Lowered:
    """Lower a variant for CUDA, as a build does."""
    slugs = [other.slug for other in kernel.variants]
    symbol = unit_symbol(kernel.name, variant.slug, slugs, "cuda", arch, kernel.options.per_arch)
    whose = (kernel.name, variant.slug, symbol, variant.config, kernel.options.outputs)
    unit = Unit(*whose, "cuda", arch, kernel.location, multiples=kernel.multiples(variant.config))
    front_end = Tir()
    made = kernel.build(variant.config, front_end.target(unit))
    files = front_end.lower(made, unit, lambda doing: None).files
    return Lowered(kernel, variant, json.loads(files["signature.json"]), files["device.cu"].decode())


def variants_of(kernel: Kernel) -> list[Variant]:
    """The variants of a kernel for CUDA, but of a space only the declared ones, and all points of the first config."""
    if not kernel.choices:
        return kernel.variants
    wanted = [choice.declared("cuda") for choice in kernel.choices] + kernel.choices[0].candidates("cuda")
    return [variant for variant in kernel.variants if variant.config in wanted]


class Emulation:
    """A lowered variant that can be called with NumPy arrays.

    Arguments:
        signature: its ``signature.json``.
        source: its ``device.cu``.
        folder: where to compile it.
    """

    def __init__(self, signature: Mapping[str, Any], source: str, folder: Path) -> None:
        self._describe(signature)
        self._library = ctypes.CDLL(str(self._compiled(source, folder)))

    def described(self, signature: Mapping[str, Any]) -> Emulation:
        """The same code with another ``signature.json``."""
        other = copy.copy(self)
        other._describe(signature)
        return other

    def _describe(self, signature: Mapping[str, Any]) -> None:
        self.unit = LoweredUnit.from_json(signature, "host.c")
        assert self.unit.launches is not None, self.unit.host_logic
        self._launches = self.unit.launches

    def _compiled(self, source: str, folder: Path) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        source = re.sub(r"^\s*#include.*$", "", source, flags=re.M)
        source = re.sub(SHARED, r"\1 *\2 = (\1 *)::buf_dyn_shmem;", source)
        source = re.sub(r'asm volatile\(\s*((?:"[^"]*"\s*)+)([^;]*)\);', _instruction, source)
        exported = 'extern "C" __attribute__((visibility("default"))) const char *emulated_'
        launchers = [
            f"{exported}{kernel.name}(void **values, const emulated::Geometry *geometry) "
            f"{{ return emulated::launch({kernel.name}, values, geometry); }}\n"
            for kernel in self.unit.device_kernels
        ]
        place, library = folder / "device.cpp", folder / "device.so"
        machine = once_in(Project.shared, "machine", _make_machine) / "cuda_on_cpu.o"
        source = re.sub(r"^struct (__half|__nv_bfloat16|CUtensorMap_st);$", "", source, flags=re.M)  # aliases here
        place.write_text(f'#include "{machine.with_suffix(".h")}"\n#line 1 "device.cu"\n{source}\n{"".join(launchers)}')
        _run("g++", *FLAGS, "-c", str(place), "-o", f"{place}.o")
        hidden = "-Wl,-z,start-stop-visibility=hidden"
        _run("g++", "-shared", hidden, f"{place}.o", str(machine), "-o", str(library))
        return library

    def __call__(self, values: Mapping[str, Any], sizes: Mapping[str, int], backwards: bool = False) -> Values:
        """The kernel's tensors after a call.

        Arguments:
            values: an array or a number for each argument; arrays are left as they are.
            sizes: the values of the size variables.
            backwards: run the last block and the last thread first.

        Raises:
            EmulationError: the code did what it must not, or what cannot be emulated.
        """
        needed = {argument.name: argument.alignment for argument in self.unit.arguments}
        arrays = {name: value for name, value in values.items() if isinstance(value, np.ndarray)}
        tensors = {name: _Memory(value, needed[name] or value.dtype.itemsize) for name, value in arrays.items()}
        names = {name: value for name, value in values.items() if name not in tensors} | dict(sizes)
        sizes_of_spaces = [(self._number(space.bytes, names), space.zeroed) for space in self.unit.workspaces]
        spaces = [_Memory(np.full(size, 0 if zero else 0xFF, np.uint8), 64) for size, zero in sizes_of_spaces]
        for launch in self._launches:
            if launch.when is None or self._number(launch.when, names):
                self._launch(launch, names, tensors, spaces, backwards)
        for name, memory in [*tensors.items(), *((f"workspace {i}", space) for i, space in enumerate(spaces))]:
            memory.require_margin(name)
        return {name: memory.array for name, memory in tensors.items()}

    def _launch(
        self,
        launch: Launch,
        names: Mapping[str, Any],
        tensors: Mapping[str, _Memory],
        spaces: Sequence[_Memory],
        backwards: bool,
    ) -> None:
        if launch.cooperative or launch.cluster:
            raise EmulationError(f"{launch.kernel} is launched with clusters, or cooperatively")

        def parameter(kind: str, what: int | str) -> Any:
            if kind == "tensor_map":
                return self._tensor_map(self.unit.tensor_maps[int(what)], names, tensors)
            if kind in ("tensor", "workspace"):
                return ctypes.c_void_p((tensors[str(what)] if kind == "tensor" else spaces[int(what)]).address)
            number = np.array(self._number(what, names), numpy_dtype(kind))
            return (ctypes.c_char * 8).from_buffer_copy(number.tobytes().ljust(8, b"\0"))

        grid, block = (tuple(self._number(size, names) for size in sizes) for sizes in (launch.grid, launch.block))
        if not all(grid):
            return
        given = [parameter(kind, what) for kind, what in launch.passed]
        for structure in reversed(self.unit.structures_of(launch.kernel)):
            end = structure.first + len(structure.places)
            joined = (ctypes.c_char * structure.bytes)()
            for (offset, size), value in zip(structure.places, given[structure.first : end], strict=True):
                ctypes.memmove(ctypes.addressof(joined) + offset, ctypes.addressof(value), size)
            given[structure.first : end] = [joined]
        addresses = (ctypes.c_void_p * len(given))(*map(ctypes.addressof, given))
        geometry = _Geometry(grid, block, self._number(launch.shared, names), backwards)
        function = self._library[f"emulated_{launch.kernel}"]
        function.restype = ctypes.c_char_p
        if error := function(addresses, ctypes.byref(geometry)):
            raise EmulationError(f"{launch.kernel}: {error.decode()}")

    def _tensor_map(
        self, described: TensorMap, names: Mapping[str, Any], tensors: Mapping[str, _Memory]
    ) -> ctypes.Structure:
        """What cuTensorMapEncodeTiled would make, or the error that it would return (its documentation in cuda.h)."""
        sizes, strides, box, steps = (
            [self._number(value, names) for value in values]
            for values in (described.sizes, described.strides, described.box, described.steps)
        )
        itemsize, address = numpy_dtype(described.dtype).itemsize, tensors[described.tensor].address
        span = {0: 16 * 256, 1: 32, 2: 64, 3: 128}[described.swizzle]
        refused = {
            "data that is not aligned to 16 bytes": address % 16 != 0,
            "a size of 0, or one that is too large": not all(0 < size <= 2**32 for size in sizes),
            "a stride that is no multiple of 16": any(s % 16 or not 0 < s < 2**40 for s in strides),
            "a box that is too large": not all(0 < size <= 256 for size in box),
            "rows of a box that are longer than its swizzle": box[0] * itemsize > span or box[0] * itemsize % 16 != 0,
            "steps that are too large": not all(1 <= step <= 8 for step in steps),
            "modes that are not emulated": bool(described.interleave or described.fill),
        }
        if found := [what for what, is_so in refused.items() if is_so]:
            raise EmulationError(f"a tensor map of {described.tensor} with {found[0]}")
        rest = [0] * (5 - len(sizes))
        return _TensorMap(
            *(address, len(sizes), itemsize, described.swizzle, tuple(sizes + rest)),
            *((itemsize, *strides, *rest), tuple(box + rest), tuple(steps + rest)),
        )

    @staticmethod
    def _number(expression: int | str, names: Mapping[str, Any]) -> Any:
        return expression if isinstance(expression, int) else eval(expression, dict(FUNCTIONS), dict(names))


def machine_code(source: str, folder: Path) -> tuple[str, str]:
    """What ptxas says of a source for sm_90a, and the text of nvdisasm; where either is missing the test is skipped."""
    try:
        nvcc, nvdisasm = find_nvcc("", dict(os.environ)), find_nvdisasm("", dict(os.environ))
    except ToolchainError as error:
        pytest.skip(error.message)
    (folder / "device.cu").write_text(source)
    options = ["-cubin", "-arch=sm_90a", "-diag-suppress=177", "-Xptxas=-v"]
    commands = [nvcc, *options, "device.cu", "-o", "device.cubin"], [nvdisasm, "--print-code", "device.cubin"]
    compiled, shown = (
        subprocess.run(command, cwd=folder, check=True, timeout=300, capture_output=True, text=True)
        for command in commands
    )
    return compiled.stderr, shown.stdout


def _instruction(match: re.Match[str]) -> str:
    """A call of the header's function for an instruction, or the instruction as it is."""
    literals, operands = match.groups()
    text = re.sub(r'"\s*"|"\s*$|^"|\\n', "", literals)
    for pattern, function in PTX.items():
        if known := re.fullmatch(pattern, text):
            given = [*re.findall(r'"[=+&]*\w"\s*\((\w+)\)', operands), *known.groups()]
            lines = "\n" * match.group().count("\n")
            return f"emulated::{function}({', '.join(given)});{lines}"
    return match.group()


def _make_machine(folder: Path) -> None:
    """Make what runs threads, once in a test run; beside it is the header, which g++ has read already."""
    header = Path(shutil.copy(HEADER, folder))
    _run("g++", *FLAGS, "-x", "c++-header", str(header), "-o", f"{header}.gch")
    parts = [folder / f"{source.stem}.part.o" for source in MACHINE]
    for source, part in zip(MACHINE, parts, strict=True):
        _run("g++", *FLAGS, "-O2", "-c", str(source), "-o", str(part))
    _run("ld", "-r", *map(str, parts), "-o", str(folder / "cuda_on_cpu.o"))


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[:6000]


class _Memory:
    """A copy of an array with a margin around it, aligned as asked for and no better."""

    def __init__(self, array: Array, alignment: int) -> None:
        margin = np.full(MARGIN, 0xFF, np.uint8)
        content = np.frombuffer(array.tobytes(), np.uint8)
        self._whole = barely_aligned(np.concatenate([margin, content, margin]), alignment)
        self._size = array.nbytes
        self.array: Array = self._whole[MARGIN : MARGIN + self._size].view(array.dtype).reshape(array.shape)
        self.address = self._whole.ctypes.data + MARGIN

    def require_margin(self, name: str) -> None:
        for where, part in (("before", self._whole[:MARGIN]), ("behind", self._whole[MARGIN + self._size :])):
            if (part != 0xFF).any():
                raise EmulationError(f"the kernel wrote {where} {name}, at bytes {np.flatnonzero(part != 0xFF)[:5]}")


class Comparison(Check):
    """The comparison of a variant with its reference that ``scons check`` makes, with emulated hardware.

    Arguments:
        lowered: the variant.
        folder: where to compile it.
    """

    def __init__(self, lowered: Lowered, folder: Path) -> None:
        kernel, slug = lowered.kernel, lowered.variant.slug
        signature = from_json(Signature, lowered.signature)
        request = CheckRequest("", kernel.name, slug, "", 0, signature, "cpu:0", kernel.options.tolerance)
        super().__init__(request, kernel, lowered.variant, lambda name, function: function(), lambda doing: None)
        self._emulation = Emulation(lowered.signature, lowered.source, folder)

    def compare(self, sizes: Mapping[str, int], backwards: bool = False) -> bool:
        """Run the kernel and its reference for some sizes; whether its inputs function accepts them.

        Raises:
            CheckError: they differ.
            EmulationError: the code did what it must not, or what cannot be emulated.
        """
        inputs = self.drawing.values(sizes)
        if inputs is None:
            return False
        self.compare_for(inputs, sizes, backwards)
        return True

    def compare_for(self, inputs: Values, sizes: Mapping[str, int], backwards: bool = False) -> None:
        """Run the kernel and its reference with an array or a number for each argument that is not an output.

        Raises:
            CheckError: they differ.
            EmulationError: the code did what it must not, or what cannot be emulated.
        """
        outputs = {a.name: self.drawing.garbage(a, sizes) for a in self._signature.arguments if a.output}
        got = self._emulation({**inputs, **outputs}, sizes, backwards)
        self.compared(self.expected(inputs), got, sizes, inputs)
