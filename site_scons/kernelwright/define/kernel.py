"""What a definition file imports: the ``@kernel`` decorator, ``grid``, and the objects that they make.

Nothing here imports TVM, SCons or NumPy, so a definition file costs what its own imports cost.
"""

from __future__ import annotations

import hashlib
import inspect
import itertools
import keyword
import math
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from ..core.errors import DefinitionError, Where, is_text, shown
from .divisible import (
    ALL,
    Divisible,
    by_class,
    checked_divisible,
    class_keys,
    expanded,
    in_order,
    multiples_of,
    require_classes,
    with_specialized,
)
from .pass_configs import PassConfigs, checked_pass_configs
from .recorded import Recorded, config_text
from .space import Choice, callers_part, checked_cost, checked_sizes, given, space_of, typed_items, variants_of

ConfigValue = bool | int | float | str
Outputs = tuple[str | int, ...]
"""Outputs as a definition lists them: names of arguments, or positions, from the end where they are negative."""
Config = Mapping[str, ConfigValue]

MAX_SLUG = 80
"""Longest variant slug in characters; a longer one is cut and gets a hash (file systems allow 255 bytes)."""

MAX_NAME = 100
"""Longest name of a kernel in characters: files are called after it, with something before and behind."""

MAX_BITS = 64
"""Largest integer in a config, in bits: it gets into names, JSON and messages."""

MAX_POINTS = 10_000_000
MAX_CONFIGS = 10_000
"""Points of a grid that its filter is asked for, and those that it may keep; more is a slip, and fills the memory."""

FEWER = "give the axes fewer values, or split the kernel"


def grid(*, where: Callable[..., bool] | None = None, **axes: Iterable[ConfigValue]) -> list[dict[str, ConfigValue]]:
    """The product of the axes as a list of configs, the last axis varying fastest.

    Arguments:
        where: an optional filter that is called with a config's keys as keyword arguments; only configs for which it
            returns true are kept.
        axes: for each key of the config, the values it takes.

    Raises:
        DefinitionError: an axis is empty or is a bare string, or the filter keeps nothing or very much.

    >>> grid(m=[1, 2], n=[1, 2], where=lambda m, n: m <= n)
    [{'m': 1, 'n': 1}, {'m': 1, 'n': 2}, {'m': 2, 'n': 2}]
    """
    values = {}
    for name, axis in axes.items():
        if isinstance(axis, (str, bytes)) or not isinstance(axis, Iterable):
            raise DefinitionError(f"grid axis {name!r} is {shown(axis)}, expected a list of values", _caller())
        values[name] = list(itertools.islice(axis, MAX_POINTS + 1))  # an iterator need not have an end
        if not values[name]:
            raise DefinitionError(f"grid axis {name!r} is empty", _caller(), "give it at least one value")
    points = math.prod(len(axis) for axis in values.values())
    if points > MAX_POINTS:
        raise DefinitionError(f"the grid has {points} points, at most {MAX_POINTS} are possible", _caller(), FEWER)
    configs = (dict(zip(values, point, strict=True)) for point in itertools.product(*values.values()))
    kept = list(itertools.islice((c for c in configs if where is None or where(**c)), MAX_CONFIGS + 1))
    if len(kept) > MAX_CONFIGS:
        raise DefinitionError(f"the grid keeps more than {MAX_CONFIGS} configs", _caller(), FEWER)
    if not kept:
        raise DefinitionError(
            "the grid's filter keeps no config", _caller(), "let the filter accept at least one point"
        )
    return kept


@dataclass(frozen=True)
class Variant:
    """A kernel with one config.

    Arguments:
        kernel: the kernel's name.
        config: the config's keys and values, in the order of the definition.
        slug: the readable, unique, file-system-safe name.
    """

    kernel: str
    config: Config
    slug: str


