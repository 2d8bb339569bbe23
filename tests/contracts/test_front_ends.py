"""What every front end promises: what it makes, that asking it imports nothing, and mistakes that name their place."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest
from kernelwright import kernel
from kernelwright.core.errors import DefinitionError, Where
from kernelwright.define.settings import TARGETS
from kernelwright.define.unit import Unit, unit_symbol
from kernelwright.frontends import get, names, recognized
from kernelwright.frontends.cuda.exported import Exported
from kernelwright.frontends.cuda.source import Source
from kernelwright.frontends.cutedsl.program import Program, Tensor
from support.project import SITE_SCONS

WHERE = Where("k", "default", "lower", "k.py:3")
ARGUMENTS: dict[str, tuple[dict[str, Any], str]] = {
    "llvm": ({"targets": ["llvm"]}, "a definition in {name} cannot be built for the target 'llvm'"),
    "flags": ({"flags": ["-v"]}, "flags are those of nvcc, which does not compile this kernel"),
    "passes": ({"pass_configs": {"tirx.disable_vectorize": True}}, "do not lower a definition in {name}"),
    "sources": ({"sources": ["a.cu"]}, "sources are files in CUDA C++, and this definition is written in {name}"),
    "includes": ({"includes": ["a"]}, "includes are files in CUDA C++, and this definition is written in {name}"),
}
"""Arguments of the decorator -> what a front end says that cannot have them."""

REFUSED = {
    "tir": {"sources", "includes"},
    "cuda": {"llvm", "passes"},
    "tilelang": {"llvm", "passes", "sources", "includes"},
    "cutedsl": {"llvm", "flags", "passes", "sources", "includes"},
    "triton": {"llvm", "flags", "passes", "sources", "includes"},
    "torch": {"llvm", "passes"},
}
"""Front end -> what a kernel cannot have with it."""

NEEDED: dict[str, dict[str, Any]] = {"torch": {"sources": ["a.cu"]}}
"""Front end -> what a kernel has to have with it."""

ARCHS = {"llvm": ("x86-64-v3",), "cuda": ("sm_80", "sm_90a", "compute_90")}


def test_each_front_end_has_the_name_that_it_is_listed_under() -> None:
    assert names()[0] == "tir" and set(REFUSED) == set(names())
    assert [get(name).name for name in names()] == list(names())
    for wrong in ("cute", ["tir"]):
        with pytest.raises(DefinitionError, match=re.escape(f"frontend is {wrong!r}")) as caught:
            get(wrong, WHERE)  # type: ignore[arg-type]
        assert caught.value.where == WHERE and caught.value.remedy


@pytest.mark.parametrize("name", names())
def test_what_a_front_end_makes_is_enough_for_the_stages_after_it(name: str) -> None:
    front_end = get(name)
    assert front_end.targets and set(front_end.targets) <= set(TARGETS)
    for target in front_end.targets:
        files = front_end.files(target, ARCHS[target])
        assert len(set(files.names)) == len(files.names)
        assert {files.module, "signature.json", *files.host} <= set(files.names)
        if front_end.backends:  # nothing is lowered, because sources have all of the code
            assert not (files.host or files.source or files.images)
            continue
        assert ("host.o" if target == "llvm" else "host.c") in files.host
        compiles = target == "cuda" and front_end.compiles_device_code
        assert bool(files.source) == (target == "cuda" and not compiles)
        assert tuple(files.images) == (ARCHS[target] if compiles else ())
        assert set(files.usages) == {arch for arch in files.images if arch.startswith("sm_")}


def test_what_each_front_end_makes() -> None:
    tir, cutedsl = get("tir"), get("cutedsl")
    assert tir.files("llvm", ("x86-64",)).names == ("module.tir", "signature.json", "host.o")
    assert tir.files("cuda", ("sm_80",)).names == ("module.tir", "signature.json", "host.c", "device.cu")
    expected = ["module.mlir", "signature.json", "host.c", "host.o", "sm_80.cubin", "compute_80.ptx", "sm_80.json"]
    assert list(cutedsl.files("cuda", ("sm_80", "compute_80")).names) == expected


def test_the_build_asks_front_ends_without_importing_what_they_lower_with() -> None:
    program = (
        "import sys\n"
        "from kernelwright import frontends\n"
        "for name in frontends.names():\n"
        "    front_end = frontends.get(name)\n"
        "    front_end.files('cuda', ('sm_80',)), front_end.needs, front_end.targets\n"
        "print(sorted({'tvm', 'tvm_ffi', 'cutlass', 'elftools', 'numpy'} & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(SITE_SCONS)}, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("[]\n", "")


@pytest.mark.parametrize("name", names())
def test_what_a_front_end_cannot_do_is_an_error_at_the_kernel(name: str) -> None:
    def k() -> None: ...

    for argument, (given, message) in ARGUMENTS.items():
        declared = kernel(k, frontend=name, **NEEDED.get(name, {}) | given)
        if argument not in REFUSED[name]:
            get(name, WHERE).check(declared, WHERE)
            continue
        with pytest.raises(DefinitionError, match=re.escape(message.format(name=name))) as caught:
            get(name, WHERE).check(declared, WHERE)
        assert caught.value.where == WHERE and caught.value.remedy


def test_what_another_front_end_lowers_is_recognized_as_its() -> None:
    program = Program(lambda x: None, x=Tensor("float32", "n"))
    recognized(get("cutedsl"), program, WHERE)
    with pytest.raises(DefinitionError, match="Program, expected a PrimFunc or an IRModule") as caught:
        recognized(get("tir"), program, WHERE)
    assert (caught.value.where, caught.value.remedy) == (WHERE, 'declare it with @kernel(frontend="cutedsl", ...)')


def test_a_source_of_a_kernel_with_sources_is_an_error_that_names_the_ways_out() -> None:
    source = Source("scale.cu", "scale", x=Tensor("float32", "n"), grid=1, block=32)
    with pytest.raises(DefinitionError, match="Source, expected an Exported") as caught:
        recognized(get("cuda").with_host_code(()), source, WHERE)
    assert "Exported(" in caught.value.remedy and "leave sources out" in caught.value.remedy


@pytest.mark.parametrize("name", names())
def test_what_no_front_end_lowers_is_an_error_that_says_what_to_return(name: str) -> None:
    with pytest.raises(
        DefinitionError, match=f"returned an object of type builtins.int, expected {get(name).expects}"
    ) as caught:
        recognized(get(name), 3, WHERE)
    assert caught.value.remedy == get(name).remedy
    with pytest.raises(DefinitionError, match="the definition returned None, expected") as caught:
        recognized(get(name), None, WHERE)
    assert caught.value.remedy == f"end the definition with a return statement: {get(name).remedy}"


def test_a_definition_that_is_called_for_each_arch_is_told_the_arch() -> None:
    unit = Unit("k", "default", "kw_k__default__cuda", {}, (), "cuda", "sm_90a", "k.py:3")
    each = replace(unit, per_arch=True)
    told = {name: get(name).target(each) for name in names() if name != "tir"}
    assert set(told.values()) == {"sm_90a"} and get("cuda").target(unit) == "cuda"
    symbols = [unit_symbol("k", "default", ["default"], "cuda", "sm_90a", per_arch) for per_arch in (False, True)]
    assert symbols == ["kw_k__default__cuda", "kw_k__default__sm_90a"]


def test_entries_of_variants_with_similar_slugs_differ() -> None:
    slugs = ["s-a-b", "s-a_b", "s-c"]
    entries = [unit_symbol("k", slug, slugs, "llvm", "x86-64-v3", False) for slug in slugs]
    assert len(set(entries)) == 3 and entries[2] == "kw_k__s_c__x86_64_v3"
    assert all(entry.isidentifier() for entry in entries)
    assert entries[0] == unit_symbol("k", "s-a-b", slugs[1:], "llvm", "x86-64-v3", False), "it need not be listed"
    assert entries[0] != unit_symbol("k", "s-a-b", slugs[2:], "llvm", "x86-64-v3", False)


def test_a_source_that_launches_by_itself_has_no_code_for_each_arch() -> None:
    unit = Unit("k", "default", "kw_k__default__cuda", {}, (), "cuda", "sm_90a", "k.py:3", per_arch=True)
    with pytest.raises(DefinitionError, match="function 'f' launches by itself") as caught:
        get("cuda").with_host_code(()).lower(Exported("f"), unit, lambda doing: None)
    assert caught.value.remedy and "leave per_arch out" in caught.value.remedy
