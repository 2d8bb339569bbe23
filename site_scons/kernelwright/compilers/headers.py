"""Which files a CUDA compiler reads besides its source and its own headers: those that flags such as ``-I`` pull in."""

from __future__ import annotations

import itertools
import os
import re
import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

from ..core.dependencies import dependency_name
from ..core.errors import ToolchainError, Where

OPTIONS_FILE = ("-optf", "--options-file")
"""nvcc's flags for a file that holds more flags; ptxas has the same."""

INCLUDING = (
    *("-I", "-include", "-isystem", "--pre-include", "--include-path", "--system-include", *OPTIONS_FILE),
    # Of gcc and clang, behind -Xcompiler; "@" is before a file that holds more flags.
    *("-imacros", "-iquote", "-idirafter", "-iprefix", "-iwithprefix", "-isysroot", "--sysroot", "@"),
)
"""How flags begin that name a file to read, or a folder to look for files in. One too many here does no harm."""

PASSED_ON = re.compile(r"(-X(compiler|ptxas|cudafe|nvlink)|--(compiler|ptxas|nvlink)-options)(=|$)")
"""Flags whose value is a list, with commas, of flags for another program."""

INCLUDED = re.compile(r"""^[ \t]*\#[ \t]*include(?:_next)?[ \t]*(<[^>\n]+>|"[^"\n]+")?""", re.M)
"""An ``#include`` line, with the name and its brackets if it has one."""

SOUGHT = re.compile(
    r"""(?:^[ \t]*\#[ \t]*include(?:_next)?|__has_include(?:_next)?[ \t]*\()[ \t]*(<[^>\n]+>|"[^"\n]+")""", re.M
)
"""What makes a compiler look for a file, with the name and its brackets."""

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
    found: list[Path] = []
    todo = list(_named(flags))
    while todo:
        path = _absolute(todo.pop(0), folder)
        if path not in found and path.is_file():  # one that is missing is an error of nvcc
            found.append(path)
            todo += _named(_flags_in(path))
    return found


def included_files(source: Path, flags: Sequence[str], folder: Path) -> list[Path]:
    """The files that a source may include by the folders and files that flags name; absolute paths, sorted.

    For a compiler that does not tell what it read. Conditions are not looked at, so there may be some too many. What
    cannot be told from the text (``#include MACRO``) may be any file of these folders.

    Arguments:
        source: the source.
        flags: flags with ``-I`` and ``-include``.
        folder: the folder that the compiler runs in, which names are relative to.
    """
    folders = [_absolute(name, folder) for name in _values(flags, ("-I", "--include-path"))]
    given = _values(flags, ("-include", "--pre-include"))
    todo = [source, *(path for name in given for path in _found(name, [folder, *folders]))]
    found: set[Path] = set()
    while todo:
        path = todo.pop()
        if path not in found:
            found.add(path)
            todo += _included(path, folders)
    return sorted(found - {source})


def _included(path: Path, folders: Sequence[Path]) -> Iterator[Path]:
    text = path.read_text(encoding="utf-8", errors="surrogateescape").replace("\\\n", "")
    for match in INCLUDED.finditer(text):
        if match[1] is None:
            yield from (file for top in folders for file in sorted(top.rglob("*")) if file.is_file())
        else:
            yield from _found(match[1][1:-1], [path.parent, *folders] if match[1][0] == '"' else folders)


def _found(name: str, folders: Sequence[Path]) -> Iterator[Path]:
    """The files of a name in some folders: the compiler takes the first, unless somebody asks for the next."""
    yield from (path for top in folders if (path := _absolute(name, top)).is_file())


def sought_in_vain(
    files: Iterable[Path], flags: Sequence[str], folder: Path, top: Path, packages: Mapping[str, str]
) -> list[str]:
    """What a compiler looks for in the project, or in folders of packages, before it finds a header elsewhere, or
    nowhere: if one of these is made, it reads another file.

    Arguments:
        files: the files that it read; absolute paths.
        flags: flags with ``-I``.
        folder: the folder that the compiler runs in, which names are relative to.
        top: the project's folder.
        packages: the folders in installed packages among the flags, and their names.

    Returns:
        Names (see ``core.dependencies``), sorted; with a slash at the end for a folder that is not there.
    """
    folders = [_absolute(name, folder) for name in _values(flags, ("-I", "--include-path"))]
    found: set[str] = set()
    for file in files:
        for match in SOUGHT.finditer(_text_of(file)):
            name, is_quoted = match[1][1:-1], match[1][0] == '"'
            paths = (_absolute(name, place) for place in ([file.parent, *folders] if is_quoted else folders))
            vain = itertools.takewhile(lambda path: not path.is_file(), paths)
            for path in vain:
                base = next((base for base in (*map(Path, packages), top) if path.is_relative_to(base)), None)
                if base is not None:
                    found.add(_lacking(path, base, top, packages))
    return sorted(found)


