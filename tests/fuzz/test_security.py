"""What is never done: data is not executed, no shell, no network, no pickles; a package runs its own libraries only."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from support.project import ADD, ROOT, SCONSTRUCT, SITE_SCONS, Project
from support.sources import name_of, nodes, trees

from .harness import require_no_traceback

UNSAFE_MODULES = {"pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "jsonpickle", "marshal", "shelve"}
UNSAFE_MODULES |= {"yaml"}
"""What they read can execute code."""

SOCKET_PAIRS = ("worker/forkserver.py", "processes/children.py")
"""Modules that pass descriptors through a pair of sockets without names, which nobody else can connect to."""

NETWORK_MODULES = {"socket", "ssl", "urllib", "http", "ftplib", "smtplib", "telnetlib", "requests", "xmlrpc", "asyncio"}
NETWORK_MODULES |= {"distributed"}

READS_CERTIFICATES = "cluster/address.py"
"""The module that looks whether certificates can be used. It connects to nobody."""

ON_A_CLUSTER = ("cluster/dask_client.py", "cluster/dask_worker.py", "cluster/command.py")
"""Modules that are imported if a cluster is asked for. They reach it by Dask."""

CODE_FUNCTIONS = {"eval", "exec", "compile", "__import__", "execfile"}
PROCESS_FUNCTIONS = {"system", "popen", "startfile", "getoutput", "getstatusoutput"}

ALLOWED = {
    # The worker executes definition files: that is what it is for.
    ("worker/watch.py", "exec_module"): "executes a definition file",
    ("worker/watch.py", "import_module"): "imports a definition file that is in a package",
    ("worker/check_functions.py", "compile"): "takes the bodies of references and of inputs from a definition file",
    # Arithmetic of integers, token by token (commands/importer/bounds.py, in_python).
    ("commands/importer/definition.py", "eval"): "computes the threads of a block: digits and signs, without builtins",
    # Names that are written in our own source.
    ("core/plugins.py", "import_module"): "imports one of our own front ends and backends, or an installed plug-in",
    ("cli.py", "import_module"): "imports one of our own commands",
    ("commands/explain.py", "import_module"): "imports the package that the user names",
    ("commands/record.py", "run_module"): "runs the program that the user names",
    ("commands/record.py", "run_path"): "runs the program that the user names",
    ("triton.py", "import_module"): "imports our own modules by the names that are written there",
    ("runtime/heuristic.py", "eval"): "computes an expression of the manifest: its nodes and names were compared first",
    ("runtime/recorded_kernel.py", "exec"): "binds arguments: of the manifest it has names, which are identifiers",
    ("frontends/triton/recorded_function.py", "import_module"): "imports the module of a function that was recorded",
    ("tune/measure.py", "import_module"): "imports the package or the function that the user names",
    ("runtime/misses.py", "import_module"): "imports Kernelwright, once the user has said so",
    ("runtime/torch_kernel.py", "import_module"): "imports a generated module, whose digest was compared",
    ("runtime/cuda_core_kernel.py", "import_module"): "imports a generated module, whose digest was compared",
    ("runtime/cuda_core_device.py", "import_module"): "imports modules of cuda.core: the names are written there",
    ("runtime/cython_kernel.py", "exec_module"): "loads a compiled module, whose digest was compared",
    ("runtime/cython_kernel.py", "import_module"): "imports NumPy, PyTorch or JAX: the names are written there",
    ("runtime/loader.py", "import_module"): "imports modules of the package that the manifest lists with their digests",
    ("frontends/base.py", "import_module"): "imports the module of a front end that lowers, which its class names",
    ("__init__.py", "import_module"): "imports our own modules by the names that are written there",
    ("ondemand/files.py", "exec_module"): "executes a definition file, for lower(), which gives an object of TVM",
    ("ondemand/reached.py", "compile"): "tells the names in what may be an annotation; it is not executed",
    ("testing/calls.py", "import_module"): "imports the package that a promise has built",
    ("ondemand/loaded.py", "exec_module"): "executes a module of an installed plug-in, which is imported already",
    ("ondemand/loaded.py", "import_module"): "imports our own modules of the runtime that a manifest lists",
    ("worker/start_elsewhere.py", "exec_module"): "executes our own package, in another environment",
    ("worker/start_elsewhere.py", "import_module"): "imports one of our own modules, by its name",
    ("worker/elsewhere.py", "import_module"): "imports one of our own modules, which our own code names",
    ("frontends/tir/lowering.py", "import_module"): "a module of TVM that an attribute of the same name hides",
}
"""What looks like the execution of data, and why it is not, or is the module's job: (file, function) -> reason."""


