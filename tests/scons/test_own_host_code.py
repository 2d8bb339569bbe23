"""Sources with host code of their own: built without a GPU, and called as far as their own checks go."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernelwright.package.device_code import device_archs
from kernelwright.toolchain.nvcc import find_nvcc
from support.project import ROOT, SITE_SCONS, Project
from support.scripts import script
from support.standin_calls import call, make_standin

SETTINGS = '[tool.kernelwright]\ntargets = ["llvm", "cuda"]\narchs = ["x86-64-v3", "sm_80", "sm_90a"]\n'

OBJECTS = "build/kernels/demo/_objects"

DEVICE = """\
#include "factor.h"
namespace {
__device__ float factor = FACTOR;  // nvcc makes the name of this one, and of what follows
__global__ void scaled(const float *x, float *y, long long n) {
  long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i < n) y[i] = factor * x[i];
}
}  // namespace

int launch_scaled(const float *x, float *y, long long n, void *stream) {
  scaled<<<(n + 255) / 256, 256, 0, static_cast<cudaStream_t>(stream)>>>(x, y, n);
  return cudaGetLastError();
}
"""

HOST = """\
#include <tvm/ffi/container/tensor.h>
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/function.h>

namespace ffi = tvm::ffi;

int launch_scaled(const float *x, float *y, long long n, void *stream);

void scale(ffi::TensorView x, ffi::TensorView y, double most) {
  void *stream = TVMFFIEnvGetStream(x.device().device_type, x.device().device_id);
  TVM_FFI_CHECK(x.size(0) < most, ValueError)
      << "x has " << x.size(0) << " elements, expected less than " << most << " in stream " << stream;
  int status = launch_scaled(static_cast<float *>(x.data_ptr()), static_cast<float *>(y.data_ptr()), x.size(0), stream);
  TVM_FFI_CHECK(!status, RuntimeError) << "CUDA error " << status;
}

TVM_FFI_DLL_EXPORT_TYPED_FUNC(scale, scale);
"""

# By hand, because the headers for C++ take the compiler two seconds.
PLAIN = """\
#include <cuda.h>
#include <tvm/ffi/c_api.h>

#include <stdexcept>

int half_of(int number) {
  if (number % 2) throw std::invalid_argument("it is odd");
  int count = -1;
  return number ? number / 2 : cuDeviceGetCount(&count) ? -1 : count;
}

int nowhere(int number);
int uncalled(int number) { return nowhere(number); }  // it is dropped, so nobody needs that function

extern "C" __attribute__((visibility("default"))) int __tvm_ffi_halved(
    void *, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) try {
  static int asked = 0;
  if (count != 1) throw std::invalid_argument("it takes one number");
  if (arguments[0].type_index == kTVMFFIBool) {
    result->type_index = kTVMFFIBool;
    result->v_int64 = !asked++;
    return 0;
  }
  result->type_index = kTVMFFIInt;
  result->v_int64 = half_of(arguments[0].v_int64);
  return 0;
} catch (const std::exception &error) {
  TVMFFIErrorSetRaisedFromCStr("ValueError", error.what());
  return -1;
}
"""

PACKAGED = "#include <numpy/utils.h>\n" + PLAIN.replace("int half_of(", "int NPY_CAT(half, _of)(")
"""The same with a header of an installed package."""

DEFINITIONS = """\
from kernelwright import kernel
from kernelwright.cuda import Exported, Scalar, Tensor


@kernel(frontend="cuda", sources=["csrc/scale.cu", "csrc/scale.cc"], includes=["include"], outputs=["y"])
def scale():
    return Exported("scale", x=Tensor("float32", "n"), y=Tensor("float32", "n"), alpha=Scalar("float64"))


@kernel(
    frontend="cuda",
    sources=["csrc/packaged.cc"],
    includes=["package:numpy/_core/include"],
    backends=["tvm_ffi"],
)
def halved():
    return Exported("halved")


