"""What a kernel may list as its sources with host code of its own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from kernelwright import grid, kernel
from kernelwright.backends.own_code import driver_functions
from kernelwright.core.converter import from_json, to_json
from kernelwright.core.errors import DefinitionError
from kernelwright.cuda import Text
from kernelwright.define.own_sources import EVERY, OwnSource
from kernelwright.define.record import KernelRecord, record_of


def declared(sources: Any, **options: Any) -> KernelRecord:
    @kernel(frontend="cuda", sources=sources, **options)
    def scale(block=0, dtype=""):
        pass

    record = record_of(scale, ("cuda",), "k.py:1", scale.sizes_of)
    assert from_json(KernelRecord, to_json(record)) == record
    return record


def test_a_list_of_files_is_for_all_variants_and_takes_no_room_in_the_record():
    record = declared(["a.cu", "package:acme/csrc/b.cc"])
    assert record.sources == {} and record.options.sources == ("a.cu", "package:acme/csrc/b.cc")
    assert record.sources_of("any") == (OwnSource("a.cu"), OwnSource("package:acme/csrc/b.cc"))


def test_texts_in_a_list_are_for_all_variants_too():
    record = declared(["a.cu", Text("config.inc", "int a;")])
    assert record.sources == {EVERY: (OwnSource("a.cu"), OwnSource("config.inc", "int a;"))}
    assert record.sources_of("any") == record.sources[EVERY]
    assert record.compiled_sources == {OwnSource("a.cu")} and record.options.sources == ("a.cu", "config.inc")


def test_a_function_is_called_once_for_what_it_takes_of_the_configs():
    calls = []

    def sources(block):
        calls.append(block)
        return [f"{block}.cu", Text("block.h", f"#define BLOCK {block}\n")]

    record = declared(sources, configs=grid(block=[1, 2], dtype=["float32", "float16"]))
    assert calls == [1, 2] and list(record.sources) == list(record.slugs)
    assert record.sources_of("block-2_dtype-float16") == (OwnSource("2.cu"), OwnSource("block.h", "#define BLOCK 2\n"))
    assert record.sources_of("block-3_dtype-float16") is None, "the definition does not list it"


@pytest.mark.parametrize(
    ("sources", "message"),
    [
        ("a.cu", "sources is 'a.cu', expected a list"),
        (3, "sources is 3, expected a list"),
        (Text("a.cu", "int a;"), r"sources is Text\(.*, expected a list"),
        (["a.py"], "contains 'a.py', which is no path of a source"),
        (["/a.cu"], "contains '/a.cu', which is no path of a source"),
        ([3], "contains 3, expected a path or a Text"),
        (["a.cu", "a.cu"], "lists 'a.cu' twice"),
        ([Text("a.cu", "int a;")] * 2, "lists 'a.cu' twice"),
        ([Text("a.cu", "int a;"), Text("a.cu", "int b;")], "two texts that are called 'a.cu', and they differ"),
        ([Text("gen/a.cu", "int a;")], "a Text that is called 'gen/a.cu', which is no name of a source or a header"),
        ([Text("../a.cu", "int a;")], "no name of a source or a header"),
        ([Text("a b.cu", "int a;")], "no name of a source or a header"),
        ([Text("a.py", "a = 1")], "no name of a source or a header"),
        ([Text(".cu", "int a;")], "no name of a source or a header"),
        ([Text(None, "int a;")], "called None, which is no name"),  # type: ignore[arg-type]
        ([Text("a.cu", "")], "the Text 'a.cu' whose content is '', expected a source"),
        ([Text("a.cu", " \n")], r"whose content is ' \\n', expected a source"),
        ([Text("a.cu", None)], "whose content is None, expected a source"),  # type: ignore[arg-type]
        ([Text("a.cu", "\udcff")], "expected a source"),
        ([Text("a.inc", "int a;")], "sources has nothing that is compiled"),
        (lambda: None, "sources is None, expected a list"),
        (lambda: [], "sources is an empty list"),
        (lambda: [Text("a.cu", "")], "whose content is '', expected a source"),
        (lambda dtype: ["a.cu"], "sources has a parameter 'dtype', but what it can be given is nothing"),
    ],
)
def test_what_cannot_be_a_source_is_an_error_at_the_definition(sources, message):
    with pytest.raises(DefinitionError, match=message) as caught:
        declared(sources)
    assert caught.value.remedy and "test_own_sources.py:" in str(caught.value)


def test_an_error_of_a_function_names_the_config():
    with pytest.raises(DefinitionError, match=r"sources, for \{'block': 2\}, has two texts that are called 'a.h'"):
        declared(
            lambda block: ["a.cu", Text("a.h", "int a;"), Text("a.h", f"int {'ab'[block - 1]};")][: block + 1],
            configs=grid(block=[1, 2]),
        )


@pytest.mark.parametrize("name", ["../a.cu", "/a.cu", "gen/a.cu", "", "a\n.cu"])
def test_no_record_can_have_a_text_written_elsewhere(name: str) -> None:
    told = to_json(declared([Text("a.cu", "int a;")]))
    told["sources"][EVERY][0]["path"] = name
    with pytest.raises(ValueError, match="a text is called"):
        from_json(KernelRecord, told)


def test_functions_of_the_driver_are_those_that_nobody_else_has(tmp_path: Path) -> None:
    calls = "int cuInit(), cuMine(), cuTheirs(), cuFileRead(), cudaFree(); "
    calls += "int f(void) { return cuInit() + cuMine() + cuTheirs() + cuFileRead() + cudaFree(); }"
    for name, text, flag in (
        ("calls.o", calls, "-c"),
        ("mine.o", "int cuMine(void) { return 1; }", "-c"),
        ("theirs.so", "int cuTheirs(void) { return 1; }", "-shared"),
    ):
        subprocess.run(["cc", "-fPIC", flag, "-xc", "-", "-o", tmp_path / name], input=text, text=True, check=True)
    objects = [tmp_path / "calls.o", tmp_path / "mine.o"]
    assert driver_functions(objects, "call cuMemAlloc_v2", [tmp_path / "theirs.so"]) == ["cuInit", "cuMemAlloc_v2"]
