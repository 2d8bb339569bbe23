"""Lowers a Source: writes the CUDA source that includes it, and has TVM make the host code that launches it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path, PurePath

from ..core.dtype import Dtype, bytes_of
from ..core.errors import DefinitionError
from ..define.arguments import Tensor
from ..define.cuda_source import Source
from ..define.tensor_map import TensorMap
from .declared_launch import DeclaredLaunch, dtype_of, lower_launch
from .entry_name import ENTRY
from .unit import LoweredKernel, Unit

TYPES = """\
namespace kw {
template <int I, class... P> struct nth { using type = void; };
template <class First, class... Rest> struct nth<0, First, Rest...> { using type = First; };
template <int I, class First, class... Rest> struct nth<I, First, Rest...> : nth<I - 1, Rest...> {};

template <class F> struct function_of {
  static constexpr int count = -1;
  template <int I> using parameter = void;
};
template <class... P> struct function_of<void (*)(P...)> {
  static constexpr int count = sizeof...(P);
  template <int I> using parameter = typename nth<I, P...>::type;
};

enum class kind { any, floating, integer, natural };
template <class T> struct about { static constexpr kind is = kind::any; static constexpr int bytes = sizeof(T); };
template <class T> struct about<const T> : about<T> {};
template <> struct about<void> { static constexpr kind is = kind::any; static constexpr int bytes = 0; };
template <kind K, int N> struct number { static constexpr kind is = K; static constexpr int bytes = N; };
template <> struct about<float> : number<kind::floating, 4> {};
template <> struct about<double> : number<kind::floating, 8> {};
template <> struct about<signed char> : number<kind::integer, 1> {};
template <> struct about<short> : number<kind::integer, 2> {};
template <> struct about<int> : number<kind::integer, 4> {};
template <> struct about<long> : number<kind::integer, sizeof(long)> {};
template <> struct about<long long> : number<kind::integer, 8> {};
template <> struct about<bool> : number<kind::natural, 1> {};
template <> struct about<unsigned char> : number<kind::natural, 1> {};
template <> struct about<unsigned short> : number<kind::natural, 2> {};
template <> struct about<unsigned> : number<kind::natural, 4> {};
template <> struct about<unsigned long> : number<kind::natural, sizeof(long)> {};
template <> struct about<unsigned long long> : number<kind::natural, 8> {};

template <class T, kind K, int N> constexpr bool is_number =
    about<T>::bytes == N && (about<T>::is == kind::any || about<T>::is == K);
template <kind K, int N> constexpr bool is_number<void, K, N> = true;
template <class T, kind K, int N> constexpr bool is_number<T *, K, N> = false;

template <class T, kind K, int N> constexpr bool is_tensor = false;
template <kind K, int N> constexpr bool is_tensor<void, K, N> = true;
template <class T, kind K, int N> constexpr bool is_tensor<T *, K, N> =
    about<T>::is == kind::any ? about<T>::bytes % N == 0 : about<T>::is == K && about<T>::bytes == N;

template <class T> constexpr bool is_tensor_map = sizeof(T) == 128;
template <> constexpr bool is_tensor_map<void> = true;

template <class T> constexpr bool is_writable = true;
template <class T> constexpr bool is_writable<const T *> = false;
template <class T> constexpr bool is_read_only = false;
template <> constexpr bool is_read_only<void> = true;
template <class T> constexpr bool is_read_only<const T *> = true;
}  // namespace kw
"""
"""What a function's parameters are, for the comparison with the arguments. A missing one counts as right: their number
is compared, too. So do those of a name that is no function, or none that can be launched, which has -1 of them: each
comparison would be several errors behind the one that matters. Types that are no plain numbers, such as ``__half`` and
``float4``, are compared by their size."""

KINDS = (("float32", "floating"), ("float64", "floating"), ("uint", "natural"), ("bool", "natural"), ("int", "integer"))
"""The beginnings of dtypes that C++ has as plain numbers, and what they are."""


def lower(source: Source, unit: Unit, progress: Callable[[str], None]) -> LoweredKernel:
    """Lower what a definition returned.

    Raises:
        DefinitionError: its arguments do not fit, or there is no such file.
        LoweringError: TVM cannot make the host code.
    """
    outputs = unit.named(list(source.declared))
    source.check(outputs, unit.where)
    unit = replace(unit, outputs=outputs)
    progress("making host code")
    sizes = list(source.launch())
    launch = DeclaredLaunch(ENTRY, source.arguments, sizes, source.shared, source.cooperative, source.dependent)
    lowered = lower_launch(launch, unit)
    return replace(lowered, files={**lowered.files, "device.cu": _device_code(source, unit).encode()})


def _device_code(source: Source, unit: Unit) -> str:
    """The CUDA source: that of the author, comparisons of parameters and arguments, and the pointer to the function.

    Raises:
        DefinitionError: there is no such file.
    """
    text = source.text or f"#include {_quoted(_file_of(source, unit))}\n"
    defines = [f"#define {name} {_macro(value)}" for name, value in source.defines.items()]
    return "\n".join(
        [
            f"// {unit.kernel}/{unit.slug}: {source.function}",
            *defines,
            text,
            TYPES,
            f"using kw_function = kw::function_of<decltype(&{source.function})>;",
            *_assertions(source, unit),
            f'extern "C" __device__ decltype(&{source.function}) {ENTRY} = &{source.function};',
            "",
        ]
    )


def _file_of(source: Source, unit: Unit) -> str:
    """The path that a source includes: as the definition has it, because the compiler looks into its folder."""
    path = PurePath(os.fspath(source.source))
    folder = Path(unit.location.rpartition(":")[0]).parent
    if not (folder / path).is_file():
        remedy = f"give a path relative to {folder.as_posix()}, or the source itself, in several lines"
        raise DefinitionError(f"there is no file {path.as_posix()!r} beside the definition", unit.where, remedy)
    return path.as_posix()


def _quoted(path: str) -> str:
    return f'"{path}"'


def _macro(value: bool | int | float | str) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


def _assertions(source: Source, unit: Unit) -> Iterator[str]:
    """Comparisons of the function's parameters with the arguments, which the compiler makes."""
    function, count = source.function.replace('"', "'"), len(source.arguments)
    listed = ", ".join(source.arguments)
    yield _assertion("kw_function::count >= 0", f"{function} names no __global__ function")
    yield _assertion(
        f"kw_function::count < 0 || kw_function::count == {count}",
        f"{function} has another number of parameters than {count}: {listed}",
    )
    for number, (name, value) in enumerate(source.arguments.items()):
        parameter = f"kw_function::parameter<{number}>"
        dtype = dtype_of(value)
        place = f"parameter {number + 1} of {function}"
        if isinstance(value, TensorMap):
            message = f"{name} is a tensor map, which {place} does not take"
            yield _assertion(f"kw::is_tensor_map<{parameter}>", message)
            continue
        kind = next((kind for start, kind in KINDS if dtype.startswith(start)), "any")
        what = "tensor" if isinstance(value, Tensor) else "number"
        size = bytes_of(Dtype.parse(dtype, unit.where).bits)
        message = f"{name} is a {what} of {dtype}, which {place} does not take"
        yield _assertion(f"kw::is_{what}<{parameter}, kw::kind::{kind}, {size}>", message)
        if isinstance(value, Tensor):
            yield from _written(name, value, name in unit.outputs, parameter, place)


def _written(name: str, value: Tensor, is_output: bool, parameter: str, place: str) -> Iterator[str]:
    if value.written or is_output:
        yield _assertion(f"kw::is_writable<{parameter}>", f"{name} is written, and {place} points to constants")
    elif value.written is None:
        remedy = "write written=True or written=False, or const in the source"
        yield _assertion(f"kw::is_read_only<{parameter}>", f"{place} may write to {name}: {remedy}")


def _assertion(condition: str, message: str) -> str:
    return f'static_assert({condition}, "{message}");'
