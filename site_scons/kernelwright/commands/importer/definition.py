"""Writes the definition of a kernel for a device function that was found in a source."""

from __future__ import annotations

import inspect
import json
import keyword
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from ...core.errors import printable
from ...define.arguments import SCALARS
from ...define.names import is_name
from ...frontends.cuda.source import Source
from ...frontends.launch_limits import THREADS
from .bounds import in_python
from .function import Function, Parameter, TemplateParameter
from .types import OF_NAMES, dtype_of, number_bytes, template_index, vector_dtype

OPTIONS = frozenset(inspect.signature(Source.__init__).parameters) - {"arguments"}
"""Names that an argument cannot have, because a Source takes something else by them."""

TABLE = "TYPES"
"""What the file calls its table of types."""

NAMED = ("Scalar", "Size", "Source", "Struct", "Tensor", "ceildiv")
"""What definitions name of ``kernelwright.cuda``."""

TAKEN = frozenset({*NAMED, "grid", "kernel", TABLE})
"""Names that the file uses already."""

CONFIG_TAKEN = TAKEN | {"target", "where"}
"""Names that a key of a config cannot have: the file uses them, or they mean something else."""

BLOCK = 256
"""Threads of a block, where the source does not say."""

INTEGER = 32
"""The value of a template's integer without a default: the threads of a warp, which can be a block, too."""

WIDTH = 88
"""Columns of the code that is written: what formatters keep to unless they are told otherwise."""


NAMELESS = "(anonymous namespace)::"
"""What Clang writes before a type in a namespace without a name."""


class LeftOut(Exception):
    """A function that cannot be a kernel, and why."""


@dataclass(frozen=True)
class Axis:
    """A key of the configs.

    Arguments:
        name: that of the key, which is a parameter of the definition.
        value: the value that it has; text is a dtype.
        text: its part of the C++ name of the function, which is an f-string.
    """

    name: str
    value: str | int | bool
    text: str

    @property
    def written(self) -> str:
        """The value as Python writes it."""
        return quoted(self.value) if isinstance(self.value, str) else str(self.value)


@dataclass(frozen=True)
class Definition:
    """The definition of a kernel, in lines.

    Arguments:
        name: that of the kernel.
        lines: its text.
        has_types: whether it uses the table of types.
    """

    name: str
    lines: tuple[str, ...]
    has_types: bool


def definition_of(function: Function, source: str, names: set[str]) -> Definition:
    """Write the definition of a kernel.

    Arguments:
        source: the path of the file that has it, relative to that of the definition.
        names: those of the kernels so far; the name of this one is added.

    Raises:
        LeftOut: it cannot be a kernel.
    """
    if function.problem:
        raise LeftOut(function.problem)
    axes = _fitting_axes(function)
    body = _Body(function, axes)
    arguments = body.arguments()
    called = f"{'f' if axes else ''}{quoted(_instance(function, axes))}"
    name = kernel_name(function.name, names)
    head = [*_hints(axes, body.written), *_decorator(axes)]
    signature = call(f"def {name}", [f"{axis.name}: {type(axis.value).__name__}" for axis in axes], 0, ":")
    document = f'    """{function.name}, line {function.line} of {in_docstring(source.rpartition("/")[2])}"""'
    inner = [f"        {line}" for line in (f"{quoted(source)},", f"{called},", *arguments, *body.launch())]
    lines = [*head, *signature, document, "    return Source(", *inner, "    )"]
    return Definition(name, tuple(lines), any(isinstance(axis.value, str) for axis in axes))


def in_docstring(text: str) -> str:
    """A name of a file as a docstring can have it."""
    return re.sub(r'["\\\\]', "_", printable(text))


def quoted(text: str) -> str:
    """A string as Python writes it, in double quotes."""
    return json.dumps(text, ensure_ascii=False)


def call(head: str, items: Iterable[str], indent: int, end: str = "") -> list[str]:
    """A call in one line, or with a line for each argument where it is too long."""
    listed = list(items)
    space = " " * indent
    line = f"{space}{head}({', '.join(listed)}){end}"
    if len(line) <= WIDTH or not listed:
        return [line]
    return [f"{space}{head}(", *(f"{space}    {item}," for item in listed), f"{space}){end}"]


def comment(text: str, indent: int = 0, mark: str = "") -> list[str]:
    """A comment in lines that are not too long.

    Arguments:
        indent: columns in front of it, which are not in the lines.
        mark: what the first line begins with.
    """
    following = "# " + " " * len(mark)
    return textwrap.wrap(text, WIDTH - indent, initial_indent=f"# {mark}", subsequent_indent=following)


