"""What a build can be trusted with: kills, damage, full disks, traps in the environment, and tools that misbehave.

Every test is a real project and real ``scons`` runs. One project is built, and the tests work on copies of it. Its nvcc
and its C compiler are scripts that first do what a *hook* in the project says, which lets a test have them fail, hang
or lie without building anything else anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
from kernelwright.core.sealed import sealed
from kernelwright.stages.glibc import LIBRARIES
from kernelwright.state.journal import SEPARATOR
from kernelwright.toolchain.host_compiler import find_host_compiler
from kernelwright.toolchain.nvcc import find_nvcc
from support.moments import ENDLESS, HANGS_AFTER_S, processes_of, rewrite, wait_for
from support.project import SCALE, SCONSTRUCT, SITE_SCONS, Project, Run
from support.sealed_lines import reseal

OUTPUTS = ("build/kernels", "build/demo")
WORK = "build/kernels/demo/scale"
CUDA = f"{WORK}/dtype-float32/cuda"
CUBIN = f"{CUDA}/sm_80.cubin"
STATE = "build/.kernelwright"

LAUNCHER = "libkernelwright-<digest>.so"
"""Stands for the launcher's library."""

STAGES = (
    [f"{WORK}/dtype-float32/llvm/x86-64-v3/{name}" for name in ("module.tir", "signature.json", "host.o")],
    [f"{CUDA}/{name}" for name in ("module.tir", "signature.json", "host.c", "device.cu")],
    [CUBIN, f"{CUDA}/sm_80.json", f"{CUDA}/compile_sm_80.sh"],
    [f"{CUDA}/{name}" for name in ("compute_80.ptx", "compute_80.json", "compile_compute_80.sh")],
    [f"{WORK}/wrapper.c", f"{WORK}/images.s"],
    [f"{WORK}/wrapper.o", f"{WORK}/compile_wrapper.sh"],
    [f"build/kernels/demo/glibc-2.28/{name}.so" for name in LIBRARIES],
    [f"build/kernels/demo/_lib/{name}" for name in (LAUNCHER, "launcher.map", "compile_launcher.sh")],
    [f"{WORK}/{name}" for name in ("scale.so", "compile.sh", "entry.json")],
    [
        *(f"build/demo/{name}" for name in ("__init__.py", "__init__.pyi", "py.typed", "manifest.json")),
        *(
            f"build/demo/_runtime/{name}.py"
            for name in (
                *("__init__", "dlpack", "dtype", "interface", "kernel", "loader", "misses", "refusal"),
                *("heuristic", "passed", "recorded_kernel", "recorded_values"),
            )
        ),
        *(f"build/demo/backends/{name}" for name in ("__init__.py", "__init__.pyi")),
        *(f"build/demo/backends/tvm_ffi/{name}" for name in ("__init__.py", "__init__.pyi")),
        "build/demo/_lib/scale.so",
        f"build/demo/_lib/{LAUNCHER}",
    ],
)
"""What each stage makes; the last one is the assembly of the package."""

KERNEL = -2
"""The place of the stage that links the kernel."""

TOOL = """\
#!/bin/sh
real={real}
top="${{PWD%%/build/*}}"
[ ! -f "$top/{name}.hook" ] || . "$top/{name}.hook"
exec "$real" "$@"
"""

OUT = 'out=; for word; do [ "$before" != -o ] || out="$word"; before="$word"; done\n'
"""Part of a hook: sets ``out`` to the file that the tool is to make."""

SLEEPER = ENDLESS.replace("tail", '"$top/sleeper"')
"""A shell command that does not end by itself; its path is one of the tree."""


