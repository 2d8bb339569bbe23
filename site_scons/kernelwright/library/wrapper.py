"""The kernel library: one per kernel, whose surface is the C ABI of TVM-FFI. Every backend but a pure one calls it.

This module writes ``wrapper.c``, which is tables: what each variant expects, where its code is. The mechanism is in
the C headers of ``launcher/``, which the wrapper includes. The device code is in ``images.s``, apart from it: the
wrapper can be compiled while nvcc is still at work, and need not be compiled again when only device code has changed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import reduce
from pathlib import Path

from ..backends.base import Places
from ..core.arch import CPU_LEVELS, CudaArch
from ..core.dtype import Dtype
from ..core.errors import KernelwrightError, Where
from ..runtime.size import translate
from .plan import Argument, DeviceKernel, KernelPlan, LoweredUnit, VariantPlan

LAUNCHER = Path(__file__).resolve().parent / "launcher"
"""The folder of the launcher's C headers."""

MAX_ARGUMENTS = 120
"""Most arguments of a kernel, and most parameters of a device function: they are held in arrays on the stack."""

_DIMS = {"blockIdx": "KW_GRID", "threadIdx": "KW_BLOCK", "clusterCtaIdx": "KW_CLUSTER"}
_DIMS["preferredClusterCtaIdx"] = "KW_PREFERRED_CLUSTER"
_SHARED = "tirx.use_dyn_shared_memory"
_FLAGS = {
    # The first is how TVM 0.27 spells it.
    "tirx.use_programtic_dependent_launch": "dependent",
    "tirx.use_programmatic_dependent_launch": "dependent",
    "tirx.use_cooperative_launch": "cooperative",
}

_PARAMETER_LETTERS = {"handle": "p", "bool": "i", "float64": "d", "float32": "f", "float16": "h"}


STACK_PROTECTOR = "-fstack-protector-strong"
"""Ends the process when a function has written beyond its arrays on the stack. Calls are no slower."""

RELRO = ("-z,relro", "-z,now")
"""Options of the linker: functions are found when the library is loaded, and their table is read-only from then on."""


def compile_flags() -> list[str]:
    """Options of the C compiler for wrapper.c, without folders: optimisation, dialect, visibility, hardening."""
    return ["-O2", "-std=gnu11", "-fPIC", "-fvisibility=hidden", STACK_PROTECTOR]


def link_flags(launcher: str | Path = LAUNCHER, glibc: str = "") -> list[str]:
    """Options for linking a kernel library: nothing exported but FFI functions, never unloaded, hardened, reproducible.

    Arguments:
        launcher: the folder of the launcher, as the command line should name it.
        glibc: the folder of the libraries that stand in for the machine's C library; empty: none.
    """
    linker = [f"--version-script={launcher}/exports.map", "-z,nodelete", *RELRO, "--build-id=none"]
    # Before glibc 2.34 the last two have functions that are bound as if they were in libc.
    libraries = ["-lm", "-Wl,--push-state,--no-as-needed", "-ldl", "-lpthread", "-Wl,--pop-state"]
    return ["-shared", "-s", *(f"-Wl,{option}" for option in linker), *([f"-L{glibc}"] if glibc else []), *libraries]


def include_flags(include: Iterable[str | Path], launcher: str | Path = LAUNCHER) -> list[str]:
    """Options that name the folders of headers.

    Arguments:
        include: TVM-FFI's include folders (tvm-ffi's own, and DLPack's).
        launcher: the folder of the launcher's headers.
    """
    return [f"-I{folder}" for folder in (".", launcher, *include)]


def launcher_sources() -> list[Path]:
    """The launcher's files, in a fixed order: every kernel library depends on their content."""
    found = [path for path in LAUNCHER.rglob("*") if path.suffix in (".h", ".map")]
    return sorted(path for path in found if path.parent.name != "python")  # these are the extension modules


_FUNCTIONS = {
    "+": "kw_add",
    "-": "kw_subtract",
    "*": "kw_multiply",
    "//": "kw_floordiv",
    "%": "kw_floormod",
    "min": "kw_min",
    "max": "kw_max",
}
"""Functions of the launcher, because C's own operators are undefined where int64 overflows."""


def size_expression(text: str, name: Callable[[str], str]) -> str:
    """Translate a size to C.

    Arguments:
        text: the size.
        name: the C expression of a symbol.

    Raises:
        ValueError: the expression has something else in it.
    """

    def operation(sign: str, operands: list[str]) -> str:
        terms = operands if len(operands) > 1 else ["INT64_C(0)", *operands]
        return reduce(lambda first, second: f"{_FUNCTIONS[sign]}({first}, {second})", terms)

    return translate(text, "INT64_C({})".format, name, operation)


