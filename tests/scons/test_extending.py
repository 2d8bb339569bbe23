"""The example of a backend in docs/extending.md works as it is written there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from conftest import ROOT, SITE_SCONS, Project

TEXT = (ROOT / "docs/extending.md").read_text()
SECTION = TEXT[TEXT.index("## A backend") : TEXT.index("## A front end")]


def blocks(language: str) -> list[str]:
    """The blocks of the section in a language, in order."""
    return re.findall(rf"```{language}\n(.*?)```", SECTION, re.S)


def extended(folder: Path) -> Path:
    """A copy of Kernelwright with the example in it."""
    copy = folder / "extended"
    shutil.copytree(SITE_SCONS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    backend, loading, registration, _ = blocks("python")
    (copy / "kernelwright/backends/keyword.py").write_text(backend)
    (copy / "kernelwright/runtime/keyword_kernel.py").write_text(loading)
    path = copy / "kernelwright/backends/__init__.py"
    text, count = re.subn(r"^CLASSES = .*?[}]$", registration.strip(), path.read_text(), flags=re.M | re.S)
    assert count == 1
    path.write_text(text)
    return copy


def test_the_backend_of_the_documentation_builds_and_runs(cpu_project: Project, tmp_path: Path) -> None:
    shutil.rmtree(cpu_project.folder / "kernels")
    (cpu_project.folder / "kernels").mkdir()
    shutil.copy(ROOT / "kernels/saxpy.py", cpu_project.folder / "kernels")
    cpu_project.replace("SConstruct", '"demo"', '"acme_kernels"')
    (shown,) = blocks("text")
    command, *lines = shown.splitlines()
    run = cpu_project.scons(*command.split()[2:], env={"PYTHONPATH": str(extended(tmp_path))})
    assert set(run.stages) - {"GLIBC 2.28"} == {re.sub(r"^\[ (\w+) \] ", r"\1 ", line) for line in lines}
    use = blocks("python")[3]
    assert (
        cpu_project.python(
            f"import numpy as np\nx = np.ones(3, np.float32)\ny = x * 3\n{use}\nprint(np.from_dlpack(z))\n"
            "saxpy(2.0, y=y, x=x, z=y)\nprint(y)\nimport acme_kernels\nacme_kernels.backends.keyword.preload()"
        )
        == "[5. 5. 5.]\n[5. 5. 5.]\n"
    )
