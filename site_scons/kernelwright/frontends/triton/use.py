"""``use(package)``: a program that imports Triton runs the code of a package in place of code that Triton compiles."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterator, Mapping, Sequence
from types import ModuleType, TracebackType
from typing import Any

from ...core.errors import KernelwrightError, Where, shown
from ...runtime.refusal import NO_VARIANT, refusal_of
from .source_digest import Source, name_of, source_of

OTHERWISE = ("error", "jit")
"""What can be done about a call that was not recorded."""


class Use:
    """Launches of functions of Triton go to a package, until :meth:`close`, or until the end of the ``with`` block.

    Arguments:
        functions: ``module:name`` -> the kernel of a package.
        otherwise: one of :data:`OTHERWISE`.
    """

    def __init__(self, functions: Mapping[str, Any], otherwise: str) -> None:
        from triton.runtime.jit import JITFunction

        self._functions = functions
        self._otherwise = otherwise
        self._known: dict[int, tuple[Any, Source, Any]] = {}
        self._warned: set[str] = set()
        self._class = JITFunction
        self._original = original = JITFunction.run
        use = self

        def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
            if warmup or use._is_closed:
                return original(self, *arguments, grid=grid, warmup=warmup, **named)
            kernel, source = use._kernel_of(self)
            hooks = [] if kernel is None else self.pre_run_hooks
            for hook in hooks:
                hook(*arguments, **named)
            is_usable = kernel is not None and use._is_same(kernel, source, arguments, named)
            if is_usable and use._ran(kernel, arguments, grid, named):
                return None
            with _without(self, hooks):  # they have run
                return original(self, *arguments, grid=grid, warmup=warmup, **named)

        run.of_use = True  # type: ignore[attr-defined]
        self._run = run
        self._is_closed = False
        JITFunction.run = run

    def close(self) -> None:
        """Give launches back to Triton."""
        if self._class.run is self._run:
            self._class.run = self._original
        self._is_closed = True  # another one may be in front, and ask this one
        self._known = {}

    def __enter__(self) -> Use:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        self.close()

    def _kernel_of(self, function: Any) -> tuple[Any, Source]:
        """The kernel of a function, or None if the package has none; and what the function consists of."""
        known = self._known.get(id(function))
        if known is None or known[0] is not function or not known[1].is_current:
            source = source_of(function)
            known = self._known[id(function)] = function, source, self._looked_up(function)
        return known[2], known[1]

    def _looked_up(self, function: Any) -> Any:
        name = name_of(function)
        kernel = self._functions.get(name)
        if kernel is None and not hasattr(self._original, "of_use"):  # otherwise another package may have it
            remedy = "record a run of the program, and build the package again"
            self._miss(name, "no call of it was recorded", remedy)
        return kernel

    def _is_same(self, kernel: Any, source: Source, arguments: Sequence[Any], named: Mapping[str, Any]) -> bool:
        """Whether the program has the function as the package was built from it, and the functions that it passes."""
        known = kernel.recorded_for(arguments, named)
        texts = {known["name"]: (source.digest, known["source"])}
        for value in (*arguments, *named.values()):
            if hasattr(value, "src") and hasattr(value, "fn"):
                name = name_of(value)
                texts[name] = source_of(value).digest, known.get("functions", {}).get(name)
        changed = [name for name, (mine, theirs) in texts.items() if mine != theirs]
        for name in changed[:1]:
            problem = "its text, that of a function that it calls, or a constant that they name has changed"
            self._miss(name, problem, "build the package again")
        return not changed

    def _ran(self, kernel: Any, arguments: tuple[Any, ...], grid: Any, named: Mapping[str, Any]) -> bool:
        """Whether a package has launched a call."""
        try:
            kernel.launch_decided(arguments, named, grid)
        except ValueError as error:
            if self._otherwise == "error" or refusal_of(error) != NO_VARIANT:
                raise
            self._miss(kernel.name, str(error), "")
            return False
        return True

    def _miss(self, name: str, problem: str, remedy: str) -> None:
        """Raise an error about what the package does not have, or warn once for each function."""
        if self._otherwise == "error":
            remedy = f'{remedy}; or use(package, otherwise="jit"), which has Triton compile it'
            raise KernelwrightError(f"the package has no code for {name}: {problem}", Where(stage="use"), remedy)
        if name not in self._warned:
            self._warned.add(name)
            warnings.warn(f"Triton compiles {name}, for which the package has no code: {problem}", stacklevel=5)


@contextlib.contextmanager
def _without(function: Any, hooks: Sequence[Any]) -> Iterator[None]:
    """Take hooks from a function for a while."""
    if not hooks:
        yield
        return
    function.pre_run_hooks = []
    try:
        yield
    finally:
        function.pre_run_hooks = hooks


def use(package: ModuleType, otherwise: str = "error") -> Use:
    """Have a package's code run where this process calls functions of Triton: ``kernelwright.triton.use(my_kernels)``.

    The program is not changed. Its decorators work as before: heuristics compute their parameters, and a tuned function
    tries its configs, which all have code in the package.

    Arguments:
        package: a kernel package with recorded functions, imported.
        otherwise: what is done about a call that was not recorded, or whose function has another text than the one that
            the package was built from: ``"error"``; or ``"jit"``: Triton compiles it, and a warning says so once.

    Returns:
        An object with the method ``close``, which is also a context manager.

    Raises:
        KernelwrightError: the package has no recorded functions.
        ValueError: ``otherwise`` is something else.
    """
    if otherwise not in OTHERWISE:
        raise ValueError(f"otherwise is {shown(otherwise)}, expected one of {', '.join(OTHERWISE)}")
    if not hasattr(package, "manifest"):
        raise KernelwrightError(f"{shown(package)} is no kernel package", Where(stage="use"), "import one, and pass it")
    kernels = package.manifest()["kernels"]
    recorded = {name: entry["recorded"] for name, entry in kernels.items() if "recorded" in entry}
    if not recorded:
        message = f"the package {package.__name__} has no recorded functions of Triton"
        remedy = 'record the program, and declare kernels = kernelwright.triton.recorded("calls.json")'
        raise KernelwrightError(message, Where(stage="use"), remedy)
    functions = {known["name"]: getattr(package, name) for name, known in recorded.items()}
    if not all(hasattr(kernel, "recorded_for") for kernel in functions.values()):
        message = f"the package {package.__name__} is of another release of Kernelwright"
        raise KernelwrightError(message, Where(stage="use"), "build it with this one, or call its functions themselves")
    return Use(functions, otherwise)
