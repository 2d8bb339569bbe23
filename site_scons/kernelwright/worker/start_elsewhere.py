"""Starts a module of this folder in a Python without Kernelwright: ``python start_elsewhere.py MODULE ARGUMENTS``."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path


def main() -> None:
    """Load our package from its own folder.

    None of our folders may be in ``sys.path``: this one has modules with common names, such as ``check``, and the
    folder that has our package may have all packages that are installed beside TVM.
    """
    sys.path[:] = [folder for folder in sys.path if folder != __file__.rpartition("/")[0]]
    package = Path(__file__).parents[1]
    places = [str(package)]
    spec = importlib.util.spec_from_file_location(
        "kernelwright", package / "__init__.py", submodule_search_locations=places
    )
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["kernelwright"] = module
        spec.loader.exec_module(module)
    importlib.import_module(f"kernelwright.worker.{sys.argv.pop(1)}").main()


if __name__ == "__main__":
    main()
