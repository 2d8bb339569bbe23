"""The model of a walk's project: its files, what is in them, and which number each kernel gives for them.

Every kernel computes ``y = x + offset``. Each decimal place of the offset is a digit from a source of its own: the
definition, a helper that it imports, a file that it reads, a header. So a wrong number tells which source was missed.
A source looks for its digit in several files in turn, such as a module that another folder shadows.
"""

from __future__ import annotations

import io
import json
import os
import random
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from kernelwright.define.tuning import Rule, TableDevice, TableFile, TunedConfig, table_text
from kernelwright.tune.device import device_of

PROJECT = "proj"
"""The folder of the project in the repository, beside which others lie."""


@dataclass(frozen=True)
class Content:
    """What decides the content of a file: the digit that it is there for, and how many lines of comments it has."""

    digit: int
    padding: int = 0


State = Mapping[str, Content]
"""Path in the repository -> what is there. A file that is not in it does not exist."""


def module(content: Content) -> bytes:
    """A module of Python."""
    return ("# a comment\n" * content.padding + f"VALUE = {content.digit}\n").encode()


def constant(content: Content) -> bytes:
    """A module with a constant of Triton."""
    comments = "# a comment\n" * content.padding
    return f"import triton.language as tl\n{comments}VALUE = tl.constexpr({content.digit})\n".encode()


def function(content: Content) -> bytes:
    """A module with a function of Triton."""
    lines = [
        "import triton",
        *["# a comment"] * content.padding,
        "@triton.jit",
        "def value():",
        f"    return {content.digit}",
    ]
    return "".join(f"{line}\n" for line in lines).encode()


def text(content: Content) -> bytes:
    """A file with a number in it, and blanks."""
    return f"{' ' * content.padding}{content.digit}\n".encode()


def array(content: Content) -> bytes:
    """A file of NumPy; its padding are further elements."""
    file = io.BytesIO()
    np.save(file, np.array([content.digit, *range(content.padding)], "int64"))
    return file.getvalue()


def header(macro: str) -> Callable[[Content], bytes]:
    """Makes a header that defines a macro."""
    return lambda content: ("// a comment\n" * content.padding + f"#define {macro} {content.digit}\n").encode()


def link(content: Content) -> bytes:
    """Where a link leads to; see `Model.write`."""
    return f"digits/{content.digit}.txt".encode()


def first(found: list[int | None]) -> int | None:
    """The digit of the first file that is there."""
    return next((digit for digit in found if digit is not None), None)


def total(found: list[int | None]) -> int:
    """The last place of the sum of all digits."""
    return sum(digit for digit in found if digit is not None) % 10


def count(found: list[int | None]) -> int:
    """How many files are there."""
    return sum(digit is not None for digit in found)


def number_of(digits: Mapping[str, int | None]) -> int:
    """The number with these decimal places."""
    return sum((digit or 0) * 10**place for place, digit in enumerate(digits.values()))


