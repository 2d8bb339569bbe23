"""Names of kernels and arguments as C++ can have them."""

from __future__ import annotations

from collections.abc import Sequence

from kernelwright.core.errors import KernelwrightError, Where

WORDS = """\
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t char8_t class
co_await co_return co_yield compl concept const const_cast consteval constexpr constinit continue decltype
default delete do double dynamic_cast else enum explicit export extern false float for friend goto if inline int
long mutable namespace new noexcept not not_eq nullptr operator or or_eq private protected public register
reinterpret_cast requires return short signed sizeof static static_assert static_cast struct switch template
this thread_local throw true try typedef typeid typename union unsigned using virtual void volatile wchar_t
while xor xor_eq errno linux unix assert signbit isnan isinf isfinite stdin stdout stderr std kernelwright"""
"""Keywords of C++20, macros of the standard library and of compilers on Linux, and namespaces that headers name."""

RESERVED = frozenset(WORDS.split())


def identifier(name: str) -> str:
    """A name, with an underscore behind it if it means something else in C++."""
    return f"{name}_" if name in RESERVED else name


def require_distinct(names: Sequence[str], what: str, where: Where) -> None:
    """Raise a KernelwrightError for two names that are one in C++.

    Arguments:
        what: what they are names of.
    """
    known: dict[str, str] = {}
    for name in names:
        if (other := known.setdefault(identifier(name), name)) != name:
            message = f"the {what} {other!r} and {name!r} are both {identifier(name)} in C++"
            raise KernelwrightError(message, where, "rename one of them, or take cpp out of backends")
