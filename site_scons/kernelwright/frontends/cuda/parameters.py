"""Text in CUDA C++ that has the compiler compare the parameters of a function with the arguments of a definition."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

from ...core.dtype import Dtype, bytes_of
from ...core.entry_name import ALIGNMENTS, ENTRY
from ...core.errors import Where
from ...define.arguments import DTYPES, Tensor, Workspace
from ..launches import dtype_of
from ..unit import Unit
from .source import TENSOR_MAP, Source
from .struct import Field, Struct, bytes_of_struct, fields_of
from .tensor_map import TensorMap

NUMBERS = {
    **{"double": "float64", "float": "float32", "bool": "bool"},
    **{"signed char": "int8", "short": "int16", "int": "int32", "long": "int64", "long long": "int64"},
    **{"unsigned char": "uint8", "unsigned short": "uint16", "unsigned": "uint32"},
    **{"unsigned long": "uint64", "unsigned long long": "uint64"},
}
"""The number types of C++, and their dtypes."""

CLASSES = {
    **{"__half": "float16", "__nv_bfloat16": "bfloat16"},
    **{f"__nv_fp8{count}_e4m3": "float8_e4m3fn" for count in ("", "x2", "x4")},
    **{f"__nv_fp8{count}_e5m2": "float8_e5m2" for count in ("", "x2", "x4")},
}
"""The dtypes of classes in CUDA's headers. float4, __half2 and the like are recognised by their members x, y, z, w."""

_FUNCTION = """\
template <int kw_I, class... kw_P> struct kw_nth { using kw_type = void; };
template <class kw_First, class... kw_Rest> struct kw_nth<0, kw_First, kw_Rest...> { using kw_type = kw_First; };
template <int kw_I, class kw_First, class... kw_Rest>
struct kw_nth<kw_I, kw_First, kw_Rest...> : kw_nth<kw_I - 1, kw_Rest...> {};

template <class kw_F> struct kw_function_of {
  static constexpr int kw_count = -1;
  template <int kw_I> using kw_parameter = void;
};
template <class... kw_P> struct kw_function_of<void (*)(kw_P...)> {
  static constexpr int kw_count = sizeof...(kw_P);
  template <int kw_I> using kw_parameter = typename kw_nth<kw_I, kw_P...>::kw_type;
};
"""

_HELD = """\
template <class kw_T> struct kw_plain { using kw_type = kw_T; };
template <class kw_T> struct kw_plain<const kw_T> : kw_plain<kw_T> {};
template <class kw_T> struct kw_plain<volatile kw_T> : kw_plain<kw_T> {};
template <class kw_T> struct kw_plain<const volatile kw_T> : kw_plain<kw_T> {};
template <class kw_T, decltype(sizeof(0)) kw_N> struct kw_plain<kw_T[kw_N]> : kw_plain<kw_T> {};
template <class kw_T, decltype(sizeof(0)) kw_N> struct kw_plain<const kw_T[kw_N]> : kw_plain<kw_T> {};

template <class kw_T> struct kw_bare { using kw_type = kw_T; };
template <class kw_T> struct kw_bare<const kw_T> : kw_bare<kw_T> {};
template <class kw_T> struct kw_bare<kw_T *__restrict__> { using kw_type = kw_T *; };

template <class kw_T, bool kw_E = __is_enum(kw_T)> struct kw_scalar : kw_number<kw_T> {};
template <class kw_T> struct kw_scalar<kw_T, true> : kw_number<__underlying_type(kw_T)> {};

template <class kw_A, class kw_B> constexpr bool kw_same = false;
template <class kw_A> constexpr bool kw_same<kw_A, kw_A> = true;
template <class kw_T> struct kw_void { using kw_type = void; };
{members}
template <class kw_T, class kw_E, int kw_N> constexpr bool kw_has_only =
    kw_N >= 1 && kw_N <= 4 && sizeof(kw_T) == kw_N * sizeof(kw_E) &&
    (kw_N < 2 || kw_same<typename kw_y<kw_T>::kw_type, kw_E>) &&
    (kw_N < 3 || kw_same<typename kw_z<kw_T>::kw_type, kw_E>) &&
    (kw_N < 4 || kw_same<typename kw_w<kw_T>::kw_type, kw_E>);
template <class kw_T, class kw_E> constexpr bool kw_is_vector =
    kw_has_only<kw_T, kw_E, sizeof(kw_T) / sizeof(kw_E)>;
template <class kw_T> constexpr bool kw_is_vector<kw_T, void> = false;

template <class kw_T, bool kw_V = kw_is_vector<kw_T, typename kw_x<kw_T>::kw_type>>
struct kw_held : kw_scalar<kw_T> {};
template <class kw_T> struct kw_held<kw_T, true> : kw_held<typename kw_x<kw_T>::kw_type> {};
template <class kw_T, kw_dtype kw_D> constexpr bool kw_own = false;
"""

