"""What device code says of its function: its name in PTX (tests/emulated reads those of cubins), and its threads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kernelwright.core.entry_name import asked_alignments, entry_name, thread_bounds
from kernelwright.toolchain.nvcc import find_nvcc

VARIABLE = ".global .align 8 .u64 kw_entry = {};\n"


def name_in(folder: Path, text: str) -> str:
    (folder / "compute_80.ptx").write_text(text)
    return entry_name(folder / "compute_80.ptx")


@pytest.mark.parametrize("name", ["sum", "_Z3sumIfEvPKT_", "sum$1"])
def test_a_kernel_is_told_by_what_the_variable_points_to(tmp_path: Path, name: str) -> None:
    ptx = f".visible .entry other()\n.visible .entry {name}(\n) {{ ret; }}\n"
    assert name_in(tmp_path, ptx + VARIABLE.format(name)) == name
    assert name_in(tmp_path, ptx + VARIABLE.format(f"generic({name})")) == name


@pytest.mark.parametrize(
    "ptx",
    [
        ".visible .entry sum()\n",
        ".func sum()\n" + VARIABLE.format("sum"),
        ".func sum()\n.visible .entry sum2()\n.visible .entry sum$()\n" + VARIABLE.format("sum"),
    ],
)
def test_a_variable_that_points_to_no_kernel_is_an_error(tmp_path: Path, ptx: str) -> None:
    with pytest.raises(ValueError, match=r"compute_80\.ptx has no kw_entry that points to a __global__ function"):
        name_in(tmp_path, ptx)


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("[3] = {4, 0, 2}", [16, 1, 4]),
        ("[3] = {4}", [16, 1, 1]),  # zeros at the end are not written
        ("[2]", [1, 1]),
        (" = 3", [8]),
    ],
)
def test_each_argument_has_the_alignment_that_its_type_asks_for(tmp_path, said, expected):
    (tmp_path / "compute_80.ptx").write_text(f".visible .global .align 1 .b8 kw_alignments{said};\n")
    assert asked_alignments(tmp_path / "compute_80.ptx") == expected


BOUNDED = """
.version 8.0
.target sm_80
.address_size 64
.visible .entry free() {{ ret; }}
.visible .entry bounded() {directive} {{ ret; }}
"""


@pytest.mark.parametrize(
    ("directive", "bounds"), [(".maxntid 64, 2, 1", (128, False)), (".reqntid 32, 4, 2", (256, True)), ("", None)]
)
def test_the_threads_of_a_block_are_the_same_in_ptx_and_in_a_cubin(tmp_path, directive, bounds):
    ptx, cubin = tmp_path / "compute_80.ptx", tmp_path / "sm_80.cubin"
    ptx.write_text(BOUNDED.format(directive=directive))
    ptxas = Path(find_nvcc("", {})).with_name("ptxas")
    subprocess.run([ptxas, "-arch=sm_80", ptx, "-o", cubin], check=True)
    for image in (ptx, cubin):
        assert (thread_bounds(image, "bounded"), thread_bounds(image, "free")) == (bounds, None)
