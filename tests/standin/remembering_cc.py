"""A C compiler that compiles equal sources once in a test run: gcc takes most of a second for each library's launcher.

What it is asked for the first time, the real compiler does. A later compilation of the same preprocessed source with
the same options gets a copy of that object file. Everything else, such as linking, and whatever fails or warns, is
always the real compiler's. tests/conftest.py puts it on PATH as ``cc``, and sets COMPILER and MEMORY.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path


def main() -> None:
    real = [COMPILER, *sys.argv[1:]]  # type: ignore[name-defined]  # noqa: F821
    if "-c" not in real or real.count("-o") != 1 or any(word.startswith(("-M", "-W", "-g")) for word in real):
        os.execv(real[0], real)
    place = real.index("-o")
    options, target = real[1:place] + real[place + 2 :], real[place + 1]
    preprocessed = subprocess.run([COMPILER, "-E", *(w for w in options if w != "-c")], capture_output=True)  # type: ignore[name-defined]  # noqa: F821
    if preprocessed.returncode or preprocessed.stderr:
        os.execv(real[0], real)
    options = [word for word in options if not word.startswith("-I")]
    key = hashlib.sha256(repr(options).encode() + preprocessed.stdout).hexdigest()
    kept = f"{MEMORY}/{key}.o"  # type: ignore[name-defined]  # noqa: F821
    if not Path(kept).exists():
        done = subprocess.run(real, capture_output=True)
        sys.stdout.buffer.write(done.stdout)
        sys.stderr.buffer.write(done.stderr)
        if done.returncode or done.stderr or not Path(target).exists():
            sys.exit(done.returncode)
        shutil.copyfile(target, f"{kept}.{os.getpid()}")
        Path(f"{kept}.{os.getpid()}").replace(kept)
        return
    shutil.copyfile(kept, target)


main()
