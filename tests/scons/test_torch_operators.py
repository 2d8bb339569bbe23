"""Sources that register operators with PyTorch, built for PyTorch and called in it.

They take long, because PyTorch's headers do, and each library is loaded beside PyTorch. No GPU is needed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.frontends.torch import front_end
from kernelwright.stages.torch_library import Registering
from support.demand import Demand
from support.operators import raw, ready
from support.project import SCONSTRUCT, Project
from support.wheels import inside, metadata_of

torch = pytest.importorskip("torch")

SETTINGS = """\
[project]
name = "demo"
version = "1.0"
dependencies = ["torch>=2.4"]

[tool.kernelwright]
targets = ["cuda"]
archs = ["sm_80"]
"""

BOUND = """\
#include <ATen/core/Tensor.h>
#include <c10/cuda/CUDAMacros.h>  // it includes a file that PyTorch for CPUs does not have
#include <torch/library.h>

at::Tensor scaled(const at::Tensor& x, double factor) {
  TORCH_CHECK(x.scalar_type() == at::kFloat, "x is not float");
  at::Tensor y = x.clone();
  for (int64_t i = 0; i < y.numel(); ++i) y.data_ptr<float>()[i] *= factor;
  return y;
}

TORCH_LIBRARY(acme, m) { m.def("scaled(Tensor x, float factor=2.0) -> Tensor"); }
TORCH_LIBRARY_IMPL(acme, CPU, m) { m.impl("scaled", &scaled); }
"""

STABLE = """\
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

using torch::stable::Tensor;

__global__ void doubled(const float* x, float* y, long long n) {
  long long i = blockIdx.x * 256LL + threadIdx.x;
  if (i < n) y[i] = 2 * x[i];
}

Tensor twice(const Tensor& x) {
  Tensor y = torch::stable::empty_like(x);
  for (int64_t i = 0; i < x.numel(); ++i)
    static_cast<float*>(y.mutable_data_ptr())[i] = 2 * static_cast<const float*>(x.const_data_ptr())[i];
  return y;
}

extern "C" int aoti_torch_get_current_cuda_stream(int32_t, void**);  // what PyTorch for CPUs does not have

int64_t stream_of(int64_t device) {
  void* stream = nullptr;
  return aoti_torch_get_current_cuda_stream(device, &stream) ? -1 : reinterpret_cast<int64_t>(stream);
}

Tensor twice_on_gpu(const Tensor& x) {
  Tensor y = torch::stable::empty_like(x);
  long long n = x.numel();
  doubled<<<(n + 255) / 256, 256>>>(static_cast<const float*>(x.const_data_ptr()),
                                    static_cast<float*>(y.mutable_data_ptr()), n);
  return y;
}

STABLE_TORCH_LIBRARY(steady, m) {
  m.def("twice(Tensor x) -> Tensor");
  m.def("on_gpu(Tensor x) -> Tensor");
  m.def("_half(int n) -> int");
  m.def("_stream(int device) -> int");
  m.def("many.out(Tensor x, int[]? sizes=None, *, str mode='a', Tensor(a!) out) -> (Tensor(a!), int)");
}
STABLE_TORCH_LIBRARY_IMPL(steady, CPU, m) { m.impl("twice", TORCH_BOX(&twice)); }
STABLE_TORCH_LIBRARY_IMPL(steady, CompositeExplicitAutograd, m) { m.impl("_stream", TORCH_BOX(&stream_of)); }
STABLE_TORCH_LIBRARY_IMPL(steady, CUDA, m) {
  m.impl("twice", TORCH_BOX(&twice_on_gpu));
  m.impl("on_gpu", TORCH_BOX(&twice_on_gpu));
}
"""

DEFINITIONS = """\
from pathlib import Path

from kernelwright import kernel
from kernelwright.cuda import Operators, Text


@kernel(frontend="torch", sources=["bound.cpp"])
def ops():
    \"\"\"Scales.\"\"\"
    return Operators("acme::scaled", schemas={"acme::scaled": "(Tensor x, float factor = 2.0) -> Tensor"})