def calls() -> Iterator[tuple[Path, ast.Call, str, str]]:
    """Every call of a module, with the name of the function and that of what it is looked up in."""
    for path in trees():
        for node in nodes(path):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                yield path, node, node.func.id, ""
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                yield path, node, node.func.attr, ast.unparse(node.func.value)


def imported(found: Iterable[ast.AST]) -> Iterator[str]:
    for node in found:
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield (node.module or "").partition(".")[0]


def attributes(path: Path, owner: str) -> set[str]:
    """The attributes of a name that a module uses."""
    found = (node for node in nodes(path) if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name))
    return {node.attr for node in found if node.value.id == owner}


def test_no_module_can_unpickle_or_reach_the_network() -> None:
    special = {*SOCKET_PAIRS, *ON_A_CLUSTER, READS_CERTIFICATES}
    for path in trees():
        found, name = set(imported(nodes(path))) & (UNSAFE_MODULES | NETWORK_MODULES), name_of(path)
        if name in SOCKET_PAIRS:
            assert attributes(path, "socket") <= {"socket", "socketpair", "send_fds", "recv_fds"}, name
            found.remove("socket")
        if name in ON_A_CLUSTER:
            assert attributes(path, "pickle") <= {"dumps", "HIGHEST_PROTOCOL"}, name
            found -= {"distributed", "asyncio", "pickle"}
        if name == READS_CERTIFICATES:
            assert attributes(path, "ssl") <= {"SSLContext", "PROTOCOL_TLS_CLIENT"}, name
            found.remove("ssl")
        assert not found, f"{name} imports {found}"
        special.discard(name)
    assert not special, "these modules are no more"


def test_no_module_executes_data_or_uses_a_shell() -> None:
    for path, call, function, owner in calls():
        place = f"{name_of(path)}:{call.lineno}"
        keywords = {keyword.arg for keyword in call.keywords}
        plain = function in CODE_FUNCTIONS and owner in ("", "builtins")
        loading = function in ("exec_module", "import_module", "load_module", "run_path", "run_module")
        if plain or (loading and owner != "tvm_ffi"):
            assert (name_of(path), function) in ALLOWED, place
        if (owner, function) == ("socket", "socket"):
            assert keywords == {"fileno"} and not call.args, f"{place}: a socket that is no pair"
        assert not keywords & {"shell", "allow_pickle"}, place
        assert not (owner in ("os", "subprocess", "pty", "commands") and function in PROCESS_FUNCTIONS), place
        # A command that is one string would be taken apart by a shell, or by nobody.
        if owner == "subprocess" and function in ("run", "Popen", "call", "check_call", "check_output"):
            assert not isinstance(call.args[0], (ast.Constant, ast.JoinedStr)), place


def test_every_exception_to_the_rules_is_still_needed() -> None:
    found = {(name_of(path), name) for path, _, name, _ in calls()}
    assert set(ALLOWED) <= found


def test_a_library_loads_the_driver_and_nothing_else() -> None:
    """The launcher is compiled into every kernel library."""
    sources = sorted((SITE_SCONS / "kernelwright/backends/launcher").glob("*.h"))
    text = "\n".join(path.read_text() for path in sources)
    found = re.findall(
        r"(?<![\w.>])(system|popen|exec[vl]\w*|posix_spawn\w*|v?fork|socket|connect|open|fopen|creat)\(", text
    )
    assert set(found) == {"fopen", "open"}
    # The device code of a split package is in a file of its own.
    assert all("O_RDONLY" in flags for flags in re.findall(r"(?<![\w.>])open\(([^;]*)\)", text))
    # The number of processors of a container is in files of the system, which are read.
    assert all(mode in ("r", "re") for mode in re.findall(r'fopen\([^;]*"([a-z+]*)"\)', text))
    assert text.count("dlopen(") == 1 and "libcuda.so.1" in text