def _lacking(path: Path, base: Path, top: Path, packages: Mapping[str, str]) -> str:
    """The name of the outermost folder of a file that is not there, or of the file.

    Arguments:
        base: a folder that it is below, and that is there.
    """
    for parent in reversed(path.relative_to(base).parents[:-1]):
        if not (base / parent).is_dir():
            return f"{dependency_name(base / parent, top, packages)}/"
    return dependency_name(path, top, packages)


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="surrogateescape").replace("\\\n", "")
    except OSError:
        return ""


def _values(flags: Sequence[str], names: tuple[str, ...]) -> Iterator[str]:
    """The values of flags, in the same word or in the next one."""
    words = iter(flags)
    for word in words:
        name, is_given, value = word.partition("=")
        if word in names:
            yield next(words, "")
        elif is_given and name in names:
            yield value
        elif word.startswith("-I") and "-I" in names:
            yield word[2:]


def headers_in(
    listing: Path, folder: Path, nvcc: str, host_compiler: str, where: Where, packages: Collection[str] = ()
) -> list[Path]:
    """The files in a dependency list of nvcc that are neither CUDA's nor the system's; absolute paths.

    Behind a wrapper script, CUDA's headers may count too: that costs some time and does no harm.

    Arguments:
        listing: the file that ``-MF`` named.
        folder: the folder that nvcc ran in.
        nvcc, host_compiler: paths of the compilers, whose own headers do not count.
        where: the place for an error.
        packages: folders whose files count wherever they are: a system has Python packages among its own files.

    Raises:
        ToolchainError: there is no list, or a name in it is not one of a file.
    """
    try:
        text = listing.read_text(encoding="utf-8", errors="surrogateescape")
    except FileNotFoundError as error:
        raise ToolchainError("nvcc left no list of the headers that it read", where) from error
    paths = [_absolute(name, folder) for name in parse_dependencies(text)]
    foreign = (*SYSTEM, *_below(host_compiler, COMPILERS), *_cuda_folders(paths, nvcc))
    tops, own = (tuple(f"{top}/" for top in folders) for folders in (foreign, packages))
    counting = (path for path in dict.fromkeys(paths) if str(path).startswith(own) or not str(path).startswith(tops))
    return [_existing(path, where) for path in counting]


def parse_dependencies(text: str) -> list[str]:
    r"""The names in a list for Make, as ``-MD`` writes it: ``target : name name \``, continued on the next line.

    A blank in a name, and sometimes ``#``, has a backslash before it. Whether ``$`` is doubled, as Make wants it,
    cannot be told: nvcc 13.0 does not do it. So it is left as it is.
    """
    _, _, listed = text.replace("\\\n", " ").partition(": ")
    rule = listed.partition("\n")[0]
    return [re.sub(r"\\([ \t#])", r"\1", name) for name in re.findall(r"(?:\\[ \t]|[^ \t])+", rule)]


def _words(flags: Sequence[str]) -> Iterator[str]:
    """The flags, with the lists for other programs taken apart."""
    is_list = False
    for flag in flags:
        opening = None if is_list else PASSED_ON.match(flag)
        value = flag[opening.end() :] if opening else flag
        yield from value.split(",") if is_list or opening else [flag]
        is_list = opening is not None and opening[4] == ""


def _named(flags: Sequence[str]) -> Iterator[str]:
    """The names of files with more flags."""
    is_name = False
    for word in _words(flags):
        name, _, value = word.partition("=")
        if is_name:
            yield from word.split(",")
        elif value and name in OPTIONS_FILE:
            yield from value.split(",")
        elif word.startswith("@"):
            yield word[1:]
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
