"""The functions in assembler, which a program calls on CPUs of each family."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from kernelwright.backends.operators import callers_text
from kernelwright.backends.own_code import driver_text, functions_text
from kernelwright.core.arch import FAMILIES
from support.arm import CROSS, NO_CROSS, QEMU

PROGRAM = r"""
#include <stdio.h>
#include <string.h>

static int lookups;

static long weighted(long a, long b, long c, long d, long e, long f, long g, long h, long i, long j, long k) {
  return a + 2 * b + 3 * c + 4 * d + 5 * e + 6 * f + 7 * g + 8 * h + 9 * i + 10 * j + 11 * k;
}
void *kw_driver_function(const char *name) {
  char text[64];
  snprintf(text, sizeof text, "%s %d %d %d %d %d %d %d", name, 1, 2, 3, 4, 5, 6, 7); /* it uses all registers */
  ++lookups;
  return strcmp(text, "cuWeighted 1 2 3 4 5 6 7") ? NULL : (void *)weighted;
}
extern long cuWeighted(long, long, long, long, long, long, long, long, long, long, long);

int __tvm_ffi_twice(int x) { return 2 * x; }
extern int kw_own_0_twice(int);

int kw_call_operator(int a, int b, int c, int d, const char *name) {
  return strcmp(name, "norm") ? 0 : 1000 * a + 100 * b + 10 * c + d;
}
extern int call_norm(int, int, int, int);

int main(void) {
  long first = cuWeighted(1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1), again = cuWeighted(0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1);
  printf("%ld %ld %d %d %d\n", first, again, lookups, kw_own_0_twice(21), call_norm(1, 2, 3, 4));
}
"""


@pytest.mark.parametrize("family", FAMILIES)
def test_arguments_arrive_in_a_function_that_is_looked_for_once(tmp_path: Path, family: str) -> None:
    native = family == os.uname().machine
    if not native and (CROSS is None or QEMU is None or family != "aarch64"):
        pytest.skip(f"{NO_CROSS}, and qemu-user")
    text = driver_text(["cuWeighted"], family) + callers_text({"norm": "call_norm"}, family)
    (tmp_path / "made.s").write_text(text + functions_text(["twice"], "demo-0", family))
    (tmp_path / "program.c").write_text(PROGRAM)
    compiler = shutil.which("cc") if native else CROSS
    command = [str(compiler), "-O1", "-static", "program.c", "made.s", "-o", "program"]
    subprocess.run(command, cwd=tmp_path, check=True)
    run = [*([] if native else [str(QEMU)]), "./program"]
    assert subprocess.run(run, cwd=tmp_path, check=True, capture_output=True, text=True).stdout == "66 19 1 42 1234\n"
