"""Keeps a mode of PyTorch in force where PyTorch itself takes it off: in operators, in hooks, and in other threads."""

from __future__ import annotations

import functools
import threading
import warnings
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

KEYS = (
    *("", "CPU", "CUDA", "BackendSelect", "Autograd", "AutogradCPU", "AutogradCUDA"),
    *("CompositeImplicitAutograd", "CompositeExplicitAutograd"),
)
"""The dispatch keys whose functions run with the tensors of a program."""


def keep_in_force(stack: ExitStack, mode: Any) -> None:
    """Enter a mode also in operators that are registered with ``torch.library``, and in threads that are started.

    PyTorch takes a mode off its stack while one of its functions runs, and each thread has a stack of its own. Written
    for PyTorch 2.13.

    Arguments:
        stack: at its end all is as before; functions that were registered meanwhile no longer enter the mode.
        mode: a ``TorchFunctionMode``.
    """
    _in_threads(stack, mode)
    _in_hooks(stack, _Operators(stack, mode))


def _in_threads(stack: ExitStack, mode: Any) -> None:
    start = threading.Thread.start

    def start_with_mode(thread: threading.Thread) -> None:
        run = thread.run

        def run_with_mode() -> None:
            with mode:
                run()

        thread.run = run_with_mode  # type: ignore[method-assign]
        start(thread)

    replace(stack, threading.Thread, "start", start_with_mode)


def _in_hooks(stack: ExitStack, operators: _Operators) -> None:
    from torch.autograd.graph import saved_tensors_hooks

    begin: Any = saved_tensors_hooks.__init__

    def begin_with_mode(hooks: Any, pack: Any, unpack: Any) -> None:
        begin(hooks, operators.with_mode(pack), operators.with_mode(unpack))

    replace(stack, saved_tensors_hooks, "__init__", begin_with_mode)


class _Operators:
    """Registers what a program registers, with the mode, and what is for CUDA for the CPU, too: there its tensors are.

    Arguments:
        stack, mode: those of :func:`keep_in_force`.
    """

    def __init__(self, stack: ExitStack, mode: Any) -> None:
        from torch._library.custom_ops import OPDEFS
        from torch.library import Library

        self._stack, self._mode, self._is_over = stack, mode, False
        self._library: Any = Library
        self._register: Any = Library.impl
        self._on_cpu: dict[tuple[Any, ...], tuple[Any, dict[str, Any]]] = {}
        stack.callback(self._end)
        operators = self

        def impl(library: Any, name: Any, function: Any, dispatch_key: Any = "", **more: Any) -> None:
            operators._see(library, name, function, dispatch_key, more)

        replace(stack, Library, "impl", impl)
        for known in list(OPDEFS.values()):  # those of modules that were imported before
            functions = known._backend_fns
            stack.callback(functions.update, dict(functions))
            functions.update({device: self.with_mode(function) for device, function in functions.items()})
            if "cuda" in functions:
                self._put_on_cpu(known._lib, known._name, "CPU", functions["cuda"], {})

    def _end(self) -> None:
        self._is_over = True

    def _see(self, library: Any, name: Any, function: Any, dispatch_key: Any, more: dict[str, Any]) -> None:
        """Register a function, as ``Library.impl`` does."""
        from torch.library import fallthrough_kernel

        key = str(dispatch_key or library.dispatch_key).rpartition(".")[2]
        if key in KEYS and callable(function) and function is not fallthrough_kernel:
            function = self.with_mode(function)
        self._register(library, name, function, dispatch_key, **more)
        place = library.ns, str(name), key.replace("CUDA", "CPU")
        if "CUDA" in key:
            self._on_cpu[place] = function, more
        if place in self._on_cpu:  # that for CUDA goes before that for the CPU, whichever comes first
            self._put_on_cpu(library, name, place[2], *self._on_cpu[place])

    def _put_on_cpu(self, library: Any, name: Any, key: str, function: Any, more: dict[str, Any]) -> None:
        """Register a function for the CPU until the end, or until its library ends."""
        from torch._library.utils import RegistrationHandle

        own = self._library(library.ns, "IMPL")
        library._registration_handles.append(RegistrationHandle(own._destroy))
        self._stack.callback(own._destroy)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PyTorch warns if there is one already
            self._register(own, name, function, key, **more)

    def with_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same, with the mode until the end."""

        @functools.wraps(function)
        def call(*arguments: Any, **options: Any) -> Any:
            if self._is_over:
                return function(*arguments, **options)
            with self._mode:
                return function(*arguments, **options)

        return call


def replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Give a module, a class or an object another attribute, until the stack is closed."""
    if name in vars(owner):
        stack.callback(setattr, owner, name, vars(owner)[name])
    else:
        stack.callback(delattr, owner, name)
    setattr(owner, name, value)
