"""What a definition in TileLang imports."""

from .frontends.tilelang.program import Program

__all__ = ["Program"]
