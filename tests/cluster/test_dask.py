"""Builds on a cluster of Dask: a scheduler and two workers, in processes and folders of their own."""

from __future__ import annotations

import filecmp
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from kernelwright.cluster.messages import Action
from kernelwright.cluster.runner import ClusterGone, NotDone
from kernelwright.core.errors import ToolchainError, WorkerError
from kernelwright.processes.messages import Failed, Result, decode, encode
from kernelwright.processes.protocol import result_of
from support.dask_cluster import SITE_SCONS, Cluster
from support.moments import Gate, rewrite, wait_for, wait_until_gone
from support.project import SCONSTRUCT, Project

pytest.importorskip("distributed", reason="clusters need the extra fleet")
from kernelwright.cluster.dask_client import connect


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("dask")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Cluster, "tools", Project(folder).tools() / "toolchain.json")
        made = Cluster(
            folder / "cluster",
            # The same compiler as the builds of the tests have.
            PATH=f"{Project.shared}/bin:{os.environ['PATH']}",
            # Two workers are lost before a run is given up.
            DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES="1",
        )
        yield made
        made.close()


@pytest.fixture
def looking(monkeypatch: pytest.MonkeyPatch) -> None:
    """The client looks often which workers there are."""
    monkeypatch.setattr("kernelwright.cluster.dask_client.LOOK_S", 0.2)


def outputs(project: Project) -> list[str]:
    return sorted(
        name for name in project.files("build") if "/.kernelwright/" not in f"/{name}" and "trace" not in name
    )


def test_a_build_on_a_cluster_has_the_bytes_of_one_here(project: Project, cluster: Cluster, tmp_path: Path):
    """The workers compile; the outputs, and what the cache knows them by, are those of a build here."""
    here = Project(Path(shutil.copytree(project.folder, tmp_path / "here")))
    here.built()
    project.scons("-j4", "--cluster", cluster.address)
    made = outputs(here)
    assert len(made) > 20 and made == outputs(project)
    same, *others = filecmp.cmpfiles(here.folder, project.folder, made, shallow=False)
    assert others == [[], []] and len(same) == len(made)
    for worker in cluster.workers:
        assert re.search(r"nvcc of \w+/\S+ (compute|sm)_\w+: status 0 in", worker.log.read_text())
    caches = [{Path(name).name for name in side.files("build/.kernelwright/cache")} for side in (here, project)]
    assert caches[0] == caches[1]


class Engine:
    """The cluster as a build has it, and a shell as the tool that it runs."""

    def __init__(self, cluster: Cluster) -> None:
        self.engine = connect(cluster.address, None)
        offered = [item for offer in self.engine.offers() for item in offer.tools.items()]
        self.tool = next((identity for identity, text in offered if text.startswith("cc ")), "none")

    def run(self, script: str) -> bytes | None:
        """What a script writes into its output; None: it writes none. Raises what the worker says."""
        named = {"timeout_s": 600.0, "tool": self.tool, "kind": "cc", "subject": "gemm"}
        action = Action(command=("/bin/sh", "-c", script), inputs=(), outputs=("scratch/out",), **named)
        _, answer = decode(self.engine.execute(encode(0, action), self.tool), {"result": Result, "error": Failed})
        if isinstance(answer, Failed):
            raise answer.error
        (made,) = result_of(action, answer.value).files
        return made and made.content


@pytest.fixture
def engine(cluster: Cluster) -> Iterator[Engine]:
    made = Engine(cluster)
    yield made
    made.engine.close()


EVIL = """
import os
class Evil(Exception):
    def __reduce__(self):
        return exec, ("open({path!r}, 'a').write(str(__import__('os').getpid()) + ' ')",)
"""


@pytest.mark.parametrize("how", ["raise Evil()", "made = Evil()"])
def test_what_a_worker_sends_is_never_unpickled_here(engine: Engine, tmp_path: Path, how: str):
    """A worker may run any code itself. Here nothing of it runs, neither by an exception nor by a result."""
    path, client = tmp_path / "who", engine.engine._client
    if how.startswith("raise"):
        future = client.submit(exec, EVIL.format(path=str(path)) + how, pure=False)
    else:
        code = EVIL.format(path=str(path)) + how
        future = client.submit(eval, f"(lambda space: exec({code!r}, space) or space['made'])({{}})", pure=False)
    with pytest.raises(Exception, match=r"Evil|pickle"):
        future.result(timeout=60)
    # Dask's worker looks whether an exception can be read again, and refuses to pickle a result for us.
    assert path.exists() == how.startswith("raise")
    assert not path.exists() or str(os.getpid()) not in path.read_text().split()
    engine.run("true")


REPORT = """
import distributed, pickle
log = distributed.get_worker().log_event
log("warn", {"message": pickle.dumps(Evil())})
log("warn", {"message": pickle.dumps(""), "category": pickle.dumps(Evil())})
log("print", "printed by a worker")
"""


def test_what_a_worker_reports_beside_results_is_neither_unpickled_nor_printed(engine, tmp_path, capfd):
    """Dask's client would unpickle the warnings of workers, and print what they have it print."""
    path = tmp_path / "who"
    code = EVIL.format(path=str(path)) + REPORT
    # A result comes after what was reported before it.
    future = engine.engine._client.submit(eval, f"exec({code!r}, {{}}) or b''", pure=False)
    assert engine.engine._loop.within(60, future._result()) == b""
    assert not path.exists()
    assert "printed by a worker" not in "".join(capfd.readouterr())
    engine.run("true")


