"""What a function reads from around it: what a repeated call compares, or why nothing can be compared.

The code of a definition is searched, and that of all the user's functions that it reaches. What they read is compared
by identity, so it has to be something that cannot change inside: a number, a text, a function. What they read from a
module, whoever wrote it, is compared like any variable. A list, a dict, an object may change unseen. Whatever is not
known to be safe is a doubt: with one, a call cannot tell, and the definition is evaluated again.
"""

from __future__ import annotations

import builtins
import contextlib
import dis
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import repeat
from operator import is_
from types import BuiltinFunctionType, CellType, CodeType, FunctionType, ModuleType
from typing import Any, NoReturn

from .libraries import (
    ASK_FOR_TARGET,
    HEAP_TYPE,
    is_code_of_library,
    is_constant,
    is_partial_of_library,
    is_tag,
    numpy_settings,
    root_of,
    target_around,
)

PLAIN = (bool, int, float, complex, str, bytes, type(None), type(Ellipsis), range)
"""Types of values that cannot change; values of derived classes may."""

_STATEFUL = """
format format_map tensorize current current_scope get_attr seed fork_seed work_on enter_postproc sample_categorical
sample_perfect_tile sample_partitioned_tile sample_compute_location get_global_func tofile
__globals__ __dict__ __builtins__ __closure__ __code__ __self__ __func__ __wrapped__ __module__ __subclasses__ __mro__
__bases__ __base__ __getattribute__ __doc__ __name__ __qualname__ __annotations__ __type_params__ __defaults__
__kwdefaults__ gi_frame cr_frame f_globals f_locals f_back tb_frame
"""
STATEFUL = frozenset(_STATEFUL.split())
"""Names of attributes of objects that lead to something which may change: registries, random numbers, namespaces."""

GLOBAL = frozenset({"LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"})
CELL = frozenset({"LOAD_DEREF", "LOAD_CLASSDEREF", "LOAD_FROM_DICT_OR_DEREF"})
ATTRIBUTE = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "LOAD_SUPER_METHOD", "IMPORT_FROM"})
ASSIGNED = frozenset({"STORE_GLOBAL", "DELETE_GLOBAL"})
FOLLOWED = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
UNIMPORTANT = frozenset({"CACHE", "EXTENDED_ARG", "NOP", "RESUME", "PRECALL", "PUSH_NULL"})

PARSED = frozenset({"prim_func", "ir_module", "macro", "inline"})
"""Decorators that read the text of a function."""

TEXT_ANNOTATIONS = 0x1000000
"""Flag of code whose annotations are texts (``from __future__ import annotations``); TVMScript evaluates them."""

MOST_FUNCTIONS = 300
"""A definition that reaches more is evaluated again: to compare them would take as long."""

ABSENT = object()


@dataclass(frozen=True)
class Doubt:
    """Something that a function reads and that no call can compare.

    Arguments:
        what: the variable, and of what kind it is.
        location: ``path:line`` of the code that reads it.
    """

    what: str
    location: str


class Reached:
    """What some functions read from around them, as it was when it was looked at.

    Arguments:
        items: a namespace, a name in it, and what that was.
        attributes: an object, the name of an attribute, and what that was.
        settings: a function that gives a setting, and what it gave.
        empty: dicts that were empty.
        files: those that TVMScript reads the text of functions from.
        doubt: something that cannot be compared; then nothing is.
    """

    def __init__(
        self,
        items: Collection[tuple[dict[str, Any], str, Any]] = (),
        attributes: Collection[tuple[Any, str, Any]] = (),
        settings: Collection[tuple[Callable[[], Any], Any]] = (),
        empty: Collection[Mapping[str, Any]] = (),
        files: Iterable[str] = (),
        doubt: Doubt | None = None,
    ) -> None:
        self.files = tuple(files)
        self.doubt = doubt
        self._items = tuple(zip(*items, strict=True)) or ((), (), ())
        self._attributes = tuple(zip(*attributes, strict=True)) or ((), (), ())
        self._settings = tuple(settings)
        self._empty = tuple(empty)
        self._is_nothing = not (items or attributes or settings or empty or doubt)

    def is_current(self) -> bool:
        """Whether all of it is known to be unchanged. Each call asks, so the loops are those of ``map``."""
        if self._is_nothing:
            return True
        namespaces, names, values = self._items
        owners, attributes, had = self._attributes
        try:
            return (
                self.doubt is None
                and not any(self._empty)
                and all(map(is_, map(dict.get, namespaces, names, repeat(ABSENT)), values))
                and all(map(is_, map(getattr, owners, attributes, repeat(ABSENT)), had))
                and all(setting() is value for setting, value in self._settings)
            )
        except ValueError:  # a cell that has lost its value
            return False


def reached_by(functions: Iterable[Callable[..., Any]]) -> Reached:
    """What some functions, and those that they call, read from around them."""
    walk = _Walk()
    try:
        for function in functions:
            walk.value(getattr(function, "__name__", "?"), function, (), "")
    except _CannotTellError as found:
        return Reached(doubt=found.doubt)
    return Reached(walk.items.values(), walk.attributes.values(), walk.settings.items(), walk.empty, sorted(walk.files))