def symbols_of(size: int | str) -> list[str]:
    """The symbols in a size, in order of appearance."""
    if isinstance(size, int):
        return []
    found: dict[str, None] = {}
    size_expression(size, lambda symbol: found.setdefault(symbol) or symbol)
    return list(found)


@dataclass(frozen=True)
class LinkJob:
    """What a kernel library is linked from, besides the backend's files and the wrapper's object.

    Arguments:
        kernel: the kernel's name.
        objects: the objects of the llvm lowerings.

    Paths are relative to the folder in which the compiler runs, which is that of the plan's paths.
    """

    kernel: str
    objects: tuple[str, ...]


FILES = ("wrapper.c", "images.s")
"""The names of the files that :func:`emit` writes."""


def emit(kernel: KernelPlan) -> dict[str, str]:
    """Write the sources of a kernel's library.

    Arguments:
        kernel: the plan; paths in it are relative to the folder in which the compiler runs.

    Returns:
        File name (relative to the kernel's folder) -> text; equal for equal plans.

    Raises:
        KernelwrightError: the kernel cannot be called from C.
    """
    kernel.check()
    if kernel.name.startswith("kw_") or kernel.name == "main":
        raise KernelwrightError(
            f"{kernel.name!r} cannot be a kernel's name",
            Where(kernel.name, stage="wrap"),
            "choose one that is not main and does not start with kw_",
        )
    return {"wrapper.c": _Wrapper(kernel).text(), "images.s": _images(kernel)}


def compile_command(kernel: str, places: Places, output: str) -> list[str]:
    """The command that compiles the wrapper and the lowered host code; it needs no device code."""
    folders = include_flags(places.includes, places.launcher)
    return [places.compiler, *compile_flags(), *folders, "-c", f"{kernel}/wrapper.c", "-o", output]


def link_command(job: LinkJob, places: Places, library: str) -> list[str]:
    """The command that makes the library of the compiled wrapper, the device code and the objects."""
    parts = [f"{job.kernel}/wrapper.o", f"{job.kernel}/images.s", *job.objects]
    return [places.compiler, *parts, "-o", library, *link_flags(places.launcher, places.glibc)]