@kernel(frontend="torch", sources=["stable.cu"], flags=["-DTORCH_TARGET_VERSION=0x020A000000000000"])
def steady():
    return Operators("steady::twice", "steady::on_gpu", "steady::many.out", "steady::_half", "steady::_stream")


@kernel(frontend="torch", sources=lambda: [Text("stream.cpp", (Path(__file__).parent / "stream.txt").read_text())])
def stream():
    return Operators("stream::current")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    ready()
    project = Project.of(tmp_path_factory.mktemp("operators"), SETTINGS, own=DEFINITIONS)
    project.write("SConstruct", SCONSTRUCT + "env.KernelWheel(package)\n")
    project.write("kernels/bound.cpp", BOUND)
    project.write("kernels/stable.cu", STABLE)
    more = "namespace at::cuda { void* getCurrentDeviceProperties(); }\n"
    more += "void* current() { return at::cuda::getCurrentDeviceProperties(); }"
    project.write("kernels/stream.txt", raw("stream", "current(int device) -> int", more=more))
    run = project.scons("-j2")
    assert run.labels["TORCH"] == 3 and not {"WRAP", "CC", "LINK", "LAUNCHER"} & run.labels.keys()
    return project


CALLS = """
import copy
import pickle
import sys
import demo
assert "torch" not in sys.modules
demo.ops
import torch
assert not {name for name in sys.modules if name.startswith(("tvm", "tvm_ffi"))}
demo.steady.preload()
demo.preload()
x = torch.arange(4, dtype=torch.float32)
print(torch.equal(torch.ops.acme.scaled(x), 2 * x), torch.equal(demo.ops.scaled(x, factor=3.0), 3 * x))
print(torch.equal(demo.ops(x), 2 * x), torch.equal(demo.steady.twice(x), 2 * x), dir(demo.steady)[:3])
print(demo.ops.schemas)

def refused(function, *arguments):
    try:
        function(*arguments)
    except Exception as error:
        print(type(error).__name__, str(error).split("This could")[0].strip())

refused(torch.ops.acme.scaled, x.double())
refused(demo.steady.on_gpu, x)
refused(demo.steady, x)
refused(lambda: demo.ops.gelu)
refused(demo.steady.preload, "gpu")
refused(lambda: pickle.dumps(demo.ops))
print(copy.deepcopy(demo.ops) is demo.ops, demo.ops, demo.steady._half)
refused(lambda: demo.stream)

@torch.library.register_fake("acme::scaled")
def _(x, factor=2.0):
    return torch.empty_like(x)

compiled = torch.compile(lambda x: demo.ops.scaled(x) + torch.ops.acme.scaled(x, 3.0), fullgraph=True, backend="eager")
print(torch.equal(compiled(x), 5 * x))
demo._loader._kernels.clear()
refused(lambda: demo._loader.kernel("ops"))
described = demo.manifest()["kernels"]["ops"]["operators"]
described["registered"] = {}  # as another version has it that renamed its operators
refused(lambda: demo._loader.kernel("ops"))
refused(demo.num_threads)
"""


VERSIONS = """
import demo._runtime.torch_ops as loads
for version in ("2.9.1", "{minor}.7+cu130", "3.0.0"):
    for name in ("ops", "steady"):
        torch.__version__ = version
        try:
            loads._require_torch(demo.manifest()["kernels"][name]["operators"], name)
            print(version, name, "suits")
        except ImportError as error:
            print(version, *str(error).splitlines())
"""

MINOR = ".".join(torch.__version__.split(".")[:2])


@pytest.fixture(scope="module")
def printed(built: Project) -> list[str]:
    """What calls print, and then with other versions of PyTorch a line for each of two kernels."""
    return built.python(CALLS + VERSIONS.replace("{minor}", MINOR)).splitlines()


