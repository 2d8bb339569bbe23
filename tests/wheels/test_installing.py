"""Packages beside each other: two in one process and in two, and two versions of one."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from support.consumers import build
from support.environments import install, linked, needed, run
from support.project import ADD, SCALE, once


def scale_by(factor: str) -> dict[str, str]:
    """The definition file of a kernel with a parallel loop."""
    return {"scale": SCALE.replace("2.0", factor)}


SHOW = """
import {package}, numpy as np
x = np.arange(3, dtype="float32")
print(*np.from_dlpack({package}.scale(x)))
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with environments: ``both`` has alpha 1.0 and beta, ``newer`` has alpha 2.0; and the wheels."""

    def make(folder: Path) -> None:
        alpha = build(folder / "alpha", "alpha", {**scale_by("2.0"), "add_one": ADD})
        for name in ("alpha-2", "beta"):
            # What is the same in them is not built again.
            shutil.copytree(folder / "alpha", folder / name)
            shutil.rmtree(folder / name / "dist")
        (folder / "alpha-2/kernels/add_one.py").unlink()
        newer = build(folder / "alpha-2", "alpha", scale_by("3.0"), "2.0")
        beta = build(folder / "beta", "beta", {**scale_by("5.0"), "add_one": ADD})
        for name, wheels in (("both", (alpha, beta)), ("newer", (newer,))):
            install(linked(needed(tmp_path_factory), folder / name), "--no-index", *wheels)

    return once(tmp_path_factory, "installing", make)


def test_two_packages_with_kernels_of_one_name_in_one_process_and_its_threads(made: Path) -> None:
    code = """
import threading, numpy as np
import alpha, beta
packages = {alpha: 2, beta: 5}
start, wrong = threading.Barrier(8), []

def work(number):
    start.wait()
    package, factor = [*packages.items()][number % 2]
    x = np.arange(number, number + 10_000, dtype="float32")
    for _ in range(100):
        if not np.array_equal(np.from_dlpack(package.scale(x)), factor * x):
            wrong.append(number)
        if not np.array_equal(np.from_dlpack(package.add_one(x.reshape(-1, 4))).ravel(), x + 1):
            wrong.append(number)

threads = [threading.Thread(target=work, args=[number]) for number in range(8)]
[thread.start() for thread in threads]
[thread.join() for thread in threads]
assert wrong == []
assert alpha.scale is not beta.scale and type(alpha.scale) is not type(beta.scale)
alpha.set_num_threads(2)
assert beta.num_threads() == 2
alpha.preload()
x = np.arange(100_000, dtype="float32")
for package, factor in packages.items():
    np.testing.assert_array_equal(np.from_dlpack(package.scale(x)), factor * x)
"""
    run(made / "both", code)


def test_two_packages_and_two_versions_in_processes_at_one_time(made: Path) -> None:
    wanted = [("both", "alpha", "0.0 2.0 4.0"), ("newer", "alpha", "0.0 3.0 6.0"), ("both", "beta", "0.0 5.0 10.0")]
    # Each process lives until the last one has printed.
    code = SHOW + "import sys; sys.stdout.flush()\ninput()"
    running = [
        subprocess.Popen(
            [made / home / "bin/python", "-I", "-c", code.format(package=package)],
            cwd=made,
            env={},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for home, package, _ in wanted
    ]
    printed = [process.stdout.readline() for process in running if process.stdout]
    for process in running:
        process.communicate("\n", timeout=300)
    assert printed == [f"{line}\n" for _, _, line in wanted]
    assert [process.returncode for process in running] == [0, 0, 0]


def test_an_upgrade_replaces_a_package_and_leaves_the_other(made, tmp_path, tmp_path_factory):
    wheels = [next((made / project / "dist").iterdir()) for project in ("alpha", "beta", "alpha-2")]
    home = linked(needed(tmp_path_factory), tmp_path / "home")
    install(home, *wheels[:2])
    shown = "import importlib.metadata, alpha; print(importlib.metadata.version('alpha'), *alpha.manifest()['kernels'])"
    assert run(home, shown) == "1.0 add_one scale\n"
    install(home, wheels[2])
    assert run(home, shown) == "2.0 scale\n"
    assert run(home, SHOW.format(package="alpha")) == "0.0 3.0 6.0\n"
    assert run(home, SHOW.format(package="beta")) == "0.0 5.0 10.0\n"
    assert not list(home.rglob("alpha/_lib/add_one.so"))
