"""What compile on demand says to people who are new to it: each message tells what was wrong, and what helps here."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from support.forked import starter
from support.project import CALLING, Project

PROGRAM = """
import numpy as np
import kernelwright as kw
from tvm import te

def declare():
    @kw.kernel(configs=[{{"dtype": "float32"}}, {{"dtype": "float64"}}], outputs=[-1])
    def double(dtype):
        x = te.placeholder((te.var("n"),), dtype, name="x")
        return te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] + x[i], name="y")])
    return double

double = declare()
try:
    print({line})
except Exception as error:
    print(f"{{type(error).__name__}}: {{error}}")
"""


def said(folder: Path, line: str) -> str:
    """What a line of Python prints in a script, or the error that it ends with."""
    known = {name: value for name, value in os.environ.items() if not name.startswith("KERNELWRIGHT_")}
    environment = {**known, "CUDA_VISIBLE_DEVICES": "", "PATH": f"{Project.shared}/bin:{os.environ['PATH']}"}
    done = starter(*CALLING, "tvm", "tvm.te").run(
        PROGRAM.format(line=line), env=environment, path=[""], cwd=folder, merged=True
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize(
    ("line", "text"),
    [
        (
            "double(np.ones(2, 'int8'))",
            "TypeError: kernel 'double': no listed config fits these arguments\n"
            "  passed: x = int8[2] on cpu\n"
            "  dtype-float32 expects: x = float32[n]\n"
            "  dtype-float64 expects: x = float64[n]\n"
            "  remedy: convert the arguments, add a config for them to the definition, or have @double.bind name one",
        ),
        ("double", "<kernel double of <string>:7>"),
        ("double.compile(size=1)", "config key 'size' is not a parameter of the definition (its parameters: dtype)"),
        ("double.par_compile([1])", "double [lower]: config 1 is not a dict\n  remedy: "),
        ("double.using(targets_='x')", "the options are target, archs, backend,"),
        ("kw.compile(double)", "<kernel double of <string>:7> is no PrimFunc and no IRModule"),
        (
            "double.compile().source('cuda')",
            "there is no cuda of code for the CPU\n  remedy: compile it for CUDA: using(",
        ),
        ("kw.load('nothing.py')", "/nothing.py does not exist\n  remedy: name a definition file"),
        ("kw.load('/dev/null')", "/dev/null is no file\n  remedy: name a definition file"),
        (
            "[__import__('copy').deepcopy([double, [double.using()]]), double(x=np.ones(2, 'float32')).shape]",
            "[[<kernel double of <string>:7>, [<kernel double of <string>:7>]], (2,)]",
        ),
        ("kw.load('.')", " is a folder\n  remedy: name a definition file"),
        (
            "double.using(target='cuda').compile()",
            "double is to be compiled for CUDA only, this machine has no CUDA device, and no arch was given\n"
            "  remedy: name the archs to compile for: archs=['sm_90a'], or KERNELWRIGHT_ARCHS=sm_90a",
        ),
        (
            "[__import__('sys').modules.update(Cython=None), double.using(backend='cython').compile()]",
            "ToolchainError: [settings]: the backend cython needs cython where kernels are built\n"
            "  remedy: pip install 'cython>=3.1', or take cython out of backends\n",
        ),
    ],
)
def test_a_mistake_is_told_in_words_that_help(tmp_path: Path, line: str, text: str) -> None:
    (tmp_path / ".git").mkdir()
    assert text in said(tmp_path, line)


def test_a_program_belongs_to_the_project_in_which_it_is_compiled(cpu_project: Project) -> None:
    (cpu_project.folder / ".git").mkdir()
    printed = said(cpu_project.folder, "kw.compile(double.function('float32'), outputs=[-1]).artifacts")
    folder = re.escape(str(cpu_project.folder / ".cache/kernelwright/kernels"))
    assert re.fullmatch(rf"{folder}/\w+-\w+-\w+/\w+\n", printed)


def test_a_definition_that_moves_to_another_line_is_not_compiled_again(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()
    source = PROGRAM.partition("double = declare()")[0].replace("{{", "{").replace("}}", "}")
    moved = f"[double.compile().cached, exec({chr(10) + source!r}, globals()), declare().compile().cached]"
    assert said(tmp_path, moved) == "[False, None, True]\n"
