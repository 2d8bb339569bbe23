"""Writes ``wrapper.c``, the source of a kernel's library, which is called through the C ABI of TVM-FFI.

It consists of tables: what each variant expects, and where its code is. The mechanism is in the launcher, which is
compiled apart from it (``launcher/``). Every backend that is not pure Python calls such a library.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator

from ..core.arch import CPU_LEVELS, CudaArch
from ..core.errors import KernelwrightError, Where
from ..core.signature import SPREAD_CLUSTERS, DeviceKernel, Structure
from ..runtime.tables import DeviceTable
from .c_text import c_string
from .description import description_of
from .forms import Forms, block_text
from .images import image_symbol
from .own_code import own_symbol
from .plan import KernelPlan, LoweredUnit, VariantPlan
from .signature_tables import signature_tables

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
    SPREAD_CLUSTERS: "spread",
}

_DEVICES = {"llvm": "kDLCPU", "cuda": "kDLCUDA"}

_PARAMETER_LETTERS = {"handle": "p", "bool": "i", "float64": "d", "float32": "f", "float16": "h", "tensor_map": "t"}


def wrapper_text(kernel: KernelPlan) -> str:
    """The text of wrapper.c.

    Arguments:
        kernel: a plan that was checked; paths in it are relative to the folder in which the compiler runs.

    Raises:
        KernelwrightError: the kernel cannot be called from C.
    """
    return _Wrapper(kernel).text()


class _Wrapper:
    """The text of one wrapper.c."""

    def __init__(self, kernel: KernelPlan) -> None:
        self._kernel = kernel
        self._lines: list[str] = []
        self._signatures: dict[str, int] = {}
        self._relations = kernel.relations()
        self._competing = {kernel.variants[number].slug for number in self._relations.competing}
        self._forms = Forms(kernel) if kernel.recorded else None
        self._split = kernel.split and any(unit.images and not unit.exported for unit in kernel.units)

    def text(self) -> str:
        self._head()
        self._line("", "/* What the lowerings expect of their arguments. */")
        for unit in self._kernel.units:
            self._signature(unit)
        for number, variant in enumerate(self._kernel.variants):
            self._line("", f"/* ---- variant {number}: {variant.slug} ---- */")
            self._cpu_units(number, variant.of("llvm"))
            self._cuda_units(number, variant.of("cuda"))
        if self._kernel.tables:
            self._tables()
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
            remedy = "pass some of them in one array"
            raise KernelwrightError(f"it has more than {MAX_ARGUMENTS} arguments", units[0].where, remedy)
        self._line(
            f"/* The library of kernel {self._kernel.name}: its tables and, below them, its FFI functions.",
            " * Written by Kernelwright. The launcher's headers have the mechanism. */",
            *(["#define KW_LLVM"] if any(unit.target == "llvm" for unit in units) else []),
            '#include "kernelwright.h"',
        )

    def _tail(self) -> None:
        kernel = self._kernel
        first = kernel.units[0]
        self._line("", "/* ---- the kernel ---- */", "static const kw_variant kw_variants[] = {")
        for number, variant in enumerate(kernel.variants):
            self._line(f"  {self._variant(number, variant)},")
        outline = ", ".join(f"[{a.name}]" if a.output else a.name for a in first.arguments)
        last_inputs = (a.name in kernel.optional for a in reversed(first.arguments) if not a.output)
        num_optional = sum(1 for _ in itertools.takewhile(bool, last_inputs))
        positions = [next(i for i, a in enumerate(first.arguments) if a.name == name) for name in kernel.outputs]
        returned = positions if positions != sorted(positions) else []
        dims = [sum(len(a.shape) for a in unit.arguments if a.output) for unit in kernel.units]
        folds = [kernel.folds.get(a.name) for a in first.arguments]
        rows = (f"{{{c_string(fold[0])}, {fold[1]}}}" if fold else "{0}" for fold in folds)
        has_strides = any(argument.strides for unit in kernel.units for argument in unit.arguments)
        kind = "_GRIDDED" if kernel.recorded else "_OPAQUE" if kernel.opaque else ""
        toolkit = kernel.toolkit if any(unit.images for unit in kernel.units) else 0
        self._line(
            "};",
            *(["static _Atomic(TVMFFIObjectHandle) kw_provider;"] if self._split else []),
            *(["static _Atomic(int32_t) kw_last;"] if kernel.recorded else []),
            *([f"static const int32_t kw_returned[] = {{{', '.join(map(str, returned))}}};"] if returned else []),
            *([f"static const kw_fold kw_folds[] = {{{', '.join(rows)}}};"] if any(folds) else []),
            "static const kw_kernel kw_this = {",
            f"  .name = {c_string(kernel.name)},",
            f"  .outline = {c_string(outline)},",
            f"  .built = {c_string(_built(kernel))},",
            f"  .arguments = kw_arguments_{self._number(first)},",
            f"  .num_arguments = {len(first.arguments)},",
            f"  .num_outputs = {len(kernel.outputs)},",
            *([f"  .num_optional = {num_optional},"] if num_optional else []),
            *(["  .returned = kw_returned,"] if returned else []),
            f"  .num_dims = {max(dims)},",
            *([f"  .toolkit = {toolkit},"] if toolkit else []),
            *([f"  .driver = {kernel.driver},"] if kernel.driver else []),
            "  .variants = kw_variants,",
            f"  .num_variants = {len(kernel.variants)},",
            *([f"  .num_declared = {kernel.declared},"] if kernel.declared is not None else []),
            *(["  .tuning = &kw_tuning_tables,"] if kernel.tables else []),
            *(["  .provider = &kw_provider,"] if self._split else []),
            *(["  .last = &kw_last,"] if kernel.recorded else []),
            *(["  .by_strides = true,"] if has_strides and kernel.num_declared > 1 else []),
            *(["  .folds = kw_folds,"] if any(folds) else []),
            *([f"  .num_folded = {sum(fold[1] + 1 for fold in folds if fold)},"] if any(folds) else []),
            *([f"  .gaps = {c_string(kernel.gaps)},"] if kernel.gaps else []),
            "};",
            f"static const char kw_description[] __attribute__((used)) = {c_string(description_of(kernel))};",
            "",
            '#include "exports.h"',
            f"KW_EXPORT{kind}_KERNEL({kernel.name})",
            *(f"KW_EXPORT{kind}_VARIANT({kernel.name}, {number})" for number in range(len(kernel.variants))),
            *(["KW_EXPORT_PROVIDER"] if self._split else []),
        )

    def _variant(self, number: int, variant: VariantPlan) -> str:
        fields = [f".slug = {c_string(variant.slug)}"]
        if cpu := variant.of("llvm"):
            fields += [f".cpu_signature = &kw_signature_{self._number(cpu[0])}", f".cpu_units = kw_cpu_units_{number}"]
            fields += [f".num_cpu_units = {len(cpu)}"]
        if cuda := variant.of("cuda"):
            fields += [f".cuda_signature = &kw_signature_{self._number(cuda[0])}"]
            has_entry = len(cuda) == 1 and not cuda[0].recorded
            fields += [f".cuda_entry = {cuda[0].entry}"] if has_entry else []
            fields += [f".form = &kw_form_{number}"] if cuda[0].recorded else []
            fields += [f".module = &kw_module_{number}"]
            fields += [f".own = {own_symbol(cuda[0].exported, cuda[0].own_library)}"] if cuda[0].exported else []
        if rivals := self._relations.rivals[number]:
            fields += [f".rivals = (const int32_t[]){{{', '.join(map(str, [*rivals, -1]))}}}"]
        if variant.tabled:
            fields += [f".tabled = {' | '.join(f'1u << {_DEVICES[target]}' for target in variant.tabled)}"]
        return "{" + ", ".join(fields) + "}"

    # ---- tuning tables

    def _tables(self) -> None:
        kernel = self._kernel
        self._line("", "/* ---- tuning tables ---- */")
        for number, table in enumerate(kernel.usable_tables):
            rows = [self._rules(f"{number}_{declared}", table, declared) for declared in range(kernel.num_declared)]
            self._line(f"static const kw_rules kw_rules_{number}[] = {{", *(f"  {row}," for row in rows), "};")
        self._line("static const kw_table kw_tables[] = {")
        for number, table in enumerate(kernel.usable_tables):
            self._line(f"  {_table(number, table)},")
        self._line(
            "};",
            f"static const kw_table *_Atomic kw_tables_found[KW_TABLE_PLACES * {kernel.num_declared}];",
            f"static const kw_tuning kw_tuning_tables = {{kw_tables, {len(kernel.tables)}, kw_tables_found}};",
        )

    def _rules(self, name: str, table: DeviceTable, declared: int) -> str:
        """Write the tables of what takes the place of a declared variant; return the row of its rules."""
        rules, units = table.rules.get(declared), self._kernel.variants[declared].of(table.target)
        if rules is None or not units:
            return "{0}"
        places = units[0].symbol_places()
        size_places = [places[symbol] for symbol in rules.by]
        sizes = [f"{{{at}, {-1 if axis is None else axis}, {times}, {plus}}}" for at, axis, times, plus in size_places]
        if sizes:
            self._line(f"static const kw_size kw_sizes_{name}[] = {{{', '.join(sizes)}}};")
        self._line(f"static const kw_range kw_ranges_{name}[] = {{")
        for upto, variant in rules.ranges:
            self._line(f"  {{{'INT64_MAX' if upto is None else upto}, {variant}}},")
        self._line("};")
        fields = [f".by = {c_string(' * '.join(rules.by))}", f".ranges = kw_ranges_{name}"]
        fields += [f".num_ranges = {len(rules.ranges)}"]
        fields += [f".sizes = kw_sizes_{name}", f".num_sizes = {len(sizes)}"] if sizes else []
        return "{" + ", ".join(fields) + "}"

    # ---- signatures

    def _number(self, unit: LoweredUnit) -> int:
        """The number of a lowering's signature. Lowerings whose signatures would have the same text share a number."""
        text = "\n".join(self._signature_of(0, unit))
        return self._signatures.setdefault(text, len(self._signatures))

    def _signature(self, unit: LoweredUnit) -> None:
        """Write the tables of a signature, unless equal ones have been written."""
        next_number = len(self._signatures)
        if self._number(unit) == next_number:
            self._line(*self._signature_of(next_number, unit))

    def _signature_of(self, number: int, unit: LoweredUnit) -> list[str]:
        return signature_tables(number, unit, bool(self._kernel.outputs), unit.slug in self._competing)

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
            self._line(f"  {{{c_string(unit.arch)}, {CPU_LEVELS[unit.arch]}, {unit.entry}}},")
        self._line("};")

    def _cuda_units(self, number: int, units: tuple[LoweredUnit, ...]) -> None:
        for unit in units:
            if not unit.images or not (unit.device_kernels or unit.exported):
                raise KernelwrightError("its cuda lowering has no device code", unit.where)
            for arch in () if self._split or unit.exported else unit.images:
                self._line(f"KW_IMAGE({image_symbol(number, arch)});")
        if len(units) == 1:
            self._line(f"static const kw_image kw_images_{number}[] = {{", *self._images(number, units[0]), "};")
            self._cuda_unit(str(number), f"kw_images_{number}", units[0])
        elif units:
            self._cuda_sources(number, units)
        if self._forms and units:
            self._line(*self._forms.lines(number, units[0]))

    def _cuda_sources(self, number: int, units: tuple[LoweredUnit, ...]) -> None:
        """Write a module for each source of a variant, and one to choose among the images of all."""
        images, rows = f"kw_images_{number}", list[str]()
        self._line(f"static const kw_image {images}[{sum(len(unit.images) for unit in units)}];")
        for unit in units:
            self._line("", f"/* for {', '.join(unit.images)} */")
            self._cuda_unit(f"{number}_{unit.arch}", f"{images} + {len(rows)}", unit)
            entry = "" if unit.recorded else f", .entry = {unit.entry}"
            source = f", .source = &kw_module_{number}_{unit.arch}{entry}}},"
            rows += [row.removesuffix("},") + source for row in self._images(number, unit)]
        self._line("", f"static const kw_image {images}[] = {{", *rows, "};")
        self._line(f"static struct kw_loaded *_Atomic kw_loaded_{number}[KW_MAX_DEVICES];")
        fields = [f".variant = {c_string(units[0].slug)}", f".images = {images}", f".num_images = {len(rows)}"]
        fields += [f".loaded = kw_loaded_{number}"]
        self._line(f"static const kw_module kw_module_{number} = {{{', '.join(fields)}}};")

    def _cuda_unit(self, number: str, images: str, unit: LoweredUnit) -> None:
        """Write the module of a source, and include its host code.

        Arguments:
            number: what the names of its tables end with.
            images: where its images are.
        """
        self._line(f"static const kw_module kw_module_{number};")
        for index, device in enumerate(unit.device_kernels):
            slots = ", ".join(_slots(device, unit.where)) or "0"
            self._line(f"static const uint8_t kw_slots_{number}_{index}[] = {{{slots}}};")
        self._line(f"static const kw_function kw_functions_{number}[] = {{")
        for index, device in enumerate(unit.device_kernels):
            self._line(f"  {_function(device, number, index, unit.where)},")
        self._line(
            "};",
            f"static struct kw_loaded *_Atomic kw_loaded_{number}[KW_MAX_DEVICES];",
            f"static void *kw_libraries_{number}[{len(unit.images)}];",
            *([f"static const kw_block kw_block_{number} = {block_text(unit.recorded)};"] if unit.recorded else []),
            f"static const kw_module kw_module_{number} = {{",
            *([f"  .block = &kw_block_{number},"] if unit.recorded else []),
            f"  .variant = {c_string(unit.slug)},",
            f"  .images = {images},",
            f"  .num_images = {len(unit.images)},",
            f"  .loaded = kw_loaded_{number},",
            f"  .libraries = kw_libraries_{number},",
            f"  .functions = kw_functions_{number},",
            f"  .num_functions = {len(unit.device_kernels)},",
            "};",
        )
        self._host_code(number, unit)
        if unit.exported:
            self._line(f"int32_t {own_symbol(unit.exported, unit.own_library)}(void *, void *, int32_t, void *);")

    def _images(self, number: int, unit: LoweredUnit) -> Iterator[str]:
        """The rows of the images of a lowering."""
        for arch, path in unit.images.items():
            embedded = "KW_IN_OBJECTS" if unit.exported else image_symbol(number, arch)
            place = f".file = {c_string(path)}" if self._split and not unit.exported else f".data = {embedded}"
            name = f", .symbol = {c_string(unit.names[arch])}" if unit.names else ""
            driver = self._kernel.driver_of(arch)
            yield f"  {_image(arch, driver, place + name, unit.where)},"

    def _host_code(self, number: str, unit: LoweredUnit) -> None:
        """Include host.c. Its calls go to the launcher, and its globals are renamed: every host.c has the same."""
        module = f"&kw_module_{number}"
        macros = {
            "TVMFFIEnvModLookupFromImports(context, ...)": f"kw_cuda_lookup({module}, __VA_ARGS__)",
            "TVMFFIFunctionCall(handle, ...)": f"kw_cuda_call({module}, handle, __VA_ARGS__)",
            "__tvm_ffi__library_ctx": f"kw_context_{number}",
            "__tvm_ffi_main": f"kw_main_{number}",
            "__tvm_set_device_packed": f"kw_set_device_{number}",
            "kw_count_blocks_packed": f"kw_count_blocks_{number}",
            "kw_occupancy": f"kw_occupancy_{number}",
        }
        for index, device in enumerate(unit.device_kernels):
            macros[f"{device.name}_packed"] = f"kw_packed_{number}_{index}"
        if unit.has_tensor_maps:
            macros["runtime_cuTensorMapEncodeTiled_packed"] = f"kw_encode_{number}"
        self._line(f"KW_OCCUPANCY(kw_occupancy_{number}, {module})")
        self._line(*(f"#define {name} {value}" for name, value in macros.items()), "KW_HOST_BEGIN")
        self._line(f"#include {c_string(unit.host)}", "KW_HOST_END")
        self._line(*(f"#undef {name.partition('(')[0]}" for name in macros))


