"""Lets SCons find the tool by name: ``Environment(tools=["kernelwright"])``."""

from kernelwright.scons import exists, generate

__all__ = ["exists", "generate"]
