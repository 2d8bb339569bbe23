"""A process in another environment: what it uses of a project, its messages, and its end; here without a compiler."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.errors import DefinitionError, ToolchainError, Where
from kernelwright.core.need import Need
from kernelwright.define.settings import Settings
from kernelwright.define.unit import Unit
from kernelwright.frontends.other_process import process_of
from kernelwright.frontends.raised import line_of
from kernelwright.frontends.tilelang import program as tilelang_program
from kernelwright.frontends.triton import elsewhere as triton_elsewhere
from kernelwright.frontends.triton import program as triton_program
from kernelwright.frontends.triton.front_end import FRONT_END as TRITON
from kernelwright.frontends.triton.program import Program, Size, Tensor
from kernelwright.toolchain.distribution import Distribution
from kernelwright.toolchain.elsewhere import Elsewhere
from kernelwright.toolchain.probe import Toolchain
from kernelwright.worker.watch import _remedy
from support.scripts import script
from support.scripts_elsewhere import Printed, ScriptRequest

USE = """
import json, sys
from pathlib import Path
from kernelwright.worker.environment import Variables
from kernelwright.worker.reads import Reads
from kernelwright.worker.watch import Watch
root, file = map(Path, sys.argv[1:])
sys.prefix = str(root.parent)  # as that of an image whose Python is in /usr and whose project is in /usr/src
watch, reads = Watch(root, Variables()), Reads(by_tool=True)
with watch.recording(reads):
    watch.execute(str(file), str(file.parent), "math")
print(json.dumps([reads.files, sys.modules["kernelwright_definition_math"].ANSWER]))
"""

SOURCE = """\
import os
import sys
sys.path.insert(0, "{common}")
import tiles
import values
from parts import one
try:
    import fast
except ImportError:
    pass
ANSWER = [values.VALUE, one.VALUE, open(os.path.dirname(__file__) + "/data.txt").read(), os.listdir("sizes")]
ANSWER += [tiles.VALUE, open("{common}/number.txt").read()]
open("made.txt", "w").close()
open("made.txt").close()
open("env/dist-packages/installed.py").close()
"""


def test_what_a_source_imports_reads_lists_and_asks_for_in_vain_is_told(tmp_path: Path):
    root, common = tmp_path / "image/project", tmp_path / "common"
    files = {
        "kernels/math.py": SOURCE.replace("{common}", str(common)),  # Python's own module of that name stays
        "kernels/data.txt": "data",
        "values.py": "VALUE = 3",
        "parts/__init__.py": "",
        "parts/one.py": "VALUE = 1",
        "sizes/128": "",
        "env/dist-packages/installed.py": "",
        f"{common}/tiles.py": "VALUE = 5",
        f"{common}/number.txt": "6",
    }
    for name, text in files.items():
        (root / name).parent.mkdir(exist_ok=True, parents=True)
        (root / name).write_text(text)
    # Bytecode of another source, with the time and the size of this one.
    values = root / "values.py"
    values.write_text("VALUE = 2")
    subprocess.run([sys.executable, "-c", "import values"], cwd=root, check=True)
    stat = values.stat()
    values.write_text("VALUE = 3")
    os.utime(values, ns=(stat.st_atime_ns, stat.st_mtime_ns))

    # Isolated, as nothing may come from the folder that the process runs in but by its own doing.
    command = [sys.executable, "-I", "-c", USE, str(root)]
    done = subprocess.run(
        [*command, str(root / "kernels/math.py")], cwd=root, check=True, stdout=subprocess.PIPE, text=True
    )
    found, answer = json.loads(done.stdout)

    assert answer == [3, 1, "data", ["128"], 5, "6"]
    assert found.pop("sizes/")
    used = {name: text for name, text in files.items() if name not in ("sizes/128", "env/dist-packages/installed.py")}
    digests = {name: hashlib.sha256(text.encode()).hexdigest() for name, text in used.items()}
    assert {name: digest for name, digest in found.items() if digest} == digests
    absent = {name for name, digest in found.items() if not digest}
    assert {"kernels/values.py", "kernels/parts/", "kernels/fast.py", "fast.py"} <= absent
    assert "made.txt" not in found


STARTS = """\
echo "what an environment says at its start is no answer"
exec >"/dev/fd/$5"
test -e "$0.begun" || {
    touch "$0.begun"
    echo '{"id": 0, "hello": {"revision": 2, "versions": {"compiler": "0.1.15"}, "folder": "/"}}'
    echo "out of memory" >&2; exit 9
}
echo '{"id": 0, "hello": {"revision": 2, "versions": {"compiler": "0.1.15+cu13"}, "folder": "/"}}'
read request
echo '{"id": 1, "result": {"value": {"text": "done"}}}'
"""


def test_a_process_that_has_ended_is_told_once_and_started_anew(tmp_path: Path):
    python = str(script(tmp_path / "python", STARTS))

    def ask(text: str) -> Printed:
        process = process_of(tilelang_program.ENVIRONMENT, python, "tilelang.worker")
        return process.ask(ScriptRequest(unit, "/", "", "", text))

    unit = Unit("k", "s", "kw", {}, (), "cuda", "sm_80", "d.py:3", python=python)
    with pytest.raises(ToolchainError, match="the process of TileLang ended with exit status 9") as caught:
        ask("x" * 100_000)
    said = "what an environment says at its start is no answer\nout of memory"
    assert caught.value.detail == f"the end of its log:\n{said}" and caught.value.where == unit.where
    assert ask("") == Printed("done")


def stand_in(folder: Path, version: str) -> Path:
    """An environment with a distribution of that name and version, in which nothing of Triton is."""
    site = f"lib/python{sys.version_info[0]}.{sys.version_info[1]}/site-packages"
    files = {
        f"{site}/triton/__init__.py": f"__version__ = {version!r}\n",
        f"{site}/triton-{version}.dist-info/METADATA": f"Name: triton\nVersion: {version}\n",
        "pyvenv.cfg": f"home = {Path(sys.executable).resolve().parent}\n",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    (folder / "bin").mkdir()
    (folder / "bin/python").symlink_to(Path(sys.executable).resolve())
    return folder / "bin/python"


@pytest.mark.parametrize(("version", "known"), [("3.9.0", True), ("3.9.12", True), ("3.10.0", False), ("3.90", False)])
def test_a_release_of_the_pinned_range_is_used_and_another_one_is_an_error(tmp_path, monkeypatch, version, known):
    """The process is a real one, and imports nothing of this environment."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "k.py").write_text("raise ValueError('executed')\n")
    python = stand_in(tmp_path / "env", version)
    unit = Unit("k", "s", "kw_k__s__cuda", {}, ("x",), "cuda", "sm_80", "d.py:3", ("sm_80",), python=str(python))
    program = Program("k.py", "f", x=Tensor("float32", "n"), n=Size("n"), grid="n")
    with pytest.raises(Exception) as caught:
        triton_elsewhere.compiled_elsewhere(program, unit)
    text = str(caught.value)
    if known:
        assert "k.py:1 k/s [lower]: k.py raised ValueError: executed" in text, text
    else:
        known_ones = f"which has Triton {version}; Kernelwright knows the launches of 3.9"
        assert f"d.py:3 k/s [lower]: triton_python is '{python}', {known_ones}" in text
        assert f"triton/bin/pip install '{triton_program.NEED.requirement}'" in text


