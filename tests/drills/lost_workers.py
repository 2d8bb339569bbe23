"""Drills of builds on a cluster: workers and the scheduler are killed at random moments of builds.

    python tests/drills/lost_workers.py [--workers 20] [--schedulers 5] [--stops 2] [--interrupts 3] [--seed 1]
        [--jobs 4] [--kernels softmax,gemm]

A moment is a random time in a build of the kernel library with ``--cluster``, and a victim: a worker or the scheduler
(both SIGKILL), the scheduler so that it says nothing (SIGSTOP), or scons (SIGINT, as by Ctrl-C). A moment at which the
build has ended, or has not found its cluster yet, does not count. After each moment this must hold:

- the build ends with status 0, or after Ctrl-C with that of a build without a cluster, within five minutes;
- no process of the build is left, and no compiler on a worker;
- after Ctrl-C a plain ``scons`` succeeds, and makes no stage again that had finished;
- all outputs are byte-identical to those of a clean build without a cluster;
- a further ``scons`` without a cluster has nothing to do.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import time
from collections import Counter
from pathlib import Path

import crash
from crash import COMPILERS, Drill, DrillError, Tally
from support.dask_cluster import Cluster
from support.moments import HANGS_AFTER_S, processes_of, wait_for

TOO_EARLY = "cannot be used"
"""In the error of a build whose scheduler was gone before it was found."""

INTERRUPT = "scons SIGINT"
INTERRUPTED = (2, -signal.SIGINT)
"""What scons ends with after Ctrl-C. The second comes from CPython, if it was executing a text at that moment, as it
does for each dataclass."""

AT_THE_END_S = 10
"""A build that ends well so soon after Ctrl-C had built everything before."""

TELLS = ("going on without it", "running it here")
"""What a build says of what it has lost."""


class LostWorkers(Drill):
    """A copy of the kernel library that is built on a cluster; the arguments are those of ``Drill``."""

    cluster: Cluster | None = None

    def strike(self, victims: Counter[str]) -> Tally:
        """Build once for comparison, then strike as often as wanted."""
        start = time.monotonic()
        self.build()
        self.seconds["some"] = time.monotonic() - start
        clean = self.digests()
        order = list(victims.elements())
        self.random.shuffle(order)
        try:
            for number, victim in enumerate(order, start=1):
                while not self._strike(number, victim, clean):
                    self.tally.too_late += 1
        finally:
            self._leave()
        return self.tally

    def _strike(self, number: int, victim: str, clean: dict[str, str]) -> bool:
        """One moment, and everything that must hold after it; False: it does not count."""
        size = self.prepare(number)
        process = self._start_on_cluster()
        self.wait(process, size)
        if has_ended := process.poll() is not None:
            self.seconds[size] *= 0.7  # the next moments come earlier
        else:
            self._send(process, victim)
        sent = time.monotonic()
        output = process.communicate(timeout=HANGS_AFTER_S)[0]
        if has_ended:
            return False
        if victim == INTERRUPT and process.returncode == 0 and time.monotonic() < sent + AT_THE_END_S:
            self._require_quiet(output)
            return False
        self._require_no_process()
        self._mend()
        if TOO_EARLY in output:
            return False
        self._require_status(process.returncode, victim, output)
        if victim == INTERRUPT:
            entries = self.entries()
            self.build()
            self._require_kept(entries)
            self.tally.kept += len(entries)
        self._require_finished(clean)
        self.tally.moments[victim] += 1
        print(f"{number}: {victim}: {[line for line in output.splitlines() if line.endswith(TELLS)]}", flush=True)
        return True

    def _require_quiet(self, output: str) -> None:
        if "Traceback" in output:
            raise DrillError(f"Ctrl-C at the end of a build shows a traceback:\n{output}")

    def _start_on_cluster(self) -> subprocess.Popen[str]:
        if self.cluster is None:
            self.cluster = Cluster(Path(tempfile.mkdtemp(dir=self.folder.parent)) / "cluster")
        plain, self.settings = self.settings, [*self.settings, "--cluster", self.cluster.address]
        try:
            return self.start()
        finally:
            self.settings = plain

    def _send(self, process: subprocess.Popen[str], victim: str) -> None:
        name, sent = victim.split()
        number = signal.Signals[sent]
        if name == "scons":
            os.killpg(process.pid, number)  # as a terminal does it
        else:
            chosen = self.random.choice(self.cluster.workers) if name == "worker" else self.cluster.scheduler
            chosen.process.send_signal(number)

    def _mend(self) -> None:
        """See that no worker has a compiler any more, and leave the cluster: the next moment has a new one."""
        wait_for(lambda: not self._compilers(), "a worker still runs a compiler")
        self._leave()

    def _leave(self) -> None:
        if self.cluster is not None:
            self.cluster.close()
        self.cluster = None

    def _compilers(self) -> list[list[str]]:
        return [words for _, words in processes_of(self.cluster.folder) if Path(words[0]).name in COMPILERS]

    def _require_status(self, status: int, victim: str, output: str) -> None:
        if status not in (wanted := INTERRUPTED if victim == INTERRUPT else (0,)):
            raise DrillError(f"after {victim} scons ended with {status} and not {wanted[0]}:\n{output}")


def main() -> None:
    """Run the drills."""
    parser = crash.parser((__doc__ or "").splitlines()[0], jobs=4)
    parser.add_argument("--workers", type=int, default=20, help="how often a worker is killed")
    parser.add_argument("--schedulers", type=int, default=5, help="how often the scheduler is killed")
    parser.add_argument("--stops", type=int, default=2, help="how often the scheduler is stopped; takes half a minute")
    parser.add_argument("--interrupts", type=int, default=3, help="how often scons gets Ctrl-C")
    options = parser.parse_args()
    victims = Counter({"worker SIGKILL": options.workers, "scheduler SIGKILL": options.schedulers})
    victims += Counter({"scheduler SIGSTOP": options.stops, INTERRUPT: options.interrupts})
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as top:
        folder = Path(top, "project")
        folder.mkdir()
        print(LostWorkers(folder, *crash.chosen(options)).strike(victims))


if __name__ == "__main__":
    main()
