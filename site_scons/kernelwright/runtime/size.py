"""Sizes as signatures have them: expressions of integers, symbols, ``+ - * // %``, ``min``, ``max`` and ``ceildiv``.

They have Python's syntax and arithmetic; ``ceildiv`` is a quotient that is rounded up. A requirement compares two of
them. Only this module parses them.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Symbols = Mapping[str, Any]
Sizes = Sequence[int | str]
_Compute = Callable[[Symbols], Any]

OPERATORS: dict[type[ast.operator], str] = {
    ast.Add: "+",
    ast.Sub: "-",
    ast.Mult: "*",
    ast.FloorDiv: "//",
    ast.Mod: "%",
}
FUNCTIONS = ("min", "max")
CEILDIV = "ceildiv"

COMPARISONS: dict[type[ast.cmpop], tuple[str, Callable[[Any, Any], Any]]] = {
    ast.Lt: ("<", operator.lt),
    ast.LtE: ("<=", operator.le),
    ast.Gt: (">", operator.gt),
    ast.GtE: (">=", operator.ge),
    ast.Eq: ("==", operator.eq),
    ast.NotEq: ("!=", operator.ne),
}
"""What compares two sizes: how it is written, in Python and in C, and what computes it."""

INT32_LIMIT = 2**31 - 1 - 65535
"""The most elements that a tensor may have in a kernel with int32 sizes (``KW_INT32_LIMIT`` of the launcher)."""

MULTIPROCESSORS = "multiprocessors"
"""What a size of a launch calls the number of multiprocessors of the device that a call runs on."""

OCCUPANCY = "occupancy"
"""What a size of a launch calls the number of its blocks that a multiprocessor can run at once."""

LONGEST = 200
"""The most characters of a size that an error shows."""


def translate(
    text: str, number: Callable[[int], T], symbol: Callable[[str], T], operation: Callable[[str, list[T]], T]
) -> T:
    """Translate a size into another form.

    Arguments:
        text: the size.
        number: translates an integer.
        symbol: translates a symbol.
        operation: translates an operator or a function, given its translated operands: one for a negation, two for
            other operators, two or more for a function.

    Raises:
        ValueError: the size contains anything else.
    """

    def walk(node: ast.expr) -> T:
        match node:
            case ast.Constant(value=int(value)) if not isinstance(value, bool):
                return number(value)
            case ast.Name(id=name):
                return symbol(name)
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return operation("-", [walk(operand)])
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return operation(OPERATORS[type(op)], [walk(left), walk(right)])
            case ast.Call(func=ast.Name(id=name), args=[_, _, *_] as operands, keywords=[]) if name in FUNCTIONS:
                return operation(name, [walk(operand) for operand in operands])
            case ast.Call(func=ast.Name(id=name), args=[left, right], keywords=[]) if name == CEILDIV:
                above = operation("-", [operation("+", [walk(left), walk(right)]), number(1)])
                return operation("//", [above, walk(right)])
        raise ValueError(f"cannot translate the size {ast.unparse(node)!r}")

    return _of_expression(text, walk)


def _of_expression(text: str, function: Callable[[ast.expr], T]) -> T:
    """What a function makes of a parsed expression. Raises ValueError if it is none, or is nested too deeply."""
    try:
        return function(ast.parse(text.strip(), mode="eval").body)
    except SyntaxError as error:
        raise ValueError(f"the size {text[:LONGEST]!r} is not an expression") from error
    except (RecursionError, MemoryError) as error:
        raise ValueError(f"the size {text[:LONGEST]!r} has too many terms inside of one another") from error


_ANY = "__stride_"


def stride_name(argument: str, axis: int) -> str:
    """The symbol of a stride of an argument that has no name of its own."""
    return f"{argument}{_ANY}{axis}"


def stride_of(name: str) -> str:
    """What a definition writes for such a symbol; the name itself if it is another one."""
    argument, is_stride, axis = name.rpartition(_ANY)
    return f'Stride("{argument}", {axis})' if is_stride else name


def size_text(size: int | str, multiples: Mapping[str, int]) -> str:
    """A size as messages show it.

    Arguments:
        size: a number, or an expression.
        multiples: symbol -> what its values are multiples of.
    """
    known = multiples.get(size, 1) if isinstance(size, str) else 1
    return f"{size} (a multiple of {known})" if known > 1 else str(size)


def argument_text(
    kind: str,
    dtype: str,
    shape: Sizes,
    multiples: Mapping[str, int],
    strides: Sizes = (),
    given: bool | None = True,
    *,
    folds: bool = False,
) -> str:
    """What an argument has to be, such as ``float16[n, 64]``, as messages show it.

    Arguments:
        kind: ``tensor``, or something else for a number.
        shape, strides: of a tensor, without strides if none are declared.
        multiples: see :func:`size_text`.
        given: False for None, and None for either.
        folds: whether leading dimensions fold into the first size.
    """
    if given is False:
        return "None"
    listed = [size_text(size, multiples) for size in shape]
    listed[:1] = [f"(..., {listed[0]})"] if folds else listed[:1]
    sizes = f"[{', '.join(listed)}]" if kind == "tensor" else ""
    texts = ("any" if _is_unnamed(stride) else size_text(stride, multiples) for stride in strides)
    declared = f" with strides [{', '.join(texts)}]" if strides else ""
    return dtype + sizes + declared + ("" if given else " or None")


def _is_unnamed(stride: int | str) -> bool:
    return isinstance(stride, str) and stride.isidentifier() and stride_of(stride) != stride


class Size:
    """A size that can be computed; its text is parsed once.

    Arguments:
        text: the expression.

    Raises:
        ValueError: :func:`translate` refuses it.

    >>> Size("max(2 * n, 5) // 2").value({"n": 4})
    4
    """

    def __init__(self, text: str) -> None:
        self.text = text
        self.names: list[str] = []
        self._compute = translate(text, _constant, self._lookup, _computed)

    def _lookup(self, name: str) -> _Compute:
        self.names.append(name)
        return operator.itemgetter(name)

    def value(self, symbols: Symbols) -> Any:
        """The size for values of the symbols, which may be symbolic integers of PyTorch.

        Raises:
            ValueError: a symbol has no value.
            ZeroDivisionError: it divides by zero for these values.
        """
        try:
            return self._compute(symbols)
        except KeyError as error:
            known = sorted(symbols)
            raise ValueError(f"cannot evaluate the size {self.text!r} with the symbols {known}") from error


def _constant(number: int) -> _Compute:
    return lambda symbols: number


def _computed(operation: str, operands: list[_Compute]) -> _Compute:
    function = _FUNCTIONS[operation]
    first, *rest = operands
    if not rest:
        return lambda symbols: -first(symbols)
    for second in rest:
        first = _of_two(function, first, second)
    return first


def _of_two(function: Callable[[Any, Any], Any], first: _Compute, second: _Compute) -> _Compute:
    return lambda symbols: function(first(symbols), second(symbols))


def _symbolic(function: Callable[..., int], method: str) -> Callable[[Any, Any], Any]:
    """``min`` or ``max``, by the method that symbolic integers of PyTorch have for it."""

    def combined(first: Any, second: Any) -> Any:
        if not isinstance(first, int):
            return getattr(first, method)(second)
        return function(first, second) if isinstance(second, int) else getattr(second, method)(first)

    return combined


_FUNCTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": operator.floordiv,
    "%": operator.mod,
    "min": _symbolic(min, "__sym_min__"),
    "max": _symbolic(max, "__sym_max__"),
}


class Line(NamedTuple):
    """A size that tells its one name: ``times * name + plus``.

    Arguments:
        name: None, in a part of a size that has none.
        times: from 1.
    """

    name: str | None
    times: int
    plus: int

    def solved(self, size: Any) -> Any:
        """The value of the name where a call has that size, which may be a symbolic integer of PyTorch."""
        return (size - self.plus) // self.times

    def fits(self, size: Any, step: int = 1) -> bool:
        """Whether there is such a value from 0 that is a multiple of ``step``."""
        return bool((size - self.plus) % (self.times * step) == 0) and bool(size >= self.plus)


def line(text: str) -> Line | None:
    """A size such as ``2 * d + 1`` as what its one name follows from; None: it is no such size.

    >>> line("2 * (d + 3)")
    Line(name='d', times=2, plus=6)
    """

    def operation(sign: str, operands: list[Line]) -> Line:
        first, *rest = operands if len(operands) > 1 else [Line(None, 0, 0), *operands]
        for second in rest:
            first = _together(sign, first, second)
        return first

    try:
        found = translate(text, lambda number: Line(None, 0, number), lambda name: Line(name, 1, 0), operation)
    except ValueError:
        return None
    return found if found.name and 0 < found.times < 1 << 31 and abs(found.plus) < 1 << 31 else None


def lines_in(shapes: Iterable[Sequence[int | str]], told: Collection[str]) -> dict[str, tuple[int, int, Line]]:
    """The names that only such sizes tell -> the first place of each: the numbers of a shape and of a dimension.

    Arguments:
        shapes: those of all arguments; none of what a call need not pass.
        told: the integers among the arguments.
    """
    known, found = {*told}, dict[str, tuple[int, int, Line]]()
    sizes = [(position, axis, size) for position, shape in enumerate(shapes) for axis, size in enumerate(shape)]
    texts = [(position, axis, size) for position, axis, size in sizes if isinstance(size, str)]
    known.update(size for _, _, size in texts if size.isidentifier())
    for position, axis, size in texts:
        told_line = None if size.isidentifier() else line(size)
        if told_line is not None and told_line.name not in known:
            found.setdefault(str(told_line.name), (position, axis, told_line))
    return found


def line_text(size: str, name: str, step: int) -> str:
    """What a size is that tells its name, as messages show it; ``step`` is what the name is a multiple of."""
    return size if step == 1 else f"{size} with {name} a multiple of {step}"


def _together(sign: str, one: Line, other: Line) -> Line:
    name = one.name or other.name
    if sign == "*" and not (one.times and other.times):
        return Line(name, one.times * other.plus + other.times * one.plus, one.plus * other.plus)
    if sign not in ("+", "-") or {one.name, other.name} - {None, name}:
        raise ValueError(f"{sign} makes no line")
    factor = 1 if sign == "+" else -1
    return Line(name, one.times + factor * other.times, one.plus + factor * other.plus)


def value_or_none(size: Size, symbols: Mapping[str, Any]) -> Any:
    """A size; None if it divides by zero, or is not an int64."""
    try:
        value = size.value(symbols)
    except ZeroDivisionError:
        return None
    return None if isinstance(value, int) and not -(2**63) < value < 2**63 else value


class Requirement:
    """A comparison of two sizes, such as ``n <= 4096``, that a call has to fulfil.

    Arguments:
        text: the comparison.
        values: names -> integers in their place.

    Attributes:
        text: the comparison with these integers, as ``ast.unparse`` writes it.
        sides: the two sizes.
        sign: what compares them, such as ``<=``.
        names: the names in it, each once.

    Raises:
        ValueError: it is something else than one comparison of two sizes.
    """

    def __init__(self, text: str, values: Mapping[str, int] | None = None) -> None:
        def put_in(node: ast.expr) -> ast.expr:
            return _PutIn(values or {}).visit(node)  # type: ignore[no-any-return]

        def parts(node: ast.expr) -> tuple[str, str, type[ast.cmpop], str]:
            match put_in(node):
                case ast.Compare(left=left, ops=[op], comparators=[right]) as whole if type(op) in COMPARISONS:
                    return ast.unparse(whole), ast.unparse(left), type(op), ast.unparse(right)
            raise ValueError(f"{text[:LONGEST]!r} is not one comparison of two sizes")

        self.text, left, kind, right = _of_expression(text, parts)
        self.sides = Size(left), Size(right)
        self.sign, self._compare = COMPARISONS[kind]
        self.names = list(dict.fromkeys((*self.sides[0].names, *self.sides[1].names)))

    def holds(self, symbols: Symbols) -> bool:
        """Whether it holds for values of the names; not if a side divides by zero, or is beyond int64."""
        left, right = (value_or_none(side, symbols) for side in self.sides)
        return left is not None and right is not None and bool(self._compare(left, right))

    def unfulfilled_text(self, symbols: Symbols) -> str:
        """What it requires and what there is, such as ``n <= 4096, and n is 5000``."""
        values = {name: value_or_none(Size(name), symbols) for name in self.names}
        # True + 0 is 1, as which a bool is passed.
        told = (f"{name} is {'beyond int64' if value is None else value + 0}" for name, value in values.items())
        return f"{self.text}, and {' and '.join(told)}"


class _PutIn(ast.NodeTransformer):
    """Puts integers in the place of names."""

    def __init__(self, values: Mapping[str, int]) -> None:
        self._values = values

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(self._values[node.id]) if node.id in self._values else node


def are_int32(sizes: Collection[str], strides: Collection[str], limited: object) -> bool:
    """Whether a kernel computes offsets in arrays with 32 bits, so that arrays must be small enough for that.

    Arguments:
        sizes, strides: the dtypes of its size symbols, and of symbols that only strides have.
        limited: what its functions get in 32 bits; None: they compute with the symbols.
    """
    return limited is None and ("int64" not in sizes or "int32" in strides)
