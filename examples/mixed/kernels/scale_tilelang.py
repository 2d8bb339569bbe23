"""y = alpha x, in TileLang: the source is in tile/scale.py."""

from kernelwright import kernel
from kernelwright.tilelang import Program


@kernel(frontend="tilelang", outputs=["y"])
def scale_tilelang():
    """y = alpha x"""
    return Program("tile/scale.py", "scale")
