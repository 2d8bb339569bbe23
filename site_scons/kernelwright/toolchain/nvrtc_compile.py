"""The compiler process: ``python -I -S -B nvrtc_compile.py``, which runs NVRTC once, as nvcc runs cicc and ptxas.

NVRTC is a library. In a process of its own it can be stopped and measured like every other tool, and a crash is an
error of one kernel. Only ctypes is needed: it is run as a file and imports next to nothing, because starting it must
cost little. The package would take 20 ms to import, ``cuda.bindings`` 70 ms, and ctypes takes 2 ms.

    nvrtc_compile.py --library=LIB --output=FILE [--head=LINES --pch=FILE] OPTION... device.cu
    nvrtc_compile.py --library=LIB --probe

The options are NVRTC's own. ``--probe`` prints the release and the archs as JSON.

With ``--pch``, the first LINES lines of the source are a header of their own, which is compiled once: NVRTC's log of
that state is kept in FILE (a precompiled header). It is an image of the compiler's memory, with addresses in it. So it
is of use only where the process looks the same again, for which the randomisation of addresses is switched off first.
Whatever is wrong with FILE, the source is compiled without it, and a line that begins with ``PCH`` says why.

The C interface is that of ``nvrtc.h``, CUDA 12.8 or newer: https://docs.nvidia.com/cuda/nvrtc.
"""

from __future__ import annotations

import ctypes
import os
import sys

TYPE_CHECKING = False  # importing typing takes longer than what this file does
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any, NoReturn

OWN = ("--library", "--output", "--head", "--pch", "--probe", "--heap", "--fixed")
"""Options that are not NVRTC's; with the last two, this program starts itself again."""

HEAD = "device-head.h"
"""The name under which the source includes its first lines; it exists in memory only."""

NOTE = "PCH"
"""What a line about the precompiled header begins with."""

MAGIC = b"kernelwright pch"
"""Before the checksum, at the end of a precompiled header. NVRTC takes no notice of what follows its own data, and
none either of data that is damaged: it crashes, or compiles something else."""

ADDR_NO_RANDOMIZE, QUERY = 0x0040000, 0xFFFFFFFF
"""Arguments of personality(2)."""

HEAP_EXHAUSTED = 14
"""The nvrtcResult of a precompiled header that needs more memory."""

LARGEST_HEAP = 1 << 32
"""Bytes that the memory which a precompiled header is an image of may grow to."""


class Failure(Exception):
    """The compilation cannot be done; the message is for the user."""


class Arguments:
    """The command line: our own options by name, NVRTC's, and the source."""

    def __init__(self, words: Sequence[str]) -> None:
        self.own: dict[str, str] = {}
        rest = list(words)
        while rest and rest[0].partition("=")[0] in OWN:
            name, _, value = rest.pop(0).partition("=")
            self.own[name] = value
        self.options, self.source = rest[:-1], rest[-1] if rest else ""

    def again_with(self, name: str, value: str) -> NoReturn:
        """Start this program anew, with an option more. The process keeps its number, so it stays bounded."""
        own = {**self.own, name: value}
        words = [f"{key}={text}" for key, text in own.items()] + [*self.options, self.source]
        sys.stdout.flush()
        os.execv(sys.executable, [sys.executable, "-I", "-S", "-B", __file__, *words])


class Library:
    """NVRTC, loaded.

    Raises:
        Failure: it cannot be loaded.
    """

    def __init__(self, path: str) -> None:
        folder = os.path.dirname(path)  # noqa: PTH120 (importing pathlib takes longer than anything else here)
        try:
            # NVRTC opens it by its name alone, and the wheels' folder is in no search path; so it is loaded before.
            for name in sorted(os.listdir(folder)):  # noqa: PTH208
                if name.startswith("libnvrtc-builtins.so."):
                    ctypes.CDLL(f"{folder}/{name}")
            self.api = ctypes.CDLL(path)
        except OSError as error:
            raise Failure(f"NVRTC cannot be loaded: {error}") from error

    def call(self, name: str, *arguments: Any) -> None:
        """Call a function whose only result is whether it succeeded; raises Failure if it did not."""
        status = getattr(self.api, name)(*arguments)
        if status:
            raise Failure(f"{name}: {self.text_of(status)}")

    def text_of(self, status: int) -> str:
        """The name of a result."""
        function = self.api.nvrtcGetErrorString
        function.restype = ctypes.c_char_p
        return str(function(status).decode())

    def reserve(self, size: int) -> None:
        """Reserve the memory that a precompiled header is an image of; 0: as much as NVRTC finds right."""
        heap = ctypes.c_size_t(size)
        if not size:
            self.call("nvrtcGetPCHHeapSize", ctypes.byref(heap))
        self.call("nvrtcSetPCHHeapSize", heap)

    def probe(self) -> str:
        """The release and the numbers of the archs, as JSON."""
        major, minor, count = ctypes.c_int(), ctypes.c_int(), ctypes.c_int()
        self.call("nvrtcVersion", ctypes.byref(major), ctypes.byref(minor))
        self.call("nvrtcGetNumSupportedArchs", ctypes.byref(count))
        archs = (ctypes.c_int * count.value)()
        self.call("nvrtcGetSupportedArchs", archs)
        return f'{{"release": "{major.value}.{minor.value}", "archs": {list(archs)}}}'