def test_sizes_are_evaluated_without_python(tmp_path: Path) -> None:
    from kernelwright.runtime.size import Size

    evil = "__import__('os').system('touch x')"
    for text in (evil, "().__class__", "n.real", "[1][0]", "(lambda: 1)()", "print(1, 2)"):
        with pytest.raises(ValueError):
            Size(text)


# ---- a run of scons

POISON = """\
import os, pickle, shelve, sys

def refuse(*arguments, **keywords):
    raise SystemExit("something was unpickled")

class Unpickler:
    def __init__(self, *arguments, **keywords):
        refuse()

pickle.load = pickle.loads = refuse
pickle.Unpickler = pickle._Unpickler = Unpickler
shelve.open = refuse

def hook(event, arguments):
    # AF_UNIX, without an address; connecting one, or giving it a name, is refused.
    pair = event == "socket.__new__" and arguments[1] == 1
    pair = pair or (event == "socket.sendmsg" and arguments[0].family == 1 and arguments[1] is None)
    network = event.startswith(("socket.", "urllib.", "http.")) and event != "socket.gethostname" and not pair
    if network or (event == "subprocess.Popen" and isinstance(arguments[1], (str, bytes))) or event == "os.system":
        sys.stderr.write(f"REFUSED {event} {arguments!r}\\n")
        os._exit(3)

sys.addaudithook(hook)
print("poisoned")
"""
"""Makes a run of scons end that unpickles something, uses the network, or gives a command to a shell."""

TRAP = b"cos\nsystem\n(S'touch %s'\ntR."
"""A pickle that executes a command when it is read."""


