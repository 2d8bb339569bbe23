"""What compilers of others write into kernels, and under which licences."""

from __future__ import annotations

from typing import NamedTuple

APACHE = "Apache-2.0"

NVIDIA = "LicenseRef-NVIDIA-Proprietary"
"""What SPDX has for licences of NVIDIA's."""


class Written(NamedTuple):
    """Something of others that a front end's compiler puts into kernels.

    Arguments:
        distribution: that it is of.
        license: an expression of SPDX.
        what: what of it is in a kernel.
        is_tool: whether it is the compiler, whose version is known.
    """

    distribution: str
    license: str
    what: str
    is_tool: bool = True


CUDA = "cuda"
"""The distribution of what CUDA's compilers put into kernels: of each of them that a package was built with."""

HEADERS = Written(CUDA, NVIDIA, "headers of CUDA")
"""What is in kernels whose source a CUDA compiler compiles."""
