"""Compares the device code of a build with what nvcc makes of the same sources, run as a whole for each image.

``python tests/drills/same_code.py [-j N] [FOLDER]``. Every script ``compile_<arch>.sh`` in ``FOLDER/build/kernels`` is
run in a copy of its folder, beside it, that has the source and nothing else: that is nvcc, and none of our code. Images
and resource usage have to be the same, byte for byte. Status 0 if they are. The processor time of both ways is printed,
too, if the trace of the build is there; that of the build is of its compilers alone.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kernelwright.core.arch import image_file
from kernelwright.toolchain.nvcc_run import resource_usage
from kernelwright.toolchain.probe import Toolchain


@dataclass(frozen=True)
class Image:
    """An image of a build, and the script that makes it again."""

    script: Path

    @property
    def arch(self) -> str:
        return self.script.stem.removeprefix("compile_")

    @property
    def path(self) -> Path:
        return self.script.with_name(image_file(self.arch))

    def is_same(self, environment: dict[str, str]) -> bool:
        """Whether nvcc makes the same of the source."""
        with tempfile.TemporaryDirectory(dir=self.script.parent.parent) as folder:  # flags may name folders from here
            for path in (self.script, self.script.with_name("device.cu")):
                shutil.copy(path, folder)
            command = ["/bin/sh", self.script.name]
            done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
            made = Path(folder, self.path.name)
            usage = json.loads(self.script.with_name(f"{self.arch}.json").read_text())["kernels"]
            same = made.is_file() and made.read_bytes() == self.path.read_bytes()
            return same and usage == resource_usage(done.stdout + done.stderr)


def images(project: Path) -> Iterator[Image]:
    """The images in the build folder of a project that have a script."""
    for script in sorted(project.glob("build/kernels/*/*/*/cuda/compile_*.sh")):
        yield Image(script)


def tools() -> dict[str, str]:
    """The environment of the scripts."""
    with tempfile.TemporaryDirectory() as folder:
        chain = Toolchain(Path(folder, "toolchain.json"), dict(os.environ))
        compiler = chain.host_compiler("")
        return {"NVCC": chain.nvcc("", compiler).path, "CC": compiler.path, "PATH": "/usr/local/bin:/usr/bin:/bin"}


def cpu_seconds_of_build(project: Path) -> float | None:
    """Processor time that the build took for these images, if its trace has that."""
    path = project / "build/trace.json"
    events = json.loads(path.read_text())["traceEvents"] if path.is_file() else []
    found = [event["args"].get("cpu_seconds") or 0.0 for event in events if event.get("cat") in ("PTX", "CUBIN")]
    return sum(found) if found else None


def main() -> int:
    """Compare, and print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-j", type=int, default=os.cpu_count() or 1, dest="jobs", help="runs of nvcc at a time")
    parser.add_argument("folder", nargs="?", type=Path, default=Path(), help="the project that was built")
    arguments = parser.parse_args()
    found, environment = list(images(arguments.folder)), tools()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with ThreadPoolExecutor(arguments.jobs) as threads:
        same = list(threads.map(partial(Image.is_same, environment=environment), found))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    for image in (image for image, is_same in zip(found, same, strict=True) if not is_same):
        print(f"differs: {image.path}")
    print(f"{sum(same)} of {len(found)} images equal")
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    ours = cpu_seconds_of_build(arguments.folder)
    print(f"processor time of nvcc {spent:.1f} s" + (f", of the build {ours:.1f} s" if ours else ""))
    return 0 if found and all(same) else 1


if __name__ == "__main__":
    sys.exit(main())
