"""Workers that execute definitions: which process executes what, and what only they promise; see tests/contracts."""

from __future__ import annotations

import errno
import importlib.util
import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest.mock import Mock

import pytest
from kernelwright.core.errors import DefinitionError, KernelwrightError, Where, WorkerError
from kernelwright.core.signature import UNKNOWN
from kernelwright.processes import pool as pool_module
from kernelwright.processes import protocol
from kernelwright.processes import worker as worker_module
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.protocol import INTERPRETED, CheckRequest, DevicesRequest, DiscoverRequest, LowerRequest
from kernelwright.worker import forkserver, tvm_import
from kernelwright.worker.environment import Variables
from kernelwright.worker.forkserver import ForkServer
from support.moments import HANGS_AFTER_S, Gate, processes_of, wait_for, wait_until_gone
from support.scripts import script
from support.workers_project import Project

SITE_SCONS = Path(protocol.__file__).parents[2]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("shared"), size=2)
    with project.pool:
        yield project


Fresh = Callable[[int], Project]


@pytest.fixture
def fresh(shared: Project) -> Fresh:
    """A pool of that size with workers of its own, whose fork server has imported TVM for other tests already."""

    def make(size: int) -> Project:
        project = Project(shared.folder, size)
        shared.lend_to(project)
        return project

    return make


PROCESS = "import os\nopen('processes', 'a').write(f'{os.getpid()}\\n')"


def processes(project: Project) -> list[str]:
    """The processes that have executed a definition with PROCESS, in order."""
    file = project.folder / "processes"
    return file.read_text().split() if file.exists() else []


def test_no_worker_is_started_before_the_first_call_and_one_does_all_of_a_file(fresh: Fresh) -> None:
    project = fresh(2)
    with project.pool:
        assert project.pool.started == 0
        file = project.empty("k", PROCESS, body="raise ValueError")
        for _ in range(2):
            assert project.discover(file)["kernels"][0]["name"] == "k"
            with pytest.raises(DefinitionError, match="ValueError"):
                project.lower(file, "k")
        assert project.pool.started == 1
    assert len(processes(project)) == 1


def test_one_process_never_executes_two_files_nor_one_file_twice(fresh: Fresh, monkeypatch) -> None:
    monkeypatch.setattr(pool_module, "SPARE", 0)
    project = fresh(1)
    first, second = project.empty("first", PROCESS), project.empty("second", PROCESS)
    with project.pool as pool:
        for file in (first, second, first):
            project.discover(file)
        assert len(set(processes(project))) == 3
        pool.call(DiscoverRequest(first, strict=True))
        assert len(set(processes(project))) == 4, "strict mode is another execution"
        for text in (PROCESS + "\nX = 1", PROCESS + "\nraise ValueError", PROCESS):
            project.empty("first", text)
            if "raise" in text:
                for _ in range(2):
                    with pytest.raises(DefinitionError, match="ValueError"):
                        project.discover(first)
            else:
                project.discover(first)
        assert pool.started == 1
    assert len(processes(project)) == len(set(processes(project))) == 8


def test_what_a_process_imports_or_loads_for_one_purpose_serves_no_other_one() -> None:
    """Modules may ask for the arch, TVM compiles for the GPU once CUDA is loaded, and an interpreter replaces code."""
    given = "k.py", "k", "s"
    lowered = [LowerRequest(*given, "k", {}, "cuda", "sm_80", imported_for=arch) for arch in ("", "sm_80", "sm_90")]
    checked = [CheckRequest(*given, "", 0, UNKNOWN, device) for device in ("cpu", "cuda:0", INTERPRETED)]
    plain, *others = [request.definition for request in (*lowered, *checked)]
    assert len({plain, *others}) == 5 and others[2] == plain


def test_the_worker_that_was_idle_for_longest_makes_room(fresh: Fresh, monkeypatch) -> None:
    monkeypatch.setattr(pool_module, "SPARE", 1)
    project = fresh(1)
    files = [project.empty(f"k{n}", PROCESS) for n in range(3)]
    with project.pool:
        for number in (0, 1, 0, 2, 0):
            project.discover(files[number])
        assert len(processes(project)) == 3, "k1 made room for k2"
        project.discover(files[1])
        assert len(processes(project)) == 4
        project.discover(files[0])
        assert len(processes(project)) == 4, "k2 made room for k1"


