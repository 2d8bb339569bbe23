"""A project in the layout of Hugging Face's kernel-builder, as its present edition and its first one have it."""

from __future__ import annotations

from pathlib import Path

BUILD = """\
[general]
name = "two-ops"
version = 1
edition = 5
license = "Apache-2.0"
backends = ["cuda", "cpu"]

[torch]
src = ["torch-ext/torch_binding.cpp", "torch-ext/torch_binding.h"]

[torch.stable-abi]
cuda = "2.10"

[kernel.add]
backend = "cuda"
depends = ["torch"]
include = ["."]
cuda-capabilities = ["7.0", "8.0", "9.0a", "12.0+PTX"]
cuda-flags = ["-DSCALE=2", "-Xptxas", "-O3"]
cxx-flags = ["-DHOST=1", "-fno-math-errno"]
src = ["add/add.cpp", "add/add.h"]

[kernel.add_cpu]
backend = "cpu"
depends = ["torch"]
src = ["add/missing_here.cpp"]
"""

FIRST = """\
[general]
name = "two-ops"

[torch]
src = ["torch-ext/torch_binding.cpp"]

[kernel.add]
depends = ["torch"]
src = ["add/add.cpp"]

[kernel.add_metal]
language = "metal"
depends = ["torch"]
src = ["add/add.metal"]
"""

BINDING = """\
#if defined(CUDA_KERNEL)
#include <torch/csrc/stable/library.h>
#else
#include <torch/library.h>
#endif
#include "registration.h"
#include "torch_binding.h"

#if defined(CUDA_KERNEL)
STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  // ops.def("gone(Tensor x) -> Tensor");
  ops.def("add(Tensor! out, Tensor x, "
          "Tensor? bias, float factor=1.0) -> ()");
  ops.def("pair(Tensor x) -> (Tensor, Tensor)");
}
STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CUDA, ops) { ops.impl("add", TORCH_BOX(&add)); }
#else
TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) { ops.def("of_cpu(Tensor x) -> Tensor"); }
#endif
REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""

HEADER = """\
#pragma once
#include <torch/csrc/stable/tensor.h>
#include <optional>
void add(torch::stable::Tensor& out, const torch::stable::Tensor& x, std::optional<torch::stable::Tensor> bias,
         double factor);
"""

SOURCE = """\
#include "torch-ext/torch_binding.h"
void add(torch::stable::Tensor& out, const torch::stable::Tensor& x, std::optional<torch::stable::Tensor> bias,
         double factor) {
  auto from = static_cast<const float*>(x.const_data_ptr());
  for (int64_t i = 0; i < x.numel(); ++i)
    static_cast<float*>(out.mutable_data_ptr())[i] = SCALE * factor * from[i] + (bias ? 1 : 0);
}
"""


def kernel_builder_project(folder: Path, build: str = BUILD, binding: str = BINDING) -> Path:
    """Write the project; its ``build.toml``."""
    files = {"build.toml": build, "torch-ext/torch_binding.cpp": binding, "torch-ext/torch_binding.h": HEADER}
    files |= {"add/add.cpp": SOURCE, "torch-ext/two_ops/__init__.py": "from ._ops import ops\n"}
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder / "build.toml"