def test_scons_never_unpickles_nor_uses_the_network_or_a_shell(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.folder.mkdir()
    project.write("SConstruct", SCONSTRUCT)
    project.write("kernels/add_one.py", ADD)
    poison = tmp_path / "poison"
    poison.mkdir()
    (poison / "sitecustomize.py").write_text(POISON)
    for name in (".sconsign.dblite", ".sconsign", "kernels/.sconsign", ".sconsign.dbm", "build/.sconsign.dblite"):
        path = project.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(TRAP % os.fsencode(tmp_path / "sprung"))
    path = {"PYTHONPATH": f"{poison}:{SITE_SCONS}"}
    first = project.scons("TARGETS=llvm", env=path)
    assert first.output.startswith("poisoned") and first.counts == (7, 0, 0)
    project.replace("kernels/add_one.py", "1.0", "2.0")
    second = project.scons("TARGETS=llvm", "-j2", env=path)
    assert second.counts[0] > 0 and second.counts[2] == 0
    require_no_traceback(second.output)
    assert not (tmp_path / "sprung").exists()


def test_text_in_a_definition_is_never_given_to_a_shell(tmp_path: Path) -> None:
    """Names, configs and flags with what a shell would act on; compile.sh, which people run by hand, quotes them."""
    project = Project(tmp_path / "project $(touch sprung) `touch sprung`; touch sprung #")
    project.folder.mkdir()
    project.write("SConstruct", SCONSTRUCT)
    evil = "$(touch sprung)`touch sprung`;touch sprung;'\\\"&|<>\\n"
    text = ADD.replace("@kernel(", f"@kernel(configs=[{{'m': {evil!r}}}], flags=[{evil!r}], ")
    project.write("kernels/$(touch sprung);`touch sprung`.py", text.replace("add_one()", "add_one(m)"))
    run = project.scons("TARGETS=llvm", f"NVCC_FLAGS={evil}")
    assert run.counts == (7, 0, 0)
    scripts = [*project.folder.rglob("compile*.sh")]
    assert scripts
    for script in scripts:
        subprocess.run(["sh", "-n", str(script)], check=True)
    assert not list(tmp_path.rglob("sprung*"))


def test_the_name_of_the_folder_is_never_given_to_the_shell_that_nvcc_uses(tmp_path: Path) -> None:
    """nvcc has a shell run its commands, with the paths that it was given."""
    project = Project(tmp_path / "project $(touch sprung) `touch sprung`; touch sprung #")
    project.folder.mkdir()
    project.write("SConstruct", SCONSTRUCT)
    project.write("kernels/add_one.py", ADD)
    assert project.scons("ARCHS=sm_80").labels["CUBIN"] == 1
    assert not list(tmp_path.rglob("sprung*"))


def test_a_compiler_whose_path_a_shell_would_change_is_refused(tmp_path: Path) -> None:
    from kernelwright.core.errors import ToolchainError
    from kernelwright.toolchain.probe import Toolchain

    odd = tmp_path / "$(touch sprung)" / "nvcc"
    odd.parent.mkdir()
    odd.write_text("#!/bin/sh\n")
    odd.chmod(0o755)
    chain = Toolchain(tmp_path / "toolchain.json", {"PATH": os.environ["PATH"]})
    with pytest.raises(ToolchainError, match="to a shell"):
        chain.nvcc(str(odd), chain.host_compiler(""))


# ---- names of packages


@pytest.mark.parametrize("name", ["json", "torch", "kernelwright", "tvm_ffi.kernels", "SCons", "cuda", "site", "jax"])
def test_no_package_takes_the_name_of_a_module_that_others_import(name: str) -> None:
    from kernelwright.commands.init import make_project
    from kernelwright.core.errors import SettingsError
    from kernelwright.define.settings import merge

    with pytest.raises(SettingsError, match="would take the place of the module") as caught:
        merge([("pyproject.toml", {"package": name})], ["tvm_ffi"])
    assert name in str(caught.value) and "pyproject.toml" in str(caught.value) and caught.value.remedy
    if "." not in name and name == name.lower():
        with pytest.raises(SettingsError):
            make_project(f"/nonexistent/{name}")


@pytest.mark.parametrize("name", ["acme", "acme.json", "jsons", "kernels_of_torch", "torch_kernels"])
def test_other_packages_may_have_any_name(name: str) -> None:
    from kernelwright.define.settings import merge

    assert merge([("pyproject.toml", {"package": name})], ["tvm_ffi"]).package == name


def modules_below(*names: str) -> set[str]:
    """The modules of installed distributions, and of those that they need."""
    modules: dict[str, set[str]] = {}
    for module, owners in packages_distributions().items():
        for owner in owners:
            modules.setdefault(canonicalize_name(owner), set()).add(module)
    found, left = set[str](), {*names}
    while left:
        name = canonicalize_name(left.pop())
        if name in modules and name not in found:
            found.add(name)
            needs = [Requirement(text) for text in requires(name) or ()]
            left |= {need.name for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})}
    return {m for name in found for m in modules[name] if m.isidentifier() and not m.startswith("_")}


def test_every_module_that_is_imported_is_taken() -> None:
    from kernelwright import backends
    from kernelwright.define.package_name import TAKEN

    found = {name for path in trees() for name in imported(nodes(path))}
    for backend in map(backends.get, backends.names()):
        found |= {need.module.partition(".")[0] for need in (*backend.run_needs, *backend.build_needs)}
    assert {"torch", "tvm", "numpy", "json"} <= found
    found |= modules_below("apache-tvm-ffi", "torch", "jax", "jax-tvm-ffi", "cuda-python")
    assert "typing_extensions" in found
    assert found <= TAKEN | {"compression"}  # from Python 3.14 on, where it is a standard module


