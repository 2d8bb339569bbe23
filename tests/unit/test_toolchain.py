"""Finding tools, and naming what is wrong with them. Fake tools are shell scripts in a temporary folder."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.errors import ToolchainError
from kernelwright.core.files import sha256_of
from kernelwright.core.records import Record
from kernelwright.core.surroundings import installed_record
from kernelwright.processes.environment import tool_environment
from kernelwright.stages.tools import Tools
from kernelwright.state.cache import BuildCache
from kernelwright.toolchain import cross_compiler
from kernelwright.toolchain import nvcc as nvcc_module
from kernelwright.toolchain import probe as probe_module
from kernelwright.toolchain.cuda import HEADERS, in_wheels
from kernelwright.toolchain.distribution import Distribution
from kernelwright.toolchain.host_compiler import HostCompiler, find_host_compiler
from kernelwright.toolchain.nvcc import Nvcc, find_nvcc, nvcc_parts
from kernelwright.toolchain.probe import Toolchain
from kernelwright.toolchain.tvm import Lowerer, find_record, probe_tvm
from support.scripts import script
from support.sealed_lines import reseal

RELEASE = "Cuda compilation tools, release {0}, V{0}.88"


def cuda(top: Path, nvcc: str = "13.0", ptxas: str = "13.0", cicc: str | None = "13.0") -> Path:
    """A folder like that of the wheels, with an nvcc that compiles nothing."""
    (top / "include").mkdir(parents=True)
    script(top / "bin/ptxas", f"# {RELEASE.format(ptxas)}")
    if cicc:
        script(top / "nvvm/bin/cicc", f"# {RELEASE.format(cicc)}")
    text = RELEASE.format(nvcc)
    return script(
        top / "bin/nvcc",
        f'case "$1" in --version) echo "{text}";; --list-gpu-code) echo sm_80;; --list-gpu-arch) echo compute_80;; '
        "esac",
    )


COMPILER = HostCompiler("/usr/bin/cc", "cc 12", "identity")


def probe(tmp_path: Path, nvcc: Path) -> Nvcc:
    return Toolchain(tmp_path / "cache.json", {}).nvcc(str(nvcc), COMPILER)


def test_setting_wins_over_wheels_and_these_over_cuda_home_and_that_over_path(tmp_path, monkeypatch):
    mine, home, other = script(tmp_path / "mine", ""), cuda(tmp_path / "home"), cuda(tmp_path / "path")
    environment = {"CUDA_HOME": str(home.parents[1]), "PATH": str(other.parent)}
    assert find_nvcc(str(mine), environment) == str(mine)
    with pytest.raises(ToolchainError, match="not an executable"):
        find_nvcc(str(tmp_path / "missing"), environment)
    if wheels := in_wheels("bin/nvcc"):
        assert find_nvcc("", environment) == str(wheels[0])
    monkeypatch.setattr(nvcc_module, "in_wheels", lambda name: [])
    assert find_nvcc("", environment) == str(home)
    assert find_nvcc("", {"PATH": str(other.parent)}) == str(other)
    with pytest.raises(ToolchainError, match="no nvcc") as caught:
        find_nvcc("", {"PATH": str(tmp_path)})
    assert "pip install 'kernelwright[cuda]'" in caught.value.remedy and "targets = llvm" in caught.value.remedy


def test_nvcc_of_a_release_is_found_by_the_headers_beside_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for release in ("12.4", "13.0"):
        include = tmp_path / release / "include"
        include.mkdir(parents=True)
        number = {"12.4": 12040, "13.0": 13000}[release]
        (include / "cuda_runtime_api.h").write_text(f"#define CUDART_VERSION  {number}\n")
        (tmp_path / release / "bin").mkdir()
        program = tmp_path / release / "bin/nvcc"
        program.write_text("#!/bin/sh\nexit 1\n")  # it is not asked
        program.chmod(0o755)
    wheels, home = tmp_path / "13.0/bin/nvcc", {"CUDA_HOME": str(tmp_path / "12.4")}
    monkeypatch.setattr(nvcc_module, "in_wheels", lambda name: [wheels])
    assert find_nvcc("", home, "12.4") == str(tmp_path / "12.4/bin/nvcc")
    assert find_nvcc("", home, "13.0") == find_nvcc("", home) == str(wheels)
    assert find_nvcc("", {"PATH": str(tmp_path / "12.4/bin")}, "12.4") == str(tmp_path / "12.4/bin/nvcc")
    with pytest.raises(ToolchainError, match=r"no nvcc of CUDA 12\.8 \(there is that of 13\.0, 12\.4\)") as caught:
        find_nvcc("", home, "12.8")
    assert 'cuda = ["nvrtc-12.8", ...]' in (caught.value.remedy or "")


@pytest.mark.parametrize("is_wrapped", [False, True])
@pytest.mark.parametrize(
    ("place", "parts", "message", "package"),
    [
        ("cuda", {"cicc": "13.5"}, r"nvcc is of CUDA 13\.0, but cicc of CUDA 13\.5", "nvidia-nvvm"),
        ("cuda", {"ptxas": "13.5"}, r"nvcc is of CUDA 13\.0, but ptxas of CUDA 13\.5", "nvidia-cuda-nvcc"),
        ("nvidia/cu13", {"cicc": None}, "has no cicc beside it", "nvidia-nvvm"),
    ],
)
def test_a_part_of_another_version_or_missing_is_named_with_its_package(
    tmp_path, place, parts, message, package, is_wrapped
):
    nvcc = cuda(tmp_path / place, **parts)
    if is_wrapped:
        shown = f"echo '#$ TOP={nvcc.parent}/..' >&2"
        nvcc = script(tmp_path / "local" / place / "bin/nvcc", f'[ "$1" = --dryrun ] && {shown}\nexec {nvcc} "$@"')
    with pytest.raises(ToolchainError, match=message) as caught:
        probe(tmp_path, nvcc)
    assert f"pip install '{package}==13.0.*'" in caught.value.remedy


def test_nvcc_that_cannot_compile_shows_command_and_output(tmp_path):
    nvcc = script(
        tmp_path / "nvcc",
        f'case "$1" in --version) echo "{RELEASE.format("13.0")}";; --list-gpu-code) echo sm_80;; '
        "--list-gpu-arch) ;; *) echo 'cc1plus: not found' >&2; exit 1;; esac",
    )
    with pytest.raises(ToolchainError, match="does not compile a small kernel for sm_80") as caught:
        Toolchain(tmp_path / "cache.json", {}).nvcc_programs(probe(tmp_path, nvcc), COMPILER)
    assert "cc1plus: not found" in caught.value.detail and "-arch=sm_80" in caught.value.detail
    assert "g++" in caught.value.remedy


@pytest.mark.parametrize("body", ["exit 3", "echo nonsense", "kill -9 $$"])
def test_nvcc_that_answers_nonsense_is_an_error(tmp_path, body):
    with pytest.raises(ToolchainError):
        probe(tmp_path, script(tmp_path / "nvcc", body))


def test_probe_is_kept_until_the_binary_changes(tmp_path):
    nvcc = cuda(tmp_path / "cuda")
    first = probe(tmp_path, nvcc)
    assert probe(tmp_path, cuda(tmp_path / "b")).identity == first.identity, "no path is in it"
    log = tmp_path / "log"
    nvcc.write_text(nvcc.read_text().replace("#!/bin/sh\n", f"#!/bin/sh\necho run >> {log}\n"))
    changed = probe(tmp_path, nvcc)
    assert changed.identity != first.identity
    runs = log.read_text()
    assert probe(tmp_path, nvcc) == changed
    assert log.read_text() == runs


@pytest.mark.parametrize(
    "values", [{"archs": "sm_80"}, {"archs": None}, {"archs": [1]}, {"version": 1}, {"version": ["13"]}, {"x": "y"}]
)
def test_a_kept_result_of_another_form_is_a_miss(tmp_path, values):
    nvcc = cuda(tmp_path / "cuda")
    expected = probe(tmp_path, nvcc)

    def changed(kept: dict[str, Any]) -> dict[str, Any]:
        ((name, entry),) = kept["tools"].items()
        after = {key: value for key, value in (entry["values"] | values).items() if value is not None}
        return {"tools": {name: entry | {"values": after}}}

    reseal(tmp_path / "cache.json", changed)
    again = Toolchain(tmp_path / "cache.json", {})
    assert again.nvcc(str(nvcc), COMPILER) == expected and list(again.probed) == ["nvcc"]


def test_parts_are_found_through_a_symlink_and_through_a_wrapper_script(tmp_path):
    nvcc = cuda(tmp_path / "cuda")
    assert [part.name for part in nvcc_parts(str(nvcc))] == ["nvcc", "ptxas", "cicc"]
    expected = nvcc_parts(str(nvcc))[1:]
    link = tmp_path / "bin" / "nvcc"
    link.parent.mkdir()
    link.symlink_to(nvcc)
    assert nvcc_parts(str(link)) == [link, *expected]
    wrapper = script(tmp_path / "wrapper", f"echo '#$ TOP={nvcc.parent}/..' >&2")
    assert nvcc_parts(str(wrapper)) == [wrapper, *expected]


def test_the_host_compiler_is_found_by_name_and_by_path_and_named_if_it_is_missing(tmp_path):
    cc = shutil.which("cc")
    assert find_host_compiler("", dict(os.environ)) == find_host_compiler(cc, {"PATH": ""}) == cc
    for setting in ("", "no-such-compiler"):
        with pytest.raises(ToolchainError, match="is not on PATH") as caught:
            find_host_compiler(setting, {"PATH": str(tmp_path)})
        assert "gcc" in caught.value.remedy


def test_missing_distribution_says_what_to_install(monkeypatch, tmp_path):
    assert find_record("apache_tvm_ffi").name == "RECORD"
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ToolchainError, match="apache-tvm is not installed") as caught:
        find_record("apache_tvm")
    assert caught.value.remedy == "pip install apache-tvm"


def test_tool_environment_has_nothing_of_the_users(monkeypatch):
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-lineinfo")
    monkeypatch.setenv("CPATH", "/somewhere")
    assert set(tool_environment()) == {"PATH", "LC_ALL", "TMPDIR"}


def record_of(site: Path, distribution: str, *rows: str) -> Path:
    """The RECORD of an installed distribution."""
    path = site / f"{distribution}.dist-info" / "RECORD"
    path.parent.mkdir(parents=True)
    path.write_text("".join(f"{row}\n" for row in rows))
    return path


def test_identity_of_tvm_is_that_of_its_libraries_and_sources_on_every_python(tmp_path):
    def record(name, extension, library):
        rows = [f"tvm_ffi/core.{extension}.so,sha256=a{name},1", f"tvm_ffi/lib/libtvm_ffi.so,sha256={library},1"]
        rows.append(f"apache_tvm_ffi-1.0.dist-info/INSTALLER,sha256=i{name},4")
        return [record_of(tmp_path / name, "apache_tvm_ffi-1.0", *rows)] * 2

    first = probe_tvm(record("first", "cpython-310-x86_64-linux-gnu", "same"))
    assert probe_tvm(record("second", "cpython-313-x86_64-linux-gnu", "same")) == first
    assert probe_tvm(record("third", "cpython-313-x86_64-linux-gnu", "other")) != first


@pytest.mark.parametrize(
    ("file", "distribution"),
    [
        ("python/tvm/te.py", "apache_tvm-0.27"),
        ("lib/libtvm.so", "apache_tvm_ffi-0.1.15"),
        ("lib/libtvm.so.27", "apache_tvm-0.27"),
        ("include/tvm/ir.h", "apache_tvm_ffi-0.1.15"),
    ],
)
def test_each_file_that_decides_what_is_lowered_is_in_the_identity_of_tvm(tmp_path, file, distribution):
    def records(digest):
        digests = dict.fromkeys(("apache_tvm-0.27", "apache_tvm_ffi-0.1.15"), "same") | {distribution: digest}
        rows = {name: ("other.py,sha256=o,1", f"{file},sha256={text},1") for name, text in digests.items()}
        return [record_of(tmp_path / digest, name, *listed) for name, listed in rows.items()]

    assert probe_tvm(records("one")).identity != probe_tvm(records("two")).identity


PARTS = ["bin/nvcc.profile", "bin/ptxas", "bin/cudafe++", "bin/fatbinary", "nvvm/bin/cicc"]
PARTS += ["nvvm/libdevice/libdevice.10.bc", *(f"include/{name}" for name in HEADERS)]


@pytest.mark.parametrize("part", PARTS)
def test_identity_of_nvcc_covers_each_of_its_parts(tmp_path, part):
    nvcc = cuda(tmp_path / "cuda")
    for name in PARTS:
        path = tmp_path / "cuda" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    before = probe(tmp_path, nvcc)
    (tmp_path / "cuda" / part).write_text("another one")
    assert probe(tmp_path, nvcc).identity != before.identity


@pytest.mark.parametrize("wheel", ["nvcc", "runtime", "crt", "cccl"])
def test_a_part_of_nvcc_is_of_each_wheel_that_it_compiles_with(wheel):
    nvcc, record = next(iter(in_wheels("bin/nvcc")), None), installed_record(f"nvidia_cuda_{wheel}")
    if nvcc is None or record is None:
        pytest.skip("the nvcc wheels are not installed")
    files = {str(record.parent.parent / line.partition(",")[0]) for line in record.read_text().splitlines()}
    assert files.intersection(map(str, nvcc_parts(str(nvcc))))


def test_identity_of_nvcc_covers_the_compiler_that_it_calls(tmp_path):
    nvcc = cuda(tmp_path / "cuda")
    compiler = script(tmp_path / "cc", "one")
    before = Toolchain(tmp_path / "cache.json", {}).nvcc(str(nvcc), HostCompiler(str(compiler), "cc 12", "one"))
    script(compiler, "another")
    after = Toolchain(tmp_path / "cache.json", {}).nvcc(str(nvcc), HostCompiler(str(compiler), "cc 12", "another"))
    assert after.identity != before.identity


def host_compiler(tmp_path: Path, answers: str = "", status: int = 0) -> HostCompiler:
    path = script(tmp_path / "cc", f'case "$1" in --version) echo "cc 12";; esac; exit {status}\n# {answers}')
    return Toolchain(tmp_path / "cache.json", {}).host_compiler(str(path))


def test_a_compiler_is_told_by_its_content_and_one_that_fails_or_cannot_be_started_is_an_error(tmp_path):
    before = host_compiler(tmp_path, "patched")
    after = host_compiler(tmp_path, "patched in another way")
    assert (after.version, after.path) == (before.version, before.path)
    assert after.identity != before.identity
    before = host_compiler(tmp_path, "one")
    path, status = tmp_path / "cc", (tmp_path / "cc").stat()
    (tmp_path / "link").symlink_to(path)
    linked = Toolchain(tmp_path / "cache.json", {}).host_compiler(str(tmp_path / "link"))
    other = shutil.copy(path, tmp_path / "new")
    Path(other).write_text(path.read_text().replace("# one", "# two"))
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    Path(other).replace(path)
    assert (path.stat().st_size, path.stat().st_mtime_ns) == (status.st_size, status.st_mtime_ns)
    for name, old in (("cc", before), ("link", linked)):
        again = Toolchain(tmp_path / "cache.json", {}).host_compiler(str(tmp_path / name))
        assert again.identity != old.identity, name
    with pytest.raises(ToolchainError, match="cc ended with exit status 3"):
        host_compiler(tmp_path, status=3)
    path = script(tmp_path / "cc", "")
    path.write_text("#!/no/such/interpreter\n")
    with pytest.raises(ToolchainError, match=f"{path} cannot be run: ") as caught:
        Toolchain(tmp_path / "cache.json", {}).host_compiler(str(path))
    assert caught.value.remedy == "install gcc and g++, or set host_compiler"


def test_cute_dsl_is_told_by_its_files_wherever_it_is_installed(tmp_path, monkeypatch):
    def probed(name: str, digest: str = "x", noise: str = "one", libraries: str = "x") -> Distribution:
        for package, content in {"nvidia_cutlass_dsl": digest, "nvidia_cutlass_dsl_libs_base": libraries}.items():
            record_of(tmp_path / name, f"{package}-4.8.1", f"cutlass/a.py,sha256={content},1", f"{noise}.pyc,,")
        (tmp_path / name / "nvidia_cutlass_dsl").mkdir()
        return found_in(name)

    def found_in(name: str) -> Distribution:
        monkeypatch.setattr(sys, "path", [str(tmp_path / "empty"), str(tmp_path / name)])
        return Toolchain(tmp_path / f"{name}.json", {}).distribution("nvidia_cutlass_dsl", "nvidia_cutlass_dsl*")

    first, absent = probed("a"), found_in("empty")
    assert (first.version, absent.version) == ("4.8.1", "absent")
    assert probed("b", noise="two") == first
    assert len({first.identity, absent.identity, probed("c", "y").identity, probed("d", libraries="y").identity}) == 4


PROBED = Nvcc("somewhere", "13.0.88", "identity", ("sm_80", "compute_80"))


class Machine:
    """A place with an nvcc, whose probes are counted."""

    def __init__(self, top: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.top = top
        self.nvcc = cuda(top / "cuda")
        self.nvcc.write_bytes(b"\x7fELF of nvcc")
        self.probes = 0
        self.reads = 0
        self.version = "13.0.88"
        monkeypatch.setattr(probe_module, "version_of", lambda path, remedy: self.version)
        monkeypatch.setattr(probe_module, "probe_nvcc", self._probe)
        monkeypatch.setattr(probe_module, "content_digest", self._read)

    def _probe(self, path: str, parts: list[Path], compiler: HostCompiler) -> Nvcc:
        self.probes += 1
        return replace(PROBED, path=path)

    def _read(self, path: str, stamp: object) -> str:
        self.reads += 1
        return sha256_of(Path(path))

    def ask(self, folder: str, compiler: HostCompiler = COMPILER, nvcc: Path | None = None) -> tuple[int, int]:
        """How often nvcc is probed and a part of it read, in a build folder of its own."""
        self.probes = self.reads = 0
        answers = BuildCache(self.top / "cache", 1 << 20)
        chain = Toolchain(self.top / folder / "toolchain.json", {}, lambda: answers)
        found = chain.nvcc(str(nvcc or self.nvcc), compiler)
        assert found == replace(PROBED, path=str(nvcc or self.nvcc))
        return self.probes, self.reads


@pytest.fixture
def machine(tmp_path, monkeypatch):
    return Machine(tmp_path, monkeypatch)


def test_the_same_contents_in_another_place_or_of_another_time_are_read_once_and_not_probed(machine):
    assert machine.ask("one") == (1, 3)
    assert machine.ask("again") == (0, 0), "in another build folder"
    os.utime(machine.nvcc, (1, 1))
    assert machine.ask("two") == (0, 3) and machine.ask("three") == (0, 0)
    moved = machine.top / "elsewhere"
    (machine.top / "cuda").rename(moved)
    assert machine.ask("four", nvcc=moved / "bin/nvcc") == (0, 3)


def test_other_parts_another_host_compiler_or_another_version_are_probed(machine):
    machine.ask("one")
    assert machine.ask("two", replace(COMPILER, identity="another"))[0] == 1
    script(machine.top / "cuda/bin/ptxas", f"# {RELEASE.format('13.0')}, patched")
    assert machine.ask("three")[0] == 1 and machine.ask("four")[0] == 0
    machine.version = "13.0.89"
    assert machine.ask("five")[0] == 1


def test_a_machine_that_computes_in_another_way_probes_for_itself(machine, monkeypatch):
    machine.ask("one")
    monkeypatch.setattr(probe_module.arithmetic, "arithmetic", lambda: ["another library", []])
    assert machine.ask("two")[0] == 1 and machine.ask("three")[0] == 0


def test_a_script_is_probed_in_each_build_folder(machine):
    script(machine.nvcc, "exec something")
    (machine.top / "cuda/bin/ptxas").write_bytes(b"\x7fELF of ptxas")
    assert machine.ask("one") == (1, 0) and machine.ask("two") == (1, 0)


def test_strange_answers_are_not_used(machine):
    for strange in ({}, {"archs": "sm_80"}, {"version": "13.0.88", "identity": "x", "archs": [1]}, {"sha256": [1]}):
        chain = Toolchain(machine.top / f"{strange}.json", {}, lambda strange=strange: Says(strange))
        machine.probes = 0
        assert chain.nvcc(str(machine.nvcc), COMPILER).identity == "identity" and machine.probes == 1


class Says:
    """Answers every question in the same way."""

    def __init__(self, answer: dict[str, object]) -> None:
        self.answer = answer

    def recall(self, question: object, current: object, here: bool = False) -> Record:
        return Record(self.answer, "")

    def remember(self, question: object, answer: object, later: object, here: bool = False) -> None:
        pass


def test_the_code_for_an_arch_is_made_with_the_first_toolkit_that_knows_it():
    older, newer = (
        Tools(Lowerer("0.27", "0.1", "t"), COMPILER, Nvcc("nvcc", version, version, archs))
        for version, archs in (("12.9", ("sm_70", "sm_80")), ("13.0", ("sm_80", "sm_110")))
    )
    tools = replace(older, others=(newer,))
    made_with = {arch: tools.for_arch(arch).nvcc.version for arch in ("sm_70", "sm_80", "sm_110", "sm_999")}
    assert made_with == {"sm_70": "12.9", "sm_80": "12.9", "sm_110": "13.0", "sm_999": "12.9"}
    assert tools.cuda_archs == ("sm_70", "sm_80", "sm_110")


def test_what_zig_keeps_is_not_in_the_folder_that_compile_on_demand_has_for_itself(tmp_path, monkeypatch):
    monkeypatch.setattr(cross_compiler, "zig_records", lambda: [tmp_path / "ziglang-0.17.1.dist-info/RECORD"])
    for environment in ({"XDG_CACHE_HOME": str(tmp_path)}, {}):
        text = Path(cross_compiler.zig_wrapper(tmp_path, "aarch64", "2.28", environment)).read_text()
        caches = environment.get("XDG_CACHE_HOME") or f"{Path.home()}/.cache"
        assert f"{caches}/kernelwright-zig" in text and f"{caches}/kernelwright/" not in text