def test_leaving_the_cluster_ends_what_runs_there(cluster: Cluster, tmp_path: Path):
    mine, problems = Engine(cluster), []
    with Gate(tmp_path / "gate") as gate:

        def run() -> None:
            try:
                mine.run(f"echo $$ > {tmp_path}/tool; {gate.shell}")
            except WorkerError as error:
                problems.append(error.message)

        thread = threading.Thread(target=run)
        thread.start()
        gate.wait()
        mine.engine.close()
        thread.join()
        wait_until_gone(int((tmp_path / "tool").read_text()))
    assert problems == ["the build is ending, so the cluster does nothing for it any more"]


KILL = "read -r _ _ _ worker _ < /proc/$PPID/stat; kill -9 $worker; sleep 60"


def test_a_run_whose_worker_is_lost_is_done_by_another_one(cluster: Cluster, engine: Engine, tmp_path: Path):
    made = engine.run(f"mkdir {tmp_path}/first && {{ {KILL}; }}; echo text > $TMPDIR/out")
    assert made == b"text\n"
    assert sum(worker.process.poll() is not None for worker in cluster.workers) == 1


def test_a_run_that_kills_its_workers_is_given_up(cluster: Cluster, engine: Engine):
    cluster.start("c")
    with pytest.raises(NotDone, match="the workers that tried it were lost"):
        engine.run(KILL)


@pytest.mark.usefixtures("looking")
def test_a_cluster_without_workers(cluster: Cluster, engine: Engine, project: Project):
    with pytest.raises(NotDone, match="no worker of the cluster has the tool any more"):
        engine.run("true")
    run = project.scons("--cluster", cluster.address, ok=False)
    assert "no worker of the cluster" in run.output and "the cluster has no workers" in run.output


@pytest.mark.usefixtures("looking")
def test_a_worker_leaves_whose_tool_was_upgraded_and_its_nanny_starts_it_again(cluster, engine, tmp_path):
    def compilers() -> set[str]:
        return {
            identity
            for offer in engine.engine.offers()
            for identity, text in offer.tools.items()
            if text.startswith("cc ")
        }

    compiler, others = tmp_path / "cc", compilers()
    program = Path(Project.shared, "bin/cc").read_bytes()
    compiler.write_bytes(program + b"1")
    compiler.chmod(0o755)
    cluster.start("upgraded", options=(), PATH=f"{tmp_path}:{os.environ['PATH']}")
    wait_for(lambda: len(compilers() - others) == 1, "nobody offers the new compiler")
    (engine.tool,) = compilers() - others
    assert engine.run("echo text > $TMPDIR/out") == b"text\n"
    rewrite(compiler, program + b"2")
    # It may have left before it could answer.
    with pytest.raises((ToolchainError, NotDone), match=r"its cc has changed since|worker"):
        engine.run("echo text > $TMPDIR/out")
    wait_for(lambda: compilers() - others and engine.tool not in compilers(), "the worker offers what it had")
    (engine.tool,) = compilers() - others
    assert engine.run("echo text > $TMPDIR/out") == b"text\n"


DEAF = """
import asyncio
from kernelwright.cluster import command

async def deaf():
    while True:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            pass

async def main():
    asyncio.ensure_future(deaf())
    await asyncio.sleep(0)

command.END_S = 0.1
command.leaving(asyncio.run)(main())
"""


def test_a_worker_that_has_ended_leaves_whatever_its_tasks_do():
    """When a worker and its scheduler are ended at the same moment, Dask's tasks wait for each other."""
    done = subprocess.run([sys.executable, "-c", DEAF], env={**os.environ, "PYTHONPATH": str(SITE_SCONS)}, timeout=300)
    assert done.returncode == 0


IMPATIENT = "from kernelwright.cluster import dask_client\ndask_client.CONNECT_S = 0.1\n"


@pytest.mark.usefixtures("looking")
def test_a_scheduler_that_says_nothing_and_one_that_is_gone(cluster, cpu_project, tmp_path, monkeypatch):
    """What is in flight is given up at once, with one reason, and nothing waits for ever."""
    first, second, problems = Engine(cluster), Engine(cluster), []

    def run(engine: Engine) -> None:
        try:
            engine.run(gate.shell)
        except ClusterGone as problem:
            problems.append(str(problem))

    with Gate(tmp_path / "gate") as gate:
        threads = [threading.Thread(target=run, args=[engine]) for engine in (first, second)]
        for thread in threads:
            thread.start()
        gate.wait(2)
        cluster.scheduler.process.send_signal(signal.SIGSTOP)
        # The second one has been asked just now, and says so for ever.
        second.engine._offers = math.inf, second.engine.offers()
        with monkeypatch.context() as patience:
            patience.setattr("kernelwright.cluster.dask_client.CONNECT_S", 0.1)
            threads[0].join()
            first.engine.close()
        cluster.scheduler.kill()
        threads[1].join()
        second.engine.close()
    assert problems == ["it has not answered 3 questions", "the connection was lost"]
    cpu_project.write("SConstruct", f"{IMPATIENT}{SCONSTRUCT}")
    run = cpu_project.scons("--cluster", cluster.address, ok=False)
    assert f"the cluster {cluster.address} cannot be used" in run.output
    cpu_project.scons("--cluster=", f"CLUSTER={cluster.address}")