def test_a_flag_of_nvcc_is_given_to_the_shell_that_nvcc_uses(tmp_path: Path) -> None:
    """Which is why authors of flags are trusted like authors of definitions. If it fails, the page may promise more."""
    project = Project(tmp_path)
    project.write("SConstruct", SCONSTRUCT)
    project.write("kernels/add_one.py", ADD)
    project.scons("ARCHS=sm_80", "NVCC_FLAGS=-DX=$(>../../../../../../sprung)")
    assert (tmp_path / "sprung").exists()


NOSY = """\
import os
open("seen", "w").write(" ".join(sorted(os.environ)))
"""


def test_a_definition_sees_five_variables_of_the_user(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("SConstruct", SCONSTRUCT)
    project.write("kernels/add_one.py", NOSY + ADD)
    passed_on = {"PATH", "HOME", "TMPDIR", "LD_LIBRARY_PATH", "CUDA_VISIBLE_DEVICES"}
    ours = {"PYTHONPATH", "PYTHONSAFEPATH", "PYTHONHASHSEED", "PYTHONDONTWRITEBYTECODE", "PYTHONUTF8", "LC_CTYPE"}
    given = {"HOME": str(tmp_path), "TMPDIR": str(tmp_path), "LD_LIBRARY_PATH": "/none", "CUDA_VISIBLE_DEVICES": "7"}
    project.scons("TARGETS=llvm", env={**given, "PYPI_TOKEN": "secret", "AWS_SECRET_ACCESS_KEY": "secret"})
    seen = set((tmp_path / "seen").read_text().split())
    assert passed_on <= seen <= passed_on | ours


def test_a_build_leaves_nothing_outside_of_its_folder(tmp_path: Path) -> None:
    project = Project(tmp_path / "project")
    project.write("SConstruct", SCONSTRUCT)
    project.write("kernels/add_one.py", ADD)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    before = sorted(path for path in project.folder.rglob("*"))
    project.scons(".", "check", "ARCHS=sm_80,x86-64-v3", env={"HOME": str(elsewhere), "TMPDIR": str(elsewhere)})
    build = project.folder / "build"
    assert [path for path in sorted(project.folder.rglob("*")) if build not in (path, *path.parents)] == before
    assert not list(elsewhere.rglob("*"))


# ---- a built package

WATCH = """\
import json, os, sys, sysconfig

sys.modules["torch"] = sys.modules["cuda"] = None  # tvm-ffi would import them

def refuse(event, arguments):
    sys.stderr.write(f"REFUSED {event} {arguments!r}\\n")
    os._exit(3)

FORBIDDEN = ("subprocess.", "os.system", "os.exec", "os.posix_spawn", "os.spawn", "os.fork", "os.startfile", "pty.")
FORBIDDEN += ("socket.", "urllib.", "http.", "ftplib.", "smtplib.", "webbrowser.", "pickle.find_class", "shelve.")
FORBIDDEN += ("os.mkdir", "os.remove", "os.rename", "os.rmdir", "os.link", "os.symlink", "os.truncate", "os.chmod")
FORBIDDEN += ("shutil.", "sqlite3.")

def hook(event, arguments):
    if event == "open":
        path, mode, flags = arguments
        writes = set(mode) & set("wax+") if isinstance(mode, str) else flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
        if writes and path != os.devnull:
            refuse(event, arguments)
    elif event == "ctypes.dlopen":
        dlopened.append(str(arguments[0]))
    elif event.startswith(FORBIDDEN):
        refuse(event, arguments)

dlopened = []
before = set(sys.modules)
sys.dont_write_bytecode = True
sys.addaudithook(hook)
sys.path.insert(0, "build")

import demo
import numpy as np

for name in demo.__all__[:2]:
    kernel = getattr(demo, name)
    shape = (3, 4) if name == "add_one" else (5,)
    out = np.empty(shape, np.float32)
    kernel(np.ones(shape, np.float32), out)
    assert (out == 2).all()
    np.from_dlpack(kernel(np.ones(shape, np.float32)))
    kernel.supported("cuda"), kernel.supported("cpu"), kernel.devices, kernel.variants, repr(kernel)
demo.preload("cpu"), demo.manifest(), demo.num_threads(), demo.set_num_threads(2), dir(demo)

modules = {name: getattr(sys.modules[name], "__file__", None) for name in sys.modules.keys() - before}
mapped = sorted({line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if line.count("/")})
standard = sysconfig.get_path("stdlib")
print(json.dumps({"modules": modules, "mapped": mapped, "dlopened": dlopened, "standard": standard}))
"""


def test_a_package_executes_its_own_libraries_and_nothing_else(built: Project, tmp_path: Path) -> None:
    program = tmp_path / "watch.py"
    program.write_text(WATCH)
    environment = {"PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-s", "-P", str(program)]
        if sys.version_info >= (3, 11)
        else [sys.executable, "-s", str(program)],
        cwd=built.folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    folder = built.folder.resolve()
    installed = [Path(sys.prefix).resolve() / "lib"]
    packages = ("tvm_ffi", "numpy", "numpy.libs", "typing_extensions.py", "typing_extensions", "ml_dtypes")
    for name, file in seen["modules"].items():
        if file is None:
            continue
        path = Path(file).resolve()
        standard = path.is_relative_to(Path(seen["standard"]).resolve()) and "site-packages" not in path.parts
        own = path.is_relative_to(folder / "build/demo")
        known = any(path.is_relative_to(top) for top in installed) and set(packages) & set(path.parts)
        assert standard or own or known, (name, file)
    kernels = [path for path in seen["mapped"] if path.startswith(str(folder))]
    (launcher,) = (folder / "build/demo/_lib").glob("libkernelwright-*.so")
    assert sorted(kernels) == sorted(
        map(str, (launcher, *(launcher.with_name(f"{n}.so") for n in ("add_one", "scale"))))
    )
    for path in seen["mapped"] + [name for name in seen["dlopened"] if name != "None"]:
        assert is_expected_library(Path(path), folder, Path(seen["standard"])), path


def is_expected_library(path: Path, folder: Path, standard: Path) -> bool:
    """Whether a mapped file is the package's, of Python, of tvm-ffi or NumPy, or of the system, the driver included."""
    system = ("/usr/lib", "/lib", "/usr/local/lib", "/usr/share", "/etc", "/dev")
    tops = [folder / "build/demo/_lib", standard.parent.parent, Path(sys.base_prefix), *map(Path, system)]
    packages = {
        *("tvm_ffi", "numpy", "numpy.libs", "ml_dtypes")
    }  # tvm-ffi imports the last, if it is there, for its dtypes
    return (
        any(path.is_relative_to(top) for top in tops) or bool(packages & set(path.parts)) or path.name == "libcuda.so.1"
    )


OF_CALLERS = {"numpy", "ml_dtypes", "torch"}
"""What functions import that are called with arrays of these, and only then."""


def test_the_code_of_a_package_imports_the_standard_library_and_tvm_ffi_only(built: Project) -> None:
    package = built.folder / "build/demo"
    paths = [path for path in package.rglob("*.py*") if path.suffix in (".py", ".pyi")]
    assert {package / "__init__.py", package / "__init__.pyi", package / "_runtime/loader.py"} < set(paths)
    for path in paths:
        found = list(ast.walk(ast.parse(path.read_text())))
        functions = [node for node in found if isinstance(node, ast.FunctionDef)]
        of_callers = {name for function in functions for name in imported(ast.walk(function))} & OF_CALLERS
        assert {*imported(found)} <= set(sys.stdlib_module_names) | {"tvm_ffi"} | of_callers, path


def test_the_documentation_names_every_file_that_is_read_back(built: Project) -> None:
    """A new record file needs a line in the table of docs/security.md."""
    text = (ROOT / "docs/security.md").read_text(encoding="utf-8")
    state = built.folder / "build/.kernelwright"
    paths = [path for path in state.iterdir() if path.name not in ("scratch", "lock")]
    assert {"cache", "discovery", "toolchain.json"} < {path.name for path in paths}
    for path in paths:
        assert f"`{path.name}" in text, f"docs/security.md does not mention build/.kernelwright/{path.name}"