def test_operators_are_called_by_name_and_in_torch_ops_and_errors_are_pytorchs(printed: list[str]) -> None:
    lines = printed[:-6]
    assert lines[:3] == [
        "True True",
        "True True ['_half', '_stream', 'many_out']",
        "{'acme::scaled': '(Tensor x, float factor=2.) -> Tensor'}",
    ]
    assert lines[3].startswith("RuntimeError x is not float")
    rest = "\n".join(lines[4:])
    assert "Could not run 'steady::on_gpu' with arguments from the 'CPU' backend." in rest
    assert "TypeError kernel 'steady' has several operators, and is called by their names: twice, on_gpu," in rest
    assert "AttributeError kernel 'ops' has no operator 'gelu'; it has scaled" in rest
    assert "ImportError kernel 'stream' of 'demo' needs PyTorch with CUDA, and this is PyTorch" in rest
    assert "kernel 'ops' of 'demo' registers the operator acme::scaled, which this process has already" in rest
    assert "kernel 'ops' of 'demo' registers the namespace acme, which this process has already" in rest
    assert "ValueError unknown device 'gpu'; expected 'cpu', 'cuda' or 'cuda:N'" in rest
    assert "TypeError kernel ops cannot be pickled; import it where it is used" in rest
    assert "True <kernel ops with the operators acme::scaled> steady._half" in lines
    assert "RuntimeError no kernel of package 'demo' has CPU code" in rest
    assert "True" in lines[4:]  # what torch.compile made


WITHOUT_TORCH = """

@kernel(
    frontend="cuda",
    sources=["stable.cu"],
    includes=["package:torch/include"],
    flags=["-DTORCH_TARGET_VERSION=0x020A000000000000"],
    backends=["tvm_ffi"],
)
def without_torch():
    return Exported("on_gpu")
"""


def test_a_source_is_compiled_once_for_pytorch_and_for_callers_without_it(built: Project, tmp_path: Path) -> None:
    project = built.copied(tmp_path / "both")
    project.write(
        "kernels/own.py", DEFINITIONS.replace("import Operators", "import Exported, Operators") + WITHOUT_TORCH
    )
    run = project.scons("-j2")
    assert run.labels["SOURCES"] == 1 and "OBJECT" not in run.labels


def test_what_is_bound_to_a_minor_version_refuses_others_and_the_stable_abi_takes_newer_ones(
    printed: list[str],
) -> None:
    lines = printed[-6:]
    wants = f"was built with PyTorch {torch.__version__} and needs"
    assert lines[0].startswith(f"2.9.1 ops {wants} torch=={MINOR}.*, and this is PyTorch 2.9.1   remedy: pip install")
    assert lines[1].startswith(f"2.9.1 steady {wants} torch>=2.10, and this is PyTorch 2.9.1 ")
    assert lines[2:4] == [f"{MINOR}.7+cu130 ops suits", f"{MINOR}.7+cu130 steady suits"]
    assert lines[4].startswith(f"3.0.0 ops {wants}") and lines[5] == "3.0.0 steady suits"


def test_libraries_need_those_of_pytorch_by_name_and_only_what_they_call(built: Project) -> None:
    from elftools.elf.elffile import ELFFile

    def tags(name: str) -> dict[str, list[str]]:
        with (built.folder / f"build/demo/_lib/{name}.so").open("rb") as stream:
            dynamic = ELFFile(stream).get_section_by_name(".dynamic")
            found = [(tag.entry.d_tag, tag) for tag in dynamic.iter_tags()]
        assert not {"DT_RPATH", "DT_RUNPATH"} & {tag for tag, _ in found}
        return {"needed": sorted(tag.needed for kind, tag in found if kind == "DT_NEEDED")}

    assert {"libc10.so", "libtorch_cpu.so"} < {*tags("ops")["needed"]}
    assert "libtorch_cpu.so" in tags("steady")["needed"] and "libc10.so" not in tags("steady")["needed"]
    for name in ("ops", "steady"):
        assert "libtorch.so" in tags(name)["needed"], "in PyTorch for CUDA that needs what has weak functions"
    assert {"libtorch_cuda.so", "libtorch_cpu.so"} < {*tags("stream")["needed"]}
    kernels = built.manifest["kernels"]
    assert [kernels[name]["operators"]["needs_cuda"] for name in ("ops", "steady", "stream")] == [False, False, True]
    namespaces = [kernels[name]["operators"]["namespaces"] for name in ("ops", "steady", "stream")]
    assert namespaces == [["acme"], ["steady"], []]  # that of stream is a fragment
    assert kernels["steady"]["operators"]["registered"]["steady::twice"]["keys"] == ["CPU", "CUDA"]


