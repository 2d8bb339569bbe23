"""A C compiler that compiles equal sources once in a test run: gcc takes most of a second for each library's launcher.

What it is asked for the first time, the real compiler does. A later compilation of the same preprocessed source with
the same options gets a copy of what came out, and so does one of the same assembler text. It hardly optimises, which
takes two thirds of the time. Everything else, such as linking objects, and whatever fails or warns, is always the real
compiler's. tests/conftest.py puts it on PATH as ``cc``, and sets COMPILER and MEMORY.
"""

# Without pathlib, which takes longer to import than most of what this program does.

import os
import sys

COMPILER = MEMORY = ""

AS_SHIPPED = ("saxpy", "top_k")
"""Kernels of this repository's library that are always compiled as users have them."""


def content(file: str) -> bytes:
    """What is in a file."""
    with open(file, "rb") as opened:
        return opened.read()


def preprocessed(source: str, options: list[str]) -> bytes | None:
    """What the preprocessor makes of a source, and what it warns of; None if it fails."""
    end, start = os.pipe()
    command = [COMPILER, "-E", "-P", source, *options]
    to_pipe = [(os.POSIX_SPAWN_DUP2, start, number) for number in (1, 2)]
    process = os.posix_spawn(COMPILER, command, os.environ, file_actions=to_pipe)
    os.close(start)
    with open(end, "rb") as opened:
        text = opened.read()
    return None if os.waitpid(process, 0)[1] else text


def key_of(source: str, options: list[str]) -> str | None:
    """What the result of a compilation depends on; None if the source cannot be read."""
    import hashlib

    if source.endswith(".s"):
        files = [source, *(word.rpartition("=")[2] for word in options if word.startswith("-Wl,--version-script="))]
        return hashlib.sha256(repr([options, *map(content, files)]).encode()).hexdigest()
    of_linking = ("-Wl,", "-L", "-l", "-s", "-c")
    words = [word for word in options if not word.startswith(of_linking) or word.startswith("-std")]
    text = preprocessed(source, words)
    if text is None:
        return None
    # Cython writes the path of its output, a new folder each time, into a string that is not used.
    key = hashlib.sha256(text.replace(source.encode(), b""))
    for word in options:
        if word.startswith("-L"):
            key.update(b"".join(content(os.path.join(word[2:], name)) for name in sorted(os.listdir(word[2:]))))
        elif not word.startswith("-I"):
            key.update(f"{word}\0".encode())
    return key.hexdigest()


def copy(source: str, target: str) -> None:
    """Write a file with the content of another, and the mode that a compiler's output has."""
    with open(target, "wb") as opened:
        opened.write(content(source))
    os.chmod(target, os.stat(source).st_mode & 0o777)


def main() -> None:
    """Do what the compiler was asked for."""
    command = [COMPILER, *sys.argv[1:]]
    sources = [word for word in command if word.endswith((".c", ".s"))]
    is_known = len(sources) == 1 and command.count("-o") == 1 and ("-c" in command or "-shared" in command)
    if not is_known or any(word.startswith(("-M", "-g", "-W")) and not word.startswith("-Wl,") for word in command):
        os.execv(COMPILER, command)
    place = command.index("-o")
    options = command[1:place] + command[place + 2 :]
    links = any(word.endswith((".o", ".a")) for word in options)
    # A wrapper is in the folder of its kernel; the source of an extension is named after it.
    names = {part.partition(".")[0].lstrip("_") for part in sources[0].split("/")}
    if links or names.intersection(AS_SHIPPED):
        os.execv(COMPILER, command)
    key = key_of(sources[0], [word for word in options if word != sources[0]])
    if key is None:
        os.execv(COMPILER, command)
    kept, target = f"{MEMORY}/{key}", command[place + 1]
    if os.path.exists(kept):
        copy(kept, target)
        return
    import subprocess

    # Without any optimisation an unused string stays in an extension, with the path of Cython's output.
    done = subprocess.run([*command, "-O1" if "-shared" in command else "-O0"], capture_output=True)
    sys.stdout.buffer.write(done.stdout)
    sys.stderr.buffer.write(done.stderr)
    if done.returncode == 0 and not done.stderr:
        fresh = f"{kept}.{os.getpid()}"
        copy(target, fresh)
        os.replace(fresh, kept)
    sys.exit(done.returncode)


if __name__ == "__main__":
    main()
