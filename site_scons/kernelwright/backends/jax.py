"""The jax backend: each kernel is a custom call of XLA, in front of the kernel's library."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ..core.dtype import PLAIN_NUMBER
from ..core.errors import KernelwrightError
from ..core.need import Need
from ..core.signature import Argument
from .base import IN_FRAMEWORKS, Backend
from .plan import KernelPlan

DTYPES = re.compile(r"bool|u?int(4|8|16|32|64)|b?float16|float(32|64)|complex(64|128)|float8_\w+")
"""The dtypes of arrays that JAX has."""


class Jax(Backend):
    """Called from JAX, in jitted programs too, through jax-tvm-ffi."""

    name = "jax"
    at_top = True
    versioned = True
    run_needs = (
        Need("jax", "jax>=0.7.2"),
        Need("jax_tvm_ffi", "jax-tvm-ffi>=0.1.3,<0.2"),
        Need("tvm_ffi", "apache-tvm-ffi>=0.1.13,<0.2"),
    )
    runtime = ("jax_kernel.py", *IN_FRAMEWORKS)

    def check(self, kernel: KernelPlan) -> None:
        """See :meth:`Backend.check`."""
        for unit in kernel.units:
            for argument in unit.arguments:
                if not _is_known(argument):
                    problem = f"is a {argument.kind} of dtype {argument.dtype}, which JAX cannot pass"
                    remedy = "change its dtype, or take jax out of the kernel's backends"
                    raise KernelwrightError(f"argument {argument.name!r} {problem}", unit.where, remedy)

    def stub_imports(self, runtime: str) -> str:
        """See :meth:`Backend.stub_imports`."""
        return f"import jax as _jax\n\nfrom {runtime}.jax_kernel import JaxKernel as _JaxKernel\n"

    def stub(self, kernel: str, entry: Mapping[str, Any]) -> str:
        """See :meth:`Backend.stub`."""
        from .stubs import StubTypes, kernel_stub

        return kernel_stub(kernel, entry, StubTypes("_JaxKernel", "_Tensor", "_jax.Array", writes=False))


def _is_known(argument: Argument) -> bool:
    if argument.kind == "tensor":
        return bool(DTYPES.fullmatch(argument.dtype))
    return bool(PLAIN_NUMBER.fullmatch(argument.dtype))


BACKEND = Jax()