STREAM = """
import ctypes
import torch
for library in {libraries}:
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
import demo
print(demo.steady._stream(7))
"""


def test_a_function_that_only_pytorch_for_cuda_has_is_called_where_it_is_and_fails_elsewhere(
    built: Project, tmp_path: Path
) -> None:
    body = "{ *stream = (void *)(device * 6L); return 0; }"
    (tmp_path / "cuda.c").write_text(f"int aoti_torch_get_current_cuda_stream(int device, void **stream) {body}")
    subprocess.run(["cc", "-shared", "-fPIC", "cuda.c", "-o", "cuda.so"], cwd=tmp_path, check=True)
    for libraries, printed in (([], "-1\n"), ([str(tmp_path / "cuda.so")], "42\n")):
        assert built.python(STREAM.format(libraries=libraries)) == printed


def test_stubs_have_the_types_of_the_schemas(built: Project) -> None:
    stub = (built.folder / "build/demo/__init__.pyi").read_text()
    assert "def scaled(self, x: _torch.Tensor, factor: _b.float = ...) -> _torch.Tensor: ..." in stub
    assert (
        "def many_out(self, x: _torch.Tensor, sizes: _b.list[_b.int] | None = ..., *, mode: _b.str = ..., "
        "out: _torch.Tensor) -> _b.tuple[_torch.Tensor, _b.int]: ..." in stub
    )


