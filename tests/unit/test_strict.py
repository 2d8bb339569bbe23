"""Strict mode: what a definition reads without declaring it, and what it starts, is an error at its line."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kernelwright.backends.plan import LoweredUnit
from kernelwright.core.errors import DefinitionError
from kernelwright.processes.pool import WorkerPool
from kernelwright.processes.protocol import CheckRequest, DiscoverRequest, LowerRequest, Request
from support.launcher_build import build, plan
from support.workers_project import COPY, Project


class StrictPool(WorkerPool):
    """Makes every request strict, but those that are asked for in another way."""

    strict = True

    def call(self, request: Request) -> dict[str, Any]:
        if isinstance(request, DiscoverRequest | LowerRequest | CheckRequest):
            request = replace(request, strict=self.strict)
        return super().call(request)


class StrictProject(Project):
    """A project whose workers are strict."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.pool: StrictPool = StrictPool(1, folder)

    def declaring(self, reads: list[str], top: str = "", body: str = "") -> str:
        """A definition file whose kernel ``k`` declares what it reads."""
        text = COPY.format(name="k", factor=2.0).replace("@kernel", f"{top}\n@kernel(reads={reads})")
        text = text.replace("    @T", body + "\n    @T", 1)
        return str(self.write("kernels/k.py", text).relative_to(self.folder))

    def check(self, more: str) -> dict[str, Any]:
        """Lower, build and check a kernel ``k`` that copies, with some more code in its file."""
        file = str(self.write("kernels/k.py", COPY.format(name="k", factor=1.0) + more).relative_to(self.folder))
        contents = self.lower(file, "k")["contents"]
        signature = json.loads(contents["signature.json"])
        (self.folder / "host.o").write_bytes(contents["host.o"])
        library = build(self.folder, plan("k", LoweredUnit.from_json(signature, "host.o")))
        return self.pool.call(CheckRequest(file, "k", "default", str(library), 0, signature, "cpu"))


@pytest.fixture(scope="module")
def pool_project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StrictProject]:
    project = StrictProject(tmp_path_factory.mktemp("strict"))
    with project.pool:
        yield project


@pytest.fixture
def project(pool_project: StrictProject) -> StrictProject:
    """A project whose only files are those of the test."""
    pool_project.clear()
    pool_project.pool.strict = True
    pool_project.write("kernels/tuning.json", '{"factor": 2.0}')
    pool_project.write("tables/a.json", "1")
    return pool_project


def refused(project: StrictProject, file: str) -> DefinitionError:
    """The error of an execution; without strict mode there is none."""
    project.pool.strict = False
    assert project.discover(file)["kernels"], "an execution that was not strict hides nothing of the next one"
    project.pool.strict = True
    with pytest.raises(DefinitionError) as caught:
        project.discover(file)
    assert "(strict mode)" in caught.value.message
    return caught.value


@pytest.mark.parametrize(
    ("read", "name", "declared"),
    [
        ("open('kernels/tuning.json').close()", "kernels/tuning.json", "tuning.json"),
        ("import numpy\nnumpy.fromfile('tables/a.json', 'u1')", "tables/a.json", "../tables/a.json"),
        (
            "from pathlib import Path\nPath(__file__).read_text()\nPath('tables/a.json').read_text()",
            "tables/a.json",
            "",
        ),
        ("try:\n    open('kernels/none.json')\nexcept OSError:\n    pass", "kernels/none.json", "none.json"),
        ("import ctypes\ntry:\n    ctypes.CDLL('tables/a.json')\nexcept OSError:\n    pass", "tables/a.json", ""),
    ],
)
def test_a_project_file_that_is_read_has_to_be_declared(project, read, name, declared):
    error = refused(project, project.empty("k", read))
    assert error.message == f"the file reads {name}, which is neither imported nor declared (strict mode)"
    line = 2 + next(n for n, text in enumerate(read.splitlines()) if name in text)
    assert error.where.location == f"kernels/k.py:{line}"
    assert f'reads=["{declared or "../" + name}"]' in str(error.remedy)


def test_the_innermost_line_of_the_project_is_named(project: StrictProject) -> None:
    project.write("kernels/_helper.py", "import json\n\ndef load(name):\n    return json.load(open(name))\n")
    error = refused(project, project.empty("k", "import _helper\n_helper.load('tables/a.json')"))
    assert error.where.location == "kernels/_helper.py:4"


def test_everything_that_is_not_declared_is_listed(project: StrictProject) -> None:
    error = refused(project, project.empty("k", "for _ in 1, 2:\n    open('tables/a.json')\nopen('/etc/hostname')"))
    expected = "kernels/k.py:4: reads /etc/hostname, which is neither imported nor declared"
    assert error.detail == f"it also does this:\n{expected}"


