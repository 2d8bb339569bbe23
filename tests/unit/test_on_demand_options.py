"""What a compile on demand is asked for, and the devices of the machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from kernelwright import backends
from kernelwright.core.arch import FAMILIES
from kernelwright.core.errors import KernelwrightError, SettingsError
from kernelwright.define.settings import Settings
from kernelwright.ondemand import files, origin
from kernelwright.ondemand import machine as machine_module
from kernelwright.ondemand import options as options_module
from kernelwright.ondemand.machine import ADDED, cuda_devices, native_cpu_arch
from kernelwright.ondemand.options import (
    OPTIONS,
    OTHERS,
    VARIABLES,
    Options,
    effective,
    settings_for,
    unknown_variables,
)
from kernelwright.ondemand.origin import Machine
from kernelwright.ondemand.project import project_of
from kernelwright.ondemand.session import Sessions
from kernelwright.ondemand.store import KernelStore
from support.launchers import STANDIN

WRONG = {
    "KERNELWRIGHT_TARGET": ("gpu", "auto, llvm, cuda"),
    "KERNELWRIGHT_ARCHS": ("sm90", "sm_80, sm_90a, ... or compute_80 (PTX), ... for CUDA; or native"),
    "KERNELWRIGHT_BACKEND": ("ctypes", ", ".join([backends.AUTO, *backends.names()])),
    "KERNELWRIGHT_VERBOSE": ("loud", "1, true, yes, on, 0, false, no, off"),
    "KERNELWRIGHT_NUM_WORKERS": ("0", "a number from 1 up"),
    "KERNELWRIGHT_DISABLE_CACHE": ("2", "1, true, yes, on, 0, false, no, off"),
    "KERNELWRIGHT_CLEAR_CACHE": ("perhaps", "1, true, yes, on, 0, false, no, off"),
    "KERNELWRIGHT_MONITOR": ("perhaps", "1, true, yes, on, 0, false, no, off"),
    "KERNELWRIGHT_CACHE_DIR": ("\0", "a string without NUL"),
    "KERNELWRIGHT_DEBUG": ("yes", "no, lineinfo, full"),
    "KERNELWRIGHT_JIT": ("never", "on, warn, off"),
    "KERNELWRIGHT_RECORD": ("\0", "a string without NUL"),
}
"""Variable -> a wrong value, and what the error says of the right ones."""


@pytest.fixture(autouse=True)
def nothing_set(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.kernelwright]\narchs = ["x86-64-v2", "sm_80"]\nbackends = ["torch"]\nnvcc_flags = ["-G"]\n'
    )
    return tmp_path


def test_the_project_of_a_file_is_where_builds_run_whatever_settings_are_nearer(project: Path) -> None:
    file = project / "kernels/more/k.py"
    file.parent.mkdir(parents=True)
    assert project_of(file) == project
    (project / "kernels/SConstruct").touch()
    (project / "kernels/more/pyproject.toml").write_text("[tool.kernelwright]\n")
    assert project_of(file) == project / "kernels"


def test_the_record_of_a_file_is_of_the_variables_that_definitions_see(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    lowerer = SimpleNamespace(identity="tvm")
    session = SimpleNamespace(toolchain=SimpleNamespace(lowerer=lambda: lowerer))
    monkeypatch.setattr("kernelwright.ondemand.project.session_for", lambda *given: session)
    monkeypatch.setattr(files, "_discovered", lambda path, root, session, identity, pool: asked.append(identity))
    for names in ([], ["MY_TILE"], ["MY_TILE"]):
        files.record_of(project / "k.py", Options(settings={"environment": names}), project)
    assert asked[0] != asked[1] == asked[2]


# What is declared.


@pytest.mark.parametrize("variable", WRONG)
def test_a_wrong_value_is_an_error_with_the_right_ones_and_the_variable(variable: str) -> None:
    value, right = WRONG[variable]
    with pytest.raises(SettingsError) as caught:
        Options.of_environment({variable: value})
    assert variable in str(caught.value) and right in str(caught.value)


def test_variables_become_options_and_empty_ones_say_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    given = {"TARGET": "llvm, cuda", "ARCHS": "sm_90a native", "VERBOSE": "On", "NUM_WORKERS": "3", "BACKEND": ""}
    expected = Options(targets=("llvm", "cuda"), archs=("sm_90a", "native"), verbose=True, num_workers=3)
    assert Options.of_environment({f"KERNELWRIGHT_{name}": value for name, value in given.items()}) == expected
    assert expected.workers == 3 and Options().workers == len(os.sched_getaffinity(0))
    monkeypatch.setenv("KERNELWRIGHT_TARGET", "cuda")
    assert Options(archs=("sm_80",)).given == {"archs", "targets"}, "what was named"
    monkeypatch.delenv("KERNELWRIGHT_TARGET")
    assert Options().given == Options(targets=("auto",)).given == frozenset()


def test_arguments_are_checked_and_win_over_using_over_variables_and_misspelt_ones_get_hints() -> None:
    read = Options.read("compile()", target="cuda", archs=["sm_90a"], flags="-G -O3", backend=None)
    assert read == Options(targets=("cuda",), archs=("sm_90a",), flags=("-G", "-O3"))
    with pytest.raises(SettingsError, match=r"compile\(\) has no option 'arch'") as caught:
        Options.read("compile()", arch="sm_90a")
    assert "did you mean 'archs'?" in str(caught.value)
    others = [{"target": "gpu"}, {"target": "auto,cuda"}, {"archs": []}, {"pass_configs": [1]}, {"num_workers": True}]
    for wrong in others:
        with pytest.raises(KernelwrightError, match=r"compile\(\)"):
            Options.read("compile()", **wrong)
    assert list(OPTIONS) == list(Options.__dataclass_fields__) and set(WRONG) == set(VARIABLES)
    known = dict.fromkeys((*VARIABLES, *OTHERS, "KERNELWRIGHT_TEST_GPU", "PATH"), "1")
    assert unknown_variables(known) == []
    (line,) = unknown_variables({**known, "KERNELWRIGHT_ARCH": "sm_90a"})
    assert line.startswith("kernelwright: KERNELWRIGHT_ARCH has no effect")
    assert line.endswith("did you mean KERNELWRIGHT_ARCHS?")
    environment = {"KERNELWRIGHT_NUM_WORKERS": "1", "KERNELWRIGHT_BACKEND": "jax", "KERNELWRIGHT_ARCHS": "sm_80"}
    using = Options(num_workers=2, backend="torch", pass_configs={"a": 1, "b": 1})
    arguments = Options(num_workers=3, pass_configs={"b": 2})
    expected = Options(num_workers=3, backend="torch", archs=("sm_80",), pass_configs={"a": 1, "b": 2})
    assert effective(environment, arguments, using) == expected


# What wins.


def test_settings_come_from_defaults_the_project_variables_and_arguments_in_this_order(project: Path) -> None:
    of_project = settings_for(project, Options(), {})
    assert of_project.archs == ("x86-64-v2", "sm_80") and of_project.backends == ("torch",)
    assert settings_for(None, Options(), {}) == Settings()
    (project / "cuda").mkdir()
    (project / "cuda/pyproject.toml").write_text('[tool.kernelwright]\narchs = ["sm_90a"]\n')
    assert settings_for(project / "cuda", Options(), {}).archs == ("x86-64-v3", "sm_90a"), "as a build has it"
    environment = {"KERNELWRIGHT_ARCHS": "sm_90a", "KERNELWRIGHT_BACKEND": "jax"}
    named = settings_for(project, Options(), environment)
    assert named.archs_of("cuda") == ("sm_90a",) and named.backends == ("jax",) and named.nvcc_flags == ("-G",)
    assert named.targets == ("cuda",), "named archs decide the targets"
    options = Options(archs=("sm_80", "x86-64-v3"), flags=(), targets=("llvm",), settings={"max_spills": 0})
    argued = settings_for(project, options, environment)
    assert (argued.targets, argued.archs) == (("llvm",), ("sm_80", "x86-64-v3"))
    assert argued.nvcc_flags == () and argued.max_spills == 0 and argued.backends == ("jax",)
    with pytest.raises(SettingsError, match="max_spil"):
        settings_for(project, Options(settings={"max_spil": 0}), {})


def test_messages_name_the_variable_or_that_options_gave_a_setting(project: Path) -> None:
    environment = {"KERNELWRIGHT_ARCHS": "sm_35", "KERNELWRIGHT_BACKEND": "jax"}
    by_variable = settings_for(project, Options(flags=("-G",)), environment).places
    assert [by_variable[name] for name in ("sm_35", "targets", "backends", "nvcc_flags")] == [
        *("KERNELWRIGHT_ARCHS", "KERNELWRIGHT_ARCHS", "KERNELWRIGHT_BACKEND"),
        "options of compile on demand",
    ]
    argued = settings_for(project, Options(archs=("sm_80",), targets=("cuda",)), environment).places
    assert [argued[name] for name in ("sm_80", "targets", "backends")] == [
        *["options of compile on demand"] * 2,
        "KERNELWRIGHT_BACKEND",
    ]
    targeted = settings_for(project, Options(targets=("cuda",)), environment).places
    assert (targeted["sm_35"], targeted["targets"]) == ("KERNELWRIGHT_ARCHS", "options of compile on demand")


def test_native_stands_for_the_devices_of_this_machine(monkeypatch: pytest.MonkeyPatch, project: Path) -> None:
    monkeypatch.setattr(options_module, "machine", lambda: Machine("x86-64-v4", (86, 90)))
    settings = settings_for(project, Options(archs=("native", "sm_120")), {})
    assert settings.archs == ("x86-64-v4", "sm_86", "sm_90a", "sm_120") and settings.targets == ("llvm", "cuda")
    monkeypatch.setattr(options_module, "machine", lambda: Machine("x86-64-v2", ()))
    settings = settings_for(None, Options(archs=("native",)), {})
    assert settings.targets == ("llvm",) and settings.archs_of("llvm") == ("x86-64-v2",)
    with pytest.raises(SettingsError, match="there is no CUDA device here") as caught:
        settings_for(None, Options(archs=("native",), targets=("cuda",)), {})
    assert "KERNELWRIGHT_ARCHS=sm_90a" in str(caught.value)
    with pytest.raises(SettingsError, match="none of the archs x86-64-v3 is one of the target cuda"):
        settings_for(None, Options(archs=("x86-64-v3",), targets=("cuda",)), {})


def test_the_listed_archs_count_unless_one_of_the_gpus_runs_none_of_them() -> None:
    two = Machine("x86-64-v3", (90, 86))
    for listed in (("sm_80", "sm_90"), ("compute_80",), ("sm_86", "sm_90a", "sm_100a")):
        assert origin._cuda(listed, two) == listed
    for listed in (("sm_80",), ("sm_90a",), ("compute_90",), ()):
        assert origin._cuda(listed, two) == ("sm_90a", "sm_86")
    assert origin._cuda(("sm_80", "sm_90a"), Machine("x86-64-v3", ())) == ("sm_80", "sm_90a")


# The devices.


def write_cpuinfo(folder: Path, flags: list[str], word: str = "flags") -> str:
    """A new file, because what was read of one is remembered."""
    path = folder / f"cpuinfo-{len(list(folder.iterdir()))}"
    path.write_text(f"processor\t: 0\n{word}\t\t: fpu {' '.join(flags)}\nbugs\t:\n\nprocessor\t: 1\nflags\t\t: fpu\n")
    return str(path)


@pytest.mark.parametrize(("family", "word"), [("x86_64", "flags"), ("aarch64", "Features")])
def test_the_arch_of_a_cpu_is_the_highest_all_of_whose_features_it_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, word: str
) -> None:
    monkeypatch.setattr(machine_module, "native_family", lambda: family)
    flags: list[str] = []
    lowest, *better = FAMILIES[family].archs
    below = lowest
    for level in better:
        flags += ADDED[level].split()
        for missing in ADDED[level].split():
            others = [f"{flag}x" if flag == missing else flag for flag in flags]
            assert native_cpu_arch({}, write_cpuinfo(tmp_path, others, word)) == below, missing
        assert native_cpu_arch({}, write_cpuinfo(tmp_path, flags, word)) == level
        below = level
    gap = [flag for flag in flags if flag != ADDED[better[0]].split()[0]]
    assert native_cpu_arch({}, write_cpuinfo(tmp_path, gap, word)) == lowest
    for cap in better:
        assert native_cpu_arch({"KERNELWRIGHT_CPU_LEVEL": cap}, write_cpuinfo(tmp_path, flags, word)) == cap
        assert native_cpu_arch({"KERNELWRIGHT_CPU_LEVEL": cap}, write_cpuinfo(tmp_path, [], word)) == lowest
    other = "armv8-a" if family == "x86_64" else "x86-64"
    assert native_cpu_arch({"KERNELWRIGHT_CPU_LEVEL": other}, write_cpuinfo(tmp_path, flags, word)) == below
    assert native_cpu_arch({}, str(tmp_path / "nowhere")) == lowest


def test_a_machine_without_a_driver_has_no_cuda_devices_and_starts_nothing_to_see_that(monkeypatch):
    monkeypatch.delenv(machine_module.DRIVER, raising=False)
    monkeypatch.setattr(machine_module, "DEVICE_FILES", ("/dev/nowhere",))
    monkeypatch.setattr(machine_module, "_ask", lambda library: pytest.fail("a process is started"))
    assert cuda_devices() == ()


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A driver for tests, with two devices."""
    library = tmp_path / "libstandin.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(library), str(STANDIN), "-lpthread"], check=True)
    monkeypatch.setenv(machine_module.DRIVER, str(library))
    monkeypatch.setenv("STANDIN_CAPABILITY", "90")
    monkeypatch.setenv("STANDIN_LOG", str(tmp_path / "log"))
    return library


