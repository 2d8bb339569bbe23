"""Settings: layers, conversions, and messages that list what is valid."""

from __future__ import annotations

import ast
import re
import runpy
import sys
from dataclasses import asdict, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kernelwright import backends
from kernelwright.core.arch import target_of
from kernelwright.core.errors import SettingsError, Where
from kernelwright.core.quantity import parse_size
from kernelwright.define import settings as settings_module
from kernelwright.define.setting_kinds import FLAGS, LIMIT, SECONDS, SIZE, TEXT, WORDS
from kernelwright.define.settings import COMMAND_LINE, SETTINGS, Settings, affecting, merge, read_pyproject


def settings(*layers):
    return merge([(f"layer {n}", layer) for n, layer in enumerate(layers)], ["tvm_ffi"])


def test_later_layers_win():
    assert settings({"package": "a", "targets": ["llvm"]}, {"package": "b"}).package == "b"


def test_archs_replace_only_those_of_the_targets_they_name():
    assert settings({"archs": ["x86-64-v3", "sm_80", "compute_80"]}, {"archs": "sm_90a"}).archs == (
        "x86-64-v3",
        "sm_90a",
    )


@pytest.mark.parametrize("text", ["llvm,cuda", "llvm cuda", " llvm,  cuda "])
def test_lists_may_be_strings(text):
    assert settings({"targets": text}).targets == ("llvm", "cuda")


def test_duplicates_are_dropped():
    assert settings({"targets": "cuda", "archs": "sm_90,sm_80,sm_90"}).archs == ("sm_90", "sm_80")
    assert settings({"targets": ["cuda", "cuda"]}).targets == ("cuda",)


def test_flags_are_split_at_blanks_only_and_keep_order_and_repetition():
    assert settings({"nvcc_flags": "-Xptxas -O3,-v -Xptxas"}).nvcc_flags == ("-Xptxas", "-O3,-v", "-Xptxas")


@pytest.mark.parametrize(
    ("given", "limit"), [(0, 0), ("0", 0), (1, 1), ("64", 64), (10**18 - 1, 10**18 - 1), ("", None), (None, None)]
)
def test_a_limit_of_zero_is_a_limit_and_an_empty_text_is_none(given, limit):
    assert settings({"max_registers": 128, "max_spills": 8}, {"max_spills": given}).max_spills == limit
    assert settings({"max_registers": given}).max_registers == limit


@pytest.mark.parametrize("given", [-1, 1.0, True, "1.5", "-1", "\u0665", 10**18, "9" * 19, [1]])
def test_what_is_no_limit_is_named(given):
    with pytest.raises(SettingsError, match=r"max_spills is .* expected a number from 0 up"):
        settings({"max_spills": given})


def test_a_setting_that_a_later_place_leaves_out_keeps_its_value_and_an_empty_text_is_a_value():
    assert settings({"cache_size": "1M", "glibc": "2.31"}, {"package": "a"}).cache_size == "1M"
    assert settings({"glibc": "2.31"}, {"glibc": ""}).glibc == ""
    assert settings({"cache_dir": "shared"}, {"cache_dir": ""}).cache_dir == ""


