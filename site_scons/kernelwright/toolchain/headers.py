"""Finds the files that a CUDA compiler reads because of flags such as ``-I``, besides its source and own headers."""

from __future__ import annotations

import itertools
import os
import re
import shlex
import stat
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..core.dependencies import dependency_name
from ..core.errors import ToolchainError, Where

OPTIONS_FILE = ("-optf", "--options-file")
"""nvcc's flags for a file that holds more flags; ptxas has the same."""

GIVEN = ("-include", "--pre-include", "-imacros", "--include", "--imacros")
"""Flags that name a file which is read before the source, as if its first lines included it."""

QUOTED = ("-iquote",)
"""Flags that name a folder for ``#include "..."`` alone; it comes before all other ones."""

FOLDERS = (
    ("-I", "--include-path", "--include-directory", "-iwithprefixbefore"),
    ("-isystem", "--system-include"),
    ("-idirafter", "--include-directory-after", "-iwithprefix"),
)
"""Flags that name a folder for all headers: in the order in which g++, and so nvcc, goes through them. NVRTC has only
``-I``. Between the last two are the folders of the compiler itself."""

WITH_PREFIX = ("-iwithprefixbefore", "-iwithprefix")
"""Those whose folder is behind what ``-iprefix`` names."""

NAMING = sorted([*GIVEN, *QUOTED, *itertools.chain(*FOLDERS), "-iprefix"], key=len, reverse=True)
"""All of these, the longest first: one can be the begin of another one."""

INCLUDING = (*NAMING, *OPTIONS_FILE, "-isysroot", "--sysroot", "@")
"""The beginnings of flags that name a file to read, or a folder to search. A surplus entry does no harm."""

PASSED_ON = re.compile(r"(-X(compiler|ptxas|cudafe|nvlink)|--(compiler|ptxas|nvlink)-options)(=|$)")
"""Flags whose value is a list, with commas, of flags for another program."""

INCLUDED = re.compile(r"""^[ \t]*\#[ \t]*(?:include(?:_next)?|import)[ \t]*(<[^>\n]+>|"[^"\n]+")?""", re.M)
"""An ``#include`` line, with the name and its brackets if it has one."""

SOUGHT = re.compile(
    r"""(?:^[ \t]*\#[ \t]*(?:include(?:_next)?|import)|__has_include(?:_next)?[ \t]*\()[ \t]*(<[^>\n]+>|"[^"\n]+")""",
    re.M,
)
"""Text that makes a compiler look for a file, with the name and its brackets."""

SYSTEM = ("/usr/include", "/usr/lib", "/usr/lib64", "/usr/lib32")
"""Folders of the system's headers, and of a compiler's that belongs to the system."""

COMPILERS = ("lib/gcc", "lib64/gcc", "lib/clang", "lib64/clang", "include/c++")
"""Folders of a compiler's own headers, below the folder that it is installed in."""


def can_include(flags: Sequence[str]) -> bool:
    """Whether flags of nvcc can make it read files that are neither its source nor CUDA's nor the system's."""
    return any(word.startswith(INCLUDING) for word in _words(flags))


def options_files(flags: Sequence[str], folder: Path) -> list[Path]:
    """The files with more flags that flags of nvcc name, and those that such files name in turn; absolute paths.

    Arguments:
        flags: the flags.
        folder: the folder that nvcc runs in, which names are relative to.
    """
    paths: list[Path] = []
    todo = [name for _, files in _with_files(flags) for name in files]
    while todo:
        path = _absolute(todo.pop(0), folder)
        if path not in paths and path.is_file():  # one that is missing is an error of nvcc
            paths.append(path)
            todo += [name for _, files in _with_files(_flags_in(path)) for name in files]
    return paths


@dataclass(frozen=True)
class Search:
    """The folders in which a compiler looks for headers because of its flags.

    Arguments:
        working: the folder that it runs in.
        given: the names of files that it reads before the source.
        quoted: folders for names in quotes, behind that of the file that has the name.
        folders: folders for all names, in their order.
    """

    working: Path
    given: tuple[str, ...]
    quoted: tuple[Path, ...]
    folders: tuple[Path, ...]

    @classmethod
    def of(cls, flags: Sequence[str], working: Path) -> Search:
        """What flags say, and the files with flags that they name."""
        named = list(_named_values(flags, working))

        def folders(names: Collection[str]) -> tuple[Path, ...]:
            return tuple(_absolute(value, working) for name, value in named if name in names)

        given = tuple(value for name, value in named if name in GIVEN)
        return cls(working, given, folders(QUOTED), tuple(itertools.chain(*map(folders, FOLDERS))))

    def named(self, packages: Iterable[str]) -> list[str]:
        """The folders in :func:`headers_in` whose files count: those in packages, and those that flags name."""
        return [*packages, *map(str, (*self.quoted, *self.folders))]

    def places(self, first: Path | None) -> list[Path]:
        """The folders in which a name is looked for; ``first`` is that of the file, if the name is in quotes."""
        return [*([] if first is None else [first, *self.quoted]), *self.folders]


