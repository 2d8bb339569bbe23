"""``signature.json``: the result of a lowering about a kernel's arguments, its device functions, and its host code.

Every front end writes the file. From there on nothing knows which language a kernel was written in.

An *expression* is an integer, or text in Python syntax over symbols and numbers among the arguments: ``+ - * // %``,
``<< >> & | ^``, comparisons, ``and or not``, ``a if c else b``, ``min``, ``max``, and ``truncdiv`` and ``truncmod``,
which round towards zero.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, NamedTuple

from ..runtime.size import Requirement, lines_in
from .converter import Count, that, to_json
from .dtype import number_kind
from .errors import is_text, shown

SCHEMA = 1
"""The schema of signature.json that is understood."""

IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)
"""A name in C."""

Text = Annotated[str, that("whole characters", is_text)]
"""A string that can be written to a source file."""

Name = Annotated[str, that("a C identifier", lambda text: bool(IDENTIFIER.fullmatch(text)))]
Revision = Annotated[int, that(f"{SCHEMA}", lambda schema: schema == SCHEMA)]
Expression = int | Text
Size = Annotated[int, that("a size from 0", lambda size: 0 <= size < 1 << 63)] | Text
Dims = tuple[Expression, Expression, Expression]

SPECIALIZED_KINDS = ("tensor", "int", "float", "bool", "descriptor", "part", "constant")
"""What a parameter of a recorded function can be."""

SpecializedKind = Annotated[str, that("a kind of parameter", lambda kind: kind in SPECIALIZED_KINDS)]


@dataclass(frozen=True)
class Argument:
    """One argument of a lowered kernel.

    Arguments:
        name: the name in the definition.
        kind: ``tensor`` or ``scalar``.
        dtype: as TVM writes it, such as ``float16``.
        output: callers may leave it out.
        written: the kernel writes it.
        shape: a tensor's sizes: numbers, or expressions over symbols. Empty for a scalar.
        alignment: of a tensor's data, in bytes; None for that of its elements.
        strides: in elements, expressions as those of sizes; empty: it has to be compact.
        given: whether callers pass a tensor; False: they pass None; None: either.
        folds: whether callers pass any number of leading dimensions, of which the first size is the product.
        default: what a number is in calls that leave it out; None: none may.
    """

    name: Text
    kind: Text
    dtype: Text
    output: bool
    written: bool
    shape: tuple[Size, ...] = ()
    alignment: Count | None = None
    strides: tuple[Size, ...] = ()
    given: bool | None = True
    folds: bool = False
    default: bool | int | float | None = None

    def __post_init__(self) -> None:
        """Raises ValueError if there is not a stride for each size, or None for what is no input array."""
        if len(self.strides) not in (0, len(self.shape)):
            raise ValueError(f"argument {shown(self.name)} has {len(self.strides)} strides, and not one for each size")
        if self.given is not True and (self.output or not self.is_tensor):
            raise ValueError(f"argument {shown(self.name)} is no input that is a tensor, and cannot be None")
        if self.folds and not (self.shape and isinstance(self.shape[0], str) and self.shape[0].isidentifier()):
            raise ValueError(f"argument {shown(self.name)} folds dimensions into one whose size has no name")
        if self.default is not None and self.is_tensor:
            raise ValueError(f"argument {shown(self.name)} is a tensor, and has a default")

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor, and no number."""
        return self.kind == "tensor"

    @property
    def launcher_kind(self) -> str:
        """The launcher's name of what is passed: ``KW_TENSOR``, or a kind of number."""
        return "KW_TENSOR" if self.is_tensor else f"KW_{number_kind(self.dtype).upper()}"


SPREAD_CLUSTERS = "kernelwright.spread_clusters"
"""A launch parameter besides TVM's, without an argument: the blocks of a cluster go to different multiprocessors."""


class Place(NamedTuple):
    """Where the inputs of a call give a symbol.

    Arguments:
        argument: the number of an argument.
        axis: that of the dimension whose size is ``times`` the symbol, and ``plus``; None: the argument is a number of
            that name.
    """

    argument: int
    axis: int | None = None
    times: int = 1
    plus: int = 0


@dataclass(frozen=True)
class Structure:
    """A parameter that is put together of several values of a launch.

    Arguments:
        first: the number of the first of them, which the others follow.
        bytes: its size.
        places: offset and bytes of each of them.
    """

    first: Count
    bytes: Count
    places: tuple[tuple[Count, Count], ...]


@dataclass(frozen=True)
class DeviceKernel:
    """A device function.

    Arguments:
        name: what the host code calls it.
        params: the dtypes of its parameters; of a structure those of its members.
        launch: TVM's launch parameters, in order.
        symbol: its name in the images; empty: the same.
        structures: the structures among the parameters, in order.
    """

    name: Name
    params: tuple[str, ...]
    launch: tuple[str, ...]
    symbol: str = ""
    structures: tuple[Structure, ...] = ()


