"""What passes between a build and a machine of a cluster: an action, and its result.

Both are messages of ``processes/messages.py``, like those of all processes that work for a build. The fields are those
of the Remote Execution API of Bazel, by other names: ``command`` is ``Command.arguments``, ``outputs`` is
``Command.output_paths``, ``inputs`` is ``Action.input_root_digest`` with what it leads to, ``timeout_s`` is
``Action.timeout``, ``tool`` is ``Command.platform``, ``kind`` and ``subject`` are ``RequestMetadata.action_mnemonic``
and ``target_id``. In the result ``run.status`` is ``ActionResult.exit_code``, ``run.output`` is ``stdout_raw`` (both
streams), ``files`` is ``output_files``, and the times are ``execution_metadata``.

Commands and outputs of tools have stand-ins such as ``@NVCC@`` in place of paths that differ from machine to machine.
Nothing here trusts what it reads: whatever does not fit raises a ValueError.
"""

from __future__ import annotations

import hashlib
import re
import sys
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from ..core.converter import that
from ..core.errors import Where
from ..core.version import VERSION
from ..processes.protocol import Definition, Seconds, ToolRun

LARGEST_FILE = 1 << 28
"""Bytes that a file may have: a few compressed bytes could stand for any number of them."""

FOLDER, SCRATCH = "folder", "scratch"
"""Where a run's files are: its working folder, and its folder for temporary files."""

_NAME = re.compile(rf"(?:{FOLDER}|{SCRATCH})(?:/[^/\0]+)+")
_STAND_IN = re.compile(r"@([A-Z_]*)@")
_AT = "AT"
"""Stands for ``@`` itself."""


def _is_name(text: str) -> bool:
    return bool(_NAME.fullmatch(text)) and not {".", ".."} & set(text.split("/"))


Name = Annotated[str, that("the name of a file of a run", _is_name)]
"""A path such as ``folder/device.cu``, which cannot lead out of the two folders."""

Short = Annotated[str, that("a short text", lambda text: len(text) <= 100)]


def versions() -> dict[str, str]:
    """What both sides must have in common besides a tool."""
    return {"kernelwright": VERSION, "python": ".".join(map(str, sys.version_info[:2]))}


def resource(tool: str) -> str:
    """The name of what a worker must offer to do a run: the tool with this identity, and our versions."""
    return "-".join(("toolchain", tool, *versions().values()))


@dataclass(frozen=True)
class Offer:
    """What a machine offers. An empty offer means that ``kernelwright worker`` did not start its worker.

    Arguments:
        versions: ``kernelwright`` and ``python`` -> version.
        tools: identity of a tool -> its name and version.
    """

    versions: Mapping[str, Short] = field(default_factory=dict)
    tools: Mapping[str, Short] = field(default_factory=dict)

    def has(self, tool: str, versions: Mapping[str, str]) -> bool:
        """Whether it has the tool with this identity, and these versions."""
        return tool in self.tools and self.versions == versions


@dataclass(frozen=True)
class Packed:
    """The content of a file, compressed, and its SHA-256."""

    sha256: str
    packed: bytes

    @classmethod
    def of(cls, content: bytes) -> Packed:
        """The packed form of a content."""
        return cls(hashlib.sha256(content).hexdigest(), zlib.compress(content, 1))

    @property
    def content(self) -> bytes:
        """The content; raises ValueError if it is damaged, or too large."""
        try:
            unpacker = zlib.decompressobj()
            content = unpacker.decompress(self.packed, LARGEST_FILE)
        except zlib.error as error:
            raise ValueError(f"a file cannot be decompressed: {error}") from error
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("a file is cut off, or too large")
        if hashlib.sha256(content).hexdigest() != self.sha256:
            raise ValueError("a file has another digest than its content")
        return content


@dataclass(frozen=True)
class ActionResult:
    """What came of an action.

    Arguments:
        run: how the run ended; its output has stand-ins.
        files: the outputs, in the order of ``Action.outputs``; None for one that was not made.
    """

    run: ToolRun
    files: tuple[Packed | None, ...]


@dataclass(frozen=True)
class Action:
    """A run of a tool, as a request to another machine.

    Arguments:
        command: with stand-ins.
        inputs: names and contents of the files that it reads.
        outputs: names of the files that it makes.
        timeout_s: seconds that it may take.
        tool: identity of the tool.
        kind, subject: what is made; the memory that a run will need is estimated from these.
    """

    op: ClassVar[str] = "action"
    result: ClassVar[type[ActionResult]] = ActionResult
    where: ClassVar[Where] = Where()
    definition: ClassVar[Definition] = None
    if_late: ClassVar[str] = ""
    command: tuple[str, ...]
    inputs: tuple[tuple[Name, Packed], ...]
    outputs: tuple[Name, ...]
    timeout_s: Seconds
    tool: str
    kind: str
    subject: str


class StandIns:
    """Replaces paths of this machine by stand-ins, and stand-ins by paths.

    Arguments:
        places: name of a stand-in -> path.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._places = dict(places)
        # The longest first, because a tool may be in the folder of another one.
        ordered = sorted(places.items(), key=lambda item: -len(item[1]))
        self._names = {path: name for name, path in reversed(ordered)}
        any_path = "|".join(re.escape(path) for _, path in ordered if path)
        # A path begins and ends where a name does: /usr/bin/cc is neither in /usr/bin/ccache nor in /srv/usr/bin/cc.
        begin, end = r"(?:(?<![\w.+-])|(?<=-[IL]))", r"(?![\w+-]|\.[\w+-])"
        self._paths = re.compile(rf"@|{begin}(?:{any_path}){end}" if any_path else "@")

    def put(self, text: str) -> str:
        """A text with stand-ins."""
        return self._paths.sub(lambda match: f"@{self._names.get(match[0], _AT)}@", text)

    def undo(self, text: str) -> str:
        """A text with the paths of this machine; raises ValueError for a stand-in without a path."""
        return _STAND_IN.sub(self._place, text)

    def _place(self, match: re.Match[str]) -> str:
        name = match[1]
        if name != _AT and name not in self._places:
            raise ValueError(f"there is no {match[0]} on this machine")
        return "@" if name == _AT else self._places[name]