def included_files(source: Path, flags: Sequence[str], folder: Path) -> list[Path]:
    """The files that a source may include by the folders and files that flags name; absolute paths, sorted.

    This is for a compiler that does not list the files that it reads. It ignores conditions, so the result may have
    more files than the compiler reads. ``#include MACRO`` may mean any file of these folders.

    Arguments:
        source: the source.
        flags: flags with ``-I`` and ``-include``.
        folder: the folder that the compiler runs in, which names are relative to.
    """
    search = Search.of(flags, folder)
    todo = [source, *(path for name in search.given for path in _found(name, search.places(folder)))]
    paths: set[Path] = set()
    while todo:
        path = todo.pop()
        if path not in paths:
            paths.add(path)
            todo += _included(path, search)
    return sorted(paths - {source})


def _included(path: Path, search: Search) -> Iterator[Path]:
    text = path.read_text(encoding="utf-8", errors="surrogateescape").replace("\\\n", "")
    for match in INCLUDED.finditer(text):
        if match[1] is None:
            yield from (file for top in search.folders for file in sorted(top.rglob("*")) if file.is_file())
        else:
            yield from _found(match[1][1:-1], search.places(path.parent if match[1][0] == '"' else None))


def _found(name: str, folders: Sequence[Path]) -> Iterator[Path]:
    """The files of a name in some folders: the compiler takes the first, unless somebody asks for the next."""
    yield from (path for top in folders if (path := _absolute(name, top)).is_file())


def sought_in_vain(
    files: Collection[Path],
    flags: Sequence[str],
    folder: Path,
    top: Path,
    packages: Mapping[str, str],
    begun: int | None = None,
) -> list[str]:
    """The paths where a compiler looks for a header before it finds it. It would read a new file there instead.

    The result may have more paths than the compiler looks at.

    Arguments:
        files: the files that it read; absolute paths.
        flags: flags with ``-I`` and the like.
        folder: the folder that the compiler runs in, which names are relative to.
        top: the project's folder.
        packages: the folders in installed packages among the flags, and their names.
        begun: when it began, in nanoseconds: what was made since, and was not read, was perhaps looked for before.

    Returns:
        Names (see ``core.dependencies``), sorted; with a slash at the end for a folder that is not there.
    """
    lacking, search = set[str](), Search.of(flags, folder)
    for name, first in dict.fromkeys(_sought(files, search)):
        places = search.places(first)
        paths = [_absolute(name, place) for place in places]
        there = [number for number, path in enumerate(paths) if path in files or _was_there(path, begun)]
        # A folder that is named twice may count where it is named last.
        last = max((number for number in there if paths[number] in files), default=min(there, default=len(paths)))
        for number, (path, place) in enumerate(zip(paths[:last], places, strict=False)):
            if number not in there:
                base = next((base for base in (*map(Path, packages), top) if path.is_relative_to(base)), place)
                lacking.add(_lacking(path, base, top, packages))
    return sorted(lacking)


def _sought(files: Collection[Path], search: Search) -> Iterator[tuple[str, Path | None]]:
    """The names that a compiler looks for; and of one in quotes, the folder where it looks first."""
    yield from ((name, search.working) for name in search.given)
    for file in files:
        text = _text_of(file)
        for match in SOUGHT.finditer(text):
            yield match[1][1:-1], file.parent if match[1][0] == '"' else None
        if any(match[1] is None for match in INCLUDED.finditer(text)):
            # A macro has the name: it is one of those of the files that were read.
            inside = ((p, place) for p in files for place in search.places(file.parent) if p.is_relative_to(place))
            yield from ((path.relative_to(place).as_posix(), file.parent) for path, place in inside)


def _was_there(path: Path, begun: int | None) -> bool:
    """Whether there is a file, and has been since a moment."""
    try:
        status = path.stat()
    except (OSError, ValueError):
        return False
    return stat.S_ISREG(status.st_mode) and (begun is None or status.st_ctime_ns <= begun)


def _lacking(path: Path, base: Path, top: Path, packages: Mapping[str, str]) -> str:
    """The name of the outermost folder of a file that is not there, or of the file.

    Arguments:
        base: a folder that it is below.
    """
    while not base.is_dir():
        base = base.parent
    if not path.is_relative_to(base):  # its name begins with ".."
        base = Path(path.anchor)
    for parent in reversed(path.relative_to(base).parents[:-1]):
        if not (base / parent).is_dir():
            return f"{dependency_name(base / parent, top, packages)}/"
    return dependency_name(path, top, packages)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").replace("\\\n", "")
    except OSError:
        return ""


def _named_values(flags: Sequence[str], folder: Path) -> Iterator[tuple[str, str]]:
    """The flags that name a header or a folder of headers, and their values: in the same word, or in the next one."""
    words, prefix = iter(list(_expanded(flags, folder))), ""
    for word in words:
        flag = next((name for name in NAMING if word.startswith(name)), None)
        if flag is None:
            continue
        value = next(words, "") if word == flag else word.removeprefix(flag).removeprefix("=")
        if flag == "-iprefix":
            prefix = value
            continue
        # To nvcc it is a list; to NVRTC and to g++ it is one name.
        for each in dict.fromkeys((value, *value.split(","))):
            yield flag, f"{prefix}{each}" if flag in WITH_PREFIX else each


