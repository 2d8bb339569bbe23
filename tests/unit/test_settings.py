"""Settings: layers, conversions, and messages that list what is valid."""

from __future__ import annotations

import re
import runpy
import sys
from dataclasses import asdict, fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kernelwright.core.arch import target_of
from kernelwright.core.errors import SettingsError, Where, shown
from kernelwright.core.quantity import parse_size
from kernelwright.define import settings as settings_module
from kernelwright.define.setting_kinds import FLAGS, LIMIT, SECONDS, SIZE, TEXT, WORDS
from kernelwright.define.settings import COMMAND_LINE, SETTINGS, Settings, affecting, merge, read_pyproject


def settings(*layers):
    return merge([(f"layer {n}", layer) for n, layer in enumerate(layers)], ["tvm_ffi"])


@pytest.mark.parametrize(
    ("layers", "name", "value"),
    [
        ([{"archs": ["x86-64-v3", "sm_80", "compute_80"]}, {"archs": "sm_90a"}], "archs", ("x86-64-v3", "sm_90a")),
        ([{"targets": "llvm,cuda"}], "targets", ("llvm", "cuda")),
        ([{"targets": " llvm,  cuda "}], "targets", ("llvm", "cuda")),
        ([{"targets": ["cuda", "cuda"]}], "targets", ("cuda",)),
        ([{"archs": "sm_90,sm_80,sm_90", "targets": "cuda"}], "archs", ("x86-64-v3", "sm_90", "sm_80")),
        ([{"archs": ["x86-64", "", "sm_80"]}], "archs", ("x86-64", "sm_80")),
        ([{"nvcc_flags": "-Xptxas -O3,-v -Xptxas"}], "nvcc_flags", ("-Xptxas", "-O3,-v", "-Xptxas")),
        ([{"nvcc_flags": ""}], "nvcc_flags", ()),
        ([{"nvcc_flags": ["-a b", "-c"]}], "nvcc_flags", ("-a b", "-c")),
        *(
            ([{"max_spills": 8}, {"max_spills": given}], "max_spills", limit)
            for given, limit in [(0, 0), ("0", 0), ("64", 64), (10**18 - 1, 10**18 - 1), ("", None), (None, None)]
        ),
        ([{"cache_size": "1M"}, {"package": "a"}], "cache_size", "1M"),
        ([{"glibc": "2.31"}, {"glibc": ""}], "glibc", ""),
        ([{"cache_dir": "shared"}, {"cache_dir": ""}], "cache_dir", ""),
        ([{"worker_timeout": "1.5"}], "worker_timeout", 1.5),
        ([{"tool_timeout": 3}], "tool_timeout", 3.0),
        ([{"pch_size": ""}], "pch_size", ""),
        ([{"cache_size": "1.5G"}], "cache_size", "1.5G"),
        ([{"package": "acme.kernels_2"}], "package", "acme.kernels_2"),
        ([{"nvcc": "/opt/my cuda/nvcc"}], "nvcc", "/opt/my cuda/nvcc"),
        ([{"compress": "balance"}], "compress", "balance"),
        ([{"archs": ["x86-64-v3", "compute_80", "sm_90a"]}], "providers", ()),
        ([{"archs": "compute_80,x86-64,sm_90a"}, {"split": "arch"}], "providers", ("compute_80", "sm_90a")),
    ],
)
def test_values_become_what_they_mean_and_later_layers_win(layers, name, value):
    assert getattr(settings(*layers), name) == value


def test_a_message_about_settings_names_where_they_were_given() -> None:
    given = settings({"cuda": ["13.0"], "archs": ["sm_80"]}, {"archs": "sm_90"})
    assert str(given.where("archs")) == "layer 1 [settings]"
    assert str(given.where("cuda", "archs")) == "layer 0, layer 1 [settings]"
    assert str(given.where("nvcc")) == "[settings]"
    beside = settings({"archs": ["sm_35", "x86-64-v3"]}, {"archs": "x86-64-v2"})
    assert beside.archs == ("sm_35", "x86-64-v2")
    assert [str(beside.where(arch)) for arch in beside.archs] == ["layer 0 [settings]", "layer 1 [settings]"]
    with pytest.raises(SettingsError, match=r"layer 1, layer 0 \[settings\]: split = 'arch' without the target cuda"):
        settings({"targets": ["llvm"]}, {"split": "arch"})


