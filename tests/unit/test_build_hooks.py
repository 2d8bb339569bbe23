"""The hooks that pip calls: status, which wheel is given, and archives that do not depend on who makes them when."""

from __future__ import annotations

import io
import os
import tarfile
import zipfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright import build
from kernelwright.core.errors import KernelwrightError, SettingsError, ToolError, Where
from kernelwright.core.version import VERSION
from kernelwright.package import WHEEL_LIST

PYPROJECT = """\
[project]
name = "demo"
version = "1.0"

[tool.kernelwright]
package = "demo"
archs = ["x86-64-v3", "sm_80"]
split = "arch"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The project in which a front end calls the hooks."""
    (tmp_path / "pyproject.toml").write_text(PYPROJECT)
    (tmp_path / "out").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def wheel(path: Path, metadata: str = "Name: demo\n") -> Path:
    """Something that is a wheel as far as the hooks look into it."""
    path.parent.mkdir(exist_ok=True)
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("demo-1.0.dist-info/METADATA", metadata)
    return path


@pytest.fixture
def scons(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """In place of a run of scons: its status, the lines of the list of wheels that it writes, and how it was run."""
    run = SimpleNamespace(status=0, listed=[], commands=[])

    def call(command: Sequence[str], env: dict[str, str], check: bool) -> Any:
        run.commands.append(list(command))
        if run.listed and WHEEL_LIST in env:
            Path(env[WHEEL_LIST]).write_text("".join(f"{path.name}\t{path}\n" for path in run.listed))
        return SimpleNamespace(returncode=run.status)

    monkeypatch.setattr(build, "subprocess", SimpleNamespace(run=call))
    return run


def test_the_wheel_of_the_package_is_given_and_all_are_put_into_the_folder(project, scons):
    names = ("demo_more-1.0-py3-none-any.whl", "demo-1.0-py3-none-linux_x86_64.whl", "demo_sm_80-1.0-py3-none-any.whl")
    scons.listed = [wheel(project / "build" / name) for name in names]
    assert build.build_wheel("out") == "demo-1.0-py3-none-linux_x86_64.whl"
    assert build.build_wheel("out", {"provider": "sm_80"}) == "demo_sm_80-1.0-py3-none-any.whl"
    for path in scons.listed:
        assert (project / "out" / path.name).read_bytes() == path.read_bytes()


def test_of_several_toolkits_the_wheel_of_the_first_is_given(project, scons):
    text = PYPROJECT.replace('split = "arch"', 'cuda = ["13.0", "nvrtc-12.8"]')
    (project / "pyproject.toml").write_text(text)
    names = [f"demo-1.0+{label}-py3-none-linux_x86_64.whl" for label in ("cu128", "cu130", "cu128cu130")]
    scons.listed = [wheel(project / "build" / name) for name in names]
    assert build.build_wheel("out") == names[1]
    assert build.build_wheel("out", {"cuda": "nvrtc-12.8"}) == names[0]
    assert build.build_wheel("out", {"cuda": "nvrtc-12.8,13.0", "cuda_wheels": "one"}) == names[2]
    assert build.prepare_metadata_for_build_wheel("out") == "demo-1.0+cu130.dist-info"
    unlabelled = {"cuda": "nvrtc-12.8", "cuda_label": "no"}
    assert build.prepare_metadata_for_build_wheel("out", unlabelled) == "demo-1.0.dist-info"


@pytest.mark.parametrize("status", [1, 2, -9])
def test_a_build_that_fails_gives_no_wheel_whatever_is_in_dist(project, scons, status):
    scons.status = status
    scons.listed = [wheel(project / "dist/demo-1.0-py3-none-any.whl")]
    for hook in (build.build_wheel, build.build_editable):
        with pytest.raises(SystemExit) as caught:
            hook("out")
        assert "kernelwright: SConstruct [wheel]: python" in str(caught.value)
    assert list((project / "out").iterdir()) == []


@pytest.mark.parametrize(
    ("made", "told"),
    [
        ([], "scons wheel made no wheel, and none for demo 1.0"),
        (
            ["demo_x-1.0", "demo-1.0.1"],
            "made demo_x-1.0-py3-none-any.whl, demo-1.0.1-py3-none-any.whl, and none for demo 1.0",
        ),
    ],
)
def test_no_wheel_or_only_those_of_others_are_an_error(project, scons, made, told):
    scons.listed = [wheel(project / f"dist/{name}-py3-none-any.whl") for name in made]
    with pytest.raises(SystemExit, match=told):
        build.build_wheel("out")
    assert list((project / "out").iterdir()) == []


def test_a_wheel_that_was_not_made_or_has_other_metadata_than_the_front_end_was_told_is_an_error(project, scons):
    scons.listed = [wheel(project / "dist/demo-1.0-py3-none-any.whl")]
    with pytest.raises(SystemExit, match="and none for sm_80"):
        build.build_wheel("out", {"provider": "sm_80"})
    with pytest.raises(SystemExit, match="provider is 'sm_90a'; the archs are sm_80"):
        build.build_wheel("out", {"provider": "sm_90a"})
    assert list((project / "out").iterdir()) == [] and len(scons.commands) == 1
    scons.listed = [wheel(project / "dist/demo-1.0-py3-none-any.whl")]
    (project / "prepared").mkdir()
    (project / "prepared/METADATA").write_text("Name: demo\n")
    assert build.build_wheel("out", None, "prepared")
    (project / "prepared/METADATA").write_text("Name: other\n")
    with pytest.raises(SystemExit, match=r"is not what pyproject\.toml says"):
        build.build_wheel("out", None, "prepared")


@pytest.mark.parametrize(
    ("config", "pure", "tag"),
    [
        ({}, "false", "linux_x86_64"),
        ({"provider": "sm_80"}, "true", "any"),
        ({"backends": "cuda_core", "targets": "cuda"}, "true", "any"),
    ],
)
def test_metadata_says_whether_there_is_code_for_one_kind_of_machine(project, config, pure, tag):
    folder = project / "out" / build.prepare_metadata_for_build_wheel("out", config)
    assert (folder / "WHEEL").read_text() == (
        f"Wheel-Version: 1.0\nGenerator: kernelwright {VERSION}\nRoot-Is-Purelib: {pure}\nTag: py3-none-{tag}\n"
    )
    name = "demo-sm-80" if "provider" in config else "demo"
    assert f"Name: {name}\n" in (folder / "METADATA").read_text().replace("_", "-")


def test_config_settings_are_settings_of_the_command_line_of_scons_whose_status_is_told(project, scons):
    build._scons(["wheel"], {"archs": ["x86-64-v3", "sm_90a"], "jobs": "3", "max_registers": "0"}, {})
    (command,) = scons.commands
    assert command[1:] == ["-m", "SCons", "-Q", "-j3", "ARCHS=x86-64-v3,sm_90a", "MAX_REGISTERS=0", "wheel"]
    given = {"archs": ["sm_80", "sm_90a"], "nvcc_flags": ["-O1", "-DN=1,2"], "compress": "size"}
    arguments = build._arguments({"jobs": 1, **given})
    assert arguments == ["-j1", "ARCHS=sm_80,sm_90a", "NVCC_FLAGS=-O1 -DN=1,2", "COMPRESS=size"]
    scons.status = 2
    with pytest.raises(ToolError, match="ended with exit status 2"):
        build._scons([], {}, {})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        *(({"jobs": jobs}, "expected a number from 1 up") for jobs in ("0", "-1", "two", "", "1.5", 0)),
        ({"arch": "sm_80"}, "no config setting 'arch'; they are jobs, provider, targets, archs"),
    ],
)
def test_a_number_of_jobs_that_is_none_and_an_unknown_setting_are_errors(given, message):
    with pytest.raises(SettingsError, match=message):
        build._arguments(given)


