"""Tuning tables as files: what is read, what is written, and what each kind of damage is told as."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.errors import SettingsError, Where
from kernelwright.core.located import DEEPEST, LocatedError, located
from kernelwright.define.settings import Settings, merge
from kernelwright.define.tuning import (
    Evidence,
    Rule,
    Source,
    TableDevice,
    TableFile,
    TunedConfig,
    TuningError,
    file_name,
    parse_table,
    path_of_table,
    read_table,
    same,
    table_text,
)

H100 = TableDevice("cuda", "sm_90a", "NVIDIA H100 80GB HBM3", 132)
CPU = TableDevice("llvm", "x86-64-v3", "AMD EPYC 9B45 (Turin)", 2)

TABLE = TableFile(
    "gemm",
    H100,
    {"tvm": "0.27.0", "compiler": "nvcc 13.0.88"},
    (
        TunedConfig(
            {"n": 1024, "dtype": "float16"},
            ("m",),
            (Rule({"block_m": 32, "stages": 2}, 64), Rule({"block_m": 128, "stages": 2})),
            (
                Evidence({"m": 1}, {"block_m": 32, "stages": 2}, 12.3, 15.2, 0.02),
                Evidence({"m": 128}, {"block_m": 128, "stages": 2}, 20, 30.5, 0.01),
            ),
            (Source({"block_m": 32, "stages": 2}, "0123456789abcdef"),),
        ),
        TunedConfig({"n": 64, "dtype": "float16"}, (), (Rule({"block_m": 64, "stages": 3}),)),
    ),
)

TEXT = """\
{"schema": 1, "kernel": "gemm",
 "device": {"target": "cuda", "arch": "sm_90a", "name": "NVIDIA H100 80GB HBM3", "count": 132},
 "measured": {"compiler": "nvcc 13.0.88", "tvm": "0.27.0"},
 "configs": [
  {"config": {"dtype": "float16", "n": 64}, "by": [],
   "rules": [
    {"tune": {"block_m": 64, "stages": 3}}
   ],
   "evidence": [],
   "sources": []},
  {"config": {"dtype": "float16", "n": 1024}, "by": ["m"],
   "rules": [
    {"upto": 64, "tune": {"block_m": 32, "stages": 2}},
    {"tune": {"block_m": 128, "stages": 2}}
   ],
   "evidence": [
    {"sizes": {"m": 1}, "tune": {"block_m": 32, "stages": 2}, "us": 12.3, "default_us": 15.2, "spread": 0.02},
    {"sizes": {"m": 128}, "tune": {"block_m": 128, "stages": 2}, "us": 20.0, "default_us": 30.5, "spread": 0.01}
   ],
   "sources": [
    {"tune": {"block_m": 32, "stages": 2}, "digest": "0123456789abcdef"}
   ]}
 ]}