@pytest.mark.parametrize(
    ("layer", "message", "remedy"),
    [
        ({"targets": ["rocm"]}, "unknown target 'rocm'", "the valid ones are llvm, cuda"),
        ({"targets": 3}, "expected a list", ""),
        ({"backends": ["x"]}, "unknown backend 'x'", "the valid ones are tvm_ffi"),
        ({"archs": ["sm80"]}, "unknown arch 'sm80'", "x86-64-v4, armv8-a, neoverse-n1, neoverse-v2 for the"),
        ({"archs": ["sm_90b"]}, "unknown arch 'sm_90b'", ""),
        ({"archs": ["sm_80\0"]}, "expected a list of strings without NUL", ""),
        ({"archs": {"sm_80": 1}}, "expected a list of strings", ""),
        ({"nvcc_flags": ["a", 1]}, "nvcc_flags is ['a', 1], expected a list of strings", ""),
        ({"nvcc": 1}, "expected a string", ""),
        ({"nvcc": "a\0b"}, "expected a string without NUL", ""),
        ({"archz": []}, "has no setting 'archz'", f"did you mean 'archs'? the settings are {', '.join(SETTINGS)}"),
        ({"zzz": 1}, "has no setting 'zzz'", f"the settings are {', '.join(SETTINGS)}"),
        ({"compress": "zip"}, "unknown compress 'zip'", "the valid ones are none, speed, balance, size"),
        ({"compress": None}, "compress is None, expected one of none, speed, balance, size", ""),
        ({"split": ["arch"]}, "split is ['arch'], expected one of none, arch", ""),
        ({"cuda_compiler": "clang"}, "unknown cuda_compiler 'clang'", ""),
        ({"worker_timeout": 0}, "worker_timeout is 0, expected a number of seconds above 0", ""),
        ({"worker_timeout": "nan"}, "expected a number of seconds above 0", ""),
        ({"worker_timeout": "inf"}, "worker_timeout is 'inf', expected a number of seconds above 0", ""),
        ({"worker_timeout": True}, "expected a number of seconds above 0", ""),
        ({"tool_timeout": 10**400}, "expected a number of seconds above 0", ""),
        ({"tool_timeout": None}, "tool_timeout is None, expected a number of seconds above 0", ""),
        *(
            ({"max_spills": given}, f"max_spills is {shown(given)}, expected a number from 0 up", "")
            for given in (-1, 1.0, True, "1.5", "-1", "\u0665", 10**18, "9" * 19, [1])
        ),
        ({"cache_size": "2"}, "cache_size is '2', expected a size such as", ""),
        ({"cache_size": 2}, "cache_size is 2, expected a size such as", ""),
        ({"glibc": "2"}, "glibc is '2', expected a version such as '2.28'", ""),
        ({"glibc": "2.28.1"}, "glibc is '2.28.1', expected a version", ""),
        ({"package": "no-hyphens"}, "which Python cannot import", "use a Python identifier"),
        ({"package": "a.class"}, "package is 'a.class', which Python cannot import", ""),
        ({"package": "größe"}, "which Python cannot import", ""),
        ({"package": "a.__pycache__"}, "which Python cannot import", ""),
        ({"package": "wheels.a"}, "package is 'wheels.a', but kernels, check, wheels, x86_64, aarch64, cu128", ""),
        ({"package": "numpy.a"}, "which would take the place of the module 'numpy'", ""),
        *(
            ({"package": name}, f"which would take the place of the module '{name}'", "")
            for name in ("json", "pip", "setuptools", "pkg_resources", "sitecustomize", "usercustomize")
        ),
        ({"environment": ["PYTHONPATH"]}, "PYTHONPATH", "sys.path"),
        ({"environment": ["LD_PRELOAD"]}, "LD_PRELOAD", "use another name"),
        ({"environment": ["a b"]}, "a b", "letters, digits and underscores"),
    ],
)
def test_a_bad_value_names_the_layer_that_it_is_in_and_what_is_valid(layer, message, remedy):
    with pytest.raises(SettingsError, match=re.escape(message)) as caught:
        settings({"targets": ["llvm", "cuda"]}, layer, {"package": "demo"} if "package" not in layer else {})
    assert (caught.value.where.stage, caught.value.where.location) == ("settings", "layer 1")
    assert remedy in (caught.value.remedy or "")


