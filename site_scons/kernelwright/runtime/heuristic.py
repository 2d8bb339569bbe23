"""What a build and the packages that it makes know alike of recorded functions of Triton: options, names of dtypes, the
marks of constants, and how the parameters are computed that heuristics decide.

Kernelwright has read the expressions of heuristics from the program (``frontends/triton/recorded_function.py``).
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any


def cdiv(dividend: int, divisor: int) -> int:
    """A quotient, rounded up."""
    return -(-dividend // divisor)


def next_power_of_2(number: int) -> int:
    """The least power of two that is not less than a number; 0 for numbers below 1."""
    return 1 << (number - 1).bit_length() if number > 0 else 0


LAUNCH_OPTIONS = {
    **{"num_warps": 4, "num_stages": 3, "num_ctas": 1, "maxnreg": None, "enable_fp_fusion": True},
    **{"launch_cooperative_grid": False, "launch_pdl": False},
}
"""The options of Triton that a compilation or a launch can be given, and their defaults."""

FLOATS = {
    **{"float64": "fp64", "float32": "fp32", "float16": "fp16", "bfloat16": "bf16"},
    **{"float8_e4m3fn": "fp8e4nv", "float8_e5m2": "fp8e5"},
}
"""Dtypes of floats, and what Triton calls them."""

FUNCTIONS = {
    **{function.__name__: function for function in (min, max, abs, int, bool, len)},
    "cdiv": cdiv,
    "next_power_of_2": next_power_of_2,
}
"""The functions that an expression can call."""

MARK = "\x01"
"""What is in front of the text of a constant that is no number and no text itself."""


def undeclared(constant: Any) -> Any:
    """The constant that ``tl.constexpr`` makes of a parameter which is not declared as one, as a recording has it.

    Triton compiles other code for it than for the plain value, unless that is a constant by itself.
    """
    is_itself = constant is None or (type(constant) is int and constant == 1)
    is_itself = is_itself or (isinstance(constant, dict) and "function" in constant)
    return constant if is_itself else {"constexpr": constant}


METHODS = ("numel", "element_size", "stride", "size", "dim", "is_contiguous")
"""The methods of tensors that an expression can call."""


def tuning_key(arguments: Mapping[str, Any], names: Iterable[str], parameters: Iterable[str]) -> list[Any]:
    """What the config of a tuned function is chosen by.

    Arguments:
        arguments: of a call.
        names: the parameters that decide.
        parameters: all of them, in order.

    Returns:
        The values of those that decide, and behind them the names of the dtypes of all tensors.
    """
    dtypes = (getattr(arguments.get(name), "dtype", None) for name in parameters)
    return [
        *(arguments.get(n) for n in names),
        *(str(dtype).rpartition(".")[2] for dtype in dtypes if dtype is not None),
    ]


ATTRIBUTES = ("shape", "ndim")
"""The attributes of tensors that an expression can ask for."""

NODES = frozenset(
    (
        *("Expression", "Constant", "Subscript", "Name", "Load", "Tuple", "List", "Call", "Attribute"),
        *("Compare", "Eq", "NotEq", "Lt", "LtE", "Gt", "GtE", "Is", "IsNot", "In", "NotIn"),
        *("BoolOp", "And", "Or", "UnaryOp", "Not", "USub", "IfExp"),
        *("BinOp", "Add", "Sub", "Mult", "FloorDiv", "Div", "Mod", "Pow"),
        *("LShift", "RShift", "BitAnd", "BitOr", "BitXor"),
    )
)
"""What an expression consists of (Python's module ``ast``)."""


def rule_of(expression: str) -> Callable[[Mapping[str, Any]], Any]:
    """The function that computes an expression of the manifest of the arguments of a call.

    Raises:
        ValueError: it is more than an expression of arguments and numbers.
    """
    import ast

    for node in ast.walk(ast.parse(expression, mode="eval")):
        is_known = type(node).__name__ in NODES
        if isinstance(node, ast.Attribute):
            is_known = node.attr in (*METHODS, *ATTRIBUTES)
        if isinstance(node, ast.Name):
            is_known = node.id == "args" or node.id in FUNCTIONS
        if not is_known:
            raise ValueError(f"{expression!r} is no expression of arguments and numbers")
    rule: Callable[[Mapping[str, Any]], Any] = eval(f"lambda args: {expression}", {"__builtins__": {}, **FUNCTIONS})
    return rule
