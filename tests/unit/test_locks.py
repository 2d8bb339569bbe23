"""What a class with a lock changes, it changes with the lock.

This holds for attributes that are used with the lock anywhere, and for those that one method looks at and changes. A
private method has the lock if all that call it have it.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping

from support.project import SITE_SCONS

CHANGES = ["add", "append", "clear", "discard", "extend", "pop", "popleft", "remove", "setdefault", "update", "write"]
LOCK = re.compile(r"\b(?:R?Lock|Condition)\b")
TWICE = "CachePlace._become_private CachePlace.untold_problem Cluster._require Cuda.stream LayeredCache._contents_far"
WITHOUT = {
    "it may be done twice": f"{TWICE} KernelStore.trim Misses._definition Session.with_room Sessions.forget",
    "a child of fork has one thread": "Cuda._note_fork Eager._locked Session.forget_children",
    "one thread calls it": "Progress.expect RemoteCache.close",
    "the number is only shown": "RemoteCache.write_behind",
    "each has one of its own": "KnownHeaders.of RemoteCache._count RemoteCache.ask_ahead Session.compiling",
    "it may interrupt what has the lock": "Pool.release",
}
"""Why methods change something without the lock."""


def own(node: ast.AST) -> str:
    """The attribute of ``self`` that an expression is, or is a part of; or nothing."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            return node.attr
        node = node.value
    return ""


def events(node: ast.AST, locks: set[str], held: bool) -> Iterator[tuple[str, str, bool]]:
    """What is done in a method (look or change), with which attribute, and whether with a lock."""
    if isinstance(node, ast.With):
        held = held or any(own(item.context_expr) in locks for item in node.items)
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in CHANGES:
        yield from (("look", own(node.func.value), held), ("change", own(node.func.value), held))
    elif isinstance(node, ast.AugAssign):
        yield "look", own(node.target), held
    elif isinstance(node, ast.Attribute | ast.Subscript):
        yield "look" if isinstance(node.ctx, ast.Load) else "change", own(node), held
    for child in ast.iter_child_nodes(node):
        yield from events(child, locks, held and not isinstance(node, ast.FunctionDef | ast.Lambda))


def locks_of(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """The attributes that are locks, those of the classes that it inherits from among them."""
    made = [n for n in ast.walk(node) if isinstance(n, ast.Assign | ast.AnnAssign) and LOCK.search(ast.unparse(n))]
    locks = {name for n in made for name in re.findall(r"\w+", ast.unparse(n).partition(" = ")[0].partition(":")[0])}
    bases = (classes[base.id] for base in node.bases if isinstance(base, ast.Name) and base.id in classes)
    return locks.union(*(locks_of(base, classes) for base in bases))


def changes_without(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> Iterable[str]:
    """The methods that change something without the lock of their class."""
    locks = locks_of(node, classes)
    methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
    of = {method.name: [e for child in method.body for e in events(child, locks, False) if e[1]] for method in methods}
    uses = [(method, what, name, held) for method, found in of.items() for what, name, held in found]
    having = {name for _, _, name, _ in uses if name in of and name.startswith("_")}
    while wrong := {n for method, _, n, held in uses if n in having and not held and method not in having}:
        having -= wrong
    guarded = {name for method, _, name, held in uses if held or method in having} - locks
    looks = {(method, name) for method, what, name, _ in uses if what == "look"}
    having.add("__init__")
    for method, what, name, held in uses if locks else ():
        if what == "change" and not held and method not in having and (name in guarded or (method, name) in looks):
            yield f"{node.name}.{method}"


def test_what_a_class_with_a_lock_changes_it_changes_with_the_lock() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (SITE_SCONS / "kernelwright").rglob("*.py")]
    every = [n for text in texts for n in ast.parse(text).body if isinstance(n, ast.ClassDef)]
    classes = {node.name: node for node in every}
    found = {name for node in every for name in changes_without(node, classes)}
    assert sorted(found) == sorted(" ".join(WITHOUT.values()).split())
