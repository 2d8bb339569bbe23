"""Kernelwright's own wheel, installed in an empty environment, in which the tutorial is followed word for word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import zipfile
from importlib.metadata import version
from pathlib import Path

import pytest
from support.environments import linked, needed, own_wheel, without_path
from support.pages import Block, agrees, blocks, commands
from support.project import ROOT, Project

INSTALLATION = "pip install 'path/to/kernelwright[cuda]'"
"""The one command of the tutorial that a test cannot run as it stands."""

ELSEWHERE = [
    "python3 -m venv elsewhere",
    f"elsewhere/bin/pip install apache-tvm-ffi=={version('apache-tvm-ffi')} numpy",
]
"""Those that make an environment which all tests have."""

DOCTEST = """
import doctest, sys
sys.modules["torch"] = None  # tvm-ffi would import it, which takes seconds
test = doctest.DocTestParser().get_doctest({text!r}, {{}}, "tutorial.md", None, 0)
assert test.examples
sys.exit(doctest.DocTestRunner().run(test).failed > 0)
"""

PYTHON = """
python3() {{
    [ "$1 $2 $#" = "-m venv 3" ] || {{ command python3 "$@"; return; }}
    # Each environment gets the pip of the tests: to install one takes seconds.
    command python3 -m venv --without-pip "$3" && ln -s {pip} "$3"/lib/python3*/site-packages/ || return
    echo "#!$PWD/$3/bin/python" > "$3/bin/pip"
    echo "import sys; from pip._internal.cli.main import main; sys.exit(main())" >> "$3/bin/pip"
    chmod +x "$3/bin/pip"
}}
"""

REQUIREMENTS = """
import importlib.metadata as metadata, kernelwright
from packaging.requirements import Requirement
print(kernelwright.__file__)
for requirement in map(Requirement, metadata.requires("kernelwright")):
    if requirement.marker is None or requirement.marker.evaluate({"extra": "cuda"}):
        assert requirement.specifier.contains(metadata.version(requirement.name), prereleases=True), requirement
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return own_wheel(tmp_path_factory)


def test_it_and_its_sdist_are_pure_python_and_have_every_file_of_the_package(wheel: Path) -> None:
    assert re.fullmatch(r"kernelwright-[0-9.]+-py3-none-any\.whl", wheel.name)
    package = ROOT / "site_scons/kernelwright"
    tracked = {f"kernelwright/{path.relative_to(package)}" for path in package.rglob("*") if path.is_file()}
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert packed == {name for name in tracked if "__pycache__" not in name}


# ---- the tutorial