def test_the_place_of_a_bad_value_is_named_and_not_another_one():
    with pytest.raises(SettingsError) as caught:
        settings({"targets": ["llvm"]}, {"archs": ["sm80"]}, {"package": "a"})
    assert caught.value.where.location == "layer 1"


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"targets": ["rocm"]}, "unknown target 'rocm'"),
        ({"targets": 3}, "expected a list"),
        ({"targets": ""}, "targets is empty"),
        ({"archs": ["sm80"]}, "unknown arch 'sm80'"),
        ({"backends": ["x"]}, "unknown backend 'x'"),
        ({"worker_timeout": 0}, "above 0"),
        ({"worker_timeout": "nan"}, "above 0"),
        ({"worker_timeout": True}, "above 0"),
        ({"package": "no-hyphens"}, "cannot import"),
        ({"nvcc": 1}, "expected a string"),
        ({"archz": []}, "no setting 'archz'"),
        ({"targets": ["cuda"], "archs": ["x86-64-v3"]}, "has no arch"),
        ({"compress": "zip"}, "unknown compress 'zip'"),
        ({"compress": None}, "compress is None, expected one of none, speed, balance, size"),
        ({"split": "arches"}, "unknown split 'arches'"),
        ({"split": ["arch"]}, r"split is \['arch'\], expected one of none, arch"),
        ({"split": "arch", "targets": "llvm"}, "split = 'arch' without the target cuda"),
    ],
)
def test_bad_values(layer, message):
    with pytest.raises(SettingsError, match=message) as caught:
        settings(layer)
    assert caught.value.remedy or caught.value.where.location


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        ({"worker_timeout": "inf"}, "worker_timeout is 'inf', expected a number of seconds above 0"),
        ({"tool_timeout": 10**400}, "expected a number of seconds above 0"),
        ({"tool_timeout": None}, "tool_timeout is None, expected a number of seconds above 0"),
        ({"max_registers": -1}, "max_registers is -1, expected a number from 0 up"),
        ({"max_registers": "1.5"}, "expected a number from 0 up"),
        ({"max_spills": True}, "max_spills is True, expected a number from 0 up"),
        ({"max_spills": 10**18}, "expected a number from 0 up"),
        ({"max_spills": "9" * 19}, "expected a number from 0 up"),
        ({"cache_size": "2"}, "cache_size is '2', expected a size such as"),
        ({"cache_size": 2}, "cache_size is 2, expected a size such as"),
        ({"glibc": "2"}, "glibc is '2', expected a version such as '2.28'"),
        ({"glibc": "2.28.1"}, "glibc is '2.28.1', expected a version"),
        ({"package": "a.class"}, "package is 'a.class', which Python cannot import"),
        ({"package": "größe"}, "which Python cannot import"),
        ({"package": "a.__pycache__"}, "which Python cannot import"),
        ({"package": "wheels.a"}, "package is 'wheels.a', but kernels, check, wheels are folders of the build"),
        ({"package": "numpy.a"}, "which would take the place of the module 'numpy'"),
        ({"package": "json"}, "which would take the place of the module 'json'"),
        ({"cuda_compiler": "clang"}, "unknown cuda_compiler 'clang'"),
        ({"nvcc": "a\0b"}, "expected a string without NUL"),
        ({"nvcc_flags": ["a", 1]}, r"nvcc_flags is \['a', 1\], expected a list of strings"),
        ({"archs": ["sm_80\0"]}, "expected a list of strings without NUL"),
        ({"archs": {"sm_80": 1}}, "expected a list of strings"),
        ({"archs": "sm_8"}, "unknown arch 'sm_8'"),
        ({"archs": ["sm_90b"]}, "unknown arch 'sm_90b'"),
    ],
)
def test_a_bad_value_names_the_layer_that_it_is_in(layer, message):
    with pytest.raises(SettingsError, match=message) as caught:
        settings({"targets": ["llvm", "cuda"]}, layer)
    assert (caught.value.where.stage, caught.value.where.location) == ("settings", "layer 1")


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("worker_timeout", "1.5", 1.5),
        ("tool_timeout", 3, 3.0),
        ("max_registers", "128", 128),
        ("max_registers", 0, 0),
        ("max_registers", "", None),
        ("max_spills", None, None),
        ("max_spills", 10**18 - 1, 10**18 - 1),
        ("pch_size", "", ""),
        ("cache_size", "1.5G", "1.5G"),
        ("glibc", "", ""),
        ("glibc", "2.17", "2.17"),
        ("package", "acme.kernels_2", "acme.kernels_2"),
        ("nvcc", "/opt/my cuda/nvcc", "/opt/my cuda/nvcc"),
        ("nvcc_flags", "", ()),
        ("nvcc_flags", ["-a b", "-c"], ("-a b", "-c")),
        ("archs", ["x86-64", "", "sm_80"], ("x86-64", "sm_80")),
        ("compress", "balance", "balance"),
    ],
)
def test_values_become_what_they_mean(name, raw, value):
    assert getattr(settings({name: raw}), name) == value


