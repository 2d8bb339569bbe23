"""The fields of a project that installers would refuse are errors that name them, and those that they take are not."""

from __future__ import annotations

import configparser
import warnings
from pathlib import Path
from typing import Any

import pytest
from kernelwright.errors import SettingsError
from kernelwright.wheel.project import Project, provider_project, read_project
from kernelwright.wheel.source import find_source
from kernelwright.wheel.version import version_of


def read(folder: Path, **fields: Any) -> Project:
    """A project with some fields; a warning is an error."""
    names = {name.replace("_", "-"): value for name, value in fields.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_project(folder, {"project": {"name": "demo", "version": "1.0"} | names})


def test_good_entry_points_are_what_installers_read(tmp_path: Path) -> None:
    project = read(
        tmp_path,
        scripts={"demo-add": "demo.tools:main.run", "x": "_demo2:\u00e9"},
        entry_points={"demo.plugins_2": {"of a module": "demo.more", "a:b": "demo:Thing"}},
    )
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_string(project.entry_points)
    assert {group: dict(parser[group]) for group in parser.sections()} == {
        "console_scripts": {"demo-add": "demo.tools:main.run", "x": "_demo2:\u00e9"},
        "demo.plugins_2": {"of a module": "demo.more", "a:b": "demo:Thing"},
    }


@pytest.mark.parametrize(
    "value", ["not an entry", "demo", "demo:", ":main", "a..b:c", "1a:b", "a:b ", "a:b\nc = d:e", 5]
)
@pytest.mark.parametrize("field", ["scripts", "gui-scripts"])
def test_a_script_that_cannot_be_called_is_named(tmp_path: Path, field: str, value: object) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, **{field: {"x": value}})
    assert f"[project].{field}.x is {value!r}, expected module:function" in str(caught.value)


@pytest.mark.parametrize("name", ["x\n[evil]\ny", "", " x", "x ", "a=b", "[x", "x]", "#x", "a b", "../x", "..", "x\t"])
def test_a_script_with_a_bad_name_is_named(tmp_path: Path, name: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, scripts={name: "a:b"})
    assert f"[project].scripts has the name {name!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"a]\n[b": {"x": "a:b"}}, "[project].entry-points has the group 'a]\\n[b'"),
        ({"": {"x": "a:b"}}, "[project].entry-points has the group ''"),
        ({"console_scripts": {"x": "a:b"}}, "write it as [project].scripts"),
        ({"gui_scripts": {"x": "a:b"}}, "write it as [project].gui-scripts"),
        ({"a": {"x\ny": "a:b"}}, "[project].entry-points.a has the name 'x\\ny'"),
        ({"a": {"x": "a b"}}, "[project].entry-points.a.x is 'a b', expected module or module:attribute"),
        ({"a": "a:b"}, "[project].entry-points.a is 'a:b', expected a table"),
        ("a", "[project].entry-points is 'a', expected a table of tables"),
    ],
)
def test_a_group_of_entry_points_that_cannot_be_read_is_named(tmp_path: Path, groups: object, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, entry_points=groups)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"optional_dependencies": {"a b": []}}, "Invalid extra name 'a b' in \"project.optional-dependencies\""),
        ({"optional_dependencies": {"-a": []}}, "Invalid extra name '-a'"),
        ({"description": "one\ntwo"}, "[project].description is 'one\\ntwo', expected one line"),
        ({"description": "one\rtwo"}, "[project].description is 'one\\rtwo', expected one line"),
        ({"scripts": ["a:b"]}, "[project].scripts is ['a:b'], expected a table"),
        ({"dynamic": ["version"]}, "has version = '1.0', and says that the version is dynamic"),
    ],
)
def test_fields_that_installers_refuse_are_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, **fields)
    assert message in str(caught.value)


def test_another_table_is_named_as_it_is(tmp_path: Path) -> None:
    own = {"name": "demo", "version": "1.0", "optional-dependencies": {"a b": []}}
    with pytest.raises(SettingsError, match=r"tool\.kernelwright\.project\.optional-dependencies"):
        read_project(tmp_path, {"tool": {"kernelwright": {"project": own}}})


def test_what_is_only_outdated_is_no_error_and_no_warning(tmp_path: Path) -> None:
    assert b"License: MIT" in read(tmp_path, license={"text": "MIT"}).metadata
    assert b"License ::" in read(tmp_path, classifiers=["License :: OSI Approved :: MIT License"]).metadata


def test_device_code_has_the_entry_point_of_its_package(tmp_path: Path) -> None:
    project = provider_project(tmp_path, {"project": {"name": "a-b", "version": "1.0"}}, "sm_90a", "a.b_sm_90a")
    assert project.entry_points == "[kernelwright.device_code]\na.b_sm_90a = a.b_sm_90a\n"


def test_missing_tables_are_named_once(tmp_path: Path) -> None:
    with pytest.raises(SettingsError) as caught:
        read_project(tmp_path, {})
    assert str(caught.value).startswith("pyproject.toml [wheel]: it has no table [project]\n")
    with pytest.raises(SettingsError, match=r"but \[tool\.kernelwright\.version\] is missing\n"):
        read_project(tmp_path, {"project": {"name": "demo", "dynamic": ["version"]}})


@pytest.mark.parametrize("epoch", ["yesterday", "-1", "315532799", "4354819200", "9" * 5000])
def test_a_time_that_no_wheel_can_have_names_both_bounds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    with pytest.raises(SettingsError) as caught:
        find_source(tmp_path)
    message, remedy = str(caught.value).splitlines()
    assert "from 315532800 (1980) to 4354819199 (2107)" in message
    assert remedy == "  remedy: SOURCE_DATE_EPOCH=$(git log -1 --format=%ct), or unset it"


@pytest.mark.parametrize("epoch", ["315532800", "4354819199"])
def test_the_bounds_are_times_that_a_wheel_can_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, epoch: str
) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    assert find_source(tmp_path).time == int(epoch)


def test_the_version_that_a_build_needs_is_told_or_refused(tmp_path: Path) -> None:
    assert version_of(tmp_path, {}) == "", "kernels without a project around them"
    assert version_of(tmp_path, {"project": {"name": "demo", "version": "1.0.0-rc1"}}) == "1.0.0rc1"
    with pytest.raises(SettingsError, match=r"\[project\]\.dynamic is 'version', expected a list"):
        version_of(tmp_path, {"project": {"name": "demo", "dynamic": "version"}})
    with pytest.raises(SettingsError, match=r"has a dynamic version, but \[tool\.kernelwright\.version\] is missing"):
        version_of(tmp_path, {"project": {"name": "demo", "dynamic": ["version"]}})