class _Wrapper:
    """The text of one wrapper.c."""

    def __init__(self, kernel: KernelPlan) -> None:
        self._kernel = kernel
        self._lines: list[str] = []
        self._signatures: dict[tuple[object, ...], int] = {}
        self._split = kernel.split and any(unit.images for unit in kernel.units)

    def text(self) -> str:
        self._head()
        self._line("", "/* What the lowerings expect of their arguments. */")
        for unit in self._kernel.units:
            self._signature(unit)
        for number, variant in enumerate(self._kernel.variants):
            self._line("", f"/* ---- variant {number}: {variant.slug} ---- */")
            self._cpu_units(number, variant.of("llvm"))
            for unit in variant.of("cuda"):
                self._cuda_unit(number, unit)
        self._tail()
        return "\n".join(self._lines) + "\n"

    def _line(self, *lines: str) -> None:
        self._lines.extend(lines)

    # ---- beginning and end

    def _head(self) -> None:
        units = self._kernel.units
        arguments = len(units[0].arguments)
        parameters = [len(device.params) for unit in units for device in unit.device_kernels]
        if max([arguments, *parameters]) > MAX_ARGUMENTS:
            raise KernelwrightError(f"it has more than {MAX_ARGUMENTS} arguments", units[0].where)
        dims = [sum(len(a.shape) for a in unit.arguments if a.output) for unit in units]
        toolkit = self._kernel.toolkit if any(unit.images for unit in units) else 0
        self._line(
            f"/* The library of kernel {self._kernel.name}: its tables and, below them, its FFI functions.",
            " * Written by Kernelwright. The launcher's headers have the mechanism. */",
            f"#define KW_KERNEL {_string(self._kernel.name)}",
            f"#define KW_MAX_ARGUMENTS {max(1, arguments)}",
            f"#define KW_MAX_DIMS {max([1, *dims])}",
            f"#define KW_MAX_PARAMETERS {max([1, *parameters])}",
            f"#define KW_MAX_IMAGES {max([1, *(len(unit.images) for unit in units)])}",
            *(["#define KW_SPLIT"] if self._split else []),
            *([f"#define KW_TOOLKIT {toolkit}"] if toolkit else []),
            *([f"#define KW_DRIVER {self._kernel.driver}"] if self._kernel.driver else []),
            '#include "kernelwright.h"',
        )

    def _tail(self) -> None:
        kernel = self._kernel
        first = kernel.units[0]
        self._line("", "/* ---- the kernel ---- */", "static const kw_variant kw_variants[] = {")
        for number, variant in enumerate(kernel.variants):
            self._line(f"  {self._variant(number, variant)},")
        outline = ", ".join(f"[{a.name}]" if a.output else a.name for a in first.arguments)
        self._line(
            "};",
            "static const kw_kernel kw_this = {",
            f"  .outline = {_string(outline)},",
            f"  .built = {_string(_built(kernel))},",
            f"  .arguments = kw_arguments_{self._number(first)},",
            f"  .num_arguments = {len(first.arguments)},",
            f"  .num_outputs = {len(kernel.outputs)},",
            "  .variants = kw_variants,",
            f"  .num_variants = {len(kernel.variants)},",
            *([f"  .gaps = {_string(kernel.gaps)},"] if kernel.gaps else []),
            "};",
            "",
            '#include "exports.h"',
            f"KW_EXPORT_KERNEL({kernel.name})",
            *(f"KW_EXPORT_VARIANT({kernel.name}, {number})" for number in range(len(kernel.variants))),
        )

    def _variant(self, number: int, variant: VariantPlan) -> str:
        fields = [f".slug = {_string(variant.slug)}"]
        if cpu := variant.of("llvm"):
            fields += [f".cpu_signature = &kw_signature_{self._number(cpu[0])}", f".cpu_units = kw_cpu_units_{number}"]
            fields += [f".num_cpu_units = {len(cpu)}"]
        for unit in variant.of("cuda"):
            fields += [f".cuda_signature = &kw_signature_{self._number(unit)}", f".cuda_entry = {unit.entry}"]
            fields += [f".module = &kw_module_{number}"]
        return "{" + ", ".join(fields) + "}"

    # ---- signatures

    def _key(self, unit: LoweredUnit) -> tuple[object, ...]:
        return (unit.arguments, tuple(sorted(unit.symbols.items())))

    def _number(self, unit: LoweredUnit) -> int:
        return self._signatures[self._key(unit)]

    def _signature(self, unit: LoweredUnit) -> None:
        """Write the tables of a signature, unless an equal one has been written."""
        if self._key(unit) in self._signatures:
            return
        number = self._signatures[self._key(unit)] = len(self._signatures)
        self._line("", f"static const kw_argument kw_arguments_{number}[] = {{")
        for argument in unit.arguments:
            self._line(f"  {_argument(argument, unit.where)},")
        self._line("};")
        if self._kernel.outputs:
            self._output_shapes(number, unit)
        fields = [f".arguments = kw_arguments_{number}"]
        fields += [".int32_sizes = true"] if "int64" not in unit.symbols.values() else []
        fields += [f".output_shapes = kw_shapes_{number}"] if self._kernel.outputs else []
        self._line(f"static const kw_signature kw_signature_{number} = {{{', '.join(fields)}}};")

    def _output_shapes(self, number: int, unit: LoweredUnit) -> None:
        """Write the function that computes the sizes of the outputs from the inputs."""
        sources = _symbol_sources(unit)
        sizes = [size for argument in unit.arguments if argument.output for size in argument.shape]
        used = [symbol for size in sizes for symbol in _symbols(size, unit)]
        self._line(f"static void kw_shapes_{number}(const kw_call *call, int64_t *dims) {{")
        self._line("  (void)call, (void)dims;")
        for symbol in dict.fromkeys(used):
            if symbol not in sources:
                raise _unbound(unit, symbol)
            self._line(f"  const int64_t size_{symbol} = {sources[symbol]};")
        for index, size in enumerate(sizes):
            value = str(size) if isinstance(size, int) else size_expression(size, "size_{}".format)
            self._line(f"  dims[{index}] = {value};")
        self._line("}")

    # ---- code of a variant

    def _cpu_units(self, number: int, units: tuple[LoweredUnit, ...]) -> None:
        if not units:
            return
        best_first = sorted(units, key=lambda unit: -CPU_LEVELS[unit.arch])
        for unit in best_first:
            if self._number(unit) != self._number(units[0]):
                raise KernelwrightError("its llvm lowerings have different signatures", unit.where)
            self._line(f"KW_HIDDEN int32_t {unit.entry}(void *, void *, int32_t, void *);")
        self._line(f"static const kw_cpu_unit kw_cpu_units_{number}[] = {{")
        for unit in best_first:
            self._line(f"  {{{_string(unit.arch)}, {CPU_LEVELS[unit.arch]}, {unit.entry}}},")
        self._line("};")

    def _cuda_unit(self, number: int, unit: LoweredUnit) -> None:
        self._images(number, unit)
        self._line(f"static kw_module kw_module_{number};")
        for index, device in enumerate(unit.device_kernels):
            slots = ", ".join(_slots(device, unit.where)) or "0"
            self._line(f"static const uint8_t kw_slots_{number}_{index}[] = {{{slots}}};")
        self._line(f"static const kw_function kw_functions_{number}[] = {{")
        for index, device in enumerate(unit.device_kernels):
            self._line(f"  {_function(device, number, index, unit.where)},")
        self._line(
            "};",
            f"static kw_module kw_module_{number} = {{",
            f"  .variant = {_string(unit.slug)},",
            f"  .images = kw_images_{number},",
            f"  .num_images = {len(unit.images)},",
            f"  .functions = kw_functions_{number},",
            f"  .num_functions = {len(unit.device_kernels)},",
            "};",
        )
        self._host_code(number, unit)

    def _images(self, number: int, unit: LoweredUnit) -> None:
        if not unit.images or not unit.device_kernels:
            raise KernelwrightError("its cuda lowering has no device code", unit.where)
        for arch in () if self._split else unit.images:
            self._line(f"KW_IMAGE({_symbol(number, arch)});")
        self._line(f"static const kw_image kw_images_{number}[] = {{")
        for arch, path in unit.images.items():
            place = f".file = {_string(path)}" if self._split else f".data = {_symbol(number, arch)}"
            self._line(f"  {_image(arch, place, unit.where)},")
        self._line("};")

    def _host_code(self, number: int, unit: LoweredUnit) -> None:
        """Include host.c with its calls sent to the launcher, and its globals renamed: every host.c has the same."""
        module = f"&kw_module_{number}"
        macros = {
            "TVMFFIEnvModLookupFromImports(context, ...)": f"kw_cuda_lookup({module}, __VA_ARGS__)",
            "TVMFFIFunctionCall(handle, ...)": f"kw_cuda_call({module}, handle, __VA_ARGS__)",
            "__tvm_ffi__library_ctx": f"kw_context_{number}",
            "__tvm_ffi_main": f"kw_main_{number}",
            "__tvm_set_device_packed": f"kw_set_device_{number}",
        }
        for index, device in enumerate(unit.device_kernels):
            macros[f"{device.name}_packed"] = f"kw_packed_{number}_{index}"
        self._line(*(f"#define {name} {value}" for name, value in macros.items()), "KW_HOST_BEGIN")
        self._line(f"#include {_string(unit.host)}", "KW_HOST_END")
        self._line(*(f"#undef {name.partition('(')[0]}" for name in macros))


