"""``kernelwright import build.toml``: what is read of a project of kernel-builder, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from kernelwright.commands.importer import import_source
from kernelwright.core.errors import KernelwrightError
from kernelwright.frontends.cuda.exported import Exported
from support.kernel_builder import BINDING, BUILD, FIRST, kernel_builder_project


def imported(project: Path, file: Path | None = None) -> tuple[str, dict[str, Any]]:
    """What the command says, and the names of the definition file that it makes."""
    path, names = file or project.with_name("two_ops.py"), dict[str, Any]()
    path.parent.mkdir(exist_ok=True)
    said = import_source(project, file)
    exec(compile(path.read_text(), str(path), "exec"), names)
    return said, names


def test_a_project_becomes_a_definition_file_with_what_build_toml_says(tmp_path: Path) -> None:
    said, made = imported(kernel_builder_project(tmp_path))
    assert said.splitlines()[:2] == [
        f"{tmp_path / 'two_ops.py'}: add",
        "left out: pair: it returns several values, (Tensor, Tensor): write a form that writes to arguments",
    ]
    assert made["OPTIONS"] == {
        "frontend": "cuda",
        "sources": ["torch-ext/torch_binding.cpp", "add/add.cpp"],
        "includes": ["registration", "package:torch/include"],
        "flags": [
            *("-DUSE_CUDA=1", "-DCUDA_KERNEL", "-DTORCH_EXTENSION_NAME=two_ops", "-DENABLE_FP8"),
            *("--expt-relaxed-constexpr", "--expt-extended-lambda", "-DTORCH_TARGET_VERSION=0x020a000000000000"),
            *("-DSCALE=2", "-Xptxas", "-O3", "-DHOST=1", "-Xcompiler=-fno-math-errno"),
            *("-U__CUDA_NO_HALF_OPERATORS__", "-U__CUDA_NO_HALF_CONVERSIONS__"),
            *("-U__CUDA_NO_BFLOAT16_CONVERSIONS__", "-U__CUDA_NO_HALF2_OPERATORS__"),
        ],
        "archs": ["sm_80", "sm_90a", "sm_120", "compute_120"],
        "backends": ["tvm_ffi"],
    }
    assert made["add"].doc == "add(Tensor! out, Tensor x, Tensor? bias, float factor=1.0) -> ()"
    returned = made["add"].function()
    assert isinstance(returned, Exported) and (returned.function, returned.is_opaque) == ("add", True)
    text = " ".join((tmp_path / "two_ops.py").read_text().replace("\n#", "\n").split())
    assert 'outputs=["out"], and return Exported("add", out=Tensor("float32", "out_size"), ' in text
    assert 'bias=Tensor("float32", "bias_size", optional=True), factor=Scalar("float64"))' in text
    assert "These cuda-capabilities are left out, for which CUDA 13 makes no code: 7.0." in text
    assert "These sections are left out, because they are not for CUDA: add_cpu." in text
    assert "torch-ext/two_ops has Python code that calls ops.NAME(...)" in text
    assert "REGISTER_EXTENSION" in (tmp_path / "registration/registration.h").read_text()


def test_the_first_edition_has_neither_backends_nor_a_stable_abi(tmp_path: Path) -> None:
    project = kernel_builder_project(tmp_path / "project", FIRST)
    (tmp_path / "project/torch-ext/registration.h").write_text("")
    _, made = imported(project, tmp_path / "kernels/ops.py")
    assert made["OPTIONS"]["sources"] == ["../project/torch-ext/torch_binding.cpp", "../project/add/add.cpp"]
    assert made["OPTIONS"]["includes"] == ["package:torch/include"], "the project has its own registration.h"
    assert not [flag for flag in made["OPTIONS"]["flags"] if "TARGET" in flag]
    assert not (tmp_path / "kernels/registration").exists()


FFI = "#include <tvm/ffi/tvm_ffi.h>\n#ifdef CPU_KERNEL\nTVM_FFI_DLL_EXPORT_TYPED_FUNC(of_cpu, f);\n#endif\n"


def test_functions_for_tvm_ffi_are_found_where_their_conditions_hold(tmp_path: Path) -> None:
    build = BUILD.replace("[torch.stable-abi]\ncuda", "[general.hub]\nrepo-id").replace("[torch]", "[tvm-ffi]")
    text = FFI + "TVM_FFI_DLL_EXPORT_TYPED_FUNC(of_cuda, f);\n"
    _, made = imported(kernel_builder_project(tmp_path, build, text))
    assert made["of_cuda"].function().function == "of_cuda" and "of_cpu" not in made
    assert "includes" not in made["OPTIONS"]
    assert made["OPTIONS"]["flags"][:3] == ["-DUSE_CUDA=1", "-DCUDA_KERNEL", "-DSCALE=2"]


def test_a_definition_file_in_a_folder_of_its_own_names_the_folder_above(tmp_path: Path) -> None:
    _, made = imported(kernel_builder_project(tmp_path), tmp_path / "kernels/ops.py")
    assert made["OPTIONS"]["includes"] == ["registration", "..", "package:torch/include"]
    assert (tmp_path / "kernels/registration/registration.h").exists()


def test_sections_that_differ_are_told_and_cutlass_comes_from_its_package(tmp_path: Path) -> None:
    other = '[kernel.more]\nbackend = "cuda"\ndepends = ["torch", "cutlass_3_6"]\nsrc = ["add/add.cpp"]\n'
    _, made = imported(kernel_builder_project(tmp_path, BUILD + other))
    text = (tmp_path / "two_ops.py").read_text().replace("\n# ", " ")
    assert "archs" not in made["OPTIONS"] and "package:cutlass_library/source/include" in made["OPTIONS"]["includes"]
    assert "the cuda-capabilities of its sections differ: 7.0, 8.0, 9.0a, 12.0+PTX; all. Here all are for all." in text
    assert "the flags of its sections differ. Here all sources get all of them." in text
    assert "pip install nvidia-cutlass" in text


REFUSED = (
    (BUILD.replace('name = "two-ops"', ""), BINDING, r"\[general\] lacks name, expected a text"),
    (BUILD.replace('["."]', '"."'), BINDING, r"\[kernel.add\] has include = '\.', expected a list of texts"),
    (BUILD.replace("[torch]", "[torch"), BINDING, "is not valid TOML"),
    (BUILD.replace("[torch]\nsrc", "[torch]\npyext"), BINDING, "neither \\[torch\\] nor \\[tvm-ffi\\] lists sources"),
    (
        BUILD.replace('"cuda"\ndep', '"rocm"\ndep'),
        BINDING,
        "none of its .kernel. sections is for cuda; they are for cpu, r",
    ),
    (BUILD.replace("add/add.cpp", "add/ad.cpp"), BINDING, "it names 'add/ad.cpp', which is no file beside it"),
    (
        BUILD.replace('["torch"]', '["sycl_tla"]'),
        BINDING,
        r"\[kernel.add\] depends on 'sycl_tla', which is neither torch",
    ),
    (BUILD.replace('"2.10"', '"new"'), BINDING, "has stable-abi = 'new', expected a version(.|\n)*remedy: write, for"),
    (BUILD, BINDING.replace("ops.def(", "ops.define("), "no source for CUDA has ops.def"),
    (BUILD, "#error no\n" + BINDING, "the C\\+\\+ preprocessor refuses a source(.|\n)*#error no"),
    (
        BUILD,
        "\nPYBIND11_MODULE(TORCH_EXTENSION_NAME, m) {}",
        r"torch_binding.cpp:2 \[import\]: PYBIND11_MODULE says nothing of what(.|\n)*remedy: write one by hand",
    ),
)
"""``build.toml``, the binding, and what is said of them."""


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_what_cannot_be_read_is_a_clear_error_and_leaves_no_file(tmp_path: Path, number: int) -> None:
    build, binding, words = REFUSED[number]
    with pytest.raises(KernelwrightError, match=words):
        import_source(kernel_builder_project(tmp_path, build, binding), None)
    assert not (tmp_path / "two_ops.py").exists() and not (tmp_path / "registration").exists()


@pytest.mark.parametrize("gone", ["STABLE_", "nothing"])
def test_operators_that_can_only_be_called_in_pytorch_become_one_kernel(tmp_path: Path, gone: str) -> None:
    binding = BINDING.replace(gone, "").replace("add(Tensor! out, Tensor x, ", "add.more(Tensor x, ")
    said = import_source(kernel_builder_project(tmp_path, BUILD, binding), None)
    text = (tmp_path / "two_ops.py").read_text()
    assert said.splitlines()[0] == f"{tmp_path / 'two_ops.py'}: ops"
    assert '    return Operators(\n        "two_ops::add.more",\n        "two_ops::pair",\n    )\n' in text
    assert '"frontend": "torch",' in text and "backends" not in text and "-U__CUDA_NO_HALF_OPERATORS__" in text
    assert "TORCH_LIBRARY_IMPL_EXPAND" in (tmp_path / "registration/registration.h").read_text()


@pytest.mark.parametrize("is_last", [False, True])
def test_a_library_that_is_not_stable_decides_for_all(tmp_path: Path, is_last: bool) -> None:
    more = '\nTORCH_LIBRARY_FRAGMENT(two_ops, more) { more.def("more(Tensor! x) -> ()"); }\n'
    import_source(kernel_builder_project(tmp_path, BUILD, BINDING + more if is_last else more + BINDING), None)
    assert '"frontend": "torch",' in (tmp_path / "two_ops.py").read_text()


def test_a_registration_header_of_others_is_not_replaced(tmp_path: Path) -> None:
    project = kernel_builder_project(tmp_path)
    (tmp_path / "registration").mkdir()
    (tmp_path / "registration/registration.h").write_text("// theirs\n")
    with pytest.raises(KernelwrightError, match=r"registration.h \[import\]: this file cannot be written: File exists"):
        import_source(project, None)
    assert (tmp_path / "registration/registration.h").read_text() == "// theirs\n"