_MEMBER = """\
template <class kw_T, class = void> struct kw_{0} {{ using kw_type = void; }};
template <class kw_T> struct kw_{0}<kw_T, typename kw_void<decltype(kw_T::{0})>::kw_type> {{
  using kw_type = decltype(kw_T::{0});
}};
"""

_FIELD = """\
template <class kw_T, class = void> struct kw_field_{0} {{
  using kw_type = void;
  static constexpr long kw_at = -(1L << 40);
}};
template <class kw_T> struct kw_field_{0}<kw_T, typename kw_void<decltype(kw_T::{0})>::kw_type> {{
  using kw_type = typename kw_bare<decltype(kw_T::{0})>::kw_type;
  static constexpr long kw_at = kw_offset(kw_T, {0});
}};
"""

_FITS = """\
__device__ constexpr bool kw_fits(kw_dtype kw_found, kw_dtype kw_wanted) {
  return kw_found == kw_wanted || kw_found == kw_dtype::kw_any ||
         (kw_found == kw_dtype::kw_byte && (kw_wanted == kw_dtype::kw_int8 || kw_wanted == kw_dtype::kw_uint8)) ||
         ((kw_found == kw_dtype::kw_byte || kw_found == kw_dtype::kw_uint8) && kw_wanted == kw_dtype::kw_bool) ||
         (kw_found == kw_dtype::kw_address && (kw_wanted == kw_dtype::kw_int64 || kw_wanted == kw_dtype::kw_uint64));
}

template <class kw_T, kw_dtype kw_D> constexpr bool kw_is_number = kw_fits(kw_scalar<kw_T>::kw_is, kw_D);
template <class kw_T, kw_dtype kw_D> constexpr bool kw_is_number<kw_T *, kw_D> = false;

template <class kw_T, kw_dtype kw_D> constexpr bool kw_is_tensor = false;
template <kw_dtype kw_D> constexpr bool kw_is_tensor<void, kw_D> = true;
template <class kw_T, kw_dtype kw_D> constexpr bool kw_is_tensor<kw_T *, kw_D> =
    kw_fits(kw_held<typename kw_plain<kw_T>::kw_type>::kw_is, kw_D) || kw_own<typename kw_plain<kw_T>::kw_type, kw_D>;

template <class kw_T> constexpr bool kw_is_tensor_map = kw_own<kw_T, kw_dtype::kw_tensor_map>;
template <> constexpr bool kw_is_tensor_map<void> = true;
template <> constexpr bool kw_is_tensor_map<CUtensorMap_st> = true;

template <class kw_T> constexpr bool kw_is_writable = true;
template <class kw_T> constexpr bool kw_is_writable<const kw_T *> = false;
template <class kw_T> constexpr bool kw_is_read_only = false;
template <> constexpr bool kw_is_read_only<void> = true;
template <class kw_T> constexpr bool kw_is_read_only<const kw_T *> = true;

template <long kw_found, long kw_declared> struct kw_agrees {
  static constexpr bool kw_value = kw_found < 0 || kw_found == kw_declared;
  static_assert(kw_value, "the source has kw_found bytes, and the definition has kw_declared");
};

#ifdef __CUDACC_RTC__  // NVRTC 13.0 has no __builtin_offsetof
#define kw_offset(kw_T, kw_member) __INTADDR__(&((kw_T *)0)->kw_member)
#else
#define kw_offset __builtin_offsetof
#endif

struct kw_anything { template <class kw_T> __device__ operator kw_T() const; };
template <class kw_V, class kw_T, class... kw_A> constexpr bool kw_has_more = false;
template <class kw_T, class... kw_A>
constexpr bool kw_has_more<typename kw_void<decltype(kw_T{kw_A{}...})>::kw_type, kw_T, kw_A...> = __is_aggregate(kw_T);

__device__ constexpr unsigned char kw_most(unsigned char kw_a, unsigned char kw_b) { return kw_a < kw_b ? kw_b : kw_a; }
__device__ constexpr unsigned char kw_log2(decltype(sizeof(0)) kw_n) { return kw_n < 2 ? 0 : 1 + kw_log2(kw_n / 2); }
template <class kw_T, class = void> struct kw_alignment { static constexpr unsigned char kw_value = 0; };
template <class kw_T> struct kw_alignment<kw_T *, typename kw_void<decltype(sizeof(kw_T))>::kw_type> {
  static constexpr unsigned char kw_value = kw_log2(alignof(kw_T));
};
template <> struct kw_alignment<void *, void> : kw_alignment<void> {};
template <> struct kw_alignment<const void *, void> : kw_alignment<void> {};
"""


