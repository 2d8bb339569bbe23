"""Launches through cuda.core: the device code of variants, and the functions that generated modules call."""

from __future__ import annotations

import ctypes
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

from . import cuda_core_tensor_maps as tensor_maps
from .arch import is_ptx, suitable, version_text
from .cuda_core_device import Cuda, Device, newer_driver
from .dtype import integer_range
from .strides import told_stride

SHARED_LIMIT = 48 * 1024
"""A function that needs more bytes of static and dynamic shared memory than this must opt in to more."""

SMALLER = "call a variant with smaller tiles"

Allocate = Callable[[int], tuple[int, Callable[[], None]]]
"""Bytes -> the address of memory, and a function that frees it."""

FindImage = Callable[[str, str, str, int, int], tuple[str, Any]]
"""The loader's ``image``: kernel, slug, suitable archs, device number and capability -> arch and path."""


class LaunchError(Exception):
    """A number that a launch cannot take; the text says which."""


# ---- what generated modules use


def _integer(name: str, type_: Any) -> Callable[[int], Any]:
    low, high = integer_range(name)

    def converted(value: int) -> Any:
        if not low <= value <= high:
            raise LaunchError(f"a device function would be passed {value}, which does not fit {name}")
        return type_(value)

    return converted


int8 = _integer("int8", ctypes.c_int8)
int16 = _integer("int16", ctypes.c_int16)
int32 = _integer("int32", ctypes.c_int32)
int64 = _integer("int64", ctypes.c_int64)
uint8 = _integer("uint8", ctypes.c_uint8)
uint16 = _integer("uint16", ctypes.c_uint16)
uint32 = _integer("uint32", ctypes.c_uint32)
uint64 = _integer("uint64", ctypes.c_uint64)
float32 = ctypes.c_float
float64 = ctypes.c_double
bool_ = ctypes.c_bool


def float16(value: float) -> Any:
    """A number as NumPy's float16, since ctypes has none."""
    import numpy

    with numpy.errstate(over="ignore"):
        return numpy.float16(value)


def truncdiv(a: int, b: int) -> int:
    """The quotient, rounded towards zero as in C."""
    quotient = abs(a) // abs(b)
    return quotient if (a < 0) == (b < 0) else -quotient


def truncmod(a: int, b: int) -> int:
    """The remainder that belongs to :func:`truncdiv`, as in C."""
    return a - b * truncdiv(a, b)


# ---- device code


@dataclass
class Function:
    """A device function on one device, with its static shared memory and the dynamic that it may use, in bytes."""

    kernel: Any
    static_shared: int
    shared_limit: int
    occupancy: tuple[tuple[int, int], int] = (0, 0), 0
    """Threads of a block and its dynamic shared memory, and how many such blocks a multiprocessor can have at once."""


