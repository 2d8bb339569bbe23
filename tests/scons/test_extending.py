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


def register(module: Path, name: str) -> None:
    """Add a name at the end of the only list of a module that ends with one of these."""
    text, count = re.subn(r'"(jax|torch)"\)', rf'"\1", "{name}")', module.read_text())
    assert count == 1
    module.write_text(text)


def test_the_backend_and_the_front_end_of_the_documentation_build_and_run(cpu_project: Project, tmp_path: Path) -> None:
    copy = tmp_path / "extended"
    shutil.copytree(SITE_SCONS, copy, ignore=shutil.ignore_patterns("__pycache__"))
    backend, loading, use = blocks(BACKEND, "python")
    front_end, definition = blocks(FRONT_END, "python")
    modules = {"backends/keyword.py": backend, "runtime/keyword_kernel.py": loading}
    for name, text in {**modules, "frontends/te/front_end.py": front_end}.items():
        (copy / "kernelwright" / name).parent.mkdir(exist_ok=True)
        (copy / "kernelwright" / name).write_text(text)
    register(copy / "kernelwright/backends/__init__.py", "keyword")
    register(copy / "kernelwright/frontends/__init__.py", "te")
    shutil.rmtree(cpu_project.folder / "kernels")
    cpu_project.write("kernels/add.py", definition)
    shutil.copy(ROOT / "kernels/saxpy.py", cpu_project.folder / "kernels")
    cpu_project.replace("SConstruct", '"demo"', '"acme_kernels"')
    (shown,) = blocks(BACKEND, "text")
    command, *lines = shown.splitlines()
    words, env = command.split()[2:], {"PYTHONPATH": str(copy)}
    stages = {stage for stage in cpu_project.scons(*words, env=env).stages if " add" not in stage}
    assert stages - {"GLIBC 2.28", "LAUNCHER launcher"} == {re.sub(r"^\[ (\w+) \] ", r"\1 ", line) for line in lines}
    assert not cpu_project.scons(*words, env=env).stages
    calls = (
        f"import numpy as np\nx = np.ones(3, np.float32)\ny = x * 3\n{use}\nprint(np.from_dlpack(z))\n"
        "saxpy(2.0, y=y, x=x, z=y)\nprint(y)\nimport acme_kernels\nacme_kernels.backends.keyword.preload()\n"
        "print(np.from_dlpack(acme_kernels.add(x, x * 2)))"
    )
    assert cpu_project.python(calls) == "[5. 5. 5.]\n[5. 5. 5.]\n[3. 3. 3.]\n"
    shutil.rmtree(cpu_project.folder / "kernels")
    cpu_project.write("kernels/pair.py", definition.replace("return [x", "return 3, [x").replace("add", "pair"))
    cpu_project.write("kernels/no_te.py", definition.replace('frontend="te", ', "").replace("add", "no_te"))
    output = cpu_project.scons("-k", ok=False, env=env).output
    assert "the definition returned an object of type builtins.tuple, expected a list of tensors" in output
    assert "expected a PrimFunc or an IRModule" in output and '@kernel(frontend="te", ...)' in output
