"""Runs of tools on a cluster whose machine is in this process: what goes there, what stays, and what may go wrong."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from kernelwright.cluster.machine import Machine
from kernelwright.cluster.messages import ActionResult, Offer, Packed
from kernelwright.cluster.runner import Cluster, ClusterGone, NotDone
from kernelwright.core.errors import SettingsError, ToolchainError, ToolError, Where, WorkerError
from kernelwright.define.cluster_address import check_address
from kernelwright.processes.memory import Measurements, MemoryGovernor
from kernelwright.processes.messages import Failed, Result, decode, encode
from kernelwright.processes.protocol import ToolRun
from kernelwright.processes.runner import ToolRunner
from kernelwright.processes.tools import Elsewhere, SharedTool, ToolCall, ToolResult
from support.moments import Gate, wait_until_gone

VERSIONS = {"kernelwright": "1", "python": "3"}
WHERE = Where("gemm", "m-64", "compile", "kernels/gemm.py:3")
COPY = """\
#!/bin/sh
echo "$0: $1 to $2 by $TMPDIR"
case "$1" in wrong*) exit 3;; esac
echo "made by $(basename "$(dirname "$0")")" > "$2"
cat "$1" >> "$2"
"""


RUN = ToolRun(0, True, "", 0.0, 0.0, 0)


def failed(message: str) -> bytes:
    """The answer of a worker that could not run a tool."""
    return encode(0, Failed("ToolchainError", message))


def problem(line: bytes) -> str:
    """What an answer says that could not be done."""
    return decode(line, {Failed.op: Failed})[1].message


class OneMachine:
    """A cluster of one machine.

    Arguments:
        do: does a request, in place of the machine.
    """

    address = "tls://head:8786"

    def __init__(self, machine: Machine, tool: SharedTool) -> None:
        self.said: Sequence[Offer] = [Offer(VERSIONS, {tool.identity: "cc 12"})]
        self.requests: list[bytes] = []
        self.do: Callable[[bytes], bytes] = lambda request: machine.execute(request, "key")
        self.is_closed = False

    def offers(self) -> Sequence[Offer]:
        return self.said

    def execute(self, request: bytes, tool: str) -> bytes:
        self.requests.append(request)
        return self.do(request)

    def close(self) -> None:
        self.is_closed = True


class Build:
    """A build in one folder, and a cluster in another one."""

    def __init__(self, folder: Path) -> None:
        self.tools = {}
        for side in ("here", "there"):
            path = folder / side / "cc"
            path.parent.mkdir()
            path.write_text(COPY)
            path.chmod(0o755)
            self.tools[side] = SharedTool("cc", "12", "f00d", {"CC": str(path)})
        self.folder, self.scratch = folder / "build", folder / "build/scratch"
        self.scratch.mkdir(parents=True)
        (self.folder / "in").write_text("text\n")
        (self.folder / "wrong").write_text("wrong\n")
        (folder / "files").mkdir()
        self.notes: list[str] = []
        self.left: list[int] = []
        self.identity = folder / "identity"
        self.identity.write_text("f00d")
        self.machine = Machine({"cc": self.find}, folder / "files", self.notes.append, lambda: self.left.append(1))
        self.engine = OneMachine(self.machine, self.tools["there"])
        governor = MemoryGovernor(1 << 20, Measurements(folder / "m.json"))
        self.cluster = Cluster(lambda: self.engine, VERSIONS, self.notes.append)
        self.runner = ToolRunner(2, folder, 60.0, governor, self.cluster)

    def find(self) -> SharedTool:
        """The tool of the cluster's machine, which has the identity that a file says."""
        return replace(self.tools["there"], identity=self.identity.read_text().strip())

    def run(
        self,
        source: str = "in",
        inputs: Sequence[Path] | None = None,
        declared: bool = True,
        more: Sequence[Path] = (),
    ) -> ToolResult:
        tool, output = self.tools["here"], self.scratch / "out"
        given = [self.folder / source] if inputs is None else inputs
        needs = Elsewhere(tool, tuple(given), (output, *more)) if declared else None
        command = [tool.places["CC"], source, str(output)]
        call = ToolCall(
            command, self.folder, self.scratch, WHERE, "mend it", kind="cc", subject="gemm", elsewhere=needs
        )
        return self.runner.run(call)

    @property
    def made(self) -> str:
        return (self.scratch / "out").read_text()


@pytest.fixture
def build(tmp_path: Path) -> Iterator[Build]:
    made = Build(tmp_path)
    yield made
    made.runner.close()
    made.machine.close()


def test_a_run_that_says_what_it_needs_goes_to_the_cluster_and_prints_paths_of_this_machine(build: Build):
    result = build.run()
    assert build.made == "made by there\ntext\n"
    assert result.output == f"{build.tools['here'].places['CC']}: in to {build.scratch}/out by {build.scratch}\n"
    assert result.seconds > 0 and result.peak_kib > 0
    assert str(build.folder).encode() not in build.engine.requests[0]
    assert not list(build.machine._folder.glob("kw-*"))


