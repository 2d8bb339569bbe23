"""Names, configs and docstrings of any kind in a definition: what is declared is usable, or there is a good error."""

from __future__ import annotations

import itertools
import json
import re
import unicodedata
from collections.abc import Callable
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest
from hypothesis import strategies as st
from kernelwright import grid, kernel
from kernelwright.core.converter import from_json, to_json
from kernelwright.core.errors import DefinitionError
from kernelwright.core.files import canonical_json, pretty_json
from kernelwright.define.configs import MAX_SLUG, slugs
from kernelwright.define.kernel import Kernel
from kernelwright.define.record import KernelRecord
from kernelwright.define.record import record_of as record_of_kernel
from kernelwright.define.settings import merge
from kernelwright.package.manifest import BuiltPackage, PackagedKernel
from kernelwright.package.stubs import make_stub

from .harness import fuzz, only_our_errors, write_guard
from .strategies import integers, odd_texts, texts, values

identifiers = st.sampled_from(["m", "n", "block", "dtype", "target", "é", "\u017f", "K", "k", "名前", "_", "x" * 300])
words = st.sampled_from(["float32", "Float32", "a", "A", "é", "e\u0301", "\ufb01", "fi", "K", "\u212a", "x" * 90])
config_values = st.one_of(integers, st.floats(), st.booleans(), texts, words)
configs = st.dictionaries(identifiers, config_values, max_size=3)


def definition(name: str, parameters: Any = (), doc: Any = None) -> Callable[..., Any]:
    """A function with that name, which Python's syntax would not allow."""
    given = [p for p in dict.fromkeys(parameters) if isinstance(p, str) and p.isidentifier()]
    scope: dict[str, Any] = {}
    exec(f"def made({', '.join(f'{p}=None' for p in given)}): return None", scope)
    function: FunctionType = scope["made"]
    function.__name__ = name
    function.__doc__ = doc
    return function


def record_of(made: Kernel) -> KernelRecord:
    """The kernel as the build gets it from a worker."""
    record = record_of_kernel(made, made.options.targets or (), made.location, made.sizes_of)
    return from_json(KernelRecord, json.loads(json.dumps(to_json(record))))


def require_usable(made: Kernel) -> None:
    """A kernel that was accepted can be built: as folders, as JSON, in C, in Python, and in a signature."""
    assert re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", made.name) and len(made.name) <= 100
    require_slugs([variant.slug for variant in made.variants])
    record = record_of(made)
    assert [dict(config) for config in made.configs] == [dict(config) for config in record.configs]
    text = pretty_json([record.doc, record.configs, record.options.outputs, record.options.flags])
    text.encode()
    canonical_json([record.configs, record.doc, record.options.flags]).encode()
    json.loads(text, parse_constant=pytest.fail)  # JSON has no infinities, and Python's parser takes them


def require_slugs(found: list[str]) -> None:
    """Slugs are what the documentation of ``slugs`` promises."""
    assert len({slug.lower() for slug in found}) == len(found)
    for slug in found:
        assert slug.isascii() and re.fullmatch(r"[A-Za-z0-9_.+-]+", slug), slug
        assert slug not in (".", "..") and Path(slug).name == slug
        # The names of files in and beside the folder are a little longer.
        assert len(slug) <= MAX_SLUG + 20
        assert unicodedata.normalize("NFC", slug) == unicodedata.normalize("NFD", slug) == slug


@fuzz(250, name=texts | st.text("aAzZ019_", min_size=1, max_size=8), doc=st.none() | texts | values)
def test_any_name_and_docstring(tmp_path: Path, name: str, doc: Any) -> None:
    with write_guard().only(tmp_path), only_our_errors():
        try:
            function = definition(name, doc=doc)
        except (TypeError, ValueError):
            return  # Python itself does not take it
        require_usable(kernel(function))


@fuzz(250, listed=st.lists(configs, min_size=1, max_size=5))
def test_any_configs(tmp_path: Path, listed: list[dict[str, Any]]) -> None:
    with write_guard().only(tmp_path), only_our_errors():
        require_usable(kernel(configs=listed)(definition("f", [key for config in listed for key in config])))


