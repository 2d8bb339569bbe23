"""SCons's signatures and the content of every output, in one journal of JSON lines that a killed run leaves usable.

SCons keeps its signatures in a pickle that it writes at the end of a run. That has three defects here: a run that is
killed forgets what it built, reading the file executes what is in it, and nothing is known about the outputs.
So this module takes the place of ``SCons.SConsign``'s storage. A line is written at the moment a node is done, and it
holds both what the node was made from and what its content is: they cannot disagree, whenever a run ends.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import zlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import SCons.Node.Alias
import SCons.Node.FS
import SCons.Node.Python
import SCons.SConf
import SCons.SConsign

from ..core.files import Stamp, file_stamp, lasting_stamp, open_regular, read_record, sha256_of, write_atomically

SCHEMA = "kernelwright signatures 1"
"""First line of the journal; a file that begins differently is not read."""

DIGEST_LENGTH = 16
"""Hexadecimal digits of SHA-256 that a line begins with; they are there to find damage."""

NODE_INFO = {
    "file": SCons.Node.FS.FileNodeInfo,
    "dir": SCons.Node.FS.DirNodeInfo,
    "value": SCons.Node.Python.ValueNodeInfo,
    "alias": SCons.Node.Alias.AliasNodeInfo,
}
BUILD_INFO = {"file": SCons.Node.FS.FileBuildInfo, "conf": SCons.SConf.SConfBuildInfo}
"""The classes of SCons that a journal may hold, by the name that it has for them."""

NODES = ("bsources", "bdepends", "bimplicit")
SIGNATURES = ("bsourcesigs", "bdependsigs", "bimplicitsigs")
PLAIN = ("bact", "bactsig", "result", "string")
"""Attributes of SCons's build information: names of nodes, signatures of nodes, and plain values."""

Output = tuple[Stamp, str]
"""What is known of an output: its stamp and the SHA-256 of its content."""


class Journal:
    """The journal: one line for each file, the last one counting.

    It consists of up to 256 files, so that a run which looks at one kernel of a thousand reads little of it. All that
    is in one folder, and all folders of one kernel, are in the same.

    Arguments:
        path: the journal's folder. A line that is damaged is left out, so that what it was about is made again.
        top: paths in the journal are relative to this folder, which lets a tree move.
        verify: compare the contents of all outputs, whatever their stamps say.

    ``problem`` is the last error of a write, after which the next run makes again what could not be noted.
    """

    def __init__(self, path: Path, top: Path, verify: bool = False) -> None:
        self.writable = False
        self.problem: OSError | None = None
        self._verify = verify
        self._path = path
        self._top = str(top)
        self._shards: dict[str, _Shard] = {}
        self._outputs: dict[str, Output | None] = {}

    def intact(self, path: str) -> bool:
        """Whether an existing output still has the content that was recorded when its signature was."""
        known = self.output(path)
        if known is None:
            return False
        try:
            if file_stamp(path) == known[0] and not self._verify:
                return True
            changed = sha256_of(Path(path)) != known[1]
        except OSError:
            return False
        if not changed:
            self._restamp(path, known[1])
        return not changed

    def output(self, path: str) -> Output | None:
        """Stamp and digest of a recorded output."""
        name = self._name(path)
        if name not in self._outputs:
            self._outputs[name] = _output(self._shard(name).body(name))
        return self._outputs[name]

    def record(self, paths: Iterable[str]) -> None:
        """Note the content of new outputs. It is written together with their signatures, when SCons stores these."""
        for path in paths:
            self._outputs[self._name(path)] = (lasting_stamp(path), sha256_of(Path(path)))

    def forget(self, paths: Iterable[str]) -> None:
        """Note that outputs were not made. What an earlier run made of other inputs must not count for these."""
        for path in paths:
            self._outputs[self._name(path)] = None

    def entries(self, folder: str) -> dict[str, Any]:
        """The signatures of the files in a folder, as SCons's objects, by name."""
        found = {}
        # As names are: those of files in the top folder, which SCons calls ".", begin with no folder.
        shard = self._shard(os.path.normpath(f"{folder}/any"))
        for name in shard.folders.get(folder, ()):
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError, RecursionError):
                found[os.path.basename(name)] = entry_from_json(shard.body(name))  # noqa: PTH119
        return found

    def store(self, folder: str, name: str, entry: Any) -> None:
        """Write the signature of a file, with the content of the output if it is one."""
        key = os.path.normpath(os.path.join(folder, name))  # noqa: PTH118
        body = entry_to_json(entry)
        if body is not None and (output := self.output(os.path.join(self._top, key))):  # noqa: PTH118
            body["output"] = [*output[0], output[1]]
        self._write(key, body)

    def close(self) -> None:
        """End writing; files with many outdated or damaged lines are written anew."""
        for shard in self._shards.values():
            shard.close(self.writable)

    def _restamp(self, path: str, digest: str) -> None:
        """A file was touched: note its new times, so that it is not read at every run."""
        name = self._name(path)
        stamp = lasting_stamp(path)
        self._outputs[name] = (stamp, digest)
        self._write(name, {**self._shard(name).body(name), "output": [*stamp, digest]})

    def _write(self, name: str, body: dict[str, Any] | None) -> None:
        if not self.writable:
            return
        try:
            self._shard(name).write(name, json.dumps(body, sort_keys=True, separators=(",", ":")))
        except OSError as error:
            # What was built is right all the same, and SCons has only an internal error for this. An older line that
            # stays does no harm: its content is not that of the output, which is made again.
            self.problem = error

    def _shard(self, name: str) -> _Shard:
        # build/kernels/<package>/<kernel> has four parts.
        group = "/".join(name.split("/")[:-1][:4])
        key = f"{zlib.crc32(group.encode('utf-8', 'surrogateescape')) % 256:02x}"
        if key not in self._shards:
            self._shards[key] = _Shard(self._path / f"{key}.jsonl")
        return self._shards[key]

    def _name(self, path: str) -> str:
        return path[len(self._top) + 1 :] if path.startswith(self._top + os.sep) else path


