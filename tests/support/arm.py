"""A machine on which tests run what is built for aarch64: qemu, with a folder that has Debian's Python for it.

``python tests/support/arm.py FOLDER`` makes such a folder on a Debian that has apt-get and the architecture arm64.
"""

from __future__ import annotations

import compileall
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = os.environ.get("KERNELWRIGHT_TEST_ARM_ROOT", "")
"""The folder."""

QEMU = shutil.which("qemu-aarch64") or shutil.which("qemu-aarch64-static")

CROSS = shutil.which("aarch64-linux-gnu-gcc")

NO_CROSS = "needs GNU's C compiler for aarch64: apt-get install gcc-aarch64-linux-gnu"
"""Why tests that build for aarch64 are skipped."""

NO_ARM = "needs qemu-aarch64 and KERNELWRIGHT_TEST_ARM_ROOT, see tests/support/arm.py"
"""Why tests that run what was built are skipped."""

CPUS = {"armv8-a": "cortex-a57", "neoverse-n1": "neoverse-n1", "neoverse-v2": "max"}
"""CPU arch -> qemu's name of a CPU that has what it needs, and less than the next one."""

TIMEOUT_S = 300

DEBIAN = """
libbz2-1.0 libc6 libcrypt1 libexpat1 libffi8 libgcc-s1 liblzma5 libpython3.11-minimal libpython3.11-stdlib libsqlite3-0
libssl3 libstdc++6 libuuid1 python3.11 python3.11-minimal zlib1g
"""

WHEELS = ("apache-tvm-ffi", "numpy", "typing_extensions", "nvidia-cuda-runtime==13.0.96")
"""What tests need that run what is built."""

BUILDING = "site-of-builds"
"""The folder below ``ROOT`` with what builds need; Kernelwright itself is not in it."""

PYTHON = """\
#!/bin/sh
exec {qemu} -L {root} {root}/usr/bin/python3.11 "$@"
"""

STARTED = """\
{root}/{building}
import sys; sys.executable = "{root}/python"
"""
"""What Python reads when it starts: processes that a build starts are run by qemu as well."""

CUDA = f"{ROOT}/site"
"""The folder with CUDA's runtime for aarch64."""


def has_arm() -> bool:
    """Whether tests can run what was built for aarch64."""
    return bool(QEMU and ROOT and Path(ROOT, "usr/bin/python3.11").exists())


def run_on_arm(program: str, folder: Path, path: str, arch: str = "neoverse-v2", **variables: str) -> str:
    """What a Python program prints on a CPU; the error's text if it ends with one.

    Arguments:
        folder: where it runs.
        path: what ``PYTHONPATH`` has besides NumPy and tvm-ffi, relative to the folder.
        arch: the best arch that the CPU has.
    """
    given = {"QEMU_CPU": CPUS[arch], "PYTHONPATH": f"{ROOT}/site:{folder / path}", **variables}
    command = [str(QEMU), "-L", ROOT, f"{ROOT}/usr/bin/python3.11", "-c", program]
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=TIMEOUT_S)
    return done.stdout if done.returncode == 0 else done.stderr


def can_build_on_arm() -> bool:
    """Whether tests can build on that machine."""
    return has_arm() and CROSS is not None and Path(ROOT, BUILDING).is_dir()


def build_on_arm(folder: Path, *arguments: str) -> str:
    """What ``scons`` prints in a project on that machine, where a cross compiler has to be its C compiler."""
    command = [f"{ROOT}/python", "-m", "SCons", *arguments]
    given = {"PYTHONPATH": str(Path(__file__).resolve().parents[2] / "site_scons"), "PATH": os.environ["PATH"]}
    done = subprocess.run(command, cwd=folder, env=given, capture_output=True, text=True, timeout=4 * TIMEOUT_S)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def make_root(folder: Path) -> None:
    """Download Debian's Python for arm64, and NumPy, tvm-ffi and CUDA's runtime for it, into a folder."""
    (folder / "packages").mkdir(parents=True)
    names = [f"{name}:arm64" for name in DEBIAN.split()]
    subprocess.run(["apt-get", "download", "-qq", *names], cwd=folder / "packages", check=True)
    for package in folder.glob("packages/*.deb"):
        subprocess.run(["dpkg", "-x", package, str(folder)], check=True)
    _download(folder, "site", "--no-deps", *WHEELS)
    project = Path(__file__).resolve().parents[2] / "pyproject.toml"
    with project.open("rb") as stream:
        _download(folder, BUILDING, *tomllib.load(stream)["project"]["dependencies"])
    (folder / "python").write_text(PYTHON.format(qemu=QEMU, root=folder))
    (folder / "python").chmod(0o755)
    started = folder / "usr/local/lib/python3.11/dist-packages/arm.pth"
    started.parent.mkdir(parents=True)
    started.write_text(STARTED.format(root=folder, building=BUILDING))
    if sys.version_info[:2] == (3, 11):  # qemu would take twice as long to import TVM
        for name in ("usr/lib/python3.11", "site", BUILDING):
            compileall.compile_dir(folder / name, quiet=2)


def _download(folder: Path, place: str, *wanted: str) -> None:
    """Unpack the wheels for aarch64 that pip finds."""
    platforms = [word for glibc in (17, 24, 27, 28) for word in ("--platform", f"manylinux_2_{glibc}_aarch64")]
    options = ["--only-binary=:all:", "--python-version=3.11", *platforms, "-d", f"{folder}/packages"]
    subprocess.run([sys.executable, "-m", "pip", "download", "-q", *options, *wanted], check=True)
    for wheel in folder.glob("packages/*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(folder / place)
    shutil.rmtree(folder / "packages")
    (folder / "packages").mkdir()


if __name__ == "__main__":
    make_root(Path(sys.argv[1]).absolute())
