"""What a definition in Triton returns: a function, the arguments of the kernel that it becomes, and its launch.

Nothing here imports Triton, so that its absence can be explained.
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from ...core.errors import DefinitionError, Where, shown
from ...core.need import Interpreter, Need, OwnEnvironment, Parts
from ...define.arguments import Scalar, Tensor, Workspace, is_absent, multiples_of
from ...define.declared import (
    Declared,
    check_launch_only,
    declared_in,
    declared_strides,
    refuse_optional,
    told_by,
    told_strides,
)
from ...define.sizes import Size, Sizes, check_axes, check_size, names_in, on_axes, text_of
from ...runtime.heuristic import FLOATS
from ..named_source import check_source
from .descriptor import TensorDescriptor

VERSION = "3.9"
"""The releases of Triton that the front end is written for: hidden parameters and the launch are not documented."""

EXAMPLE = 'Program("softmax.py", "softmax_kernel", x=Tensor(...), ..., grid=...)'
"""How a definition is written that does not import Triton."""

SETTING = "triton_python"

NEED = Need(
    "triton",
    f"triton=={VERSION}.*",
    f"if Triton is in the environment that {SETTING} names, leave the import out and name the source and the "
    f"function: {EXAMPLE}",
)
"""What definitions in Triton import, unless they name a source."""

ENVIRONMENT = OwnEnvironment("Triton", NEED, VERSION, SETTING, Parts(("triton",)), f"{NEED.install}, or ")
"""Where it is installed, if not beside TVM."""

INTERPRETER = Interpreter("Triton", (NEED, Need("torch", "torch"), Need("numpy", "numpy")), {"TRITON_INTERPRET": "1"})
"""Triton's own. It wants tensors of PyTorch, on the CPU."""

DTYPES = {
    **FLOATS,
    "bool": "u1",
    **{f"{sign}int{bits}": f"{sign or 'i'}{bits}" for sign in ("", "u") for bits in (64, 32, 16, 8)},
}
"""A dtype -> its name in signatures of Triton."""

OPTIONAL = {"num_ctas": 1, "maxnreg": None}
"""Options that most configs of ``@triton.autotune`` do not set, and their defaults."""

Passed = Tensor | Scalar | Size | Workspace | TensorDescriptor
"""What a launch passes."""

ANNOTATION = re.compile(r"\b(u?)i(?:nt)?(32|64)\b")
"""An integer as the annotation of a parameter: ``tl.int64``, ``"i64"``."""

PLAIN = (bool, int, float, str, type(None))
"""The types of constants that a process can be told."""

MOST_WARPS = 32
"""Warps in a block, of which CUDA has 1024 threads."""

MOST_CTAS = 8
"""Blocks in a cluster that every device with clusters allows."""