def test_a_run_that_does_not_say_so_or_has_files_elsewhere_stays_here(build: Build, tmp_path: Path):
    build.run(declared=False)
    assert build.made == "made by here\ntext\n"
    (tmp_path / "in").write_text("other\n")
    build.run(inputs=[tmp_path / "in"])
    assert build.made == "made by here\ntext\n" and not build.engine.requests


def test_an_error_of_the_compiler_is_shown_as_if_it_were_here_and_is_not_tried_again(build: Build):
    with pytest.raises(ToolError, match="cc ended with exit status 3") as raised:
        build.run("wrong")
    assert raised.value.where == WHERE and f"$ {build.tools['here'].places['CC']} wrong" in str(raised.value)
    assert len(build.engine.requests) == 1


@pytest.mark.parametrize("source", ["in", "wrong"])
def test_what_the_cluster_gives_up_is_run_once_here_and_an_error_names_the_kernel(build: Build, source: str):
    def lose(request: bytes) -> bytes:
        raise NotDone("the workers that tried it were lost")

    build.engine.do = lose
    if source == "in":
        build.run()
        assert build.made == "made by here\ntext\n"
    else:
        with pytest.raises(ToolError, match=r"status 3 \(before that, the workers that tried it were lost") as raised:
            build.run(source)
        assert raised.value.where.kernel == "gemm"
    assert any("gemm/m-64 [compile]: the workers that tried it were lost: running it here" in n for n in build.notes)
    assert len(build.engine.requests) == 1


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("", "its disk is full"),
        ("echo 'cc: fatal error: in: No space left on device'; exit 1", "the worker lacks room on its disk"),
        ("kill -9 $$", "the worker lacks memory"),
        ("echo 'cc: fatal error: Killed signal terminated program cc1'; exit 1", "the worker lacks memory"),
    ],
)
def test_what_fails_because_of_a_workers_machine_is_run_here(build: Build, script: str, said: str):
    """Nothing is wrong with its input, and this machine may have what the worker lacks."""
    Path(build.tools["there"].places["CC"]).write_text(f"#!/bin/sh\n{script}\n")
    if not script:
        build.engine.do = lambda request: failed(said)
    build.run()
    assert build.made == "made by here\ntext\n"
    assert build.notes == [f"kernelwright: {WHERE}: a worker of the cluster could not run cc: {said}: running it here"]


def test_words_of_a_worker_are_shown_without_control_characters_and_not_at_any_length(build: Build):
    build.engine.do = lambda request: failed("\x1b[2J\n\udfff" + "x" * 1000)
    build.run()
    (note,) = build.notes
    assert r"could not run cc: \x1b[2J\n\udfffxxx" in note and len(note) < 700


@pytest.mark.parametrize("moment", ["before", "while it runs"])
def test_a_tool_that_was_upgraded_below_a_worker_makes_nothing(build: Build, moment: str):
    """It has another identity then, and what it makes is another tool's: the run is done here, the worker leaves."""
    if moment == "before":
        build.identity.write_text("beef")
    else:
        Path(build.tools["there"].places["CC"]).write_text(f"{COPY}echo beef > {build.identity}\n")
    for _ in range(2):
        build.run()
        assert build.made == "made by here\ntext\n"
    assert "could not run cc: its cc has changed since it was started; it is 12 now" in build.notes[0]
    assert build.left == [1]


def test_a_worker_gives_a_run_the_time_that_it_may_take(build: Build, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("kernelwright.processes.runner.GRACE_S", 0.0)
    for _ in range(2):
        build.run()
        assert build.made == "made by there\ntext\n"


def test_without_its_scheduler_the_build_goes_on_here_and_says_so(build: Build):
    def vanish(request: bytes) -> bytes:
        raise ClusterGone("connection closed")

    build.engine.do = vanish
    for _ in range(2):
        build.run()
        assert build.made == "made by here\ntext\n"
    assert len(build.engine.requests) == 1
    assert (
        build.notes.count("kernelwright: the cluster does not answer any more (connection closed): going on without it")
        == 1
    )


@pytest.mark.parametrize(
    ("offers", "said"),
    [
        ([], "the cluster has no workers"),
        ([Offer(VERSIONS, {"beef": "cc 11", "d00f": "nvcc 12.8"})] * 2, "2 workers: kernelwright 1, python 3, cc 11"),
        ([Offer(VERSIONS, {"d00f": "nvcc 12.8"})], "1 workers: kernelwright 1, python 3, no cc"),
        ([Offer({"kernelwright": "0", "python": "3"}, {"f00d": "cc 12"})], "kernelwright 0, python 3, cc 12 (f00d)"),
        ([Offer({}, {})], "not started by kernelwright worker"),
    ],
)
def test_a_cluster_without_the_tool_is_an_error_that_names_both(build: Build, offers: list[Offer], said: str):
    build.engine.said = offers
    with pytest.raises(ToolchainError, match="no worker of the cluster tls://head:8786 has this cc") as raised:
        build.run()
    assert "needed: kernelwright 1, python 3, cc 12 (f00d)" in str(raised.value) and said in str(raised.value)
    assert not build.engine.requests and not (build.scratch / "out").exists()


def test_a_cluster_that_refuses_to_be_used_is_asked_once(build: Build):
    asked = []

    def refuse() -> OneMachine:
        asked.append(1)
        raise ToolchainError("nobody answers")

    build.cluster._connect = refuse
    for line in ("kernels/gemm.py:3", "kernels/rope.py:5"):
        with pytest.raises(ToolchainError, match="nobody answers") as raised:
            build.run()
        assert raised.value.where.location is None, "an error of another kernel has that one's line"
        raised.value.where = Where(location=line)
    assert len(asked) == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b"\x80\x04.",
        encode(0, Result(ActionResult(RUN, (None,)))),
        encode(0, Result(ActionResult(RUN, ()))),
        encode(0, Result(ActionResult(RUN, (Packed.of(b"made"),) * 2))),
        encode(0, Result(ActionResult(RUN, (replace(Packed.of(b"made"), sha256="f00d"),)))),
        encode(0, Result(ActionResult(replace(RUN, status=1, output="\ud800"), (None,)))),
    ],
    ids=[
        "nothing", "a pickle", "a file is missing", "none is there", "one too many", "another digest",
        "half of a character",
    ],
)  # fmt: skip
def test_an_answer_that_makes_no_sense_is_an_error_of_its_run(build: Build, answer: bytes):
    build.engine.do = lambda request: answer
    with pytest.raises(ToolchainError, match="makes no sense") as raised:
        build.run()
    assert raised.value.where == WHERE and not (build.scratch / "out").exists()


