"""Kernel packages and their wheels: what they are assembled from, what they say of themselves, how they are checked."""

WHEEL_LIST = "KERNELWRIGHT_WHEEL_LIST"
"""Variable with the path of a file to which ``scons wheel`` adds the path of each wheel, for the build backend."""
