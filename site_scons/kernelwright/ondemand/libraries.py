"""Which functions and classes of Python, NumPy and TVM read only their arguments, and which objects cannot change.

All that are known to be so are listed here. Any other one may read files, registries or settings.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable
from functools import partial
from types import BuiltinFunctionType, FunctionType
from typing import Any

HEAP_TYPE = 1 << 9
"""Flag of classes that are not built in; the attributes of the others cannot change."""

_BUILTINS_THAT_READ = """
open input eval exec compile globals locals vars dir getattr hasattr setattr delattr __import__ breakpoint id
"""
BUILTINS_THAT_READ = frozenset(_BUILTINS_THAT_READ.split())
"""Builtins that read more than their arguments, or attributes whose names the code does not show."""

_WHOLE = """
math cmath itertools bisect _bisect heapq _heapq _struct struct _operator textwrap tvm_ffi._dtype
"""
WHOLE = frozenset(_WHOLE.split())
"""Modules of which all functions and classes read only their arguments."""

PARTS = {
    "collections": "namedtuple OrderedDict defaultdict deque Counter ChainMap",
    "contextlib": "contextmanager nullcontext ExitStack suppress closing",
    "dataclasses": "dataclass field replace asdict astuple",
    "enum": "Enum IntEnum Flag IntFlag auto unique",
    "fractions": "Fraction",
    "functools": "partial reduce wraps lru_cache cache cmp_to_key total_ordering update_wrapper",
    "_functools": "reduce cmp_to_key",
    "operator": "itemgetter",
    "re": "compile match fullmatch search sub subn split findall finditer escape",
    "types": "SimpleNamespace MappingProxyType",
    "typing": "cast",
}
"""Modules of which only some functions and classes do so: module -> their names."""

_NUMPY_HOMES = """
_core.numeric _core.fromnumeric _core.shape_base _core.function_base _core.einsumfunc _core.numerictypes
lib._arraypad_impl lib._arraysetops_impl lib._function_base_impl lib._histograms_impl lib._index_tricks_impl
lib._nanfunctions_impl lib._polynomial_impl lib._shape_base_impl lib._stride_tricks_impl lib._twodim_base_impl
lib._type_check_impl lib._ufunclike_impl linalg._linalg fft._pocketfft fft._helper
"""
NUMPY_HOMES = frozenset(f"numpy.{home}" for home in _NUMPY_HOMES.split())
"""Modules of NumPy that compute, or make arrays."""

_NUMPY_BUILTINS = """
arange array asanyarray asarray ascontiguousarray asfortranarray empty frombuffer fromiter promote_types zeros can_cast
concat concatenate copyto dot empty_like inner lexsort min_scalar_type putmask result_type vdot where bincount
ravel_multi_index unravel_index packbits unpackbits
"""
NUMPY_BUILTINS = frozenset(_NUMPY_BUILTINS.split())
"""Functions of NumPy, written in C, that compute or make arrays."""

_TVM_HOMES = """
te.operation te.tensor te.tag tirx.op tirx.expr tirx.stmt tirx.buffer tirx.function tirx.layout tirx.exec_scope
tirx.script script ir.prim ir.expr ir.type ir.module topi s_tir.schedule.schedule s_tir.stmt runtime.object_generic
backend
"""
TVM_HOMES = frozenset(f"tvm.{home}" for home in _TVM_HOMES.split())
"""Modules of TVM, and those in them, that make expressions, programs and schedules."""

TVM_EXCEPT = frozenset({"tvm.topi.gpu", "tvm.topi.testing", "tvm.tirx.script.builder.external_kernel"})
"""Modules among these that ask for a target, or read something."""

_TVM_NAMES_EXCEPT = """
target jit parse from_source register_script_namespace load_json save_json
"""
TVM_NAMES_EXCEPT = frozenset(_TVM_NAMES_EXCEPT.split())
"""Names in the other modules that do so, too."""

ASK_FOR_TARGET = frozenset({"target_has_features", "ceil_log2", "conv2d_NCHWc_int8", "is_target"})
"""Functions of TVM that look at the target around them."""

NAMESPACES = ("tvm.tirx.script.", "tvm.script.", "tvm.backend.", "tvm.tirx.layout")
"""Modules that have the classes of TVMScript's namespace objects."""

IMMUTABLE = frozenset({"PrimFunc", "Target", "Var", "SizeVar", "IntImm", "FloatImm", "StringImm"})
"""Classes of TVM whose objects cannot change."""