def test_prints_do_not_disturb_the_protocol_and_take_no_disk(shared: Project, monkeypatch) -> None:
    top = """
    import os, stat, sys
    print('{"id": 1, "result": {"value": {}}}')
    os.write(1, b"raw\\n")
    print([stat.S_ISREG(os.fstat(n).st_mode) for n in (1, 2)])
    assert sys.stdin.read() == ""
    """
    assert shared.discover(shared.empty("noisy", top))["kernels"][0]["name"] == "noisy"
    assert "raw\n" in shared.printed[-1] and "[False, False]\n" in shared.printed[-1]
    monkeypatch.setattr(shared.pool, "_on_output", None)
    assert shared.discover(shared.empty("unheard", top))["kernels"][0]["name"] == "unheard"


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch is not installed")
def test_a_worker_does_not_load_pytorch_by_itself(shared: Project) -> None:
    shared.discover(shared.empty("plain", "import sys; print('torch' in sys.modules)"))
    assert shared.printed[-1].strip() == "False"


@pytest.mark.parametrize(
    ("crash", "how"),
    [
        ("import ctypes; ctypes.string_at(0)", "was ended by SIGSEGV"),
        ("import os; print('last words', flush=True); os._exit(3)", "ended with exit status 3"),
        ("import os; os.closerange(3, 1000)", "while"),
    ],
)
def test_a_dying_worker_is_one_clear_error_and_the_next_call_works(shared, crash, how, monkeypatch):
    if "closerange" not in crash:  # it does not end by itself
        monkeypatch.setattr(worker_module, "REAP_S", HANGS_AFTER_S)
    file = shared.empty("crashing", body=f"{crash}\nreturn None")
    shared.discover(file)
    with pytest.raises(WorkerError) as caught:
        shared.lower(file, "crashing")
    assert how in caught.value.message
    assert caught.value.where == Where("crashing", "default", "lower", "kernels/crashing.py")
    assert caught.value.remedy
    if "SIGSEGV" in how:
        assert 'crashing.py", line' in str(caught.value.detail), "the log shows the Python line"
    if "last words" in crash:
        assert "last words" in str(caught.value)
    assert shared.discover(shared.copy("survivor"))


PARENT = """
import os
open(f"parents/{os.getppid()}-{os.getpid()}", "w").close()
"""


def parents(folder: Path) -> dict[int, set[int]]:
    """The fork servers that have had workers which executed a definition with PARENT, and these workers."""
    found: dict[int, set[int]] = {}
    for file in (folder / "parents").iterdir():
        parent, worker = map(int, file.name.split("-"))
        found.setdefault(parent, set()).add(worker)
    return found


def test_one_process_imports_tvm_and_the_workers_are_its_forks(tmp_path: Path) -> None:
    project = Project(tmp_path, size=3)
    (tmp_path / "parents").mkdir()
    with project.pool, ThreadPoolExecutor(6) as threads, Gate(tmp_path.with_name(f"{tmp_path.name}-gate")) as gate:
        files = [project.empty(f"k{n}", PARENT + gate.python) for n in range(6)]
        answers = threads.map(project.discover, files)
        gate.wait(3)
        gate.open()
        assert len(list(answers)) == 6
        ((server, workers),) = parents(tmp_path).items()
        assert len(workers) == 6
        libraries = Path(f"/proc/{server}/maps").read_text()
        assert "libtvm_runtime.so" in libraries
    for pid in (server, *workers):
        wait_until_gone(pid)


def test_nobody_knows_the_number_of_a_worker_that_leads_no_session_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    """It could not be ended by its session. This one ends before it has one."""
    server = ForkServer.__new__(ForkServer)
    server._children = {}
    monkeypatch.setattr(ForkServer, "_become_worker", lambda self, streams: os._exit(0))
    ours, theirs = socket.socketpair()
    with ours:
        assert not server._fork([theirs.detach()])
        (pid,) = server._children
        os.waitpid(pid, 0)
        server._release(pid)
        assert ours.recv(64) == b""


def test_a_server_that_cannot_fork_stays_one_and_the_build_sees_the_end_of_what_it_asked_for(monkeypatch) -> None:
    monkeypatch.setattr(os, "fork", Mock(side_effect=OSError(errno.EAGAIN, "no more processes")))
    ours, theirs = socket.socketpair()
    with ours:
        assert ForkServer.__new__(ForkServer)._fork([theirs.detach()]) is False
        assert ours.recv(64) == b""