@dataclass(frozen=True)
class Parameter:
    """A parameter of a launch: an argument's tensor, a workspace or tensor map by its number, or a number."""

    tensor: Text | None = None
    workspace: Count | None = None
    tensor_map: Count | None = None
    dtype: Text | None = None
    scalar: Expression | None = None

    @property
    def passed(self) -> tuple[str, int | str]:
        """Its kind (``tensor``, ``workspace``, ``tensor_map``, or the dtype of a number), and its name or value."""
        named = {"tensor": self.tensor, "workspace": self.workspace, "tensor_map": self.tensor_map}
        values = [(kind, value) for kind, value in (*named.items(), (self.dtype, self.scalar)) if value is not None]
        if len(values) != 1 or values[0][0] is None:
            raise ValueError(f"a parameter of a launch is {shown(self)}, expected one thing")
        return str(values[0][0]), values[0][1]

    def __post_init__(self) -> None:
        """Raises ValueError if it is several things, or none."""
        _ = self.passed


@dataclass(frozen=True)
class Launch:
    """A launch of a device function, as the host code makes it.

    Arguments:
        kernel: the device function.
        params: its parameters.
        grid, block: expressions for x, y and z, in blocks and in threads.
        shared: dynamic shared memory of a block, in bytes.
        cluster, preferred_cluster: in blocks; None: not a launch with clusters.
        cooperative, dependent: flags of the launch; the latter allows it to begin before the one before it has ended.
        when: the condition under which it happens; None: always.
    """

    kernel: Text
    params: tuple[Parameter, ...]
    grid: Dims
    block: Dims
    shared: Expression
    cluster: Dims | None = None
    preferred_cluster: Dims | None = None
    cooperative: bool = False
    dependent: bool = False
    when: Expression | None = None

    @property
    def passed(self) -> tuple[tuple[str, int | str], ...]:
        """What each parameter is, and which one; see :attr:`Parameter.passed`."""
        return tuple(parameter.passed for parameter in self.params)


@dataclass(frozen=True)
class TensorMap:
    """A tensor map that the host code makes: by it, the copy engine of a GPU finds its way in an array.

    All is in the order and with the numbers of cuTensorMapEncodeTiled (cuda.h): the innermost dimension is the first.

    Arguments:
        tensor: the argument whose data it is of.
        dtype: that of an element.
        sizes: expressions for the number of elements in each dimension.
        strides: expressions for the bytes from one index to the next, of all dimensions but the first.
        box: how many elements one copy has in each dimension.
        steps: how many elements it goes on from one to the next.
        interleave, swizzle, promotion, fill: modes.
    """

    tensor: Text
    dtype: Text
    sizes: tuple[Expression, ...]
    strides: tuple[Expression, ...]
    box: tuple[Expression, ...]
    steps: tuple[Expression, ...]
    interleave: Count
    swizzle: Count
    promotion: Count
    fill: Count

    def __post_init__(self) -> None:
        """Raises ValueError if the lists have not the lengths of a tensor map."""
        if not 1 <= len(self.sizes) == len(self.strides) + 1 == len(self.box) == len(self.steps) <= 5:
            raise ValueError("the lists have other lengths than those of a tensor map")

    @property
    def expressions(self) -> tuple[int | str, ...]:
        """All expressions in it."""
        return (*self.sizes, *self.strides, *self.box, *self.steps)


@dataclass(frozen=True)
class HostCheck:
    """A condition of the definition's own that the host code asserts: the expression, kind of error, and message."""

    passes: Expression
    error: Text
    message: Text


ZEROED = "uint64"
"""The dtype by which host code tells the launcher that it fills a workspace with zeros (``launcher/workspace.h``)."""


@dataclass(frozen=True)
class Workspace:
    """Temporary device memory that the host code takes, and whether it is filled with zeros."""

    bytes: Expression
    zeroed: bool = False


@dataclass(frozen=True)
class Specialized:
    """A parameter of a recorded function, as the code of one variant has it.

    Arguments:
        name: the name in the function; of an element of a tuple, with a number: ``pair.0``.
        kind: ``tensor``, ``int``, ``float`` or ``bool``, which a launch passes; ``descriptor``, the tensor of one, and
            ``part``, a number in that; or ``constant``, which is in the code.
        dtype: of what is passed; for a tensor that of its elements.
        declared: whether the function declares the type of a number, which otherwise follows from the value; of a
            constant, whether it declares that it is one.
        divisible: whether a number, or the address of a tensor's data, is a multiple of 16; None: the code does not
            rely on it.
        value: of a constant, as JSON; of a descriptor the number of its dimensions.
    """

    name: Text
    kind: SpecializedKind
    dtype: Text = ""
    declared: bool = False
    divisible: bool | None = None
    value: Any = None


