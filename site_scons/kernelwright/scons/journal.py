"""Makes SCons keep its signatures in the journal.

SCons keeps its signatures in a pickle that it writes at the end of a run. That has three defects here: a run that is
killed forgets what it built, reading the file executes what is in it, and nothing is known about the outputs.
So :class:`FolderSignatures` takes the place of ``SCons.SConsign``'s storage.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable
from typing import Any

import SCons.Node.Alias
import SCons.Node.FS
import SCons.Node.Python
import SCons.SConf
import SCons.SConsign

from ..state.journal import Journal

NODE_INFO = {
    "file": SCons.Node.FS.FileNodeInfo,
    "dir": SCons.Node.FS.DirNodeInfo,
    "value": SCons.Node.Python.ValueNodeInfo,
    "alias": SCons.Node.Alias.AliasNodeInfo,
}
BUILD_INFO = {"file": SCons.Node.FS.FileBuildInfo, "conf": SCons.SConf.SConfBuildInfo}
"""The classes of SCons whose objects a journal may hold, by their names in the journal."""

NODES = ("bsources", "bdepends", "bimplicit")
SIGNATURES = ("bsourcesigs", "bdependsigs", "bimplicitsigs")
PLAIN = ("bact", "bactsig", "result", "string")
"""Attributes of SCons's build information: names of nodes, signatures of nodes, and plain values."""


class FolderSignatures(SCons.SConsign.Base):  # type: ignore[misc]
    """The signatures of one folder, for SCons. It stores each one at once, and not at the end of the run."""

    def __init__(self, journal: Journal, folder: Any) -> None:
        super().__init__()
        self._journal = journal
        self._folder = folder.get_internal_path()
        self.entries = {}
        for name, body in journal.entries(self._folder).items():
            with contextlib.suppress(ValueError, TypeError, KeyError, AttributeError):
                entry = entry_from_json(body)
                entry.convert_from_sconsign(folder, name)
                self.entries[name] = entry

    def set_entry(self, filename: str, obj: Any) -> None:
        """Store an entry that SCons's own configure checks have made."""
        super().set_entry(filename, obj)
        self._journal.store(self._folder, filename, entry_to_json(obj))

    def store_info(self, filename: str, node: Any) -> None:
        """Store the signature of a node that is done."""
        super().store_info(filename, node)
        self.merge()
        entry = entry_to_json(self.entries[filename])
        self._journal.store(self._folder, filename, entry and {**entry, **self._decided(node)})

    def _decided(self, node: Any) -> dict[str, Any]:
        """What decided a node that is the first output of a stage, for ``--why``."""
        path, executor = node.get_abspath(), node.get_executor(create=0)
        stages = [each.stage for each in executor.get_action_list() if hasattr(each, "stage")] if executor else []
        has_run = stages and stages[0].published and stages[0].paths[0] == path
        known = stages[0].decided if has_run else self._journal.known(path).get("decided")
        return {"decided": known} if known else {}


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
