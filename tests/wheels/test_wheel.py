"""Wheels of kernel packages: built by scons and by pip, installed in fresh environments, refused."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from kernelwright.backends.tvm_ffi import TvmFfi
from packaging.requirements import Requirement
from support.environments import NEEDED, install, linked, needed, site_of
from support.project import SITE_SCONS, Project
from support.wheels import (
    FILES,
    build_environment,
    built_wheel,
    elsewhere,
    git,
    hook,
    inside,
    metadata_of,
    pip_wheel,
    require_well,
    source_in,
    wheel_of,
    without_dist,
)

RUN = """
import sys, numpy as np, demo
assert "kernelwright" not in sys.modules and "tvm" not in sys.modules
x = np.arange(8, dtype="float32").reshape(2, 4)
np.testing.assert_array_equal(np.from_dlpack(demo.add_one(x)), x + 1)
np.testing.assert_array_equal(np.from_dlpack(demo.scale(x.ravel())), 2 * x.ravel())
assert [repr(demo.add_one), repr(demo.scale)] == ["<kernel add_one with 1 variant>", "<kernel scale with 2 variants>"]
print(demo.__file__)
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """The built project, which tests must not change."""
    return built_wheel(tmp_path_factory)


# ---- what is in one


def test_name_metadata_and_files(made: Project) -> None:
    wheel = wheel_of(made)
    match = re.fullmatch(r"demo_kernels-1\.2rc1-py3-none-manylinux_2_(\d+)_x86_64\.whl", wheel.name)
    assert match and int(match[1]) <= 28
    info, files = "demo_kernels-1.2rc1.dist-info", inside(wheel)
    assert files[f"{info}/entry_points.txt"] == b"[console_scripts]\ndemo-add = demo:main\n"
    assert files[f"{info}/licenses/LICENSE.txt"] == FILES["LICENSE.txt"].encode()
    with zipfile.ZipFile(wheel) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(2026, 1, 2, 3, 4, 4)}
        assert {entry.external_attr >> 16 for entry in archive.infolist()} == {0o100644}
    assert list(files) == [*sorted(list(files)[:-1]), f"{info}/RECORD"]
    for line in (
        "Name: Demo-Kernels",
        "Version: 1.2rc1",
        "License-Expression: MIT",
        "Requires-Python: >=3.10",
        "Project-URL: Source, https://example.org/demo",
        "Classifier: Topic :: Software Development",
        "Requires-Dist: numpy",
        "Requires-External: nvidia-driver (>=580.65.06)",
    ):
        assert line in metadata_of(wheel).splitlines()
    assert "Requires-Dist: apache-tvm-ffi" in metadata_of(wheel) and "with a letter: \u00e9" in metadata_of(wheel)
    assert source_in(wheel) == {"commit": git(made.folder, "rev-parse", "HEAD").strip(), "dirty": False}
    command = [sys.executable, "-m", "kernelwright", "verify", "--entry-points", str(wheel)]
    done = subprocess.run(command, env=build_environment(), capture_output=True, text=True)
    driver = "  driver: 580.65.06 (CUDA 13.0) or newer for sm_80, compute_80, sm_90a\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{wheel.name}: all well\n{driver}", "")