def test_a_type_checker_tells_operators_that_are_none(built: Project, tmp_path) -> None:
    pytest.importorskip("mypy", reason="the package mypy is not installed")
    (tmp_path / "types.ini").write_text("[mypy]\n[mypy-torch.*]\nfollow_imports = skip\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--config-file=types.ini", "--cache-dir", os.devnull, "-c"]
    code = "from demo import ops, steady\nsteady.twice\nops.scaled\nsteady.twise\n"
    environment = {**os.environ, "MYPYPATH": str(built.folder / "build")}
    done = subprocess.run([*command, code], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert [line for line in done.stdout.splitlines() if line.startswith("<string>")] == [
        '<string>:4: error: "_kernel_steady" has no attribute "twise"; maybe "twice"?  [attr-defined]'
    ]


def test_a_wheel_depends_on_the_pytorch_that_its_libraries_were_built_for(built: Project, tmp_path) -> None:
    project = built.copied(tmp_path / "wheel")
    said = project.scons("wheel", ok=False).output
    assert f'for which kernel ops was built: add "torch=={MINOR}.*" to project.dependencies' in said
    assert 'for which kernel steady was built: add "torch>=2.10" to project.dependencies' in said
    project.replace("pyproject.toml", "torch>=2.4", f"torch=={MINOR}.*")
    project.replace("pyproject.toml", "archs =", 'backends = ["torch_ops"]\narchs =')
    project.scons("wheel")
    (wheel,) = (project.folder / "dist").glob("*.whl")
    assert "apache-tvm-ffi" not in metadata_of(wheel)
    assert not [name for name in inside(wheel) if "torch_cpu" in name or "libc10" in name]
    assert "all well" in project.kernelwright("verify", wheel)


def test_a_call_compiles_no_operators_on_demand(built: Project, tmp_path: Path) -> None:
    program = """
    with pytest.raises(kw.KernelwrightError, match="it is not compiled for a call\\n  remedy: build the package with"):
        kw.load("kernels/own.py").ops.compile()
    """
    Demand(built, tmp_path / "cache").run(program)


MODULE = """\
#include <torch/extension.h>

at::Tensor scaled(const at::Tensor& x, float by, int times, std::optional<at::Tensor> bias) {
  at::Tensor y = x * (by * times);
  return bias ? y + *bias : y;
}

void fill(at::Tensor& x, double value) { x.fill_(value); }

std::pair<std::vector<int>, bool> said(std::vector<int> sizes, at::ScalarType dtype) {
  return {sizes, dtype == at::kHalf};
}

PYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {
  m.doc() = "functions";
  m.def("scaled", &scaled, "scales", py::arg("x"), py::arg("by") = 2.0f, py::arg("times") = 3,
        py::arg("bias") = py::none());
  m.def("fill", fill, py::call_guard<py::gil_scoped_release>());
  m.def("said", torch::wrap_pybind_function(said)).def("twice", [](at::Tensor x) { return x + x; }, "a lambda");
}
"""

CALLS_OF_MODULE = """
import demo, torch
module, x = demo.module, torch.ones(2)
print(module.schemas["old::scaled"], module.schemas["old::fill"], module.schemas["old::said"])
made = module.scaled(x, bias=x), module.scaled(x, 1.5, times=2), module.twice(x)
print(*(one.tolist() for one in made), module.said([3, 4], torch.float16))
try:
    module.scaled(x, times=2**40)
except ValueError as error:
    print(str(error).splitlines()[0])
torch.library.register_fake("old::fill")(lambda x, value: None)

@torch.compile(backend="aot_eager", fullgraph=True)
def filled(x):
    y = x + 1
    module.fill(y, 5.0)
    return y

print(filled(x).tolist())
"""


def test_functions_of_a_module_of_pybind11_are_operators_of_any_python(tmp_path: Path) -> None:
    """And PyTorch knows that they may write their arguments. The compiler takes half a minute for PyTorch's headers."""
    ready()
    names = ", ".join(f'"old::{name}"' for name in ("scaled", "fill", "said", "twice"))
    flags = 'flags=["-DTORCH_EXTENSION_NAME=old"]'
    text = "from kernelwright import kernel\nfrom kernelwright.cuda import Operators\n\n\n"
    text += (
        f'@kernel(frontend="torch", sources=["module.cpp"], {flags})\ndef module():\n    return Operators({names})\n'
    )
    project = Project.of(tmp_path, SETTINGS, own=text)
    project.write("kernels/module.cpp", MODULE)
    project.scons()
    schemas, called, refused, filled = project.python(CALLS_OF_MODULE).splitlines()
    scaled = "(Tensor(a0!) x, float by=2., int times=3, Tensor(a3!)? bias=None) -> Tensor"
    assert schemas == f"{scaled} (Tensor(a0!) arg0, float arg1) -> () (int[] arg0, ScalarType arg1) -> (int[], bool)"
    assert called == "[7.0, 7.0] [3.0, 3.0] [2.0, 2.0] ([3, 4], True)" and filled == "[5.0, 5.0]"
    assert refused == f"the argument {2**40} does not fit the integer of the function"


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "say what the namespace of the operators is: flags=['-DTORCH_EXTENSION_NAME=acme']"),
        (["-DTORCH_EXTENSION_NAME=old"], "TORCH_LIBRARY_FRAGMENT(old, library)"),
    ],
)
def test_a_module_is_a_namespace_that_a_flag_has_to_name(tmp_path: Path, flags: list[str], expected: str) -> None:
    (tmp_path / "torch").mkdir()
    for header in ("all.h", "library.h"):
        (tmp_path / "torch" / header).touch()
    (tmp_path / "module.cpp").write_text(MODULE)
    ours = Path(front_end.__file__).parent / "include"
    command = ["g++", "-std=c++20", "-E", "-P", *flags, f"-I{ours}", f"-I{tmp_path}", str(tmp_path / "module.cpp")]
    assert expected in subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


SILU = "silu(Tensor x) -> Tensor"
SOURCES = {
    "one.cpp": raw("wrong", SILU),
    "two.cpp": raw("wrong", SILU),
    "lacking.cpp": raw(
        "lacking",
        SILU,
        "int aoti_torch_get_current_cuda_stream(int32_t, void**);",
        "int lacking(int); int calls(void** s) { return lacking(aoti_torch_get_current_cuda_stream(0, s)); }",
    ),
    "alike.cpp": raw("alike", SILU, "int torch_acme_cuda_sum(int);", "int f(int x) { return torch_acme_cuda_sum(x); }"),
    "python.cpp": raw(
        "python", SILU, "void* PyObject_Call(void*, void*, void*);", "void* f() { return PyObject_Call(0, 0, 0); }"
    ),
    "driver.cpp": raw("driver", SILU, "int cuInit(unsigned);", "int begin() { return cuInit(0); }"),
    "shared.cpp": "",
    "ending.cpp": raw("ending", SILU, more="#include <cstdlib>\nint ended = (_Exit(0), 1);"),
    "first.cpp": raw("acme", "scaled(Tensor x, float factor=2.0) -> Tensor"),
}

