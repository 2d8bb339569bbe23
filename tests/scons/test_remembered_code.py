"""The LLVM of the tests' projects compiles equal code once, and that of a run that starts as a user's all of it."""

from __future__ import annotations

from pathlib import Path

from support.project import Project, new_project

CODE = "build/kernels/demo/scale/dtype-float32/llvm/x86-64-v3/host.o"


def compiled(folder: Path, factor: str, *, fresh: bool = False) -> bytes:
    """What is made of the kernel with that factor in a new project."""
    project = new_project(folder)
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    project.replace("kernels/scale.py", "T.cast(2.0", f"T.cast({factor}")
    project.know_tools()
    project.scons(CODE, fresh=fresh)
    return (folder / CODE).read_bytes()


def test_equal_code_is_compiled_once_and_other_code_by_itself(tmp_path: Path) -> None:
    # No other test has this factor, so none takes what is changed here.
    first = compiled(tmp_path / "first", "2.015625")
    (kept,) = (path for path in (Project.shared / "lowered").iterdir() if path.read_bytes() == first)
    kept.write_bytes(first + b"kept")
    assert compiled(tmp_path / "second", "2.015625") == first + b"kept"
    assert compiled(tmp_path / "third", "2.0156252384185791") != first
    assert compiled(tmp_path / "fresh", "2.015625", fresh=True) == first
