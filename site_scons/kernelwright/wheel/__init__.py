"""Wheels of kernel packages: what they say of themselves, their content, their platform, and how they are checked."""

WHEEL_LIST = "KERNELWRIGHT_WHEEL_LIST"
"""Variable with the path of a file to which ``scons wheel`` adds the path of each wheel, for the build backend."""