def _built(kernel: KernelPlan) -> str:
    """The targets and archs that a kernel was built for, as messages list them."""
    archs: dict[str, dict[str, None]] = {}
    for unit in kernel.units:
        for arch in unit.images or [unit.arch]:
            archs.setdefault(unit.target, {})[arch] = None
    return ", ".join(f"{target} ({', '.join(names)})" for target, names in archs.items())


def _table(number: int, table: DeviceTable) -> str:
    fields = [f".device = {_DEVICES[table.target]}", f".arch = {c_string(table.arch)}"]
    fields += [f".name = {c_string(table.name)}", f".count = {table.count}", f".rules = kw_rules_{number}"]
    return "{" + ", ".join(fields) + "}"


def _image(arch: str, driver: int, place: str, where: Where) -> str:
    """The row of an image; ``place`` is the field that says where it is."""
    cuda_arch = CudaArch.of(arch)
    if not cuda_arch:
        raise KernelwrightError(f"unknown CUDA arch {arch!r}", where, "write it like sm_80, sm_90a or compute_80")
    fields = [f".arch = {c_string(arch)}", f".capability = {cuda_arch.number}"]
    fields += [".ptx = true"] if cuda_arch.is_ptx else []
    fields += [f".suffix = '{cuda_arch.suffix}'"] if cuda_arch.suffix else []
    fields += [f".driver = {driver}"] if driver else []
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