def test_a_second_run_makes_nothing_and_a_change_makes_another(made: Project, tmp_path: Path) -> None:
    project = made.copied(tmp_path / "copy")
    first = wheel_of(project).read_bytes()
    assert project.scons("wheel").stages == []
    wheel_of(project).write_bytes(b"no wheel")
    assert project.scons("wheel").stages == [] and wheel_of(project).read_bytes() == first
    project.write("README.md", "# Another text\n")
    run = project.scons("wheel", ok=False)
    assert run.stages == ["WHEEL demo_kernels"] and wheel_of(project).read_bytes() == first
    assert f"dist/{wheel_of(project).name} is there, with other content" in run.output and "remedy: " in run.output
    assert run.counts[2] == 1, "the last line says that something failed"
    run = project.scons("--replace", "wheel", env={"SOURCE_DATE_EPOCH": "1700000000"})
    assert "in place of one of that name with other content" in run.output
    assert "Another text" in metadata_of(wheel_of(project)) and source_in(wheel_of(project))["dirty"] is True
    with zipfile.ZipFile(wheel_of(project)) as archive:
        assert {entry.date_time for entry in archive.infolist()} == {(2023, 11, 14, 22, 13, 20)}
    project.write("VERSION", "1.3\n")
    project.scons("wheel")
    assert {path.name.split("-")[1] for path in (project.folder / "dist").iterdir()} == {"1.2rc1", "1.3"}
    for target in (("wheel",), ()):
        project.scons("-c", *target)
        assert not list((project.folder / "build/wheels").glob("*/*"))
        assert len(list((project.folder / "dist").iterdir())) == 2
        if target:
            project.scons("wheel")
            (project.folder / "VERSION").rename(project.folder / "OTHER")
            assert project.scons().stages == [], "without the target nothing is read for a wheel"
            (project.folder / "OTHER").rename(project.folder / "VERSION")


def test_each_package_of_a_project_has_a_wheel_of_its_own_name(made: Project, tmp_path: Path) -> None:
    project = without_dist(made, tmp_path / "copy")
    shutil.copytree(project.folder / "kernels", project.folder / "k2")
    more = 'env.KernelPackage("demo2", env.Glob("k2/*.py"))\nenv.KernelWheel("demo2", name="Demo-Two")\n'
    with (project.folder / "SConstruct").open("a") as file:
        file.write(more)
    project.scons("-j2", "wheel", "TARGETS=llvm")
    one, two = sorted((project.folder / "dist").iterdir())
    assert [path.name.partition("-py3")[0] for path in (one, two)] == ["demo_kernels-1.2rc1", "demo_two-1.2rc1"]
    require_well(two)
    files = inside(two)
    assert {name.partition("/")[0] for name in files} == {"demo2", "demo_two-1.2rc1.dist-info"}
    assert "Name: Demo-Two" in metadata_of(two) and not any(name.endswith("entry_points.txt") for name in files)
    # A front end is given that of the project.
    out = tmp_path / "out"
    out.mkdir()
    done = hook(project, f"print(build.build_wheel({str(out)!r}, {{'targets': 'llvm'}}))")
    assert done.stdout.splitlines()[-1] == one.name and len(list(out.iterdir())) == 2


def test_equal_sources_give_equal_wheels_wherever_and_by_whomever_they_are_built(made, tmp_path_factory):
    other = elsewhere(tmp_path_factory)
    assert wheel_of(other).name == wheel_of(made).name
    assert wheel_of(other).read_bytes() == wheel_of(made).read_bytes()


# ---- installed


def require_running(home: Path, wheel: Path, nothing: Path) -> None:
    """Install a wheel where what it needs is, and call it where nothing can be written, found or compiled."""
    # What pip would install with it is there, and nothing else; without an index pip fails if anything is missing.
    required = map(Requirement, re.findall(r"^Requires-Dist: (.*)$", metadata_of(wheel), re.M))
    names = {each.name for each in required if each.marker is None or each.marker.evaluate({"extra": ""})}
    assert names == {Requirement(line).name for line in NEEDED}
    install(home, "--no-index", wheel)
    nothing.mkdir()
    own = [path for path in [home, *home.rglob("*")] if not path.is_symlink()]
    for path in own:
        path.chmod(path.stat().st_mode & ~0o222)
    command = [home / "bin/python", "-I", "-c", RUN]
    done = subprocess.run(command, cwd=nothing, env={"PATH": str(nothing)}, text=True, capture_output=True)
    for path in own:
        path.chmod(path.stat().st_mode | 0o200)
    assert done.returncode == 0 and done.stdout.startswith(str(home)), done.stderr


def test_an_installed_wheel_runs_with_its_dependencies_only(made, tmp_path, tmp_path_factory):
    home = linked(needed(tmp_path_factory), tmp_path / "with blank and \u00e9")
    require_running(home, wheel_of(made), tmp_path / "nothing")