class _Shard:
    """One file of the journal."""

    def __init__(self, path: Path) -> None:
        self.folders: dict[str, list[str]] = {}
        self._path = path
        self._lines: dict[str, str] = {}
        self._count = 0
        self._damaged = False
        self._stream: int | None = None
        self._read()

    def body(self, name: str) -> Any:
        """What the journal has for a file, parsed; None if that is nothing."""
        text = self._lines.get(name)
        return None if text is None else _parsed(text)

    def write(self, name: str, text: str) -> None:
        """Append a line, unless it says nothing new."""
        if self._lines.get(name) == text:
            return
        line = _framed(name, text).encode()
        if self._stream is None:
            self._stream = self._opened()
        # One call for one line: what a killed process has written is whole lines and at most one broken one.
        if os.write(self._stream, line) != len(line):
            self._end()  # the next line must not continue this one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        self._index(name, text)

    def close(self, writable: bool) -> None:
        """End writing."""
        self._end()
        if writable and (self._damaged or self._count > 2 * len(self._lines) + 200):
            listed = [_framed(name, text) for name, text in sorted(self._lines.items())]
            write_atomically(self._path, "".join([SCHEMA + "\n", *listed]))
            self._count, self._damaged = len(listed), False

    def _end(self) -> None:
        if self._stream is not None:
            os.close(self._stream)
            self._stream = None

    def _opened(self) -> int:
        if not self._count:
            # Whatever is there, be it a link to somebody's file, is replaced and not written to.
            write_atomically(self._path, f"{SCHEMA}\n")
        stream = open_regular(self._path, os.O_WRONLY | os.O_APPEND | os.O_NOFOLLOW)
        try:
            # A newline first, in case that a killed run has left half a line; empty lines are not damage.
            os.write(stream, b"\n")
        except OSError:
            os.close(stream)
            raise
        return stream

    def _index(self, name: str, text: str) -> None:
        if name not in self._lines:
            self.folders.setdefault(os.path.dirname(name) or ".", []).append(name)  # noqa: PTH120
        self._lines[name] = text
        self._count += 1

    def _read(self) -> None:
        """Index the lines by name. Only their digests are checked now; most of them are never parsed."""
        try:
            lines = read_record(self._path).decode("utf-8", "replace").split("\n")
        except OSError:
            return
        if lines[0] != SCHEMA:
            return
        for line in lines[1:]:
            digest, _, rest = line.partition(" ")
            name, tab, text = rest.partition("\t")
            if tab and digest == _digest(rest) and isinstance(path := _parsed(name), str):
                self._index(path, text)
            elif line:
                self._damaged = True
        if self._damaged:
            self._keep_outputs()

    def _keep_outputs(self) -> None:
        """After damage an older line may stand for a lost one. For an output of ours that is no harm.

        Its line says which inputs give which content, and the content is compared. Other targets are made again.
        """
        self._lines = {name: text for name, text in self._lines.items() if '"output":[' in text}