@pytest.mark.parametrize("reads", [["tuning.json"], ["*.json"], ["../**"], ["../kernels/t*"]])
def test_what_is_declared_may_be_read(project: StrictProject, reads: list[str]) -> None:
    read = "import json\nFACTOR = json.load(open('kernels/tuning.json'))['factor']"
    file = project.declaring(reads, read, "    assert FACTOR and open('kernels/tuning.json').read()")
    assert "kernels/tuning.json" in project.discover(file)["dependencies"]
    assert project.lower(file, "k")["schedule"]


def test_what_another_file_declares_is_not_declared(project: StrictProject) -> None:
    project.discover(project.declaring(["tuning.json"]))
    refused(project, project.empty("other", "open('kernels/tuning.json')"))


def test_modules_of_the_project_need_no_declaration(project: StrictProject) -> None:
    project.write("kernels/_helper.py", "def f(): import _later\n")
    project.write("kernels/_later.py", "import inspect, sys\nSOURCE = inspect.getsource(sys.modules[__name__])\n")
    project.write("lib/tool.py", "")
    top = """
    import importlib.util, linecache, traceback, sys, os
    import _helper
    _helper.f()
    sys.path.append("lib")
    import tool
    spec = importlib.util.spec_from_file_location("other", "lib/tool.py")
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
    linecache.getlines(os.path.abspath("lib/tool.py"))
    os.listdir("lib")
    try: 1 / 0
    except Exception: traceback.format_exc()
    """
    assert project.discover(project.empty("k", top))


def test_what_is_installed_may_be_read(project: StrictProject) -> None:
    top = """
    import importlib.metadata, inspect, json, locale, os, socket, sys, tempfile, zoneinfo
    import numpy, numpy.testing, pygments.lexers, tvm, kernelwright
    importlib.metadata.version("numpy"), list(importlib.metadata.distributions())
    for folder in sys.path: os.listdir(folder) if os.path.isdir(folder) else None
    inspect.getsource(numpy.testing.assert_allclose), inspect.getsource(json), inspect.getsource(kernelwright)
    os.listdir(os.path.dirname(os.__file__)), os.path.exists("/etc/hostname"), open(os.devnull).read()
    locale.setlocale(locale.LC_ALL, "")
    try: zoneinfo.ZoneInfo("Europe/Berlin")
    except zoneinfo.ZoneInfoNotFoundError: pass
    one, other = socket.socketpair()
    one.sendmsg([b"x"])
    with tempfile.TemporaryDirectory() as folder:
        os.mkdir(folder + "/deep")
        open(folder + "/deep/a", "w").close()
        open(folder + "/deep/a").read()
        os.listdir(folder)
    """
    assert project.discover(project.empty("k", top))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("open('/etc/hostname').close()", "reads /etc/hostname, which is neither imported nor declared"),
        ("open('/proc/cpuinfo').close()", "reads /proc/cpuinfo, which the system makes up when it is read"),
        ("try:\n    open('/none/at/all')\nexcept OSError:\n    pass", "reads /none/at/all, which"),
        ("import os\nos.system('true')", "starts a process: true"),
        ("import subprocess\nsubprocess.run(['true', 'a b'])", "starts a process: true 'a b'"),
        ("import subprocess\nsubprocess.run('exit 0', shell=True)", "starts a process: /bin/sh -c 'exit 0'"),
        ("import os\nos.waitpid(os.posix_spawn('/bin/true', ['true'], {}), 0)", "starts a process: true"),
        ("import os\npid = os.fork()\nif not pid: os._exit(0)\nos.waitpid(pid, 0)", "starts a process: os.fork"),
        (
            "import socket\nwith socket.socket() as s:\n    try: s.connect(('127.0.0.1', 9))\n    except OSError: pass",
            "opens a network connection to 127.0.0.1:9",
        ),
        (
            "import socket\nwith socket.socket(type=2) as s: s.sendmsg([b'x'], [], 0, ('127.0.0.1', 9))",
            "opens a network connection to 127.0.0.1:9",
        ),
        ("import socket\nwith socket.socket() as s: s.bind(('127.0.0.1', 0))", "waits for the network at 127.0.0.1:0"),
        ("import socket\nsocket.getnameinfo(('127.0.0.1', 80), 0)", "looks up the network host 127.0.0.1:80"),
        (
            "import os\nfrom multiprocessing import util\nr, w = os.pipe()\n"
            "os.waitpid(util.spawnv_passfds(b'/bin/true', [b'true'], [w]), 0)",
            "starts a process: true",
        ),
        (
            "from concurrent.futures import *\nThreadPoolExecutor(1).submit(open, '/etc/hostname').result().close()",
            "reads /etc/hostname",
        ),
        (
            "import os\nfolder = os.open('/etc', os.O_RDONLY)\nos.open('hostname', os.O_RDONLY, dir_fd=folder)",
            "reads /etc/hostname, which is neither imported nor declared",
        ),
        (
            "import socket\ntry: socket.getaddrinfo('localhost', 80)\nexcept OSError: pass",
            "looks up the network host localhost",
        ),
    ],
)
def test_what_no_declaration_allows(project: StrictProject, code: str, text: str) -> None:
    error = refused(project, project.empty("k", code))
    assert text in error.message and error.message.startswith("the file ")
    place = "kernels/k.py" if "Thread" in code else "kernels/k.py:"
    assert str(error.where.location).startswith(place) and "leave it out" in str(error.remedy)