@dataclass
class DeviceCode:
    """The device code of one variant, loaded once for each device.

    Arguments:
        cuda: CUDA for the kernel.
        slug: the variant.
        archs: those that it was built for.
        functions: the names of its device functions; by arch, if it has several sources.
        find_image: finds the best image that is installed.
        driver: the CUDA version that a driver must be for to decompress the images, such as 12040; 0: any.
        drivers: arch -> the CUDA version that a driver must be for to read its image, where that is known.
    """

    cuda: Cuda
    slug: str
    archs: tuple[str, ...]
    functions: tuple[str, ...] | Mapping[str, tuple[str, ...]]
    find_image: FindImage
    driver: int = 0
    drivers: Mapping[str, int] = field(default_factory=dict)
    _loaded: dict[int, dict[str, Function]] = field(default_factory=dict)
    _archs: dict[int, str] = field(default_factory=dict)

    def choose(self, device: Device) -> tuple[str, Any]:
        """Arch and path of the image for a device.

        Raises:
            RuntimeError: no image suits it, none that does is installed, or the driver is too old for the image.
        """
        archs = suitable(self.archs, device.capability)
        if not archs:
            built = ", ".join(self.archs) or "no arch"
            sm = f"sm_{device.capability}"
            self.cuda.refuse(
                RuntimeError,
                f"{device} is an {sm}, and variant {self.slug} was built for {built}\n  remedy: add {sm} to its archs",
            )
        has = self._driver_version()
        usable = [arch for arch in archs if self.drivers.get(arch, 0) <= has]
        if not usable:
            self._refuse_driver(min(archs, key=lambda arch: self.drivers[arch]), has, device)
        arch, path = self.find_image(self.cuda.kernel, self.slug, " ".join(usable), device.number, device.capability)
        self._check_driver(arch, has)
        return arch, path

    def _driver_version(self) -> int:
        """The CUDA version of the driver, or the largest number if no image asks for one."""
        if not self.driver and not self.drivers:
            return sys.maxsize
        result = self.cuda.driver.cuDriverGetVersion()
        return int(self.cuda.checked(lambda: "asking for the version of the driver", result))

    def _refuse_driver(self, arch: str, has: int, device: Device) -> NoReturn:
        """Raise the error for a driver that is too old for all images that suit the device."""
        needed = self.drivers[arch]
        self.cuda.refuse(
            RuntimeError,
            f"the code of variant {self.slug} for {device} ({arch}) needs a driver for CUDA {version_text(needed)} or "
            f"newer; this one is for CUDA {version_text(has)}{newer_driver(needed, has)}",
        )

    def _check_driver(self, arch: str, has: int) -> None:
        if has < self.driver:
            needed, own = (f"CUDA {version_text(version)}" for version in (self.driver, has))
            remedy = "install a newer NVIDIA driver, or compress it less, with compress = speed"
            self.cuda.refuse(
                RuntimeError,
                f"{arch} of variant {self.slug} is compressed, and needs a driver for {needed} or newer; "
                f"this one is for {own}\n  remedy: {remedy}",
            )

    def on(self, device: Device) -> Mapping[str, Function]:
        """The loaded device functions by name. The context of the device must be current."""
        known = self._loaded.get(device.number)
        if known is not None:
            return known
        with self.cuda.lock, self.cuda.relaxed():
            if device.number not in self._loaded:
                self._loaded[device.number] = self._load(device)
            return self._loaded[device.number]

    def _load(self, device: Device) -> dict[str, Function]:
        arch, path = self.choose(device)
        content = path.read_bytes()
        # The driver is not told the size: a header says it, or the text ends.
        is_fatbin, loading = content.startswith(b"P\xedU\xba"), self.cuda.core.ObjectCode
        make = loading.from_fatbin if is_fatbin else loading.from_ptx if is_ptx(arch) else loading.from_cubin
        code = make(content, name=f"{self.cuda.kernel} {self.slug} {arch}")
        self._archs[device.number] = arch
        names = self.functions[arch] if isinstance(self.functions, Mapping) else self.functions
        return {name: self._function(code, name, arch, device) for name in names}

    def arch_on(self, device: Device) -> str:
        """The arch of the code that runs on a device. The context of the device must be current."""
        self.on(device)
        return self._archs[device.number]

    def _function(self, code: Any, name: str, arch: str, device: Device) -> Function:
        def loading() -> str:
            return f"loading {arch} of variant {self.slug} with the device function {name}"

        kernel = self.cuda.call(loading, code.get_kernel, name)
        driver = self.cuda.driver
        attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES
        static = self.cuda.checked(loading, driver.cuKernelGetAttribute(attribute, kernel.handle, device.number))
        # Makes the driver load the code now, and not in the middle of a graph capture.
        self.cuda.checked(loading, driver.cuKernelGetFunction(kernel.handle))
        return Function(kernel, static, max(0, SHARED_LIMIT - static))


# ---- one call


