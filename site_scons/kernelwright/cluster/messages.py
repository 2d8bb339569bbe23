"""What passes between a build and a worker of a cluster: bytes of JSON, in both directions.

A request says what to run, and an answer what came of it. The fields are those of the Remote Execution API of Bazel, by
other names: ``command`` is ``Command.arguments``, ``outputs`` is ``Command.output_paths``, ``inputs`` is
``Action.input_root_digest`` with what it leads to, ``timeout_s`` is ``Action.timeout``, ``tool`` is
``Command.platform``, ``kind`` and ``subject`` are ``RequestMetadata.action_mnemonic`` and ``target_id``. In the answer
``status`` is ``ActionResult.exit_code``, ``output`` is ``stdout_raw`` (both streams), ``files`` is ``output_files``,
and the times are ``execution_metadata``.

Commands and outputs of tools have stand-ins such as ``@NVCC@`` in place of paths that each machine has its own of.
Nothing here trusts what it reads: what does not fit is a ValueError.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
import sys
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..core.converter import from_json, to_json
from ..core.records import Record, decoded
from ..core.version import VERSION
from ..processes.protocol import MOST_SECONDS, ToolRun

REQUEST = "kernelwright action 1"
ANSWER = "kernelwright result 1"
"""Schemas."""

LARGEST_FILE = 1 << 28
"""Bytes that a file may have: a few bytes can stand for any number of them."""


FOLDER, SCRATCH = "folder", "scratch"
"""Where a run's files are: its working folder, and its folder for temporary files."""

_NAME = re.compile(rf"(?:{FOLDER}|{SCRATCH})(?:/[^/\0]+)+")
_STAND_IN = re.compile(r"@([A-Z_]*)@")
_AT = "AT"
"""Stands for ``@`` itself."""


def versions() -> dict[str, str]:
    """What both sides must have in common besides a tool."""
    return {"kernelwright": VERSION, "python": ".".join(map(str, sys.version_info[:2]))}


def resource(tool: str) -> str:
    """What a worker must offer to do a run: the tool with this identity, and our versions."""
    return "-".join(("toolchain", tool, *versions().values()))


@dataclass(frozen=True)
class Request:
    """A run of a tool.

    Arguments:
        command: with stand-ins.
        inputs: name, such as ``folder/device.cu`` -> content.
        outputs: names of the files that it makes.
        timeout_s: seconds that it may take.
        tool: identity of the tool.
        kind, subject: what is made; for the memory that runs are taken to need.
    """

    command: tuple[str, ...]
    inputs: Mapping[str, bytes]
    outputs: tuple[str, ...]
    timeout_s: float
    tool: str
    kind: str
    subject: str

    def encode(self) -> bytes:
        """The request as bytes."""
        return _encoded(
            {
                "schema": REQUEST,
                "command": list(self.command),
                "inputs": _files_to_json(self.inputs),
                "outputs": list(self.outputs),
                "timeout_s": self.timeout_s,
                "tool": self.tool,
                "kind": self.kind,
                "subject": self.subject,
            }
        )

    @classmethod
    def decode(cls, data: bytes) -> Request:
        """The request in some bytes; raises ValueError if they are none."""
        record = _record(data, REQUEST)
        outputs = tuple(map(_checked_name, record.texts("outputs")))
        return cls(
            tuple(record.texts("command")),
            _files_of(record, "inputs"),
            outputs,
            record.number("timeout_s", MOST_SECONDS),
            *(record.text(name) for name in ("tool", "kind", "subject")),
        )


