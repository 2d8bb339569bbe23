"""``use(package)``: a program that imports Triton runs the code of a package in place of code that Triton compiles."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Iterator, Mapping
from types import ModuleType, SimpleNamespace, TracebackType
from typing import Any

from ...core.errors import KernelwrightError, Where, shown
from ...runtime.heuristic import LAUNCH_OPTIONS
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
        from triton import knobs
        from triton.language import constexpr
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.jit import JITFunction

        self._knobs, self._constexpr = knobs, constexpr
        self._functions = functions
        self._otherwise = otherwise
        self._known: dict[int, tuple[Any, Source, Any]] = {}
        self._warned: set[str] = set()
        self._plain: set[type] = set()  # the types of arguments that are no functions and have none
        self._class = JITFunction
        self._original = original = JITFunction.run
        self._measure = measure = Autotuner._bench
        use = self

        def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
            if warmup or use._is_closed:
                return original(self, *arguments, grid=grid, warmup=warmup, **named)
            kernel, source = use._kernel_of(self)
            if kernel is not None and use._is_same(kernel, source, arguments, named):
                try:
                    return use._launch(self, kernel, arguments, grid, named)
                except ValueError as error:
                    if use._otherwise == "error" or refusal_of(error) != NO_VARIANT:
                        raise
                    use._miss(kernel.name, str(error), "")
            return original(self, *arguments, grid=grid, warmup=warmup, **named)

        def bench(self: Any, *arguments: Any, **named: Any) -> Any:
            try:
                return measure(self, *arguments, **named)
            except ValueError as error:
                if refusal_of(error) != NO_VARIANT:
                    raise
                return [math.inf] * 3  # as if it did not compile: the package has no code for this config

        run.of_use = True  # type: ignore[attr-defined]
        self._run, self._bench, self._tuner = run, bench, Autotuner
        self._is_closed = False
        JITFunction.run, Autotuner._bench = run, bench

    def close(self) -> None:
        """Give launches back to Triton."""
        if self._class.run is self._run:
            self._class.run = self._original
        if self._tuner._bench is self._bench:
            self._tuner._bench = self._measure
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

    def _is_same(self, kernel: Any, source: Source, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> bool:
        """Whether the program has the function as the package was built from it, and the functions that it passes."""
        known = kernel.recorded_for(arguments, named)
        if source.digest != known["source"]:
            return self._has_changed(known["name"])
        for function in self._functions_in((*arguments, *named.values())):
            if source_of(function).digest != known.get("functions", {}).get(name_of(function)):
                return self._has_changed(name_of(function))
        return True

    def _has_changed(self, name: str) -> bool:
        problem = "its text, that of a function that it calls, or a constant that they name has changed"
        self._miss(name, problem, "build the package again")
        return False

    def _functions_in(self, values: Iterable[Any]) -> Iterator[Any]:
        """The functions of Triton among what a call passes, and in tuples and constants there."""
        for value in values:
            kind = type(value)
            if kind in self._plain:
                continue
            if issubclass(kind, self._class):
                yield value
            elif issubclass(kind, (tuple, list)):
                yield from self._functions_in(value)
            elif issubclass(kind, self._constexpr):
                yield from self._functions_in((value.value,))
            else:
                self._plain.add(kind)

    def _launch(
        self, function: Any, kernel: Any, arguments: tuple[Any, ...], grid: Any, named: Mapping[str, Any]
    ) -> None:
        """Launch a call, with the hooks that Triton calls; a ValueError before them if the call was not recorded."""
        runtime = self._knobs.runtime
        if runtime.debug and not function.debug:
            named = {**named, "debug": True}  # Triton would make other code
        enter, leave = runtime.launch_enter_hook, runtime.launch_exit_hook
        is_watched = function.pre_run_hooks or _is_set(enter) or _is_set(leave)
        told = kernel.told(arguments, named) if is_watched else None
        if told is None:
            kernel.launch_decided(arguments, named, grid)
            return
        for hook in function.pre_run_hooks:
            hook(*arguments, **named)
        if callable(grid):
            grid = grid(told[1])
        metadata = _metadata(function, told, grid, {**LAUNCH_OPTIONS, **named})
        if enter is not None:
            enter(metadata)
        kernel.launch_decided(arguments, named, grid)
        if leave is not None:
            leave(metadata)

    def _miss(self, name: str, problem: str, remedy: str) -> None:
        """Raise an error about what the package does not have, or warn once for each function."""
        if self._otherwise == "error":
            remedy = f'{remedy}; or use(package, otherwise="jit"), which has Triton compile it'
            raise KernelwrightError(f"the package has no code for {name}: {problem}", Where(stage="use"), remedy)
        if name not in self._warned:
            self._warned.add(name)
            warnings.warn(f"Triton compiles {name}, for which the package has no code: {problem}", stacklevel=5)


def _is_set(hook: Any) -> bool:
    """Whether a hook of Triton does something: Triton has chains of hooks, and a program can set a function."""
    return hook is not None and bool(getattr(hook, "calls", True))


def _metadata(function: Any, told: tuple[str, Mapping[str, Any]], grid: Any, named: Mapping[str, Any]) -> Any:
    """What Triton's hooks get about a launch. What the function itself tells is computed if a hook asks for it.

    Arguments:
        told: the name of the code on the GPU, and the parameters.
        named: the options of the launch, among others.
    """
    from triton.compiler import LazyDict
    from triton.runtime.driver import driver

    name, values = told
    stream = driver.active.get_current_stream(driver.active.get_current_device())
    # The library has loaded the code, and does not give its handle away.
    metadata = LazyDict({"name": name, "function": 0, "stream": stream})
    if function.launch_metadata is not None:
        options = {option: named[option] for option in LAUNCH_OPTIONS}
        metadata.add(function.launch_metadata, (grid, SimpleNamespace(name=name, **options), values))
    return metadata


def use(package: ModuleType, otherwise: str = "error") -> Use:
    """Have a package's code run where this process calls functions of Triton: ``kernelwright.triton.use(my_kernels)``.

    The program is not changed. Its decorators work as before: heuristics compute their parameters, and a tuned function
    tries those of its configs that have code in the package.

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
    if not all(hasattr(kernel, "told") for kernel in functions.values()):
        message = f"the package {package.__name__} is of another release of Kernelwright"
        raise KernelwrightError(message, Where(stage="use"), "build it with this one, or call its functions themselves")
    return Use(functions, otherwise)
