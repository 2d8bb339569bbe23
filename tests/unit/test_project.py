"""The fields of a project that installers would refuse are errors that name them, and those that they take are not."""

from __future__ import annotations

import configparser
import warnings
from dataclasses import replace
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.errors import SettingsError, shown
from kernelwright.define.settings import Settings
from kernelwright.package.project import Project, own_of, provider_project, read_project
from kernelwright.package.source import find_source
from kernelwright.package.version import WHERE, version_of


def read(folder: Path, **fields: Any) -> Project:
    """A project with some fields; a warning is an error."""
    names = {name.replace("_", "-"): value for name, value in fields.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return read_project(folder, {"project": {"name": "demo", "version": "1.0"} | names})


def fields_of(project: Project, name: str) -> list[str]:
    """The values of a field of METADATA."""
    return message_from_bytes(project.metadata).get_all(name) or []


def test_good_entry_points_are_what_installers_read(tmp_path: Path) -> None:
    project = read(
        tmp_path,
        scripts={"demo-add": "demo.tools:main.run", "x": "_demo2:\u00e9"},
        gui_scripts={"demo-window": "demo.window:main"},
        entry_points={"demo.plugins_2": {"of a module": "demo.more", "a:b": "demo:Thing"}},
    )
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.read_string(project.entry_points)
    assert {group: dict(parser[group]) for group in parser.sections()} == {
        "console_scripts": {"demo-add": "demo.tools:main.run", "x": "_demo2:\u00e9"},
        "gui_scripts": {"demo-window": "demo.window:main"},
        "demo.plugins_2": {"of a module": "demo.more", "a:b": "demo:Thing"},
    }


BAD_SCRIPTS = ("not an entry", "demo", "demo:", ":main", "a..b:c", "1a:b", "a:b ", "a:b\nc = d:e", 5)
BAD_NAMES = ("x\n[evil]\ny", "", " x", "x ", "a=b", "[x", "x]", "#x", "a b", "../x", "..", "x\t")


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        *(
            ({"scripts": {"x": bad}}, f"[project].scripts.x is {bad!r}, expected module:function")
            for bad in BAD_SCRIPTS
        ),
        ({"gui_scripts": {"x": "demo"}}, "[project].gui-scripts.x is 'demo', expected module:function"),
        *(({"scripts": {name: "a:b"}}, f"[project].scripts has the name {name!r}") for name in BAD_NAMES),
        ({"scripts": ["a:b"]}, "[project].scripts is ['a:b'], expected a table"),
        ({"entry_points": {"a]\n[b": {"x": "a:b"}}}, "[project].entry-points has the group 'a]\\n[b'"),
        ({"entry_points": {"": {"x": "a:b"}}}, "[project].entry-points has the group ''"),
        ({"entry_points": {"console_scripts": {"x": "a:b"}}}, "write it as [project].scripts"),
        ({"entry_points": {"gui_scripts": {"x": "a:b"}}}, "write it as [project].gui-scripts"),
        ({"entry_points": {"a": {"x\ny": "a:b"}}}, "[project].entry-points.a has the name 'x\\ny'"),
        ({"entry_points": {"a": {"x": "a b"}}}, "entry-points.a.x is 'a b', expected module or module:attribute"),
        ({"entry_points": {"a": "a:b"}}, "[project].entry-points.a is 'a:b', expected a table"),
        ({"entry_points": "a"}, "[project].entry-points is 'a', expected a table of tables"),
        ({"version": 1}, '"project.version"'),
        ({"version": "1.0x!"}, "1.0x!"),
        ({"dynamic": ["readme", "urls"]}, "[project].dynamic has 'readme', 'urls'"),
        ({"dynamic": ["version"]}, "has version = '1.0', and says that the version is dynamic"),
        ({"license": "no such"}, "[project].license is 'no such', which is no SPDX license expression"),
        ({"license": "MIT", "license_files": ["absent"]}, "absent"),
        ({"readme": "absent.md"}, "absent.md"),
        ({"dependencies": "numpy"}, '"project.dependencies"'),
        ({"dependencies": ["numpy >> 3"]}, "numpy >> 3"),
        ({"name": "demo kernels!"}, "demo kernels!"),
        ({"unknown": 1}, '"project"'),
        ({"optional_dependencies": {"a b": []}}, "Invalid extra name 'a b' in \"project.optional-dependencies\""),
        ({"optional_dependencies": {"-a": []}}, "Invalid extra name '-a'"),
        ({"description": "one\ntwo"}, "[project].description is 'one\\ntwo', expected one line"),
        ({"description": "one\rtwo"}, "[project].description is 'one\\rtwo', expected one line"),
    ],
)
def test_fields_that_installers_refuse_are_named(tmp_path: Path, fields: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, **fields)
    assert message in str(caught.value)
    assert caught.value.where == WHERE and caught.value.remedy


