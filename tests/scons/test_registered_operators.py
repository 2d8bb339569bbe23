"""Sources that register operators through PyTorch's stable ABI, built and called without PyTorch.

They take 20 s, because each has PyTorch's headers. No GPU is needed: the operators work on the CPU, in memory of the
test's that is passed as if a device had it.
"""

from __future__ import annotations

import pytest
from support.operators import raw
from support.project import Project
from support.standin_calls import call, make_standin

pytest.importorskip("torch")

SETTINGS = '[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80"]\nbackends = ["tvm_ffi", "torch"]\n'

SOURCE = """\
#include <torch/csrc/stable/accelerator.h>
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <vector>

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

void mix(Tensor& out, const Tensor& x, std::optional<Tensor> bias, double factor, int64_t shift, bool negate) {
  STD_TORCH_CHECK(x.scalar_type() == ScalarType::Float, "x is not float");
  STD_TORCH_CHECK(out.is_contiguous() && x.get_device_index() == out.get_device_index());
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  auto from = static_cast<const float*>(x.const_data_ptr());
  auto to = static_cast<float*>(out.mutable_data_ptr());
  for (int64_t i = 0; i < x.size(0); ++i)
    for (int64_t j = 0; j < x.size(-1); ++j) {
      double value = factor * from[i * x.stride(0) + j * x.stride(1)] + shift;
      if (bias) value += static_cast<const float*>(bias->const_data_ptr())[j];
      to[i * x.size(1) + j] = static_cast<float>(negate ? -value : value);
    }
}

std::string message(int64_t number) { return "number " + std::to_string(number); }

int64_t count(const Tensor& x, std::vector<int64_t> sizes, std::string name, std::optional<int64_t> more) {
  int64_t sum = more ? *more : 0;
  for (int64_t size : sizes) sum += size;
  STD_TORCH_CHECK(name != "bad", message(sum));
  return sum + torch::stable::view(x, {-1}).size(0) + 1000 * x.dim();
}

Tensor doubled(const Tensor& x) {
  Tensor made = torch::stable::empty_like(x);
  auto from = static_cast<const float*>(x.const_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i) static_cast<float*>(made.mutable_data_ptr())[i] = 2 * from[i];
  return made;
}

// Sizes, strides and the first element of a view.
void corner(Tensor& out, const Tensor& x) {
  Tensor rows = torch::stable::flatten(torch::stable::flatten(torch::stable::view(x, {-1, 2, 2, 1}), 2, -1), 0, 1);
  Tensor seen = torch::stable::transpose(torch::stable::narrow(rows, 0, 1, 4), 0, 1);
  auto to = static_cast<float*>(out.mutable_data_ptr());
  for (int64_t number : {seen.size(0), seen.size(1), seen.stride(0), seen.stride(1)}) *to++ = number;
  *to = *static_cast<const float*>(seen.const_data_ptr());
}

// Results of several kinds, errors, and a list with None.
Tensor odd(const Tensor& x, std::vector<std::optional<Tensor>> list, int64_t what) {
  if (what == 0) throw list.size();
  if (what == 1) return torch::stable::from_blob(x.mutable_data_ptr(), {1}, {1}, x.device(), ScalarType::Float);
  if (what == 2) return torch::stable::view(x, {-3, -4});
  if (what == 3) return torch::stable::contiguous(x, torch::headeronly::MemoryFormat::ChannelsLast);
  Tensor turned = torch::stable::transpose(list[1].value(), 0, 1);
  return what == 4 ? torch::stable::empty_like(turned) : turned;
}

std::string text(int64_t number) { return message(number); }

Tensor summed(const Tensor& x) { return torch::stable::sum(x); }

STABLE_TORCH_LIBRARY(acme, m) {
  m.def("mix(Tensor! out, Tensor x, Tensor? bias, float factor, int shift, bool negate=False) -> ()");
  m.def("count(Tensor x, int[] sizes, str name, int? more=None) -> int");
  m.def("doubled(Tensor x) -> Tensor");
  m.def("corner(Tensor! out, Tensor x) -> ()");
  m.def("odd(Tensor x, Tensor?[] list, int what) -> Tensor");
  m.def("text(int number) -> str");
  m.def("summed(Tensor x) -> Tensor");
}
STABLE_TORCH_LIBRARY_IMPL(acme, CUDA, m) {
  m.impl("mix", TORCH_BOX(&mix));
  m.impl("count", TORCH_BOX(&count));
  m.impl("doubled", TORCH_BOX(&doubled));
  m.impl("corner", TORCH_BOX(&corner));
  m.impl("odd", TORCH_BOX(&odd));
  m.impl("text", TORCH_BOX(&text));
  m.impl("summed", TORCH_BOX(&summed));
}
STABLE_TORCH_LIBRARY_IMPL(acme, CPU, m) { m.impl("mix", TORCH_BOX(&mix)); }
"""

