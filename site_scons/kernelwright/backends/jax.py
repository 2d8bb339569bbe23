"""The jax backend: each kernel is a custom call of XLA, in front of the kernel's library."""

from __future__ import annotations

import re
from typing import ClassVar

from ..core.need import Need
from .base import IN_FRAMEWORKS, Backend
from .plan import KernelPlan, require_dtypes

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
    stub_types: ClassVar = {"base": "_JaxKernel", "result": "_jax.Array", "writes": False}

    def check(self, kernel: KernelPlan) -> None:
        """See :meth:`Backend.check`."""
        require_dtypes(kernel, DTYPES, "JAX cannot pass", self.name)

    def stub_imports(self, runtime: str) -> str:
        """See :meth:`Backend.stub_imports`."""
        return f"import jax as _jax\n\nfrom {runtime}.jax_kernel import JaxKernel as _JaxKernel\n"


BACKEND = Jax()
