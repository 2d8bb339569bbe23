"""The text that the tvm_ffi backend writes, also for variants that differ, and what it refuses to write."""

from __future__ import annotations

import json
import re
import subprocess
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright.backends import files, get
from kernelwright.backends import sources as library
from kernelwright.backends.c_text import size_expression
from kernelwright.backends.commands import ToolPaths
from kernelwright.backends.plan import KernelPlan, LoweredUnit, VariantPlan, with_strictest_alignment
from kernelwright.backends.torch import parameters_of
from kernelwright.core.driver import of_toolkit
from kernelwright.core.errors import KernelwrightError
from kernelwright.core.signature import Argument
from kernelwright.toolchain.cuda import cuda_version
from support.launcher_build import hardened, plan, scalar, signature, tensor

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


def test_equal_plans_give_equal_text_that_is_escaped_and_has_sizes_within_int64() -> None:
    kernel = whole_plan()
    reordered = [replace(unit, symbols=dict(reversed(unit.symbols.items()))) for unit in kernel.units]
    assert emit(gemm_plan(*reordered)) == emit(kernel)
    kernel = one_output([1], [], tensor("x", "float32", [1]))
    odd = replace(kernel, variants=(replace(kernel.variants[0], slug='a"b\\ü??'),))
    assert '.slug = "a\\042b\\134\\303\\274\\077\\077"' in emit(odd)
    complex_ = emit(one_output(["n"], ["n"], tensor("x", "complex64", ["n"])))
    assert '.dtype = {5, 64, 1}, .text = "complex64[n]"' in complex_, "no vector"

    def unit(size: int) -> LoweredUnit:
        return LoweredUnit.from_json(signature("k", [tensor("x", "int8", [size])]), "o")

    assert f"(const int64_t[]){{{2**63 - 1}}}" in emit(plan("k", unit(2**63 - 1)))
    for size in (2**63, -1):
        with pytest.raises(KernelwrightError, match=r"shape\[0\] is .*expected a size from 0 or whole characters"):
            unit(size)
    assert [cuda_version(text) for text in ("13.0.88", "12.9.86", "12.4")] == [13000, 12090, 12040]


@pytest.mark.parametrize(
    "text", ["n / 2", "f(n)", "n if m else 2", "n.x", "max(n)", "True", "1.5", "n ** 2", "min(*n)"]
)
def test_other_python_is_refused_as_a_size(text: str) -> None:
    with pytest.raises(ValueError, match="cannot translate"):
        size_expression(text, str)