def test_a_compiler_whose_files_are_not_those_that_a_build_compares_is_an_error(tmp_path):
    """An environment that was made anew with another Python keeps the packages of the one before."""
    python = stand_in(tmp_path / "env", "3.9.1")
    (site,) = (tmp_path / "env/lib").glob("*/site-packages")
    (site / "triton-3.9.1.dist-info/RECORD").write_text("")
    before = tmp_path / "env/lib/python3.0/site-packages"
    shutil.copytree(site, before)
    with pytest.raises(ToolchainError) as caught:
        process_of(triton_program.ENVIRONMENT, str(python), "triton.worker")
    compared = f"imports Triton from {site}/triton, and a build compares the files in {before}/triton"
    assert f"triton_python is '{python}', which {compared}" in caught.value.message
    shutil.rmtree(before.parent)
    process_of(triton_program.ENVIRONMENT, str(python), "triton.worker")


def test_a_definition_that_imports_triton_where_it_is_not_is_told_to_name_the_source():
    remedy = str(_remedy(ModuleNotFoundError("No module named 'triton'", name="triton")))
    assert "pip install 'triton==3.9.*'; if Triton is in the environment that triton_python names" in remedy
    assert 'name the source and the function: Program("softmax.py", "softmax_kernel"' in remedy


@pytest.mark.parametrize(
    ("arguments", "value", "words"),
    [
        (("k.py",), 1, "the Program's function is None, expected the name of a function"),
        (("k.py", "f.g"), 1, "the Program's function is 'f.g', expected the name of a function"),
        ((len, "f"), 1, "the Program gets the name 'f' besides a function"),
        (("k.py", "f"), len, "which cannot be passed to a process"),
        (("k.py", "f"), (1, 2), "which cannot be passed to a process"),
        (("k.py", "f"), 2.5j, "which cannot be passed to a process"),
    ],
)
def test_what_a_process_cannot_be_told_is_an_error(arguments, value, words):
    program = Program(*arguments, x=Tensor("float32", "n"), C=value, grid="n")
    with pytest.raises(DefinitionError, match=re.escape(words)):
        program.check(("x",), Where())


@pytest.mark.parametrize(
    ("file", "is_of_the_author"),
    [("/p/triton/k.py", True), ("/p/triton/lib/python3.11/site-packages/triton/language/core.py", False)],
)
def test_a_folder_of_the_project_may_have_the_name_of_a_compiler(file, is_of_the_author):
    with pytest.raises(ZeroDivisionError) as caught:
        exec(compile("\n1 // 0", file, "exec"))
    # The frames before it are those of this test.
    assert (line_of(caught.value, "triton") == f"{file}:2") == is_of_the_author


def test_triton_is_that_of_its_environment_and_of_this_one_where_both_have_it(tmp_path, monkeypatch):
    python = stand_in(tmp_path / "env", "3.9.1")
    (tmp_path / "env/lib").rename(tmp_path / "env/kept")
    toolchain = Toolchain(tmp_path / "toolchain.json", {})
    monkeypatch.setattr(toolchain, "distribution", lambda name: Distribution("absent", "absent"))

    def found_by(setting: str) -> Any:
        return TRITON.tool(toolchain, Settings(triton_python=setting))

    assert found_by(str(python)).version == "absent"
    (tmp_path / "env/kept").rename(tmp_path / "env/lib")
    (record,) = (tmp_path / "env/lib").glob("*/*/triton-3.9.1.dist-info")
    (record / "RECORD").write_text("triton/a.so,sha256=abc,1\n")
    alone = found_by(str(python))
    assert (alone.version, alone.python, alone.has(Need("triton", ""))) == ("3.9.1", str(python), True)
    assert not alone.has(Need("torch", ""))

    def beside(here: Distribution) -> Elsewhere:
        monkeypatch.setattr(toolchain, "distribution", lambda name: here)
        assert found_by("") == here
        return found_by(str(python))

    found = [beside(Distribution("3.9.0", identity)) for identity in "ab"]
    assert {one.version for one in found} == {"3.9.1 and 3.9.0"}
    assert len({alone.identity, *(one.identity for one in found)}) == 3