DEFINITIONS = """\
from kernelwright import kernel
from kernelwright.cuda import Exported, Scalar, Tensor

OPTIONS = {
    "frontend": "cuda",
    "sources": ["operators.cpp"],
    "includes": ["package:torch/include"],
    "flags": ["-DTORCH_TARGET_VERSION=0x020A000000000000"],
}


@kernel(**OPTIONS, outputs=["out"])
def mix():
    return Exported(
        "mix",
        out=Tensor("float32", "m", "n"),
        x=Tensor("float32", "m", "n", strides="free"),
        bias=Tensor("float32", "n", optional=True),
        factor=Scalar("float64"),
        shift=Scalar("int64"),
    )


@kernel(**OPTIONS, backends=["tvm_ffi"])
def count():
    return Exported("count")


@kernel(**OPTIONS, backends=["tvm_ffi"])
def twice():
    return Exported("doubled")


@kernel(**OPTIONS, outputs=["out"])
def corner():
    return Exported("corner", out=Tensor("float32", 5), x=Tensor("float32", "n"))


@kernel(**OPTIONS, backends=["tvm_ffi"])
def odd():
    return Exported("odd")


@kernel(**OPTIONS, backends=["tvm_ffi"])
def text():
    return Exported("text")


@kernel(**OPTIONS, backends=["tvm_ffi"])
def summed():
    return Exported("summed")
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    project = Project.of(tmp_path_factory.mktemp("registered"), SETTINGS, own=DEFINITIONS)
    project.write("kernels/operators.cpp", SOURCE)
    run = project.scons("-j2")
    assert (run.labels["LINK"], run.labels["OBJECT"], run.labels["SOURCES"]) == (7, 1, 1), run.labels
    make_standin(project)
    return project


CALLS = """
import numpy as np
x, bias, out = np.arange(12, dtype=np.float32).reshape(3, 4), np.ones(2, np.float32), np.zeros((3, 2), np.float32)
def there(array, *shape, **more):
    return on_cuda(*shape, data=array.ctypes.data, **more)
view = there(x[:, ::2], 3, 2, strides=(4, 2))
demo.mix(there(out, 3, 2), view, there(bias, 2), 2.0, 5)
print(out.tolist() == (2 * x[:, ::2] + 5 + 1).tolist(), end=" ")
demo.mix(there(out, 3, 2), view, None, 0.5, -1)
print(out.tolist() == (0.5 * x[:, ::2] - 1).tolist())
print(demo.count(there(x, 3, 4), [1, 2, 3], "good"), demo.count(there(x, 3, 4), [], "n", 7))
for arguments in ((there(x, 3, 4), [5], "bad"), (there(x, 3, 4), [5]), (there(x, 3, 4), 5, "n"), (1, [], "n"),
                  (there(x, 3, 4), [2.5], "n"), (there(x, 3, 4), [], "n", 1, 2)):
    print(message_of(demo.count, *arguments))
print(message_of(demo.mix, there(out, 3, 2), there(x, 3, 4), there(bias, 2), 2.0, 5))
seen = np.zeros(5, np.float32)
demo.corner(there(seen, 5), there(x, 12))
print(seen.tolist())
print(message_of(demo.summed, there(x, 3, 4)))
print(message_of(demo.twice, x))
there = there(x, 3, 4)
for what in range(5): print(message_of(demo.odd, there, [None, there], what).split("\\n")[0])
turned = demo.odd(there, (None, there), 5)
print(turned.shape, turned.strides, turned.data_ptr() == x.ctypes.data, message_of(demo.text, 1))
"""


def test_operators_get_what_their_schemas_say_and_errors_come_back(built):
    printed, _ = call(built, CALLS, capability=80)
    lines = printed.splitlines()
    assert lines[0] == "True True"
    assert lines[1] == f"{6 + 12 + 2000} {7 + 12 + 2000}"
    assert lines[2] == "RuntimeError: count, kernels/operators.cpp:32, number 5"
    assert lines[3:8] == [
        "TypeError: operator count: argument name is missing",
        "TypeError: operator count: argument sizes is an integer, and its schema says int[]",
        "TypeError: operator count: argument x is an integer, and its schema says Tensor",
        "TypeError: operator count: argument sizes is a number, and its schema says int",
        "TypeError: operator count: it takes 4 arguments by its schema, and got 5",
    ]
    assert "ValueError: kernel 'mix': Mismatched" in lines[8]
    assert "[2.0, 4.0, 1.0, 2.0, 2.0]" in lines
    assert "RuntimeError: operator summed: its sources call aten::sum, which needs PyTorch" in printed
    assert lines[-6:] == [
        "RuntimeError: operator odd: its sources threw what is no std::exception",
        "TypeError: operator odd: it returns an array whose memory nothing keeps, as that of from_blob",
        "RuntimeError: operator odd: a view has sizes from 0, and one -1",
        "RuntimeError: operator odd: memory is contiguous here, in no other format",
        "RuntimeError: operator odd: empty_like is for arrays in row-major order here",
        "(4, 3) (1, 4) True TypeError: operator text: it returns neither an array nor a number, but str",
    ]
    assert "TypeError: operator doubled: it is registered for CUDA, and its arrays are on the CPU" in lines


ALLOCATING = """
import ctypes
import numpy as np