X = tensor("x", "float32", [1])
HOST = cpu_unit("float16", "x86-64")
OTHER = signature("gemm", [tensor("a", "float32", [1])], slug="other")
REFUSED: dict[str, tuple[KernelPlan, str]] = {
    "a size that no input tells": (
        one_output(["n"], ["n"], tensor("x", "float32", ["n // 2"])),
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


SOURCE_WITH_ARRAY = """\
void fill(char *text);
__attribute__((visibility("default"))) int PyInit__gemm(void) {
  char text[64];
  fill(text);
  return text[0];
}
"""


def test_extension_modules_are_hardened_like_libraries(tmp_path: Path) -> None:
    tools = ToolPaths("gcc", ".", (), python_include=".")
    _, (compiler, *options) = get("cython").commands("gemm", tools, str(tmp_path))
    (tmp_path / "_gemm.c").write_text(SOURCE_WITH_ARRAY)
    subprocess.run([compiler, *options], check=True)
    elf = hardened(tmp_path / "_gemm.abi3.so")
    assert "__stack_chk_fail" in {symbol.name for symbol in elf.get_section_by_name(".dynsym").iter_symbols()}


def on_cuda(slug: str, rank: int, parameters: int, images: int) -> LoweredUnit:
    """A lowering with an output of that rank, a device function with so many parameters, and so many images."""
    device = {"name": "f", "params": ["handle"] * parameters, "launch": ["blockIdx.x"]}
    arguments = [tensor("y", "float32", [4] * rank, output=True)]
    data = signature("k", arguments, slug=slug, target="cuda", arch="sm_80", device_kernels=[device])
    return LoweredUnit.from_json(data, "host.c", {f"sm_{80 + number}": "image" for number in range(images)})


@pytest.mark.parametrize("first", [True, False])
def test_a_library_has_room_for_the_largest_of_its_variants(first: bool) -> None:
    small, large = on_cuda("small", 1, 2, 3), on_cuda("large", 4, 5, 6)
    units = [large, small] if first else [small, large]
    text = emit(plan("k", *units, outputs=["y"]))
    assert "  .num_dims = 4,\n" in text
    libraries = re.findall(r"^static void \*kw_libraries_\d\[(\d)\];$", text, re.M)
    assert libraries == (["6", "3"] if first else ["3", "6"])


def test_the_operator_of_pytorch_takes_a_number_of_any_variant_and_writes_what_one_of_them_writes() -> None:
    for dtypes, kind in {
        **{("int32", "float16"): "float", ("bfloat16", "int64"): "float", ("bool", "float32"): "float"},
        **{("bool", "uint8"): "SymInt", ("bool", "bool"): "bool"},
    }.items():
        (parameter,) = parameters_of([[Argument("k", "scalar", dtype, False, False)] for dtype in dtypes])
        assert parameter.kind == kind, dtypes
    for first in (True, False):
        written = [[Argument("x", "tensor", "float32", False, each, (4,))] for each in (first, not first)]
        assert parameters_of(written)[0].written
        optional = [[replace(written[0][0], given=each or None)] for each in (first, not first)]
        assert parameters_of(optional)[0].optional
    odd = [Argument(name, "scalar", "int32", False, False) for name in ("a.b", "a_b", "a-b", "class", "self", "2", "")]
    names = [parameter.name for parameter in parameters_of([odd])]
    assert names == ["a_b", "a_b_", "a_b__", "class_", "self_", "argument2", "argument"]


ROWS: dict[str, Any] = {
    **signature("k", [tensor("x", "float32", ["n", 4]) | {"strides": ["s", 1]}], symbols={"n": "int64"}),
    "stride_symbols": {"s": "int64"},
}


@pytest.mark.parametrize(
    "change",
    [
        {"symbols": {"n": "int32"}},
        {"stride_symbols": {"s": "int32"}},
        {"multiples": {"n": 16}},
        *({"arguments": [ROWS["arguments"][0] | more]} for more in ({"alignment": 64}, {"strides": ["s", 2]})),
    ],
    ids=str,
)
def test_variants_share_a_table_in_c_only_if_it_is_right_for_both(change: dict[str, Any]) -> None:
    """What a call is compared with is in the library whatever other variants there are."""

    def written(*units: dict[str, Any]) -> list[str]:
        lowered = [LoweredUnit.from_json(unit | {"entry": f"kw_{number}"}, "o") for number, unit in enumerate(units)]
        return emit(plan("k", *lowered)).splitlines()

    other = ROWS | change | {"slug": "other"}
    (own,) = (line for line in written(other) if line.startswith("static const kw_signature "))
    assert own.replace("_0", "_1") in written(ROWS, other)


def test_what_any_variant_and_any_arch_needs_is_in_the_library() -> None:
    compact = {**signature("k", [tensor("x", "float32", ["n", 4])], symbols={"n": "int64"}), "slug": "compact"}
    steps = ROWS | {"multiples": {"s": 4}}
    one, other = (LoweredUnit.from_json(each | {"entry": f"kw_{each['slug']}"}, "o") for each in (compact, steps))
    for units in ((one, other), (other, one)):
        text = emit(plan("k", *units))
        assert "  .by_strides = true,\n" in text and "(const kw_place[]){{0, 0}}, 1, 4" in text
    aligned = [replace(one, target="cuda", arguments=(replace(one.arguments[0], alignment=n),)) for n in (4, 16)]
    for units in (aligned, aligned[::-1]):
        assert [unit.arguments[0].alignment for unit in with_strictest_alignment((*units, one))] == [16, 16, None]
    kernel = replace(plan("k", one), toolkit=12080, others={"sm_90": 13000})
    assert kernel.driver_of("sm_80") == of_toolkit("sm_80", 12080)
    assert kernel.driver_of("sm_90") == of_toolkit("sm_90", 13000)


def test_the_types_of_any_source_of_a_variant_decide_its_alignments(tmp_path: Path, monkeypatch) -> None:
    (tmp_path / "signature.json").write_text(json.dumps({"arguments": [tensor("x", "float32", ["n"])]}))
    monkeypatch.setattr(files, "asked_alignments", lambda path: {"one": [4], "two": [16]}[path.name])
    for names in (("one", "two"), ("two", "one")):
        unit: Any = SimpleNamespace(named_in=dict(enumerate(names)), signature=str(tmp_path / "signature.json"))
        assert files.UnitFiles.read_signature(unit)["arguments"][0]["alignment"] == 16