def _expanded(flags: Sequence[str], folder: Path, seen: frozenset[Path] = frozenset()) -> Iterator[str]:
    """The flags, with those of the files that they name in place of these."""
    for word, files in _with_files(flags):
        for path in (_absolute(name, folder) for name in files):
            if path not in seen and path.is_file():  # one that is missing is an error of nvcc
                yield from _expanded(_flags_in(path), folder, seen | {path})
        if not files and word:  # an empty one stands where a list for another program begins
            yield word


def headers_in(
    listing: Path, folder: Path, nvcc: str, host_compiler: str, where: Where, named: Iterable[str] = ()
) -> list[Path]:
    """The files in a dependency list of nvcc that are neither CUDA's nor the system's; absolute paths.

    Behind a wrapper script, CUDA's headers may count too: that costs some time and does no harm.

    Arguments:
        listing: the file that ``-MF`` named.
        folder: the folder that nvcc ran in.
        nvcc, host_compiler: paths of the compilers, whose own headers do not count.
        where: the place for an error.
        named: folders whose files count wherever they are, because a definition or a flag names them: the identity
            of the tools does not stand for ``/usr/include/eigen3``, nor for Python packages of the system.

    Raises:
        ToolchainError: there is no list, or a name in it is not one of a file.
    """
    try:
        text = listing.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError as error:
        raise ToolchainError("nvcc left no list of the headers that it read", where) from error
    paths = [_absolute(name, folder) for name in parse_dependencies(text)]
    foreign = (*SYSTEM, *_below(host_compiler, COMPILERS), *_cuda_folders(paths, nvcc))
    tops, own = (tuple(f"{top}/" for top in folders) for folders in (foreign, named))
    counting = (path for path in dict.fromkeys(paths) if str(path).startswith(own) or not str(path).startswith(tops))
    return [_existing(path, where) for path in counting]


def parse_dependencies(text: str) -> list[str]:
    r"""The names in a list for Make, as ``-MD`` writes it: ``target : name name \``, continued on the next line.

    A blank in a name, and sometimes ``#``, has a backslash before it. Whether ``$`` is doubled, as Make wants it,
    cannot be told: nvcc 13.0 does not do it. So it is left as it is.
    """
    _, _, names = text.replace("\\\n", " ").partition(": ")
    rule = names.partition("\n")[0]
    return [re.sub(r"\\([ \t#])", r"\1", name) for name in re.findall(r"(?:\\[ \t]|[^ \t])+", rule)]


def _words(flags: Sequence[str]) -> Iterator[str]:
    """The flags, with the lists for other programs taken apart."""
    is_list = False
    for flag in flags:
        opening = None if is_list else PASSED_ON.match(flag)
        value = flag[opening.end() :] if opening else flag
        yield from value.split(",") if is_list or opening else [flag]
        is_list = opening is not None and opening[4] == ""


def _with_files(flags: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Each flag, and the names of the files with more flags that it stands for; the flag itself does not count then."""
    is_name = False
    for word in _words(flags):
        name, _, value = word.partition("=")
        if is_name:
            yield word, word.split(",")
        elif value and name in OPTIONS_FILE:
            yield word, value.split(",")
        elif word.startswith("@"):
            yield word, [word[1:]]
        else:
            yield word, []
        is_name = not is_name and word in OPTIONS_FILE


def _flags_in(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8", errors="surrogateescape")
    try:
        return shlex.split(text)
    except ValueError:  # a stray quote
        return text.split()


def _absolute(name: str, folder: Path) -> Path:
    # normpath takes "bin/.." away, which nvcc puts before its own headers, and leaves symbolic links alone.
    return Path(os.path.normpath(folder / name))


def _below(program: str, names: Sequence[str]) -> list[str]:
    """Folders below the one that a program is installed in, with symbolic links followed or not."""
    return [str(path.parent.parent / name) for path in (Path(program), Path(program).resolve()) for name in names]


def _cuda_folders(paths: Sequence[Path], nvcc: str) -> Iterator[str]:
    """CUDA's include folder: that of ``cuda_runtime.h``, which nvcc reads before everything else, if it is nvcc's."""
    tops = tuple(f"{top}/" for top in _below(nvcc, ["."]))
    for path in paths:
        if path.name == "cuda_runtime.h" and (str(path).startswith(tops) or str(path.resolve()).startswith(tops)):
            yield str(path.parent)


def _existing(path: Path, where: Where) -> Path:
    """The path as it is on disk; see :func:`parse_dependencies` about ``$``."""
    for candidate in (path, Path(str(path).replace("$$", "$"))):
        if candidate.is_file():
            return candidate
    # nvcc 13.0 writes a backslash in a name as a slash.
    message = f"nvcc says that it read {str(path)!r}, which is no file"
    raise ToolchainError(message, where, "give the header a name without a backslash, and do not remove it meanwhile")