class Program:
    """One compilation.

    Arguments:
        library: NVRTC.
        source: the text; its name is ``device.cu`` wherever it lies, so that no path gets into what is made.
        name: name of the source, for messages.
        head: text of the header that it may include, or None.
    """

    def __init__(self, library: Library, source: bytes, name: str, head: bytes | None = None) -> None:
        self._library = library
        self.handle = ctypes.c_void_p()
        strings = ctypes.c_char_p * 1
        headers = (0, None, None) if head is None else (1, strings(head), strings(HEAD.encode()))
        library.call("nvrtcCreateProgram", ctypes.byref(self.handle), source, os.fsencode(name), *headers)

    def compile(self, options: Sequence[str]) -> int:
        """Compile; the result is a value of nvrtcResult."""
        words = [os.fsencode(option) for option in options]
        api = self._library.api
        return int(api.nvrtcCompileProgram(self.handle, len(words), (ctypes.c_char_p * len(words))(*words)))

    def get(self, kind: str) -> bytes:
        """The program's ``ProgramLog``, ``PTX`` or ``CUBIN``."""
        size = ctypes.c_size_t()
        self._library.call(f"nvrtcGet{kind}Size", self.handle, ctypes.byref(size))
        data = ctypes.create_string_buffer(size.value)
        self._library.call(f"nvrtcGet{kind}", self.handle, data)
        return data.raw

    @property
    def log(self) -> str:
        """What NVRTC and ptxas said."""
        return self.get("ProgramLog").rstrip(b"\0").decode("utf-8", "replace")

    @property
    def pch_status(self) -> int:
        """How the making of a precompiled header went, a value of nvrtcResult."""
        return int(self._library.api.nvrtcGetPCHCreateStatus(self.handle))

    @property
    def needed_heap(self) -> int:
        """Bytes that the memory for a precompiled header has to have."""
        size = ctypes.c_size_t()
        self._library.call("nvrtcGetPCHHeapSizeRequired", self.handle, ctypes.byref(size))
        return size.value


def main(words: Sequence[str]) -> int:
    """Do what the command line says; returns the exit status."""
    arguments = Arguments(words)
    try:
        if arguments.own.get("--pch"):
            fix_addresses(arguments)
        library = Library(arguments.own.get("--library", ""))
        if arguments.own.get("--pch"):
            # Now, so that it gets the same place in every process.
            library.reserve(int(arguments.own["--heap"]))
        if "--probe" in arguments.own:
            print(library.probe())
            return 0
        return compile_source(arguments, library)
    except (Failure, OSError, ValueError) as error:
        print(f"error: {error}")
        return 1


def compile_source(arguments: Arguments, library: Library) -> int:
    """Compile, with a precompiled header if that is asked for and possible, and write the output."""
    with open(arguments.source, "rb") as file:  # noqa: PTH123
        source = file.read()
    program = with_header(arguments, library, source) if arguments.own.get("--pch") else None
    if program is None:
        program = Program(library, source, arguments.source)
        status = program.compile(arguments.options)
        print(program.log)
        if status:
            print(f"error: {library.text_of(status)}")
            return 1
    output = arguments.own["--output"]
    is_ptx = output.endswith(".ptx")
    image = program.get("PTX").rstrip(b"\0") if is_ptx else program.get("CUBIN")
    with open(output, "wb") as file:  # noqa: PTH123
        file.write(image)
    return 0


def fix_addresses(arguments: Arguments) -> None:
    """Have this process run without randomised addresses; without ``--pch`` if that is not allowed.

    Containers often allow only a few values of personality(2); Docker's own list lacks this one.
    """
    arguments.own.setdefault("--heap", "0")
    if "--fixed" in arguments.own:
        return
    libc = ctypes.CDLL(None)
    before = libc.personality(ctypes.c_ulong(QUERY))
    if before >= 0 and not before & ADDR_NO_RANDOMIZE:
        before = libc.personality(ctypes.c_ulong(before | ADDR_NO_RANDOMIZE))
    if before < 0:
        note("is not used: this system does not let a process fix its addresses (personality(2))")
        del arguments.own["--pch"]
        return
    # Only a program that is loaded anew gets fixed addresses. The option tells that this was done.
    arguments.again_with("--fixed", "")