def test_settings_that_nobody_gave_are_the_defaults():
    defaults = settings()
    assert defaults == settings({}, {}) == Settings()
    assert (defaults.targets, defaults.backends, defaults.package) == (("llvm", "cuda"), ("tvm_ffi",), "")
    kinds = {"str": str, "float": float, "tuple[str, ...]": tuple, "int | None": (int, type(None))}
    assert all(isinstance(getattr(defaults, field.name), kinds[field.type]) for field in fields(Settings))
    assert all(target_of(arch) in defaults.targets for arch in defaults.archs)
    sizes = [getattr(defaults, name) for name, declared in SETTINGS.items() if declared.kind is SIZE]
    assert len(sizes) == 5 and all(parse_size(size) > 0 for size in sizes if size)
    assert re.fullmatch(r"2\.[0-9]+", defaults.glibc) and not Path(defaults.cache_dir).is_absolute()


def test_every_setting_is_declared_once():
    names = [field.name for field in fields(Settings)]
    assert list(SETTINGS) == names and all(declared.help for declared in SETTINGS.values())
    assert {name.upper(): name for name in names if name != "package"} == COMMAND_LINE


def test_the_type_of_a_setting_is_that_of_its_kind():
    types = {TEXT: "str", SIZE: "str", WORDS: "tuple[str, ...]", FLAGS: "tuple[str, ...]"}
    types |= {SECONDS: "float", LIMIT: "int | None"}
    for field in fields(Settings):
        assert field.type == types.get(SETTINGS[field.name].kind, "str"), field.name


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_shown_of_a_value_can_be_given_for_it(name):
    kind, where = SETTINGS[name].kind, Where()
    texts = {TEXT: "/a b", SIZE: "1.5G", WORDS: "sm_80,x86-64", FLAGS: "-a -b,c", SECONDS: "0.5", LIMIT: "7"}
    default = getattr(Settings(), name)
    for value in (default, kind.read(name, texts.get(kind, default), where)):
        assert kind.read(name, kind.text(value), where) == value
    if name != "package":
        assert SETTINGS[name].read(name, kind.text(default), where) == default


def test_a_choice_lists_its_words_wherever_it_is_shown():
    declared = SETTINGS["compress"]
    assert declared.kind.word == "`none`, `speed`, `balance` or `size`"
    assert declared.help_line == "how cubins and PTX are compressed (one of none, speed, balance, size)"


def test_what_is_built_depends_on_all_settings_but_these():
    without = {"worker_timeout", "tool_timeout", "memory_limit", "nvcc_memory"}
    without |= {"pch_size", "cache_dir", "cache_size", "max_wheel_size", "dump_ir", "tilelang_python", "triton_python"}
    without |= {"remote_cache", "remote_mode", "remote_layout", "remote_key", "remote_ca"}
    without |= {"cluster", "cluster_certificates"}
    chosen = settings({"package": "demo", "glibc": "2.31"})
    assert affecting(chosen) == {name: value for name, value in asdict(chosen).items() if name not in without}


def test_all_follows_from_the_declaration_of_a_setting(monkeypatch):
    """A copy of the module with one declaration more."""
    text = Path(settings_module.__file__).read_text()
    more = '    mood: str = _setting(choice("calm", "wild"), "calm", "how it looks", affects_output=False)\n'
    before = "\n    def archs_of("
    assert text.count(before) == 1
    module: Any = ModuleType("kernelwright.define.settings_with_one_more")
    module.__package__ = "kernelwright.define"
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(text.replace(before, more + before), module.__dict__)

    def chosen(value: Any) -> Any:
        return module.merge([("here", {"mood": value})], [])

    assert chosen("wild").mood == "wild" and module.merge([], []).mood == "calm"
    for value, message in (("x", "unknown mood 'x'"), (3, "mood is 3, expected one of calm, wild")):
        with pytest.raises(SettingsError, match=message):
            chosen(value)
    with pytest.raises(SettingsError) as caught:
        module.merge([("here", {"moood": "calm"})], [])
    assert caught.value.remedy.startswith("did you mean 'mood'? the settings are package, ")
    assert module.COMMAND_LINE["MOOD"] == "mood"
    assert module.SETTINGS["mood"].help_line == "how it looks (one of calm, wild)"
    assert module.affecting(chosen("wild")) == module.affecting(chosen("calm")) == affecting(Settings())
    write = runpy.run_path(str(Path(__file__).parents[2] / "docs/tables.py"))["written_part"]
    page = write(module.SETTINGS, module.Settings())
    assert "| `mood` | `calm` or `wild` | `calm` | how it looks |\n" in page
    assert "`max_wheel_size`, `mood`. Not on the command line: `package`.\n" in page


