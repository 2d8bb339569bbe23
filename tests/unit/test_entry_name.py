"""The name of a source's function, as PTX has it; those of cubins are read in tests/emulated, where they are made."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelwright.core.entry_name import entry_name

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
