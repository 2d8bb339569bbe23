# cython: language_level=3, binding=False, embedsignature=False
# Kernel gemm as an extension module. Written by Kernelwright; kernel.pxi and its C headers have the mechanism.

cdef extern from *:
    """
    #define KW_MAX_ARGUMENTS 8
    """

include "kernel.pxi"

cdef kw_parameter[8] PARAMETERS = [
    # what is passed; whether it may be left out; whether it is written
    kw_parameter(b"a", KW_TENSOR, False, False),
    kw_parameter(b"include", KW_TENSOR, False, False),
    kw_parameter(b"c", KW_TENSOR, True, True),
    kw_parameter(b"alpha", KW_FLOAT, False, False),
    kw_parameter(b"k", KW_INT, False, False),
    kw_parameter(b"transposed", KW_BOOL, False, False),
    kw_parameter(b"stream", KW_POINTER, False, False),
    kw_parameter(b"total", KW_TENSOR, True, True),
]


cdef class Function(Kernel):
    """Kernel gemm, or one variant of it."""

    def __cinit__(self):
        self.kernel.name = b"gemm"
        self.kernel.parameters = PARAMETERS
        self.kernel.num_parameters = 8
        self.kernel.num_outputs = 2

    def __call__(
        self,
        *positional,
        a=None,  # float16[m, 4096] or bfloat16[m, 4096]
        c=None,  # float16[m, min(2 * n, m // 3)] or bfloat16[m, min(2 * n, m // 3)]
        alpha=None,  # float32
        k=None,  # int32
        transposed=None,  # bool
        total=None,  # float32[]
        stream=None,
    ):
        # Each argument is passed by its position or by its name. None stands for one that is not given.
        cdef PyObject **named = [<PyObject *>a, <PyObject *>None, <PyObject *>c, <PyObject *>alpha, <PyObject *>k, <PyObject *>transposed, <PyObject *>None, <PyObject *>total]
        return kw_call_kernel(self, &self.kernel, positional, named, <PyObject *>stream)
