"""Reads what a kernel on CUDA needs of an array of any library: address, dtype, sizes, strides and device.

PyTorch's tensors are asked directly, which is quickest. Other arrays are read through DLPack, or through
``__cuda_array_interface__``. Only the standard library is imported here.
"""

from __future__ import annotations

import re
import sys
from typing import Any, NamedTuple

from .dlpack import Tensor, VersionedTensor, is_valid, pointer_in
from .dtype import dtype_name, name_of_torch
from .interface import DEVICE_TYPES, IMMUTABLE, VIEW, first_line, library_of
from .strides import fold, stride_of

CPU, CUDA, MANAGED = *DEVICE_TYPES.values(), 13
"""DLPack's device types. Every device can address managed memory."""

READ_ONLY = 1
"""The flag of a versioned DLPack tensor that forbids writing."""


class Array(NamedTuple):
    """An array that was passed.

    Arguments:
        data: the address of its first element.
        dtype: as TVM writes it, such as ``float16``.
        shape: its sizes.
        strides: in elements; None: compact.
        device: type and number, as DLPack has them.
        read_only: its library forbids writing.
        after: a stream whose work must be done before the array is used, or None.
        owner: what keeps the memory and its description alive.
        borrowed: its library reuses the memory as soon as nobody holds the array, even if a kernel still reads it.
    """

    data: int
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None
    device: tuple[int, int]
    read_only: bool = False
    after: int | None = None
    owner: Any = None
    borrowed: bool = False

    @property
    def place(self) -> str:
        """The device as messages name it."""
        kind, number = self.device
        if kind in (CUDA, MANAGED):
            return f"cuda:{number}"
        return "cpu" if kind == CPU else f"device {number} of DLPack type {kind}"

    @property
    def is_empty(self) -> bool:
        """Whether it has no elements."""
        return 0 in self.shape

    @property
    def span(self) -> int:
        """How many elements long the memory is from the first element to the last, with gaps."""
        steps = (abs(stride_of(self, axis)) * (size - 1) for axis, size in enumerate(self.shape))
        return 0 if self.is_empty else 1 + sum(steps)

    @property
    def is_compact(self) -> bool:
        """Whether its elements follow one another without gaps, the last axis fastest."""
        if self.strides is None or self.is_empty:
            return True
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides), strict=True):
            if size != 1 and stride != expected:
                return False
            expected *= size
        return True

    def shares_memory(self, other: Array, strided: bool) -> bool:
        """Whether both have elements and one memory, as far as that is sure.

        Arguments:
            strided: one of them may have gaps, between which elements of the other may lie.
        """
        if self.is_empty or other.is_empty:
            return False
        if self.data == other.data or strided:
            return self.data == other.data
        lower, upper = sorted((self, other), key=lambda array: array.data)
        bits = re.search(r"\d+", lower.dtype)
        return upper.data - lower.data < -(-lower.span * int(bits[0] if bits else 8) // 8)

    def folded(self, trailing: int) -> Array:
        """The same array with leading dimensions that are one; they can be."""
        view: Any = fold(self.shape, self.strides, trailing)
        return self._replace(shape=view[0], strides=view[1])


class Absent:
    """In the place of an array that a call passes None for: its data is nowhere."""

    data = 0
    shape = None


ABSENT = Absent()


class UnreadableArrayError(Exception):
    """Raised if the library of an array does not export it; the text says why."""


def read_array(value: Any, stream: int) -> Array | None:
    """Read an array.

    Arguments:
        stream: the stream that will use it, as DLPack numbers it. Its library makes that stream wait for the library's
            own work on the array.

    Returns:
        The array; None: the value is no array.

    Raises:
        UnreadableArrayError: its library does not export it.
    """
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        return _read_torch(value)
    if hasattr(value, "__dlpack__") and hasattr(value, "__dlpack_device__"):
        return _read_dlpack(value, stream)
    interface = getattr(value, "__cuda_array_interface__", None)
    return _read_interface(value, interface) if isinstance(interface, dict) else None


def _read_torch(tensor: Any) -> Array:
    try:
        if tensor.is_conj() or tensor.is_neg():
            raise UnreadableArrayError(f"it is {VIEW}")
        strides, data = tensor.stride(), tensor.data_ptr()
    except (RuntimeError, NotImplementedError) as error:
        raise UnreadableArrayError(first_line(error)) from error
    device = tensor.device
    kind = {"cpu": CPU, "cuda": CUDA}.get(device.type, 0)
    return Array(
        data, name_of_torch(tensor.dtype), tuple(tensor.shape), strides, (kind, device.index or 0), owner=tensor
    )


# ---- DLPack


def _read_dlpack(value: Any, stream: int) -> Array:
    try:
        kind, number = (int(part) for part in value.__dlpack_device__())
        if kind not in (CUDA, MANAGED):
            return Array(0, "", (), None, (kind, number), owner=value)  # the caller only looks at the device
        capsule = _export(value, stream)
    except Exception as error:  # libraries raise errors of any type
        raise UnreadableArrayError(first_line(error)) from error
    is_immutable = library_of(value) == IMMUTABLE
    # The capsule keeps its name, so it remains the owner and frees its tensor when it goes.
    if is_valid(capsule, b"dltensor_versioned"):
        address = pointer_in(capsule, b"dltensor_versioned")
        versioned = VersionedTensor.from_address(address)
        read_only = is_immutable or bool(versioned.flags & READ_ONLY)
        return _described(versioned.tensor, (kind, number), read_only, (value, capsule), is_immutable)
    if not is_valid(capsule, b"dltensor"):
        raise UnreadableArrayError("its __dlpack__ returned something else than a DLPack capsule")
    tensor = Tensor.from_address(pointer_in(capsule, b"dltensor"))
    return _described(tensor, (kind, number), is_immutable, (value, capsule), is_immutable)


def _export(value: Any, stream: int) -> Any:
    """The DLPack capsule of an array, in the newer form if its library has that."""
    try:
        return value.__dlpack__(stream=stream, max_version=(1, 1))
    except TypeError:
        return value.__dlpack__(stream=stream)


def _described(tensor: Tensor, device: tuple[int, int], read_only: bool, owner: Any, borrowed: bool) -> Array:
    shape = tuple(tensor.shape[: tensor.ndim])
    strides = tuple(tensor.strides[: tensor.ndim]) if tensor.strides else None
    data = (tensor.data or 0) + tensor.byte_offset
    dtype = dtype_name(tensor.code, tensor.bits, tensor.lanes)
    return Array(data, dtype, shape, strides, device, read_only, owner=owner, borrowed=borrowed)


# ---- __cuda_array_interface__

_KINDS = {"i": "int", "u": "uint", "f": "float", "c": "complex", "b": "bool"}


def _read_interface(value: Any, interface: dict[str, Any]) -> Array:
    """Read version 3 of the CUDA Array Interface. It does not name the device, so the driver is asked."""
    from cuda.bindings import driver

    try:
        (data, read_only), shape, typestr = interface["data"], tuple(interface["shape"]), interface["typestr"]
    except (KeyError, TypeError, ValueError) as error:
        raise UnreadableArrayError(f"its __cuda_array_interface__ is not of version 3: {error!r}") from error
    bytes_ = int(typestr[2:])
    dtype = "bool" if typestr[1] == "b" else f"{_KINDS.get(typestr[1], typestr)}{8 * bytes_}"
    if typestr[0] == ">":
        raise UnreadableArrayError("its byte order is not that of this machine")
    strides = interface.get("strides")
    if strides is not None:
        if 0 not in shape and any(n > 1 and stride % bytes_ for n, stride in zip(shape, strides, strict=True)):
            raise UnreadableArrayError("its strides are not multiples of the size of its elements")
        strides = tuple(stride // bytes_ for stride in strides)
    number = 0
    if data:
        ordinal = driver.CUpointer_attribute.CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL
        status, number = driver.cuPointerGetAttribute(ordinal, data)
        if status != driver.CUresult.CUDA_SUCCESS:
            raise UnreadableArrayError(f"the driver does not know its memory ({status.name})")
    after = interface.get("stream")
    device, is_constant = (CUDA, int(number)), bool(read_only)
    return Array(int(data or 0), dtype, shape, strides, device, read_only=is_constant, after=after, owner=value)