class Managed(ctypes.Structure):
    # A DLManagedTensorVersioned of one dimension: version, context, deleter and flags, and then its array.
    _fields_ = [("version", ctypes.c_uint32 * 2), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p),
                ("flags", ctypes.c_uint64), ("data", ctypes.c_void_p), ("device", ctypes.c_int32 * 2),
                ("ndim", ctypes.c_int32), ("dtype", ctypes.c_uint32), ("shape", ctypes.c_void_p),
                ("strides", ctypes.c_void_p), ("offset", ctypes.c_uint64)]

memory, sizes, ones = np.zeros(3, np.float32), (ctypes.c_int64 * 1)(3), (ctypes.c_int64 * 1)(1)

def allocate(like, made, *_):
    of = ctypes.cast(like - Managed.data.offset, ctypes.POINTER(Managed)).contents
    assert list(of.device) == [2, 1] and of.ndim == 1
    kept = Managed((1, 1), None, None, 0, memory.ctypes.data, (2, 1), 1, of.dtype, ctypes.addressof(sizes),
                   ctypes.addressof(ones), 0)
    made[0] = ctypes.addressof(kept)
    alive.append(kept)
    return 0

alive = []
x = np.arange(3, dtype=np.float32)
there = on_cuda(3, device=1, data=x.ctypes.data)
print(message_of(demo.twice, there))
allocator = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p,
                             ctypes.c_void_p)(allocate)
library = ctypes.CDLL(tvm_ffi.libinfo.find_libtvm_ffi())
assert not library.TVMFFIEnvSetDLPackManagedTensorAllocator(allocator, 1, None)
made = demo.twice(there)
print(made.device, made.shape, memory.tolist())
"""


def test_new_arrays_come_from_the_allocator_of_the_callers_framework(built):
    printed, _ = call(built, ALLOCATING, capability=80, devices=2)
    assert "the caller's framework gives no memory" in printed
    assert printed.endswith("cuda:1 (3,) [0.0, 2.0, 4.0]")


PAD = """\
extern "C" int aoti_torch_aten_pad();
static int padded = aoti_torch_aten_pad();
"""
"""It calls what only PyTorch has, which the functions of its headers do."""

WRONG = (
    (
        '"mix",',
        '"mixed",',
        "do not export 'mixed'; they export nothing; they register corner, count, doubled, mix, odd, summed, text",
    ),
    ('Scalar("int64")', 'Tensor("int64", 1)', "argument 'shift' is a tensor, and the schema of mix has 'int shift'"),
)
"""What is edited, and what the build says then."""


def test_what_the_sources_do_not_register_or_say_otherwise_is_an_error_of_the_build(built, tmp_path):
    project = built.copied(tmp_path / "edited")
    for old, new, words in WRONG:
        project.replace("kernels/own.py", old, new)
        assert words in project.scons(ok=False).output
        project.replace("kernels/own.py", new, old)
    # Another namespace with an operator of the same name, and an equal schema.
    project.write("kernels/more.cpp", raw("other", "summed(Tensor x) -> Tensor"))
    project.replace("kernels/own.py", '["operators.cpp"]', '["operators.cpp", "more.cpp"]')
    said = project.scons("summed", ok=False).output
    assert "kernels/own.py:49 summed/default [link]: operators.cpp and more.cpp register several operators of" in said
    assert "of the name 'summed', and a call could be for any\n  remedy: leave the sources of one of them out" in said
    project.replace("kernels/own.py", '["operators.cpp", "more.cpp"]', '["operators.cpp", "pad.cpp"]')
    project.write("kernels/pad.cpp", PAD)
    assert "aoti_torch_aten_pad" in project.scons("summed", ok=False).output
