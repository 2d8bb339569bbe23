"""What a definition in TileLang imports."""

from .define.tilelang_program import Program

__all__ = ["Program"]
