"""Kernel packages and their wheels: what they are assembled from, what they say of themselves, how they are checked."""

WHEEL_LIST = "KERNELWRIGHT_WHEEL_LIST"
"""Variable with the path of a file to which ``scons wheel`` adds the path of each wheel, for the build backend."""

OWN_FAMILY = "KERNELWRIGHT_OWN_FAMILY"
"""Variable with which the build backend has scons build for one family of CPUs, this machine's if archs names it: the
interface of build backends has one wheel."""