def _function(device: DeviceKernel, number: str, index: int, where: Where) -> str:
    letters = "".join(_parameter(dtype, device, where) for dtype in device.params)
    fields = [
        f".name = {c_string(device.symbol or device.name)}",
        f".module = &kw_module_{number}",
        f".parameters = {c_string(letters)}",
    ]
    fields += [f".num_parameters = {len(letters)}", f".slots = kw_slots_{number}_{index}"]
    fields += [f".num_slots = {len(_slots(device, where))}"]
    fields += [".clusters = true"] if any(tag.startswith("clusterCtaIdx") for tag in device.launch) else []
    fields += [f".{flag} = true" for flag in sorted({_FLAGS[tag] for tag in device.launch if tag in _FLAGS})]
    if device.structures:
        listed = ", ".join(map(_structure, device.structures))
        fields += [f".structures = (const kw_structure[]){{{listed}}}", f".num_structures = {len(device.structures)}"]
    fields += [f".alias = {c_string(device.name)}"] if device.symbol not in ("", device.name) else []
    return "{" + ", ".join(fields) + "}"


def _structure(structure: Structure) -> str:
    places = ", ".join(f"{{{offset}, {size}}}" for offset, size in structure.places)
    first, count = structure.first, len(structure.places)
    return f"{{{first}, {count}, {structure.bytes}, (const kw_member[]){{{places}}}}}"


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
