"""An option of ``@kernel`` is declared in one place, and everything else follows from that."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from kernelwright.define.kernel_options import Declaration, declared_options
from support.project import SITE_SCONS

FIELD = """
    stages: int = _option(1, "number", "How many stages it has.", lambda name, value, where: int(value), "`1`")
"""
USE = """
import runpy
from dataclasses import fields

from kernelwright import KernelwrightError, kernel
from kernelwright.core.converter import from_json, shape, to_json
from kernelwright.core.request import digest
from kernelwright.define.record import KernelRecord, record_of
from kernelwright.frontends import targets_of


def record(**options):
    @kernel(outputs=["y"], **options)
    def copy():
        pass

    @copy.backward(outputs=["grad_x"])
    def _():
        pass

    return [record_of(each, targets_of(each), "k.py:1", each.sizes_of) for each in (copy, copy.backward_kernel)]


plain, backward = record()
staged, _ = record(stages="3")
assert (plain.options.stages, staged.options.stages, backward.options.stages) == (1, 3, 1)
assert digest(plain) != digest(staged)
assert from_json(KernelRecord, to_json(staged)) == staged != plain
table = runpy.run_path("{docs}")["tables"]()["reference-definitions.md"]["arguments"]
assert "| `stages` | number | `1` | How many stages it has. |" in table
try:
    record(stagse=3)
except KernelwrightError as error:
    print(error)
print(shape(KernelRecord))
"""


def test_an_option_is_one_field(tmp_path: Path) -> None:
    shutil.copytree(
        SITE_SCONS / "kernelwright", tmp_path / "kernelwright", ignore=shutil.ignore_patterns("__pycache__")
    )
    module = tmp_path / "kernelwright/define/kernel_options.py"
    before, first, after = module.read_text().partition("    targets: Sequence[str] | None = _option(")
    docs = SITE_SCONS.parent / "docs/tables.py"

    def run() -> subprocess.CompletedProcess[str]:
        program = USE.replace("{docs}", str(docs))
        command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n{program}"]
        return subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)

    assert "@kernel has no argument 'stages'" in run().stderr
    module.write_text(before + FIELD + first + after)
    done = run()
    assert not done.stderr
    assert "@kernel has no argument 'stagse'" in done.stdout and "did you mean 'stages'?" in done.stdout


def test_every_option_says_what_it_is() -> None:
    for name, option in declared_options(Declaration).items():
        assert option.word and option.help.endswith((".", ")")) and option.default, name