# Names.


def free_name(wanted: str, taken: Iterable[str], default: str) -> str:
    """A name for something in Python: the one that C++ has, with an underscore behind it where it is taken."""
    name = wanted if wanted.isascii() and wanted.isidentifier() else default
    unavailable = {*taken}
    while name in unavailable or keyword.iskeyword(name):
        name += "_"
    return name


def kernel_name(qualified: str, names: set[str]) -> str:
    """A name for a kernel: that of the function; with its namespaces, or a number, where there is one already."""
    parts = [_plain(part) for part in qualified.split("::")]
    plain = [parts[-1], _plain("_".join(parts))]
    candidates = [
        *plain,
        *(f"{base}_{number}" for base in (plain[1], "function") for number in range(2, len(names) + 3)),
    ]
    name = next(name for name in candidates if is_name(name) and name not in TAKEN | names)
    names.add(name)
    return name


def _plain(name: str) -> str:
    """A name as a kernel can have one: short, in ASCII, with single underscores."""
    words = "".join(letter if letter.isascii() else "_" for letter in name).split("_")
    return "_".join(word for word in words if word)[:80].rstrip("_")


# Templates.


def _fitting_axes(function: Function) -> list[Axis]:
    """The keys of the configs, with integers so small that a block has no more threads than it can have.

    Raises:
        LeftOut: one of them can have no value.
    """
    integer = INTEGER
    while (threads := _first_threads(function, axes := _axes(function, integer))) and threads > THREADS:
        if integer == 1:
            break
        integer //= 2
    return axes


def _first_threads(function: Function, axes: Sequence[Axis]) -> int | None:
    """The threads of a block with the first config; None: its bounds are no arithmetic."""
    written = _threads(function, axes, lambda axis: str(int(axis.value)))
    try:
        return int(eval(written, {"__builtins__": {}})) if written else None  # digits and signs
    except (SyntaxError, TypeError, ZeroDivisionError):
        return None


def _threads(function: Function, axes: Sequence[Axis], written: Callable[[Axis], str]) -> str | None:
    """The threads in the bounds as Python computes them."""
    names = [parameter.name for parameter in function.template][: len(axes)]
    numbers = {name: written(axis) for name, axis in zip(names, axes, strict=True) if not isinstance(axis.value, str)}
    return in_python(function.threads, numbers.get)


def _axes(function: Function, integer: int) -> list[Axis]:
    """The keys of the configs: the parameters of the template, but for those at its end that keep their defaults.

    Arguments:
        integer: the value of integers without a default.

    Raises:
        LeftOut: one of them can have no value.
    """
    needed = list(function.template)
    used = {template_index(parameter.element) for parameter in function.parameters}
    while needed and needed[-1].default and len(needed) - 1 not in used and _is_left_to_default(needed[-1]):
        needed.pop()
    axes: list[Axis] = []
    for number, parameter in enumerate(needed):
        name = free_name(parameter.name, {*CONFIG_TAKEN, *(axis.name for axis in axes)}, f"P{number}")
        is_number = any(template_index(p.element) == number and p.kind == "number" for p in function.parameters)
        axes.append(_axis(parameter, name, is_number, integer))
    return axes


def _is_left_to_default(parameter: TemplateParameter) -> bool:
    is_known = (
        " ".join(parameter.default) in OF_NAMES if parameter.kind == "type" else parameter.kind in ("integer", "bool")
    )
    return not parameter.name or not is_known


def _axis(parameter: TemplateParameter, name: str, is_number: bool, integer: int) -> Axis:
    """The key for a parameter of a template.

    Arguments:
        is_number: whether the type that it takes is that of a number among the arguments.
        integer: the value of an integer without a default.
    """
    default = " ".join(parameter.default)
    if parameter.kind == "type":
        dtype = OF_NAMES.get(default, "float32")
        return Axis(name, "float32" if is_number and dtype not in SCALARS else dtype, f"{{{TABLE}[{name}]}}")
    if parameter.kind == "bool":
        return Axis(name, default == "true", f"{{int({name})}}")
    if parameter.kind == "integer":
        return Axis(name, _integer(default, integer), f"{{{name}}}")
    if parameter.kind == "enumeration":
        return Axis(name, parameter.first, f"static_cast<{parameter.type.replace(NAMELESS, '')}>({{{name}}})")
    named = parameter.name or "without a name"
    raise LeftOut(f"the parameter {named} of its template is neither a type nor an integer")


