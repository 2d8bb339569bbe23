"""The text that the tvm_ffi backend writes, and what it refuses to write."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from kernelwright.backends import get
from kernelwright.backends import sources as library
from kernelwright.backends.c_text import size_expression, symbols_of
from kernelwright.backends.commands import ToolPaths
from kernelwright.backends.plan import KernelPlan, LoweredUnit, VariantPlan
from kernelwright.core.errors import KernelwrightError
from kernelwright.runtime.tables import DeviceTable, Rules
from kernelwright.toolchain.cuda import cuda_version
from support.launcher_build import plan, scalar, signature, tensor

KERNEL = {
    "name": "gemm_kernel",
    "params": ["handle", "handle", "handle", "float32", "int32", "float16", "int64", "bool"],
    "launch": ["blockIdx.x", "blockIdx.y", "clusterCtaIdx.x", "threadIdx.x", "tirx.use_cooperative_launch"],
}
KERNEL["launch"] += ["tirx.use_programtic_dependent_launch", "tirx.use_dyn_shared_memory"]


def gemm(dtype: str, **options: Any) -> dict[str, Any]:
    """The signature of one lowering of a kernel with all kinds of arguments."""
    arguments = [
        tensor("a", dtype, ["m", 4096]),
        tensor("b", dtype, [4096, "n"]),
        tensor("c", dtype, ["m", "min(2 * n, m // 3)"], output=True),
        scalar("alpha", "float32"),
        scalar("k", "int32"),
        tensor("total", "float32", [], output=True),
    ]
    return signature("gemm", arguments, slug=f"dtype-{dtype}", symbols={"m": "int32", "n": "int32"}, **options)


def cuda_unit(dtype: str, **changes: Any) -> LoweredUnit:
    data = gemm(dtype, target="cuda", arch="sm_80", device_kernels=[KERNEL | changes])
    base = f"gemm/dtype-{dtype}/cuda"
    images = {arch: f"{base}/{arch}.bin" for arch in ("sm_80", "sm_90a", "sm_100f", "compute_80")}
    return LoweredUnit.from_json(data, f"{base}/host.c", images)


def cpu_unit(dtype: str, arch: str) -> LoweredUnit:
    return LoweredUnit.from_json(gemm(dtype, arch=arch), f"gemm/dtype-{dtype}/llvm/{arch}/host.o")


def gemm_plan(*units: LoweredUnit) -> KernelPlan:
    return plan("gemm", *units, outputs=["c", "total"])


def whole_plan() -> KernelPlan:
    units = [cpu_unit("float16", "x86-64"), cpu_unit("float16", "x86-64-v3"), cuda_unit("float16")]
    units += [cpu_unit("bfloat16", "x86-64-v3"), cuda_unit("bfloat16")]
    return gemm_plan(*units)


def emit(kernel: KernelPlan) -> str:
    return library.emit(kernel)["wrapper.c"]


def one_output(shape: list[int | str], symbols: list[str], *inputs: dict[str, Any]) -> KernelPlan:
    arguments = [*inputs, tensor("y", "float32", shape, output=True)]
    data = signature("k", arguments, symbols=dict.fromkeys(symbols, "int32"))
    return plan("k", LoweredUnit.from_json(data, "host.o"), outputs=["y"])


def tuned_plan() -> KernelPlan:
    """The kernel in float16, and a second variant that runs where a table for a GPU or for a CPU says so."""
    by_both = Rules(("m", "k"), ((64, 0), (4096, 1), (None, 0)))
    gpu = DeviceTable("cuda", "sm_90a", "NVIDIA H100 80GB HBM3", 132, {0: by_both})
    cpu = DeviceTable("llvm", "x86-64-v3", 'A "CPU"', 8, {0: Rules((), ((None, 1),))})
    units = [unit for unit in whole_plan().units if unit.arch != "x86-64" and unit.slug == "dtype-float16"]
    others = [replace(unit, slug="other", entry=f"{unit.entry}_other") for unit in units]
    return replace(gemm_plan(*units, *others), declared=1, tables=(gpu, cpu))


def test_what_only_some_kernels_have_is_in_no_other_library() -> None:
    assert "tuning" in emit(tuned_plan()) and "declared" in emit(tuned_plan())
    without = emit(replace(tuned_plan(), tables=(), declared=None))
    assert "tuning" not in without and "declared" not in without and "tabled" not in without
    assert "tuning" not in emit(replace(tuned_plan(), tables=()))
    of_both, of_cpu = whole_plan(), gemm_plan(cpu_unit("float16", "x86-64"))
    of_cuda = [unit for unit in of_both.units if unit.target == "cuda"]
    for kernel in (of_both, of_cpu):
        assert "#define KW_LLVM\n#include" in emit(kernel), "host code is linked"
    assert "KW_LLVM" not in emit(gemm_plan(*of_cuda))
    assert emit(replace(of_cpu, split=True, toolkit=13000)) == emit(of_cpu), "it has no device code to split"


def test_a_cuda_version_is_counted_as_cuda_does() -> None:
    assert [cuda_version(text) for text in ("13.0.88", "12.9.86", "12.4")] == [13000, 12090, 12040]


def test_equal_plans_give_equal_text() -> None:
    kernel = whole_plan()
    reordered = [replace(unit, symbols=dict(reversed(unit.symbols.items()))) for unit in kernel.units]
    assert emit(gemm_plan(*reordered)) == emit(kernel)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n", "n_"),
        ("n * 2 + 1", "kw_add(kw_multiply(n_, INT64_C(2)), INT64_C(1))"),
        ("(n + 31) // 32", "kw_floordiv(kw_add(n_, INT64_C(31)), INT64_C(32))"),
        ("n % m - -1", "kw_subtract(kw_floormod(n_, m_), kw_subtract(INT64_C(0), INT64_C(1)))"),
        ("max(n, m, 4)", "kw_max(kw_max(n_, m_), INT64_C(4))"),
    ],
)
def test_sizes_are_translated_to_c(text: str, expected: str) -> None:
    assert size_expression(text, "{}_".format) == expected


@pytest.mark.parametrize(
    "text", ["n / 2", "f(n)", "n if m else 2", "n.x", "max(n)", "True", "1.5", "n ** 2", "min(*n)"]
)
def test_other_python_is_refused_as_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="cannot translate"):
        size_expression(text, str)


def test_symbols_are_listed_once_in_order() -> None:
    assert symbols_of("m * n + m") == ["m", "n"]
    assert symbols_of(7) == []


def test_a_size_of_an_output_may_come_from_a_number() -> None:
    assert "const int64_t size_n = call->values[0]->v_int64;" in emit(one_output(["n"], ["n"], scalar("n", "int32")))


X = tensor("x", "float32", [1])
HOST = cpu_unit("float16", "x86-64")
OTHER = signature("gemm", [tensor("a", "float32", [1])], slug="other")
REFUSED: dict[str, tuple[KernelPlan, str]] = {
    "a size that no input tells": (
        one_output(["n"], ["n"], tensor("x", "float32", ["2 * n"])),
        r"k/default \[wrap\]: output 'y' has the size 'n'.*no input tells",
    ),
    "a size that cannot be computed": (one_output(["f(n)"], ["n"], X), r"the size 'f\(n\)' of an output cannot be"),
    "a launch parameter": (
        gemm_plan(cuda_unit("float16", launch=["blockIdx.x", "vthread"])),
        "'gemm_kernel' has the launch parameter 'vthread'",
    ),
    "shared memory that is not the last": (
        gemm_plan(cuda_unit("float16", launch=["tirx.use_dyn_shared_memory", "blockIdx.x"])),
        r"launch parameter 'tirx\.use_dyn_shared_memory'",
    ),
    **{
        f"a parameter of {dtype}": (
            gemm_plan(cuda_unit("float16", params=["handle", dtype])),
            f"parameter of dtype '{dtype}'",
        )
        for dtype in ("bfloat16", "float32x4", "TensorMap")
    },
    **{
        f"the arch {arch}": (
            gemm_plan(replace(cuda_unit("float16"), images={arch: "x"})),
            f"unknown CUDA arch '{arch}'",
        )
        for arch in ("sm80", "sm_90b", "gfx90a")
    },
    "a CPU": (gemm_plan(cpu_unit("float16", "znver4")), "unknown CPU arch 'znver4'"),
    "a dtype": (one_output([1], [], tensor("x", "quaternion", [1])), "dtype 'quaternion' cannot be an argument"),
    "an alignment": (one_output([1], [], X | {"alignment": 24}), "'x' has the alignment 24, expected a power of two"),
    "no images": (gemm_plan(replace(cuda_unit("float16"), images={})), "has no device code"),
    "other arguments": (
        gemm_plan(HOST, LoweredUnit.from_json(OTHER, "host.o")),
        r"gemm/other \[wrap\]: its arguments are a\[\], those of variant",
    ),
    "other outputs than the definition": (plan("gemm", HOST, outputs=["c"]), "its outputs are"),
    "a variant without a lowering": (
        replace(gemm_plan(HOST), variants=(*gemm_plan(HOST).variants, VariantPlan("empty", {}, ()))),
        "a variant has no lowering",
    ),
    "one symbol twice": (
        gemm_plan(HOST, replace(cpu_unit("float16", "x86-64-v3"), entry=HOST.entry)),
        r"symbol .* appears twice",
    ),
    **{
        f"the name {name}": (
            plan(name, LoweredUnit.from_json(signature(name, [X]), "host.o")),
            "cannot be a kernel's name",
        )
        for name in ("kw_preload", "main")
    },
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_a_library_is_refused(what: str) -> None:
    kernel, message = REFUSED[what]
    with pytest.raises(KernelwrightError, match=message):
        emit(kernel)


def test_a_signature_of_another_schema_or_an_incomplete_one_is_refused() -> None:
    data = gemm("float16")
    with pytest.raises(KernelwrightError, match="schema 2, expected 1"):
        LoweredUnit.from_json(data | {"schema": 2}, "host.o")
    del data["entry"]
    with pytest.raises(KernelwrightError, match="entry is missing"):
        LoweredUnit.from_json(data, "host.o")


def test_text_in_the_wrapper_is_escaped() -> None:
    kernel = one_output([1], [], tensor("x", "float32", [1]))
    odd = replace(kernel, variants=(replace(kernel.variants[0], slug='a"b\\ü??'),))
    assert '.slug = "a\\042b\\134\\303\\274\\077\\077"' in emit(odd)
    complex_ = emit(one_output(["n"], ["n"], tensor("x", "complex64", ["n"])))
    assert '.dtype = {5, 64, 1}, .text = "complex64[n]"' in complex_, "no vector"


SOURCE_WITH_ARRAY = """\
void fill(char *text);
__attribute__((visibility("default"))) int PyInit__gemm(void) {
  char text[64];
  fill(text);
  return text[0];
}
"""


def test_extension_modules_are_hardened_like_libraries(tmp_path: Path) -> None:
    _, (compiler, *options) = get("cython").commands(
        "gemm", ToolPaths("gcc", ".", (), python_include="."), str(tmp_path)
    )
    (tmp_path / "_gemm.c").write_text(SOURCE_WITH_ARRAY)
    subprocess.run([compiler, *options], check=True)
    with (tmp_path / "_gemm.abi3.so").open("rb") as file:
        elf = ELFFile(file)
        assert "PT_GNU_RELRO" in {segment.header.p_type for segment in elf.iter_segments()}
        tags = {tag.entry.d_tag: tag.entry.d_val for tag in elf.get_section_by_name(".dynamic").iter_tags()}
        assert tags["DT_FLAGS"] & 0x8 and tags["DT_FLAGS_1"] & 0x1, "DF_BIND_NOW and DF_1_NOW of elf.h"
        assert "__stack_chk_fail" in {symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()}