class Program(Declared):
    """A function of Triton with the arguments that it is compiled for, and its launch.

    Arguments:
        function: a function decorated with ``@triton.jit``. It may have ``@triton.autotune``, too, whose configs count
            only where :func:`configs_of` asks for them. Or the path of the Python file that has the function, relative
            to the file of the definition: a process imports it, in the environment of ``triton_python`` if that is set.
        name: that of the function in the file; only with a path.
        grid: how many programs are launched: a size, or up to three for x, y and z.
        num_warps, num_stages, num_ctas, maxnreg, enable_fp_fusion: as Triton has them.
        launch_cooperative_grid: whether all programs run at once.
        launch_pdl: whether the launch may begin before the one before it has ended; the function has to wait for it
            with ``gdc_wait``.
        debug: whether ``tl.device_assert`` ends a kernel, which it does not otherwise.
        launch: integers that callers pass and the function does not get, for the grid: name -> a :class:`Scalar`. They
            are the last arguments of the kernel.
        arguments: for parameters of the function, by name and in their order: a :class:`Tensor` or a :class:`Scalar`,
            which becomes an argument of the kernel; a :class:`TensorDescriptor`, which makes its tensor one; a
            :class:`Size`, which callers do not pass; or a plain value, for which the code is compiled. Parameters with
            a default can be left out, and those that have the names of sizes or strides of the tensors.
    """

    def __init__(
        self,
        function: Callable[..., Any] | str | PathLike[str],
        name: str | None = None,
        /,
        *,
        grid: Sizes | Sequence[Sizes],
        num_warps: int = 4,
        num_stages: int = 3,
        num_ctas: int = 1,
        maxnreg: int | None = None,
        enable_fp_fusion: bool = True,
        launch_cooperative_grid: bool = False,
        launch_pdl: bool = False,
        debug: bool = False,
        launch: Mapping[str, Scalar] | None = None,
        **arguments: Tensor | Scalar | TensorDescriptor | Size | Any,
    ) -> None:
        self.source = function if isinstance(function, (str, PathLike)) else None
        self.function: Any = function if self.source is None else name
        self._name = name
        self.grid = grid
        self.num_ctas = num_ctas
        self.options: dict[str, Any] = {
            "num_warps": num_warps,
            "num_stages": num_stages,
            "num_ctas": num_ctas,
            "maxnreg": maxnreg,
            "enable_fp_fusion": enable_fp_fusion,
            "launch_cooperative_grid": launch_cooperative_grid,
            "launch_pdl": launch_pdl,
            "debug": debug,
        }
        self.launch_only = launch or {}
        arguments = _bound(function, {name: _described(value) for name, value in arguments.items()})
        self._absent: dict[str, Any] = {name: value for name, value in arguments.items() if is_absent(value)}
        self._order = tuple(arguments)
        self.arguments = arguments = {
            name: value.checked_in_calls(name) if isinstance(value, TensorDescriptor) else value
            for name, value in arguments.items()
        }
        # As Triton does it for a call: code for an integer that is 1, or for None, does not read it.
        ones = {"1", *(name for name, stride in told_strides(self.declared).items() if stride == 1)}
        self.arguments = {name: _constant(value, ones) for name, value in arguments.items()}

    @property
    def declared(self) -> dict[str, Tensor | Scalar]:
        """See :attr:`Declared.declared`. Tensors that are None in each call are constants in the code."""
        known = {**super().declared, **self._absent}
        return {**{name: known[name] for name in self._order if name in known}, **self.launch_only}

    @property
    def passed(self) -> dict[str, Passed]:
        """The parameters that a launch passes. All other arguments are constants in the code."""
        return {name: value for name, value in self.arguments.items() if isinstance(value, Passed)}

    @property
    def constants(self) -> dict[str, Any]:
        """The constants in the code."""
        return {name: value for name, value in self.arguments.items() if name not in self.passed}

    def specialized(self, step: int, outputs: Sequence[str]) -> Program:
        """The program for data that is aligned to a number of bytes, and for rows whose length is a multiple of it.

        A row's length is the last size of a shape, if the function gets that size. Then all strides are multiples, too.

        Arguments:
            step: the number.
            outputs: the names of the outputs, whose sizes a call need not tell.
        """
        rows, copied = self.rows(outputs), copy.copy(self)
        copied.arguments = {
            name: value.specialized(step, rows) if isinstance(value, (Tensor, TensorDescriptor)) else value
            for name, value in self.arguments.items()
        }
        return copied

    def strides(self, outputs: Sequence[str]) -> set[str]:
        """The symbols that strides of inputs tell and shapes do not, and that the function gets: numbers, too."""
        listed = declared_strides({name: value for name, value in self.declared.items() if name not in outputs})
        told = told_strides(self.declared)
        used = {
            told.get(size, size)
            for value in self.arguments.values()
            if isinstance(value, Size)
            for size in names_in(value)
        }
        used |= {name for name, value in self.arguments.items() if isinstance(value, Scalar)}
        sizes = {size for value in self.declared.values() if isinstance(value, Tensor) for size in value.shape}
        symbols = {stride for strides in listed.values() for stride in strides if str(stride).isidentifier()}
        return {str(symbol) for symbol in symbols & used - sizes}

    def rows(self, outputs: Sequence[str]) -> set[str]:
        """The sizes that come last in a shape, that the function gets, and that a call has."""
        tensors = {name: value for name, value in self.declared.items() if isinstance(value, Tensor)}
        sizes = {size for name, tensor in tensors.items() if name not in outputs for size in tensor.shape}
        used = {size for value in self.arguments.values() if isinstance(value, Size) for size in names_in(value)}
        last = (tensor.shape[-1] for tensor in tensors.values() if tensor.shape)
        return {size for size in last if isinstance(size, str) and size in sizes & used}

    def with_value(self, name: str, value: Any) -> Program:
        """The same with one more constant, or another option of the launch."""
        if name in self.options:
            return self.with_options({**self.options, name: value})
        copied = copy.copy(self)
        copied.arguments = {**self.arguments, name: value}
        return copied

    def with_options(self, options: Mapping[str, Any]) -> Program:
        """The same with other options."""
        copied = copy.copy(self)
        copied.options = dict(options)
        copied.num_ctas = copied.options["num_ctas"]
        return copied

    @property
    def blocks(self) -> list[tuple[str, Sizes]]:
        """The programs along each axis, by TVM's names of the axes."""
        return list(on_axes("blockIdx", self.grid))

    def launch(self, threads: int) -> Iterator[tuple[str, Sizes]]:
        """The sizes of the launch by TVM's names. A program of several blocks is a cluster along x.

        Arguments:
            threads: of a block, as Triton compiled it.
        """
        (x_name, x), *others = self.blocks
        yield x_name, x if self.num_ctas == 1 else Size(text_of(x)) * self.num_ctas
        yield from others
        yield "threadIdx.x", threads
        if self.num_ctas != 1:
            yield "clusterCtaIdx.x", self.num_ctas

    def check_launch(self, names: frozenset[str], sure: frozenset[str], where: Where) -> None:
        """See :meth:`Declared.check_launch`."""
        self._check_function(where)
        refuse_optional(self.declared, "Triton", where)
        check_launch_only(self.launch_only, self.arguments, where)
        check_axes(self.grid, sure, "grid", where)
        for name, value in self.arguments.items():
            if isinstance(value, Workspace):
                value.check(name, sure, where)
            elif isinstance(value, TensorDescriptor):
                value.check(name, multiples_of(self.declared), where)
            elif isinstance(value, Size):
                check_size(value, names, f"argument {name!r}", where)
        self.check_options(where)

    def check_options(self, where: Where) -> None:
        """Raise a DefinitionError for options that no launch can have."""
        for option, most in (("num_warps", MOST_WARPS), ("num_stages", None), ("num_ctas", MOST_CTAS)):
            _check_number(option, self.options[option], most, where)
        if self.options["maxnreg"] is not None:
            _check_number("maxnreg", self.options["maxnreg"], None, where)

    def _check_function(self, where: Where) -> None:
        """Raise a DefinitionError if a source has no name, or if an argument cannot be sent to a process."""
        for name, value in self.arguments.items():
            is_ours = isinstance(value, TensorDescriptor) and isinstance(value.tensor, Tensor)
            if not is_ours and type(value).__name__ in ("TensorDescriptor", "TensorMap"):  # Triton's, or of CUDA C++
                message = f"the argument {name!r} is {shown(value)}, which describes no argument"
                remedy = "write kernelwright.triton.TensorDescriptor(Tensor(...), block_shape=[...])"
                raise DefinitionError(message, where, remedy)
        if self.source is None:
            if self._name is not None:
                message = f"the Program gets the name {shown(self._name)} besides a function"
                raise DefinitionError(message, where, f"leave it out, or name a source: {EXAMPLE}")
            return
        check_source(self.source, self.function, EXAMPLE, where)
        for name, value in self.constants.items():
            if type(value) not in PLAIN:
                message = f"argument {name!r} of the Program is {shown(value)}, which cannot be passed to a process"
                remedy = (
                    "use a number, a text or None; for a dtype or a function, put a function with @triton.jit into "
                    "the source that calls the other one with it"
                )
                raise DefinitionError(message, where, remedy)


