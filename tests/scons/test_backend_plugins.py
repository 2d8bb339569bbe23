"""Backends that other distributions bring: built and loaded as those of ours, and their faults are errors."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kernelwright.testing import CALLS, LAUNCHES
from support.forked import starter
from support.plugin import SETTINGS, distribute, python_of, with_plugin
from support.project import ROOT, Project

SECTION = (ROOT / "docs/extending.md").read_text().partition("## A backend\n")[2].partition("## A front end\n")[0]
BACKEND, LOADING = re.findall(r"```python\n(.*?)```", SECTION, re.S)[:2]
FILES = {
    "acme_keyword/__init__.py": "",
    "acme_keyword/backend.py": BACKEND.replace("from ..", "from kernelwright.")
    .replace("from .", "from kernelwright.backends.")
    .replace('    name = "keyword"\n', '    name = "keyword"\n    interface = 1\n'),
    "acme_keyword/runtime/keyword_kernel.py": LOADING,
}
"""The example of the docs, as a distribution of its own."""

CALL = "import numpy as np\nfrom demo.backends.keyword import saxpy\nx = np.ones(3, 'float32')\n"
CALL += "print(np.from_dlpack(saxpy(alpha=2.0, y=x, x=x)).tolist())"


def put(site: Path, old: str = "", new: str = "", file: str = "backend", name: str = "acme_keyword") -> None:
    """Install the plug-in, with a change in one of its files."""
    path = f"acme_keyword/{file}.py"
    assert old in FILES[path]
    points = "[kernelwright.backends]\nkeyword = acme_keyword.backend:BACKEND\n"
    distribute(site, name, {**FILES, path: FILES[path].replace(old, new)}, points)


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An interpreter that has the plug-in of the repository, ``plugins/cpp``, and its site-packages."""
    python, site = with_plugin(tmp_path_factory.mktemp("plugins"))
    (site / "cpp.pth").write_text(f"{ROOT}/plugins/cpp\n")
    distribute(site, "kernelwright_cpp", {}, "[kernelwright.backends]\ncpp = kernelwright_cpp.backend:BACKEND\n")
    return python, site


@pytest.fixture
def made(environment: tuple[Path, Path], tmp_path: Path) -> tuple[Path, Path, Project]:
    """The same with the plug-in of the docs, and a project that uses that."""
    python, site = environment
    put(site)
    settings = f'{SETTINGS}backends = ["keyword", "tvm_ffi"]\n'
    return python, site, Project.of(tmp_path / "project", settings, saxpy=(ROOT / "kernels/saxpy.py").read_text())


