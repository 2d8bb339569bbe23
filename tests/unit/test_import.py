"""``kernelwright import``: what is found in a source, and the definition file that is written."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from kernelwright.cli import main
from kernelwright.commands.importer import import_source, parser
from kernelwright.commands.importer.function import Parameter
from kernelwright.commands.importer.parser import NEED, functions_in
from kernelwright.commands.importer.types import NAMES, OF_NAMES, VECTORS
from kernelwright.core.errors import DefinitionError, KernelwrightError, SettingsError, ToolchainError
from kernelwright.define import kernel as kernels
from kernelwright.define.arguments import DTYPES
from support.imported_source import HEADER, KERNELS, SOURCE
from support.project import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

needs_libclang = pytest.mark.skipif(not NEED.is_installed, reason="libclang is not installed")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A source of many kinds."""
    (tmp_path / "twice.cuh").write_text(HEADER)
    (tmp_path / "many.cu").write_text(SOURCE)
    return tmp_path / "many.cu"


def written(folder: Path, text: str) -> str:
    """The definition file of a source."""
    (folder / "one.cu").write_text(text)
    import_source(folder / "one.cu", None)
    return (folder / "one.py").read_text()


def refusal(folder: Path, text: str) -> KernelwrightError:
    (folder / "one.cu").write_text(text)
    with pytest.raises(DefinitionError) as caught:
        import_source(folder / "one.cu", None)
    assert not (folder / "one.py").exists()
    return caught.value


@pytest.fixture
def without_cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clang reads sources without CUDA's headers, which takes it a second a time."""
    monkeypatch.setattr(parser, "_cuda_include", lambda: None)


def defined(path: Path) -> dict[str, kernels.Kernel]:
    """The kernels of a definition file."""
    names: dict[str, object] = {}
    exec(compile(path.read_text(), str(path), "exec"), names)
    return {name: value for name, value in names.items() if isinstance(value, kernels.Kernel)}


@needs_libclang
def test_functions_are_found_with_their_namespaces_templates_and_types(source: Path) -> None:
    found = functions_in(source)
    assert found.missing == found.errors == found.elsewhere == ()
    functions = {function.name: function for function in found.functions}
    lines = SOURCE.splitlines()
    assert all(name.rpartition("::")[2] in lines[function.line - 1] for name, function in functions.items())
    assert "announced" not in functions and "squared" not in functions
    plain = functions["plain"]
    assert plain.parameters[0] == Parameter("x", "const float *__restrict", "pointer", "float", is_constant=True)
    assert plain.parameters[2] == Parameter("n", "int", "number", "int")
    assert plain.has_dynamic_shared and not functions["halves"].has_dynamic_shared
    scaled = functions["acme::math::scaled"]
    kinds = [(parameter.name, parameter.kind, parameter.default) for parameter in scaled.template]
    assert kinds[:3] == [("T", "type", ()), ("BLOCK", "integer", ("64",)), ("EXACT", "bool", ("true",))]
    assert (scaled.bounds, functions["halves"].bounds) == ("BLOCK, 2", "128")
    overloaded = [function for function in found.functions if function.is_overloaded]
    assert [(f.name, len(f.parameters)) for f in overloaded[:2]] == [("kernel", 1), ("kernel", 3)]
    assert not any(function.template for function in overloaded)


@needs_libclang
def test_a_missing_header_is_said_and_costs_only_what_needs_it(tmp_path: Path) -> None:
    text = '#include "nowhere.h"\n__global__ void f(float *x) {}\n__global__ void g(float *x, lost_t y) {}\n'
    file = written(tmp_path, text)
    assert "Clang did not find nowhere.h." in file
    assert "# - g (line 3): Clang does not understand it: unknown type name 'lost_t'" in file
    assert list(defined(tmp_path / "one.py")) == ["f"]


