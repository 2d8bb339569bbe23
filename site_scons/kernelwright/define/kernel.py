"""What a definition file imports: the ``@kernel`` decorator, and the objects that it makes.

Nothing here imports TVM, SCons or NumPy, so a definition file costs what its own imports cost.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ParamSpec, Protocol, overload

from ..core.arch import TARGETS
from ..core.errors import DefinitionError, Where
from .configs import Config, Variant, check_config, declared_variants, slugs, variants_of_seen
from .divisible import (
    ALL,
    Divisible,
    checked_divisible,
    class_keys,
    multiples_of,
    require_classes,
    with_specialized,
)
from .kernel_options import BackwardDeclaration, Declaration, KernelOptions, kept, read_options
from .names import check_name, function_where, kernel_name
from .outputs import check_gradients
from .own_sources import OwnSource, has_texts, listed_sources, paths_of
from .recorded import Recorded, config_text
from .space import Choice, callers_part, checked_number, checked_sizes, given, space_of, typed_items

Given = ParamSpec("Given")


@dataclass
class Kernel:
    """One named definition: the object that ``@kernel`` leaves in the definition's place.

    Arguments:
        function: the decorated function; called with a config's keys, it returns a PrimFunc or an IRModule.
        name: the kernel's name, which is the name of the function.
        configs: the configs in order; the first is the default. With a space, they are those of all candidates.
        options: what the decorator was given besides.
        location: ``path:line`` of the definition.
        recorded: the file that ``recorded()`` has the configs from, relative to that folder; None: they are listed.
        forward: of a backward kernel: the kernel whose gradients it computes.
        choices: with a space, the configs that callers can see, and the points of each; otherwise none.
        divisible: size symbol -> the classes of sizes that have variants of their own.
        sources: see :func:`define.own_sources.listed_sources`; empty: the options have all that there is to say.
    """

    function: Callable[..., Any]
    name: str
    configs: tuple[Config, ...]
    options: KernelOptions
    location: str
    choices: tuple[Choice, ...] = ()
    divisible: Divisible = field(default_factory=dict)
    sources: Mapping[str, tuple[OwnSource, ...]] = field(default_factory=dict)
    recorded: str | None = None
    forward: Kernel | None = None
    backward_kernel: Kernel | None = field(default=None, init=False)
    """The kernel that computes this one's gradients."""
    remark: str = field(default="", init=False)
    """What a run says of it, or refuses in strict mode."""
    reference_function: Callable[..., Any] | None = field(default=None, init=False)
    inputs_function: Callable[..., Any] | None = field(default=None, init=False)
    sizes_function: Callable[..., Any] | None = field(default=None, init=False)
    cost_function: Callable[..., Any] | None = field(default=None, init=False)
    flops_function: Callable[..., Any] | None = field(default=None, init=False)
    sources_function: Callable[..., Any] | None = field(default=None, init=False)
    """What ``sources`` was given, if that is a function."""
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
        """The variant of a config that is added to the end of ``configs``, and the slugs of all variants with it.

        Raises:
            DefinitionError: the definition cannot be called with the config.
        """
        where = Where(self.name, location=self.location)
        check_config(self.function, config, where, self.divisible)
        require_classes([config], self.divisible, where)
        for variant in self.variants:  # a config that was recorded in the meantime
            if typed_items(variant.config) == typed_items(config):
                return variant, slugs(self.configs)
        names = slugs((*self.configs, config))
        return Variant(self.name, dict(config), names[-1]), names

    def sources_for(self, variant: Variant) -> tuple[OwnSource, ...]:
        """The sources with host code of their own of a variant whose config the definition does not list.

        Raises:
            DefinitionError: they are no sources.
        """
        listed = listed_sources(self.sources_function, [(variant.slug, variant.config)], self.where)
        return listed.get(variant.slug, ())

    @classmethod
    def possible_targets(cls, frontend: str) -> Sequence[str]:
        """The targets that definitions in a front end can be built for; front ends are not known here."""
        return TARGETS

    @classmethod
    def declare(cls, function: Any, declared: Declaration, where: Where) -> Kernel:
        """The kernel of a function with ``@kernel``.

        Raises:
            DefinitionError: a config's keys are not the function's parameters, two configs are equal, or options do not
                fit together.
        """
        divisible = checked_divisible(declared.divisible, where)
        classes = with_specialized(divisible, declared.specialize, where)
        possible = cls.possible_targets(declared.frontend) if declared.tune else TARGETS
        space = space_of(declared.tune, declared.targets, possible, where, declared.preferred)
        variants, choices = declared_variants(function, declared.configs, space, classes, where)
        path = declared.configs.path if isinstance(declared.configs, Recorded) else None
        sources = listed_sources(declared.sources, zip(slugs(variants), variants, strict=True), where)
        kernel = cls(
            *(function, function.__name__, variants, kept(declared, sources=paths_of(sources)), str(where.location)),
            choices=choices,
            divisible=classes,
            sources=sources if callable(declared.sources) or has_texts(sources) else {},
            recorded=path,
        )
        kernel.sources_function = declared.sources if callable(declared.sources) else None
        return kernel

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

    def flops(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorator: says how many floating-point operations a call does, for ``kernelwright bench``.

        It is called with the config's keys and the sizes, as far as it has parameters of those names. It returns a
        number.
        """
        self.flops_function = function
        return function

    def sizes_of(self, config: Config) -> dict[str, tuple[int, ...]]:
        """The sizes that are measured for a caller's config; none, if the definition does not say.

        Raises:
            DefinitionError: the function of :meth:`sizes` returns something else.
        """
        if self.sizes_function is None:
            return {}
        return checked_sizes(self.sizes_function(**given(self.sizes_function, config, "sizes", self.where)), self.where)

    def amount_of(self, name: str, known: Mapping[str, Any]) -> float:
        """What the function of :meth:`cost` or :meth:`flops` says of a candidate or a call; 0, if there is none.

        Arguments:
            name: ``cost`` or ``flops``.
            known: the keys of the config, the sizes, and for ``cost`` the target.

        Raises:
            DefinitionError: the function returns no number.
        """
        function = getattr(self, f"{name}_function")
        if function is None:
            return 0.0
        return checked_number(function(**given(function, known, name, self.where)), name, self.where)

    def backward(self, **given: Any) -> Callable[[Callable[..., Any]], Kernel]:
        """Decorator: the definition of the kernel that computes this one's gradients, for autograd.

        It makes a kernel of its own, ``<name>_backward``, with the configs that callers of this one see, and with its
        targets, archs and backends. The decorated function is a definition as any other, and may be called ``_``. What
        its arguments are follows from their names: the arguments and outputs of this kernel have the names that they
        have here; ``grad_<output>`` is the incoming gradient of an output; and the outputs are the gradients of inputs,
        ``grad_<input>``.

        Arguments:
            given: ``outputs``, the gradients that it computes, such as ``["grad_x", "grad_weight"]``, or their
                positions; and ``tune``, ``flags``, ``tolerance``, ``reads``, ``requires``, ``pass_configs`` and
                ``per_arch`` as of ``@kernel``.

        Returns:
            The kernel, which takes a ``.reference`` and ``.inputs`` as any other.

        Raises:
            DefinitionError: this kernel has no outputs or a backward kernel already, or an output is no gradient.
        """

        def declare(function: Callable[..., Any]) -> Kernel:
            decorator = f"@{self.name}.backward"
            where, name = function_where(function, decorator), f"{self.name}_backward"
            check_name(name, where)
            _check_backward(self, where)
            declared = read_options(BackwardDeclaration, given, decorator, where)
            check_gradients(declared.outputs, where)
            mine = self.options
            options = kept(declared, targets=mine.targets, archs=mine.archs, backends=mine.backends)
            seen = tuple(choice.config for choice in self.choices) or self.configs
            space = space_of(declared.tune, mine.targets, self.possible_targets(mine.frontend), where)
            variants, choices = variants_of_seen(function, seen, space, self.divisible, where)
            self.backward_kernel = type(self)(
                function,
                name,
                variants,
                options,
                str(where.location),
                choices=choices,
                divisible=self.divisible,
                forward=self,
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

    def build(self, config: Config, target: Any) -> Any:
        """Call the definition for one config; ``target`` is passed on if the definition takes it."""
        unknown = class_keys(self.divisible) - inspect.signature(self.function).parameters.keys()
        arguments = {key: value for key, value in config.items() if key not in unknown}
        return self.function(**arguments, **({"target": target} if self.takes_target else {}))

    def multiples(self, config: Config) -> dict[str, int]:
        """What the variant of a config knows of sizes: size symbol -> what its values are multiples of."""
        return multiples_of(config, self.divisible)


def _check_backward(kernel: Kernel, where: Where) -> None:
    if kernel.backward_kernel is not None:
        message = f"kernel {kernel.name!r} has a backward kernel already, at {kernel.backward_kernel.location}"
        raise DefinitionError(message, where, "remove one of the two")
    if ALL in kernel.divisible:
        message = f"kernel {kernel.name!r} has specialize, which no backward kernel can follow"
        raise DefinitionError(message, where, "list the variants instead, with configs and divisible")
    if not kernel.options.outputs:
        remedy = f"name the outputs of {kernel.name} with @kernel(outputs=[...])"
        raise DefinitionError(f"kernel {kernel.name!r} has no outputs, so no gradient comes in", where, remedy)


class Kernels(dict[str, Kernel]):
    """Several kernels by name, which a definition file declares together."""


class Decorator(Protocol[Given]):
    """``@kernel`` and ``@kernel(...)``, which takes the arguments of a :class:`Declaration`."""

    @overload
    def __call__(self, function: Callable[..., Any], /) -> Any: ...

    @overload
    def __call__(self, *args: Given.args, **options: Given.kwargs) -> Callable[[Callable[..., Any]], Any]: ...


def decorator(kind: type[Kernel], declaration: Callable[Given, Declaration]) -> Decorator[Given]:
    """The decorator that makes kernels of a class."""

    def kernel(function: Callable[..., Any] | None = None, /, **given: Any) -> Any:
        """Declare a kernel: decorator for a function that returns a PrimFunc or an IRModule for one config.

        Raises:
            DefinitionError: there is no such argument, it is of the wrong kind, a config's keys are not the function's
                parameters, or two configs are equal.
        """

        def declare(function: Callable[..., Any]) -> Kernel:
            _, where = kernel_name(function)
            return kind.declare(function, read_options(Declaration, given, "@kernel", where), where)

        return declare if function is None else declare(function)

    kernel.__signature__ = inspect.signature(declaration)  # type: ignore[attr-defined]
    return kernel  # type: ignore[return-value]


kernel = decorator(Kernel, Declaration)