def _images(kernel: KernelPlan) -> str:
    """The text of images.s, which embeds all images; their paths are relative to the assembler's working folder.

    Behind each image is a zero byte, because the driver wants PTX as a C string. A split kernel embeds none.
    """
    lines = [f"/* The device code of kernel {kernel.name}. Written by Kernelwright. */"]
    lines += ['.section .rodata.kernelwright, "a", @progbits']
    for number, variant in enumerate(kernel.variants):
        for unit in variant.of("cuda"):
            for arch, path in () if kernel.split else unit.images.items():
                symbol = _symbol(number, arch)
                lines += [".balign 64", f".globl {symbol}", f".hidden {symbol}", f"{symbol}:"]
                lines += [f".incbin {_string(path)}", ".byte 0"]
    return "\n".join([*lines, '.section .note.GNU-stack, "", @progbits', ""])


def _symbol(number: int, arch: str) -> str:
    """The symbol of the image of a variant for an arch."""
    return f"kw_image_{number}_{arch}"


def _string(text: str) -> str:
    """A string literal, of C and of the assembler."""
    return '"' + "".join(_escaped(character) for character in text) + '"'


def _escaped(character: str) -> str:
    if " " <= character <= "~" and character not in '"\\?':
        return character
    return "".join(f"\\{byte:03o}" for byte in character.encode())


def _built(kernel: KernelPlan) -> str:
    """The targets and archs that a kernel was built for, as messages list them."""
    archs: dict[str, dict[str, None]] = {}
    for unit in kernel.units:
        for arch in unit.images or [unit.arch]:
            archs.setdefault(unit.target, {})[arch] = None
    return ", ".join(f"{target} ({', '.join(names)})" for target, names in archs.items())


