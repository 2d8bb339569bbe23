"""Symbols that nothing defines where a library is linked: what C++ calls them, and who has them."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

LIBRARIES = (
    *("cublasLt", "cublas", "cudnn", "cufft", "curand", "cusolverMg", "cusolver", "cusparseLt", "cusparse", "nccl"),
    *("nvJitLink", "cudss", "nvjpeg", "nvrtc"),
)
"""Libraries of CUDA whose functions begin with the library's name. A name comes before what it begins with."""

BEGINS = {"cuFile": "cufile", **{name: name for name in LIBRARIES}}
"""How functions of a library of CUDA begin -> the library."""

IN_TORCH = 'if PyTorch has {}, write frontend="torch", and Operators in place of Exported'

OF_TORCH = re.compile(r"_Z(T\w)?NK?(2at|3c10|5torch)\w*|(aoti_torch|torch)_\w+")
"""Names of what PyTorch has: in C++, and the C functions of its stable ABI."""

MOST = 4
"""A message has no more names than this."""

LONGEST = 200
"""It has no more characters of a name than this."""


def demangled(symbol: str) -> str:
    """The name as it is written in C++; the symbol itself, if it is none of C++."""
    import ctypes

    if not symbol.startswith("_Z"):  # such as f, which would be float
        return symbol
    try:
        demangle = ctypes.CDLL("libstdc++.so.6").__cxa_demangle
    except (OSError, AttributeError):  # another C++ library
        return symbol
    demangle.restype, free = ctypes.c_void_p, ctypes.CDLL(None).free
    free.argtypes = [ctypes.c_void_p]
    found = demangle(symbol.encode(), None, None, None)
    text = ctypes.string_at(found).decode(errors="replace") if found else symbol
    free(found)
    return text


def nothing_has(symbols: Sequence[str]) -> str:
    """What a message says of symbols."""
    more = len(symbols) - MOST
    names = [*map(short, symbols[:MOST]), *([f"{more} more"] if more > 0 else [])]
    return f"nothing has {', '.join(names)}"


def owner_of(symbol: str) -> str:
    """The library of CUDA that has a function, by its name; empty: none."""
    name = symbol.removeprefix("__")  # headers add it: __nvJitLinkCreate_13_0
    found = (library for begin, library in BEGINS.items() if re.match(f"{begin}[A-Z]", name))
    return next(found, "")


def who_has(symbols: Sequence[str], otherwise: str, listed: Collection[str] = (), in_torch: str = IN_TORCH) -> str:
    """What to do about symbols.

    Arguments:
        otherwise: what to do about those that nobody is known to have.
        listed: the file names of libraries that the kernel lists, which do not have them.
        in_torch: what to do about one whose name looks like PyTorch's, with a place for that.
    """
    owners = {symbol: owner_of(symbol) for symbol in symbols}
    here = {library: file for file in listed for library in BEGINS.values() if file.startswith(f"lib{library}.so")}
    wanted = ", ".join(f'"{name}"' for name in dict.fromkeys(owners.values()) if name and name not in here)
    said = [f"add {wanted} to libraries" if listed else f"write libraries=[{wanted}]"] if wanted else []
    if older := [symbol for symbol in symbols if owners[symbol] in here]:
        said.append(f"{here[owners[older[0]]]} does not have {older[0]}: mend the name, or install a newer one")
    if of_torch := [short(symbol) for symbol in symbols if OF_TORCH.fullmatch(symbol)]:
        said.append(in_torch.format(of_torch[0]))
    if not all(owners.values()):  # sources may have functions in namespaces of PyTorch
        said.append(otherwise)
    return "; ".join(said)


def short(symbol: str) -> str:
    """A name for a message: those of templates can have many thousands of characters."""
    name = demangled(symbol)
    return name if len(name) <= LONGEST else f"{name[:LONGEST]}..."