def _integer(text: str, default: int) -> int:
    """What a plain decimal literal of C++ says, with a suffix or without."""
    match = re.fullmatch(r"(0|[1-9][0-9]*)[uUlL]*", text)
    return int(match[1]) if match else default


def _instance(function: Function, axes: Sequence[Axis]) -> str:
    """The function as C++ names it.

    Raises:
        LeftOut: there are several templates of its name.
    """
    if function.template:
        if function.is_overloaded:
            raise LeftOut("there are several templates of its name")
        return f"{function.name}<{', '.join(axis.text for axis in axes)}>"
    if function.is_overloaded:  # a cast chooses the one with these parameters
        # A type in a namespace without a name is found by its own name.
        types = ", ".join(parameter.type.replace(NAMELESS, "") for parameter in function.parameters)
        return f"*static_cast<void (*)({types})>({function.name})"
    return function.name


# Arguments and launch.


class _Body:
    """The arguments of the Source of a function."""

    def __init__(self, function: Function, axes: Sequence[Axis]) -> None:
        self._function = function
        self._axes = axes
        self._names: dict[int, str] = {}
        named = [each for parameter in function.parameters for each in parameter.parts]
        for number, parameter in enumerate(named):
            taken = {*OPTIONS, *self._names.values()}
            self._names[id(parameter)] = free_name(parameter.name, taken, f"arg{number}")
        pointers = [each for each in named if each.kind == "pointer"]
        names = self._names.values()
        self._sizes = {
            name: free_name(f"{name.rstrip('_')}_size", names, "size")
            for name in (self._names[id(each)] for each in pointers)
        }
        self._hinted: set[str] = set()
        self._types: dict[str, str] = {}
        self.written = [self._names[id(each)] for each in pointers if not each.is_constant]

    def arguments(self) -> list[str]:
        """The lines of the arguments.

        Raises:
            LeftOut: a parameter cannot be one.
        """
        parameters = self._function.parameters
        for parameter in parameters:
            if parameter.kind == "other":
                raise self._no_argument(self._names[id(parameter)], parameter)
        if not self._sizes:
            raise LeftOut("none of its parameters is a pointer, so nothing tells the device that it runs on")
        return [line for parameter in parameters for line in self._argument(self._names[id(parameter)], parameter)]

    def _no_argument(self, name: str, parameter: Parameter) -> LeftOut:
        return LeftOut(f"its parameter {name} is {shown_type(parameter, self._function)}, which can be no argument")

    def launch(self) -> list[str]:
        """The lines of the launch."""
        block, hint = self._block()
        covered = next(iter(self.written or self._sizes))
        lines = comment(f"TODO: the launch: here a thread for each element of {covered}{hint}.", 8)
        for text in self._restrictions():
            lines += comment(f"TODO: {text}.", 8)
        lines += [f'grid=ceildiv("{self._sizes[covered]}", {block}),', f"block={block},"]
        if self._function.has_dynamic_shared:
            lines += [*comment("TODO: the bytes of its array in shared memory, an integer or a Size.", 8), "shared=0,"]
        lines += ["cooperative=True,"] if self._function.is_cooperative else []
        held = [f"{quoted(name)}: {quoted(dtype)}" for name, dtype in self._types.items()]
        return [*lines, f"types={{{', '.join(held)}}},"] if held else lines

    def _block(self) -> tuple[str, str]:
        """The threads of a block, and what the comment says of them."""
        threads = _threads(self._function, self._axes, lambda axis: axis.name)
        if threads and _first_threads(self._function, self._axes):
            return threads, ""
        if bounds := printable(self._function.bounds):
            return str(INTEGER), f", {INTEGER} in a block, and its source says __launch_bounds__({bounds})"
        return str(BLOCK), f", {BLOCK} in a block"

    def _restrictions(self) -> Iterator[str]:
        """What the source asks of the grid."""
        if self._function.cluster:
            yield f"its source says __cluster_dims__({printable(self._function.cluster)}): a grid of whole clusters"
        if self._function.is_cooperative:
            yield "its blocks wait for each other, so all of the grid has to fit on the device at once"

    def _argument(self, name: str, parameter: Parameter) -> list[str]:
        if parameter.kind == "pointer":
            return self._tensor(name, parameter)
        if parameter.kind == "structure":
            for each in parameter.members:
                if self._names[id(each)] != each.name:
                    raise LeftOut(f"its parameter {name} has the member {each.name}, and that name is taken")
            inner = [line for each in parameter.members for line in self._argument(each.name, each)]
            return [f"{name}=Struct(", *(f"    {line}" for line in inner), "),"]
        dtype = self._dtype(parameter)
        if parameter.kind == "number" and dtype == "uint64":
            hint = "a count that callers do not pass; as a number, uint64 can be no argument"
            return [*self._hint(hint), f'{name}=Size("{next(iter(self._sizes.values()))}", dtype="uint64"),']
        if dtype is None or dtype not in (*SCALARS, "uint64"):
            raise self._no_argument(name, parameter)
        scalar = f"{name}=Scalar({self._written(parameter, dtype)}),"
        tensor, size = next(iter(self._sizes.items()))
        hint = f'numbers that follow from shapes can be, for example, Size("{size}")'
        if "stride" in name.lower():
            hint = f'a stride can be Stride("{tensor}", 0), as the array has it, with strides="dense" in that Tensor'
        return [*(self._hint(hint) if "int" in dtype else []), scalar]

    def _tensor(self, name: str, parameter: Parameter) -> list[str]:
        dtype, hint = self._dtype(parameter), ""
        size = quoted(self._sizes[name])
        packed: list[str] = []
        if dtype is None and (parameter.bytes or parameter.element == "void"):
            dtype = vector_dtype(parameter.element) or "uint8"
            if dtype == "uint8":
                hint = f"{name} points to {parameter.element}, of which these are the bytes"
                if parameter.element != "void":
                    # A type in a namespace without a name is found by its own name.
                    self._types[parameter.element.replace(NAMELESS, "")] = dtype
            packed = _packed(parameter, dtype, size)
        if dtype is None:
            raise self._no_argument(name, parameter)
        items = [self._written(parameter, dtype), size, *map(str, parameter.inner), *packed]
        items += [] if parameter.is_constant else ["written=True"]
        shapes = self._hint("the shapes: a size for each dimension; equal names are equal sizes")
        lines = call(f"{name}=Tensor", items, 8, ",")
        return [*shapes, *(self._hint(hint) if hint else []), *(line[8:] for line in lines)]

    def _dtype(self, parameter: Parameter) -> str | None:
        """The dtype of a parameter; for a type of the template, the one in the config."""
        index = template_index(parameter.element)
        if index is None:
            return dtype_of(parameter.element)
        value = self._axes[index].value
        return value if isinstance(value, str) else None

    def _written(self, parameter: Parameter, dtype: str) -> str:
        index = template_index(parameter.element)
        return quoted(dtype) if index is None else self._axes[index].name

    def _hint(self, text: str) -> list[str]:
        """A comment, once for each kernel."""
        if text in self._hinted:
            return []
        self._hinted.add(text)
        return comment(f"TODO: {text}.", 8)


