"""The ways to write a build file, and what ``scons -h`` and the quiet modes print."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from support.project import ADD, ROOT, SCALE, Project


def test_help_lists_settings_with_their_values(project):
    run = project.scons("-h", "ARCHS=sm_90a", fresh=True)
    for name in ("TARGETS", "ARCHS", "BACKENDS", "NVCC", "NVCC_FLAGS", "HOST_COMPILER", "WORKER_TIMEOUT"):
        assert re.search(rf"^  {name}=", run.output, re.M), run.output
    assert "  ARCHS=sm_90a\n" in run.output
    assert "  TARGETS=llvm,cuda\n" in run.output
    assert "  MAX_REGISTERS=\n" in run.output and "  WORKER_TIMEOUT=300\n" in run.output
    assert "what compiles device code (one of nvcc, nvrtc)\n" in run.output
    assert not (project.folder / "build").exists()


def test_dry_run_makes_nothing_and_quiet_modes_print_little(cpu_project):
    of_one = {"CC": 1, "GLIBC": 1, "LAUNCHER": 1, "LINK": 1, "LOWER": 1, "WRAP": 1}
    assert cpu_project.scons("-n", "build/kernels/demo/add_one").labels == of_one, "what is in a folder"
    run = cpu_project.scons("-n")
    assert run.labels == {"CC": 2, "GLIBC": 1, "LAUNCHER": 1, "LINK": 2, "LOWER": 3, "PACKAGE": 1, "WRAP": 2}
    assert not (cpu_project.folder / "build/demo").exists()
    output = cpu_project.scons("-Q", "add_one").output
    assert "scons: Reading" not in output and "[ LINK ] add_one" in output
    cpu_project.replace("kernels/add_one.py", "1.0", "2.0")
    assert cpu_project.scons("-s", "add_one").output == ""


def test_terminal_gets_one_live_line(cpu_project):
    cpu_project.know_tools()
    command = ["script", "-qec", f"{sys.executable} -m SCons -Q", "/dev/null"]
    run = subprocess.run(command, cwd=cpu_project.folder, env=cpu_project.variables(), capture_output=True, timeout=300)
    output = run.stdout.decode()
    assert run.returncode == 0, output
    assert "\r\x1b[K" in output
    assert re.search(r"\d+/12 \[ LOWER \] ", output)
    assert not re.search(r"^\[ LOWER \]", output, re.M)
    assert "12 built, 0 reused, 0 failed in" in output


def test_settings_of_a_package_win_over_pyproject_and_the_command_line_over_both(cpu_project):
    cpu_project.replace("SConstruct", 'Glob("kernels/*.py"))', 'Glob("kernels/*.py"), archs=["x86-64-v2"])')
    assert "LOWER add_one/default x86-64-v2" in cpu_project.scons("-n").stages
    assert "LOWER add_one/default x86-64" in cpu_project.scons("-n", "ARCHS=x86-64").stages


def test_several_packages_in_one_build_with_different_settings_and_dots_in_their_names(cpu_project):
    cpu_project.write(
        "SConstruct",
        """\
        from kernelwright.scons import generate
        env = Environment(tools=[generate])
        env.KernelPackage("first", ["kernels/add_one.py"])
        env.KernelPackage("acme.fast", ["kernels/add_one.py"], archs=["x86-64-v2"])
        """,
    )
    assert cpu_project.scons("-j2", "acme.fast").labels["PACKAGE"] == 1
    assert not (cpu_project.folder / "build/first").exists(), "a package can be built by its name"
    assert cpu_project.scons("-j2").labels["PACKAGE"] == 1
    code = """
        import first, acme.fast, numpy as np
        for package in (first, acme.fast):
            print(np.from_dlpack(package.add_one(np.zeros((1, 4), "f4")))[0, 0], package.manifest()["kernels"]
                  ["add_one"]["variants"][0]["archs"])
    """
    assert cpu_project.python(code) == "1.0 ['x86-64-v3']\n1.0 ['x86-64-v2']\n"


@pytest.mark.parametrize("variant_dir", ["out/release", ""])
def test_subordinate_sconscript(tmp_path, variant_dir):
    project = Project(tmp_path)
    project.write(
        "SConstruct",
        f"""\
        from kernelwright.scons import generate
        env = Environment(tools=[generate])
        SConscript("sub/SConscript", exports="env"{f', variant_dir="{variant_dir}"' if variant_dir else ""})
        """,
    )
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    project.write("sub/SConscript", 'Import("env")\nenv.KernelPackage("demo", Glob("kernels/*.py"))\n')
    project.write("sub/kernels/add_one.py", ADD)
    assert "PACKAGE demo" in project.scons("-j2").stages
    assert (tmp_path / (variant_dir or "build") / "demo/_lib/add_one.so").exists()
    assert not (tmp_path / "sub/demo").exists()
    assert project.scons("-j2").stages == []


def test_beside_builders_of_scons(cpu_project):
    cpu_project.write("hello.c", "int hello(void) { return 7; }\n")
    cpu_project.write(
        "SConstruct",
        """\
        from kernelwright.scons import generate
        env = Environment(tools=["default", generate])
        library = env.SharedLibrary("build/hello", ["hello.c"])
        package = env.KernelPackage("demo", Glob("kernels/*.py"))
        listing = env.Command("build/listing.txt", package, "ls build/demo > $TARGET")
        Default(library, package, listing)
        """,
    )
    cpu_project.scons("-j2")
    assert (cpu_project.folder / "build/libhello.so").exists()
    assert "_lib" in (cpu_project.folder / "build/listing.txt").read_text()
    assert cpu_project.scons("-j2").stages == []


def test_by_name_from_site_scons(tmp_path):
    project = Project(tmp_path)
    (tmp_path / "site_scons").symlink_to(ROOT / "site_scons")
    project.write(
        "SConstruct",
        'env = Environment(tools=["kernelwright"])\nDefault(env.KernelPackage("demo", Glob("kernels/*.py")))\n',
    )
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    project.write("kernels/scale.py", SCALE)
    assert "PACKAGE demo" in project.scons("-j2", env={"PYTHONPATH": ""}).stages


def test_package_name_may_come_from_pyproject(cpu_project):
    cpu_project.replace("SConstruct", '"demo", env.Glob("kernels/*.py")', 'sources=env.Glob("kernels/*.py")')
    run = cpu_project.scons(ok=False)
    assert run.status == 2 and "the package has no name" in run.output and "remedy:" in run.output
    cpu_project.write("pyproject.toml", '[tool.kernelwright]\npackage = "named"\ntargets = ["llvm"]\n')
    assert "PACKAGE named" in cpu_project.scons("-n").stages


def test_misspelt_settings_and_targets_are_pointed_at(cpu_project):
    assert "ARCH= is no setting; did you mean ARCHS=?" in cpu_project.scons("-n", "ARCH=x86-64").output
    known = {"add_onee": "add_one", "chek": "check", "compile_command": "compile_commands"}
    said = {name: f"there is no target '{name}'; did you mean {meant}?" for name, meant in known.items()}
    said["wheel"] = "there is no target 'wheel'; write env.KernelWheel(PACKAGE) into the build file"
    for name, expected in said.items():
        assert f"kernelwright: {expected}" in cpu_project.scons(name, ok=False).output
    cpu_project.replace("SConstruct", 'Glob("kernels/*.py"))', 'Glob("kernels/*.py"), arch="sm_80")')
    assert "KernelPackage('demo') has no setting 'arch'" in cpu_project.scons(ok=False).output


def test_a_build_file_that_was_not_read_to_its_end_lacks_no_target(cpu_project):
    path = cpu_project.folder / "SConstruct"
    path.write_text(path.read_text() + 'env.KernelWheel("other")\n')
    run = cpu_project.scons("chek", "wheel", ok=False)
    assert "there is no package 'other'" in run.output and "there is no target" not in run.output
    assert run.counts[2] == 1


def test_a_target_that_resembles_another_and_exists_is_not_pointed_at(cpu_project):
    (cpu_project.folder / "add_onee").write_text("")
    cpu_project.replace("SConstruct", "env.Default", 'Command("scales", [], Touch("$TARGET"))\nenv.Default')
    run = cpu_project.scons("-n", "add_onee", "scales", "add_one")
    assert "did you mean" not in run.output
    for target in ("nothing_like_it", "wheel"):  # there is a target wheel where there is a KernelWheel
        assert "did you mean" not in cpu_project.scons(target, ok=False).output


def test_a_misspelt_variable_of_the_remote_cache_is_pointed_at(cpu_project):
    known = {
        "KERNELWRIGHT_REMOTE_MODE": "read",
        "KERNELWRIGHT_REMOTE_TOKEN": "x",
        "KERNELWRIGHT_REMOTE_SIGNING_KEY": "x",
    }
    assert "nothing reads" not in cpu_project.scons("-n", env=known).output
    run = cpu_project.scons("-n", env={"KERNELWRIGHT_REMOTE_MODUS": "read-write"})
    assert "kernelwright: nothing reads the variable 'KERNELWRIGHT_REMOTE_MODUS': " in run.output


def test_restrictions_of_a_kernel_are_kept_and_a_target_that_it_loses_is_noted(project):
    project.replace("kernels/add_one.py", '(outputs=["y"])', '(outputs=["y"], archs=["sm_90a"])')
    run = project.scons("-n")
    assert "add_one is not built for cuda: the package has none of its archs" in run.output
    assert not [stage for stage in run.stages if "add_one" in stage and "sm_" in stage]
    project.replace("kernels/add_one.py", 'archs=["sm_90a"]', 'targets=["llvm"]')
    lowered = [stage for stage in project.scons("-n").stages if stage.startswith("LOWER add_one")]
    assert lowered == ["LOWER add_one/default x86-64-v3"]


def test_wheel_leaves_all_settings_that_packages_share_as_they_are(cpu_project):
    cpu_project.write(
        "pyproject.toml",
        """        [project]
        name = "demo"
        version = "1"
        [tool.kernelwright]
        package = "demo"
        targets = ["llvm"]
        worker_timeout = 1000
        tool_timeout = 2000
        memory_limit = "3M"
        nvcc_memory = "2M"
        cache_dir = "kept"
        cache_size = "5M"
        """,
    )
    cpu_project.write(
        "SConstruct",
        """        from kernelwright.scons import generate
        from kernelwright.scons.run import begun_run
        env = Environment(tools=[generate])
        import pathlib
        env.KernelWheel(env.KernelPackage(sources=sorted(pathlib.Path("kernels").glob("*.py"))))
        run = begun_run(env)
        governor = run.compilers._governor
        memory = governor.budget_kib, governor.estimate_kib("nvcc", "")
        print("shared:", run.pool.timeout_s, run.compilers.timeout_s, *memory)
        print("cache:", run.cache._folder, run.cache._limit)
        """,
    )
    for target in ([], ["wheel"]):
        output = cpu_project.scons("-n", *target).output
        assert f"shared: 1000.0 2000.0 {3 << 10} {2 << 10}" in output
        assert f"cache: {cpu_project.folder / 'kept'} {5 << 20}" in output


def test_folder_whose_name_is_not_utf8_is_an_error(tmp_path):
    folder = Path(os.fsdecode(os.fsencode(tmp_path) + b"/a\xffb"))
    project = Project(folder)
    tool = "from kernelwright.scons import generate\nenv = Environment(tools=[generate])\n"
    project.write("SConstruct", tool + 'env.KernelPackage("demo", ["k.py"])\n')
    output = project.scons(ok=False).output
    assert r"/a\udcffb' has a name that is not UTF-8" in output and "remedy: rename it" in output
    assert "Traceback" not in output


def test_a_compiler_that_is_known_to_compile_wrong_code_for_an_arch_is_warned_about(project: Project) -> None:
    assert "is known to compile wrong code" not in project.scons("-n", "ARCHS=sm_90a").output
    said = project.scons("-n", "ARCHS=sm_90a,sm_120").output
    found = re.findall(r"^kernelwright: nvcc [\d.]+ is known to compile wrong code for (.*?): ", said, re.M)
    assert found and set(found) == {"sm_120"}