def test_the_driver_is_asked_in_another_process_and_the_answer_is_remembered(tmp_path, driver, monkeypatch):
    code = """
import sys
from pathlib import Path
from kernelwright.ondemand.machine import cuda_devices
print(*cuda_devices(Path("machine.json")), "standin" in Path("/proc/self/maps").read_text())
"""

    def ask() -> str:
        done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
        return done.stdout.strip()

    assert ask() == "90 90 False"
    monkeypatch.setenv("STANDIN_CAPABILITY", "120")  # unlike a real driver, without another version or device
    assert ask() == "90 90 False"


def test_the_answer_counts_until_the_machine_its_driver_or_its_devices_change(tmp_path, monkeypatch):
    system = {"/proc/sys/kernel/random/boot_id": "1", "/proc/driver/nvidia/version": "580.1"}
    folders = {"/dev": ["nvidia0", "null"], "/proc/driver/nvidia/gpus": ["0000:01:00.0"]}
    library, remembered, asked = tmp_path / "libcuda.so", tmp_path / "machine.json", [0]
    library.touch()
    monkeypatch.setenv(machine_module.DRIVER, str(library))
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(machine_module, "_text", system.__getitem__)
    monkeypatch.setattr(machine_module, "_names", folders.__getitem__)

    def ask(library: str) -> tuple[int, ...]:
        asked[0] += 1
        return (asked[0],)

    def devices() -> tuple[int, ...]:
        machine_module._remembered.cache_clear()  # as in another process
        return cuda_devices(remembered)

    monkeypatch.setattr(machine_module, "_ask", ask)
    for number, change in enumerate(
        (
            lambda: None,
            lambda: system.update({"/proc/sys/kernel/random/boot_id": "2"}),
            lambda: system.update({"/proc/driver/nvidia/version": "590.1"}),
            lambda: folders["/dev"].append("nvidia1"),
            lambda: folders["/proc/driver/nvidia/gpus"].append("0000:02:00.0"),
            lambda: monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1"),
            lambda: os.utime(library, (1, 1)),
            lambda: remembered.write_text("damaged"),
        ),
        start=1,
    ):
        change()
        assert devices() == devices() == (number,)
    machine_module._remembered.cache_clear()


def test_a_driver_that_fails_gives_no_devices(tmp_path: Path, driver: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STANDIN_FAIL", "cuInit=999")
    assert cuda_devices() == ()
    monkeypatch.setenv(machine_module.DRIVER, str(tmp_path / "nowhere.so"))
    assert cuda_devices() == ()
    driver.write_bytes(b"no library")
    monkeypatch.setenv(machine_module.DRIVER, str(driver))
    machine_module._remembered.cache_clear()
    assert cuda_devices() == ()


def test_compiles_share_workers_and_compilers_only_if_their_limits_and_variables_are_the_same(
    project: Path, tmp_path: Path
) -> None:
    sessions, store = Sessions(), KernelStore(tmp_path / "cache")

    def session(**settings: object) -> int:
        chosen = settings_for(project, Options(settings=settings), {})
        return id(sessions.get(project, chosen, store, 1, False))

    assert session() == session(nvcc_flags=["-lineinfo"])
    others = [{"memory_limit": "1G"}, {"nvcc_memory": "1G"}, {"worker_timeout": 5}, {"cache_dir": "elsewhere"}]
    others.append({"environment": ["MY_TILE"]})
    assert len({session(), *(session(**settings) for settings in others)}) == 6