@kernel(
    frontend="cuda",
    sources=["csrc/packaged.cc"],
    includes=["package:numpy/_core/include"],
    flags=["--threads", "2"],
    backends=["tvm_ffi"],
)
def again():
    return Exported("halved")
"""


def new_project(folder: Path) -> Project:
    project = Project.of(folder, SETTINGS + 'backends = ["tvm_ffi", "cython", "torch", "jax"]\n', own=DEFINITIONS)
    project.write("kernels/include/factor.h", "#define FACTOR 3\n")
    for name, text in (("scale.cu", DEVICE), ("scale.cc", HOST), ("plain.cc", PLAIN), ("packaged.cc", PACKAGED)):
        project.write(f"kernels/csrc/{name}", text)
    return project


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = new_project(tmp_path_factory.mktemp("own_host_code"))
    run = project.scons("-j2")
    assert run.labels == {
        "CC": 3,
        "EXT": 1,
        "GLIBC": 1,
        "LAUNCHER": 1,
        "LINK": 3,
        "LOWER": 3,
        "OBJECT": 3,
        "PACKAGE": 1,
        "SOURCES": 2,  # halved and again have one: the number of threads decides nothing
        "WRAP": 5,
    }
    assert "as a whole" not in run.output
    make_standin(project)
    return project


@pytest.fixture(scope="module")
def edited(built: Project, tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A copy of the built project, which tests change."""
    return built.copied(tmp_path_factory.mktemp("edited") / "a copy")


def test_the_manifest_says_what_is_called_and_the_library_has_all_that_it_needs(built):
    manifest = built.manifest
    scale, halved = (manifest["kernels"][name] for name in ("scale", "halved"))
    assert (scale["frontend"], "opaque" in scale, halved["opaque"]) == ("cuda", False, True)
    (variant,) = scale["variants"]
    assert (variant["exported"], variant["archs"]) == ("scale", ["sm_80", "sm_90a"])
    (unit,) = variant["units"]
    for arch in variant["archs"]:
        ((name, used),) = unit["resources"][arch].items()
        assert "scaled" in name and used["registers"] > 0
    (library,) = scale["source_libraries"]
    assert library.startswith("_lib/csrc-scale.cu-")
    assert halved["source_libraries"] == manifest["kernels"]["again"]["source_libraries"] != [library]
    library = (built.folder / "build/demo" / library).read_bytes()
    assert set(device_archs(library)) == {"sm_80", "sm_90a"}
    assert not re.search(rb"libcudart|libstdc\+\+|libcuda\.so\.1\0.*NEEDED", library.partition(b".dynstr")[0][:4096])
    for private in (built.folder, SITE_SCONS.parent):
        assert str(private).encode() not in library