def test_workers_outlive_their_fork_server_the_next_one_gets_another_and_closing_ends_all(tmp_path: Path) -> None:
    project = Project(tmp_path, size=1)
    (tmp_path / "parents").mkdir()
    with project.pool:
        file = project.empty("first", PARENT, body="os._exit(3)")
        project.discover(file)
        ((server, workers),) = parents(tmp_path).items()
        os.kill(server, signal.SIGKILL)
        wait_until_gone(server)
        assert project.discover(file), "the worker goes on"
        assert parents(tmp_path) == {server: workers}
        with pytest.raises(WorkerError, match="a worker closed its pipe while executing the definition"):
            project.lower(file, "first")
        file = project.empty("endless", PARENT + "import signal; signal.pause()")
        with ThreadPoolExecutor(1) as threads:
            call = threads.submit(project.discover, file)
            wait_for(lambda: len(parents(tmp_path)) == 2, "the definition does not begin")
            ((server, workers),) = ((pid, forks) for pid, forks in parents(tmp_path).items() if pid != server)
            os.kill(server, signal.SIGKILL)
            project.pool.close()
            with pytest.raises(WorkerError, match="the build is ending"):
                call.result(HANGS_AFTER_S)
    for pid in workers:
        wait_until_gone(pid)


def test_a_worker_that_cannot_import_tvm_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_module, "REAP_S", HANGS_AFTER_S)
    broken = str(script(tmp_path / "python", f'exec {sys.executable} -S "$@"'))
    pythons = {broken: "TVM cannot be imported", "/bin/false": "exit status 1", "/no/such/python": "cannot start"}
    for python, said in pythons.items():
        with WorkerPool(1, tmp_path, python=python) as pool, pytest.raises(KernelwrightError, match=said):
            pool.call(DevicesRequest())
    assert pool.started == 0

    def message(_: int) -> str:
        with pytest.raises(KernelwrightError) as caught:
            pool.call(DevicesRequest())
        return str(caught.value)

    # Whoever finds that it cannot be imported leaves the others' fork server alone.
    with WorkerPool(4, tmp_path, python=broken) as pool, ThreadPoolExecutor(8) as threads:
        assert all("TVM cannot be imported" in text for text in threads.map(message, range(16)))


@pytest.mark.parametrize(("others", "writes"), [((), True), (("HOME", "PYTHONDONTWRITEBYTECODE"), False)])
def test_bytecode_of_tvm_is_kept_unless_the_build_keeps_none(monkeypatch, others, writes) -> None:
    """Without it the import takes twice as long in every build. Workers themselves write none."""
    written = list[bool]()
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(tvm_import, "_versions", lambda: written.append(not sys.dont_write_bytecode) or {})
    control, build = socket.socketpair()
    with control, build:
        forkserver._load_unless_build_ends(control, Variables(others=others))
    assert written == [writes] and sys.dont_write_bytecode


def test_a_fork_server_that_imports_ends_with_the_build(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    slow.mkdir()
    importing = f"open({str(tmp_path / 'importing')!r}, 'w').close()"
    (slow / "tvm_ffi.py").write_text(f"{importing}\nimport signal\nsignal.pause()")
    python = script(tmp_path / "python", f'PYTHONPATH="{slow}:$PYTHONPATH" exec {sys.executable} "$@"')
    code = f"""
import sys
from pathlib import Path
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.children import ForkServer
from kernelwright.processes.protocol import DevicesRequest
WorkerPool(1, Path(sys.argv[1]), python={str(python)!r}).call(DevicesRequest())
"""
    build = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], env={**os.environ, "PYTHONPATH": str(SITE_SCONS)}
    )

    wait_for((tmp_path / "importing").exists, "TVM is not imported")
    (server,) = (pid for pid, words in processes_of(tmp_path) if "kernelwright.worker.forkserver" in words)
    build.kill()
    build.wait()
    wait_until_gone(server)


@pytest.mark.parametrize(
    ("does", "sees"),
    [
        ("from tvm import te; te.exp = te.log", "from tvm import te; print(te.exp is te.log)"),
        (
            "import tvm_ffi; tvm_ffi.register_global_func('tvm_callback_cuda_postproc', lambda code, target: 'x')",
            "import tvm_ffi; print(tvm_ffi.get_global_func('tvm_callback_cuda_postproc', allow_missing=True))",
        ),
        (
            "import kernelwright; kernelwright.grid.leak = 1",
            "from kernelwright import grid; print(hasattr(grid, 'leak'))",
        ),
        ("import os; os.environ['LEAK'] = '1'", "import os; print('LEAK' in os.environ)"),
        ("import os; os.chdir('/')", "import os; print(os.getcwd() == '/')"),
        ("import signal; signal.signal(15, signal.SIG_IGN)", "import signal; print(signal.getsignal(15) == 1)"),
    ],
)
def test_what_one_definition_does_to_the_process_does_not_reach_the_next(shared: Project, does: str, sees: str) -> None:
    shared.discover(shared.empty("clean", sees))
    before = shared.printed[-1]
    shared.discover(shared.empty("messy", f"{does}\n{sees}"))
    assert shared.printed[-1] != before, "the definition does change its own process"
    shared.discover(shared.empty("next", sees))
    assert shared.printed[-1] == before