class FolderSignatures(SCons.SConsign.Base):  # type: ignore[misc]
    """What SCons asks for the signatures of one folder; stores each one at once instead of at the end of the run."""

    def __init__(self, journal: Journal, folder: Any) -> None:
        super().__init__()
        self._journal = journal
        self._folder = folder.get_internal_path()
        self.entries = journal.entries(self._folder)
        for name, entry in self.entries.items():
            entry.convert_from_sconsign(folder, name)

    def set_entry(self, filename: str, obj: Any) -> None:
        """Store an entry that SCons's own configure checks have made."""
        super().set_entry(filename, obj)
        self._journal.store(self._folder, filename, obj)

    def store_info(self, filename: str, node: Any) -> None:
        """Store the signature of a node that is done."""
        super().store_info(filename, node)
        self.merge()
        self._journal.store(self._folder, filename, self.entries[filename])


def use_journal(journal: Callable[[], Journal]) -> None:
    """Make SCons keep its signatures in the journal, for everything that is built in this run."""
    SCons.SConsign.ForDirectory = lambda folder: FolderSignatures(journal(), folder)


def entry_to_json(entry: Any) -> dict[str, Any] | None:
    """A signature of SCons as JSON data; None if it holds something that JSON cannot, so that it is not kept."""
    try:
        kind = _name_of(BUILD_INFO, entry.binfo)
        body: dict[str, Any] = {"kind": kind}
        for name in (*NODES, *SIGNATURES, *PLAIN):
            if (value := getattr(entry.binfo, name, None)) is not None:
                body[name] = _converted(name, value)
        if hasattr(entry, "ninfo"):
            body["node"] = _node_info_to_json(entry.ninfo)
        json.dumps(body)
    except (KeyError, TypeError, ValueError):
        return None
    return body


def entry_from_json(body: Any) -> Any:
    """The signature that :func:`entry_to_json` wrote.

    Raises:
        ValueError, TypeError, KeyError, AttributeError: the data has another form.
    """
    entry = SCons.SConsign.SConsignEntry()
    entry.binfo = BUILD_INFO[body["kind"]]()
    for name in NODES:
        if name in body:
            setattr(entry.binfo, name, [str(node) for node in body[name]])
    for name in SIGNATURES:
        setattr(entry.binfo, name, [_node_info(signature) for signature in body.get(name, ())])
    for name in PLAIN:
        if name in body:
            setattr(entry.binfo, name, body[name])
    entry.ninfo = _node_info(body["node"]) if "node" in body else SCons.Node.FS.FileNodeInfo()
    return entry


def _converted(name: str, value: Any) -> Any:
    if name in NODES:
        return [str(node) for node in value]
    return [_node_info_to_json(info) for info in value] if name in SIGNATURES else value


def _node_info_to_json(info: Any) -> list[Any]:
    state = {name: getattr(info, name) for name in type(info).__slots__ if hasattr(info, name)}
    if not all(isinstance(value, (str, int, float, type(None))) for value in state.values()):
        raise TypeError("a value that is not plain")
    return [_name_of(NODE_INFO, info), state]


def _node_info(value: Any) -> Any:
    kind, state = value
    info = NODE_INFO[kind]()
    for name, item in state.items():
        if name not in type(info).__slots__ or not isinstance(item, (str, int, float, type(None))):
            raise ValueError(f"{name} is no attribute of {kind}")
        setattr(info, name, item)
    return info


def _name_of(kinds: dict[str, type], value: Any) -> str:
    for name, kind in kinds.items():
        if type(value) is kind:
            return name
    raise TypeError(f"SCons's {type(value).__name__} is not known here")


def _output(body: Any) -> Output | None:
    try:
        size, mtime, ctime, inode, digest = body["output"]
        return (int(size), int(mtime), int(ctime), int(inode)), str(digest)
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
        return None


def _parsed(text: str) -> Any:
    """JSON that this module wrote; None for other text, even if its digest fits."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _framed(name: str, text: str) -> str:
    rest = f"{json.dumps(name)}\t{text}"
    return f"{_digest(rest)} {rest}\n"


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]