@pytest.mark.parametrize(
    ("read", "fails", "message", "detail"),
    [
        ("import subprocess", "subprocess.run(['/none/such'])", "starts a process: /none/such", "FileNotFoundError"),
        ("open('kernels/tuning.json')", "1 / 0", "raised ZeroDivisionError", None),  # it may be declared later
    ],
)
def test_a_failure_hides_only_what_may_be_declared(project, read, fails, message, detail):
    with pytest.raises(DefinitionError) as caught:
        project.discover(project.declaring(["tuning.json"], f"{read}\n{fails}"))
    assert message in caught.value.message
    assert detail is None or detail in str(caught.value.detail)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("open('tables/a.json')", "the definition of k reads tables/a.json, which is neither imported nor declared"),
        ("import os; os.system('true')", "the definition of k starts a process: true"),
        ("import _lazy", "the definition of k reads tables/a.json"),
    ],
)
def test_a_call_is_judged_too_and_each_time(project: StrictProject, body: str, message: str) -> None:
    project.write("kernels/_lazy.py", "open('tables/a.json')\n")
    file = project.declaring(["tuning.json"], body=f"    {body}")
    project.discover(file)
    for _ in range(2):
        with pytest.raises(DefinitionError) as caught:
            project.lower(file, "k")
        assert message in caught.value.message
        where = caught.value.where
        assert (where.kernel, where.variant, where.stage) == ("k", "default", "lower")
        assert str(where.location).startswith("kernels/")
    project.pool.strict = False
    assert project.lower(file, "k")["schedule"]


@pytest.mark.skipif(shutil.which("gcc") is None, reason="needs gcc")
@pytest.mark.parametrize("what", ["reference", "inputs"])
def test_the_functions_of_a_check_are_judged_too(project: StrictProject, what: str) -> None:
    reference = "\n@k.reference\ndef _(x, y):\n    {}return {{'y': x}}\n"
    inputs = "\n@k.inputs\ndef _(rng):\n    {}return {{}}\n"
    bad = "open('tables/a.json').close()\n    "
    more = reference.format(bad if what == "reference" else "") + inputs.format(bad if what == "inputs" else "")
    with pytest.raises(DefinitionError, match=f"the {what} of k reads tables/a.json") as caught:
        project.check(more)
    assert (caught.value.where.stage, caught.value.where.kernel) == ("check", "k")


def test_what_installed_modules_do_when_they_are_imported_is_their_own_affair(tmp_path: Path) -> None:
    package = tmp_path / "site-packages"
    package.mkdir()
    (package / "noisy.py").write_text("import os\nos.system('true')\nopen('/etc/hostname').close()\n")
    (package / "asked.py").write_text("import os\ndef f(): os.system('true')\n")
    project = StrictProject(tmp_path / "project")
    with project.pool:
        path = f"import sys\nsys.path.append({str(package)!r})\n"
        assert project.discover(project.empty("k", path + "import noisy"))
        error = refused(project, project.empty("k", path + "import asked\nasked.f()"))
    assert "starts a process: true" in error.message and error.where.location == "kernels/k.py:5"


def test_a_module_from_elsewhere_is_imported_as_any_and_what_it_reads_is_declared(project, tmp_path):
    table, tool = tmp_path / "table.json", tmp_path / "elsewhere_tool.py"
    table.write_text("1")
    tool.write_text("")
    code = f"import sys\nsys.path.append({str(tmp_path)!r})\nimport elsewhere_tool"
    assert project.discover(project.empty("k", code))["dependencies"][str(tool)]
    tool.write_text(f"open({str(table)!r}).close()\n")
    error = refused(project, project.empty("k", code))
    assert error.where.location == f"{tool}:1" and f'reads=["{table}"]' in str(error.remedy)
    for declared in (str(table), os.path.relpath(table, project.folder / "kernels"), f"{tmp_path}/*.json"):
        assert project.discover(project.declaring([declared], code))["dependencies"][str(table)]