def test_another_table_is_named_as_it_is_and_what_is_only_outdated_is_no_error(tmp_path: Path) -> None:
    own = {"name": "demo", "version": "1.0", "optional-dependencies": {"a b": []}}
    with pytest.raises(SettingsError, match=r"tool\.kernelwright\.project\.optional-dependencies"):
        read_project(tmp_path, {"tool": {"kernelwright": {"project": own}}})
    assert b"License: MIT" in read(tmp_path, license={"text": "MIT"}).metadata
    assert b"License ::" in read(tmp_path, classifiers=["License :: OSI Approved :: MIT License"]).metadata


def test_device_code_has_the_entry_point_the_people_and_the_terms_of_its_package(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("Do as you like.")
    shared = {
        "authors": [{"name": "A"}],
        "maintainers": [{"email": "b@example.org"}],
        "keywords": ["gpu"],
        "license": "MIT",
        "license-files": ["LICENSE"],
        "requires-python": ">=3.10",
        "urls": {"Home": "https://example.org"},
    }
    own = {"scripts": {"x": "a:b"}, "dependencies": ["numpy"]}
    document = {"project": {"name": "a-b", "version": "1.0-rc1", **shared, **own}}
    package, code = read_project(tmp_path, document), provider_project(tmp_path, document, "sm_90a", "a.b_sm_90a")
    for name in ("Author", "Maintainer-Email", "Keywords", "License-Expression", "License-File", "Requires-Python"):
        assert fields_of(package, name) == fields_of(code, name) != []
    assert package.licenses == code.licenses == {"LICENSE": b"Do as you like."}
    assert code.entry_points == "[kernelwright.device_code]\na.b_sm_90a = a.b_sm_90a\n"
    assert (code.name, code.distribution, code.version) == ("a_b_sm_90a", "a-b-sm-90a", "1.0rc1")
    assert [fields_of(code, name) for name in ("Summary", "Project-URL", "Requires-Dist")] == [
        ["Device code of a-b for sm_90a"],
        ["Home, https://example.org"],
        ["a-b==1.0rc1"],
    ]
    assert b"together with a-b 1.0rc1 only" in code.metadata


def dynamic(version: object) -> dict[str, Any]:
    """A pyproject.toml with a table that says where the version is."""
    table = {"name": "demo", "dynamic": ["version"]}
    return {"project": table, "tool": {"kernelwright": {"version": version}}}


@pytest.mark.parametrize(
    ("content", "version"),
    [
        (" 1.0-rc1\n", "1.0rc1"),
        ('"""Text."""\n__version__ = "2.0"\n', "2.0"),
        ("VERSION: str = '1.2'", "1.2"),
        ('# version = "9.9"\nVERSION: str = "1.3.0"  # the next is 2\n', "1.3.0"),
        ('needed_version = "9.9"\n__version__ = "1.2"\n', "1.2"),
        ('[project]\nversion = "3"\n', "3"),
    ],
)
def test_a_version_in_a_file_is_read_and_the_file_is_a_source(tmp_path: Path, content: str, version: str) -> None:
    (tmp_path / "version.py").write_text(content)
    document = dynamic({"file": "version.py"})
    assert version_of(tmp_path, document) == version
    project = read_project(tmp_path, document)
    assert (project.version, project.files) == (version, ("pyproject.toml", "version.py"))
    assert provider_project(tmp_path, document, "sm_90a", "demo_sm_90a").version == version


@pytest.mark.parametrize(
    ("table", "content", "message", "remedy"),
    [
        ({"file": "version.py"}, "a 1.0", "version.py has no version", "write a version alone"),
        ({"file": "version.py"}, "1.0x!", "'1.0x!', the version in version.py, is not valid", "write one such as"),
        ({"file": "other.py"}, "1.0", "other.py cannot be read: No such file or directory", "name another file"),
        ({"file": ""}, "1.0", "[tool.kernelwright.version] has file = ''", "file = "),
        ({"file": 1}, "1.0", "[tool.kernelwright.version] has file = 1", "file = "),
        ({"git": 1}, "1.0", "[tool.kernelwright.version] has git = 1", "git = true"),
        ({"file": "a", "git": True}, "1.0", "[tool.kernelwright.version] is {'file': 'a', 'git': True}", "file = "),
        ({"path": "a"}, "1.0", "[tool.kernelwright.version] is {'path': 'a'}", "file = "),
        ([], "1.0", "[tool.kernelwright.version] is []", "file = "),
        ({"git": True}, "1.0", "git tells no version: it tracks nothing here", "commit the project"),
    ],
)
def test_a_version_that_cannot_be_told_says_why_and_what_to_write(tmp_path, table, content, message, remedy):
    (tmp_path / "version.py").write_text(content)
    with pytest.raises(SettingsError) as caught:
        version_of(tmp_path, dynamic(table))
    assert message in caught.value.message and remedy in (caught.value.remedy or "")
    assert caught.value.where == WHERE


def test_what_a_project_says_is_in_its_wheel(tmp_path: Path) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/README.md").write_text("Read me.")
    (tmp_path / "LICENSE").write_text("Do as you like.")
    fields = {"name": "My--Kernels.x", "version": "1.0-rc1", "readme": "docs/README.md", "license": "MIT"}
    project = read(tmp_path, license_files=["LICENSE"], **fields)
    assert (project.name, project.distribution, project.version) == ("my_kernels_x", "My--Kernels.x", "1.0rc1")
    assert project.licenses == {"LICENSE": b"Do as you like."}
    assert project.files == ("pyproject.toml", "docs/README.md", "LICENSE")
    assert project.metadata.startswith(b"Metadata-Version: 2.4\nName: My--Kernels.x\nVersion: 1.0rc1\n")
    assert b"License-Expression: MIT" in project.metadata and project.metadata.endswith(b"\nRead me.")
    assert read(tmp_path).files == ("pyproject.toml",)


def test_what_calls_kernels_is_required_and_what_else_can_and_each_wheel_of_device_code_are_extras(tmp_path):
    def needs(providers: tuple[str, ...] = (), **fields: Any) -> tuple[list[str], list[str]]:
        table = {"name": "demo", "version": "1.0", **fields}
        more = {"providers": providers, "called_through": ("tvm_ffi", "torch")}
        project = read_project(tmp_path, {"project": table}, **more)
        return fields_of(project, "Requires-Dist"), fields_of(project, "Provides-Extra")

    required, extras = needs()
    assert [need for need in required if "extra" not in need] == ["apache-tvm-ffi<0.2,>=0.1.13"]
    assert extras == ["torch"] and any(need.startswith("torch>=2.4") and "extra" in need for need in required)
    own = {"dependencies": ["Apache_TVM.ffi == 0.1.15"], "optional-dependencies": {"Torch": ["torch==2.5"]}}
    required, _ = needs(**own)
    assert len(required) == 2 and not any(">=" in need for need in required), "a version of the project's own wins"
    required, _ = needs(dependencies=["apache-tvm-ffi-extras"])
    assert len([need for need in required if "extra ==" not in need]) == 2, "which is another one"

    required, extras = needs(("sm_80", "sm_90a"), **{"optional-dependencies": {"test": ["pytest"]}})
    assert sorted(extras) == ["cuda", "sm-80", "sm-90a", "test", "torch"]
    pins = {"sm-80": "demo-sm-80==1.0", "sm-90a": "demo-sm-90a==1.0"}
    expected = [f"{pin}; extra == '{extra}'" for arch, pin in pins.items() for extra in (arch, "cuda")]
    assert sorted(need.replace('"', "'") for need in required if need.startswith("demo-")) == sorted(expected)


@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"SM_90A": []}, "has 'SM_90A', the name of an extra that split = 'arch' makes"),
        ({"cuda": []}, "has 'cuda', the name of an extra that split = 'arch' makes"),
        ([], "[project].optional-dependencies is [], expected a table"),
    ],
)
def test_an_extra_that_is_made_cannot_be_given(tmp_path: Path, extras: object, message: str) -> None:
    table = {"name": "demo", "version": "1.0", "optional-dependencies": extras}
    with pytest.raises(SettingsError) as caught:
        read_project(tmp_path, {"project": table}, providers=("sm_90a",))
    assert message in caught.value.message and caught.value.remedy


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({}, "pyproject.toml [wheel]: it has no table [project]\n"),
        ({"project": {"name": "demo"}}, "has no version"),
        ({"project": {"name": "demo", "dynamic": "version"}}, "[project].dynamic is 'version', expected a list"),
        ({"project": {"name": "demo", "dynamic": ["version"]}}, "but [tool.kernelwright.version] is missing\n"),
    ],
)
def test_a_project_without_a_version_is_refused(tmp_path: Path, document: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read_project(tmp_path, document)
    assert message in str(caught.value)


@pytest.mark.parametrize("epoch", ["yesterday", "-1", "315532799", "4354819200", "9" * 5000])
def test_a_time_that_no_wheel_can_have_names_both_bounds(tmp_path, monkeypatch, epoch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", epoch)
    with pytest.raises(SettingsError) as caught:
        find_source(tmp_path)
    message, remedy = str(caught.value).splitlines()
    assert message.startswith(f"SOURCE_DATE_EPOCH [wheel]: it is {shown(epoch)}, expected seconds since 1970")
    assert "from 315532800 (1980) to 4354819199 (2107)" in message
    for bound in (315532800, 4354819199):
        monkeypatch.setenv("SOURCE_DATE_EPOCH", str(bound))
        assert find_source(tmp_path).time == bound
    assert remedy == "  remedy: SOURCE_DATE_EPOCH=$(git log -1 --format=%ct), or unset it"


OWN = {"kernelwright": {"project": {"name": "own", "version": "2.0"}}}


@pytest.mark.parametrize(
    ("document", "version"),
    [
        ({}, ""),
        ({"project": {"name": "demo"}}, ""),
        ({"project": {"name": "demo", "version": "1.0.0-rc1"}}, "1.0.0rc1"),
        ({"project": {"name": "demo", "version": "1.0"}, "tool": OWN}, "2.0"),
        ({"tool": OWN}, "2.0"),
    ],
)
def test_the_version_is_that_of_the_project_of_the_kernels(tmp_path, document, version):
    assert version_of(tmp_path, document) == version


def test_wheels_of_toolkits_and_for_debuggers_have_versions_of_their_own() -> None:
    settings = Settings(package="demo", cuda=("13.0",))
    assert [own_of(settings).version(one) for one in ("1.0", "1.0+us")] == ["1.0+cu130", "1.0+us.cu130"]
    assert own_of(replace(settings, debug="lineinfo")).version("1.0") == "1.0+cu130.lineinfo"
    assert own_of(Settings(package="demo", debug="full")).version("1.0") == "1.0+full"