def _types() -> str:
    names = ["other", "any", "byte", "address", TENSOR_MAP, *DTYPES]
    numbers = {**NUMBERS, "char": "byte", "void": "any", **CLASSES}
    return "\n".join(
        [
            _FUNCTION,
            f"enum class kw_dtype {{ {', '.join(f'kw_{name}' for name in names)} }};",
            "template <kw_dtype kw_D> struct kw_is_one { static constexpr kw_dtype kw_is = kw_D; };",
            "template <class kw_T> struct kw_number : kw_is_one<kw_dtype::kw_other> {};",
            "template <class kw_T> struct kw_number<kw_T *> : kw_is_one<kw_dtype::kw_address> {};",
            *(f"struct {name};" for name in (*CLASSES, "CUtensorMap_st")),
            *(f"template <> struct kw_number<{t}> : kw_is_one<kw_dtype::kw_{d}> {{}};" for t, d in numbers.items()),
            _HELD.replace("{members}\n", "".join(map(_MEMBER.format, "xyzw"))),
            _FITS,
        ]
    )


TYPES = _types()
"""C++ templates that tell the types of a function's parameters, which are then compared with the arguments.

A parameter that is missing counts as right, because the number of parameters is compared, too. A name that is no
kernel has -1 parameters, and each of them counts as right: otherwise several more errors would follow the one that
matters. All names begin with ``kw_``, because the source may have macros with names such as ``N`` and ``T``. No name is
x, y, z or w, because CUDA's own variables have such members."""


def entries(sources: Sequence[Source]) -> list[str]:
    """What the host code calls the function of each launch."""
    return [ENTRY, *(f"{ENTRY}_{number}" for number in range(1, len(sources)))]


def comparisons(sources: Sequence[Source], unit: Unit) -> Iterator[str]:
    """Lines that compare the functions' parameters with the arguments, and that store the alignment of each type."""
    parameters: dict[str, list[tuple[str, str]]] = {name: [] for source in sources for name in source.declared}
    structs = [value for source in sources for value in source.parameters.values() if isinstance(value, Struct)]
    yield from map(_FIELD.format, dict.fromkeys(name for struct in structs for name in struct.names))
    yield from (_own(name, dtype) for name, dtype in dict.fromkeys(p for s in sources for p in s.types.items()))
    for number, source in enumerate(sources):
        function = f"kw_function_{number}" if number else "kw_function"
        yield f"using {function} = kw_function_of<decltype(&{source.function})>;"
        yield from _of_launch(source, function, unit)
        for name, _, parameter, place in _values(source, function):
            if name in parameters:
                parameters[name].append((parameter, place))
    declared = {name: value for source in sources for name, value in source.declared.items()}
    for name, value in declared.items():
        if isinstance(value, Tensor) and _is_written(name, value, unit):
            writable = " || ".join(f"kw_is_writable<{parameter}>" for parameter, _ in parameters[name])
            places = " and ".join(place for _, place in parameters[name])
            yield _assertion(writable, f"{name} is written, and {places} points to constants")
    asked = [_most([f"kw_alignment<{parameter}>::kw_value" for parameter, _ in each]) for each in parameters.values()]
    yield f'extern "C" __device__ unsigned char {ALIGNMENTS}[] = {{{", ".join(asked)}}};'


def _place(source: Source, position: int) -> str:
    function = source.function.replace('"', "'")
    return f"parameter {position + 1} of {function}"


def _values(source: Source, function: str) -> Iterator[tuple[str, Any, str, str]]:
    """The values that a function gets, also in structures: the name, the value, its type in C++, and its place."""
    for number, (name, value) in enumerate(source.parameters.items()):
        parameter, place = _parameter(function, number), _place(source, number)
        if not isinstance(value, Struct):
            yield name, value, parameter, place
        else:
            for field in fields_of(value):
                yield field.path[-1], field.value, _member(parameter, field), f"{'.'.join(field.path)} of {place}"


def _member(parameter: str, field: Field) -> str:
    """The type of a member of a structure; that of none is void."""
    return functools.reduce(lambda outer, name: f"kw_field_{name}<{outer}>::kw_type", field.path, _plain(parameter))