@dataclass(frozen=True)
class RecordedFunction:
    """A function that a program calls with a grid of its own.

    Arguments:
        name: ``module:name`` of the function.
        source: the digest of its text, and of what it calls.
        parameters: their names, in order.
        constants: those of them that the function declares as constants.
        defaults: parameter -> its default, as JSON.
        heuristics: parameter -> the expression that computes it if a call leaves it out, in Python, of the others.
        configs: what a tuned function is tried with, the first one first: parameters and options that a call leaves
            out.
        tuned_by: the parameters by which a config is chosen.
        computed_first: the heuristics that are computed before a config is chosen.
        choices: which config is the fastest, as a recording has it.
        options: the options of the launch that its variants differ in.
        texts: the parameters that are constants which are compared as texts: dtypes, functions and tuples.
        tuples: parameter -> the form of the tuples that it gets: a list, with null or a form for each element; that of
            a tensor descriptor is the number of its dimensions.
        functions: the functions among the constants, by name -> the digest of each.
        by_arch: arch -> the same of the function there, if what its module does depends on the GPU.
    """

    name: Text
    source: Text
    parameters: tuple[str, ...]
    constants: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    heuristics: Mapping[str, Text] = field(default_factory=dict)
    configs: tuple[Mapping[str, Any], ...] = ()
    tuned_by: tuple[str, ...] = ()
    computed_first: tuple[str, ...] = ()
    choices: tuple[Mapping[str, Any], ...] = ()
    options: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    tuples: Mapping[str, Any] = field(default_factory=dict)
    functions: Mapping[str, Text] = field(default_factory=dict)
    by_arch: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class RecordedCall:
    """The calls of a recorded function that a variant is for, and the launch that they make.

    Arguments:
        function: what is called. Its ``options`` are those of this variant that are not the defaults.
        general: whether calls are also made with it that another variant is not for.
        parameters: what they are, in order.
        options: option -> its value, of those that are not the defaults of the language.
        symbol: the name of the device function.
        threads: of a block.
        blocks: of a cluster, along x; 1: there are no clusters.
        shared: dynamic shared memory of a block, in bytes.
        scratch: global memory for each block, in bytes.
        maps: how the code copies by each tensor descriptor: a box and a swizzle; none: by pointers.
        form: of a tuned function: what calls it is for, whatever the config.
        left_out: why it has no code: the config of a tuned function cannot run; empty: it has.
    """

    function: RecordedFunction
    general: bool = field(default=False, kw_only=True)
    parameters: tuple[Specialized, ...]
    options: Mapping[str, Any]
    symbol: Text
    threads: Count
    blocks: Count
    shared: Count
    scratch: Count
    maps: tuple[Mapping[str, Any], ...] = field(default=(), kw_only=True)
    form: Text = field(default="", kw_only=True)
    left_out: Text = field(default="", kw_only=True)

    @property
    def texts(self) -> list[str]:
        """The parameters whose constants JSON has no plain value for, but for numbers that are not finite.

        Elements of tuples are compared as texts in any case.
        """
        return [
            each.name
            for each in self.parameters
            if each.name in self.function.parameters
            and isinstance(each.value, (list, tuple, dict))
            and [*each.value] != ["float"]
        ]


def function_of(calls: Iterable[tuple[Iterable[str], RecordedCall]]) -> RecordedFunction:
    """The function of all variants of a kernel, with what their calls differ in.

    Arguments:
        calls: those that a lowering is for, with the archs that it has code for.
    """
    known = [(arch, call) for archs, call in calls for arch in archs]
    # An option that is a parameter, too, has the value of the parameter.
    options = {name for _, call in known for name in call.options}.difference(known[0][1].function.parameters)
    texts = {name for _, call in known for name in call.texts}
    both: dict[str, Any] = {"options": tuple(sorted(options)), "texts": tuple(sorted(texts))}
    by_arch: dict[str, RecordedFunction] = {}
    for arch, call in known:
        function = by_arch.setdefault(arch, replace(call.function, **both))
        by_arch[arch] = replace(function, functions={**function.functions, **call.function.functions})
    first = next(iter(by_arch.values()))
    others = {arch: to_json(function) for arch, function in sorted(by_arch.items()) if function != first}
    return replace(first, by_arch=others)


