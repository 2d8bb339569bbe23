"""Replaces number arguments of dtypes that a call cannot pass.

TVM 0.27 takes a float of at least 16 bits, but no bfloat16 and nothing smaller: "dtype.code() == kDLFloat (4 vs. 2)".
Such a number is passed as a float32, and rounded to its own dtype where it is used: on the device, for CUDA.
"""

from __future__ import annotations

import tvm
import tvm_ffi
from tvm import tirx

from ...runtime.dtype import passed_as


def in_passed_dtypes(function: tirx.PrimFunc) -> tirx.PrimFunc:
    """The function with dtypes of numbers that TVM's host code can take. Names stay the same.

    ``signature.json`` has the dtypes of the definition: it is made of the arguments before this.
    """
    params, values = list(function.params), {}
    for position, parameter in enumerate(params):
        if tirx.buffer.is_buffer_var(parameter) or not isinstance(parameter.ty, tvm.ir.PrimType):
            continue
        dtype = str(parameter.ty.dtype)
        if passed_as(dtype) != dtype:
            params[position] = tirx.Var(parameter.name, passed_as(dtype))
            values[parameter] = tirx.Cast(dtype, params[position])
    if not values:
        return function
    body = tvm_ffi.structural_map(function.body, (tvm.ir.Var, lambda variable: values.get(variable, variable)))
    return tirx.PrimFunc(params, body, function.ret_type, function.attrs, function.span)