@needs_libclang
def test_every_function_becomes_a_kernel_with_arguments_and_launch_of_the_source_or_is_said_to_be_left_out(source):
    lines = import_source(source, None).splitlines()
    assert lines[0] == f"{source.with_suffix('.py')}: {', '.join(KERNELS)}"
    assert [line.split()[2] for line in lines if line.startswith("left out: ")] == ["rows", "filled"]
    assert list(defined(source.with_suffix(".py"))) == KERNELS
    text = source.with_suffix(".py").read_text()
    assert "# TODO: these functions are left out. Host code of your own can launch them:\n# - " in text
    made = defined(source.with_suffix(".py"))
    plain = made["plain"].function()
    assert plain.source == "many.cu" and plain.function == "plain"
    assert {name: value.dtype for name, value in plain.declared.items()} == {
        **{"x": "float32", "y": "float32", "n": "int32"}
    }
    assert (plain.arguments["x"].written, plain.arguments["y"].written) == (None, True)
    assert made["scaled"].configs == ({"T": "float32", "BLOCK": 64, "EXACT": True},)
    scaled = made["scaled"].function("float16", 32, False)
    assert scaled.function == "acme::math::scaled<__half, 32, 0>"
    assert scaled.block == 32 and scaled.arguments["factor"].dtype == "float16"
    halves = made["halves"].function()
    assert halves.block == 128 and halves.arguments["grid_"].dtype == "uint64"
    assert (halves.arguments["y"].alignment, halves.arguments["y"].multiples) == (4, {"y_size": 2})
    structured = made["structured"].function()
    assert list(structured.declared) == ["count", "scale", "y"]
    moved = made["moved"].function().arguments
    assert list(moved) == ["from_", "to", "cells", "arg3", "mode", "kind"]
    assert (moved["from_"].alignment, moved["from_"].multiples, moved["cells"].dtype) == (16, {"from_size": 4}, "uint8")
    assert made["kernel_3"].function().function == "*static_cast<void (*)(double *, bool, Hidden *)>(kernel)"


BOUNDS = """\
#define HALF(n) (n / 2)
namespace acme { constexpr int WARPS = 4; enum { LANES = 32 }; }
template <class T> struct Traits { static constexpr int threads = 96; };
template <int A, int B> struct Most { static constexpr int value = A > B ? A : B; };
namespace acme {
__global__ void __launch_bounds__(WARPS * LANES, 2) constants(float *x) {}
}
__global__ void __launch_bounds__(0x80) hexadecimal(float *x) {}
__global__ void __launch_bounds__((Most<64, acme::LANES>::value), 1) computed(float *x) {}
template <int W, int H = 2> __global__ void __launch_bounds__((W + 1) * H / 2 * acme::LANES) product(float *x) {}
template <int W = 64> __global__ void __launch_bounds__(HALF(W)) macro(float *x) {}
__global__ void __launch_bounds__(64) earlier(float *x);
__global__ void earlier(float *x) {}
template <int W> __global__ void __launch_bounds__(W * 8) renamed(float *x);
template <int BLOCK> __global__ void renamed(float *x) {}
template <class T> __global__ void __launch_bounds__(Traits<T>::threads) traits(T *x) {}
__global__ void __launch_bounds__(lost) unknown(float *x) {}
"""


@needs_libclang
def test_the_block_is_what_launch_bounds_say(tmp_path: Path, without_cuda: None) -> None:
    text = written(tmp_path, BOUNDS)
    made = defined(tmp_path / "one.py")
    blocks = {name: kernel.function(*kernel.configs[0].values()).block for name, kernel in made.items()}
    assert blocks == {
        **{"constants": 128, "hexadecimal": 128, "computed": 64, "product": 544, "macro": 32, "earlier": 64},
        **{"renamed": 256, "traits": 32, "unknown": 32},
    }
    assert [line.strip() for line in text.splitlines() if "block=" in line and "W" in line] == [
        *("block=(W + 1) * H // 2 * 32,", "block=(W // 2),")
    ]
    assert made["product"].configs == ({"W": 16, "H": 2},), "32 would make a block of more threads than one has"
    assert "its\n        # source says __launch_bounds__(Traits<T>::threads)." in text


GRID = """\
namespace cooperative_groups {
struct grid_group { __device__ void sync() const; __device__ int rank() const; };
struct thread_block { __device__ void sync(); };
__device__ grid_group this_grid();
template <class G> __device__ void sync(const G &group);
}
namespace cg = cooperative_groups;
__constant__ float given[2] = {1, 2};
template <class T> __device__ void wait(T *x) { auto grid = cg::this_grid(); grid.sync(); x[0] = given[0]; }
__global__ void method(float *x) { cg::this_grid().sync(); }
__global__ void function(float *x) { cg::sync(cg::this_grid()); }
template <class T> __global__ void called(T *x) { wait(x); }
__global__ void block(float *x) { cg::thread_block().sync(); x[cg::this_grid().rank()] = given[1]; }
__global__ void __cluster_dims__(2, 1, 1) clustered(float *x) {}
"""


@needs_libclang
def test_what_a_launch_has_to_be_follows_from_the_body(tmp_path: Path, without_cuda: None) -> None:
    text = written(tmp_path, GRID)
    made = defined(tmp_path / "one.py")
    cooperative = {name: kernel.function(*kernel.configs[0].values()).cooperative for name, kernel in made.items()}
    assert cooperative == {"method": True, "function": True, "called": True, "block": False, "clustered": False}
    assert text.count("so all of the grid has to fit on") == 3
    assert "# TODO: its source says __cluster_dims__(2, 1, 1): a grid of whole clusters.\n" in text