class _CannotTellError(Exception):
    """Something cannot be compared."""

    def __init__(self, doubt: Doubt) -> None:
        super().__init__(doubt.what)
        self.doubt = doubt


def _give_up(what: str, place: str) -> NoReturn:
    raise _CannotTellError(Doubt(what, place))


class _Walk:
    """Goes from function to function, and collects what they read."""

    def __init__(self) -> None:
        self.items: dict[tuple[int, str], tuple[dict[str, Any], str, Any]] = {}
        self.attributes: dict[tuple[int, str], tuple[Any, str, Any]] = {}
        self.settings: dict[Callable[[], Any], Any] = {}
        self.empty: list[Mapping[str, Any]] = []
        self.files: set[str] = set()
        self._seen: dict[int, Any] = {}

    def value(self, name: str, value: Any, chain: tuple[str, ...], place: str) -> None:
        """Look at something that is read.

        Arguments:
            name: how the code calls it.
            chain: the attributes of it that the code reads at once, such as those of ``module.Class.number``.
            place: ``path:line`` of that code.
        """
        kind = type(value)
        if kind in PLAIN:
            return
        if kind in (tuple, frozenset):
            for item in value:
                self.value(name, item, (), place)
        elif kind is FunctionType:
            if chain:
                _give_up(f"the attribute {name}.{chain[0]} of a function", place)
            self._function(value)
        elif chain and kind is ModuleType:
            self._of_module(name, value, chain, place)
        elif is_constant(value):
            self._constant(name, value, chain, place)
        elif is_partial_of_library(value):
            for keyword in value.keywords:
                self.value(name, self._item(value.keywords, keyword), (), place)
            self.value(name, value.args, (), place)
            self._ambient(value.func)
        elif chain and kind is type:
            self._of_class(name, value, chain, place)
        else:
            _give_up(f"{name}, {_described(value)}", place)

    def _of_module(self, name: str, module: ModuleType, chain: tuple[str, ...], place: str) -> None:
        found = self._item(vars(module), chain[0])
        if found is ABSENT:
            _give_up(f"{name}.{chain[0]}, which the module makes when it is asked for", place)
        self.value(f"{name}.{chain[0]}", found, chain[1:], place)

    def _constant(self, name: str, value: Any, chain: tuple[str, ...], place: str) -> None:
        """Look at a constant of a library, and at its attribute that is read: somebody may have put that there."""
        self._ambient(value if isinstance(value, type) else type(value))
        if is_tag(value):
            self._attribute(value, "tag", value.tag)
        if chain and isinstance(value, type) and value.__flags__ & HEAP_TYPE:
            self._of_class(name, value, chain, place)

    def _ambient(self, user: Any) -> None:
        """Compare the settings that the library of a function or class reads."""
        package = root_of(user)
        if package == "tvm":
            scope = sys.modules["tvm.te.tag"].TagScope
            self._attribute(scope, "_current", scope._current)
        elif package in ("numpy", "ml_dtypes"):
            settings = numpy_settings()
            if not settings:
                _give_up("the settings of this NumPy", "numpy")
            self.settings.update((setting, setting()) for setting in settings)

    def _of_class(self, name: str, owner: type, chain: tuple[str, ...], place: str) -> None:
        attribute = chain[0]
        raw = next((vars(base)[attribute] for base in owner.__mro__ if attribute in vars(base)), ABSENT)
        found = raw.__func__ if type(raw) is staticmethod else raw
        if type(found) not in (*PLAIN, tuple, frozenset, FunctionType, type):
            _give_up(f"{name}.{attribute}, {_described(found)}", place)
        self._attribute(owner, attribute, found)
        self.value(f"{name}.{attribute}", found, chain[1:], place)

    def _item(self, names: dict[str, Any], name: str) -> Any:
        value = names.get(name, ABSENT)
        self.items[id(names), name] = names, name, value
        return value

    def _attribute(self, owner: Any, name: str, value: Any) -> None:
        self.attributes[id(owner), name] = owner, name, value

    def _function(self, function: FunctionType) -> None:
        """Look at a function of the user's: what it is, what it has, and what its code reads."""
        if id(function) in self._seen:
            return
        self._seen[id(function)] = function
        code, place = function.__code__, _place(function.__code__)
        if is_code_of_library(function):
            self._function_of_library(function, place)
            return
        if root_of(function) in ("numpy", "tvm", "tvm_ffi"):
            _give_up(f"what {function.__module__}.{function.__name__} reads", place)
        if len(self._seen) > MOST_FUNCTIONS:
            _give_up(f"more than {MOST_FUNCTIONS} functions", place)
        if type(function.__globals__) is not dict:
            _give_up(f"the variables of {function.__name__}, {_described(function.__globals__)}", place)
        self._attribute(function, "__code__", code)
        self._attribute(function, "__defaults__", function.__defaults__)
        self._attribute(function, "__kwdefaults__", function.__kwdefaults__)
        for default in function.__defaults__ or ():
            self.value(f"a default of {function.__name__}", default, (), place)
        for name in function.__kwdefaults__ or ():
            found = self._item(function.__kwdefaults__ or {}, name)
            self.value(f"the default of {name} of {function.__name__}", found, (), place)
        self._own_attributes(function, place)
        cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=True))
        self._code(function, code, cells)

    def _function_of_library(self, function: FunctionType, place: str) -> None:
        """Look at what a decorator of a library has put into its function."""
        self._ambient(function)
        if function.__name__ in ASK_FOR_TARGET:
            if target_around() is not None:
                _give_up(f"the target around {function.__name__}", place)
            self.settings[target_around] = None
        for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
            self._cell(name, cell, (), place)

    def _own_attributes(self, function: FunctionType, place: str) -> None:
        """Look at the attributes of a function: a decorator puts the function that it decorates there."""
        own = vars(function)
        if not own:
            self.empty.append(own)
        for name in own:
            if name != "__wrapped__":
                _give_up(f"{function.__name__}, a function with an attribute {name}", place)
            self.value(function.__name__, self._item(own, name), (), place)

    def _code(self, function: FunctionType, code: CodeType, cells: Mapping[str, CellType]) -> None:
        """Look at what some code reads, and at the code inside it."""
        if PARSED.intersection(code.co_names):
            self.files.add(code.co_filename)
        for operation, argument, chain, place in _operations(code):
            if operation in GLOBAL:
                self._global(function, argument, chain, place)
            elif operation in CELL and argument in cells:
                self._cell(argument, cells[argument], chain, place)
            elif operation in ATTRIBUTE and argument in STATEFUL:
                _give_up(f"{argument}, which may change from call to call", place)
            elif operation == "IMPORT_NAME":
                _give_up(f"the module {argument or '.'}, which it imports itself", place)
            elif operation in ASSIGNED:
                _give_up(f"{argument}, a global variable that it assigns", place)
        inner = [constant for constant in code.co_consts if isinstance(constant, CodeType)]
        for part in (*inner, *_annotations(code)):
            self._code(function, part, cells)

    def _global(self, function: FunctionType, name: str, chain: tuple[str, ...], place: str) -> None:
        value = self._item(function.__globals__, name)
        if value is not ABSENT:
            self.value(name, value, chain, place)
            return
        found = self._item(getattr(function, "__builtins__", vars(builtins)), name)
        if found is not ABSENT:
            self.value(name, found, chain, place)

    def _cell(self, name: str, cell: CellType, chain: tuple[str, ...], place: str) -> None:
        try:
            value = cell.cell_contents
        except ValueError:
            _give_up(f"{name}, which has no value yet", place)
        self._attribute(cell, "cell_contents", value)
        self.value(name, value, chain, place)


