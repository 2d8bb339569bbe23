"""Notes the calls that no built variant fits, and has them compiled on demand if the user says so.

Nothing here runs for a call that succeeds. Only the standard library is imported here.
"""

from __future__ import annotations

import json
import math
import operator
import os
import threading
from importlib import import_module
from pathlib import Path

from .passed import optional_in, passed_in
from .refusal import NO_VARIANT, because, refusal_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

MOST = 1000
"""How many different calls are kept; more are not noted."""

DEVICES = {1: "cpu", 2: "cuda", 3: "cuda", 13: "cuda"}
"""DLPack's device type -> kind of device; pinned and managed memory are CUDA's."""


class Misses:
    """The calls of a package's kernels that no built variant fits: thread-safe, and usable after a fork."""

    def __init__(self) -> None:
        self._calls: dict[str, dict[str, Any]] = {}
        self._lock = threading.Lock()
        self._definitions: tuple[str, ...] = ()
        self._compiled: dict[str, Any] = {}
        os.register_at_fork(after_in_child=self._renew_lock)

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()

    def calls(self) -> list[dict[str, Any]]:
        """Each different call that was noted, in the order of the first: kernel, arguments, how often it was made."""
        with self._lock:
            return json.loads(json.dumps(list(self._calls.values())))  # type: ignore[no-any-return]

    def set_fallback(self, mode: str | None, definitions: Sequence[str | os.PathLike[str]]) -> None:
        """Set what is done about later calls; see :meth:`Loader.set_fallback`."""
        if mode not in (None, "compile"):
            raise ValueError(f"set_fallback: expected 'compile' or None, got {mode!r}")
        if (mode is None) != (not definitions):
            wanted = "no definition files with None" if mode is None else "at least one definition file"
            remedy = "set_fallback('compile', 'kernels/softmax.py')"
            raise ValueError(f"set_fallback: expected {wanted}\n  remedy: {remedy}")
        paths = [Path(definition).absolute() for definition in definitions]
        for path in paths:
            if not path.is_file():
                raise FileNotFoundError(f"set_fallback: there is no definition file {path}")
        self._definitions, self._compiled = tuple(map(str, paths)), {}

    def answer(
        self, kernel: str, entry: dict[str, Any], arguments: Sequence[Any], error: Exception, stream: Any = None
    ) -> Any:
        """The result of a failed call, after compiling its variant, if the user allows that and it is possible.

        Raises:
            Exception: the error of the call, otherwise.
        """
        if not self.note(kernel, entry, arguments, error) or not self._definitions:
            raise error
        if stream is not None:
            raise _with_line(error, "a call with a stream is not compiled on demand") from error
        return self._definition(kernel, error)(*arguments)

    def note(self, kernel: str, entry: dict[str, Any], arguments: Sequence[Any], error: Exception) -> bool:
        """Note a failed call if no variant fits it; return whether that is so."""
        refusal = refusal_of(error)
        if not isinstance(error, (TypeError, ValueError)) or refusal is None:
            return False
        optional = optional_in(entry["variants"])
        items = passed_in(entry["variants"][0]["arguments"], optional, len(arguments))
        if items is None:
            return False
        described = [_described(item, value) for item, value in zip(items, arguments, strict=True)]
        compared = entry["variants"][: entry.get("declared")]
        if refusal != NO_VARIANT and any(_fits(variant, described) for variant in compared):
            return False
        key = json.dumps([kernel, described])
        with self._lock:
            if key in self._calls or len(self._calls) < MOST:
                call = self._calls.setdefault(key, {"kernel": kernel, "arguments": described, "count": 0})
                call["count"] += 1
        return True

    def _definition(self, kernel: str, error: Exception) -> Any:
        """The kernel of a definition file, which is compiled when it is called."""
        if kernel not in self._compiled:
            load = import_module("kernelwright").load
            for path in self._definitions:
                found = getattr(load(path), kernel, None)
                if found is not None:
                    self._compiled[kernel] = found
                    break
            else:
                listed = ", ".join(self._definitions)
                raise _with_line(error, f"none of {listed} has this kernel") from error
        return self._compiled[kernel]


