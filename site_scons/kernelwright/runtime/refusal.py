"""Why a kernel refuses a call, in one word for programs. An error's text is for people, and no program reads it.

The kernel's library puts the word into the error's extra context in TVM-FFI (``backends/launcher/error.h``); extension
modules and Python code put it into the exception's attribute ``refusal``. Only the standard library is imported here.
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
"""All fits but the alignment of an array's data; another variant may need less."""

BY_KERNEL = "by_kernel"
"""Any other reason that a kernel gives. Errors that other libraries raise are no refusals."""


def because(error: Raised, refusal: str) -> Raised:
    """Note in an error why the call was refused, and return the error."""
    error.refusal = refusal  # type: ignore[attr-defined]
    return error


def refuse(kernel: str, kind: type[Exception], text: str, refusal: str = BY_KERNEL) -> NoReturn:
    """Raise an error that names the kernel, and tells programs why the call is refused."""
    raise because(kind(f"kernel '{kernel}': {text}"), refusal)


def refusal_of(error: BaseException) -> str | None:
    """Why a kernel has refused a call; None: the error is not the kernel's."""
    own = getattr(error, "refusal", None)
    if isinstance(own, str):
        return own
    context = getattr(getattr(error, "__tvm_ffi_error__", None), "extra_context", None)
    return str(context) if isinstance(context, str) else None


def refuse_writing(kernel: str, name: str, what: str) -> NoReturn:
    """Raise the error for an argument that the kernel writes although it is something that nobody may write."""
    remedy = "pass an array that can be written, or leave outputs out of the call to get new ones"
    refuse(kernel, ValueError, f"argument {name!r} is {what}, and the kernel writes it\n  remedy: {remedy}")