@dataclass(frozen=True)
class Answer:
    """What came of a request.

    Arguments:
        run: how the run ended, as the result of a ``ToolRequest``; its output has stand-ins. None: there was none.
        files: name -> content of each output that was made.
        problem: why there was no run.
    """

    run: ToolRun | None
    files: Mapping[str, bytes]
    problem: str = ""

    def encode(self) -> bytes:
        """The answer as bytes."""
        files = _files_to_json(self.files)
        return _encoded({"schema": ANSWER, "run": to_json(self.run), "files": files, "problem": self.problem})

    @classmethod
    def decode(cls, data: bytes, outputs: Sequence[str]) -> Answer:
        """The answer in some bytes.

        Arguments:
            outputs: the names that files may have.

        Raises:
            ValueError: these are no answer, or one with other files or digests that are wrong.
        """
        record = _record(data, ANSWER)
        files = _files_of(record, "files")
        if unknown := sorted(files.keys() - set(outputs)):
            raise ValueError(f"it has a file {unknown[0]!r}, which the action does not make")
        run = _run_of(record.raw["run"]) if record.has("run") else None
        if run is None and not record.text("problem"):
            raise ValueError("it has neither a run nor a problem")
        return cls(run, files, record.text("problem"))


def _run_of(value: Any) -> ToolRun:
    run = from_json(ToolRun, value)
    run.output.encode()  # raises a ValueError for half of a character, which no file can hold
    return run


class StandIns:
    """Puts stand-ins in the place of paths of this machine, and back.

    Arguments:
        places: name of a stand-in -> path.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        # The longest first, because a tool may be in the folder of another one.
        ordered = sorted(places.items(), key=lambda item: -len(item[1]))
        self._names = {path: name for name, path in reversed(ordered)}
        known = "|".join(re.escape(path) for _, path in ordered if path)
        # A path begins and ends where a name does: /usr/bin/cc is neither in /usr/bin/ccache nor in /srv/usr/bin/cc.
        begin, end = r"(?:(?<![\w.+-])|(?<=-[IL]))", r"(?![\w+-]|\.[\w+-])"
        self._paths = re.compile(rf"@|{begin}(?:{known}){end}" if known else "@")

    def put(self, text: str) -> str:
        """A text with stand-ins."""
        return self._paths.sub(lambda match: f"@{self._names.get(match[0], _AT)}@", text)

    def undo(self, text: str) -> str:
        """A text with the paths of this machine; raises ValueError for a stand-in that it has no path for."""
        return _STAND_IN.sub(self._place, text)

    def _place(self, match: re.Match[str]) -> str:
        name = match[1]
        if name != _AT and name not in self._places:
            raise ValueError(f"there is no {match[0]} on this machine")
        return "@" if name == _AT else self._places[name]


def _files_to_json(files: Mapping[str, bytes]) -> list[dict[str, str]]:
    return [
        {
            "name": name,
            "sha256": hashlib.sha256(content).hexdigest(),
            "content": base64.b64encode(zlib.compress(content, 1)).decode("ascii"),
        }
        for name, content in sorted(files.items())
    ]


def _files_of(record: Record, field: str) -> dict[str, bytes]:
    files: dict[str, bytes] = {}
    for item in record.records(field):
        name = _checked_name(item.text("name"))
        content = _unpacked(item.text("content"))
        if hashlib.sha256(content).hexdigest() != item.text("sha256"):
            raise ValueError(f"{name!r} has another digest than its content")
        if name in files:
            raise ValueError(f"{name!r} is there twice")
        files[name] = content
    return files


def _unpacked(text: str) -> bytes:
    try:
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(base64.b64decode(text, validate=True), LARGEST_FILE)
    except (binascii.Error, zlib.error) as error:
        raise ValueError(f"a file cannot be decompressed: {error}") from error
    if not unpacker.eof or unpacker.unused_data:
        raise ValueError("a file is cut off, or too large")
    return content


def _checked_name(name: str) -> str:
    """The name of a file, if it is one that leads nowhere else; raises ValueError for others."""
    if not _NAME.fullmatch(name) or {".", ".."} & set(name.split("/")):
        raise ValueError(f"a file is called {name!r}")
    return name


def _record(data: bytes, schema: str) -> Record:
    record = Record(decoded(data), "")
    if record.text("schema") != schema:
        raise ValueError(f"it is of the schema {record.text('schema')!r}, expected {schema!r}")
    return record


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=True, separators=(",", ":")).encode("ascii")