def scons(python: Path, project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run ``scons`` of an environment in a project, in a fork."""
    program = "from support import scons_start; scons_start.main()"
    project.know_tools()
    return starter("support.scons_start", python=str(python)).run(
        *(program, "-Q", "CACHE_DIR=", *arguments), env=project.variables(), cwd=project.folder, merged=True
    )


def stages(printed: str) -> list[str]:
    return re.findall(r"^\[ (\w+) \]", printed, re.M)


def test_a_backend_from_outside_is_built_and_loaded_and_what_it_consists_of_counts(made) -> None:
    python, site, project = made
    assert "[ WRAP ] saxpy keyword" in scons(python, project).stdout
    assert project.python(CALL) == "[3.0, 3.0, 3.0]\n"
    assert "[ " not in scons(python, project).stdout
    put(site, "return call(*(", "return call(*(2 * ")
    said = scons(python, project, "--why").stdout
    assert stages(said) == ["WRAP", "PACKAGE"] and "keyword runs: plugin.acme_keyword changed" in said, said
    assert project.python(CALL) == "[10.0, 10.0, 10.0]\n"
    (site / "acme_keyword/template.h").write_text("// which it may put into what it writes\n")
    assert "WRAP" in stages(scons(python, project).stdout)
    put(site, '"""The function of a kernel."""', "print('loaded')", "runtime/keyword_kernel")
    assert "PACKAGE" in stages(scons(python, project).stdout)
    assert project.python(CALL) == "loaded\n[3.0, 3.0, 3.0]\n"
    load = "import kernelwright\nsaxpy = kernelwright.load('kernels/saxpy.py').saxpy.using(backend='keyword')\n"
    assert python_of(python, project, CALL.replace("from demo.backends.keyword import saxpy", load)) == (
        "loaded\n[3.0, 3.0, 3.0]\n"
    )
    assert "did you mean 'keyword'? the valid ones are" in scons(python, project, "BACKENDS=keywrd").stdout
    # A build that does not use it does not import it.
    put(site, "from __future__", "raise ValueError\nfrom __future__")
    assert "cannot be imported" in scons(python, project).stdout
    done = scons(python, project, "BACKENDS=tvm_ffi")
    assert done.returncode == 0, done.stdout


NO_TEXT = "raise type('E', (Exception,), {'__str__': lambda self: None})()"

CASES: list[tuple[tuple[str, ...], str]] = [
    (("interface = 1", "interface = 7"), "for version 7 of the interface, and this Kernelwright has version 1"),
    (('name = "keyword"', 'name = "other"'), "has the name 'other', and its entry point another"),
    (("BACKEND = Keyword()", "BACKEND = Keyword"), "is of type type, expected a Backend"),
    (("from kernelwright.core.need", "import nowhere\nfrom kernelwright.core.need"), "cannot be imported"),
    (('return (f"_{kernel}.py",)', "return 7 + 1"), "does not tell the files of a kernel: TypeError"),
    (('return (f"_{kernel}.py",)', 'return (f"../_{kernel}.py",)'), "'../_kernel.py' is a path, or does not begin"),
    (('return (f"_{kernel}.py",)', 'return (f"_{kernel}.pyx",)'), "made '_saxpy.py', and promises _saxpy.pyx"),
    (('runtime = ("keyword_', 'runtime = ("key_'), "does not begin with keyword_"),
    (("arguments = kernel", "arguments = kernel.nothing"), "the backend 'keyword' raised AttributeError"),
    (
        ("def emit(", "def stub(self, *kernel): return 1 / 0\n    def emit("),
        "the backend 'keyword' raised ZeroDivision",
    ),
    (('": MODULE.format', '": 3 or MODULE.format'), "made _saxpy.py of 3, expected str"),
    (('": MODULE.format', '": "\\ud800" or MODULE.format'), "made _saxpy.py of '\\ud800', which no file can have"),
    (("def emit(", "def emit(self, kernel): return None\n    def emitted("), "'keyword' made None, expected Mapping"),
    (("def emit(", "def stub(self, *kernel): return 3\n    def emit("), "'keyword' answered 3, expected str"),
    (("def emit(", "def stub(self, *kernel): exit(1)\n    def emit("), "'keyword' raised SystemExit: 1"),
    (("def emit(", "def stub_imports(self, *kernel): return None\n    def emit("), "answered None, expected str"),
    (("def emit(", "def build_versions(self): return None\n    def emit("), "answered None, expected dict"),
    (("def emit(", "def build_versions(self): return 1 / 0\n    def emit("), "raised ZeroDivisionError"),
    (("def emit(", "def headers(self): return None\n    def emit("), "answered None, expected list"),
    (("arguments = kernel", f"{NO_TEXT}\n        arguments = kernel"), "it has no text: its __str__ raised TypeError"),
]


ENDINGS = [
    (
        "import time; time.sleep(1000)",
        "took longer than 10 s while writing files of the backend 'keyword', and was ended",
    ),
    ("import os; os._exit(3)", "ended with exit status 3 while writing files of the backend 'keyword'"),
    ("import os; os.kill(os.getpid(), 11)", "was ended by SIGSEGV while writing"),
]


def test_a_backend_that_hangs_or_dies_is_an_error_of_its_kernel(made) -> None:
    """The same goes for what it writes of a package. The first build has all that takes a worker with TVM."""
    python, site, project = made
    assert scons(python, project).returncode == 0
    for statement, text in ENDINGS:
        put(site, "arguments = kernel", f"{statement}\n        arguments = kernel")
        said = scons(python, project, *(["WORKER_TIMEOUT=10"] if "sleep" in statement else [])).stdout
        assert text in said and "saxpy" in said and "remedy" in said and "Traceback" not in said, said
    method = "def package_files(self, package): return 'a.py',\n    def emit_package(self, *package): exit(7)\n    "
    put(site, "def emit(", method + "def emit(")
    said = scons(python, project).stdout
    assert "the backend 'keyword' raised SystemExit: 7" in said, said
    put(site)
    done = scons(python, project)
    assert done.returncode == 0 and project.python(CALL) == "[3.0, 3.0, 3.0]\n", done.stdout


def test_a_backend_that_cannot_be_used_is_an_error_and_no_traceback(made) -> None:
    python, site, project = made
    for change, text in CASES:
        put(site, *change)
        done = scons(python, project)
        assert done.returncode == 2 and text in done.stdout, (change, done.stdout)
        assert "\nTraceback" not in done.stdout and "remedy" in done.stdout, done.stdout
    put(site)
    put(site, name="acme_keyword_too")
    said = scons(python, project).stdout
    assert "acme_keyword and acme_keyword_too both have a backend 'keyword'" in said, said
    for info in site.glob("acme_keyword*.dist-info"):
        shutil.rmtree(info)
    said = scons(python, project).stdout
    assert "unknown backend 'keyword'" in said, said


KERNELS = '''\
from kernelwright import kernel
from tvm import te


@kernel(outputs=["z", "new"])
def both():
    """Two outputs, one of which means something in C++."""
    n = te.var("n")
    x = te.placeholder((n,), "float32", "x")
    new = te.compute((n,), lambda i: x[i] + 1, "new")
    return te.create_prim_func([x, new, te.compute((n + 1,), lambda i: x[te.min(i, n - 1)] * 2, "z")])


@kernel(outputs=["y"], configs=[{"dtype": "int64"}, {"dtype": "float32"}])
def errno(dtype):
    """A number of each kind; the name is that of a macro."""
    n = te.var("n")
    x, a = te.placeholder((n,), "float32", "x"), te.var("a", dtype)
    return te.create_prim_func([x, a, te.compute((n,), lambda i: a + te.const(0, dtype), "y")])
'''

PROGRAM = """\
#include <acme.h>

#include <cstdio>

using kernelwright::Tensor;
using kernelwright::View;

static void print(const Tensor &tensor) {
  for (int64_t i = 0; i < tensor->shape[0]; ++i) std::printf("%g ", tensor.data<float>()[i]);
  std::printf("\\n");
}

template <class Call>
static void fails(Call call) {
  try {
    call();
    std::printf("no error\\n");
  } catch (const kernelwright::Error &error) {
    std::printf("%s: %s\\n", error.kind.c_str(), error.what());
  }
}

int main() {
  float x[] = {1, 2, 3, 4}, z[4] = {}, one[1] = {5};
  double wide[] = {1, 2};
  acme::saxpy(2.0, View(x, {4}), View(x, {4}), View(z, {4}));
  std::printf("%g %g\\n", z[0], z[3]);
  print(acme::saxpy(2.0, View(one, {1}), View(one, {1})));
  print(acme::saxpy(2.0, View(one, {0}), View(one, {0})));
  auto [first, second] = acme::both(View(x, {2}));
  Tensor copy = second;
  print(first), print(copy);
  std::printf("%lld %d\\n", static_cast<long long>(acme::errno_(View(x, {1}), -7).data<int64_t>()[0]),
              acme::errno_(View(x, {1}), 0.5)->dtype.code);
  fails([&] { acme::saxpy(2.0, View(x, {4}), View(x, {3})); });
  fails([&] { acme::saxpy(2.0, View(x, {2}), View(wide, {2})); });
  fails([&] { acme::saxpy(2.0, View(x, {2}, {kDLCPU, 0}, {2}), View(x, {2})); });
  fails([&] { acme::saxpy(2.0, nullptr, View(x, {2})); });
  fails([&] { acme::saxpy(2.0, View(x, {2}, {kDLCUDA, 0}), View(x, {2})); });
}
"""

PRINTED = """\
3 12
15

2 4 4
2 3
-7 2
ValueError: kernel 'saxpy': Mismatched y.shape[0] on argument #2
TypeError: kernel 'saxpy': no built variant accepts these arguments
ValueError: kernel 'saxpy': Mismatched x.strides on argument #1
TypeError: kernel 'saxpy': argument 'x' is None, expected a tensor
ValueError: kernel 'saxpy': it cannot run on cuda:0: it was built for llvm (x86-64-v3) only
"""

PROMISES = """
import numpy as np
import tvm_ffi
from pathlib import Path
from kernelwright.testing import CALLS, LAUNCHES, Caller

caller = Caller("cpp", np.asarray, np.from_dlpack, device_array=tvm_ffi.from_dlpack)
for promises, build in ((CALLS, caller.kernels), (LAUNCHES, caller.launched)):
    kernels = build(Path(build.__name__).resolve())
    for promise in promises:
        promise(caller, kernels)
        print(promise.__name__)
"""

CMAKE = """\
cmake_minimum_required(VERSION 3.24)
project(user CXX)
find_package(acme CONFIG REQUIRED)
add_executable(user main.cpp)
target_link_libraries(user PRIVATE acme::acme)
"""


def of_tvm_ffi(name: str) -> str:
    return subprocess.check_output([sys.executable, "-m", "tvm_ffi.config", f"--{name}"], text=True).strip()


def test_a_plug_in_keeps_what_all_backends_promise(environment, tmp_path: Path) -> None:
    said = python_of(environment[0], Project(tmp_path), PROMISES)
    assert said.splitlines() == [promise.__name__ for promise in (*CALLS, *LAUNCHES)], said


def test_a_program_in_cpp_calls_the_kernels_of_a_package_without_python(environment, tmp_path: Path) -> None:
    """cmake is used where it is installed."""
    python, _ = environment
    saxpy = (ROOT / "kernels/saxpy.py").read_text()
    project = Project.of(tmp_path / "project", f'{SETTINGS}backends = ["cpp"]\n', saxpy=saxpy, more=KERNELS)
    project.replace("SConstruct", '"demo"', '"acme"')
    done = scons(python, project)
    assert done.returncode == 0, done.stdout
    assert project.python("import numpy as np, acme\nprint(len(acme.both(np.ones(2, 'float32'))))") == "2\n"
    package, main = project.folder / "build/acme", tmp_path / "main.cpp"
    main.write_text(PROGRAM)
    tvm_ffi = [of_tvm_ffi("libdir"), of_tvm_ffi("includedir"), of_tvm_ffi("dlpack-includedir")]
    folders = [package / "backends/cpp/include", *tvm_ffi[1:]]
    libraries = [f"-L{package}/_lib", *(f"-l:{name}.so" for name in ("saxpy", "both", "errno")), f"-L{tvm_ffi[0]}"]
    command = ["g++", "-std=c++17", "-Wall", "-Wextra", "-Werror", *(f"-I{folder}" for folder in folders), str(main)]
    command += ["-o", str(tmp_path / "main"), *libraries, "-ltvm_ffi", f"-Wl,-rpath,{package}/_lib:{tvm_ffi[0]}"]
    subprocess.run(command, check=True)
    said = subprocess.check_output([tmp_path / "main"], env={}, text=True)
    lines = [
        re.sub(r" when calling:$|: an array of .*| $", "", line)
        for line in said.splitlines()
        if not line.startswith("  ")
    ]
    assert lines == PRINTED.splitlines(), said
    project.replace("kernels/more.py", '"float32", "x")', '"float32", "new_")')
    refused = scons(python, project).stdout
    assert "the arguments 'new_' and 'new' are both new_ in C++" in refused and "rename" in refused, refused
    if cmake := shutil.which("cmake"):
        (tmp_path / "CMakeLists.txt").write_text(CMAKE)
        roots = [f"-Dacme_ROOT={package}/backends/cpp", f"-Dtvm_ffi_ROOT={of_tvm_ffi('cmakedir')}"]
        roots.append(f"-DPython_EXECUTABLE={sys.executable}")
        subprocess.run([cmake, "-S", tmp_path, "-B", tmp_path / "out", *roots], check=True)
        subprocess.run([cmake, "--build", tmp_path / "out"], check=True)
        assert subprocess.check_output([tmp_path / "out/user"], env={}, text=True) == said