def test_calls_get_to_the_function_and_its_errors_back(built):
    code = """
print(demo.halved(True), demo.halved(True))  # it says whether it is the first time
print(demo.halved(6), demo.halved(0), demo.halved(0), message_of(demo.halved, 5), message_of(demo.halved), sep="|")
print(demo.again(8))
print(demo.halved.choice(1).reason, demo.halved.devices, demo.scale.devices)
x, y = on_cuda(3, data=0x100), on_cuda(3, data=0x200)
print(message_of(demo.scale, x, y, 2.0), message_of(demo.scale, x, 2.0), sep="|")
print(message_of(demo.scale, x, on_cuda(4), 9.0))
print(message_of(demo.scale, on_cuda(3, dtype=half), y, 9.0))
print(message_of(demo.scale, on_cuda(3, byte_offset=4), y, 9.0))
import numpy as np
print(message_of(demo.scale, np.ones(3, np.float32), 9.0))
"""
    printed, _ = call(built, code, capability=90)
    assert printed.startswith("True False\n3|2|2|ValueError: it is odd|ValueError: it takes one number\n4\n")
    assert "its arguments are not declared frozenset({'cuda'}) frozenset({'cuda'})" in printed
    own = "ValueError: Check failed: (x.size(0) < most) is false: x has 3 elements, expected less than 2 in stream 0"
    assert f"{own}|{own}" in printed
    assert "ValueError: kernel 'scale': Mismatched y.shape[0] on argument #1" in printed
    assert "TypeError: kernel 'scale': Mismatched x.dtype on argument #0" in printed
    assert "Invalid x.byte_offset on argument #0" in printed and "remedy: pass a tensor without an offset" in printed
    assert "it cannot run on cpu: it was built for cuda (sm_80, sm_90a) only" in printed
    without = built.python("import demo; print(demo.halved(0))", env={"KERNELWRIGHT_CUDA_DRIVER": "/nowhere"})
    assert without.strip() == "-1"
    code = "import demo.backends.torch as operators\noperators.scale.preload('cuda')"
    with pytest.raises(AssertionError, match=r"RuntimeError: kernel 'scale': .*driver"):
        built.python(code, env={"KERNELWRIGHT_CUDA_DRIVER": "/nowhere"})
    refused, _ = call(built, "print(message_of(demo.scale, on_cuda(3), 9.0))", capability=75)
    assert "cuda:0 is an sm_75, and variant default was built for sm_80, sm_90a" in refused
    code = "x = on_cuda(3, device=1)\nprint(message_of(demo.scale, x, x, 2.0))"
    _, log = call(built, code, capability=90)
    assert {line for line in log if line.startswith("push")} == {"push cuda:1"}


OTHER_BACKENDS = """
import ctypes
from demo.backends import cython
x, y = FakeTensor((3,), device=(2, 0), data=0x100), FakeTensor((3,), device=(2, 0), data=0x200)
print("cython", message_of(lambda: cython.scale(x, y, 2.0, stream=0x42)))
print("cython", message_of(cython.scale, x, FakeTensor((4,), device=(2, 0)), 9.0))

import torch
from demo.backends import torch as operators
print("torch", message_of(operators.scale, torch.ones(3), 9.0))
with torch._subclasses.fake_tensor.FakeTensorMode():
    made = operators.scale(torch.empty(3, device="cuda"), 9.0)
print("torch", made.device, list(made.shape))

import jax
import jax_tvm_ffi
registered = []
jax_tvm_ffi.register_ffi_target = lambda *given, **_: registered.append(given)
import demo.backends.jax as calls
program = jax.jit(lambda x: calls.scale(x, 9.0)).trace(jax.ShapeDtypeStruct((3,), "float32"))
print("jax", program.lower(lowering_platforms=("cuda",)).as_text())
((_, function, places, _),) = registered
made = jax_tvm_ffi._LIB.register_tvm_ffi_handler(function, places, 2, 0, False, False)
handler = ctypes.cast(made, ctypes.c_void_p)
xla = ctypes.CDLL("./xla.so").call_handler
xla.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int64]
print("xla", xla(handler, 0x999, 0x100, 0x200, 3), flush=True)
"""


def test_other_backends_call_the_function_in_their_stream(built):
    for name in ("Cython", "torch", "jax", "jax_tvm_ffi"):
        pytest.importorskip(name)
    import jax

    command = ["gcc", "-shared", "-fPIC", f"-I{jax.ffi.include_dir()}", str(ROOT / "tests/standin/xla.c")]
    subprocess.run([*command, "-o", str(built.folder / "xla.so")], check=True)
    printed, _ = call(built, OTHER_BACKENDS, capability=90)
    own = "Check failed: (x.size(0) < most) is false: x has 3 elements, expected less than"
    assert f"cython ValueError: {own} 2 in stream 0x42" in printed
    assert "cython ValueError: kernel 'scale': Mismatched y.shape[0] on argument #1" in printed
    assert "torch ValueError: kernel 'scale': it cannot run on cpu: it was built for cuda" in printed
    assert "torch cuda:0 [3]\n" in printed, "traced without a GPU"
    assert "stablehlo.custom_call @demo_0.scale(%arg0)" in printed
    assert f"{own} 1 in stream 0x999" in printed and "xla 1" in printed, "its error is one of XLA"


