"""The SCons side: the only modules that import SCons. A build file needs only ``generate``."""

from .tool import exists, generate

__all__ = ["exists", "generate"]