def _described(value: Any) -> Any:
    """A value of a Program; of a descriptor of what each call passes None for, the tensor alone."""
    return value.tensor if isinstance(value, TensorDescriptor) and is_absent(value.tensor) else value


def _bound(function: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments, with a Size for each parameter without a value that has the name of a tensor's size or stride.

    Arguments:
        function: that of the Program; only one in Python tells its parameters.
    """
    while hasattr(function, "fn"):  # what decorators make of it
        function = function.fn
    parameters = inspect.signature(function).parameters if inspect.isfunction(function) else {}
    told = told_by(declared_in(arguments)) - arguments.keys()
    own = {
        name: Size(name, _integer(str(parameter.annotation)))
        for name, parameter in parameters.items()
        if name in told and "constexpr" not in str(parameter.annotation) and parameter.default is parameter.empty
    }
    names, bound = list(parameters), dict[str, Any]()
    for name, value in arguments.items() if own else ():
        before = names[: names.index(name)] if name in names else []
        bound |= {each: own[each] for each in before if each in own} | {name: value}
    return {**bound, **own} if own else dict(arguments)


def _integer(annotation: str) -> str:
    """The dtype of an integer by the annotation of its parameter: an int32, unless that is another one."""
    found = ANNOTATION.search(annotation)
    return f"{found[1]}int{found[2]}" if found else "int32"


def _constant(value: Any, ones: Collection[str]) -> Any:
    """What an argument is in the code, if that is a constant; otherwise the argument.

    Arguments:
        ones: the sizes that are 1 in each call.
    """
    if is_absent(value):
        return None
    return 1 if isinstance(value, Size) and text_of(value) in ones else value


def configs_of(function: Any, name: str | None = None, /) -> list[dict[str, Any]]:
    """The configs of a function with ``@triton.autotune``, as points for ``tune=`` of ``@kernel``: each once, in order.

    A point has the values of a config, ``num_warps`` and ``num_stages``; ``num_ctas`` and ``maxnreg`` where one config
    says something of them. Hooks that prune configs or prepare a measurement are not called.

    Raises:
        DefinitionError: the function has no configs, or one of them has a hook or IR of its own.
    """
    where, inner = Where(stage="discover"), function
    if isinstance(function, (str, PathLike)):
        message = f"configs_of got {shown(function)}, and only a process of Triton's imports a source"
        remedy = "write the points into a file of their own, which the source and the definition import, for tune="
        raise DefinitionError(message, where, remedy)
    while not hasattr(inner, "configs") and hasattr(inner, "fn"):
        inner = inner.fn  # other decorators may be outside
    configs = getattr(inner, "configs", None)
    if not isinstance(configs, list):
        message = f"configs_of got {shown(function)}, which has no configs"
        raise DefinitionError(message, where, "pass a function that is decorated with @triton.autotune")
    for config in configs:
        if config.pre_hook is not None or config.ir_override is not None:
            message = f"the config {config} of @triton.autotune has a pre_hook or an ir_override, which no build runs"
            raise DefinitionError(message, where, "leave it out, or list the points by hand: tune=grid(...)")
    optional = [name for name, usual in OPTIONAL.items() if any(getattr(c, name) != usual for c in configs)]
    points: list[dict[str, Any]] = []
    for config in configs:
        names = ["num_warps", "num_stages", *optional]
        point = {
            **config.kwargs,
            **{name: getattr(config, name) for name in names if getattr(config, name) is not None},
        }
        if point not in points:
            points.append(point)
    return points


def _check_number(name: str, value: Any, most: int | None, where: Where) -> None:
    """Raise a DefinitionError unless an option is a positive integer, and a power of two where there is a limit."""
    is_right = type(value) is int and value > 0
    if is_right and most is not None:
        is_right = value <= most and not value & (value - 1)
    if not is_right:
        expected = "a positive integer" if most is None else f"a power of two up to {most}"
        raise DefinitionError(f"{name} is {shown(value)}, expected {expected}", where)
