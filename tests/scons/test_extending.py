"""The examples of a backend and of a front end in docs/extending.md work as they are written there."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from support.project import ROOT, SITE_SCONS, Project

TEXT = (ROOT / "docs/extending.md").read_text()
BACKEND = TEXT[TEXT.index("## A backend") : TEXT.index("### A backend as a plug-in")]
FRONT_END = TEXT[TEXT.index("## A front end") : TEXT.index("### A front end as a plug-in")]


def blocks(section: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", section, re.S)


def extended(folder: Path, modules: dict[str, str], module: str, old: str, new: str) -> Path:
    """A copy of Kernelwright with more modules, in one of which a text is replaced that it has once."""
    copy = folder / "extended"
    shutil.copytree(SITE_SCONS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    for name, text in modules.items():
        (copy / "kernelwright" / name).parent.mkdir(exist_ok=True)
        (copy / "kernelwright" / name).write_text(text)
    path = copy / "kernelwright" / module
    assert path.read_text().count(old) == 1
    path.write_text(path.read_text().replace(old, new))
    return copy


def test_the_backend_of_the_documentation_builds_and_runs(cpu_project: Project, tmp_path: Path) -> None:
    shutil.rmtree(cpu_project.folder / "kernels")
    (cpu_project.folder / "kernels").mkdir()
    shutil.copy(ROOT / "kernels/saxpy.py", cpu_project.folder / "kernels")
    cpu_project.replace("SConstruct", '"demo"', '"acme_kernels"')
    backend, loading, use = blocks(BACKEND, "python")
    modules = {"backends/keyword.py": backend, "runtime/keyword_kernel.py": loading}
    copy = extended(tmp_path, modules, "backends/__init__.py", '"jax")', '"jax", "keyword")')
    (shown,) = blocks(BACKEND, "text")
    command, *lines = shown.splitlines()
    run = cpu_project.scons(*command.split()[2:], env={"PYTHONPATH": str(copy)})
    assert set(run.stages) - {"GLIBC 2.28", "LAUNCHER launcher"} == {
        re.sub(r"^\[ (\w+) \] ", r"\1 ", line) for line in lines
    }
    assert (
        cpu_project.python(
            f"import numpy as np\nx = np.ones(3, np.float32)\ny = x * 3\n{use}\nprint(np.from_dlpack(z))\n"
            "saxpy(2.0, y=y, x=x, z=y)\nprint(y)\nimport acme_kernels\nacme_kernels.backends.keyword.preload()"
        )
        == "[5. 5. 5.]\n[5. 5. 5.]\n"
    )


def test_the_front_end_of_the_documentation_builds_and_runs(cpu_project: Project, tmp_path: Path) -> None:
    front_end, definition = blocks(FRONT_END, "python")
    modules = {"frontends/te/front_end.py": front_end}
    copy = extended(tmp_path, modules, "frontends/__init__.py", '"torch")', '"torch", "te")')
    shutil.rmtree(cpu_project.folder / "kernels")
    cpu_project.write("kernels/add.py", definition)
    assert cpu_project.scons(env={"PYTHONPATH": str(copy)}).labels["LOWER"] == 1
    assert not cpu_project.scons(env={"PYTHONPATH": str(copy)}).stages
    use = "import numpy, demo\nx = numpy.ones(3, 'float32')\nprint(numpy.from_dlpack(demo.add(x, x * 2)))"
    assert cpu_project.python(use) == "[3. 3. 3.]\n"
    (cpu_project.folder / "kernels/add.py").unlink()
    cpu_project.write("kernels/pair.py", definition.replace("return [x", "return 3, [x").replace("add", "pair"))
    cpu_project.write("kernels/no_te.py", definition.replace('frontend="te", ', "").replace("add", "no_te"))
    output = cpu_project.scons("-k", ok=False, env={"PYTHONPATH": str(copy)}).output
    assert "the definition returned an object of type builtins.tuple, expected a list of tensors" in output
    assert "expected a PrimFunc or an IRModule" in output and '@kernel(frontend="te", ...)' in output
