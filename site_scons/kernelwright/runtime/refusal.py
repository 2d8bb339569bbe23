"""Why a kernel refuses a call, for programs: the words of an error are for people, and nothing hangs on them.

The kernel's library tells it as the error's extra context in TVM-FFI (``backends/launcher/error.h``), the extension
modules and Python code as the attribute ``refusal`` of the exception. Only the standard library is imported here.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn, TypeVar

    Raised = TypeVar("Raised", bound=Exception)

NO_VARIANT = "no_variant"
"""No variant fits the dtypes, the ranks, the constant sizes and the kinds of numbers."""

NO_TARGET = "no_target"
"""There is no code for the device of the arrays."""

AMBIGUOUS = "ambiguous"
"""Several variants fit that differ in meaning, and the call names none."""

MISALIGNED = "misaligned"
"""All fits but where the data of an array lies; another variant may ask for less."""

BY_KERNEL = "by_kernel"
"""Anything else that a kernel says of a call. What other libraries raise is no refusal."""


def because(error: Raised, refusal: str) -> Raised:
    """The error, which then says why the call was refused."""
    error.refusal = refusal  # type: ignore[attr-defined]
    return error


def refuse(kernel: str, kind: type[Exception], text: str, refusal: str = BY_KERNEL) -> NoReturn:
    """Raise an error that names the kernel, and tells programs why the call is refused."""
    raise because(kind(f"kernel '{kernel}': {text}"), refusal)


def refusal_of(error: BaseException) -> str | None:
    """Why a kernel has refused a call; None: it is not the kernel that says so."""
    own = getattr(error, "refusal", None)
    if isinstance(own, str):
        return own
    context = getattr(getattr(error, "__tvm_ffi_error__", None), "extra_context", None)
    return str(context) if isinstance(context, str) else None
