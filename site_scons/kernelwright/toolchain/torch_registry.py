"""A program that loads a library beside PyTorch, and writes down which operators it registers.

It is run as a file, in a process of its own: what a library does when it is loaded cannot be undone, and PyTorch ends
the process if two sources register the same operator. Nothing of ours is imported here.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

KEYS = ("CPU", "CUDA", "Meta", "CompositeExplicitAutograd", "CompositeImplicitAutograd", "Autograd")
"""What operators are registered for, as far as it is told."""


def main(library: str, output: str, declared: str, *before: str) -> None:
    """Load a library, and write a JSON object.

    Arguments:
        library: its path.
        output: the file that is written.
        declared: a JSON object: name of an operator -> its schema without the name.
        before: paths of libraries that are loaded first.
    """
    import torch

    for path in before:
        ctypes.CDLL(path, mode=ctypes.RTLD_GLOBAL)
    core: Any = torch._C
    known = set(core._dispatch_get_all_op_names())
    held = held_namespaces(core, known)
    ops: Any = torch.ops
    ops.load_library(library)
    added = sorted(set(core._dispatch_get_all_op_names()) - known)
    found = {name: {"schema": schema_of(core, name), "keys": keys_of(core, name)} for name in added}
    asked = {name: parsed(core, name, text) for name, text in json.loads(declared).items()}
    namespaces = sorted(held_namespaces(core, added) - held)
    answer = {"operators": found, "declared": asked, "namespaces": namespaces}
    Path(output).write_text(json.dumps(answer), encoding="utf-8")


def held_namespaces(core: Any, names: Iterable[str]) -> set[str]:
    """The namespaces of some operators that a TORCH_LIBRARY block has. A process may have one block for each."""
    found = set()
    for namespace in {name.partition("::")[0] for name in names}:
        try:
            core._dispatch_library("DEF", namespace, "")
        except RuntimeError:
            found.add(namespace)
    return found


def schema_of(core: Any, name: str) -> str:
    """The schema of an operator without its name; empty: it has none."""
    operator, _, overload = name.partition(".")
    try:
        return without_name(str(core._get_schema(operator, overload)))
    except RuntimeError:  # something is registered for an operator that nobody has defined
        return ""


def keys_of(core: Any, name: str) -> list[str]:
    """What there is a function of an operator for."""
    return [key for key in KEYS if core._dispatch_has_kernel_for_dispatch_key(name, key)]


def parsed(core: Any, name: str, text: str) -> str:
    """A schema as PyTorch writes it; one that is none, as it is."""
    try:
        return without_name(str(core.parse_schema(f"{name}{text}")))
    except RuntimeError:
        return text


def without_name(schema: str) -> str:
    """What follows the name in a schema."""
    return schema[schema.index("(") :]


if __name__ == "__main__":
    main(*sys.argv[1:])