def _operations(code: CodeType) -> Iterator[tuple[str, Any, tuple[str, ...], str]]:
    """The operations of some code: name, argument, attributes that are read of the result at once, and the place."""
    instructions = [instruction for instruction in dis.get_instructions(code) if instruction.opname not in UNIMPORTANT]
    line = code.co_firstlineno
    for number, instruction in enumerate(instructions):
        begins = getattr(instruction, "line_number", instruction.starts_line)
        line = begins or line
        end = number + 1
        while end < len(instructions) and instructions[end].opname in FOLLOWED and not instructions[end].is_jump_target:
            end += 1
        chain = tuple(following.argval for following in instructions[number + 1 : end])
        yield instruction.opname, instruction.argval, chain, f"{code.co_filename}:{line}"


def _annotations(code: CodeType) -> Iterator[CodeType]:
    """The code of texts in a function that may be annotations of its inner functions."""
    if not code.co_flags & TEXT_ANNOTATIONS:
        return
    for constant in code.co_consts:  # name, annotation, name, annotation
        for text in constant[1::2] if isinstance(constant, tuple) else ():
            if isinstance(text, str):
                with contextlib.suppress(SyntaxError, ValueError):
                    yield compile(text.strip(), code.co_filename, "eval", 0, dont_inherit=True)


def _described(value: Any) -> str:
    """What kind of thing something is, for a message."""
    kind = type(value)
    if isinstance(value, type):
        return "a class"
    if isinstance(value, ModuleType):
        return "a module"
    if kind is BuiltinFunctionType:
        return "which may give something else from call to call"
    known = {list: "a list", dict: "a dict", set: "a set", bytearray: "a bytearray", property: "a property"}
    if value is ABSENT:
        return "which is not there"
    if kind.__name__ == "_lru_cache_wrapper":
        return "a function that remembers its results"
    return known.get(kind, f"an object of type {kind.__module__}.{kind.__qualname__}")


def _place(code: CodeType) -> str:
    return f"{code.co_filename}:{code.co_firstlineno}"