"""
NAME = "tuning/gemm.sm_90a-132.json"


def parsed(text: str | bytes) -> TableFile:
    return parse_table(text.encode() if isinstance(text, str) else text, NAME)


def test_a_table_is_read_as_it_was_written_and_its_text_is_canonical() -> None:
    read = parsed(TEXT)
    assert read == replace(TABLE, configs=TABLE.configs[::-1])
    assert [rule.line for rule in read.configs[1].rules] == [13, 14]
    assert (read.configs[0].line, read.configs[1].line, read.path, read.line) == (5, 11, NAME, 2)
    assert str(read.where(12)) == f"{NAME}:12 gemm [tuning]"
    as_floats = replace(TABLE.configs[0].evidence[1], us=20.0)
    config = replace(TABLE.configs[0], evidence=(as_floats, TABLE.configs[0].evidence[0]))
    assert table_text(replace(TABLE, configs=(config, TABLE.configs[1]))) == TEXT
    assert table_text(parsed(TEXT)) == TEXT
    assert json.loads(TEXT)["configs"][1]["rules"][0] == {"upto": 64, "tune": {"block_m": 32, "stages": 2}}
    assert table_text(replace(TABLE, configs=())).endswith(' "configs": []}\n')
    document = json.loads(TEXT)
    for config in document["configs"]:
        del config["evidence"], config["sources"]
    read = parsed(json.dumps(document, indent=4))
    assert read.configs[1].evidence == () and read.configs[1].rules == TABLE.configs[0].rules


def test_a_table_answers_for_the_sizes_that_decide_and_not_without_one_of_them() -> None:
    gemm, plain = TABLE.configs
    answers = [gemm.answer(sizes) for sizes in ({"m": 64}, {"m": 65, "k": 1}, {"k": 1})]
    assert answers == [gemm.rules[0].tune, gemm.rules[1].tune, None]
    assert plain.answer({}) == plain.rules[0].tune


def changed(change: Callable[[dict[str, Any]], None]) -> str:
    """The table with a change, a value on each line."""
    document = json.loads(TEXT)
    change(document)
    return json.dumps(document, indent=1)


def tuned(document: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = document["configs"][1]
    return found


def put(*path: Any, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(document: Any) -> None:
        for key in path[:-1]:
            document = document[key]
        document[path[-1]] = value

    return change


BAD: dict[str, tuple[Callable[[dict[str, Any]], Any], str, str]] = {
    "a schema of another revision": (put("schema", value=2), '"schema"', "schema is 2, expected 1"),
    "no kernel": (lambda d: d.pop("kernel"), "{", "kernel is missing"),
    "another kernel": (put("kernel", value="gemv"), '"kernel"', "the name of the file begins with 'gemm'"),
    "a name that nobody knows": (put("tuned", value=1), '"tuned"', "tuned is not expected"),
    "a target that is none": (put("device", "target", value="rocm"), '"target"', "'rocm', expected llvm or cuda"),
    "an arch that is none": (put("device", "arch", value="sm90"), '"arch"', "device.arch is 'sm90', expected an arch"),
    "an arch of the other target": (put("device", "arch", value="x86-64"), '"arch"', "is one of llvm, not of cuda"),
    "a device without a name": (put("device", "name", value=""), '"name"', "expected the name of a device"),
    "too many cores": (
        put("device", "count", value=2**32 + 2),
        '"count"',
        "is 4294967298, expected an integer from 1 to 2",
    ),
    "no cores": (put("device", "count", value=0), '"count"', "device.count is 0, expected an integer from 1"),
    "a version that is no text": (put("measured", "tvm", value=0.27), '"tvm"', "tvm is 0.27, expected a string"),
    "configs that are no list": (put("configs", value={}), '"configs"', "configs is {}, expected a list"),
    "a config twice": (lambda d: d["configs"].append(tuned(d)), "  {", "is there twice"),
    "a config that is none": (put("configs", 1, "config", value=[1]), '"config": [', "expected an object"),
    "a value that is none": (put("configs", 1, "config", "n", value=[1]), '"n": [', "expected a bool, a number or a"),
    "a size that is no name": (put("configs", 1, "by", value=["m*n"]), '"by": [', "expected different size symbols"),
    "a size twice": (put("configs", 1, "by", value=["m", "m"]), '"by": [', "expected different size symbols"),
    "no rules": (put("configs", 1, "rules", value=[]), '"rules": []', "is empty, so it covers no size"),
    "rules that end": (lambda d: tuned(d)["rules"][1].update(upto=99), '"upto": 99', "no rule covers sizes above 99"),
    "a rule behind the last one": (
        lambda d: tuned(d)["rules"].append({"tune": {"block_m": 1}}),
        '"block_m": 128',
        "nothing can follow it",
    ),
    "ranges that do not rise": (
        lambda d: tuned(d)["rules"].insert(1, {"upto": 64, "tune": {"block_m": 7}}),
        '"block_m": 7',
        "upto is 64, expected more than 64",
    ),
    "ranges of nothing": (put("configs", 1, "by", value=[]), '"rules": [', "by names no size that decides"),
    "a range up to no integer": (put("configs", 1, "rules", 0, "upto", value=64.0), '"upto"', "expected an integer"),
    "a range up to nothing": (put("configs", 1, "rules", 0, "upto", value=0), '"upto"', "expected an integer from 1"),
    "a range without a point": (lambda d: tuned(d)["rules"][0].pop("tune"), '"upto"', "rules[0].tune is missing"),
    "a point that is none": (put("configs", 1, "rules", 0, "tune", value=3), '"tune": 3', "expected an object"),
    "a value of a point": (
        put("configs", 1, "rules", 0, "tune", "block_m", value=None),
        '"block_m": null',
        "block_m is None",
    ),
    "a time before the start": (put("configs", 1, "evidence", 0, "us", value=-1), '"us": -1', "not negative"),
    "no spread": (lambda d: tuned(d)["evidence"][0].pop("spread"), '"sizes"', "evidence[0].spread is missing"),
    "a size of nothing": (put("configs", 1, "evidence", 0, "sizes", "m", value=0), '"m": 0', "an integer from 1"),
    "a digest that is none": (put("configs", 1, "sources", 0, "digest", value="xyz"), '"digest"', "hexadecimal digits"),
}


@pytest.mark.parametrize("kind", BAD)
def test_a_bad_table_is_an_error_with_file_and_line(kind: str) -> None:
    change, at, message = BAD[kind]
    text = changed(change)
    with pytest.raises(TuningError) as caught:
        parsed(text)
    assert message in caught.value.message
    file, _, line = str(caught.value.where.location).rpartition(":")
    lines = text.splitlines()
    place = int(line) - 1
    # An object is at the line of its brace.
    assert file == NAME and (
        at in lines[place] or (lines[place].strip() == "{" and at in "".join(lines[place : place + 6]))
    )
    assert caught.value.where.kernel == "gemm" and "kernelwright tune" in str(caught.value.remedy)


@pytest.mark.parametrize(
    ("content", "line", "message"),
    [
        (b"", 1, "expected a value"),
        (b"\n\n<<<<<<< HEAD\n", 3, "expected a value, not '<<<<<<< HEAD'"),
        (TEXT.replace('"by": ["m"],', '"by": ["m"]').encode(), 12, "expected ',' or '}'"),
        (TEXT.replace('"stages": 2}},\n', '"stages": 2}},,\n').encode(), 13, "expected a value, not ','"),
        (TEXT.replace('"stages": 3}}', '"stages": 3}},').encode(), 8, "expected an entry behind ','"),
        (TEXT.replace('"upto": 64', '"upto": 64, "upto": 65').encode(), 13, "it has 'upto' twice"),
        (TEXT.replace('"upto": 64', '"upto": NaN').encode(), 13, "expected a value, not 'NaN"),
        (TEXT.replace('"upto": 64', '"upto": 1e999').encode(), 13, "too large a number"),
        (TEXT.replace('"upto": 64', f'"upto": {"9" * 99}').encode(), 13, "too large a number"),
        (TEXT.replace('"upto"', "upto").encode(), 13, 'expected a name in "..."'),
        (TEXT.replace('"0.27.0"}', '"0.27.0}').encode(), 3, "a text has no end in its line"),
        (TEXT.replace("0.27.0", r"0.27\x").encode(), 3, "is no text of JSON"),
        (TEXT.replace("0.27.0", r"\ud800").encode(), 3, "expected whole characters"),
        (TEXT.encode() + b"{}", 24, "there is more behind the document"),
        (TEXT.encode()[: len(TEXT) // 2], 13, "expected"),
        (TEXT.encode().replace(b"13.0", b"13\xff0"), 3, "it is not UTF-8"),
        (b"[" * 100_000, 1, "it is nested too deeply"),
        (b"[]", 1, "the document is [], expected an object"),
    ],
)
def test_what_is_no_json_is_an_error_with_file_and_line(content: bytes, line: int, message: str) -> None:
    with pytest.raises(TuningError) as caught:
        parsed(content)
    assert message in caught.value.message
    assert caught.value.where.location == f"{NAME}:{line}"


@pytest.mark.parametrize(
    "text", ['{"a": [1, -2.5, 1e3, true, false, null, "\\u00e4\\n"], "b": {}, "c": []}', "3", " [ ]\n"]
)
def test_located_json_is_what_json_is(text: str) -> None:
    assert located(text.encode())[0] == json.loads(text)


def test_nesting_up_to_the_limit_is_read() -> None:
    assert located(b"[" * DEEPEST + b"]" * DEEPEST)[0] == json.loads("[" * DEEPEST + "]" * DEEPEST)
    with pytest.raises(LocatedError):
        located(b"[" * (DEEPEST + 2) + b"]" * (DEEPEST + 2))


def test_a_file_that_is_none_is_an_error_that_names_it(tmp_path: Path) -> None:
    (tmp_path / "tuning").mkdir()
    (tmp_path / "gemm.json").write_text(TEXT)
    (tmp_path / NAME).symlink_to(tmp_path / "gemm.json")
    for message in ("symbolic link", "No such file"):
        with pytest.raises(TuningError, match=message) as caught:
            read_table(tmp_path, NAME)
        assert caught.value.where.location == f"{NAME}:1"
        (tmp_path / NAME).unlink(missing_ok=True)


def test_a_table_has_the_name_of_its_kernel_and_its_device(tmp_path: Path) -> None:
    assert file_name("gemm", H100) == "gemm.sm_90a-132.json"
    assert file_name("gemm", CPU) == "gemm.x86-64-v3-amd-epyc-9b45-turin-2.json"
    assert file_name("gemm", replace(CPU, name="???")) == "gemm.x86-64-v3-unknown-2.json"
    assert path_of_table(tmp_path, "tuning", "gemm", H100) == NAME
    (tmp_path / "tuning").mkdir()
    (tmp_path / NAME).write_text(TEXT)
    assert path_of_table(tmp_path, "tuning", "gemm", H100) == NAME
    other = replace(H100, name="NVIDIA H800")
    assert path_of_table(tmp_path, "tuning", "gemm", other) == "tuning/gemm.sm_90a-132-nvidia-h800.json"
    assert read_table(tmp_path, NAME) == replace(TABLE, configs=TABLE.configs[::-1])


def test_points_are_the_same_in_any_order_of_keys_and_differ_by_type() -> None:
    assert same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    for other in ({"a": 1.0}, {"a": True}, {"a": "1"}, {"a": 1, "b": 0}, {}):
        assert not same({"a": 1}, other)


@pytest.mark.parametrize("folder", ["/tables", "../tables", "a/../../b", "tables/", "a\\b", "."])
def test_the_folder_of_tables_is_one_of_the_project(folder: str) -> None:
    assert merge([("x", {"tuning": "a/b"})], []).tuning == "a/b"
    assert (Settings().tuning, merge([("x", {"tuning": ""})], []).tuning) == ("tuning", "")
    with pytest.raises(SettingsError, match="expected a folder below") as caught:
        merge([("x", {"tuning": folder})], [])
    assert caught.value.where == Where(stage="settings", location="x")