def test_an_edit_compiles_what_has_it_and_a_comment_links_nothing(edited):
    assert edited.scons().stages == []
    with (edited.folder / "kernels/include/factor.h").open("a") as file:
        file.write("// a comment\n")
    assert edited.scons().stages == ["OBJECT kernels/csrc/scale.cu"]
    edited.replace("kernels/csrc/packaged.cc", "it is odd", "it is not even")
    assert edited.scons().stages == [
        *("LINK again", "LINK halved", "OBJECT kernels/csrc/packaged.cc", "PACKAGE demo"),
        "SOURCES kernels/csrc/packaged.cc",
    ]


def test_a_header_that_the_definition_reads_counts_for_the_compiler_too(edited):
    project = edited.copied(edited.folder.parent / "reads a header")
    text = 'from pathlib import Path\nFACTOR = (Path(__file__).parent / "include/factor.h").read_text()\n' + DEFINITIONS
    project.write("kernels/own.py", text)
    project.scons("scale")
    project.write("kernels/include/factor.h", "#define FACTOR 5\n")
    assert "OBJECT kernels/csrc/scale.cu" in project.scons("scale").stages


def test_a_script_repeats_the_step_in_the_folder_of_the_project(built):
    (script,) = (built.folder / OBJECTS).glob("compile_csrc-scale.cu-*.sh")
    tools = os.environ | {"NVCC": "/bin/echo", "CC": "cc", "TVM_FFI": "ffi", "DLPACK": "dlpack"}
    text = script.read_text().replace('exec "$NVCC"', 'pwd\nexec "$NVCC"')
    printed = subprocess.check_output(["sh", "-s"], input=text, cwd=script.parent, env=tools, text=True)
    place, command = printed.splitlines()
    assert place == str(built.folder)
    assert (
        f"-I ffi -I dlpack -o {script.parent / script.stem.removeprefix('compile_')}.o kernels/csrc/scale.cu" in command
    )
    assert str(built.folder) not in text


def test_a_script_finds_the_headers_of_an_installed_package(edited):
    (script,) = (edited.folder / OBJECTS).glob("compile_csrc-packaged.cc-*.sh")
    made = script.parent / f"{script.stem.removeprefix('compile_')}.o"
    before, text = made.read_bytes(), script.read_text()
    assert "tool package:numpy/_core/include)}\n" in text and '-I "$PACKAGE_1"' in text
    made.unlink()
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    subprocess.run(["sh", script], check=True, env=os.environ | {"PATH": path})
    assert made.read_bytes() == before  # nvcc as a whole makes the same of a source without device code


BROKEN = {
    "misspelt": ('["csrc/plain.cc"]', 'Exported("halve")'),
    "broken": ('["csrc/broken.cc"]', 'Exported("halved")'),
    "lacking": ('["csrc/lacking.cc"]', 'Exported("halved")'),
    "elsewhere": ('["csrc/plain.cc"], backends=["cuda_core"]', 'Exported("halved", x=Tensor("float32", "n"))'),
    "unknown": ('["csrc/plain.cc"], backends=["cython"]', 'Exported("halved")'),
    "outside": ('["csrc/plain.cc"]', 'Exported("halved", n=3)'),
    "absent": ('["csrc/scaled.cu"]', 'Exported("halved")'),
    "astray": ('["csrc/plain.cc"], includes=["include", "inclde"]', 'Exported("halved")'),
    "uninstalled": ('["csrc/plain.cc"], includes=["package:nowhere/include"]', 'Exported("halved")'),
    "cleaned": ('["csrc/plain.cc"], flags=["-clean"]', 'Exported("halved")'),
    "for_pytorch": ('["csrc/torch.cc"]', 'Operators("acme::halved")'),
    "unpacked": ('["package:nowhere/csrc/plain.cc"]', 'Exported("halved")'),
}