@fuzz(200, text=words, other=words, number=st.integers(-3, 3))
def test_slugs_of_configs_that_are_nearly_the_same(text: str, other: str, number: int) -> None:
    candidates: list[Any] = [text, other, text.upper(), text.lower(), unicodedata.normalize("NFKC", text), number]
    candidates += [float(number), bool(number), str(number), f"{text} ", f" {text}", -0.0, 0.0]
    unique = {(type(value).__name__, str(value)): value for value in candidates}
    found = [{"v": value} for value in unique.values()]
    require_slugs(slugs(found))
    # A config whose readable name looks like the name that another one got.
    require_slugs(
        slugs([*found, *({"v": slug.removeprefix("v-")} for slug in dict.fromkeys(slugs(found)) if "_" in slug)])
    )


@fuzz(
    300,
    keywords=st.dictionaries(
        st.sampled_from(["configs", "targets", "archs", "backends", "outputs", "flags", "tolerance"]),
        values | texts | st.lists(texts, max_size=3) | integers | st.floats(),
        min_size=1,
        max_size=3,
    ),
)
def test_any_arguments_of_the_decorator(tmp_path: Path, keywords: dict[str, Any]) -> None:
    with write_guard().only(tmp_path), only_our_errors():
        require_usable(kernel(**keywords)(definition("f", ["a", "m"])))


@fuzz(150, thing=values)
def test_a_decorator_on_anything(thing: Any) -> None:
    with only_our_errors():
        kernel(configs=[{}])(thing)


@fuzz(
    200,
    axes=st.dictionaries(identifiers, values | st.lists(config_values, max_size=4) | st.just(range(10**4)), max_size=4),
    keep=st.none() | st.sampled_from([0, 1, 7]),
)
def test_a_grid_of_anything(axes: dict[str, Any], keep: int | None) -> None:
    counter = itertools.count()
    where = None if keep is None else lambda **config: next(counter) % 10 < keep
    with only_our_errors():
        assert len(grid(where=where, **axes)) <= 10_000


def test_a_huge_grid_is_filtered_as_it_is_made() -> None:
    side = range(500)
    found = grid(m=side, n=side, where=lambda m, n: m == n == 3)
    assert found == [{"m": 3, "n": 3}]


@pytest.mark.parametrize("axes", [{"m": range(10**12)}, {"m": itertools.count()}, dict.fromkeys("abcd", range(1000))])
def test_a_grid_that_is_too_large_is_an_error_and_no_lack_of_memory(axes: dict[str, Any]) -> None:
    with pytest.raises(DefinitionError, match=r"points|more than"):
        grid(**axes)


@fuzz(200, name=texts | st.lists(odd_texts, max_size=3).map(".".join) | st.text("ab._", max_size=8))
def test_any_name_of_a_package(tmp_path: Path, name: str) -> None:
    with write_guard().only(tmp_path), only_our_errors():
        package = merge([("KernelPackage", {"package": name})], ["tvm_ffi"]).package
        path = tmp_path / package.replace(".", "/")
        assert path.resolve().is_relative_to(tmp_path) and path != tmp_path


@fuzz(200, doc=texts, value=texts)
def test_the_stub_of_any_docstring_is_python(doc: str, value: str) -> None:
    argument = {"name": "x", "kind": "tensor", "dtype": "float32", "shape": ["n"], "output": False, "written": False}
    variant = {"slug": slugs([{"v": value}])[0], "config": {"v": value}, "archs": ["x86-64"], "arguments": [argument]}
    entry = json.dumps({"doc": doc, "variants": [variant]})
    package = BuiltPackage(
        "demo", "0", {}, ("tvm_ffi",), (PackagedKernel("f", entry, ("tvm_ffi",), {"_lib/f.so": ("", 0)}),)
    )
    text = make_stub(package)
    compile(text, "stub", "exec")
    text.encode()