WRONG = """\
from kernelwright import kernel
from kernelwright.cuda import Operators


@kernel(frontend="torch", sources=["one.cpp", "two.cpp"])
def twice():
    return Operators("wrong::silu")


@kernel(frontend="torch", sources=["first.cpp", "bound.cpp"])
def fragments():
    return Operators("acme::scaled")
"""
WRONG += "".join(
    f"""

@kernel(frontend="torch", sources=["{name}.cpp"])
def {name}():
    return Operators("{name}::silu")
"""
    for name in ("lacking", "alike", "python", "driver", "ending", "shared")
)
WRONG += WRONG[WRONG.rindex("\n\n@kernel") :].replace("def shared", "def again")

SAID = {
    "twice": r"two sources register the operator silu: one.cpp and two.cpp",
    "fragments": r"two sources register the operator acme::scaled: kernels/first.cpp:\d+ and kernels/bound.cpp:12",
    "lacking": (
        r"lacking \[link\]: nothing has lacking\(int\)\n(.|\n)*undefined reference to `lacking\(int\)'(.|\n)*"
        "remedy: list the source that has it in sources"
    ),
    "alike": (
        r"alike \[link\]: nothing has torch_acme_cuda_sum\n(.|\n)*"
        "remedy: PyTorch [0-9.+a-z]+ does not have torch_acme_cuda_sum; list the source that has it in sources"
    ),
    "python": r"its sources are a module of Python, and call Python: PyObject_Call\n  remedy: register functions with",
    "driver": r"undefined reference to `cuInit'(.|\n)*remedy: get cuInit with cudaGetDriverEntryPoint",
    "ending": r"its sources end the process that loads them, with exit status 0(.|\n)*remedy: see what runs when",
    "shared": r"the kernels again, shared have a source in common, which PyTorch loads once only",
}


def test_what_cannot_be_registered_is_an_error_that_says_what_to_do(built: Project, tmp_path) -> None:
    project = built.copied(tmp_path / "wrong")
    project.write("kernels/own.py", WRONG)
    for name, text in SOURCES.items():
        project.write(f"kernels/{name}", text)
    said = project.scons("-k", "-j2", ok=False).output
    for name, words in SAID.items():
        assert re.search(words, said), f"{name}: {said}"
    assert "reference to `aoti_torch_get_current_cuda_stream'" not in said, "PyTorch for CUDA has it"


TWO_ARGUMENTS = "(Tensor x, int n) -> Tensor"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("a::gelu", "its sources do not register a::gelu; they register a::silu"),
        ("a::silu", f"the schema of a::silu is (Tensor x) -> Tensor, and schemas says {TWO_ARGUMENTS}"),
    ],
)
def test_what_pytorch_finds_registered_is_compared_with_the_definition(name: str, said: str) -> None:
    found = {"operators": {"a::silu": {"schema": "(Tensor x) -> Tensor"}}, "declared": {name: TWO_ARGUMENTS}}
    with pytest.raises(DefinitionError) as caught:
        Registering._described(None, None, found, {name: TWO_ARGUMENTS}, Where())
    assert caught.value.message == said and caught.value.remedy


AGAIN = """

@kernel(frontend="torch", sources=["again.cpp"])
def again():
    return Operators("stream::current")
"""


def test_kernels_that_share_an_operator_are_an_error(built: Project, tmp_path) -> None:
    project = built.copied(tmp_path / "shared")
    project.write("kernels/own.py", DEFINITIONS + AGAIN)
    project.write("kernels/again.cpp", raw("stream", "current(int device) -> int"))
    said = r"the kernels (\w+) \(kernels/own.py:\d+\) and (\w+) both register the operator stream::current"
    kernels = re.search(said, project.scons(ok=False).output)
    assert kernels and {*kernels.groups()} == {"stream", "again"}
