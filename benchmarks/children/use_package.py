"""Uses a built package as a second process would: ``use_package.py PACKAGE KERNEL``; loads all variants of a kernel."""

from __future__ import annotations

import importlib
import sys


def main() -> None:
    """Import the package, load the kernel's library, and get hold of each variant."""
    kernel = getattr(importlib.import_module(sys.argv[1]), sys.argv[2])
    for config in kernel.variants:
        kernel.variant(**config)


if __name__ == "__main__":
    main()