class Shell:
    """One bash, in which commands run one after the other."""

    def __init__(self, folder: Path) -> None:
        programs = folder / "programs"
        programs.mkdir()
        pip = Path(sysconfig.get_path("purelib"), "pip")
        (programs / "python3").symlink_to(os.path.realpath(sys.executable))
        path = f"{programs}:{Project.shared}/bin:/usr/local/bin:/usr/bin:/bin"
        self._bash = subprocess.Popen(
            ["bash", "--norc"],
            cwd=folder,
            env={**without_path(), "PATH": path, "CUDA_VISIBLE_DEVICES": "", "PIP_NO_COMPILE": "1"},
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        assert self._bash.stdin
        self._bash.stdin.write(PYTHON.format(pip=pip))

    def run(self, command: str) -> tuple[int, str]:
        """Exit status and output of a command."""
        assert self._bash.stdin and self._bash.stdout
        self._bash.stdin.write(f'{command} < /dev/null\necho "[end of command] $?"\n')
        self._bash.stdin.flush()
        lines: list[str] = []
        for line in self._bash.stdout:
            if line.startswith("[end of command] "):
                return int(line.split()[-1]), "".join(lines)
            lines.append(line)
        raise AssertionError(f"{command}: the shell ended\n{''.join(lines)}")

    def close(self) -> None:
        self._bash.communicate("exit\n")


class Reader:
    """Somebody who does what the tutorial says."""

    def __init__(self, folder: Path, wheel: Path, elsewhere: Path) -> None:
        self.elsewhere = elsewhere
        self.shell = Shell(folder)
        self.folder = folder / "acme"
        self.wheel = wheel
        self.kernel = ""  # the definition file written last
        self.typed: list[str] = []  # in the running Python
        self.edits = 0

    def follow(self, block: Block) -> None:
        self.edit(block.prose)
        if block.language == "toml" or (block.language == "python" and not block.text.startswith(">>>")):
            self.write(block)
        elif block.language == "python":
            self.converse(block.text)
        elif "$ " in block.text:
            for command, expected in commands(block):
                self.type(command, expected)
        elif block.text.startswith("build/"):
            self.look(block.text)
        else:
            self.fail(block.text)

    def write(self, block: Block) -> None:
        if "Add a reference below the kernel" in block.prose:
            with (self.folder / self.kernel).open("a") as stream:
                stream.write(f"\n\n{block.text}")
            return
        named = re.search(r"(?:Write|with)(?: a file)? `([\w./]+)`:$", block.prose)
        assert named, block
        self.kernel = named[1] if named[1].startswith("kernels/") else self.kernel
        (self.folder / named[1]).parent.mkdir(exist_ok=True)
        (self.folder / named[1]).write_text(block.text)

    def edit(self, prose: str) -> None:
        """The edits that the prose asks for."""
        if "Add a comment to `kernels/saxpy.py`" in prose:
            self.replace("kernels/saxpy.py", "@kernel", "# a comment\n@kernel")
        if change := re.search(r"Change `(.+?)` to `(.+?)`, in the kernel and in the reference", prose):
            self.replace("kernels/saxpy.py", change[1], change[2])
            self.replace("kernels/saxpy.py", *(f"return {text.replace('[i]', '')}" for text in change.groups()))

    def replace(self, name: str, old: str, new: str) -> None:
        path = self.folder / name
        text = path.read_text()
        assert text.count(old) == 1
        path.write_text(text.replace(old, new))
        self.edits += 1

    def type(self, command: str, expected: str) -> None:
        if command == INSTALLATION:
            self.install()
        elif command == ELSEWHERE[0]:
            linked(self.elsewhere, self.folder / "elsewhere")
        elif command == ELSEWHERE[1]:
            pass
        elif command == "PYTHONPATH=build python":
            self.typed = []
        else:
            status, output = self.shell.run(command)
            assert status == 0, f"{command}\n{output}"
            assert not expected or agrees(expected, output), f"{command}\n{output}\nThe page has:\n{expected}"

    def install(self) -> None:
        """The wheel, and scons for its command; the rest is taken from where the tests run: it has a gigabyte."""
        install = "pip install -q --disable-pip-version-check --no-deps"
        status, output = self.shell.run(f"{install} '{self.wheel}' scons=={version('scons')}")
        assert status == 0, output
        installed = [path for path in sys.path if path.endswith("site-packages")]
        (site,) = self.folder.glob(".venv/lib/python*/site-packages")
        (site / "dependencies.pth").write_text("\n".join(installed))
        program = self.folder.parent / "requirements.py"
        program.write_text(REQUIREMENTS)
        assert self.shell.run(f"python '{program}'") == (0, f"{site}/kernelwright/__init__.py\n")

    def converse(self, text: str) -> None:
        self.typed.append(text)
        program = self.folder.parent / "conversation.py"
        program.write_text(DOCTEST.format(text="\n".join(self.typed)))
        status, output = self.shell.run(f"PYTHONPATH=build python '{program}'")
        assert status == 0, output

    def look(self, text: str) -> None:
        """Every file that the page lists is in the build folder."""
        top, _, listed = text.partition("\n")
        names = re.findall(r"[\w-]+\.(?:\w+)", re.sub(r"^(.{2,}?)(?: {3,}\S.*)?$", r"\1", listed, flags=re.M))
        names = [name for name in names if not name.startswith("columns")]
        assert len(names) > 10
        present = {path.name for path in (self.folder / top).rglob("*")}
        assert set(names) <= present, set(names) - present

    def fail(self, text: str) -> None:
        """The one failure that the page shows: a wrong reference."""
        self.replace("kernels/saxpy.py", "return alpha * x + y", "return alpha * x + y + 1")
        status, output = self.shell.run("scons -Q check")
        assert status == 2 and " ".join(text.split()) in " ".join(output.split()), output
        self.replace("kernels/saxpy.py", "return alpha * x + y + 1", "return alpha * x + y")


def test_the_tutorial_works_as_it_is_printed(wheel, tmp_path, tmp_path_factory):
    """It takes long: it builds and installs as a reader does."""
    reader = Reader(tmp_path, wheel, needed(tmp_path_factory))
    try:
        for block in blocks(ROOT / "docs/tutorial.md"):
            reader.follow(block)
    finally:
        reader.shell.close()
    assert reader.edits == 5