@needs_libclang
def test_arrays_are_pointers_to_what_they_hold_and_functions_of_macros_are_found(tmp_path, without_cuda):
    text = """\
typedef float Four[4];
__global__ void f(const Four x, const float y[2][3][4], int z[2]) {}
#define MAKE(name, T) __global__ void name(T *x) { x[0] = 0; }
MAKE(g, float)
MAKE(check, unsigned short)
"""
    written(tmp_path, text)
    made = defined(tmp_path / "one.py")
    assert [(value.shape, value.written) for value in made["f"].function().arguments.values()] == [
        *((("x_size",), None), (("y_size", 3, 4), None), (("z_size",), True))
    ]
    assert [made[name].function().arguments["x"].dtype for name in ("g", "check_2")] == ["float32", "uint16"]


@needs_libclang
def test_the_file_is_as_ruff_formats_it(source: Path) -> None:
    long = "a_name_that_is_so_long_that_little_fits_beside_it"
    axes = ", ".join(f"int {long}_{number}" for number in range(3))
    source.write_text(f"{SOURCE}template <{axes}> __global__ void wide(const float4 *{long}, long *y) {{}}\n")
    import_source(source, None)
    for width in ("88", "120"):
        for command in (["format", "--check"], ["check", "--select", "E,F,W,I", "--ignore", "E501"]):
            ruff = [sys.executable, "-m", "ruff", *command, "--isolated", "--no-cache", "--line-length", width]
            done = subprocess.run([*ruff, source.with_suffix(".py")], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr


@needs_libclang
def test_the_file_beside_it_names_the_source_and_imports_only_what_its_definitions_use(tmp_path, without_cuda):
    text = written(tmp_path, "__global__ void f(float *x, int n) {}\n")
    assert 'Size("x_size")' in text, "it is in a comment only"
    assert [line for line in text.splitlines() if line.startswith("from ")] == [
        "from kernelwright import kernel",
        "from kernelwright.cuda import Scalar, Source, Tensor, ceildiv",
    ]
    assert "TYPES" not in text
    (tmp_path / "kernels").mkdir()
    import_source(tmp_path / "one.cu", tmp_path / "kernels/own.py")
    assert defined(tmp_path / "kernels/own.py")["f"].function().source == "../one.cu"


@needs_libclang
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("__global__ void f(int n) {}", "none of its parameters is a pointer"),
        ("__global__ void f(float *x, float &y) {}", "its parameter y is float &, which can be no argument"),
        ("struct S { float *x; int n : 3; }; __global__ void f(S s) {}", "s is S, which can be no argument"),
        ("struct S { float *x[2]; }; __global__ void f(S s) {}", "s is S, which can be no argument"),
        ("struct S { float *in; }; __global__ void f(S s) {}", "s has the member in, and that name is taken"),
        ("struct S; __global__ void f(S *x) {}", "its parameter x is S *, which can be no argument"),
        ("__global__ void f(void (*x)(int), float *y) {}", "its parameter x is void (*)(int)"),
        ("template <class T> struct V { using t = T; };\ntemplate <class T> __global__ void f(typename V<T>::t *x) {}",
         "its parameter x is typename V<T>::t *"),
        ("template <class... T> __global__ void f(float *x, T... y) {}", "the parameter T of its template is neither"),
        ("template <auto V> __global__ void f(float *x) {}", "the parameter V of its template is neither"),
        ("template <class T> __global__ void f(T *x) {}\ntemplate <class T> __global__ void f(T *x, int n) {}",
         "there are several templates of its name"),
        ("__global__ void f(lost *x) {}", "Clang does not understand it: unknown type name 'lost'"),
        ("__global__ void f(float *x, cudaTextureObject_t y) {}", "its parameter y is cudaTextureObject_t, which can"),
        ("using S = const cudaSurfaceObject_t; __global__ void f(float *x, S y) {}", "y is cudaSurfaceObject_t, which"),
        ("struct P { int n; }; __constant__ P p; __device__ int n() { return p.n; }\n"
         "__global__ void f(int *x) { *x = n(); }",
         "it reads p in constant memory, which host code has to fill"),
    ],
)  # fmt: skip
def test_a_function_that_can_be_no_kernel_is_left_out_with_the_reason(tmp_path, without_cuda, text, reason):
    error = refusal(tmp_path, text)
    assert error.message == "none of its functions can be a kernel"
    assert error.detail and reason in error.detail