@dataclass
class Kernel:
    """One named definition: the object that ``@kernel`` leaves in the definition's place.

    Arguments:
        function: the decorated function; called with a config's keys, it returns a PrimFunc or an IRModule.
        name: the kernel's name, which is the name of the function.
        configs: the configs in order; the first is the default. With a space, they are those of all candidates.
        targets, archs, backends, flags: restrictions of the package's settings for this kernel; None keeps those.
        outputs: names or positions of arguments that a caller may leave out, in which case they are allocated and
            returned.
        tolerance: largest accepted error in the check, relative to abs(reference) + its root mean square, or None for
            the default of the output's dtype.
        location: ``path:line`` of the definition.
        reads: patterns of data files that it reads, relative to the folder of the definition file.
        recorded: the file that ``recorded()`` has the configs from, relative to that folder; None: they are listed.
        forward: of a backward kernel: the kernel whose gradients it computes.
        backward_kernel: the kernel that computes this one's gradients.
        frontend: what the definition is written in, a name in ``lower.CLASSES``.
        pass_configs: configs of TVM's passes, in a fixed order.
        choices: with a space, the configs that callers can see, and the points of each; otherwise none.
        sizes_function: says which sizes are measured.
        cost_function: estimates the time of a candidate.
        divisible: size symbol -> the classes of sizes that have variants of their own.
        per_arch: whether the definition is called for each CUDA arch.
        sources: the sources with host code of their own: relative to the folder of the definition file, or
            ``package:`` and a path.
        includes: folders of headers for sources in CUDA C++, named in the same ways.
    """

    function: Callable[..., Any]
    name: str
    configs: tuple[Config, ...]
    targets: tuple[str, ...] | None
    archs: tuple[str, ...] | None
    backends: tuple[str, ...] | None
    outputs: Outputs
    flags: tuple[str, ...]
    tolerance: float | None
    location: str
    reads: tuple[str, ...] = ()
    frontend: str = "tir"
    pass_configs: PassConfigs = field(default_factory=dict)
    reference_function: Callable[..., Any] | None = field(default=None)
    inputs_function: Callable[..., Any] | None = field(default=None)
    forward: Kernel | None = field(default=None)
    backward_kernel: Kernel | None = field(default=None)
    recorded: str | None = field(default=None)
    choices: tuple[Choice, ...] = field(default=())
    sizes_function: Callable[..., Any] | None = field(default=None)
    cost_function: Callable[..., Any] | None = field(default=None)
    divisible: Divisible = field(default_factory=dict)
    per_arch: bool = False
    sources: tuple[str, ...] = ()
    includes: tuple[str, ...] = ()
    _variants: tuple[tuple[Config, ...], list[Variant]] | None = field(
        default=None, init=False, repr=False, compare=False
    )

    @property
    def where(self) -> Where:
        """The place of the definition."""
        return Where(self.name, stage="discover", location=self.location)

    @property
    def doc(self) -> str:
        """The definition's docstring, dedented; empty when there is none."""
        return inspect.getdoc(self.function) or ""

    @property
    def takes_target(self) -> bool:
        """Whether the definition has a ``target`` parameter."""
        return "target" in inspect.signature(self.function).parameters

    @property
    def variants(self) -> list[Variant]:
        """One variant for each config, in order."""
        if self._variants is None or self._variants[0] is not self.configs:
            named = zip(self.configs, slugs(self.configs), strict=True)
            # A space has thousands, and each lowering looks for one.
            self._variants = self.configs, [Variant(self.name, config, slug) for config, slug in named]
        return list(self._variants[1])

    def unlisted(self, config: Any) -> tuple[Variant, list[str]]:
        """The variant that a config would be as the last of ``configs``, and the slugs that all would have then.

        Raises:
            DefinitionError: the definition cannot be called with the config.
        """
        where = Where(self.name, location=self.location)
        _check_config(self.function, config, where, self.divisible)
        require_classes([config], self.divisible, where)
        for listed in self.variants:  # a config that was recorded in the meantime
            if typed_items(listed.config) == typed_items(config):
                return listed, slugs(self.configs)
        names = slugs((*self.configs, config))
        return Variant(self.name, dict(config), names[-1]), names

    @classmethod
    def declare(
        cls,
        function: Callable[..., Any] | None = None,
        /,
        *,
        configs: Sequence[Config] | Recorded | None = None,
        tune: Sequence[Config] | Callable[..., Sequence[Config]] | None = None,
        preferred: Mapping[str, Config] | Callable[..., Mapping[str, Config]] | None = None,
        divisible: Mapping[str, Sequence[int]] | None = None,
        specialize: str | None = None,
        targets: Sequence[str] | None = None,
        archs: Sequence[str] | None = None,
        backends: Sequence[str] | None = None,
        outputs: Sequence[str | int] = (),
        flags: Sequence[str] = (),
        tolerance: float | None = None,
        reads: Sequence[str] = (),
        frontend: str = "tir",
        pass_configs: PassConfigs | None = None,
        per_arch: bool = False,
        sources: Sequence[str] = (),
        includes: Sequence[str] = (),
    ) -> Any:
        """Declare a kernel: decorator for a function that returns a PrimFunc or an IRModule for one config.

        Arguments:
            configs: list of dicts, usually made by :func:`grid`; their keys are the function's parameters. The first is
                the default variant. Or ``recorded("configs.json")``, the configs that a program was seen to use.
                Without ``configs``, the kernel has one variant and its function no parameters (but ``target``).
            tune: the space of tuning parameters: a list of dicts, usually made by :func:`grid`, whose keys are further
                parameters of the function; or a function that returns such a list, of those keys of a config and of
                ``target`` (``"llvm"`` or ``"cuda"``) that it has parameters for. The first point is the default. The
                others are built where a tuning table chooses them.
            preferred: arch -> the point of the space that runs as code for this arch where no tuning table says more,
                such as ``{"sm_90a": {"block_m": 128}}``; or a function that returns such a dict, of those keys of a
                config that it has parameters for. Without alignment that it needs, the first point runs.
            divisible: size symbol -> numbers that its values may be multiples of: ``{"m": [1, 16]}`` makes two variants
                of each config, one for every m that is a multiple of 16, and one for all others, which is the same
                without the ``1``. TVM simplifies the code of the first for such sizes. Its config has the key
                ``m_multiple_of``, which is passed to the function if that has such a parameter.
            specialize: ``"auto"``, for Triton: two variants of each config, as Triton would make them for calls. One is
                for addresses and rows that are multiples of 16, its config has the key ``all_multiple_of``, and one is
                for all others.
            targets: TVM targets to build for (``llvm``, ``cuda``); default: those of the package.
            archs: archs to build for, of either target; default: those of the package.
            backends: execution backends; default: those of the package.
            outputs: tensor arguments that callers may leave out; they are then allocated and returned. Each by its name
                or by its position among all arguments, from 0 on, or from the end: ``[-1]`` is the last one.
            flags: extra nvcc flags.
            tolerance: largest error that the check accepts, relative to abs(reference) + its root mean square.
            reads: data files that the definition, its reference or its inputs read: paths relative to the folder of the
                definition file, in which ``*``, ``?`` and ``[...]`` match within a name, and ``**`` any number of
                folders. If one of them changes, appears or goes, the kernel is built anew. Strict mode allows no
                others.
            frontend: what the definition is written in: ``tir``; or ``cuda``, ``cutedsl`` or ``triton``
                for one that returns a ``Source`` or a ``Program`` of ``kernelwright.cuda``, ``kernelwright.cutedsl`` or
                ``kernelwright.triton``, which is built for CUDA only.
            pass_configs: configs of TVM's passes for the lowering, such as ``{"tirx.disable_vectorize": True}``.
            per_arch: have the definition called once for each CUDA arch, with that arch as ``target``: a
                ``tvm.target.Target``, or a text such as ``"sm_90a"`` in front ends without TVM. It may return different
                programs with equal arguments, of which the one with the best code for a device runs there. Without it,
                one program is compiled for all CUDA archs.
            sources: with ``frontend="cuda"``, sources that have host code of their own and export functions for
                TVM-FFI: paths relative to the folder of the definition file, or ``package:`` and a path that begins
                with the name of an installed package. The definition returns an ``Exported``.
            includes: with ``frontend="cuda"``, folders in which sources look for headers, named in the same ways.

        Raises:
            DefinitionError: an argument is of the wrong kind, a config's keys are not the function's parameters, or two
                configs are equal.
        """

        def decorate(function: Callable[..., Any]) -> Kernel:
            name, where = _kernel_name(function)
            allowed = _strings("targets", targets, where)
            listed = checked_divisible(divisible, frontend, where)
            classes = with_specialized(listed, specialize, frontend, where)
            variants, choices = _declared(function, configs, tune, classes, allowed, frontend, where, preferred)
            result = cls(
                function,
                name,
                variants,
                allowed,
                _strings("archs", archs, where),
                _strings("backends", backends, where),
                _checked_outputs(outputs, where),
                _strings("flags", flags, where) or (),
                _checked_tolerance(tolerance, where),
                str(where.location),
                _checked_reads(reads, where),
                frontend,
                checked_pass_configs(pass_configs, where),
                recorded=configs.path if isinstance(configs, Recorded) else None,
                choices=choices,
                divisible=classes,
                per_arch=_checked_flag("per_arch", per_arch, where),
                sources=_strings("sources", sources, where) or (),
                includes=_strings("includes", includes, where) or (),
            )
            slugs(result.configs)
            return result

        if function is not None:
            return decorate(function)
        return decorate

    def reference(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: the NumPy reference of this kernel.

        It is called with the input arrays and scalars in the order of the kernel's arguments, outputs left out
        (an argument that the kernel updates in place is an input), and, if it has parameters of those
        names, with the config's keys as keyword arguments. It returns the outputs in order; for a kernel with arguments
        that are updated in place and not listed in ``outputs``, a dict from argument name to expected array.
        """
        self.reference_function = function
        return function

    @property
    def reference_takes(self) -> tuple[str, ...] | None:
        """The names in the configs that the reference has parameters of; None: there is no reference."""
        if self.reference_function is None:
            return None
        parameters = inspect.signature(self.reference_function).parameters
        return tuple(name for name in self.configs[0] if name in parameters)

    def inputs(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: makes inputs for the check where plain random numbers would not do.

        It is called with ``rng`` (a ``numpy.random.Generator``) and, if it has parameters of those names, with the
        shape symbols' values and the config's keys. It returns a dict from argument name to array or number, for
        any subset of the inputs, or None to have this combination of sizes skipped.
        """
        self.inputs_function = function
        return function

    def sizes(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: says which sizes a tuner measures, if it is not told otherwise.

        It is called with the keys of a caller's config that it has parameters for. It returns a dict from size symbol
        to list of sizes.
        """
        self.sizes_function = function
        return function

    def cost(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: estimates how long a candidate takes, where there are too many to measure all.

        It is called with the config's keys, those of the point, the sizes and ``target``, as far as it has parameters
        of those names. It returns a number; only the order of the numbers counts.
        """
        self.cost_function = function
        return function

    def sizes_of(self, config: Config) -> dict[str, tuple[int, ...]]:
        """The sizes that are measured for a caller's config; none, if the definition does not say.

        Raises:
            DefinitionError: the function of :meth:`sizes` returns something else.
        """
        if self.sizes_function is None:
            return {}
        return checked_sizes(self.sizes_function(**given(self.sizes_function, config, "sizes", self.where)), self.where)

    def cost_of(self, config: Config, sizes: Mapping[str, int], target: str) -> float:
        """What a candidate is estimated to take; 0, if the definition does not say.

        Arguments:
            config: the candidate's.
            sizes: size symbol -> size.
            target: ``llvm`` or ``cuda``.

        Raises:
            DefinitionError: the function of :meth:`cost` returns no number.
        """
        if self.cost_function is None:
            return 0.0
        known = {**config, **sizes, "target": target}
        return checked_cost(self.cost_function(**given(self.cost_function, known, "cost", self.where)), self.where)

    def backward(
        self,
        *,
        outputs: Sequence[str | int],
        tune: Sequence[Config] | Callable[..., Sequence[Config]] | None = None,
        flags: Sequence[str] = (),
        tolerance: float | None = None,
        reads: Sequence[str] = (),
        pass_configs: PassConfigs | None = None,
        per_arch: bool = False,
    ) -> Callable[[Callable[..., Any]], Kernel]:
        """Decorator: the definition of the kernel that computes this one's gradients, for autograd.

        It makes a kernel of its own, ``<name>_backward``, with the configs that callers of this one see, and with its
        targets, archs and backends. The decorated function is a definition as any other, and may be called ``_``. What
        its arguments are follows from their names: the arguments and outputs of this kernel have the names that they
        have here; ``grad_<output>`` is the incoming gradient of an output; and the outputs are the gradients of inputs,
        ``grad_<input>``.

        Arguments:
            outputs: the gradients that it computes, such as ``["grad_x", "grad_weight"]``, or their positions.
            tune, flags, tolerance, reads, pass_configs, per_arch: as of ``@kernel``.

        Returns:
            The kernel, which takes a ``.reference`` and ``.inputs`` as any other.

        Raises:
            DefinitionError: this kernel has no outputs or a backward kernel already, or an output is no gradient.
        """

        def declare(function: Callable[..., Any]) -> Kernel:
            where = _function_where(function, f"@{self.name}.backward")
            name = f"{self.name}_backward"
            _check_name(name, where)
            self._check_backward(where)
            seen = tuple(choice.config for choice in self.choices) or self.configs
            variants, choices = _declared(
                *(function, seen, tune, self.divisible, self.targets, self.frontend, where), classes_are_listed=True
            )
            self.backward_kernel = type(self)(
                function,
                name,
                variants,
                self.targets,
                self.archs,
                self.backends,
                _checked_gradients(outputs, where),
                _strings("flags", flags, where) or (),
                _checked_tolerance(tolerance, where),
                str(where.location),
                _checked_reads(reads, where),
                pass_configs=checked_pass_configs(pass_configs, where),
                forward=self,
                choices=choices,
                divisible=self.divisible,
                per_arch=_checked_flag("per_arch", per_arch, where),
            )
            return self.backward_kernel

        return declare

    def config_of_forward(self, config: Config, target: str) -> Config:
        """The config of the forward kernel that a variant of this backward kernel belongs to, with its first point.

        Arguments:
            config: the variant's.
            target: ``llvm`` or ``cuda``.
        """
        seen = callers_part(self.choices, config)
        choices = self.forward.choices if self.forward else ()
        if not choices:
            return seen
        text = config_text(seen)
        choice = next((choice for choice in choices if config_text(choice.config) == text), choices[0])
        points = choice.points.get(target) or next(iter(choice.points.values()))
        return {**seen, **points[0]}

    def _check_backward(self, where: Where) -> None:
        if self.backward_kernel is not None:
            message = f"kernel {self.name!r} has a backward kernel already, at {self.backward_kernel.location}"
            raise DefinitionError(message, where, "remove one of the two")
        if ALL in self.divisible:
            message = f"kernel {self.name!r} has specialize, which no backward kernel can follow"
            raise DefinitionError(message, where, "list the variants instead, with configs and divisible")
        if not self.outputs:
            remedy = f"name the outputs of {self.name} with @kernel(outputs=[...])"
            raise DefinitionError(f"kernel {self.name!r} has no outputs, so no gradient comes in", where, remedy)

    def build(self, config: Config, target: Any) -> Any:
        """Call the definition for one config; ``target`` is passed on if the definition takes it."""
        unknown = class_keys(self.divisible) - inspect.signature(self.function).parameters.keys()
        arguments = {key: value for key, value in config.items() if key not in unknown}
        return self.function(**arguments, **({"target": target} if self.takes_target else {}))

    def multiples(self, config: Config) -> dict[str, int]:
        """What the variant of a config knows of sizes: size symbol -> what its values are multiples of."""
        return multiples_of(config, self.divisible)


kernel = Kernel.declare


def slugs(configs: Sequence[Config]) -> list[str]:
    """Readable, unique, file-system-safe names of configs, such as ``block_m-64_dtype-float16``.

    A name that had to be changed (odd characters, length) or that would not be unique, also on a file system that
    ignores case, gets a short hash of the config.
    """
    plain = ["_".join(f"{key}-{value}" for key, value in config.items()) or "default" for config in configs]
    safe = [re.sub(r"[^A-Za-z0-9_.+-]", "", slug)[:MAX_SLUG] for slug in plain]
    hashed = [f"{slug}_{_config_hash(config)}" for slug, config in zip(safe, configs, strict=True)]
    # A readable name may by chance be the one that another config gets with its hash.
    counts = Counter(slug.lower() for slug in (*safe, *hashed))
    return [
        slug if slug == readable and counts[slug.lower()] == 1 else name
        for slug, readable, name in zip(safe, plain, hashed, strict=True)
    ]


def variant_of(name: str, configs: Sequence[Config], config: Config) -> Variant:
    """The variant of a config, in whatever order its keys are.

    Arguments:
        name: the kernel's name.
        configs: those that the definition lists.
        config: one of them, or another one. That gets the slug which it would have as the last of the list, and the
            order of keys of the first in the list.
    """
    names = list(dict.fromkeys((*(configs[0] if configs else ()), *config)))
    ordered = {key: config[key] for key in names if key in config}
    wanted = typed_items(ordered)
    for known, slug in zip(configs, slugs(configs), strict=True):
        if typed_items(known) == wanted:
            return Variant(name, known, slug)
    return Variant(name, ordered, slugs((*configs, ordered))[-1])


def _config_text(config: Config) -> str:
    return repr([(key, type(value).__name__, value) for key, value in config.items()])


def _config_hash(config: Config) -> str:
    return hashlib.sha256(_config_text(config).encode()).hexdigest()[:8]


def _caller() -> Where:
    """The nearest frame outside this module: the user's line."""
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_filename == __file__:
        frame = frame.f_back
    return Where(stage="discover", location=f"{frame.f_code.co_filename}:{frame.f_lineno}" if frame else None)


def require_gradient_names(
    backward: Kernel, arguments: Sequence[str], forward_arguments: Sequence[str], where: Where
) -> None:
    """Find out whether each argument of a backward kernel is one that autograd can pass.

    Arguments:
        backward: the kernel.
        arguments: the names of its arguments.
        forward_arguments: those of the kernel whose gradients it computes.
        where: the definition of the backward kernel.

    Raises:
        DefinitionError: an argument has another name.
    """
    forward = backward.forward
    if forward is None:
        return
    outputs = named_outputs(backward.outputs, arguments, where)
    of_forward = named_outputs(forward.outputs, forward_arguments, where)
    inputs = [name for name in forward_arguments if name not in of_forward]
    gradients = [f"grad_{name}" for name in of_forward]
    for name in arguments:
        if name in outputs and name not in [f"grad_{given}" for given in inputs]:
            raise DefinitionError(
                f"output {name!r} is the gradient of no input of {forward.name}",
                where,
                f"its inputs are {', '.join(inputs)}: call the output grad_{inputs[0] if inputs else '...'}",
            )
        if name not in outputs and name not in (*forward_arguments, *gradients):
            raise DefinitionError(
                f"argument {name!r} is no argument of {forward.name}, and not the gradient of one of its outputs",
                where,
                f"call it like one of {', '.join([*forward_arguments, *gradients])}",
            )


def named_outputs(outputs: Outputs, arguments: Sequence[str], where: Where) -> tuple[str, ...]:
    """The names of outputs, some of which may be given by their positions.

    Arguments:
        outputs: as the definition lists them.
        arguments: the names of all arguments, in the order of a call.
        where: the definition.

    Raises:
        DefinitionError: there is no argument at a position, or two entries are one argument.
    """
    named: dict[str, str | int] = {}
    listed = ", ".join(arguments) or "none"
    for entry in outputs:
        if isinstance(entry, int) and not -len(arguments) <= entry < len(arguments):
            message = f"outputs lists position {entry}, but there are {len(arguments)} arguments ({listed})"
            remedy = f"use 0 to {len(arguments) - 1}, or -1 to -{len(arguments)} from the end" if arguments else None
            raise DefinitionError(message, where, remedy)
        name = arguments[entry] if isinstance(entry, int) else entry
        if name in named:
            message = f"outputs lists one argument twice: {named[name]!r} and {entry!r} are both {name!r}"
            raise DefinitionError(message, where, f"remove one of them (the arguments are {listed})")
        named[name] = entry
    return tuple(named)


def _function_where(function: Any, decorator: str) -> Where:
    """The place of a decorated function."""
    if not inspect.isfunction(function):
        raise DefinitionError(
            f"{decorator} was applied to {shown(function)}, expected a function",
            _caller(),
            f"put {decorator} above a def statement",
        )
    code = function.__code__
    return Where(function.__name__, stage="discover", location=f"{code.co_filename}:{code.co_firstlineno}")


def _kernel_name(function: Any) -> tuple[str, Where]:
    where = _function_where(function, "@kernel")
    _check_name(function.__name__, where)
    return function.__name__, where


def _checked_outputs(value: Any, where: Where) -> Outputs:
    """Outputs as far as they can be checked before the arguments are known."""
    if value is None:
        return ()
    remedy = 'write outputs=["y"], or outputs=[-1] for the last argument'
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        message = f"outputs is {shown(value)}, expected a list of names or positions of arguments"
        raise DefinitionError(message, where, remedy)
    result = tuple(value)
    for entry in result:
        if not (type(entry) is int and entry.bit_length() <= MAX_BITS) and not (
            isinstance(entry, str) and is_text(entry)
        ):
            message = f"outputs contains {shown(entry)}, expected the name or the position of an argument"
            raise DefinitionError(message, where, remedy)
    if len(set(result)) != len(result):
        raise DefinitionError(f"outputs lists an entry twice: {shown(result)}", where)
    return result


def _checked_gradients(outputs: Any, where: Where) -> Outputs:
    names = _checked_outputs(outputs, where)
    for name in names or ("",):
        # What stands at a position is known when the definition is called; see require_gradient_names.
        if isinstance(name, str) and not (name.startswith("grad_") and name.removeprefix("grad_")):
            raise DefinitionError(
                f"outputs of a backward kernel is {shown(list(names))}, expected names of gradients",
                where,
                'write for example outputs=["grad_x"], for the gradient of input x',
            )
    return names


def is_name(name: str) -> bool:
    """Whether a kernel can have a name: files, C functions and attributes of a package are called after it."""
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name) and len(name) <= MAX_NAME and "__" not in name
    return bool(is_plain) and name not in RESERVED and not name.startswith("kw_") and not keyword.iskeyword(name)


def _check_name(name: str, where: Where) -> None:
    if not is_name(name):
        raise DefinitionError(
            f"{name!r} cannot be a kernel's name",
            where,
            f"use at most {MAX_NAME} ASCII letters, digits and single underscores, start with a letter, and avoid "
            + ", ".join(sorted(RESERVED)),
        )


RESERVED = frozenset(
    {
        "main",
        "preload",
        "supported",
        "variants",
        "manifest",
        "misses",
        "set_fallback",
        "set_num_threads",
        "num_threads",
        "check",
        "ir",
        "wheel",
        "tune",
        "sass",
        "ptx",
        "backends",
        "jax",
    }
)
"""Names that a kernel cannot have, because the package or the build file uses them."""


def _declared(
    function: Callable[..., Any],
    configs: Any,
    tune: Any,
    divisible: Divisible,
    targets: tuple[str, ...] | None,
    frontend: str,
    where: Where,
    preferred: Any = None,
    classes_are_listed: bool = False,
) -> tuple[tuple[Config, ...], tuple[Choice, ...]]:
    """The configs of all variants of a kernel, and its choices if it has a space.

    Arguments:
        classes_are_listed: whether ``configs`` are those of variants already, with their classes of sizes.
    """
    seen = _checked_configs(function, configs, where, divisible, complete=tune is None)
    if not classes_are_listed and not isinstance(configs, Recorded):
        seen = _with_classes(seen, divisible, where)
    if divisible:
        seen = tuple(in_order(seen))
    require_classes(seen, divisible, where)
    if tune is None:
        if preferred is not None:
            raise DefinitionError("preferred names points, and there is no tune that has any", where, "add tune")
        return seen, ()
    space = space_of(tune, targets, frontend, where, preferred)
    choices = space.choices(seen, isinstance(configs, Recorded))
    if divisible:  # which of them a config of a variant belongs to is known only now
        choices = tuple(by_class((choice.config, choice) for choice in choices))
    variants = variants_of(choices)
    if len(variants) > MAX_CONFIGS:
        message = f"configs and tune make {len(variants)} candidates, at most {MAX_CONFIGS} are possible"
        raise DefinitionError(message, where, FEWER)
    return _checked_configs(function, variants, where, divisible), choices


def _with_classes(configs: Sequence[Config], divisible: Divisible, where: Where) -> tuple[Config, ...]:
    """Each config once for each class of sizes."""
    count = len(configs) * math.prod(map(len, divisible.values()))
    if count > MAX_CONFIGS:
        message = f"configs and divisible make {count} variants, at most {MAX_CONFIGS} are possible"
        raise DefinitionError(message, where, "list fewer classes, or give the axes fewer values")
    return tuple(expanded(configs, divisible))


def _checked_configs(
    function: Callable[..., Any], configs: Any, where: Where, divisible: Divisible, complete: bool = True
) -> tuple[Config, ...]:
    """The configs that a decorator lists.

    Arguments:
        complete: whether each has to give a value to each parameter that has no default.
    """
    if isinstance(configs, Recorded):
        check = partial(_checked_configs, divisible=divisible, complete=complete)
        return configs.configs(function, where, check, lambda default: _with_classes(default, divisible, where))
    if configs is None:
        configs = [{}]
    if isinstance(configs, Mapping) or not isinstance(configs, Iterable):
        raise DefinitionError(
            f"configs is {shown(configs)}, expected a list of dicts",
            where,
            "write configs=grid(...) or configs=[{...}]",
        )
    result = tuple(configs)
    if not result:
        raise DefinitionError("configs is empty", where, "give at least one config, or leave configs out")
    for config in result:
        _check_config(function, config, where, divisible, complete)
    counts = Counter(map(_config_text, result))
    for config in result:
        if counts[_config_text(config)] > 1:
            raise DefinitionError(f"config {shown(config)} is listed twice", where, "remove one of them")
    return tuple(dict(config) for config in result)


def _check_config(
    function: Callable[..., Any], config: Any, where: Where, divisible: Divisible, complete: bool = True
) -> None:
    _require_dict(config, where)
    parameters = dict(inspect.signature(function).parameters)
    parameters.pop("target", None)
    kinds = {p.kind for p in parameters.values()}
    if kinds & {inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD, inspect.Parameter.POSITIONAL_ONLY}:
        raise DefinitionError("a definition cannot have *args, **kwargs or positional-only parameters", where)
    for key, value in config.items():
        if key not in parameters and key not in class_keys(divisible):
            listed = ", ".join(parameters) or "none"
            raise DefinitionError(
                f"config key {shown(key)} is not a parameter of the definition (its parameters: {listed})",
                where,
                f"add a parameter {shown(key)} to {function.__name__}, or remove the key",
            )
        _check_value(key, value, where)
    missing = [n for n, p in parameters.items() if p.default is inspect.Parameter.empty and n not in config]
    if missing and complete:
        raise DefinitionError(
            f"config {shown(dict(config))} gives no value for parameter {missing[0]!r}",
            where,
            "add the key, or a default",
        )


def require_values(config: Any, where: Where) -> None:
    """Raise a DefinitionError for what no definition could take as a config, whatever its parameters are."""
    _require_dict(config, where)
    for key, value in config.items():
        if not isinstance(key, str):
            raise DefinitionError(f"config key {shown(key)} is not a string", where)
        _check_value(key, value, where)


def _require_dict(config: Any, where: Where) -> None:
    if not isinstance(config, Mapping):
        remedy = "write configs=grid(...) or configs=[{...}]"
        raise DefinitionError(f"config {shown(config)} is not a dict", where, remedy)


def _check_value(key: str, value: Any, where: Where) -> None:
    """Raise a DefinitionError for a value that a name, JSON or a comparison would not take."""
    if not isinstance(value, (bool, int, float, str)):
        raise DefinitionError(f"config {key}={shown(value)} is not a bool, int, float or str", where)
    if value != value:
        raise DefinitionError(f"config {key}={value!r} is equal to nothing, not even to itself", where)
    if isinstance(value, float) and not math.isfinite(value):
        remedy = 'JSON has no infinity: write it as a string, such as "inf", and convert it in the definition'
        raise DefinitionError(f"config {key}={value!r} is not finite", where, remedy)
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise DefinitionError(f"config {key}={shown(value)} has more than {MAX_BITS} bits", where)
    if isinstance(value, str) and not is_text(value):
        raise DefinitionError(f"config {key}={shown(value)} has NUL, or a surrogate without its other half", where)


def _strings(name: str, value: Any, where: Where) -> tuple[str, ...] | None:
    if value is None:
        return None
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise DefinitionError(f"{name} is {shown(value)}, expected a list of strings", where, f"write {name}=[...]")
    result = tuple(value)
    bad = [item for item in result if not isinstance(item, str) or not is_text(item)]
    if bad:
        raise DefinitionError(f"{name} contains {shown(bad[0])}, expected strings", where)
    if len(set(result)) != len(result) and name != "flags":
        raise DefinitionError(f"{name} lists an entry twice: {shown(result)}", where)
    return result


def _checked_reads(value: Any, where: Where) -> tuple[str, ...]:
    patterns = _strings("reads", value, where) or ()
    for pattern in patterns:
        if not pattern.strip("/") or "\\" in pattern or "\0" in pattern:
            raise DefinitionError(
                f"reads contains {pattern!r}, expected a path, absolute or relative to that of the definition file",
                where,
                'write for example reads=["tuning.json", "tables/*.json"]',
            )
    return patterns


def _checked_flag(name: str, value: Any, where: Where) -> bool:
    if not isinstance(value, bool):
        raise DefinitionError(f"{name} is {shown(value)}, expected True or False", where)
    return value


def _checked_tolerance(value: Any, where: Where) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= sys.float_info.max:
        raise DefinitionError(f"tolerance is {shown(value)}, expected a number >= 0", where)
    return float(value)
