"""Gives objects of others another attribute for a while."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any


def replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Give a module, a class or an object another attribute, until the stack is closed."""
    if name in vars(owner):
        stack.callback(setattr, owner, name, vars(owner)[name])
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, value)
