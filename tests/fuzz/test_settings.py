"""Settings of any kind, from a build file, from the command line and from a pyproject.toml of any content."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st
from kernelwright import backends
from kernelwright.core.files import canonical_json, pretty_json
from kernelwright.core.quantity import parse_size
from kernelwright.define import cluster_address  # noqa: F401 (imported when first needed, which writes its bytecode)
from kernelwright.define.setting_kinds import SIZE
from kernelwright.define.settings import SETTINGS, Settings, merge, read_pyproject

from .harness import fuzz, only_our_errors, write_guard
from .strategies import damaged, nested, odd_texts, texts, values

NAMES = sorted(SETTINGS)
SIZES = [name for name, declared in SETTINGS.items() if declared.kind is SIZE]

good = {
    "package": st.sampled_from(["demo", "a.b", "_x"]),
    "targets": st.sampled_from(["llvm", ["llvm", "cuda"], "cuda,llvm"]),
    "archs": st.sampled_from(["x86-64-v3", ["sm_90a", "x86-64"], "sm_80 x86-64-v2"]),
    "worker_timeout": st.floats() | st.integers() | texts,
    "tool_timeout": st.floats() | st.integers() | texts,
    "max_registers": st.integers() | texts,
    "max_spills": st.integers() | texts,
    **{
        name: st.builds("{}{}".format, st.integers() | st.floats() | texts, st.sampled_from("KMGTkb "))
        for name in SIZES
    },
}
"""Values that are near to what a setting expects."""


def layer(of: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    pairs = st.sampled_from(NAMES).flatmap(lambda name: st.tuples(st.just(name), good.get(name, texts) | of))
    unknown = st.tuples(texts, of)
    return st.lists(pairs | pairs | pairs | unknown, max_size=3).map(dict)


layers = st.tuples(layer(values), layer(values), layer(texts))


def require_sound(settings: Settings) -> None:
    """All that the build does with settings without looking at them again."""
    assert all(part.isidentifier() for part in settings.package.split(".") if settings.package)
    assert set(settings.targets) <= {"llvm", "cuda"} and settings.backends == ("tvm_ffi",)
    for seconds in (settings.worker_timeout, settings.tool_timeout):
        assert 0 < seconds < math.inf
    for name in SIZES:
        text = getattr(settings, name)
        assert not text or parse_size(text) > 0
    for limit in (settings.max_registers, settings.max_spills):
        assert limit is None or limit >= 0
    assert "\0" not in json.dumps(asdict(settings), ensure_ascii=False)
    # They get into signatures, and into the manifest.
    canonical_json(asdict(settings)).encode()
    pretty_json(asdict(settings)).encode()


@fuzz(300, given_layers=layers)
def test_any_values_give_settings_or_an_error(tmp_path: Path, given_layers: tuple[dict[str, Any], ...]) -> None:
    places = ["pyproject.toml", "KernelPackage('demo')", "command line"]
    with write_guard().only(tmp_path), only_our_errors():
        require_sound(merge(zip(places, given_layers, strict=True), backends.names()))


@pytest.mark.parametrize("name", NAMES)
@fuzz(30, value=values | texts | st.one_of(*good.values()))
def test_any_value_of_one_setting(tmp_path: Path, name: str, value: Any) -> None:
    with write_guard().only(tmp_path), only_our_errors() as errors:
        require_sound(merge([("pyproject.toml", {name: value})], backends.names()))
    assert not errors or name in str(errors[0]) or name.rstrip("s") in str(errors[0])


TABLE = b"""\
[project]
name = "x"

[tool.kernelwright]
package = "demo"
targets = ["llvm", "cuda"]
archs = ["x86-64-v3", "sm_80"]
worker_timeout = 30.5
cache_size = "1G"
max_registers = 128
nvcc_flags = ["-lineinfo", "-DX=1"]
"""

toml_values = st.one_of(
    odd_texts.map(lambda text: json.dumps(text, ensure_ascii=False)),
    st.integers().map(str),
    st.floats().map(str),
    st.sampled_from(["9" * 5000, "1e999", "nan", "{}", "[[]]", "1979-05-27", "'''", "true", "0x" + "f" * 5000]),
    st.sampled_from([nested(5000), nested(5000, "{a=", "}"), nested(400)]),
)
documents = st.one_of(
    damaged(TABLE),
    st.binary(max_size=200),
    st.tuples(st.sampled_from(NAMES), toml_values).map(
        lambda pair: f"[tool.kernelwright]\n{pair[0]} = {pair[1]}\n".encode("utf-8", "surrogatepass")
    ),
    toml_values.map(lambda value: f"tool = {value}\n".encode("utf-8", "surrogatepass")),
    toml_values.map(lambda value: f"tool.kernelwright = {value}\n".encode("utf-8", "surrogatepass")),
    texts.map(lambda text: f"[tool.kernelwright.{text}]\n".encode("utf-8", "surrogatepass")),
)


@fuzz(300, content=documents)
def test_a_pyproject_of_any_content(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_bytes(content)
    with write_guard().only(tmp_path), only_our_errors():
        require_sound(merge([("pyproject.toml", read_pyproject(path))], backends.names()))
    assert [entry.name for entry in tmp_path.iterdir()] == ["pyproject.toml"]


@pytest.mark.parametrize("make", ["folder", "loop", "private"])
def test_a_pyproject_that_is_no_file(tmp_path: Path, make: str) -> None:
    path = tmp_path / "pyproject.toml"
    if make == "folder":
        path.mkdir()
    elif make == "loop":
        path.symlink_to(path)
    else:
        path.write_text("")
        path.chmod(0)
    with only_our_errors():
        read_pyproject(path)