def difference(digits: Mapping[str, int | None], found: object) -> object:
    """Which places are wrong, if it is a number that was found."""
    if not isinstance(found, int):
        return found
    known = ((name, digit, found // 10**place % 10) for place, (name, digit) in enumerate(digits.items()))
    return ", ".join(f"{name} is {other} and not {digit}" for name, digit, other in known if digit != other)


@dataclass(frozen=True)
class Source:
    """Where the digit of a kernel comes from.

    Arguments:
        places: the files that are looked for, in turn.
        content: makes the content of such a file.
        value: the expression in the definition; for CUDA C++ that in the source.
        before: lines at the beginning of the definition file; for CUDA C++ of the source.
        inside: lines in the definition.
        take: the digit of the files that are there; None: without them the definition fails.
        fallback: the digit if `take` gives none; None: the definition fails.
        option: an argument of ``@kernel``; for CUDA C++ an element of its ``flags``.
        parameter: one of the definition's.
        reads: patterns for ``reads``, which strict mode wants.
        called: whether it is there for calls, and 0 for ``compile()``.
    """

    places: tuple[str, ...]
    content: Callable[[Content], bytes]
    value: str
    before: str = ""
    inside: str = ""
    take: Callable[[list[int | None]], int | None] = first
    fallback: int | None = None
    option: str = ""
    parameter: str = ""
    reads: tuple[str, ...] = ()
    called: bool = False

    def digit(self, state: State) -> int | None:
        """The digit that it gives now; None: the definition fails."""
        taken = self.take([state[place].digit if place in state else None for place in self.places])
        return self.fallback if taken is None else taken


def recorded(kernel: str) -> Callable[[Content], bytes]:
    """Makes a file of recorded configs."""

    def made(content: Content) -> bytes:
        return json.dumps(
            {"schema": 1, "kernels": {kernel: [{"extra": content.digit}]}}, indent=content.padding
        ).encode()

    return made


def table(kernel: str) -> Callable[[Content], bytes]:
    """Makes a tuning table of this machine's CPU."""
    device = TableDevice("llvm", "x86-64-v3", device_of("cpu").name, device_of("cpu").count)

    def made(content: Content) -> bytes:
        rules = (Rule({"step": content.digit}, None),)
        measured = {"tvm": "0.27.0", "compiler": "c" * (content.padding + 1), "policy": "made up"}
        return table_text(TableFile(kernel, device, measured, (TunedConfig({}, (), rules),))).encode()

    return made


def _folder(*names: str) -> str:
    return "".join(f"sys.path.insert(0, str(REPO / {name!r}))\n" for name in reversed(names))


VARIABLE = "$WALK_DIGIT"
"""In the place of a file: a variable of the environment."""

PYTHON: dict[str, Source] = {
    "environment": Source(
        (VARIABLE,), text, "variable", inside="variable = int(os.environ.get('WALK_DIGIT', 0))", fallback=0
    ),
    "helper": Source(("proj/kernels/_helper.py", "proj/_helper.py"), module, "_helper.VALUE", "import _helper"),
    "package": Source(("proj/packed/__init__.py", "proj/packed.py"), module, "packed.VALUE", "import packed"),
    "late": Source(("proj/kernels/_late.py", "proj/_late.py"), module, "VALUE", inside="from _late import VALUE"),
    "executed": Source(
        ("proj/executed.py",),
        module,
        "executed['VALUE']",
        inside="executed = runpy.run_path(str(ROOT / 'executed.py'))",
        reads=("../executed.py",),
    ),
    "beside": Source(
        ("common/early/tiles.py", "common/tiles.py"),
        module,
        "tiles.VALUE",
        _folder("common/early", "common") + "import tiles",
    ),
    "text": Source(
        ("proj/data/over.txt", "proj/data/base.txt"),
        text,
        "given",
        inside="""
        try:
            given = int(open(ROOT / "data/over.txt").read())
        except FileNotFoundError:
            given = int((ROOT / "data/base.txt").read_text())
        """,
        reads=("../data/over.txt", "../data/base.txt"),
    ),
    "array": Source(
        ("proj/data/values.npy",),
        array,
        "ARRAY",
        "ARRAY = int(np.load(ROOT / 'data/values.npy')[0])",
        reads=("../data/*",),
    ),
    "outside": Source(
        ("common/outside.txt",),
        text,
        "outside",
        inside="outside = int((REPO / 'common/outside.txt').read_text())",
        reads=("../../common/outside.txt",),
    ),
    "globbed": Source(
        tuple(f"proj/parts/{number}.txt" for number in range(3)),
        text,
        "globbed",
        inside="globbed = sum(int(path.read_text()) for path in (ROOT / 'parts').glob('*.txt')) % 10",
        take=total,
        reads=("../parts/*",),
    ),
    "listed": Source(
        tuple(f"proj/listed/{name}" for name in ("a", "b", "c")),
        text,
        "LISTED",
        "LISTED = len(os.listdir(ROOT / 'listed')) - 1",
        take=count,
        reads=("../listed/*",),
    ),
    "existing": Source(
        ("proj/existing.flag",),
        text,
        "existing",
        inside="existing = int((ROOT / 'existing.flag').exists())",
        take=count,
        reads=("../existing.flag",),
    ),
    "linked": Source(
        ("proj/link.txt",),
        link,
        "linked",
        inside="linked = int((ROOT / 'link.txt').read_text())",
        reads=("../link.txt", "../digits/*"),
    ),
}
"""Sources of definitions that are executed."""

OF_KERNELS: dict[str, Callable[[str], Source]] = {
    "recorded": lambda kernel: Source(
        (f"proj/kernels/{kernel}.json",),
        recorded(kernel),
        "extra",
        fallback=0,
        option=f'configs=recorded("{kernel}.json", default=[{{"extra": 0}}])',
        parameter="extra",
    ),
    "table": lambda kernel: Source(
        (f"proj/tuning/{kernel}.x86-64-v3-this.json",),
        table(kernel),
        "step",
        fallback=0,
        option="tune=grid(step=list(range(10)))",
        parameter="step",
        called=True,
    ),
}
"""The same for sources that each kernel has for itself."""

PYTHON_FIXED = {**{f"proj/digits/{digit}.txt": text(Content(digit)) for digit in range(10)}, "proj/listed/always": b""}

FOLDERS = '["../include1", "../include2", "../../common/include"]'
SEARCHED = ("proj/kernels", "proj/include1", "proj/include2", "common/include")
"""Where a header is looked for, in turn."""


def _headers(name: str, folders: tuple[str, ...] = SEARCHED) -> tuple[str, ...]:
    return tuple(f"{folder}/{name}" for folder in folders)


CUDA: dict[str, Source] = {
    "quoted": Source(_headers("quoted.cuh"), header("QUOTED"), "QUOTED", '#include "quoted.cuh"'),
    "angled": Source(_headers("angled.cuh", SEARCHED[1:]), header("ANGLED"), "ANGLED", "#include <angled.cuh>"),
    "nested": Source(
        _headers("inner.cuh", ("proj/include1", "proj/kernels", "proj/include2")),
        header("NESTED"),
        "NESTED",
        "#include <outer.cuh>",
    ),
    "optional": Source(
        _headers("optional.cuh", SEARCHED[2:]),
        header("OPTIONAL"),
        "OPTIONAL",
        "#if __has_include(<optional.cuh>)\n#include <optional.cuh>\n#else\n#define OPTIONAL 0\n#endif",
        fallback=0,
    ),
    "beyond": Source(("common/include/beyond.cuh",), header("BEYOND"), "BEYOND", "#include <beyond.cuh>"),
    "forced": Source(_headers("forced.h", SEARCHED[1:3]), header("FORCED"), "FORCED", option='"-include", "forced.h"'),
}
"""Sources of a kernel in CUDA C++."""

CUDA_FIXED = {
    "proj/include1/outer.cuh": b'#include "inner.cuh"\n',
    "proj/include2/always.cuh": b"",
    "common/include/always.cuh": b"",
}

OUTER = b"""\
import triton
import _inner

@triton.jit
def outer():
    return _inner.value()
"""

TRITON: dict[str, Source] = {
    "constant": Source(
        ("proj/kernels/_constant.py", "proj/_constant.py"), constant, "_constant.VALUE", "import _constant"
    ),
    "named": Source(
        ("proj/kernels/_named.py", "proj/_named.py"), constant, "NAMED", "from _named import VALUE as NAMED"
    ),
    "called": Source(("proj/kernels/_called.py", "proj/_called.py"), function, "_called.value()", "import _called"),
    "called by name": Source(("proj/_by_name.py",), function, "by_name()", "from _by_name import value as by_name"),
    "calls": Source(("proj/kernels/_inner.py", "proj/_inner.py"), function, "outer()", "from _outer import outer"),
    "shared": Source(
        ("common/early/shares.py", "common/shares.py"),
        function,
        "shares.value()",
        _folder("common/early", "common") + "import shares",
    ),
    "passed": Source(
        ("proj/data/passed.txt",),
        text,
        "PASSED",
        parameter="PASSED: tl.constexpr",
        option="PASSED=int((ROOT / 'data/passed.txt').read_text())",
        reads=("../data/passed.txt",),
    ),
}
"""Sources of a kernel in Triton."""

BEGIN = """\
import os, runpy, sys
from pathlib import Path
import numpy as np
from kernelwright import grid, kernel, recorded

HERE = Path(__file__).resolve().parent
ROOT, REPO = HERE.parent, HERE.parent.parent
"""

BODIES = {
    "te": """\
    from tvm import te
    x = te.placeholder((te.var("n"),), "float64", name="x")
    return te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] + te.const(offset, "float64"), name="y")])
""",
    "blocks": """\
    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float64")
        y = T.match_buffer(y_handle, (n,), "float64")
        for i in range(n):
            with T.sblock("y"):
                j = T.axis.spatial(n, i)
                y[j] = x[j] + T.cast(offset, "float64")
    return main
""",
    "loops": """\
    @T.prim_func
    def main(x_handle: T.handle, y_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float64")
        y = T.match_buffer(y_handle, (n,), "float64")
        for i in range(n):
            y[i] = x[i] + T.cast(offset, "float64")
    return main
""",
    "strided": """\
    @T.prim_func
    def main(x_handle: T.handle, y_handle: T.handle):
        n, stride = T.int32(), T.int32()
        x = T.match_buffer(x_handle, (n,), "float64", strides=(stride,))
        y = T.match_buffer(y_handle, (n,), "float64")
        for i in range(n):
            y[i] = x[i] + T.cast(offset, "float64")
    return main
""",
}
"""Language of a kernel for the CPU -> the end of its definition."""

SOURCE = """\
#ifndef SETTING
#define SETTING 0
#endif
__global__ void {name}(const int *x, int *y, int n) {{
  int i = blockIdx.x * 128 + threadIdx.x;
  if (i < n) y[i] = x[i] + {offset};
}}
"""

CUDA_DEFINITION = """
from kernelwright.cuda import Size, Source, Tensor

@kernel(frontend="cuda", outputs=["y"], includes={folders}, flags=[{flags}])
def {name}():
    return Source(
        {source},
        "{name}",
        x=Tensor("int32", "n"),
        y=Tensor("int32", "n"),
        n=Size("n"),
        grid="(n + 127) // 128",
        block=128,
        defines={{"OWN": {own}}},
    )
"""

TRITON_DEFINITION = """
import triton
import triton.language as tl
from kernelwright.triton import Program, Size, Tensor

@triton.jit
def code(x, y, n, OWN: tl.constexpr, {parameters}):
    at = tl.program_id(0) * 128 + tl.arange(0, 128)
    tl.store(y + at, tl.load(x + at, at < n) + ({offset}), at < n)


@kernel(frontend="triton", outputs=["y"], {declared})
def {name}():
    vector = Tensor("int32", "n")
    return Program(code, x=vector, y=vector, n=Size("n"), OWN={own}, {passed}grid="(n + 127) // 128")
"""

TRITON_FIXED = {"proj/_outer.py": OUTER}

IN_CUDA = ("cuda", "text")
"""The languages of CUDA C++: a file, and a text in the definition."""

FOR_GPUS = {**dict.fromkeys(IN_CUDA, CUDA), "triton": TRITON}
"""Language of a kernel for GPUs -> the sources that it may have."""

SCONSTRUCT = b"""\
from kernelwright.scons import generate
env = Environment(tools=[generate])
env.Default(env.KernelPackage("demo", env.Glob("kernels/*.py")))
"""

SETTINGS = f"{PROJECT}/pyproject.toml"
REFERENCE = f"{PROJECT}/error.txt"
"""A file that the references read: how much they are beside the truth. A check has to fail unless it is 0."""


@dataclass(frozen=True)
class Kernel:
    """A kernel of the project: the name is that of its file, too, and the language that of `BODIES` or `FOR_GPUS`.

    Its sources give the digits from the tens on. The units are the definition's own.
    """

    name: str
    language: str
    sources: tuple[str, ...]

    @property
    def file(self) -> str:
        """Its definition file."""
        return f"{PROJECT}/kernels/{self.name}.py"

    @property
    def is_for_gpus(self) -> bool:
        """Whether it is not called here; its PTX tells what it adds."""
        return self.language in FOR_GPUS

    @property
    def arch(self) -> str:
        """What it is compiled for on demand, if that is not this machine's CPU. Triton has PTX of virtual ones only."""
        return "compute_80" if self.language == "triton" else "sm_80" if self.is_for_gpus else ""

    @property
    def known(self) -> dict[str, Source]:
        """The sources by name, from the tens on."""
        if self.is_for_gpus:
            return {name: FOR_GPUS[self.language][name] for name in self.sources}
        return {name: OF_KERNELS[name](self.name) if name in OF_KERNELS else PYTHON[name] for name in self.sources}

    @property
    def places(self) -> tuple[str, ...]:
        """All files that may have a digit of it."""
        return (self.file, *(place for source in self.known.values() for place in source.places))

    def digits(self, state: State, called: bool = True) -> dict[str, int | None] | None:
        """The digit of each source for a call, or for ``compile()``; None: there is no such kernel."""
        if self.file not in state:
            return None
        digits: dict[str, int | None] = {"own": state[self.file].digit}
        digits |= {name: source.digit(state) for name, source in self.known.items()}
        if not called or not _builds_for_tables(state):
            digits |= {name: 0 for name, source in self.known.items() if source.called}
        if self.language in IN_CUDA:
            digits["setting"] = state[SETTINGS].digit
        return digits

    def expected(self, state: State, called: bool = True) -> int | None:
        """What it adds; None: it cannot be compiled."""
        digits = self.digits(state, called) or {"": None}
        return None if None in digits.values() else number_of(digits)

    def files(self, state: State, strict: bool) -> dict[str, bytes]:
        """Its files but for those of the sources; strict: it declares what it reads."""
        if self.file not in state:
            return {}
        own, sources = state[self.file], self.known
        padding = "# a comment\n" * own.padding
        if self.language in IN_CUDA:
            values = ["OWN", *(source.value for source in sources.values()), "SETTING"]
            offset = " + ".join(f"{10**place} * {value}" for place, value in enumerate(values))
            includes = "".join(f"{source.before}\n" for source in sources.values())
            flags = ", ".join(source.option for source in sources.values() if source.option)
            code = includes + SOURCE.format(name=self.name, offset=offset)
            source = f'"""{code}"""' if self.language == "text" else f'"{self.name}.cu"'
            definition = CUDA_DEFINITION.format(
                name=self.name, own=own.digit, folders=FOLDERS, flags=flags, source=source
            )
            files = {self.file: (padding + BEGIN + definition).encode()}
            return files if self.language == "text" else files | {f"{PROJECT}/kernels/{self.name}.cu": code.encode()}
        make = self._in_triton if self.language == "triton" else self._definition
        return {self.file: (padding + BEGIN + make(own.digit, strict)).encode()}

    def _in_triton(self, own: int, strict: bool) -> str:
        sources = self.known.values()
        values = ["OWN", *(source.value for source in sources)]
        patterns = [pattern for source in sources for pattern in source.reads]
        before = "".join(f"{source.before}\n" for source in sources)
        return before + TRITON_DEFINITION.format(
            name=self.name,
            own=own,
            offset=" + ".join(f"{10**place} * {value}" for place, value in enumerate(values)),
            parameters="".join(f"{source.parameter}, " for source in sources if source.parameter),
            passed="".join(f"{source.option}, " for source in sources if source.option),
            declared=f"reads={patterns}" if strict else "",
        )

    def _definition(self, own: int, strict: bool) -> str:
        sources = self.known.values()
        values = [str(own), *(source.value for source in sources)]
        offset = " + ".join(f"{10**place} * {value}" for place, value in enumerate(values))
        inside = "\n".join(textwrap.dedent(source.inside).strip() for source in sources)
        parameters = ", ".join(source.parameter for source in sources if source.parameter)
        patterns = ["../error.txt", *dict.fromkeys(pattern for source in sources for pattern in source.reads)]
        declared = [f"reads={patterns}"] if strict else []
        options = ", ".join([*declared, *(source.option for source in sources if source.option)])
        return (
            ("" if self.language == "te" else "from tvm.script import tirx as T\n")
            + "".join(f"{source.before}\n" for source in sources)
            + f"\ndef offset_of({parameters}):\n{textwrap.indent(inside, '    ')}\n    return {offset}\n\n\n"
            + f'@kernel(outputs=["y"], targets=["llvm"], {options})\ndef {self.name}({parameters}):\n'
            + f"    offset = offset_of({parameters})\n{BODIES[self.language]}"
            + f"\n\n@{self.name}.reference\ndef _({', '.join(filter(None, ['x', parameters]))}):\n"
            + f'    return x + offset_of({parameters}) + int((ROOT / "error.txt").read_text())\n'
        )


def _builds_for_tables(state: State) -> bool:
    """Whether the settings have the arch of the tuning tables."""
    return "v3" in _arch(state[SETTINGS])


def _arch(content: Content) -> str:
    return f"x86-64-v{2 + content.digit % 2}"


@dataclass(frozen=True)
class Model:
    """The project of a walk: its kernels, and whether they declare what they read."""

    kernels: tuple[Kernel, ...]
    strict: bool = False

    @property
    def names(self) -> list[str]:
        """The names of all sources that a kernel has."""
        return list(dict.fromkeys(name for kernel in self.kernels for name in kernel.sources))

    @property
    def sources(self) -> list[Source]:
        """These sources; some of them are there for each kernel."""
        known = {source.places: source for kernel in self.kernels for source in kernel.known.values()}
        return list(known.values())

    @property
    def places(self) -> list[str]:
        """All files with a digit."""
        places = (place for kernel in self.kernels for place in kernel.places)
        return [*dict.fromkeys(places), SETTINGS, REFERENCE]

    @property
    def uses_cuda(self) -> bool:
        """Whether a kernel is for GPUs."""
        return any(kernel.is_for_gpus for kernel in self.kernels)

    def swaps(self) -> list[tuple[str, str]]:
        """Pairs of files that may be swapped."""
        return [
            (one, other)
            for source in self.sources
            for number, one in enumerate(source.places)
            for other in source.places[:number]
        ]

    def start(self, random_: random.Random) -> dict[str, Content]:
        """What is there at first."""
        state = {kernel.file: Content(random_.randrange(10)) for kernel in self.kernels}
        for source in self.sources:
            chosen = source.places[random_.randrange(len(source.places)) :]
            state |= {place: Content(random_.randrange(10)) for place in chosen}
        return {**state, SETTINGS: Content(random_.randrange(10)), REFERENCE: Content(0)}

    def files(self, state: State) -> dict[str, bytes]:
        """Path in the repository -> content, for a state."""
        files = {f"{PROJECT}/SConstruct": SCONSTRUCT, SETTINGS: self._settings(state[SETTINGS])}
        files |= PYTHON_FIXED | {REFERENCE: text(state[REFERENCE])}
        for kernel in self.kernels:
            files |= TRITON_FIXED if kernel.language == "triton" else CUDA_FIXED if kernel.is_for_gpus else {}
        for kernel in self.kernels:
            files |= kernel.files(state, self.strict)
        for source in self.sources:
            files |= {place: source.content(state[place]) for place in source.places if place in state}
        files.pop(VARIABLE, None)
        return files

    def environment(self, state: State) -> dict[str, str]:
        """The variables that definitions see."""
        return {VARIABLE[1:]: str(state[VARIABLE].digit)} if VARIABLE in state else {}

    def links(self) -> set[str]:
        """The files that are links; their content is where they lead to."""
        return {place for source in self.sources if source.content is link for place in source.places}

    def _settings(self, content: Content) -> bytes:
        targets = ["llvm", *(["cuda"] if self.uses_cuda else [])]
        lines = ["# a comment"] * content.padding + [
            "[tool.kernelwright]",
            f"targets = {targets}",
            f'archs = ["{_arch(content)}", "sm_80"]',
            f'nvcc_flags = ["-DSETTING={content.digit}"]',
            *([f'environment = ["{VARIABLE[1:]}"]'] if "environment" in self.names else []),
        ]
        return "".join(f"{line}\n" for line in lines).encode()

    def expected(self, state: State) -> dict[str, int | None]:
        """What each kernel adds. If one has an error, that is None."""
        return {kernel.name: kernel.expected(state) for kernel in self.kernels if kernel.file in state}

    def checks(self, state: State) -> bool:
        """Whether ``scons check`` succeeds: it builds no kernel without a reference, as those for GPUs are."""
        there = [kernel for kernel in self.kernels if kernel.file in state]
        checked = [kernel for kernel in there if not kernel.is_for_gpus]
        fails = not there or any(kernel.expected(state) is None for kernel in checked)
        return not fails and (state[REFERENCE].digit == 0 or not checked)


def random_model(random_: random.Random, leave_out: frozenset[str]) -> Model:
    """A project with two or three kernels, without some sources and languages."""
    languages = [language for language in BODIES if language not in leave_out]
    known = [name for name in (*PYTHON, *OF_KERNELS) if name not in leave_out]
    kernels = []
    for number in range(2):
        language = random_.choice(languages)
        sources = random_.sample(known, min(3, len(known)))
        if {"table", "recorded"} <= {*sources}:
            sources.remove("recorded")  # tables name configs
        kernels.append(Kernel(f"{language}{number}", language, tuple(sources)))
    if random_.random() < 0.6 and (languages := [language for language in FOR_GPUS if language not in leave_out]):
        language = random_.choice(languages)
        known = [name for name in FOR_GPUS[language] if name not in leave_out]
        kernels.append(Kernel(f"{language}2", language, tuple(random_.sample(known, min(3, len(known))))))
    return Model(tuple(kernels), strict=random_.random() < 0.3)


@dataclass
class Checkout:
    """A repository with the project in it, in some state, and the states before."""

    folder: Path
    model: Model
    state: State = field(default_factory=dict)
    history: list[State] = field(default_factory=list)

    @property
    def project(self) -> Path:
        """The folder of the project."""
        return self.folder / PROJECT

    def become(self, state: State, keep_times: bool = False) -> None:
        """Write what a state has, and remove what it does not have; edited files may keep their times."""
        before = self.model.files(self.state) if self.state else {}
        after = self.model.files(state)
        for name in before.keys() - after.keys():
            (self.folder / name).unlink()
        for name, content in after.items():
            if before.get(name) != content:
                self._write(name, content, keep_times)
        self.history.append(self.state or state)
        self.state = state

    def _write(self, name: str, content: bytes, keep_times: bool) -> None:
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        times = (path.lstat().st_atime_ns, path.lstat().st_mtime_ns) if keep_times and os.path.lexists(path) else None
        if name in self.model.links():
            path.unlink(missing_ok=True)
            path.symlink_to(content.decode())
            return
        path.write_bytes(content)
        if times is not None:
            os.utime(path, ns=times)

    def rename(self, old: str, new: str) -> None:
        """Move a file to the place of another, with its times."""
        (self.folder / new).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / old).rename(self.folder / new)
