# The part of an extension module that is the same for every kernel: the types on which its Function is built.

cimport cython
from cpython.object cimport PyObject
from libc.stdint cimport int64_t

import threading


cdef extern from "python/call.h":
    enum:
        KW_TENSOR
        KW_FLOAT
        KW_INT
        KW_BOOL
        KW_POINTER

    ctypedef struct kw_parameter:
        const char *name
        int kind
        bint is_output
        bint is_optional
        bint is_written

    ctypedef struct kw_kernel:
        const char *name
        const kw_parameter *parameters
        int num_parameters
        int num_outputs
        int num_optional
        void *library

    ctypedef struct DLDevice:
        int device_type
        int device_id

    ctypedef struct DLTensor:
        DLDevice device

    object kw_call_kernel(self, const kw_kernel *kernel, positional, PyObject **named, PyObject *stream)
    object kw_call_service(const kw_kernel *kernel, const char *name, const int64_t *numbers, int count)
    object kw_capsule_of(void *tensor, bint versioned)
    const DLTensor *kw_dltensor_of(void *tensor)
    int kw_load(kw_kernel *kernel, const char *runtime, const char *library, const char *symbol) except -1
    int kw_set_provider(const kw_kernel *kernel, provider) except -1
    void kw_keep(void *tensor)
    void kw_drop(void *tensor)
    object (*kw_new_output)(void *tensor, object kernel, object stream, object kept)


cdef class Kernel:
    """A function of a kernel's library; nothing can be done with it before it was loaded."""

    cdef kw_kernel kernel

    def _load(self, bytes runtime, bytes library, bytes symbol):
        """Load libtvm_ffi.so and the kernel's library, and find a function in it."""
        kw_load(&self.kernel, runtime, library, symbol)

    def _service(self, bytes name, *numbers):
        """Call a service of the kernel's library with up to three integers."""
        cdef int64_t[3] values = [0, 0, 0]
        cdef int count = 0
        for number in numbers:
            values[count] = number
            count += 1
        return kw_call_service(&self.kernel, name, values, count)

    def _set_provider(self, provider):
        """Have device code, if the library does not hold it, found by a function."""
        kw_set_provider(&self.kernel, provider)


@cython.no_gc
cdef class Output:
    """A new array, which any library with DLPack can take without a copy."""

    cdef void *tensor
    cdef object kernel, stream, kept, thread  # None on the CPU

    def __dealloc__(self):
        kw_drop(self.tensor)

    def __dlpack_device__(self):
        """DLPack's type and number of the device."""
        cdef DLDevice device = kw_dltensor_of(self.tensor).device
        return device.device_type, device.device_id

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        """A capsule, in the form of DLPack 1 if `max_version` is that or later.

        On a GPU the stream is made to wait for the kernel that writes the array. Without one the kernel is waited for.
        """
        if copy or (dl_device is not None and tuple(dl_device) != self.__dlpack_device__()):
            raise BufferError("a new output of a kernel is exported where it is, and not copied")
        if self.kernel is not None:
            self.kernel._hand_over(self.__dlpack_device__()[1], self.stream, stream, self.thread)
        return kw_capsule_of(self.tensor, max_version is not None and max_version[0] >= 1)


cdef object new_output(void *tensor, object kernel, object stream, object kept):
    """An output that shares a tensor of TVM-FFI."""
    cdef Output output = Output.__new__(Output)
    kw_keep(tensor)
    output.tensor = tensor
    output.kernel, output.stream, output.kept = kernel, stream, kept
    if kernel is not None:
        output.thread = threading.get_ident()
    return output


kw_new_output = new_output