def _with_line(error: Exception, why: str) -> Exception:
    """The error, with a line that says why the call is not compiled on demand."""
    return because(type(error)(f"{error}\n  set_fallback: {why}"), refusal_of(error) or NO_VARIANT)


def _described(item: Mapping[str, Any], value: Any) -> dict[str, Any]:
    """An argument as it is noted, in values that JSON can hold."""
    if item["kind"] != "tensor":
        return {"name": item["name"], **_number(value)}
    dtype, shape = getattr(value, "dtype", None), getattr(value, "shape", None)
    if dtype is None or shape is None:
        return {"name": item["name"], "kind": type(value).__name__, "value": None}
    sizes = [int(size) if isinstance(size, int) else str(size) for size in shape]
    described = {"name": item["name"], "dtype": str(dtype).rpartition(".")[2], "shape": sizes}
    device = _device(value)
    return {**described, "device": device} if device else described


def _device(array: Any) -> str | None:
    """The kind of device of an array; None: the array does not say, for example while a program is traced."""
    try:
        return DEVICES.get(int(array.__dlpack_device__()[0]))
    except Exception:  # libraries raise errors of any class
        return None


def _number(value: Any) -> dict[str, Any]:
    """Kind and value of a number; other objects have no value."""
    if isinstance(value, (bool, int, float)):
        kind = "bool" if isinstance(value, bool) else "int" if isinstance(value, int) else "float"
        return {"kind": kind, "value": value}
    if hasattr(value, "__sym_max__"):  # of PyTorch, and not known yet
        return {"kind": "int" if hasattr(value, "__index__") else "float", "value": str(value)}
    if getattr(getattr(value, "dtype", None), "kind", "") == "b" and getattr(value, "shape", None) == ():
        return {"kind": "bool", "value": bool(value)}
    try:
        return {"kind": "int", "value": operator.index(value)}
    except TypeError:
        pass
    try:
        return {"kind": "float", "value": float(value.__float__())}
    except Exception:  # objects raise errors of any class
        return {"kind": type(value).__name__, "value": None}


def _fits(variant: dict[str, Any], described: Sequence[dict[str, Any]]) -> bool:
    """Whether the devices, dtypes, ranks and constant sizes of a call fit a variant."""
    device = next((argument["device"] for argument in described if "device" in argument), None)
    target = "llvm" if device == "cpu" else device
    if target is not None and all(unit["target"] != target for unit in variant["units"]):
        return False
    if target in variant.get("tabled", ()):
        return False
    items, multiples = {item["name"]: item for item in variant["arguments"]}, variant.get("multiples", {})
    return all(_suits(items[argument["name"]], argument, multiples) for argument in described)


def _suits(item: dict[str, Any], argument: dict[str, Any], multiples: dict[str, int]) -> bool:
    if item["kind"] != "tensor":
        return argument.get("kind") != "float" or "float" in item["dtype"]
    given = item.get("given", True)
    if argument.get("kind") == "NoneType":
        return not given
    if "dtype" not in argument:
        return True  # it is no array, and another message says so
    if given is False:
        return False
    sizes, found = item["shape"], argument["shape"]
    leading = len(found) - len(sizes) + 1
    if item.get("folds") and leading >= 0:
        is_known = all(isinstance(size, int) for size in found)
        found = [math.prod(found[:leading]) if is_known else "", *found[leading:]]
    if argument["dtype"] != item["dtype"] or len(found) != len(sizes):
        return False
    return all(_size_suits(*pair, multiples) for pair in zip(sizes, found, strict=True))


def _size_suits(size: int | str, found: int | str, multiples: dict[str, int]) -> bool:
    if isinstance(size, int):
        return size == found
    return not isinstance(found, int) or found % multiples.get(size, 1) == 0  # text is a size that is not known yet