@needs_libclang
def test_parameters_of_templates_that_have_a_default_of_their_own_keep_it(tmp_path: Path) -> None:
    text = """\
#include <type_traits>
#include <cuda_fp16.h>
template <class T> struct Sum {};
namespace acme { enum class Order { big = 3, little }; }
template <acme::Order ORDER, acme::Order OTHER = acme::Order::little> __global__ void ordered(int *x) {}
template <class T = half, class A = float, class Op = Sum<T>, std::enable_if_t<(sizeof(T) > 1), int> = 0>
__global__ void f(T *x, A y, bool target) {}
"""
    written(tmp_path, text)
    ordered, made = defined(tmp_path / "one.py").values()
    assert ordered.configs == ({"ORDER": 3},)
    assert ordered.function(4).function == "ordered<static_cast<acme::Order>(4)>"
    assert made.configs == ({"T": "float16", "A": "float32"},)
    assert made.function("float16", "float32").function == "f<__half, float>"


@needs_libclang
@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("int x = ;\n__global__ void f(float *x) {}\n", 1, "expected expression"),
        ("\n__global__ void f(float *x) { x[0] = 1;\n__global__ void g(float *x) {}\n", 3, "expected '}'"),
    ],
)
def test_a_source_that_is_no_cpp_is_refused_with_clangs_words(tmp_path: Path, text: str, line: int, words: str) -> None:
    error = refusal(tmp_path, text)
    assert str(error).startswith(f"{tmp_path / 'one.cu'}:{line} [import]: Clang says: {words}")


@needs_libclang
def test_a_slip_in_a_body_is_said_and_stops_nothing(tmp_path: Path) -> None:
    text = written(tmp_path, "__global__ void f(float *x) {\n  x[0] = ;\n}\n")
    assert f"{tmp_path / 'one.cu'}:2: expected expression" in text.replace("\n#  ", "") and "def f():" in text


@needs_libclang
def test_a_source_without_functions_is_refused_and_the_header_that_has_them_named(tmp_path, without_cuda):
    (tmp_path / "inner.cuh").write_text("#pragma once\n__global__ void f(float *x) {}\n")
    error = refusal(tmp_path, '#include "inner.cuh"\n__device__ int g();\n')
    assert error.message == "it defines no __global__ function"
    assert error.remedy == f"import a header of it that does: {tmp_path / 'inner.cuh'}"
    assert refusal(tmp_path, "int x;\n").remedy == "give a source that has one"


@needs_libclang
def test_a_file_that_exists_is_never_replaced(source: Path, without_cuda: None) -> None:
    source.with_suffix(".py").write_text("mine\n")
    with pytest.raises(SettingsError, match="this file exists already") as caught:
        import_source(source, None)
    assert caught.value.remedy == "remove it, or write another one: --output FILE"
    assert source.with_suffix(".py").read_text() == "mine\n"
    with pytest.raises(SettingsError, match="this file cannot be written: No such file or directory"):
        import_source(source, source.parent / "nowhere/own.py")


def test_the_command_prints_errors_without_a_traceback_and_says_how_to_install_libclang(
    tmp_path, capsys, source, monkeypatch
):
    assert main(["import", str(tmp_path / "no.cu")]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"kernelwright: {tmp_path}/no.cu [import]: there is no such file\n  remedy: ")
    monkeypatch.setitem(sys.modules, "clang", None)
    with pytest.raises(ToolchainError, match="libclang, which reads the source, is not installed") as caught:
        import_source(source, None)
    assert caught.value.remedy == NEED.install == "pip install 'libclang>=18.1,<19'"


def test_the_extra_installs_what_the_command_needs_and_every_dtype_has_a_name_in_cpp():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert extras["import"] == [NEED.requirement]
    assert re.search(r"\[cuda,[a-z,]*import,[a-z,]*\]' --group dev", (ROOT / "README.md").read_text())
    assert tuple(NAMES) == DTYPES
    assert {*OF_NAMES.values(), *VECTORS.values()} <= set(DTYPES)


@needs_libclang
def test_an_integer_that_is_named_a_stride_may_be_one_of_an_array(tmp_path: Path, without_cuda: None) -> None:
    text = written(tmp_path, "__global__ void f(float *x, long x_stride, int n) { x[n * x_stride] = 0; }\n")
    hint = 'a stride can be Stride("x", 0), as the array has it, with strides="dense" in that Tensor'
    assert defined(tmp_path / "one.py")["f"].function().arguments["x_stride"].dtype == "int64"
    lines = " ".join(line.strip().removeprefix("# ") for line in text.splitlines())
    assert lines.count(hint) == 1 and 'numbers that follow from shapes can be, for example, Size("' in lines
