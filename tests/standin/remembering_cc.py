"""A C compiler that compiles equal sources once in a test run: gcc takes most of a second for each library's launcher.

What it is asked for the first time, the real compiler does. A later compilation of the same preprocessed source with
the same options gets a copy of what came out. Everything else, such as linking objects, and whatever fails or warns, is
always the real compiler's. tests/conftest.py puts it on PATH as ``cc``, and sets COMPILER and MEMORY.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

COMPILER = MEMORY = ""


def key_of(source: str, options: list[str]) -> str | None:
    """What the result of a compilation depends on; None if the source cannot be read."""
    of_linking = ("-Wl,", "-L", "-l", "-s", "-c")
    words = [word for word in options if not word.startswith(of_linking) or word.startswith("-std")]
    preprocessed = subprocess.run([COMPILER, "-E", "-P", source, *words], capture_output=True)
    if preprocessed.returncode or preprocessed.stderr:
        return None
    # Cython writes the path of its output, a new folder each time, into a string that is not used.
    key = hashlib.sha256(preprocessed.stdout.replace(source.encode(), b""))
    for word in options:
        if word.startswith("-L"):
            key.update(b"".join(path.read_bytes() for path in sorted(Path(word[2:]).iterdir())))
        elif not word.startswith("-I"):
            key.update(f"{word}\0".encode())
    return key.hexdigest()


def main() -> None:
    """Do what the compiler was asked for."""
    command = [COMPILER, *sys.argv[1:]]
    sources = [word for word in command if word.endswith(".c")]
    is_known = len(sources) == 1 and command.count("-o") == 1 and ("-c" in command or "-shared" in command)
    if not is_known or any(word.startswith(("-M", "-g", "-W")) and not word.startswith("-Wl,") for word in command):
        os.execv(COMPILER, command)
    place = command.index("-o")
    options = command[1:place] + command[place + 2 :]
    key = key_of(sources[0], [word for word in options if word != sources[0]])
    if key is None:
        os.execv(COMPILER, command)
    kept, target = Path(MEMORY, key), Path(command[place + 1])
    if kept.exists():
        shutil.copy(kept, target)
        return
    done = subprocess.run(command, capture_output=True)
    sys.stdout.buffer.write(done.stdout)
    sys.stderr.buffer.write(done.stderr)
    if done.returncode == 0 and not done.stderr:
        fresh = Path(f"{kept}.{os.getpid()}")
        shutil.copy(target, fresh)
        fresh.replace(kept)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