def is_constant(value: Any) -> bool:
    """Whether something is a function or a class which reads only its arguments, or an object that cannot change."""
    kind = type(value)
    if isinstance(value, type) and kind.__module__ != "enum":
        return _is_known_class(value) or (_is_in_place(value) and _is_listed(value.__module__, value.__name__))
    if kind is BuiltinFunctionType:
        home = str(getattr(value, "__module__", None))
        if home == "builtins":
            return value.__name__ not in BUILTINS_THAT_READ and vars(builtins).get(value.__name__) is value
        is_of_numpy = home == "numpy" and value.__name__ in NUMPY_BUILTINS
        return (is_of_numpy or _is_listed(home, value.__name__)) and _is_in_place(value)
    if root_of(kind) == "numpy":
        return _is_constant_of_numpy(value)
    if root_of(kind) == "tvm" and kind.__name__ in IMMUTABLE:
        return not getattr(value, "__dict__", {})
    return kind.__module__.startswith(NAMESPACES) or is_tag(value)


def is_code_of_library(function: FunctionType) -> bool:
    """Whether the code of a function is in a module that is listed here; what is in its closure may be anybody's."""
    names = function.__globals__
    home = str(names.get("__name__"))
    module = sys.modules.get(home)
    if module is None or vars(module) is not names:
        return False
    return home in NUMPY_HOMES or _is_listed(home, function.__code__.co_name) or _is_listed(home, function.__name__)


def is_partial_of_library(value: Any) -> bool:
    """Whether something is a ``functools.partial`` of a function that is listed here."""
    if type(value) is not partial or vars(value) or type(value.func) is not FunctionType:
        return False
    return is_code_of_library(value.func) and not value.func.__closure__


def is_tag(value: Any) -> bool:
    """Whether something is what TVM tags operators with."""
    return (type(value).__module__, type(value).__name__) == ("tvm.te.tag", "TagScope")


def target_around() -> Any:
    """TVM's target in the ``with`` block around a call; None: there is none."""
    return sys.modules["tvm.target"].Target.current(allow_none=True)


def numpy_settings() -> list[Callable[[], Any]]:
    """Functions that give NumPy's settings: how numbers are printed, and what errors do. Empty: they are not found."""
    variables = [
        getattr(sys.modules.get("numpy._core.printoptions"), "format_options", None),
        getattr(sys.modules.get("numpy._core.umath"), "_extobj_contextvar", None),
    ]
    return [] if None in variables else [variable.get for variable in variables if variable is not None]


def root_of(value: Any) -> str:
    """The package that a function or a class says it is of."""
    return str(getattr(value, "__module__", None)).partition(".")[0]


def _is_listed(home: str, name: str) -> bool:
    if home in WHOLE:
        return True
    if home in PARTS:
        return name in PARTS[home].split()
    if name in ASK_FOR_TARGET and home.startswith("tvm."):
        return True
    parents = [home, *(home[:end] for end, letter in enumerate(home) if letter == ".")]
    return not TVM_HOMES.isdisjoint(parents) and TVM_EXCEPT.isdisjoint(parents) and name not in TVM_NAMES_EXCEPT


def _is_known_class(value: type) -> bool:
    """Whether a class is one that Python has built in, or one of numbers."""
    if not value.__flags__ & HEAP_TYPE and value.__module__ == "builtins":
        return True
    numpy = sys.modules.get("numpy")
    if numpy is None or value.__name__ == "memmap":
        return False
    of_numbers = (numpy.generic, numpy.dtype, numpy.ndarray)
    is_named = value in (numpy.finfo, numpy.iinfo) or root_of(value) == "ml_dtypes"
    return (not value.__flags__ & HEAP_TYPE and issubclass(value, of_numbers)) or (is_named and _is_in_place(value))


def _is_in_place(value: Any) -> bool:
    """Whether something is what its module has under its name, and no look-alike."""
    module = sys.modules.get(str(value.__module__))
    return module is not None and vars(module).get(value.__name__) is value


def _is_constant_of_numpy(value: Any) -> bool:
    """Whether an object of a class of NumPy cannot change: a number, a dtype, a function."""
    numpy = sys.modules["numpy"]
    kind = type(value)
    if isinstance(value, numpy.dtype):
        return value.names is None and value.subdtype is None and value.metadata is None
    if kind.__flags__ & HEAP_TYPE == 0 and isinstance(value, (numpy.number, numpy.bool_, numpy.str_, numpy.bytes_)):
        return True
    if kind.__module__ == "numpy.lib._index_tricks_impl":
        return bool(_is_in_place(kind))
    if isinstance(value, numpy.ufunc):
        return vars(numpy).get(value.__name__) is value
    if kind.__name__ != "_ArrayFunctionDispatcher" or not _is_in_place(value):
        return False
    names = getattr(getattr(value, "__wrapped__", None), "__globals__", {})
    return names.get("__name__") in NUMPY_HOMES or value.__name__ in NUMPY_BUILTINS
