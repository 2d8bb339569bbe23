"""``kernelwright worker``: does runs of compilers for builds elsewhere, as a worker of a cluster."""

from __future__ import annotations

import argparse
import os
from pathlib import Path

from ..cluster.command import start_worker
from ..core.errors import Where
from ..define.cluster_address import check_address
from ..define.settings import Settings
from .command import Command, argument, count

CERTIFICATES = Settings().cluster_certificates


def run(options: argparse.Namespace) -> int:
    """Run a worker until it is ended."""
    threads = options.threads or len(os.sched_getaffinity(0))
    check_address(options.address, Where(stage="settings"))
    folder = Path(options.certificates).expanduser()
    return start_worker(options.address, threads, folder, not options.no_nanny)


COMMAND = Command(
    "worker",
    "do runs of compilers for builds elsewhere, as a worker of a cluster",
    run,
    (
        argument("address", "of a Dask scheduler: tls://host:8786", metavar="ADDRESS"),
        argument("--threads", "how many runs it does at once (default: one for each CPU)", type=count),
        argument("--certificates", f"for TLS (default: {CERTIFICATES})", metavar="FOLDER", default=CERTIFICATES),
        argument("--no-nanny", "start no process that starts it again if it dies", action="store_true"),
    ),
)