def shown_type(parameter: Parameter, function: Function) -> str:
    """A type for a reader, with the names of the template's parameters."""
    text = parameter.type
    for number, of_template in enumerate(function.template):
        text = text.replace(f"type-parameter-0-{number}", of_template.name)
    return text


def _packed(parameter: Parameter, dtype: str, size: str) -> list[str]:
    """The alignment and the multiples that a tensor needs, to be read as elements of a class such as ``float4``."""
    elements = parameter.bytes // number_bytes(dtype)
    aligned = [f"alignment={parameter.alignment}"] if parameter.alignment > number_bytes(dtype) else []
    return [*aligned, f"multiples={{{size}: {elements}}}"] if elements > 1 else aligned


def _hints(axes: Sequence[Axis], written: Sequence[str]) -> list[str]:
    lines = []
    if axes:
        lines += comment("TODO: the configs to build; these values are examples.")
    if written:
        listed = ", ".join(quoted(name) for name in written)
        condition = "as far as the function writes all of them and reads none, and their sizes follow from others"
        lines += comment(f"TODO: outputs=[{listed}], {condition}.")
    return lines


def _decorator(axes: Sequence[Axis]) -> list[str]:
    """The line above the definition, or its lines where it is long."""
    items = ['frontend="cuda"']
    if axes:
        values = [f"{axis.name}=[{axis.written}]" for axis in axes]
        line = f"configs=grid({', '.join(values)})"
        if len(line) + 5 > WIDTH:
            inner = "".join(f"        {value},\n" for value in values)
            line = f"configs=grid(\n{inner}    )"
        items.append(line)
    if "\n" in items[-1]:
        return ["@kernel(", *"\n".join(f"    {item}," for item in items).split("\n"), ")"]
    return call("@kernel", items, 0)
