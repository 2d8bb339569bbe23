"""What ``kernelwright import`` writes is built as it is, with the real compilers."""

from __future__ import annotations

from pathlib import Path

import pytest
from kernelwright.cli import main
from support.imported_source import HEADER, KERNELS, SOURCE
from support.kernel_builder import BUILD, kernel_builder_project
from support.operators import ready
from support.project import Project
from support.standin_calls import call, make_standin


def test_the_definitions_of_a_source_are_built_as_they_are(project: Project) -> None:
    pytest.importorskip("clang.cindex", reason="libclang is not installed")
    for name in ("scale", "add_one"):
        (project.folder / f"kernels/{name}.py").unlink()
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80"]\n')
    project.write("kernels/twice.cuh", HEADER)
    source = project.write("kernels/many.cu", SOURCE)
    assert main(["import", str(source)]) == 0
    run = project.scons("-j2")
    assert run.labels["LOWER"] == run.labels["CUBIN"] == len(KERNELS)
    manifest = project.manifest
    assert sorted(manifest["kernels"]) == sorted(KERNELS)


CALL = """
import numpy as np
x, out = np.arange(4, dtype=np.float32), np.zeros(4, np.float32)
def there(array):
    return on_cuda(4, data=array.ctypes.data)
demo.add(there(out), there(x), None, 3.0)
print(out.tolist())
demo.add(there(out), there(x), there(x))
print(out.tolist(), message_of(demo.add, there(out), there(x)))
"""


def test_a_project_of_kernel_builder_is_built_and_called_as_it_is(tmp_path: Path) -> None:
    """The operator works on the CPU, in memory of the test's that is passed as if a device had it."""
    pytest.importorskip("torch")
    project = Project.of(tmp_path / "project", '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80"]\n')
    assert main(["import", str(kernel_builder_project(project.folder / "kernels"))]) == 0
    project.scons("-j2")
    make_standin(project)
    printed, _ = call(project, CALL, capability=80)
    assert printed.splitlines()[0] == "[0.0, 6.0, 12.0, 18.0]"
    assert printed.splitlines()[1].startswith("[1.0, 3.0, 5.0, 7.0] TypeError: operator add: argument bias is missing")


OF_TORCH = """\
#include <torch/csrc/stable/library.h>
#include "registration.h"

// The header that has the macros takes the compiler six seconds.
#define TORCH_LIBRARY STABLE_TORCH_LIBRARY
#define TORCH_LIBRARY_IMPL STABLE_TORCH_LIBRARY_IMPL

using torch::stable::Tensor;
extern const int64_t scale;

static int64_t count(const Tensor& x) { return x.numel() * scale; }

TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) { ops.def("count(Tensor x) -> int"); }
TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CPU, ops) { ops.impl("count", TORCH_BOX(&count)); }
REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""


def test_a_project_with_operators_of_pytorch_is_built_and_called_as_it_is(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    ready()
    project = Project.of(tmp_path / "project", '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80"]\n')
    build = BUILD.replace('[torch.stable-abi]\ncuda = "2.10"\n', "")
    assert main(["import", str(kernel_builder_project(project.folder / "kernels", build, OF_TORCH))]) == 0
    project.write("kernels/add/add.cpp", "extern const long scale = SCALE;\n")
    project.scons("-j2")
    code = "import torch\nfrom demo import ops\nx = torch.ones(2)\nprint(ops.count(x), torch.ops.two_ops.count(x))"
    assert project.python(code).strip() == "4 4"