@dataclass(frozen=True, kw_only=True)
class Signature:
    """The content of signature.json.

    Arguments:
        schema: the revision of the format.
        kernel, slug, config, target, arch: whose lowering it is.
        entry: the C name of the packed function.
        schedule: what scheduled the code, for people.
        arguments: in call order.
        symbols: free sizes and their dtypes.
        device_kernels: for cuda; empty for llvm.
        outputs: their names, in the order in which a call returns new ones; empty: in that of the arguments.
        multiples: free size -> what its values are multiples of; the host code refuses others.
        stride_symbols: what only strides of arguments tell, and its dtype.
        limited: size or stride -> the dtype of 32 bits that a device function gets it in; None: the code computes with
            the types above, which limit how many elements arrays have.
        requires: comparisons of sizes, strides and integer arguments that have to hold for a call.
        constants: the integers that the code is compiled for, besides those of the config.
        launches: for cuda, what the host code launches, in order; None: it cannot be said as data.
        host_logic: why it cannot, as a sentence; empty if it can.
        workspaces, host_checks, tensor_maps: what the host code does besides. The checks have to hold before anything
            is launched, and launches pass the others by their numbers.
        exported: the function of the author's that the host code checks the arguments for; empty: it launches itself.
        opaque: whether its arguments are not known, so that a call is handed through: of such a function, or if it is
            recorded.
        recorded: what calls it is for, if a program calls it with a grid of its own.
        operators: the operators that it registers with PyTorch -> what their schemas have to be; empty: anything.
    """

    schema: Revision = SCHEMA
    kernel: Text
    slug: Text
    target: Text
    arch: Text
    entry: Text
    config: Mapping[str, Any] = field(default_factory=dict)
    schedule: str = ""
    arguments: tuple[Argument, ...]
    symbols: Mapping[str, Text]
    device_kernels: tuple[DeviceKernel, ...]
    outputs: tuple[str, ...] = ()
    multiples: Mapping[str, Count] = field(default_factory=dict)
    stride_symbols: Mapping[str, Text] = field(default_factory=dict)
    limited: Mapping[str, Text] | None = None
    requires: tuple[Text, ...] = ()
    constants: Mapping[str, int] = field(default_factory=dict)
    launches: tuple[Launch, ...] | None = None
    host_logic: Text = ""
    workspaces: tuple[Workspace, ...] = ()
    host_checks: tuple[HostCheck, ...] = ()
    tensor_maps: tuple[TensorMap, ...] = ()
    exported: Text = ""
    opaque: bool = False
    recorded: RecordedCall | None = None
    operators: Mapping[str, Text] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raises ValueError if the outputs are others than the arguments say, or no input tells what is required."""
        told = {*self.symbol_places(), *self.stride_places()} if self.requires else set[str]()
        for text in self.requires:
            if unknown := {*Requirement(text).names} - told:
                raise ValueError(f"it requires {shown(text)}, and no input tells {shown(min(unknown))}")
        if self.outputs and sorted(self.outputs) != sorted(self._marked):
            raise ValueError(f"outputs is {shown(self.outputs)}, and the arguments say that they are {self._marked}")

    @property
    def _marked(self) -> tuple[str, ...]:
        return tuple(argument.name for argument in self.arguments if argument.output)

    @property
    def returned(self) -> tuple[str, ...]:
        """The names of the outputs, in the order in which new ones are returned."""
        return self.outputs or self._marked

    def symbol_places(self) -> dict[str, Place]:
        """Where the inputs give each symbol."""
        places: dict[str, Place] = {}
        for position, argument in enumerate(self.arguments):
            if argument.launcher_kind == "KW_INT":
                places.setdefault(argument.name, Place(position))
        told = [argument.shape if argument.given and not argument.output else () for argument in self.arguments]
        for position, shape in enumerate(told):
            for axis, size in enumerate(shape):
                if isinstance(size, str) and size.isidentifier():
                    places.setdefault(size, Place(position, axis))
        lines = lines_in(told, [*places])
        return {**places, **{name: Place(at, axis, line.times, line.plus) for name, (at, axis, line) in lines.items()}}

    def stride_places(self) -> dict[str, list[tuple[int, int]]]:
        """Where arrays give each symbol that only strides have: the numbers of arguments and of dimensions."""
        places: dict[str, list[tuple[int, int]]] = {}
        firm = [not argument.output and argument.given is True for argument in self.arguments]
        for position in sorted(range(len(firm)), key=lambda number: not firm[number]):
            for axis, stride in enumerate(self.arguments[position].strides):
                if stride in self.stride_symbols:
                    places.setdefault(str(stride), []).append((position, axis))
        return places


UNKNOWN = Signature(kernel="", slug="", target="", arch="", entry="", arguments=(), symbols={}, device_kernels=())
"""In the place of a signature that is not there yet."""