class Tree(Project):
    """A copy of the built project."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._started: list[subprocess.Popen[str]] = []

    def build(self, *arguments: str, env: dict[str, str] | None = None, ok: bool | None = True) -> Run:
        """Run ``scons``, which must not show a line of Python code, as SCons does for what it did not expect."""
        run = self.scons(*arguments, env=env, ok=ok)
        assert 'File "' not in run.output, run.output
        return run

    def attempt(self, *arguments: str, command: tuple[str, ...] = ()) -> Run:
        """The same for a run that may fail, or that another program starts."""
        if not command:
            return self.build(*arguments, ok=None)
        process = self.start(*arguments, command=command)
        output, _ = process.communicate(timeout=HANGS_AFTER_S)
        assert 'File "' not in output, output
        return Run(process.returncode, output)

    def start(
        self, *arguments: str, command: tuple[str, ...] = (), stdout: int | IO[str] = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        """Start ``scons`` in a process group of its own."""
        run = subprocess.Popen(
            [*command, sys.executable, "-m", "SCons", *arguments],
            cwd=self.folder,
            env={k: v for k, v in os.environ.items() if "KERNELWRIGHT" not in k} | {"PYTHONPATH": str(SITE_SCONS)},
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._started.append(run)
        return run

    def end(self) -> None:
        """Kill what a test that failed has left."""
        for run in self._started:
            if run.poll() is None:
                run.kill()
                run.communicate()
        for pid, _ in processes_of(self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def outputs(self) -> dict[str, bytes]:
        return self.files(*OUTPUTS)

    def remove(self, *names: str) -> None:
        for name in names:
            path = self.folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)

    def hook(self, tool: str, text: str) -> None:
        self.write(f"{tool}.hook", text)

    def appears(self, name: str) -> None:
        wait_for((self.folder / name).exists, f"{name} does not appear")

    def wait_until_alone(self) -> None:
        """Wait until there is no scons, worker, runner or tool, nor what they started."""
        wait_for(lambda: not processes_of(self.folder), "a process is left")


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tree]:
    """The built project; its cache has the outputs for the factor 3 as well. Tests only read it."""
    tools = tmp_path_factory.mktemp("tools")
    compiler = find_host_compiler("", {"PATH": f"{Project.shared}/bin"})
    for name, real in (("nvcc", find_nvcc("", dict(os.environ))), ("cc", compiler)):
        (tools / name).write_text(TOOL.format(real=shlex.quote(real), name=name))
        (tools / name).chmod(0o755)
    tree = Tree(tmp_path_factory.mktemp("clean"))
    tree.write("SConstruct", SCONSTRUCT)
    settings = f'archs = ["x86-64-v3", "sm_80", "compute_80"]\nnvcc = "{tools}/nvcc"\nhost_compiler = "{tools}/cc"\n'
    tree.write("pyproject.toml", f"[tool.kernelwright]\n{settings}")
    tree.write("kernels/scale.py", SCALE.replace(', "float16"', ""))
    (tree.folder / "sleeper").symlink_to(shutil.which("tail") or "/usr/bin/tail")
    for factor in ("3.0", "2.0"):
        tree.write("kernels/scale.py", re.sub(r"T.cast\(\d.0", f"T.cast({factor}", SCALE.replace(', "float16"', "")))
        tree.build()
        tree.remove(f"{STATE}/headers")  # of the nvcc of other projects
        tree.write(f"{factor}.json", json.dumps({name: data.hex() for name, data in tree.outputs().items()}))
    yield tree


@pytest.fixture
def tree(clean: Tree, tmp_path: Path) -> Iterator[Tree]:
    """A copy of the built project; the first run finds everything up to date, by content."""
    tree = Tree(copied(clean, tmp_path / "tree"))
    yield tree
    tree.end()


def copied(clean: Tree, folder: Path) -> Path:
    shutil.copytree(clean.folder, folder, symlinks=True)
    return folder


def expected(clean: Tree, factor: str) -> dict[str, bytes]:
    """The outputs for a factor in the definition."""
    made = json.loads((clean.folder / f"{factor}.json").read_text())
    return {name: bytes.fromhex(text) for name, text in made.items()}


def edit(tree: Tree, old: str, new: str) -> None:
    """Change the definition's factor in place, without changing its size."""
    tree.replace("kernels/scale.py", f"T.cast({old}", f"T.cast({new}")


# --- Links, which git puts in the place of ignored folders

LINKED_FOLDERS = (
    *(f"build/{name}" for name in ("kernels", "kernels/demo", "check", "demo", "demo/_lib", "demo/backends/tvm_ffi")),
    *(CUDA, STATE, *(f"{STATE}/{name}" for name in ("scratch", "discovery", "journal", "cache"))),
)