@pytest.mark.parametrize(
    ("layer", "message", "remedy"),
    [
        ({"targets": ""}, "targets is empty", ""),
        ({"archs": []}, "archs is empty", SETTINGS["archs"].help),
        ({"split": "arch", "targets": "llvm"}, "split = 'arch' without the target cuda", "SPLIT=none"),
    ],
)
def test_values_that_contradict_each_other_are_an_error(layer, message, remedy):
    with pytest.raises(SettingsError, match=message) as caught:
        settings(layer)
    assert remedy in (caught.value.remedy or "") and (caught.value.remedy or caught.value.where.location)


def test_settings_for_a_family_have_its_cpus_and_all_gpus():
    given = settings({"archs": ["x86-64-v2", "neoverse-n1", "sm_80", "armv8-a", "compute_80"]})
    assert given.for_family("x86_64").archs == ("x86-64-v2", "sm_80", "compute_80")
    assert given.for_family("aarch64").archs == ("neoverse-n1", "sm_80", "armv8-a", "compute_80")


def test_settings_that_nobody_gave_are_the_defaults():
    defaults = settings()
    assert defaults == settings({}, {}) == Settings()
    assert (defaults.targets, defaults.backends, defaults.package) == (("llvm", "cuda"), ("tvm_ffi",), "")
    assert all(target_of(arch) in defaults.targets for arch in defaults.archs)
    sizes = [getattr(defaults, name) for name, declared in SETTINGS.items() if declared.kind is SIZE]
    assert len(sizes) == 5 and all(parse_size(size) > 0 for size in sizes if size)
    assert re.fullmatch(r"2\.[0-9]+", defaults.glibc) and not Path(defaults.cache_dir).is_absolute()


def test_every_setting_is_declared_once_with_its_type_and_what_is_built_depends_on_all_but_these() -> None:
    declared_here = [field for field in fields(Settings) if field.name != "places"]
    names = [field.name for field in declared_here]
    assert list(SETTINGS) == names and all(declared.help for declared in SETTINGS.values())
    assert {name.upper(): name for name in names if name != "package"} == COMMAND_LINE
    types = {TEXT: "str", SIZE: "str", WORDS: "tuple[str, ...]", FLAGS: "tuple[str, ...]"}
    types |= {SECONDS: "float", LIMIT: "int | None"}
    kinds = {"str": str, "float": float, "tuple[str, ...]": tuple, "int | None": (int, type(None))}
    for field in declared_here:
        assert field.type == types.get(SETTINGS[field.name].kind, "str"), field.name
        assert isinstance(getattr(Settings(), field.name), kinds[field.type]), field.name
    declared = SETTINGS["compress"]
    assert declared.kind.word == "`none`, `speed`, `balance` or `size`"
    assert declared.help_line == "how cubins and PTX are compressed (one of none, speed, balance, size)"
    without = {"worker_timeout", "tool_timeout", "memory_limit", "nvcc_memory"}
    without |= {"pch_size", "cache_dir", "cache_size", "max_wheel_size", "dump_ir", "tilelang_python", "triton_python"}
    without |= {"plugin_pythons", "cross_pythons"}
    without |= {"remote_cache", "remote_mode", "remote_layout", "remote_key", "remote_ca"}
    without |= {"cluster", "cluster_certificates", "places"}
    chosen = settings({"package": "demo", "glibc": "2.31"})
    assert affecting(chosen) == {name: value for name, value in asdict(chosen).items() if name not in without}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_shown_of_a_value_can_be_given_for_it(name):
    kind, where = SETTINGS[name].kind, Where()
    texts = {TEXT: "/a b", SIZE: "1.5G", WORDS: "sm_80,x86-64", FLAGS: "-a -b,c", SECONDS: "0.5", LIMIT: "7"}
    default = getattr(Settings(), name)
    for value in (default, kind.read(name, texts.get(kind, default), where)):
        assert kind.read(name, kind.text(value), where) == value
    if name != "package":
        assert SETTINGS[name].read(name, kind.text(default), where) == default


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


def test_pyproject_has_the_settings_beside_tables_that_are_none(tmp_path):
    path = tmp_path / "pyproject.toml"
    tables = "".join(f"[tool.kernelwright.{name}]\n" for name in ("project", "sdist", "version"))
    path.write_text(f"[tool.kernelwright]\npackage = 'größe'\n{tables}", encoding="utf-8")
    assert read_pyproject(path) == {"package": "größe"} and read_pyproject(tmp_path / "none.toml") == {}
    for text in ("[tool.other]\n", "", "[project]\n"):
        path.write_text(text)
        assert read_pyproject(path) == {}


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
