"""DLPack's structures, and exports of arrays that NumPy cannot export: those of bfloat16 and float8 of ml_dtypes.

Only the standard library is imported here.
"""

from __future__ import annotations

import ctypes
from typing import Any

from .dtype import CODES, NARROW


class Tensor(ctypes.Structure):
    """DLTensor of dlpack.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class VersionedTensor(ctypes.Structure):
    """DLManagedTensorVersioned of dlpack.h."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", Tensor),
    )


def _capsule_function(name: str, result: Any) -> Any:
    function = ctypes.PYFUNCTYPE(result, ctypes.py_object, ctypes.c_char_p)
    return function((name, ctypes.pythonapi))


is_valid = _capsule_function("PyCapsule_IsValid", ctypes.c_int)
pointer_in = _capsule_function("PyCapsule_GetPointer", ctypes.c_void_p)


def as_integers(array: Any) -> tuple[Any, int] | None:
    """An array of a dtype that NumPy does not export, as integers of that size, and DLPack's code of the dtype.

    Returns:
        None: it is no such array.
    """
    code = narrow_code(getattr(getattr(array, "dtype", None), "name", ""))
    if code is None or not hasattr(array, "__array_interface__"):
        return None
    return array.view(f"uint{8 * array.itemsize}"), code


def export_of(array: Any) -> Any:
    """The DLPack capsule of an array that its library exports, in the newer form if the library has that.

    tvm-ffi asks for the older form. That cannot mark memory as read-only, so NumPy refuses it for such arrays.

    Raises:
        TypeError: its library has only the older form.
    """
    integers = as_integers(array)
    if integers is None:
        return array.__dlpack__(max_version=(1, 0))
    view, code = integers
    return with_code(view.__dlpack__(max_version=(1, 0)) if not view.flags.writeable else view.__dlpack__(), code)


def narrow_code(name: str) -> int | None:
    """DLPack's code of a dtype that is exported as integers; None: it is another dtype."""
    return CODES["bfloat" if name == "bfloat16" else name] if name in NARROW else None


def with_code(capsule: Any, code: int) -> Any:
    """Give a capsule of integers another dtype of the same size. This changes the capsule, which is this call's own."""
    is_versioned = is_valid(capsule, b"dltensor_versioned")
    address = pointer_in(capsule, b"dltensor_versioned" if is_versioned else b"dltensor")
    tensor = VersionedTensor.from_address(address).tensor if is_versioned else Tensor.from_address(address)
    tensor.code = code
    return capsule


def to_numpy(output: Any) -> Any:
    """A new output as an array of NumPy's, with a dtype of ml_dtypes.

    Raises:
        TypeError: ml_dtypes is not installed, or has no such dtype.
    """
    import numpy

    from .dtype import dtype_name, numpy_dtype

    capsule = output.__dlpack__()
    tensor = Tensor.from_address(pointer_in(capsule, b"dltensor"))
    dtype = numpy_dtype(dtype_name(tensor.code, tensor.bits, tensor.lanes))
    tensor.code = CODES["uint"]
    return numpy.from_dlpack(Exported(capsule)).view(dtype)


class Exported:
    """An object whose DLPack export is a capsule that exists already."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **_: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return 1, 0