@pytest.mark.parametrize(("given", "near"), [("archz", "did you mean 'archs'? "), ("zzz", "")])
def test_an_unknown_setting_is_named_with_the_nearest_one(given, near):
    with pytest.raises(SettingsError, match=f"layer 0 has no setting '{given}'") as caught:
        settings({given: 1})
    assert caught.value.remedy == f"{near}the settings are {', '.join(SETTINGS)}"


def imported_by(path: Path) -> set[str]:
    """The modules that a Python file imports from outside of its package, wherever in it."""
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    whole = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    parts = {node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level and node.module}
    return {name.partition(".")[0] for name in whole | parts}


def test_no_package_takes_the_place_of_what_a_build_or_python_itself_imports():
    sources = Path(settings_module.__file__).parents[1]
    names = set().union(*(imported_by(path) for path in sources.rglob("*.py") if "template" not in path.parts))
    names -= {"compression"}  # of the standard library from Python 3.14 on
    names |= {need.module.partition(".")[0] for name in backends.names() for need in backends.get(name).run_needs}
    for name in names | {"pip", "setuptools", "pkg_resources", "_distutils_hack", "sitecustomize", "usercustomize"}:
        with pytest.raises(SettingsError, match=f"take the place of the module '{name}'|Python cannot import"):
            settings({"package": name})


def test_remedies_list_what_is_valid():
    for layer, remedy in [
        ({"backends": "x"}, "the valid ones are tvm_ffi"),
        ({"split": "x"}, "the valid ones are none, arch"),
        ({"targets": "x"}, "the valid ones are llvm, cuda"),
        ({"archs": "x"}, "use one of x86-64, x86-64-v2, x86-64-v3, x86-64-v4 for the CPU; sm_80,"),
        ({"archs": []}, SETTINGS["archs"].help),
        ({"package": "x-y"}, "use a Python identifier"),
        ({"split": "arch", "targets": "llvm"}, "SPLIT=none"),
        ({"targets": "cuda", "archs": "x86-64"}, "add one (x86-64-v3 for llvm, sm_80 for cuda)"),
    ]:
        with pytest.raises(SettingsError) as caught:
            settings(layer)
        assert remedy in caught.value.remedy


def test_providers_are_the_cuda_archs_of_a_split_package():
    archs = {"archs": ["x86-64-v3", "compute_80", "sm_90a"]}
    assert settings(archs).providers == ()
    assert settings(archs, {"split": "arch"}).providers == ("compute_80", "sm_90a")


def test_pyproject_has_the_settings_beside_tables_that_are_none(tmp_path):
    path = tmp_path / "pyproject.toml"
    path.write_text(
        "[tool.kernelwright]\npackage = 'größe'\n[tool.kernelwright.project]\nname = 'x'\n"
        "[tool.kernelwright.sdist]\n[tool.kernelwright.version]\n",
        encoding="utf-8",
    )
    assert read_pyproject(path) == {"package": "größe"}
    for text in ("[tool.other]\n", "", "[project]\n"):
        path.write_text(text)
        assert read_pyproject(path) == {}


def test_missing_pyproject_is_empty(tmp_path):
    assert read_pyproject(tmp_path / "pyproject.toml") == {}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[tool", "is not valid TOML"),
        (b"x = " + b"9" * 5000, "is not valid TOML"),
        (b"\xff\xfe", "cannot be read"),
        (b"x = " + b"[" * 50_000, "is nested too deeply"),
        (b"tool = 3\n", r"\[tool\.kernelwright\] is not a table"),
        (b"[tool]\nkernelwright = 3\n", r"\[tool\.kernelwright\] is not a table"),
        (b"[tool.kernelwright]\nsdist = 1\n", r"\[tool\.kernelwright\.sdist\] is not a table"),
        (b"[tool.kernelwright]\nproject = 1\n", r"\[tool\.kernelwright\.project\] is not a table"),
        (b"[tool.kernelwright]\nx = 1\n", r"\[tool\.kernelwright\] has no setting 'x'"),
    ],
)
def test_bad_pyproject_is_named(tmp_path, content, message):
    path = tmp_path / "pyproject.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError, match=message) as caught:
        read_pyproject(path)
    assert (caught.value.where.stage, caught.value.where.location) == ("settings", "pyproject.toml")
