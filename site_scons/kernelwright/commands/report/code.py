"""The sections of the report about the packages: kernels, device functions and their resources, CPU code."""

from __future__ import annotations

from html import escape

from ...core.quantity import in_words, plural
from .data import DeviceCode, KernelEntry, PackageEntry
from .markup import MISSING, Column, arch_cell, name_cell, number_cell, prose_cell, table, text_cell


def package_sections(package: PackageEntry) -> str:
    """The sections of one package."""
    return "\n".join(part for part in (_kernels(package), _device(package), _host(package)) if part)


def _kernels(package: PackageEntry) -> str:
    columns = [
        Column("Kernel"),
        Column("Description"),
        Column("Variants", True),
        Column("Archs"),
        Column("Library", True, "size of the shared library with all variants and archs"),
    ]
    rows = [_kernel_row(kernel) for kernel in package.kernels]
    tools = ", ".join(f"{name} {version}" for name, version in package.tools)
    variants = sum(kernel.variants for kernel in package.kernels)
    counts = f"{plural(len(package.kernels), 'kernel')}, {plural(variants, 'variant')}. Built with {tools}."
    return _section(f"Package {package.name}", counts, table("Kernels", columns, rows))


def _kernel_row(kernel: KernelEntry) -> list[str]:
    return [
        name_cell(kernel.name),
        prose_cell(kernel.doc),
        number_cell(kernel.variants),
        name_cell(" ".join(kernel.archs)),
        number_cell(kernel.library, in_words(kernel.library)),
    ]


def _device(package: PackageEntry) -> str:
    if not package.device:
        return ""
    columns = [
        Column("Kernel"),
        Column("Variant"),
        Column("Arch"),
        Column("Function"),
        Column("Registers", True, "per thread"),
        Column("Spill stores", True, "bytes per thread"),
        Column("Spill loads", True, "bytes per thread"),
        Column("Shared", True, "bytes of static shared memory per block"),
        Column("Stack", True, "bytes per thread"),
        Column("File", True, "bytes of the cubin that the function is in, or of the PTX"),
    ]
    functions = [code.usage for code in package.device if code.usage]
    spilling = sum(usage.spills for usage in functions)
    found = f"{spilling:,} of {plural(len(functions), 'device function')} {'spills' if spilling == 1 else 'spill'}"
    note = f"{found} registers to memory. Registers, spills and stack are per thread; sizes in bytes."
    rows = [_device_row(code) for code in package.device]
    return _section(f"Device code of {package.name}", note, _filter(spills=True), table("Device code", columns, rows))


def _device_row(code: DeviceCode) -> list[str]:
    names = [name_cell(code.kernel), name_cell(code.variant), arch_cell(code.arch)]
    if code.usage is None:
        return [*names, text_cell("PTX", "compiled by the driver", "missing"), *[MISSING] * 5, number_cell(code.size)]
    used = code.usage
    spills = [
        number_cell(value, kind="bad" if value else "zero") for value in (used.spill_store_bytes, used.spill_load_bytes)
    ]
    rest = [number_cell(value, kind="" if value else "zero") for value in (used.shared_bytes, used.stack_bytes)]
    return [*names, name_cell(code.function or ""), number_cell(used.registers), *spills, *rest, number_cell(code.size)]


def _host(package: PackageEntry) -> str:
    if not package.host:
        return ""
    columns = [
        Column("Kernel"),
        Column("Variant"),
        Column("Arch"),
        Column("Object", True, "bytes of the object file"),
    ]
    rows = [
        [name_cell(code.kernel), name_cell(code.variant), arch_cell(code.arch), number_cell(code.size)]
        for code in package.host
    ]
    note = "Sizes of the object files in bytes."
    return _section(f"CPU code of {package.name}", note, _filter(spills=False), table("CPU code", columns, rows))


def _filter(*, spills: bool) -> str:
    """The controls above a table; the script shows them."""
    only = '<label><input type="checkbox" class="spills"> only what spills</label>' if spills else ""
    search = '<label>Filter <input type="search" class="filter" placeholder="gemm sm_90a" autocomplete="off"></label>'
    return f'<div class="controls" hidden><div>{search}{only}</div><output></output></div>'


def _section(heading: str, note: str, *parts: str) -> str:
    head = f'<h2>{escape(heading)}</h2>\n<p class="note">{escape(note)}</p>'
    return "\n".join(['<section class="code">', head, *parts, "</section>"])
