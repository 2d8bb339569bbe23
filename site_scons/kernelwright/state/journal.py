"""The journal: what every target was made from, and every output's digest; a killed run leaves it usable.

When a target is done, one line is written with both what the target was made from and what its content is: so these
two cannot disagree, whenever a run ends. Lines are appended to a file of the journal, each with a seal of its own. With
one seal for all, the file would have to be written anew for each target.

Nothing here imports SCons.
"""

from __future__ import annotations

import errno
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..core.converter import from_json, shape
from ..core.files import (
    canonical_json,
    file_stamp,
    lasting_stamp,
    open_regular,
    read_record,
    sha256_of,
    write_atomically,
)
from ..core.records import Output, decoded
from ..core.sealed import sealed, unsealed

FORM = f'"kernelwright journal {shape(Output)}"\n'.encode()
"""First line of a file of the journal; one that begins differently is not read."""

SEPARATOR = ",\t"
"""Between a file's name and the rest of its line. JSON has a tab only between values, so names need no parser."""


class Journal:
    """The journal: one line for each file; if there are several, the last one counts.

    It consists of up to 256 files, so that a run which looks at one kernel of a thousand reads little of it. The lines
    of one folder, and of all folders of one kernel, are in the same file.

    Arguments:
        path: the journal's folder. A damaged line is ignored, so that its file is made again.
        top: paths in the journal are relative to this folder, which lets a tree move.
        verify: compare the contents of all outputs, whatever their stamps say.

    ``problem`` is the last error of a write. The next run makes again what could not be noted.
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
        """Whether an existing output still has the content that was recorded for it."""
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

    def digest(self, path: str) -> str:
        """SHA-256 of a file; that of a recorded output is known already, and any other one is read."""
        known = self.output(path)
        return known[1] if known is not None else sha256_of(Path(path))

    def record(self, paths: Iterable[str]) -> None:
        """Note the content of new outputs. It is written together with what they were made from, by :meth:`store`."""
        for path in paths:
            self._outputs[self._name(path)] = (lasting_stamp(path), sha256_of(Path(path)))

    def forget(self, paths: Iterable[str]) -> None:
        """Note that outputs were not made. Those that an earlier run made from other inputs must not count instead."""
        for path in paths:
            self._outputs[self._name(path)] = None

    def entries(self, folder: str) -> dict[str, Any]:
        """The JSON that is stored for each file in a folder, by the file's name."""
        # Normalized, as names are: SCons calls the top folder ".", but the names of files in it have no folder.
        shard = self._shard(os.path.normpath(f"{folder}/any"))
        bodies = {os.path.basename(name): shard.body(name) for name in shard.folders.get(folder, ())}  # noqa: PTH119
        return {name: body for name, body in bodies.items() if body is not None}

    def store(self, folder: str, name: str, entry: Mapping[str, Any] | None) -> None:
        """Write what a file was made from, with the content of the output if it is one.

        Arguments:
            entry: JSON data; None: nothing is known, so that the file is made again.
        """
        key = os.path.normpath(os.path.join(folder, name))  # noqa: PTH118
        if entry is not None and (output := self.output(os.path.join(self._top, key))):  # noqa: PTH118
            entry = {**entry, "output": output}
        self._write(key, entry)

    def line_of(self, path: str) -> str | None:
        """What an output was made from, as the JSON that :meth:`store` got; None: that is not known.

        It says nothing about this tree, so another tree can :meth:`adopt` the output.
        """
        body = self.known(path)
        return canonical_json({name: body[name] for name in body if name != "output"}) if body else None

    def known(self, path: str) -> dict[str, Any]:
        """What the journal has for a file; empty: nothing."""
        body = self._shard(self._name(path)).body(self._name(path))
        return body if isinstance(body, dict) else {}

    def adopt(self, folder: str, outputs: Mapping[str, tuple[Sequence[int], str, str]]) -> None:
        """Take over outputs that another tree has made, with their lines there.

        Arguments:
            folder: absolute path.
            outputs: path relative to the folder -> stamp, digest, and the line, from :meth:`line_of`.
        """
        texts: dict[str, dict[str, str]] = {}
        place = self._name(folder)
        for path, (stamp, digest, line) in outputs.items():
            name = f"{place}/{path}"
            self._outputs[name] = ((stamp[0], stamp[1], stamp[2], stamp[3]), digest)
            # The line is an object, and all names in it sort before "output": so canonical_json gives the same text.
            output = f'"output":[[{stamp[0]},{stamp[1]},{stamp[2]},{stamp[3]}],"{digest}"]'
            texts.setdefault(path.partition("/")[0], {})[name] = f"{line[:-1]},{output}}}"
        for group in texts.values():  # all folders of one kernel are in one file of the journal
            self._write_into(self._shard(next(iter(group))), group)

    def close(self) -> None:
        """End writing; files with many outdated or damaged lines are written anew."""
        for shard in self._shards.values():
            shard.close(self.writable)

    def _restamp(self, path: str, digest: str) -> None:
        """Note the new times of a file that was touched, so that not every run reads it."""
        name = self._name(path)
        stamp = lasting_stamp(path)
        output = self._outputs[name] = (stamp, digest)
        self._write(name, {**self._shard(name).body(name), "output": output})

    def _write(self, name: str, body: Mapping[str, Any] | None) -> None:
        self._write_into(self._shard(name), {name: canonical_json(body)})

    def _write_into(self, shard: _Shard, texts: Mapping[str, str]) -> None:
        if not self.writable:
            return
        try:
            shard.write(texts)
        except OSError as error:
            # Not raised: the output is right all the same, and SCons would show an internal error. An older line that
            # stays does no harm: its digest is not that of the output, which is made again.
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
        try:
            return decoded(self._lines.get(name, "null"))
        except ValueError:  # in another form, even if its digest fits
            return None

    def write(self, texts: Mapping[str, str]) -> None:
        """Append lines, without those that say nothing new."""
        new = {name: text for name, text in texts.items() if self._lines.get(name) != text}
        if not new:
            return
        lines = b"".join(_line(name, text) for name, text in new.items())
        if self._stream is None:
            self._stream = self._opened()
        # One call for all lines: a process that is killed leaves whole lines and at most one broken one.
        if os.write(self._stream, lines) != len(lines):
            self._end()  # the next line must not continue this one
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self._path))
        for name, text in new.items():
            self._index(name, text)

    def close(self, writable: bool) -> None:
        """End writing."""
        self._end()
        if writable and (self._damaged or self._count > 2 * len(self._lines) + 200):
            lines = [_line(name, text) for name, text in sorted(self._lines.items())]
            write_atomically(self._path, b"".join([FORM, *lines]))
            self._count, self._damaged = len(lines), False

    def _end(self) -> None:
        if self._stream is not None:
            os.close(self._stream)
            self._stream = None

    def _opened(self) -> int:
        if not self._count:
            # Whatever is there, be it a link to somebody's file, is replaced and not written to.
            write_atomically(self._path, FORM)
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
        """Index the lines by name. Only their digests are checked now; most of them are never parsed.

        So these lines have a reader of their own: it takes 9 ms for a thousand of them, and 69 ms if all are parsed and
        ``core/converter.py`` makes a record of each.
        """
        try:
            first, *lines = read_record(self._path).splitlines(keepends=True) or [b""]
        except OSError:
            return
        if first != FORM:
            return
        for line in lines:
            try:
                name, _, text = unsealed(line).partition(SEPARATOR)
                self._index(_name(name), text)
            except ValueError:
                self._damaged = self._damaged or line != b"\n"
        if self._damaged:
            self._keep_outputs()

    def _keep_outputs(self) -> None:
        """After damage, keep only the lines of outputs: an older line may now stand in for a lost one.

        For an output that does no harm: its line says which inputs give which content, and the content is compared.
        Other targets are made again.
        """
        self._lines = {name: text for name, text in self._lines.items() if '"output":[' in text}


def _output(body: Any) -> Output | None:
    try:
        return from_json(Output, body["output"])  # type: ignore[arg-type]
    except (ValueError, TypeError, KeyError):
        return None


def _line(name: str, text: str) -> bytes:
    return sealed(f"{json.dumps(name)}{SEPARATOR}{text}")


def _name(text: str) -> str:
    """A file's name in JSON. Raises ValueError for other JSON, and for none."""
    name = decoded(text)
    if not isinstance(name, str):
        raise ValueError("not the name of a file")
    return name
