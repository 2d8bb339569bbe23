"""Real runs of scons on generated definition files and settings, and with damaged state: nothing unexpected."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st
from support.forked import starter
from support.project import SCONSTRUCT, SITE_SCONS, Project

from .harness import THOROUGH, fuzz, require_no_traceback, snapshot
from .strategies import damaged, odd_texts, texts

PRELUDE = "from kernelwright import grid, kernel\nfrom tvm import te\n"
BODY = """
    n = te.var("n")
    x = te.placeholder((n,), "float32", name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] * 2.0, name="y")])
"""

names = st.sampled_from(
    [
        *("f", "g", "gemm", "F", "a_b", "x" * 100, "x" * 101, "main", "check", "é", "kw_x", "a__b", "_x", "class_"),
        *("wheel", "lambda"),
    ]
)
literals = st.one_of(
    st.sampled_from(
        ["1", "2.5", "True", "None", "'a b'", "float('inf')", "10**5000", "'\\ud800'", "'\\0'", "'../x'", "[]", "1j"]
    ),
    texts.map(repr),
    st.integers(-5, 5).map(str),
)
docstrings = texts.map(repr) | st.sampled_from(["f'{1}'", "'''multi\nline'''", "b'bytes'", "r'\\x'", '"""\\"""'])
decorators = st.one_of(
    st.just("@kernel"),
    st.just("@kernel()"),
    st.builds("@kernel(configs=grid(m=[{}, {}]))".format, literals, literals),
    st.builds("@kernel(configs=[{{'m': {}}}])".format, literals),
    st.builds(
        "@kernel({}={})".format,
        st.sampled_from(["outputs", "flags", "archs", "targets", "backends", "tolerance"]),
        literals,
    ),
    st.builds("@kernel(outputs=['y'], flags=[{}])".format, literals),
    st.sampled_from(
        [
            "@kernel(configs=grid(m=range(200), n=range(200), where=lambda m, n: m == n == 3))",
            "@kernel(configs=grid(m=range(100000), n=range(100000)))",
            "@kernel(configs=grid(m=range(10), where=lambda m: 1 / 0))",
            "@kernel(configs=grid(m=range(10), where=lambda m: False))",
            "@kernel(configs=(i for i in ()))",
            "@kernel(targets=['llvm'], outputs=['y'])",
            "@kernel\n@kernel",
            "@kernel(1)",
        ]
    ),
)
afterthoughts = st.one_of(
    st.just(""),
    st.builds("{name}.name = {text!r}".format, name=names, text=odd_texts),
    st.builds("kernel({name}.function).name = {text!r}".format, name=names, text=odd_texts),
    st.builds("copy = {name}; {name}.configs = ({{'m': {value}}},)".format, name=names, value=literals),
    st.builds("print({})".format, literals),
    st.builds("raise ValueError({})".format, literals),
    st.sampled_from(["raise SystemExit(3)", "raise KeyboardInterrupt", "raise BaseException", "assert False", "1 / 0"]),
    st.sampled_from(
        [
            "import no_such_module",
            "from . import x",
            "import os; os._exit(1)",
            "class E(Exception):\n def __str__(self): raise E\nraise E",
        ]
    ),
)


sound_literals = st.one_of(
    texts.filter(lambda text: "\0" not in text and not any("\ud800" <= c <= "\udfff" for c in text)).map(repr),
    st.integers(-(2**64), 2**64).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
    st.booleans().map(str),
)


@st.composite
def sound_definitions(draw: st.DrawFn) -> bytes:
    """A definition that can be built, with unusual names, configs and documentation."""
    name = draw(st.from_regex(r"[a-zA-Z][a-z0-9]{0,3}(_[A-Z]{1,90})?", fullmatch=True).filter(str.isidentifier))
    found = draw(st.lists(sound_literals, min_size=1, max_size=2, unique=True))
    parameter = draw(st.sampled_from(["m", "block_size", "é", "名前", "target_", "x" * 100]))
    listed = ", ".join(f"{{{parameter!r}: {literal}}}" for literal in found)
    outputs = draw(
        st.sampled_from(["", "outputs=['y'], ", "outputs=['y'], tolerance=1e300, ", "backends=['tvm_ffi'], "])
    )
    after = draw(
        st.sampled_from(["", "print('hello', end='')", "print('\\x1b[31m\\udcff')", "import sys; sys.stdout.close()"])
    )
    doc = draw(texts.map(repr))
    text = f"{PRELUDE}\n@kernel({outputs}configs=[{listed}])\ndef {name}({parameter}):\n    {doc}{BODY}\n{after}\n"
    return text.encode("utf-8", "surrogatepass")


@st.composite
def odd_definitions(draw: st.DrawFn) -> bytes:
    """The content of a definition file: from careless to no Python at all."""
    parts = [PRELUDE]
    for _ in range(draw(st.integers(1, 2))):
        name = draw(names)
        parameters = draw(st.sampled_from(["", "m=1", "m=1", "m", "m=1, n=1", "target, m=1", "*m", "**m"]))
        doc = draw(docstrings)
        parts.append(f"{draw(decorators)}\ndef {name}({parameters}):\n    {doc}{BODY}")
        parts.append(draw(afterthoughts))
    if draw(st.integers(0, 4)) == 0:
        parts.insert(draw(st.integers(0, len(parts))), draw(texts))
    content = "\n".join(parts).encode("utf-8", "surrogatepass")
    if draw(st.integers(0, 4)) == 0:
        content = draw(damaged(content))
    return content


good = f"{PRELUDE}\n@kernel(outputs=['y'])\ndef good():{BODY}".encode()

file_names = st.one_of(
    st.sampled_from(
        [
            *("a b", "$HOME", "${X}", "a$", "é", "e\u0301", "日本", "😀", "it's", 'quote"', "a\nb", "a\tb", "-o", "#x"),
            "a,b",
        ]
    ),
    st.sampled_from(
        [
            *("[a]", "a*", "a\\b", "~", "a=b", "a:b", "a;b", "`id`", "copy", "json", "x" * 250, "\udcff", "\x1b[31m"),
            *("class", "1", "kernelwright"),
        ]
    ),
    st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), min_size=1, max_size=12),
)
setting_names = ["ARCHS", "NVCC", "NVCC_FLAGS", "HOST_COMPILER", "WORKER_TIMEOUT", "TOOL_TIMEOUT", "MEMORY_LIMIT"]
setting_names += ["NVCC_MEMORY", "CACHE_SIZE", "MAX_REGISTERS", "MAX_SPILLS", "BACKENDS", "TARGET", "archs"]
variables = st.sampled_from([*setting_names, "KERNELWRIGHT_ARCHS"])
values = (
    st.sampled_from(
        [
            *("x86-64", "sm_90a", "1", "0", "-1", "1e999", "nan", "16G", "", " ", "tvm_ffi", "/bin/false", "$X", "é"),
            "\udcff",
        ]
    )
    | odd_texts
)


def is_argument(text: str) -> bool:
    """Whether a program can be given a text."""
    try:
        return "\0" not in text and len(os.fsencode(text)) < 10_000
    except UnicodeEncodeError:
        return False


assignments = st.builds("{}={}".format, variables, values).filter(is_argument)
options = st.sampled_from(
    [["-k"], ["-k", "-j2"], ["-k", "check"], ["-k", "--strict"]] * 3 + [[], ["-n"], ["-s"], ["-c"], ["-q"]]
)


FORK = """
import sys
# What PYTHONIOENCODING does when an interpreter starts.
sys.stdout.reconfigure(encoding="ascii", errors="strict")
sys.stderr.reconfigure(encoding="ascii", errors="backslashreplace")
from support import scons_start
scons_start.main()
"""


def run_fork(folder: Path, arguments: tuple[str, ...], environment: dict[str, str]) -> tuple[int, str]:
    """Run scons as the projects of other tests do, see ``scons_start``; its exit status and its output."""
    done = starter("support.scons_start").run(FORK, *arguments, env=environment, cwd=folder, merged=True)
    return done.returncode, done.stdout


def run_process(folder: Path, arguments: tuple[str, ...], environment: dict[str, str]) -> tuple[int, str]:
    """Run scons in an interpreter of its own, which reads arguments and variables itself; the same."""
    done = subprocess.run(
        [os.fsencode(word) for word in (sys.executable, "-m", "SCons", *arguments)],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=300,
    )
    return done.returncode, done.stdout.decode("utf-8", "backslashreplace")


class Sandbox:
    """A project in a folder of its own, with its own home and its own folder for temporary files."""

    def __init__(self, folder: Path, built: Project) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        self.project = folder / "project"
        self.spare = [folder / "home", folder / "tmp"]
        for path in (self.project / "kernels", *self.spare):
            path.mkdir(parents=True)
        (self.project / "SConstruct").write_text(SCONSTRUCT)
        # What is found out about the compiler takes a part of a second, and is the same each time.
        state = self.project / "build/.kernelwright"
        state.mkdir(parents=True)
        shutil.copy(built.folder / "build/.kernelwright/toolchain.json", state)

    def scons(self, *arguments: str) -> tuple[int, str]:
        """Run scons; its exit status and its output. Nothing but the build folder may change."""
        before = snapshot(self.project.parent)
        environment = {
            **{name: os.environ[name] for name in ("LANG",) if name in os.environ},
            # With the compiler that the built project had, which compiles nothing twice.
            "PATH": f"{Project.shared}/bin:{os.environ['PATH']}",
            "PYTHONPATH": str(SITE_SCONS),
            "HOME": str(self.spare[0]),
            "TMPDIR": str(self.spare[1]),
            "PYTHONIOENCODING": "ascii:strict",  # the least that a terminal can show
        }
        status, output = (run_process if THOROUGH else run_fork)(self.project, arguments, environment)
        after = snapshot(self.project.parent)
        # Both have the project's folders; the times of the two spare ones change with files that come and go.
        changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
        allowed = {"project", "tmp", "project/build"}
        assert {name for name in changed if name not in allowed and not name.startswith("project/build/")} == set(), (
            output
        )
        assert list(self.spare[1].iterdir()) == [], "temporary files are left"
        assert not list(self.project.rglob(".sconsign*"))
        return status, output


@fuzz(
    6,
    slow=True,
    files=st.lists(
        st.tuples(file_names, sound_definitions() | sound_definitions() | odd_definitions()),
        min_size=1,
        max_size=4,
        unique_by=lambda pair: pair[0],
    ),
    settings=st.just([]) | st.just([]) | st.just([]) | st.lists(assignments, max_size=1),
    chosen=options,
)
def test_generated_definitions(tmp_path, built, files, settings, chosen):
    sandbox = Sandbox(tmp_path / "sandbox", built)
    (sandbox.project / "kernels/good.py").write_bytes(good)
    for name, content in files:
        try:
            (sandbox.project / "kernels" / f"{name}.py").write_bytes(content)
        except OSError:
            assume(False)  # a name that the file system does not take
    status, output = sandbox.scons("TARGETS=llvm", *settings, *chosen)
    assert status in ((0, 1, 2) if "-q" in chosen else (0, 2)), output
    require_no_traceback(output)
    if status == 2 and not settings:
        # What is left can be built: nothing of the failed run is in the way.
        for name, _ in files:
            (sandbox.project / "kernels" / f"{name}.py").unlink()
        status, output = sandbox.scons("TARGETS=llvm")
        assert status == 0, output
        require_no_traceback(output)


@fuzz(6, slow=True, settings=st.lists(assignments, min_size=1, max_size=3), chosen=options)
def test_generated_settings(tmp_path: Path, built: Project, settings: list[str], chosen: list[str]) -> None:
    sandbox = Sandbox(tmp_path / "sandbox", built)
    (sandbox.project / "kernels/good.py").write_bytes(good)
    status, output = sandbox.scons(*settings, "TARGETS=llvm", "-n", *chosen)
    assert status in ((0, 1, 2) if "-q" in chosen else (0, 2)), output
    require_no_traceback(output)


BUILD_FILE = """\
from kernelwright.scons import generate
env = Environment(tools=[generate])
env.KernelPackage({package}, {sources}, **{{{keywords}}})
"""
odd_sources = [
    *("[]", "None", "5", "[None]", "'kernels'", "'kernels/no.py'", "'/etc/hostname'", "'../x.py'", "env.Alias('x')")
]
odd_sources += ["{'a': 1}", "env.Dir('.')", "[[['kernels/good.py']]]", "Glob('**')", "'kernels/\\0.py'", "object()"]
sources = st.just("Glob('kernels/*.py')") | st.sampled_from(odd_sources)
keywords = st.dictionaries(st.sampled_from([*(name.lower() for name in setting_names), "x"]), literals, max_size=2)


@fuzz(5, slow=True, package=st.just("'demo'") | literals, given_sources=sources, given_keywords=keywords)
def test_generated_build_files(tmp_path, built, package, given_sources, given_keywords):
    sandbox = Sandbox(tmp_path / "sandbox", built)
    (sandbox.project / "kernels/good.py").write_bytes(good)
    listed = ", ".join(f"{name!r}: {text}" for name, text in given_keywords.items())
    text = BUILD_FILE.format(package=package, sources=given_sources, keywords=listed)
    (sandbox.project / "SConstruct").write_bytes(text.encode("utf-8", "surrogatepass"))
    status, output = sandbox.scons("TARGETS=llvm", "-n")
    assert status in (0, 2), output
    require_no_traceback(output)


STATE_FILES = [
    *("toolchain.json", "measurements.json", "settled/build.demo.json", "discovery/*.record", "journal/*.jsonl"),
    "cache/??/*",
]


@fuzz(3, slow=True, data=st.data())
def test_damaged_state_does_no_harm(tmp_path: Path, built: Project, data: Any) -> None:
    sandbox = Sandbox(tmp_path / "sandbox", built)
    shutil.rmtree(sandbox.project)
    shutil.copytree(built.folder, sandbox.project, symlinks=True)
    state = sandbox.project / "build/.kernelwright"
    patterns = data.draw(st.lists(st.sampled_from(STATE_FILES), min_size=1, max_size=4, unique=True))
    groups = [sorted(state.glob(pattern)) for pattern in patterns]
    assert all(groups)
    for path in sorted(path for paths in groups for path in paths):
        path.write_bytes(data.draw(damaged(path.read_bytes())))
    if data.draw(st.booleans()):
        shutil.rmtree(sandbox.project / "build/kernels")
    status, output = sandbox.scons("TARGETS=llvm")
    assert status == 0, output
    require_no_traceback(output)
    expected = {
        path.relative_to(built.folder): path.read_bytes()
        for path in (built.folder / "build/demo").rglob("*")
        if path.is_file()
    }
    assert Path("build/demo/_lib/add_one.so") in expected
    for relative, content in expected.items():
        assert (sandbox.project / relative).read_bytes() == content, relative
    assert json.loads((sandbox.project / "build/demo/manifest.json").read_text())["schema"]