def test_an_installed_wheel_runs_on_the_oldest_python(made, tmp_path, tmp_path_factory):
    home = linked(needed(tmp_path_factory, 10), tmp_path / "home")
    require_running(home, wheel_of(made), tmp_path / "nothing")


OLDEST_TVM_FFI = "0.1.13.post2"


def test_it_runs_with_the_oldest_tvm_ffi_that_it_accepts(made, tmp_path, tmp_path_factory):
    accepted = Requirement(TvmFfi.run_needs[0].requirement).specifier
    assert OLDEST_TVM_FFI in accepted and "0.1.12" not in accepted, "then another one is the oldest"
    home = linked(needed(tmp_path_factory), tmp_path / "home")
    install(home, wheel_of(made), f"apache-tvm-ffi=={OLDEST_TVM_FFI}")
    code = RUN + f'import tvm_ffi; assert tvm_ffi.__version__ == "{OLDEST_TVM_FFI}", tvm_ffi.__version__'
    subprocess.run([home / "bin/python", "-I", "-c", code], cwd=tmp_path, check=True)


# ---- pip, sdist, editable


def test_pip_and_the_source_distribution_give_the_same_wheel(made: Project, tmp_path: Path) -> None:
    project, out = made.copied(tmp_path / "copy"), tmp_path / "out"
    of_tree = pip_wheel(project, out / "tree")
    name = hook(project, f"print(build.build_sdist({str(tmp_path)!r}))").stdout.strip()
    base = "demo_kernels-1.2rc1"
    with tarfile.open(tmp_path / name) as archive:
        listed = sorted(archive.getnames())
        archive.extractall(tmp_path / "unpacked", filter="data")
    assert listed == sorted(f"{base}/{file}" for file in [*FILES, "PKG-INFO", "kernelwright-source.json"])
    unpacked = Project(tmp_path / "unpacked" / base)
    # What the stages made is in the cache of this tree as well.
    shutil.copytree(made.folder / "build/.kernelwright", unpacked.folder / "build/.kernelwright")
    of_sdist = pip_wheel(unpacked, out / "sdist")
    for wheel in (of_tree, of_sdist):
        assert wheel.name == wheel_of(made).name and wheel.read_bytes() == wheel_of(made).read_bytes()
    unpacked.write("README.md", "# Edited\n")
    (out / "edited").mkdir()
    done = hook(unpacked, f"build.build_wheel({str(out / 'edited')!r})")
    assert done.returncode == 0, done.stdout
    assert source_in(next((out / "edited").glob("*.whl"))) == {**source_in(of_sdist), "dirty": True}


def test_editable_install_follows_the_build_folder(made: Project, tmp_path: Path) -> None:
    project, home = made.copied(tmp_path / "copy"), tmp_path / "home"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", "--system-site-packages", home], check=True)
    # What the environment of the tests has is there too, as it is for a user who installs into one with Kernelwright.
    paths = [str(SITE_SCONS), *(path for path in sys.path if path.endswith("site-packages"))]
    (site_of(home) / "tests.pth").write_text("\n".join(paths))
    install(home, "--no-build-isolation", "--no-deps", "-e", project.folder, env={"PATH": build_environment()["PATH"]})

    def run(code: str) -> subprocess.CompletedProcess[str]:
        # tvm-ffi would import PyTorch, which takes seconds.
        command = [home / "bin/python", "-c", f"import sys; sys.modules['torch'] = None\n{code}"]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)

    code = "import demo, numpy as np\nprint(np.from_dlpack(demo.scale(np.ones(1, 'f4'))))"
    assert run(code).stdout == "[2.]\n"
    project.replace("kernels/scale.py", "T.cast(2.0", "T.cast(3.0")
    project.scons("-j2", "TARGETS=llvm")
    assert run(code).stdout == "[3.]\n"
    assert run("import kernels").returncode == 1


