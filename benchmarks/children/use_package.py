"""Uses a package as a second process would: ``use_package.py PACKAGE KERNEL...``; loads all variants of kernels."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Import the package, load the kernels' libraries, and get hold of each variant."""
    package = importlib.import_module(sys.argv[1])
    for name in sys.argv[2:]:
        kernel = getattr(package, name)
        for config in kernel.variants:
            kernel.variant(**config)


if __name__ == "__main__":
    main()