def test_each_file_that_a_run_makes_has_to_come_back(build: Build):
    for missing in (0, 1):
        files = [Packed.of(b"made"), None][:: 1 if missing else -1]
        build.engine.do = lambda request, files=files: encode(0, Result(ActionResult(RUN, tuple(files))))
        with pytest.raises(ToolchainError, match="makes no sense: it has other files than the action makes"):
            build.run(more=[build.scratch / "log"])


def test_a_request_that_does_not_fit_is_answered_with_the_reason(build: Build):
    for request in (b"{}", b"\x80\x04.", b'{"id": 0, "act": {}}'):
        assert problem(build.machine.execute(request, "key")).startswith("the request does not fit: ")
    build.run()
    other = build.engine.requests[0].replace(b"f00d", b"beef")
    assert "no tool with the identity beef" in problem(build.machine.execute(other, "key"))


def test_a_cancelled_run_is_ended_and_the_machine_goes_on(build: Build, tmp_path: Path):
    gate = Gate(tmp_path / "gate")
    Path(build.tools["there"].places["CC"]).write_text(f"#!/bin/sh\necho $$ > {tmp_path}/tool\n{gate.shell}\n")
    problems: list[bytes] = []
    build.engine.do = lambda request: problems.append(build.machine.execute(request, "key")) or problems[-1]
    thread = threading.Thread(target=lambda: (gate.wait(), build.machine.cancel("key")))
    thread.start()
    build.run()
    thread.join()
    assert re.match("the build is ending|the run was cancelled", problem(problems[0]))
    wait_until_gone(int((tmp_path / "tool").read_text()))
    Path(build.tools["there"].places["CC"]).write_text(COPY)
    build.run()
    assert build.made == "made by there\ntext\n"


def test_nothing_is_sent_any_more_when_the_build_ends(build: Build):
    build.run()
    build.runner.close()
    assert build.engine.is_closed
    with pytest.raises(WorkerError, match="the build is ending"):
        build.run()


def test_a_build_that_ends_does_not_wait_for_a_cluster_that_it_is_still_connecting_to(build: Build):
    connecting, answered, problems = threading.Event(), threading.Event(), []

    def connect() -> OneMachine:
        connecting.set()
        answered.wait()
        return build.engine

    def run() -> None:
        try:
            build.run()
        except WorkerError as error:
            problems.append(error.message)

    build.cluster._connect = connect
    threads = [threading.Thread(target=run), threading.Thread(target=build.runner.close, daemon=True)]
    threads[0].start()
    connecting.wait()
    threads[1].start()
    threads[1].join(60)
    has_ended = not threads[1].is_alive()
    answered.set()
    threads[0].join()
    assert has_ended and problems and build.engine.is_closed and not build.engine.requests


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("head:8786", "begins with one of tls://, tcp://"),
        ("grpcs://head:8786", "begins with one of tls://, tcp://"),
        ("tls://me:secret@head:8786", "has a name or a password in it"),
        ("tls://head", "no host with a port"),
        ("tls://head:8786/path", "no host with a port"),
        ("tls://head:99999", "no host with a port"),
        ("tcp://head:8786", "is another machine"),
        ("tcp://10.0.0.1:8786", "is another machine"),
    ],
)
def test_an_address_that_cannot_be_used_is_refused_and_shows_no_password(address: str, message: str):
    with pytest.raises(SettingsError, match=message) as raised:
        check_address(address, Where(stage="settings"))
    assert "secret" not in str(raised.value)
    for good in ("tls://head:8786", "tls://[2001:db8::1]:1", "tcp://127.0.0.1:1", "tcp://[::1]:1"):
        check_address(good, Where(stage="settings"))