def _argument(argument: Argument, where: Where) -> str:
    dtype = Dtype.parse(argument.dtype, where)
    text = argument.dtype
    fields = [f".name = {_string(argument.name)}", f".kind = {argument.launcher_kind}"]
    if argument.kind == "tensor":
        text += f"[{', '.join(map(str, argument.shape))}]"
        shape = ", ".join(str(size) if isinstance(size, int) else "KW_ANY" for size in argument.shape)
        fields += [f".alignment = {argument.alignment or dtype.alignment}", f".ndim = {len(argument.shape)}"]
        fields += [f".shape = (const int64_t[]){{{shape}}}"] if shape else []
    fields += [".output = true"] if argument.output else []
    fields += [f".dtype = {{{dtype.code}, {dtype.bits}, {dtype.lanes}}}", f".text = {_string(text)}"]
    return "{" + ", ".join(fields) + "}"


def _symbols(size: int | str, unit: LoweredUnit) -> list[str]:
    try:
        return symbols_of(size)
    except (ValueError, RecursionError, MemoryError) as error:  # the last two: it is nested too deeply
        raise KernelwrightError(f"the size {size!r} of an output cannot be computed: {error}", unit.where) from error


def _symbol_sources(unit: LoweredUnit) -> dict[str, str]:
    """The C expression of each symbol that the inputs give: a number of that name, or a size that is the symbol."""
    sources: dict[str, str] = {}
    for position, argument in enumerate(unit.arguments):
        if argument.launcher_kind == "KW_INT":
            sources.setdefault(argument.name, f"call->values[{position}]->v_int64")
    for position, argument in enumerate(unit.arguments):
        for axis, size in enumerate(argument.shape):
            if not argument.output and isinstance(size, str) and size.isidentifier():
                sources.setdefault(size, f"call->tensors[{position}]->shape[{axis}]")
    return sources


def _unbound(unit: LoweredUnit, symbol: str) -> KernelwrightError:
    outputs = [a.name for a in unit.arguments if a.output and any(symbol in _symbols(s, unit) for s in a.shape)]
    return KernelwrightError(
        f"output {outputs[0]!r} has the size {symbol!r}, which no input tells",
        unit.where,
        f"pass {symbol!r} as a number, make it a size of an input, or remove {outputs[0]!r} from outputs",
    )


def _image(arch: str, place: str, where: Where) -> str:
    """The row of an image; ``place`` is the field that says where it is."""
    found = CudaArch.of(arch)
    if not found:
        raise KernelwrightError(f"unknown CUDA arch {arch!r}", where, "write it like sm_80, sm_90a or compute_80")
    fields = [f".arch = {_string(arch)}", f".capability = {found.number}"]
    fields += [".ptx = true"] if found.is_ptx else []
    fields += [f".suffix = '{found.suffix}'"] if found.suffix else []
    return "{" + ", ".join([*fields, place]) + "}"


def _slots(device: DeviceKernel, where: Where) -> list[str]:
    """Where the launch arguments go, in order; flags have no argument (TVM 0.27, LaunchParamConfig)."""
    slots = []
    for tag in device.launch:
        base, _, axis = tag.partition(".")
        if base in _DIMS and axis in ("x", "y", "z"):
            slots.append(f"{_DIMS[base]} + {'xyz'.index(axis)}")
        elif tag == _SHARED and tag == device.launch[-1]:
            slots.append("KW_SHARED")
        elif tag not in _FLAGS:
            raise KernelwrightError(
                f"device function {device.name!r} has the launch parameter {tag!r}, which the launcher does not know",
                where,
                f"known are {', '.join([*_DIMS, *_FLAGS])} and, as the last, {_SHARED}",
            )
    return slots


def _function(device: DeviceKernel, number: int, index: int, where: Where) -> str:
    letters = "".join(_parameter(dtype, device, where) for dtype in device.params)
    fields = [f".name = {_string(device.name)}", f".module = &kw_module_{number}", f".parameters = {_string(letters)}"]
    fields += [f".num_parameters = {len(letters)}", f".slots = kw_slots_{number}_{index}"]
    fields += [f".num_slots = {len(_slots(device, where))}"]
    fields += [".clusters = true"] if any(tag.startswith("clusterCtaIdx") for tag in device.launch) else []
    fields += [f".{flag} = true" for flag in sorted({_FLAGS[tag] for tag in device.launch if tag in _FLAGS})]
    return "{" + ", ".join(fields) + "}"


def _parameter(dtype: str, device: DeviceKernel, where: Where) -> str:
    if dtype in _PARAMETER_LETTERS:
        return _PARAMETER_LETTERS[dtype]
    if re.fullmatch(r"u?int(8|16|32|64)", dtype):
        return "i"
    raise KernelwrightError(
        f"device function {device.name!r} has a parameter of dtype {dtype!r}, which cannot be passed",
        where,
        "pass it as float32, or in a tensor",
    )