def _plain(parameter: str) -> str:
    return f"kw_plain<{parameter}>::kw_type"


def _layout(name: str, value: Struct, parameter: str, place: str) -> Iterator[str]:
    """Comparisons of the members of a structure with the places that the definition gives them."""
    for field in fields_of(value):
        outer, places = _plain(parameter), []
        for part in field.path:
            places.append(f"kw_field_{part}<{outer}>::kw_at")
            outer = f"kw_field_{part}<{outer}>::kw_type"
        path = ".".join(field.path)
        present = " && ".join(f"{each} >= 0" for each in places)
        yield _assertion(present, f"{name} has the member {path}, which {place} does not have")
        message = f"{path} is at byte {field.offset} of {name}, and at another one of {place}"
        yield _assertion(f"kw_agrees<{' + '.join(places)}, {field.offset}>::kw_value", message)
    yield from _completeness(name, value, _plain(parameter), place)
    message = f"{name} has {bytes_of_struct(value)} bytes, and {place} has more or fewer: give all members, in order"
    yield _assertion(f"kw_agrees<sizeof({_plain(parameter)}), {bytes_of_struct(value)}>::kw_value", message)


def _completeness(name: str, value: Struct, kind: str, place: str) -> Iterator[str]:
    """Comparisons of how many members there are: one of them may be where a structure without it has a gap."""
    for inner, member in value.fields.items():
        if isinstance(member, Struct):
            yield from _completeness(f"{name}.{inner}", member, f"kw_field_{inner}<{kind}>::kw_type", place)
    more = ", ".join(["kw_anything"] * (len(value.fields) + 1))
    message = f"{name} has {len(value.fields)} members, and {place} has more: give all members, in order"
    yield _assertion(f"!kw_has_more<void, {kind}, {more}>", message)


def _of_launch(source: Source, type_name: str, unit: Unit) -> Iterator[str]:
    """Comparisons for one launch, whose function has its parameters in a type."""
    function, count = source.function.replace('"', "'"), len(source.parameters)
    names = ", ".join(source.parameters)
    yield _assertion(f"{type_name}::kw_count >= 0", f"{function} names no __global__ function")
    yield _assertion(
        f"{type_name}::kw_count < 0 || {type_name}::kw_count == {count}",
        f"{function} has another number of parameters than {count}: {names}",
    )
    for number, (name, value) in enumerate(source.parameters.items()):
        if isinstance(value, Struct):
            yield from _layout(name, value, _parameter(type_name, number), _place(source, number))
    for name, value, parameter, place in _values(source, type_name):
        if isinstance(value, TensorMap):
            yield _assertion(f"kw_is_tensor_map<{parameter}>", f"{name} is a tensor map, which {place} does not take")
            continue
        if value is None:
            condition = f"kw_number<{parameter}>::kw_is == kw_dtype::kw_address"
            yield _assertion(condition, f"{name} is None, and {place} is no pointer")
            continue
        is_memory, dtype = isinstance(value, (Tensor, Workspace)), dtype_of(value)
        what = "tensor" if is_memory else "number"
        own = "; if its type is your own, say in types what it holds" if is_memory else ""
        message = f"{name} is a {what} of {dtype}, which {place} does not take{own}"
        yield _assertion(f"kw_is_{what}<{parameter}, kw_dtype::kw_{dtype}>", message)
        if isinstance(value, Tensor) and value.written is None and not _is_written(name, value, unit):
            remedy = "name it in outputs, write written=True or written=False, or const in the source"
            yield _assertion(f"kw_is_read_only<{parameter}>", f"{place} may write to {name}: {remedy}")


def _is_written(name: str, value: Tensor, unit: Unit) -> bool:
    return bool(value.written) or name in unit.outputs


def _own(name: str, dtype: str) -> str:
    """What a type of the author's holds."""
    size = 128 if dtype == TENSOR_MAP else bytes_of(Dtype.parse(dtype, Where()).bits)
    return f"template <> constexpr bool kw_own<{name}, kw_dtype::kw_{dtype}> = sizeof({name}) % {size} == 0;"


def _parameter(function: str, number: int) -> str:
    return f"{function}::kw_parameter<{number}>"


def _most(numbers: Sequence[str]) -> str:
    """The greatest of some numbers, in C++; 0 if there are none."""
    first, *others = numbers or ("0",)
    for other in others:
        first = f"kw_most({first}, {other})"
    return first


def _assertion(condition: str, message: str) -> str:
    return f'static_assert({condition}, "{message}");'