class Call:
    """One call of a kernel: a generated function launches device functions through it.

    Arguments:
        code: the variant's device code.
        device: where it runs; its context is current.
        stream: the stream's handle.
        allocate: allocates temporary memory for that stream: bytes -> its address, and a function that frees it.

    Attributes:
        launched: whether anything was launched.
        skipped: the text of the last launch that was skipped because it has no block or no thread; empty: none was.
    """

    launched = False
    skipped = ""

    def __init__(self, code: DeviceCode, device: Device, stream: int, allocate: Allocate) -> None:
        self._code = code
        self._cuda = code.cuda
        self._device = device
        self._stream = self._cuda.stream(stream, device)
        self._handle = stream or 1  # as cuda.core's: to cuda.bindings 0 may be the default stream of the thread
        self._allocate = allocate
        self._workspaces: list[Callable[[], None]] = []

    def check(self, passes: bool, error: type[Exception], message: str) -> None:
        """Raise the error of a check in the definition, unless it passes. The message may name the kernel already."""
        if not passes:
            self._cuda.refuse(error, message.removeprefix(f"kernel '{self._cuda.kernel}': "))

    @property
    def multiprocessors(self) -> int:
        """How many the device has; 0: it does not say."""
        return self._device.count

    def occupancy(self, function: str, block: tuple[int, int, int], shared: int) -> int:
        """How many blocks of a launch a multiprocessor can have at once, one at least."""
        threads = math.prod(block)
        if not all(0 < size < 2**15 for size in (*block, threads)) or not 0 <= shared < 2**31:
            return 1  # for a launch that is left out, or refused
        own = self._code.on(self._device)[function]
        asked, blocks = own.occupancy
        if asked != (threads, shared):
            blocks = self._count_blocks(own, function, block, shared)
            own.occupancy = (threads, shared), blocks
        return blocks

    def _count_blocks(self, own: Function, function: str, block: tuple[int, int, int], shared: int) -> int:
        def what() -> str:
            return self._described(function, (1, 1, 1), block, shared, None)

        if shared > own.shared_limit:
            self._extend_shared(own, shared, what)
        handle, threads = self._cuda.driver.CUfunction(int(own.kernel.handle)), math.prod(block)
        result = self._cuda.driver.cuOccupancyMaxActiveBlocksPerMultiprocessor(handle, threads, shared)
        blocks = int(self._cuda.checked(lambda: f"launching {what()}", result))
        if not blocks:
            self._cuda.refuse(RuntimeError, f"{what()}: no multiprocessor has room for a block\n  remedy: {SMALLER}")
        return blocks

    def stride(self, places: Sequence[tuple[Any, int]], step: int) -> int:
        """What arrays tell of a symbol that only strides have; see :func:`told_stride`."""
        return int(told_stride(places, step))

    def workspace(self, size: int, zeroed: bool = False) -> int:
        """The address of ``size`` bytes of temporary memory, which is freed when the call ends."""
        address, free = self._allocate(size)
        self._workspaces.append(free)
        if zeroed and size:
            what = f"filling a workspace of {size} bytes with zeros"
            self._cuda.checked(lambda: what, self._cuda.driver.cuMemsetD8Async(address, 0, size, self._handle))
        return address

    def tensor_map(self, data: int, dtype: str, **described: Sequence[int]) -> tensor_maps.TensorMap:
        """A tensor map, as launches pass it; see :func:`tensor_maps.encoded`."""
        return tensor_maps.encoded(self._cuda.checked, data, dtype, **described)

    def structure(self, size: int, members: Mapping[int, Any]) -> tensor_maps.Structure:
        """A structure of some bytes, with values at their offsets."""
        made = tensor_maps.Structure(size)
        for offset, value in members.items():
            made.put(offset, value)
        return made

    def free(self) -> None:
        """Free the temporary memory, after the launches of this call are done."""
        while self._workspaces:
            self._workspaces.pop()()

    def launch(
        self,
        function: str,
        *,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        parameters: tuple[Any, ...],
        shared: int = 0,
        cluster: tuple[int, int, int] | None = None,
        cooperative: bool = False,
        dependent: bool = False,
    ) -> None:
        """Launch a device function, unless a dimension is zero.

        Arguments:
            grid, block, cluster: in blocks, threads and blocks.
            parameters: addresses, numbers of ctypes, and structures; a launch with these takes no further options.
            shared: bytes of dynamic shared memory of a block.

        Raises:
            ValueError: a dimension is negative or too large.
            RuntimeError: the device or its driver refuses.
        """
        for value in (*grid, *block, *(cluster or ()), shared):
            if not 0 <= value < 2**32:
                text = f"device function {function} would be launched with a dimension of {value}"
                self._cuda.refuse(ValueError, text)
        if not all((*grid, *block, *(cluster or ()))):
            clusters = f", cluster {cluster}" if cluster is not None else ""
            self.skipped = f"device function {function} would be launched with grid {grid}, block {block}{clusters}"
            return
        self.launched = True
        own = self._code.on(self._device)[function]

        def what() -> str:
            return self._described(function, grid, block, shared, cluster)

        if shared > own.shared_limit:
            self._extend_shared(own, shared, what)
        if any(isinstance(value, tensor_maps.Structure) for value in parameters):
            dims: Any = {"grid": grid, "block": block, "shared": shared, "parameters": parameters}
            result = tensor_maps.start(own.kernel.handle, self._handle, **dims)
            self._cuda.checked(lambda: f"launching {what()}", result)
            return
        options: dict[str, Any] = {"is_cooperative": True} if cooperative else {}
        if dependent:
            options["programmatic_stream_serialization"] = True
        if cluster is not None:
            grid = self._clusters(function, grid, cluster)
            options["cluster"] = cluster

        def start() -> None:
            config = self._cuda.core.LaunchConfig(grid=grid, block=block, shmem_size=shared, **options)
            self._cuda.core.launch(self._stream, config, own.kernel, *parameters)

        self._cuda.call(lambda: f"launching {what()}", start)

    def _clusters(
        self, function: str, grid: tuple[int, int, int], cluster: tuple[int, int, int]
    ) -> tuple[int, int, int]:
        """The grid in clusters, which is how cuda.core counts it."""
        if any(blocks % size for blocks, size in zip(grid, cluster, strict=True)):
            text = f"device function {function} would be launched with a grid of {grid}, no multiple of its clusters"
            self._cuda.refuse(ValueError, f"{text} of {cluster}")
        return grid[0] // cluster[0], grid[1] // cluster[1], grid[2] // cluster[2]

    def _extend_shared(self, own: Function, shared: int, what: Callable[[], str]) -> None:
        """Opt a function in to more dynamic shared memory than every function gets."""
        with self._cuda.lock, self._cuda.relaxed():
            if shared <= own.shared_limit:
                return
            if shared + own.static_shared > self._device.shared_limit:
                self._cuda.refuse(
                    RuntimeError,
                    f"{what()}: with {own.static_shared} bytes of static shared memory that is more than the "
                    f"{self._device.shared_limit} bytes of a block on this device\n"
                    f"  remedy: {SMALLER}",
                )
            attribute = self._cuda.driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            result = self._cuda.driver.cuKernelSetAttribute(attribute, shared, own.kernel.handle, self._device.number)
            self._cuda.checked(lambda: f"launching {what()}", result)
            own.shared_limit = shared

    def _described(
        self,
        function: str,
        grid: tuple[int, int, int],
        block: tuple[int, int, int],
        shared: int,
        cluster: tuple[int, int, int] | None,
    ) -> str:
        clusters = f"cluster {cluster}, " if cluster is not None else ""
        return (
            f"device function {function}, grid {grid}, block {block}, {clusters}{shared} bytes of dynamic shared "
            f"memory, {self._device} (sm_{self._device.capability})"
        )