# ---- bad input


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("pyproject.toml", 'readme = "README.md"', 'readme = "MISSING.md"', "MISSING.md"),
        ("SConstruct", 'KernelWheel("demo")', 'KernelWheel("other")', "there is no package 'other'"),
        (
            "SConstruct",
            'KernelWheel("demo")',
            'KernelWheel("demo", name="a/b")',
            "name is 'a/b', which no distribution",
        ),
        (
            "SConstruct",
            'env.KernelWheel("demo")\n',
            'env.KernelWheel("demo")\nenv.KernelPackage("demo2", env.Glob("k2/*.py"))\nenv.KernelWheel("demo2")\n',
            "its wheel would be called demo_kernels-1.2rc1, as that of demo",
        ),
    ],
)
def test_what_is_wrong_with_a_project_is_an_error_that_names_it_and_leaves_no_wheel(
    made: Project, tmp_path: Path, file: str, old: str, new: str, message: str
) -> None:
    project = without_dist(made, tmp_path / "copy")
    shutil.copytree(project.folder / "kernels", project.folder / "k2")
    project.replace(file, old, new)
    run = project.scons("wheel", ok=False)
    assert run.status == 2 and message in run.output and "remedy: " in run.output, run.output
    assert not (project.folder / "dist").exists()


def test_the_largest_wheel_is_a_setting_and_sizes_are_shown(made: Project, tmp_path: Path) -> None:
    project = without_dist(made, tmp_path / "copy")
    run = project.scons("wheel", "MAX_WHEEL_SIZE=10K", ok=False)
    assert re.search(r"\[wheel\]: the wheel has [\d,]+ bytes, and max_wheel_size is 10K", run.output)
    assert not (project.folder / "dist").exists()
    output = project.scons("wheel", "MAX_WHEEL_SIZE=1M").output
    size = sum(path.stat().st_size for path in (project.folder / "build/kernels/demo/scale").rglob("sm_90a.cubin"))
    assert size > 0
    assert re.search(r"^  kernel +x86-64-v3 +sm_80 +sm_90a +compute_80 +library$", output, re.M)
    assert re.search(rf"^  scale +[\d,]+ +[\d,]+ +{size:,} +[\d,]+ +[\d,]+$", output, re.M)
    assert re.search(r"^  total +", output, re.M)


ELSEWHERE = """
import platform, sys
if "SCons" in " ".join(sys.orig_argv) or "kernelwright" in " ".join(sys.orig_argv):
    platform.machine = lambda: {machine!r}
    platform.libc_ver = lambda *_: ({library!r}, "1")
    sys.platform = {system!r}
"""


@pytest.mark.parametrize(
    ("system", "machine", "library"),
    [("linux", "riscv64", "glibc"), ("linux", "x86_64", "musl"), ("darwin", "arm64", "")],
)
def test_a_platform_without_wheels_is_named_and_leaves_none(made, tmp_path, system, machine, library):
    project = without_dist(made, tmp_path / "copy")
    # As far as the programs that build can see, this is another machine.
    text = ELSEWHERE.format(system=system, machine=machine, library=library)
    (tmp_path / "sitecustomize.py").write_text(text)
    path = {"PYTHONPATH": f"{tmp_path}:{SITE_SCONS}"}
    (tmp_path / "backend").mkdir()
    command = [sys.executable, "-c", "from kernelwright.build import build_wheel; build_wheel('../backend')"]
    environment = build_environment() | path
    backend = subprocess.run(command, cwd=project.folder, env=environment, text=True, capture_output=True)
    assert backend.returncode == 1 and "Traceback" not in backend.stderr
    # scons itself does not work on all of these, so the question is put to it where only the machine is another one.
    outputs = [backend.stdout + backend.stderr]
    outputs += [project.scons("wheel", env=path, ok=False).output] if machine == "riscv64" else []
    for output in outputs:
        assert f"[wheel]: this is {system} on {machine} with {library or 'an unknown C library'}" in output, output
        assert re.search("remedy: .*--platform linux/amd64", output)
    assert not (project.folder / "dist").exists() and not list((tmp_path / "backend").iterdir())


def test_a_build_folder_that_is_a_file_is_an_error(made: Project, tmp_path: Path) -> None:
    project = made.copied(tmp_path / "file")
    shutil.rmtree(project.folder / "build")
    project.write("build", "mine")
    output = project.scons(ok=False).output
    assert "remedy" in output and f"{project.folder / 'build'}" in output
