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

enum class kw_kind { kw_any, kw_floating, kw_integer, kw_natural };
template <kw_kind kw_K, int kw_N> struct kw_number {
  static constexpr kw_kind kw_is = kw_K;
  static constexpr int kw_bytes = kw_N;
};
template <class kw_T> struct kw_about : kw_number<kw_kind::kw_any, sizeof(kw_T)> {};
template <class kw_T> struct kw_about<const kw_T> : kw_about<kw_T> {};
template <> struct kw_about<void> : kw_number<kw_kind::kw_any, 0> {};
template <> struct kw_about<float> : kw_number<kw_kind::kw_floating, 4> {};
template <> struct kw_about<double> : kw_number<kw_kind::kw_floating, 8> {};
template <> struct kw_about<signed char> : kw_number<kw_kind::kw_integer, 1> {};
template <> struct kw_about<short> : kw_number<kw_kind::kw_integer, 2> {};
template <> struct kw_about<int> : kw_number<kw_kind::kw_integer, 4> {};
template <> struct kw_about<long> : kw_number<kw_kind::kw_integer, sizeof(long)> {};
template <> struct kw_about<long long> : kw_number<kw_kind::kw_integer, 8> {};
template <> struct kw_about<bool> : kw_number<kw_kind::kw_natural, 1> {};
template <> struct kw_about<unsigned char> : kw_number<kw_kind::kw_natural, 1> {};
template <> struct kw_about<unsigned short> : kw_number<kw_kind::kw_natural, 2> {};
template <> struct kw_about<unsigned> : kw_number<kw_kind::kw_natural, 4> {};
template <> struct kw_about<unsigned long> : kw_number<kw_kind::kw_natural, sizeof(long)> {};
template <> struct kw_about<unsigned long long> : kw_number<kw_kind::kw_natural, 8> {};

template <class kw_T, kw_kind kw_K, int kw_N> constexpr bool kw_is_number =
    kw_about<kw_T>::kw_bytes == kw_N && (kw_about<kw_T>::kw_is == kw_kind::kw_any || kw_about<kw_T>::kw_is == kw_K);
template <kw_kind kw_K, int kw_N> constexpr bool kw_is_number<void, kw_K, kw_N> = true;
template <class kw_T, kw_kind kw_K, int kw_N> constexpr bool kw_is_number<kw_T *, kw_K, kw_N> = false;

template <class kw_T, kw_kind kw_K, int kw_N> constexpr bool kw_is_tensor = false;
template <kw_kind kw_K, int kw_N> constexpr bool kw_is_tensor<void, kw_K, kw_N> = true;
template <class kw_T, kw_kind kw_K, int kw_N> constexpr bool kw_is_tensor<kw_T *, kw_K, kw_N> =
    kw_about<kw_T>::kw_is == kw_kind::kw_any ? kw_about<kw_T>::kw_bytes % kw_N == 0
                                             : kw_about<kw_T>::kw_is == kw_K && kw_about<kw_T>::kw_bytes == kw_N;

template <class kw_T> constexpr bool kw_is_tensor_map = sizeof(kw_T) == 128;
template <> constexpr bool kw_is_tensor_map<void> = true;

template <class kw_T> constexpr bool kw_is_writable = true;
template <class kw_T> constexpr bool kw_is_writable<const kw_T *> = false;
template <class kw_T> constexpr bool kw_is_read_only = false;
template <> constexpr bool kw_is_read_only<void> = true;
template <class kw_T> constexpr bool kw_is_read_only<const kw_T *> = true;
"""
"""What a function's parameters are, for the comparison with the arguments. A missing one counts as right: their number
is compared, too. So do those of a name that is no function, or none that can be launched, which has -1 of them: each
comparison would be several errors behind the one that matters. Types that are no plain numbers, such as ``__half`` and
``float4``, are compared by their size. All names begin with ``kw_``, because the source may have macros of other names,
such as ``N`` and ``T``."""

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
            f"using kw_function = kw_function_of<decltype(&{source.function})>;",
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
    yield _assertion("kw_function::kw_count >= 0", f"{function} names no __global__ function")
    yield _assertion(
        f"kw_function::kw_count < 0 || kw_function::kw_count == {count}",
        f"{function} has another number of parameters than {count}: {listed}",
    )
    for number, (name, value) in enumerate(source.arguments.items()):
        parameter = f"kw_function::kw_parameter<{number}>"
        dtype = dtype_of(value)
        place = f"parameter {number + 1} of {function}"
        if isinstance(value, TensorMap):
            message = f"{name} is a tensor map, which {place} does not take"
            yield _assertion(f"kw_is_tensor_map<{parameter}>", message)
            continue
        kind = next((kind for start, kind in KINDS if dtype.startswith(start)), "any")
        what = "tensor" if isinstance(value, Tensor) else "number"
        size = bytes_of(Dtype.parse(dtype, unit.where).bits)
        message = f"{name} is a {what} of {dtype}, which {place} does not take"
        yield _assertion(f"kw_is_{what}<{parameter}, kw_kind::kw_{kind}, {size}>", message)
        if isinstance(value, Tensor):
            yield from _written(name, value, name in unit.outputs, parameter, place)


def _written(name: str, value: Tensor, is_output: bool, parameter: str, place: str) -> Iterator[str]:
    if value.written or is_output:
        yield _assertion(f"kw_is_writable<{parameter}>", f"{name} is written, and {place} points to constants")
    elif value.written is None:
        remedy = "write written=True or written=False, or const in the source"
        yield _assertion(f"kw_is_read_only<{parameter}>", f"{place} may write to {name}: {remedy}")


def _assertion(condition: str, message: str) -> str:
    return f'static_assert({condition}, "{message}");'