PRECIOUS = ("precious.txt", "demo/precious.txt", "ab/precious.txt")
"""Files of somebody else: unknown ones in the folder, in a package's folder and in one of the cache's."""


def state_of(folder: Path) -> dict[str, tuple[int, bytes]]:
    """All that is in a folder, with the time of the last change of each file and folder."""
    paths = [folder, *sorted(folder.rglob("*"))]
    return {str(p): (p.lstat().st_mtime_ns, p.read_bytes() if p.is_file() else b"") for p in paths}


def link_outside(place: Path, outside: Path) -> None:
    """Put a link in the place of a folder. It leads to one that has the same in it, and more."""
    place.mkdir(parents=True, exist_ok=True)
    place.rename(outside)
    for name in PRECIOUS:
        (outside / name).parent.mkdir(exist_ok=True)
        (outside / name).write_text("mine")
    place.symlink_to(outside)


def test_folder_that_became_a_link_is_refused_and_nothing_outside_is_touched(clean, tree, tmp_path):
    edit(tree, "2.0", "3.0")
    outside = tmp_path / "outside"
    for name in LINKED_FOLDERS:
        link_outside(tree.folder / name, outside)
        before = state_of(outside)
        run = tree.build("-j2", "build", "check", ok=False)
        assert run.status == 2 and run.stages == []
        assert f"{name} is a symbolic link" in run.output and "remedy: remove the link" in run.output
        assert state_of(outside) == before
        (tree.folder / name).unlink()
        for precious in PRECIOUS:
            (outside / precious).unlink()
        outside.rename(tree.folder / name)
    tree.build("-j2")
    assert tree.outputs() == expected(clean, "3.0")


@pytest.mark.parametrize("name", ["build/kernels/demo", "build/demo", STATE])
def test_clean_removes_nothing_that_a_link_leads_to(clean, tree, tmp_path, name):
    outside = tmp_path / "outside"
    link_outside(tree.folder / name, outside)
    before = state_of(outside)
    run = tree.attempt("-c")
    assert state_of(outside) == before
    # What SCons finds in a folder that it removes may be a link, which goes.
    assert run.status == 0 or f"{name} is a symbolic link" in run.output
    (tree.folder / name).unlink(missing_ok=True)
    assert tree.attempt("-c").status == 0
    assert state_of(outside) == before


def test_file_that_became_a_link_is_replaced_and_what_it_led_to_stays(clean, tree, tmp_path):
    outside = tmp_path / "outside"
    outside.mkdir()
    for number, path in enumerate(some_files(tree, *RECORDS, *OUTPUT_FILES)):
        path.replace(outside / str(number))
        path.symlink_to(outside / str(number))
    dangling = tree.folder / CUBIN
    dangling.unlink()
    dangling.symlink_to(outside / "dangling")
    before = state_of(outside)
    edit(tree, "2.0", "3.0")
    tree.build("-j2")
    assert tree.outputs() == expected(clean, "3.0")
    assert state_of(outside) == before
    tree.build("-c")
    assert state_of(outside) == before


@pytest.mark.parametrize(
    ("name", "kind"), [(f"{STATE}/lock", "dangling"), (f"{STATE}/lock", "pipe"), (f"{STATE}/discovery/lock", "link")]
)
def test_lock_that_is_no_file_is_an_error_that_names_it(tree, tmp_path, name, kind):
    place, outside = tree.folder / name, tmp_path / "outside"
    place.unlink(missing_ok=True)
    if kind == "link":
        outside.write_text("mine")
    os.mkfifo(place) if kind == "pipe" else place.symlink_to(outside)
    tree.write("kernels/scale.py", (tree.folder / "kernels/scale.py").read_text() + "# edited\n")
    run = tree.attempt()
    assert run.status == 2 and name in run.output
    assert ("it is a symbolic link" if kind != "pipe" else "it is not a regular file") in run.output
    assert outside.exists() == (kind == "link") and (kind != "link" or outside.read_text() == "mine")
    place.unlink()
    assert tree.attempt().status == 0