CONTROLS = "\x1b]0;title\x07\x1b[2J\x9b1m\ttab\r\nline\rover"
SHOWN = r"\x1b]0;title\x07\x1b[2J\x9b1m" + "\ttab\nline" + r"\rover"


def test_control_characters_that_a_definition_prints_or_raises_are_shown_escaped(shared: Project) -> None:
    shared.discover(shared.empty("controls", f"print({CONTROLS!r})"))
    assert shared.printed[-1] == SHOWN + "\n"
    with pytest.raises(DefinitionError) as caught:
        shared.discover(shared.empty("controls", f"raise ValueError({CONTROLS!r})"))
    assert SHOWN in str(caught.value.detail)
    for text in (str(caught.value), caught.value.message):
        assert not set(text) & set("\x1b\x07\x9b\r")
    with pytest.raises(WorkerError) as died:
        shared.discover(shared.empty("controls", f"import os; print({CONTROLS!r}, flush=True); os._exit(1)"))
    assert SHOWN.splitlines()[0] in str(died.value.detail)


DRIVER = """
#include "{standin}"
__attribute__((constructor)) static void log(void) {{ setenv("STANDIN_LOG", "{folder}/log", 1); }}
"""

CUDART = "libcudart.so.13"
OF_PIP = sorted(Path(sys.prefix).glob(f"lib/python*/site-packages/nvidia/cu*/lib/{CUDART}"))


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder on the loader's path with a CUDA driver, which notes in ``log`` that it is initialised."""
    folder = tmp_path / "driver"
    folder.mkdir()
    standin = SITE_SCONS / "kernelwright/testing/cuda.c"
    (folder / "driver.c").write_text(DRIVER.format(standin=standin, folder=folder))
    library = folder / "libcuda.so.1"
    command = ["gcc", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", str(library), "driver.c"]
    subprocess.run(command, cwd=folder, check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(folder))
    return folder


@pytest.mark.skipif(not OF_PIP, reason="pip has not installed nvidia-cuda-runtime")
def test_tvms_cuda_runtime_works_with_the_library_that_pip_installed(tmp_path: Path, driver: Path) -> None:
    (driver / CUDART).write_text("")  # the loader takes no other one from elsewhere
    project = Project(tmp_path / "project")
    with project.pool:
        file = project.copy("k")
        project.discover(file)
        project.lower(file, "k")
        assert not (driver / "log").exists(), "nothing but a check initialises CUDA"
        assert project.pool.call(DevicesRequest()).cuda == ()
        assert (driver / "log").read_text().startswith("init\n")


@pytest.mark.skipif(not OF_PIP, reason="pip has not installed nvidia-cuda-runtime")
def test_a_driver_and_a_toolkit_do_not_change_what_is_lowered(tmp_path: Path, driver: Path, shared: Project) -> None:
    text = """
    from kernelwright import kernel
    from tvm import te

    @kernel
    def k():
        n = te.var("n")
        x = te.placeholder((n, 64), "float32", name="x")
        return te.create_prim_func([x, te.compute((n, 64), lambda i, j: te.exp(x[i, j]), name="y")])
    """
    (driver / CUDART).symlink_to(OF_PIP[0])
    project = Project(tmp_path / "project")
    with project.pool:
        made = [where.lower(str(where.write("kernels/k.py", text)), "k", "cuda") for where in (project, shared)]
    assert made[0]["contents"] == made[1]["contents"]


@pytest.mark.parametrize(
    ("missing", "remedy"), [("libcuda.so.1", "driver"), (CUDART, "pip install 'nvidia-cuda-runtime")]
)
def test_what_is_missing_for_a_check_on_a_gpu_is_said(driver: Path, missing: str, remedy: str) -> None:
    code = """
        import sys
        from kernelwright.processes.messages import Hello
        from kernelwright.worker import tvm_import
        assert isinstance(tvm_import.load(), Hello)
        from kernelwright.worker import cuda_runtime
        sys.path.clear()
        try:
            cuda_runtime.load_cuda_runtime()
        except Exception as error:
            print(error)
    """
    (driver / missing).unlink(missing_ok=True)
    (driver / missing).write_text("")
    env = {"PYTHONPATH": str(SITE_SCONS), "LD_LIBRARY_PATH": str(driver)}
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], env=env, capture_output=True, text=True)
    assert "TVM's CUDA runtime cannot be loaded" in done.stdout, done.stderr
    assert missing in done.stdout and remedy in done.stdout
