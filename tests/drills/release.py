"""Rehearses a release: ``python tests/drills/release.py``. Nothing leaves this machine, and no tag is set in this tree.

A clone of the last commit is tagged. The package "build" makes the sdist there, and the wheel out of that. twine checks
both. Then the sdist alone is installed into a fresh environment that has no network and no index, but a folder with the
wheels of what Kernelwright needs; and a project that ``init`` writes is built and checked there for the CPU.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEFT_OUT = ("tests/mutants/", "benchmarks/results/", "build/")
NEEDED = ("SConstruct", "docs/tutorial.md", "kernels/saxpy.py", "tests/conftest.py", "tests/slow.txt", "LICENSE")


def say(step: str) -> None:
    """Print a step before it begins."""
    print(f"== {step}", flush=True)


def run(*command: str | Path, cwd: Path) -> str:
    """Run a program that has to end well; what it printed.

    Raises:
        SystemExit: it failed; with what it printed.
    """
    done = subprocess.run([*map(str, command)], cwd=cwd, text=True, capture_output=True, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build(work: Path) -> tuple[Path, Path]:
    """The sdist and the wheel of the last commit, from a tagged clone."""
    tree = work / "tree"
    run("git", "clone", "-q", ROOT, tree, cwd=work)
    version = run(sys.executable, "-c", "import kernelwright.core.version as v; print(v.VERSION)", cwd=ROOT).strip()
    identity = ("-c", "user.name=release", "-c", "user.email=release@example.org")
    run("git", *identity, "tag", "-a", f"v{version}", "-m", f"Kernelwright {version}", cwd=tree)
    say(f"build v{version}")
    run(sys.executable, "-m", "build", ".", cwd=tree)
    sdist, wheel = tree / f"dist/kernelwright-{version}.tar.gz", tree / f"dist/kernelwright-{version}-py3-none-any.whl"
    return sdist, wheel


def look_into(sdist: Path) -> None:
    """The sdist has what a packager needs, and not more.

    Raises:
        SystemExit: it has not.
    """
    with tarfile.open(sdist) as archive:
        names = {member.name.partition("/")[2] for member in archive if member.isfile()}
    missing, more = set(NEEDED) - names, {name for name in names if name.startswith(LEFT_OUT)}
    if missing or more:
        sys.exit(f"the sdist lacks {sorted(missing)} and should not have {sorted(more)[:5]}")
    print(f"{sdist.name}: {len(names)} files, {sdist.stat().st_size:,} bytes")


def install(work: Path, sdist: Path) -> None:
    """Install from the sdist without a network, and build and check a new project with that."""
    say("download what it needs")
    home, wheels = work / "home", work / "wheels"
    wheel = next(sdist.parent.glob("*.whl"))
    for each in (wheel, "setuptools>=77"):
        run(sys.executable, "-m", "pip", "download", "-q", "-d", wheels, each, cwd=work)
    (wheels / wheel.name).unlink()
    say("install the sdist without a network")
    run(sys.executable, "-m", "venv", home, cwd=work)
    cut_off = ("unshare", "-rn") if shutil.which("unshare") and works("unshare", "-rn", "true") else ()
    print("no network" if cut_off else "unshare cannot be used here: no index, but a network")
    pip = (home / "bin/pip", "install", "-q", "--no-index", "--find-links", wheels)
    run(*cut_off, *pip, sdist, cwd=work)
    say("build and check a new project")
    run(home / "bin/kernelwright", "init", "acme-kernels", cwd=work)
    last = run(*cut_off, home / "bin/scons", "-Q", "TARGETS=llvm", "check", cwd=work / "acme-kernels").splitlines()[-1]
    print(last)


def works(*command: str) -> bool:
    """Whether a program can be used here."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def main() -> None:
    """Rehearse a release of the last commit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, help="folder that gets the sdist and the wheel")
    keep = parser.parse_args().keep
    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        sdist, wheel = build(work)
        look_into(sdist)
        print(f"{wheel.name}: {wheel.stat().st_size:,} bytes")
        say("twine check")
        print(run(sys.executable, "-m", "twine", "check", "--strict", sdist, wheel, cwd=work).strip())
        install(work, sdist)
        if keep:
            keep.mkdir(parents=True, exist_ok=True)
            for each in (sdist, wheel):
                shutil.copy(each, keep)


if __name__ == "__main__":
    main()