def test_an_error_of_ours_ends_the_process_with_its_message_and_any_other_is_shown_as_it_is():
    with pytest.raises(SystemExit) as ended, build._plain_errors():
        raise KernelwrightError("it is wrong", Where(stage="wheel"), "mend it")
    assert ended.value.code == "kernelwright: [wheel]: it is wrong\n  remedy: mend it", "Python's status is 1 then"
    with pytest.raises(ZeroDivisionError), build._plain_errors():
        raise ZeroDivisionError


def test_an_archive_has_all_files_in_order_with_one_time_and_plain_rights(tmp_path):
    for name, mode in (("run.sh", 0o700), ("kernels/a.py", 0o600), ("b.py", 0o666)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
        (tmp_path / name).chmod(mode)
    content = {"run.sh": b"1", "kernels/a.py": b"", "b.py": b"22", "PKG-INFO": b"made"}
    stream = io.BytesIO()
    build._archive(stream, "demo-1.0", content, tmp_path, 1_700_000_000)
    with tarfile.open(fileobj=io.BytesIO(stream.getvalue())) as archive:
        found = [(item.name, item.mode, item.mtime, item.uid, item.uname, item.size) for item in archive.getmembers()]
    common = (1_700_000_000, 0, "")
    assert found == [
        ("demo-1.0/PKG-INFO", 0o644, *common, 4),
        ("demo-1.0/b.py", 0o644, *common, 2),
        ("demo-1.0/kernels/a.py", 0o644, *common, 0),
        ("demo-1.0/run.sh", 0o755, *common, 1),
    ]
    again = io.BytesIO()
    build._archive(again, "demo-1.0", dict(reversed(content.items())), tmp_path, 1_700_000_000)
    assert again.getvalue() == stream.getvalue()


def test_a_source_distribution_has_the_time_of_its_sources_in_every_place(project, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1500000000")
    (project / "pyproject.toml").write_text(PYPROJECT + '[tool.kernelwright.sdist]\ninclude = ["*.py"]\n')
    (project / "SConstruct").touch()
    (project / "a.py").touch()
    content = (project / "out" / build.build_sdist("out")).read_bytes()
    assert int.from_bytes(content[4:8], "little") == 1_500_000_000, "RFC 1952: MTIME of gzip's header"
    assert content[3] == 0, "and no name of a file"
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        assert {item.mtime for item in archive.getmembers()} == {1_500_000_000}


@pytest.mark.parametrize("name", ["a\nimport evil", "a\rb", "a\u2028b", "a\x1cb", "a\udcffb"])
def test_a_folder_that_would_be_more_than_one_line_of_a_path_file_is_refused(name):
    assert build._path_line(Path("/home/x y/build")) == b"/home/x y/build\n"
    with pytest.raises(SettingsError, match="Python cannot be told of a folder"):
        build._path_line(Path("/home", name))


def test_an_editable_install_has_a_link_to_the_package_and_to_nothing_else(project, scons):
    name = build.build_editable("out")
    assert scons.commands[0][-1].startswith("-j"), "the packages, and no wheel"
    assert os.readlink(project / "build/editable/demo") == "../demo"  # noqa: PTH115
    with zipfile.ZipFile(project / "out" / name) as archive:
        paths = {n: archive.read(n) for n in archive.namelist() if n.endswith(".pth")}
    assert paths == {"__editable__.demo.pth": f"{project}/build/editable\n".encode()}
