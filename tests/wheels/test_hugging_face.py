"""A package in the layout that Hugging Face's library ``kernels`` loads, made by the recipe of the docs."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.environments import install, linked, needed, run
from support.pages import blocks
from support.project import ROOT
from support.wheels import built_wheel

LOAD = """
import sys
from pathlib import Path
import kernels
import numpy as np
package = kernels.get_local_kernel(Path("hub"))
x = np.arange(4, dtype="float32")
print(package.__name__, np.from_dlpack(package.scale(x)).tolist(), "demo" in sys.modules)
print(kernels.get_local_kernel(Path("hub")) is package, package.manifest()["package"])
"""


def test_the_recipe_makes_what_the_library_loads_and_calls(tmp_path: Path, tmp_path_factory) -> None:
    (recipe,) = [block.text for block in blocks(ROOT / "docs/engines.md") if block.language == "python"]
    home = linked(needed(tmp_path_factory), tmp_path / "home")
    try:
        install(home, "kernels==0.17.*")
    except AssertionError as error:
        pytest.skip(f"Hugging Face's kernels cannot be installed here: {str(error).splitlines()[-1]}")
    (home / "build").symlink_to(built_wheel(tmp_path_factory).folder / "build")
    run(home, recipe.replace("acme_kernels", "demo"))
    first, second = run(home, LOAD, env={"HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}).splitlines()
    assert first.startswith("_demo_") and first.endswith("[0.0, 2.0, 4.0, 6.0] False")
    assert second == "True demo"