ERRORS = [
    r"misspelt.*\[link\]: its sources do not export 'halve'; they export halved\n",
    r"broken \[nvcc\]: nvcc ended(?s:.*?)kernels/csrc/broken.cc:9:\d+: error: .*half_off",
    r"lacking \[link\]: nothing has half_of\(int\)\n(?s:.*?)undefined reference to `half_of\(int\)'",
    r"elsewhere.*: its sources have host code of their own, which the backend cuda_core cannot do",
    r"unknown \[wrap\]: its arguments are not declared, and the backend cython has to know them",
    r"outside/default \[lower\]: argument 'n' is 3, and an exported function takes tensors and numbers",
    r"absent \[nvcc\]: sources names 'csrc/scaled.cu', which is no file beside the definition",
    r"own.py:\d+ astray \[nvcc\]: includes names 'inclde', which is no folder beside the definition",
    r"own.py:\d+ uninstalled \[settings\]: includes names 'nowhere/include', and no installed package has that folder",
    r"cleaned \[nvcc\]: nvcc made no object of kernels/csrc/plain.cc\n.*remedy: leave out flags .* such as -E",
    r"for_pytorch \[nvcc\]: nvcc ended(?s:.*?)remedy: it includes headers of PyTorch: write frontend=\"torch\" and",
    r"own.py:\d+ unpacked \[nvcc\]: sources names 'nowhere/csrc', and no installed package has that folder",
]


def test_mistakes_are_errors_of_the_build_that_say_what_to_do(built, tmp_path):
    project = new_project(tmp_path)
    head = DEFINITIONS.partition("@kernel")[0].replace("Exported", "Exported, Operators")
    kernels = []
    for name, (sources, returned) in BROKEN.items():
        backends = "" if "backends" in sources else 'backends=["tvm_ffi"], '
        decorator = f'@kernel(frontend="cuda", {backends}sources={sources})'
        kernels.append(f"{decorator}\ndef {name}():\n    return {returned}\n\n\n")
    project.write("kernels/own.py", head + "".join(kernels))
    project.write("pyproject.toml", SETTINGS + 'backends = ["tvm_ffi", "cython", "cuda_core"]\n')
    project.write("kernels/csrc/torch.cc", "#include <torch/library.h>\n" + PLAIN)
    project.write("kernels/csrc/broken.cc", PLAIN.replace("number / 2", "half_off(number)"))
    project.write(
        "kernels/csrc/lacking.cc",
        PLAIN.replace("int half_of(int number) {", "int half_of(int number);\nint other(int number) {"),
    )
    run = project.scons("-k", "-j2", ok=False)
    for expected in ERRORS:
        assert re.search(expected, run.output), f"{expected}\n{run.output}"


def test_an_nvcc_that_compiles_nothing_is_told_from_a_mistake_in_a_source(tmp_path):
    """It is not asked to compile anything before there is a mistake, because that takes a second."""
    kernel = '@kernel(frontend="cuda", sources=["a.cu"], backends=["tvm_ffi"])\n'
    kernel += 'def halved():\n    return Exported("halved")\n'
    project = Project.of(tmp_path, SETTINGS, own=DEFINITIONS.partition("@kernel")[0] + kernel)
    project.write("kernels/a.cu", PLAIN)
    real = Path(find_nvcc("", os.environ))
    shutil.copytree(real.parents[1], tmp_path / "cuda", copy_function=os.symlink)
    (tmp_path / "cuda/bin/nvcc").unlink()
    answers = f'case "$1" in --version|--list*) exec {real} "$@";; esac'
    nvcc = script(tmp_path / "cuda/bin/nvcc", f"{answers}\necho 'cc1plus: not found' >&2\nexit 1")
    run = project.scons(f"NVCC={nvcc}", ok=False)
    assert run.labels.get("OBJECT") == 1, "the build has begun"
    assert re.search(r"nvcc does not compile a small kernel for sm_\d+\n", run.output)
    assert "a C++ compiler (g++) must be installed" in run.output and "cc1plus: not found" in run.output
