"""What a definition in TileLang imports."""

from .define.sizes import Size
from .frontends.tilelang.program import Program

__all__ = ["Program", "Size"]