def with_header(arguments: Arguments, library: Library, source: bytes) -> Program | None:
    """Compile with a precompiled header, which is made if there is none; None: do it without."""
    path = arguments.own["--pch"]
    lines = source.split(b"\n")
    number = int(arguments.own["--head"])
    # What is included is the text that was there, line by line, so the program is the same.
    head = b"\n".join([b'#line 1 "device.cu"', *lines[:number], b""])
    # Not #line: no precompiled header is made of what follows it. The blank lines keep the numbers.
    rest = b"\n".join([b'#include "%s"' % HEAD.encode(), b"#pragma nv_hdrstop", *[b""] * (number - 2), *lines[number:]])
    program = Program(library, rest, arguments.source, head)
    heap = heap_of(path)
    if heap is None:
        return make_header(arguments, library, program)
    if int(arguments.own["--heap"]) != heap:
        arguments.again_with("--heap", str(heap))
    return use_header(arguments, program)


def use_header(arguments: Arguments, program: Program) -> Program | None:
    """Compile with a precompiled header that is there."""
    path = arguments.own["--pch"]
    status = program.compile([*arguments.options, f"--use-pch={path}"])
    if "using precompiled header" in program.log:
        note("is used")
    else:
        note("is not used: NVRTC refuses it; it is made again the next time")
        discard(path)
    return finished(program, status)


def make_header(arguments: Arguments, library: Library, program: Program) -> Program | None:
    """Compile, and leave a precompiled header."""
    path, heap = arguments.own["--pch"], int(arguments.own["--heap"])
    folder, _, name = path.rpartition("/")
    # The build removes files of this name when their process is gone; see files.SCRATCH.
    scratch = f"{folder}/.scratch-{os.getpid()}-{name}"
    try:
        status = program.compile([*arguments.options, f"--create-pch={scratch}"])
        creation = program.pch_status
        if creation == HEAP_EXHAUSTED and heap < program.needed_heap <= LARGEST_HEAP:
            arguments.again_with("--heap", str(program.needed_heap))
        if creation == 0:
            keep(scratch, path, heap)
        else:
            note(f"is not made: {library.text_of(creation)}")
    finally:
        discard(scratch)
    return finished(program, status)


def finished(program: Program, status: int) -> Program | None:
    """A program that was compiled. None: it was not, perhaps only because of the precompiled header; and if it is the
    source, its errors are to be those of the source as it is."""
    if status:
        return None
    print(program.log)
    return program


def keep(scratch: str, path: str, heap: int) -> None:
    """Put a precompiled header where other processes find it, with a checksum."""
    try:
        checksum, _ = checked(scratch)
        size = heap.to_bytes(8, "little")
        with open(scratch, "ab") as file:  # noqa: PTH123
            file.write(MAGIC + size + continued(checksum, size))
        os.replace(scratch, path)  # noqa: PTH105
    except OSError as error:
        note(f"is not made: {error}")
    else:
        note("is made")


def heap_of(path: str) -> int | None:
    """The size of the memory that a precompiled header was made with; None: there is none, or it is damaged."""
    try:
        checksum, trailer = checked(path, len(MAGIC) + 12)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        note(f"cannot be read: {error}")
        return None
    size = trailer[len(MAGIC) : -4]
    if trailer[: len(MAGIC)] != MAGIC or trailer[-4:] != continued(checksum, size):
        note("is damaged; it is made again")
        return None
    os.utime(path)
    return int.from_bytes(size, "little")


def checked(path: str, trailer: int = 0) -> tuple[int, bytes]:
    """The CRC-32 of a file without its last bytes, and these."""
    import zlib
    from mmap import ACCESS_READ, mmap

    # A pipe in its place would keep this process waiting, and cannot be mapped.
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW
    with (
        os.fdopen(os.open(path, flags), "rb") as file,
        mmap(file.fileno(), 0, access=ACCESS_READ) as data,
        memoryview(data) as view,
    ):
        end = max(0, len(view) - trailer)
        return zlib.crc32(view[:end]), bytes(view[end:])


def continued(checksum: int, more: bytes) -> bytes:
    """The CRC-32 of some bytes that follow on others, whose CRC-32 is given."""
    import zlib

    return zlib.crc32(more, checksum).to_bytes(4, "little")


def discard(path: str) -> None:
    """Remove a file if it is there and can be removed."""
    try:
        os.unlink(path)  # noqa: PTH108
    except OSError:
        return


def note(text: str) -> None:
    """Print a line about the precompiled header."""
    print(f"{NOTE} {text}")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