def test_build_folder_itself_may_be_on_another_disk(clean, tree, tmp_path):
    disk = tmp_path / "disk"
    (tree.folder / "build").rename(disk)
    (tree.folder / "build").symlink_to(disk)
    edit(tree, "2.0", "3.0")
    tree.build("-j2")
    assert tree.outputs() == expected(clean, "3.0")
    assert tree.build().stages == []
    tree.build("-c")
    assert (tree.folder / "build").is_symlink() and not [path for path in disk.rglob("*") if path.is_file()]


# --- Damage


def flip(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :] if content else b"!"


def damage(path: Path, kind: str, keep_times: bool = False) -> bool:
    """Damage a file; whether it is another one now."""
    before, status = path.read_bytes(), path.stat()
    if kind in ("deleted", "folder"):
        path.unlink()
        if kind == "folder":
            path.mkdir()
        return True
    after = flip(before) if kind == "flipped" else before[: len(before) // 2]
    rewrite(path, after, (status.st_atime_ns, status.st_mtime_ns) if keep_times else None)
    return after != before


@pytest.mark.parametrize(
    ("kind", "keep_times"),
    [("flipped", False), ("folder", False), ("deleted", False), ("flipped", True)],
)
def test_damaged_output_of_any_kind_is_made_again_and_nothing_else(tree, kind, keep_times):
    whole = tree.outputs()
    (launcher,) = (Path(name).name for name in whole if name.startswith("build/demo/_lib/libkernelwright-"))
    stages = [[name.replace(LAUNCHER, launcher) for name in stage] for stage in STAGES]
    assert set(whole) == {name for stage in stages for name in stage}, "a kind of file that this test does not damage"
    tree.build()
    # One output of each stage at a time: the others of a stage come back with any of them. Files of the package are
    # looked at one by one, which one kind of damage shows; of the others some come in one run.
    rounds = len(stages[-1]) if (kind, keep_times) == ("flipped", False) else max(map(len, stages[:-1]))
    for number in range(rounds):
        hit = [*(stage[number : number + 1] for stage in stages[:-1]), stages[-1][number::rounds]]
        if any(hit[:KERNEL]) and not hit[KERNEL]:
            hit[KERNEL] = stages[KERNEL][:1]  # what kernels share is looked at when a kernel is
        changed = [[name for name in names if damage(tree.folder / name, kind, keep_times)] for names in hit]
        run = tree.build()
        cached = sum(map(len, changed[:-1]))
        assert run.labels == {**({"CACHED": cached} if cached else {}), **({"PACKAGE": 1} if changed[-1] else {})}
        assert tree.outputs() == whole
    assert tree.build().stages == []


@pytest.mark.parametrize("kind", ["half", "folder", "deleted"])
def test_damaged_record_of_earlier_runs_changes_no_output(clean, tree, kind):
    tree.build()
    state = tree.folder / STATE
    rest = ["lock", "toolchain.json", "measurements.json", "discovery/lock", "cache/CACHEDIR.TAG", "../trace.json"]
    groups = {
        "finished kernels": [*state.glob("settled/*.json")],
        # Without the journal, nothing can be told of outputs; the edit below must not get through.
        "journal": [*state.glob("journal/*.jsonl")],
        "the rest": [*state.glob("discovery/*.record"), *(state / name for name in rest)],
    }
    seen = {path for paths in groups.values() for path in paths} | set(state.glob("cache/??/*"))
    assert {path.resolve() for path in seen} == {path for path in everything(tree) if "build/demo" not in str(path)}
    for name, paths in groups.items():
        assert paths
        for path in paths:
            damage(path, kind, keep_times=True)
        if name != "finished kernels":
            tree.remove(f"{STATE}/settled")
            damage(tree.folder / CUBIN, "flipped", keep_times=True)
            damage(tree.folder / "build/demo/_lib/scale.so", "flipped", keep_times=True)
        tree.build()
        assert tree.outputs() == clean.outputs(), name
    last = tree.build()
    assert last.stages == []
    assert "could not be" not in last.output and "not as it was" not in last.output


RECORDS = (
    "settled/*.json",
    "journal/*.jsonl",
    "discovery/*.record",
    "toolchain.json",
    "measurements.json",
    "cache/??/*",
)
OUTPUT_FILES = ("../trace.json", "../kernels/demo/scale/wrapper.c", "../demo/_lib/scale.so", "../demo/manifest.json")


def some_files(tree: Tree, *patterns: str) -> list[Path]:
    """Files in the build folder, some for each pattern."""
    found = [sorted((tree.folder / STATE).glob(pattern))[::3] for pattern in patterns]
    assert all(found)
    return [path for paths in found for path in paths]


def test_no_build_waits_for_a_pipe_where_it_had_a_file(clean, tree):
    tree.build()
    for path in some_files(tree, *RECORDS, *OUTPUT_FILES):
        path.unlink()
        os.mkfifo(path)
    run = tree.attempt("-j2")
    assert run.status == 0, run.output
    assert tree.outputs() == clean.outputs()
    assert tree.build().stages == []


def test_records_that_do_not_fit_into_the_memory_are_no_records(clean, tree):
    tree.build()
    for path in some_files(tree, *RECORDS):
        path.unlink()
        with path.open("wb") as stream:
            stream.truncate(3 << 30)
    edit(tree, "2.0", "3.0")
    limited = 'ulimit -v 2900000; exec "$0" "$@"'  # less than one of these files
    run = tree.attempt("-j2", command=("sh", "-c", limited))
    assert run.status == 0, run.output
    assert tree.outputs() == expected(clean, "3.0")
    assert tree.build().stages == []


def everything(tree: Tree) -> set[Path]:
    """All files of the build folder but the outputs of stages."""
    top = (tree.folder / "build").resolve()
    return {path for path in top.rglob("*") if path.is_file() and top / "kernels" not in path.parents}


def test_what_killed_runs_left_half_written_is_removed(tree):
    dead = subprocess.Popen(["/bin/true"])
    dead.wait()
    folders = (
        "build",
        STATE,
        *(f"{STATE}/{name}" for name in ("scratch", "discovery", "journal", "settled", "headers")),
    )
    stale = [tree.folder / folder / f".scratch-{dead.pid}-x" for folder in folders]
    alive = tree.folder / STATE / f".scratch-{os.getpid()}-x"
    for path in (*stale, alive):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    tree.remove(CUBIN)
    tree.build()
    assert not [path for path in stale if path.exists()] and alive.exists()


def test_strict_finds_an_edit_that_no_stamp_tells(tree):
    tree.build("--strict", "-j2")
    whole = tree.outputs()
    for name in (CUBIN, "build/demo/__init__.py", "build/demo/_lib/scale.so"):
        damage(tree.folder / name, "flipped")
        forge_stamp(tree, name)
    tree.build("--strict")
    assert tree.outputs() == whole


def forge_stamp(tree: Tree, name: str) -> None:
    """Have all records of an earlier run say that a file has the stamp that it has now."""
    status = (tree.folder / name).stat()
    stamp = [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]
    for path in (tree.folder / STATE).glob("journal/*.jsonl"):
        lines = path.read_text().split("\n")
        path.write_text("\n".join(forged_line(line, name, stamp) for line in lines))
    path = tree.folder / STATE / "settled/build.demo.json"
    reseal(
        path, lambda body: {**body, "copies": {kernel: [stamp, known[-1]] for kernel, known in body["copies"].items()}}
    )


def forged_line(line: str, name: str, stamp: list[int]) -> str:
    if not line.startswith("[") or json.loads(line)[1] != name:
        return line
    body = json.loads(line)[2]
    body["output"] = [stamp, body["output"][-1]]
    return sealed(f"{json.dumps(name)}{SEPARATOR}{json.dumps(body)}").decode().rstrip("\n")


# --- Runs that are killed, and runs at the same time


def test_output_that_was_being_written_when_the_build_was_killed_is_not_there(clean, tree):
    tree.hook("nvcc", f'{OUT}head -c 99 /dev/zero > "$out"; touch "$top/begun"; {SLEEPER}\n')
    tree.remove(CUBIN)
    run = tree.start("CACHE_DIR=")
    tree.appears("begun")
    run.kill()
    run.communicate()
    assert not (tree.folder / CUBIN).exists()
    tree.wait_until_alone()
    tree.remove("nvcc.hook")
    assert "CUBIN scale/dtype-float32 sm_80" in tree.build("CACHE_DIR=").stages
    assert tree.outputs() == clean.outputs()
    assert not [*(tree.folder / STATE / "scratch").iterdir()]


def test_tool_that_succeeds_without_making_its_output_fails_the_build(clean, tree):
    tree.hook("nvcc", "exit 0\n")
    tree.remove(CUBIN)
    run = tree.build("CACHE_DIR=", ok=False)
    assert run.status == 2
    assert "scale/dtype-float32 [nvcc]: the stage did not make sm_80.cubin" in run.output
    assert not (tree.folder / CUBIN).exists()
    tree.remove("nvcc.hook")
    tree.build("CACHE_DIR=")
    assert tree.outputs() == clean.outputs()


def test_lock_of_a_killed_run_passes_on_at_once(clean, tree):
    tree.hook("nvcc", f'[ -e "$top/begun" ] || {{ touch "$top/begun"; {SLEEPER}; }}\n')
    tree.remove(CUBIN)
    first = tree.start("CACHE_DIR=")
    tree.appears("begun")
    with (tree.folder / "said").open("w") as said:
        second = tree.start("CACHE_DIR=", stdout=said)
    told = Path(said.name).read_text
    wait_for(lambda: "another scons works in this tree, waiting" in told(), "the second does not say that it waits")
    assert first.poll() is None and second.poll() is None
    first.kill()
    first.communicate()
    assert second.wait(HANGS_AFTER_S) == 0, told()
    assert tree.outputs() == clean.outputs()


# --- The system around the build


def test_edit_under_a_clock_that_was_set_back_is_seen(clean, tree):
    future, past = 4_000_000_000, 1_000_000_000
    for path in [tree.folder / "kernels/scale.py", *everything(tree), *(tree.folder / name for name in tree.outputs())]:
        os.utime(path, (future, future))
    tree.build()
    for old, new, when in (("2.0", "3.0", past), ("3.0", "2.0", past)):
        edit(tree, old, new)
        os.utime(tree.folder / "kernels/scale.py", (when, when))
        damage(tree.folder / CUBIN, "flipped")
        os.utime(tree.folder / CUBIN, (when, when))
        tree.build()
        assert tree.outputs() == expected(clean, new)


# --- What must not, and what must, get into a build from outside


NAMES = ("cc", "gcc", "g++", "nvcc", "cicc", "ptxas", "as", "ld", "cc1", "cc1plus", "collect2", "python3")


@pytest.fixture(scope="module")
def traps(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Variables that change what compilers and Python do, each of which would break the build or change its outputs."""
    top = tmp_path_factory.mktemp("traps")
    for name in ("cuda_fp16.h", "stdint.h", "cstdint", "string.h", "dlpack/dlpack.h", "tvm/ffi/c_api.h"):
        write(top / "include" / name, '#error "a header of the user\'s environment"\n')
    for name in ("tvm", "tvm_ffi", "numpy", "kernelwright"):
        write(top / "modules" / f"{name}.py", "raise RuntimeError('a module of the user\\'s environment')\n")
    for name in NAMES:
        write(top / "bin" / name, "#!/bin/sh\necho a program of the user\\'s environment >&2\nexit 1\n").chmod(0o755)
    for name in ("libc.so", "libm.so", "libdl.so", "libpthread.so", "libgcc.a"):
        write(top / "lib" / name, "no library\n")
    write(top / "a b" / "tmp", "")
    folders = {name: str(top / name) for name in ("include", "lib", "bin")}
    include = dict.fromkeys(("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH"), folders["include"])
    return {
        **include,
        "NVCC_APPEND_FLAGS": "-lineinfo",
        "NVCC_PREPEND_FLAGS": "-G",
        "NVCC_CCBIN": f"{folders['bin']}/gcc",
        "LIBRARY_PATH": folders["lib"],
        "LD_PRELOAD": str(preloaded(top)),
        "GCC_EXEC_PREFIX": f"{folders['bin']}/",
        "COMPILER_PATH": folders["bin"],
        "SOURCE_DATE_EPOCH": "1",
        "CFLAGS": "-g",
        "LDFLAGS": "-Wl,--no-such-flag",
        "PATH": f"{folders['bin']}:{os.environ['PATH']}",
        "PYTHONPATH": f"{SITE_SCONS}:{top / 'modules'}",
        "PYTHONSTARTUP": str(top / "modules/tvm.py"),
        "PYTHONHASHSEED": "7",
        "LANG": "tr_TR.UTF-8",
        "LC_ALL": "tr_TR.UTF-8",
        "TMPDIR": str(top / "a b"),
        "TZ": "Pacific/Kiritimati",
    }


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def preloaded(top: Path) -> Path:
    """A library that notes the program that loads it."""
    source = write(
        top / "preloaded.c",
        f"""\
        #include <stdio.h>
        #include <errno.h>
        __attribute__((constructor)) static void note(void) {{
            FILE *stream = fopen("{top}/loaded", "a");
            if (stream) {{ fprintf(stream, "%s\\n", program_invocation_short_name); fclose(stream); }}
        }}
        """,
    )
    command = ["cc", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", str(top / "preloaded.so"), str(source)]
    subprocess.run(command, check=True)
    return top / "preloaded.so"


def test_build_with_traps_in_every_variable_gives_the_same_bytes(clean, tree, traps):
    tree.remove("build")
    tree.build("-j2", "CACHE_DIR=", env=traps)
    assert tree.outputs() == clean.outputs()
    programs = Path(traps["LD_PRELOAD"]).with_name("loaded").read_text().split()
    assert {name for name in programs if not name.startswith("python")} == set()


def test_changed_variables_rebuild_nothing(tree, traps):
    tree.build()
    assert tree.build(env=traps).stages == []
    others = {"NVCC_APPEND_FLAGS": "-G", "CPATH": "/nonexistent", "TMPDIR": "/tmp", "LC_ALL": "C"}
    tree.remove(f"{STATE}/settled")
    assert tree.build(env=traps | others).stages == []


# --- Steps by hand

ODD_FLAGS = [
    "-DODD_AT=@FOO@ @CC@ @NVCC@",
    "-DODD_QUOTES='\"\"'",
    "-DODD_SHELL=$HOME$(touch sprung)`touch sprung`;touch sprung #*?[a]~&|<>()",
    "-DODD_BACKSLASH=a\\b\\\\",
    "-DODD_LINES=one\ntwo\r\n",
    "-DODD_EMPTY=",
    "-DODD_LETTERS=\u00fc\u4e2d",
]

RECORD = (
    OUT
    + 'printf \'%s\\0\' "$@" > "$top/argv.${out##*/}"\n'
    + 'count=$#; for word; do case "$word" in -DODD*) ;; *) set -- "$@" "$word" ;; esac; done; shift $count\n'
)
"""A hook of nvcc: notes the arguments of a run. It leaves the odd ones out, which the shell of nvcc would act on."""


def test_scripts_repeat_a_step_with_any_flags(tree):
    tools = re.findall(r'(?:nvcc|host_compiler) = "(.*)"', (tree.folder / "pyproject.toml").read_text())
    with (tree.folder / "pyproject.toml").open("a") as settings:
        settings.write(f"nvcc_flags = {json.dumps(ODD_FLAGS)}\n")
    tree.hook("nvcc", RECORD)
    tree.build()
    listed, made = tree.folder / "argv.sm_80.cubin", tree.folder / CUBIN
    given, content = listed.read_bytes().decode().split("\0"), made.read_bytes()
    assert [word for word in given if word.startswith("-DODD")] == ODD_FLAGS
    listed.unlink()
    made.unlink()
    variables = {"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "NVCC": tools[0], "CC": tools[1]}
    subprocess.run(["sh", tree.folder / CUDA / "compile_sm_80.sh"], env=variables, check=True, cwd="/")
    given[given.index("-o") + 1] = "sm_80.cubin"
    assert listed.read_bytes().decode().split("\0") == given
    assert made.read_bytes() == content
    assert not list(tree.folder.rglob("sprung*"))
