"""An edit of anything counts for each driver, and what it has nothing to do with is not made again.

A call on demand may be slow, and is never old: each row of the table in the docs, in many ways. A new kind of edit is a
line of a table here.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from support.demand import Demand
from support.project import ROOT, Project

PAGE = ROOT / "docs/on-demand.md"

HEADER = "| what changes | a call | `compile` | a build |"

AGAIN = "yes, by running the definition each time"


def rows() -> dict[str, tuple[str, str, str]]:
    """The table: what changes -> who sees it."""
    lines = PAGE.read_text().partition(HEADER)[2].splitlines()[2:]
    listed = [line.strip("| ").split(" | ") for line in lines[: lines.index("")]]
    return {what: (call, compiled, built) for what, call, compiled, built in listed}


PLAIN = "a number, a text or a tuple of these that is a global variable, or is in the function around the definition"
BEHIND = "such a value that is an attribute of a module, or of a class"
FUNCTION = "a function of yours that the definition reaches, or what that reads, whatever module it is in"
OBJECT = (
    "a global variable that is anything else, such as a list, a dict, an array, an object, or a class that is called"
)
INSIDE = "what is inside of such an object"
STATE = "what the definition reads without a worker: files, variables of the environment, random numbers, registries"
FILES = "a definition file, or a file that it imports or reads"
FOUND = "a file or a module that was looked for in vain, a folder that is listed"
TABLES = "a tuning table, configs that were recorded"
HEADERS = "a header"
SETTINGS = "a setting in pyproject.toml"
CLOCK = "an edit with the same size and time of the file, or while something is compiled"
VARIABLES = "a variable `KERNELWRIGHT_*`"
ROOTS = "an SConstruct or a pyproject.toml that makes another folder the project"
INSTALLED = "compilers, TVM and Kernelwright itself"

INTRINSIC = """
import tvm
from tvm.s_tir import TensorIntrin
def described(factor):
    x = te.placeholder((4,), "float32", name="x")
    function = te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] * te.const(factor, "float32"), name="y")])
    return function.with_attr("factor", factor)
def register(factor):
    TensorIntrin.register("kw_f", described(factor), described(factor), override=True)
"""
"""Programs of TVM with a factor, and a registry that has one of them."""

LIVE: dict[str, dict[str, tuple[str, str, str]]] = {
    PLAIN: {
        "number": ("F = 2", "F", "F = 3"),
        "text": ("F = 'two'", "len(F) - 1", "F = 'four'"),
        "tuple": ("F = (2, (1.0, None))", "F[0]", "F = (3, (1.0, None))"),
        "kind": ("F = (1, 0.0)", "2 if isinstance(F[0], int) else 3", "F = (1.0, 0.0)"),
        "sign": ("F = 0.0", "2 if str(F) == '0.0' else 3", "F = -0.0"),
        "builtin": ("", "len('ab') if max(1, 2) == 2 else 3", "max = min"),
        "among builtins": ("import builtins\nbuiltins.KW_F = 2", "KW_F", "builtins.KW_F = 3"),
        "closure": (
            "def around():\n    n = 2\n    def get():\n        return n\n    def put():\n        nonlocal n\n"
            "        n = 3\n    return get, put\nget, put = around()",
            "get()",
            "put()",
        ),
        "annotation": (
            "from __future__ import annotations\nF = 2\ndef reads(x: F): return eval(reads.__annotations__['x'])",
            "reads(1)",
            "F = 3",
        ),
    },
    BEHIND: {
        "class": ("class C:\n    f = 2", "C.f", "C.f = 3"),
        "base": ("class B:\n    f = 2\nclass C(B):\n    pass", "C.f", "B.f = 3"),
        "module, passed on": ("import types\nm = types.ModuleType('m')\nm.f = 2", "(lambda m: m.f)(m)", "m.f = 3"),
        "module of a library": ("np.kw_f = 2", "np.kw_f", "np.kw_f = 3"),
        "class of a library": ("te.Tensor.kw_f = 2", "te.Tensor.kw_f", "te.Tensor.kw_f = 3"),
        "builtins": ("import builtins\nbuiltins.KW_F = 2", "builtins.KW_F", "builtins.KW_F = 3"),
        "imported": (
            "import types\nsys.modules['m'] = m = types.ModuleType('m')\nm.f = 2\ndef reads():\n    import m\n"
            "    return m.f",
            "reads()",
            "m.f = 3",
        ),
    },
    FUNCTION: {
        "edited": ("def h(): return 2", "h()", "def h(): return 3"),
        "lambda": ("F = 2\nh = lambda: [F for _ in 'a'][0]", "h()", "F = 3"),
        "default": ("def h(f=2): return f", "h()", "h.__defaults__ = (3,)"),
        "default function": ("F = 2\ndef g(): return F\ndef h(f=g): return f()", "h()", "F = 3"),
        "keyword": ("def h(*, f=2): return f", "h()", "h.__kwdefaults__['f'] = 3"),
        "static anew": ("class C:\n    @staticmethod\n    def h(): return 2", "C.h()", "C.h = staticmethod(lambda: 3)"),
        "class method": ("class C:\n    f = 2\n    @classmethod\n    def h(cls): return cls.f", "C.h()", "C.f = 3"),
        "method": ("F = 2\nclass C:\n    def h(self): return F\nc = C()", "c.h()", "F = 3"),
        "decorated": (
            "import functools\nF = 2\ndef d(f):\n    @functools.wraps(f)\n    def h(): return f()\n    return h\n"
            "@d\ndef h(): return F",
            "h()",
            "F = 3",
        ),
        "context": (
            "import contextlib\nF = 2\n@contextlib.contextmanager\ndef c(): yield F\ndef h():\n"
            "    with c() as f: return f",
            "h()",
            "F = 3",
        ),
        "remembers": (
            "import functools\nF = 2\n@functools.lru_cache\ndef h(): return F",
            "h()",
            "F = 3\nh.cache_clear()",
        ),
        "forgets later": (
            "import functools\nF = 2\n@functools.lru_cache\ndef h(): return F",
            "h()",
            "F = 3\nkernel(x)\nh.cache_clear()",
        ),
        "dict": ("F = 2\ndef g(): return F\nt = {'g': g}", "t['g']()", "F = 3"),
        "tuple": ("F = 2\ndef g(): return F\nt = (g,)", "t[0]()", "F = 3"),
        "partial": ("import functools\nF = 2\ndef g(a): return F\nh = functools.partial(g, 1)", "h()", "F = 3"),
        "attribute": ("def h(): return h.f\nh.f = 2", "h()", "h.f = 3"),
        "attribute later": (
            "def h():\n    g = h\n    try: return g.f\n    except AttributeError: return 2",
            "h()",
            "h.f = 3",
        ),
        "other module": (
            "import types\nm = types.ModuleType('m')\nexec('F = 2\\ndef h(): return F', vars(m))\nh = m.h",
            "h()",
            "m.F = 3",
        ),
        "autoreload": ("def h(): return 2", "h()", "def new(): return 3\nh.__code__ = new.__code__"),
        "by a made name": ("import types\nm = types.ModuleType('m')\nm.f = 2", "getattr(m, 'f'.lower())", "m.f = 3"),
        "evaluated": ("F = 2", "eval('F')", "F = 3"),
        "by all names": ("F = 2", "globals()['F']", "F = 3"),
        "by another name of eval": ("F = 2\ncount = eval", "count('F')", "F = 3"),
        "by the module of eval": ("import builtins\nF = 2", "builtins.eval('F', globals())", "F = 3"),
        "by an operator": (
            "import operator, types\nm = types.SimpleNamespace(f=2)\ndef h(): return 0\nh.m = m",
            "operator.attrgetter('m.f')(h)",
            "m.f = 3",
        ),
        "by a hint": (
            'import typing\nF = 2\ndef h(a: "typing.Literal[F]"): pass',
            "typing.get_type_hints(h)['a'].__args__[0]",
            "F = 3",
        ),
        "by a format": ("F = 2\ndef h(): pass", "int('{0.__globals__[F]}'.format(h))", "F = 3"),
        "of a library": (
            "import functools, math\nbefore = math.floor",
            "math.floor(2)",
            "math.floor = lambda a: 3\nkernel(x)\nmath.floor = functools.wraps(before)(lambda a: 3)",
        ),
        "decorated as one of a library": (
            "import functools\nF = 2\nnp.fix = functools.wraps(np.fix)(lambda a: F)",
            "np.fix(1)",
            "F = 3",
        ),
        "document": ("def h(): '2'", "(lambda g: int(g.__doc__))(h)", "h.__doc__ = '3'"),
        "annotations": ("def h(a: 2): pass", "(lambda g: g.__annotations__['a'])(h)", "h.__annotations__['a'] = 3"),
        "of a module of the same name": (
            "import types\nsys.modules['kw_p'] = types.ModuleType('kw_p')\nsys.modules['kw_p'].__path__ = []\n"
            "sys.modules['kw_p.types'] = m = types.ModuleType('kw_p.types')\nm.f = 2\n__package__ = 'kw_p'\n"
            "def h():\n    from .types import f\n    return f",
            "h()",
            "m.f = 3",
        ),
        "in a class in it": ("F = 2\ndef h():\n    class C:\n        f = F\n    return C.f", "h()", "F = 3"),
    },
    OBJECT: {
        "list": ("F = 2", "F[0] if isinstance(F, list) else F", "F = [3]"),
        "scalar": ("F = np.int64(2)", "int(F)", "F = np.int64(3)"),
        "class": (
            "class C:\n    def __init__(self): self.f = 2",
            "C().f",
            "class C:\n    def __init__(self): self.f = 3",
        ),
        "integer enum": ("import enum\nclass E(enum.IntEnum):\n    A = 2\n    B = 3\nF = E.A", "int(F)", "F = E.B"),
        "named tuple": ("import collections\nP = collections.namedtuple('P', 'f')\nF = P(2)", "F.f", "F = P(3)"),
        "partial": ("import functools\nF = functools.partial(int, 2)", "F()", "F = functools.partial(int, 3)"),
        "from a list": ("F = [2]", "F[0] if isinstance(F, list) else F", "F = 3"),
        "appears": ("", "F if 'F' in globals() else 2", "F = 3"),
        "shadows": ("", "len([1, 2])", "len = lambda a: 3"),
    },
    INSIDE: {
        "element": ("F = [2]", "F[0]", "F[0] = 3"),
        "of an array": ("F = np.full(1, 2)", "int(F[0])", "F[0] = 3"),
        "class attribute": ("class C:\n    f = 2\nF = C()", "F.f", "C.f = 3"),
        "property": (
            "v = [2]\nclass M(type):\n    f = property(lambda c: v[0])\nclass C(metaclass=M): pass",
            "C.f",
            "v[0] = 3",
        ),
        "in a tuple": ("F = ([2],)", "F[0][0]", "F[0][0] = 3"),
        "in a closure": ("def around(v):\n    return lambda: v[0]\nv = [2]\nh = around(v)", "h()", "v[0] = 3"),
        "in a default": ("v = [2]\ndef h(v=v): return v[0]", "h()", "v[0] = 3"),
        "counter": ("n = 1\ndef h():\n    global n\n    n += 1\n    return n", "min(h(), 3)", ""),
    },
    STATE: {
        "file": ("open('f', 'w').write('2')", "int(open('f').read())", "open('f', 'w').write('3')"),
        "path": (
            "import pathlib\npathlib.Path('f').write_text('2')",
            "int(pathlib.Path('f').read_text())",
            "pathlib.Path('f').write_text('3')",
        ),
        "array": ("np.save('f.npy', np.full(1, 2))", "int(np.load('f.npy')[0])", "np.save('f.npy', np.full(1, 3))"),
        "numbers": ("np.full(1, 2).tofile('n')", "int(np.fromfile('n', int)[0])", "np.full(1, 3).tofile('n')"),
        "variable": ("os.environ['F'] = '2'", "int(os.environ['F'])", "os.environ['F'] = '3'"),
        "another": ("os.environ['F'] = '2'\nfrom os import getenv", "int(getenv('F'))", "os.environ['F'] = '3'"),
        "random": (
            "import random\nrandom.seed(1)",
            "2 if random.seed(1) or random.random() else 3",
            "random.random = lambda: 0",
        ),
        "time": ("import time\nnow = time.time", "2 if now() else 3", "now = lambda: 0"),
        "buffer of NumPy": (
            "before = np.setbufsize(8192)",
            "2 if np.getbufsize() == 8192 else 3",
            "np.setbufsize(16384)",
        ),
        "pattern of Python": ("import abc\nclass A(abc.ABC): pass", "3 if isinstance(1, A) else 2", "A.register(int)"),
        "intrinsic": (INTRINSIC + "register(2)", "int(TensorIntrin.get('kw_f').desc.attrs['factor'])", "register(3)"),
        "context of passes": (
            INTRINSIC,
            "(lambda p: int(tvm.transform.Sequential([p])(tvm.IRModule({'f': described(2)}))['f'].attrs['factor']))"
            "(tvm.transform.module_pass(lambda mod, c: tvm.IRModule({'f': described(3)}), opt_level=4, name='kw'))",
            "context = tvm.transform.PassContext(opt_level=4)\ncontext.__enter__()",
        ),
        "tag of a target": (
            "import tvm\nfrom tvm.target import Target, register_tag\ndef put(n):\n"
            "    register_tag('kw/cpu', {'kind': 'llvm', 'num-cores': n}, override=True)\nput(2)",
            "int(Target('kw/cpu').attrs['num-cores'])",
            "put(3)",
        ),
        "attribute of an operator": (
            "import tvm\nfrom tvm.ir import Op, register_op_attr\nregister_op_attr('tirx.exp', 'kw.f', 2, level=90)",
            "int(Op.get('tirx.exp').get_attr('kw.f'))",
            "register_op_attr('tirx.exp', 'kw.f', 3, level=91)",
        ),
        "global function": (
            "import tvm\ndef put(n): tvm.register_global_func('kw.f', lambda: n, override=True)\nput(2)",
            "int(tvm.get_global_func('kw.f')())",
            "put(3)",
        ),
        "arguments": ("sys.argv = ['2']", "int(sys.argv[0])", "sys.argv = ['3']"),
    },
}
"""Rows of definitions of the process: name -> (text before, the expression that is multiplied with, the change)."""

ALL_AT_ONCE = '''
import linecache
from tvm import te

count = 0
x = np.ones((1, 4), "float32")

def cell(text, names):
    """Run a cell as IPython does."""
    global count
    count += 1
    name = f"/tmp/ipykernel_1/{count}.py"
    linecache.cache[name] = (len(text), None, text.splitlines(True), name)
    exec(compile(text, name, "exec", dont_inherit=True), names)

DEFINITION = """
@kw.kernel(outputs=[-1])
def times():
    def program(factor):
        x = te.placeholder((te.var("n"), 4), "float32", name="x")
        y = te.compute(x.shape, lambda i, j: x[i, j] * te.const(factor, "float32"), name="y")
        return te.create_prim_func([x, y])
    return program(EXPRESSION)
"""

def value(kernel):
    return float(array(kernel(x)).max())

old = []
for name, (before, expression, change) in scenarios:
    names = {"__name__": "__main__", "kw": kw, "te": te, "np": np, "os": os, "sys": sys, "x": x}
    cell(before + "\\n" + DEFINITION.replace("EXPRESSION", expression), names)
    kernel = names["kernel"] = names["times"]
    first = value(kernel)
    again = value(kernel) if change else 3
    cell(change, names)
    seen = [first, again, value(kernel), value(kernel), value(kernel.compile()), value(kernel)]
    expected = [2, 2 if change else 3, 3, 3, 3, 3]
    if seen != expected:
        old.append((name, seen))
assert not old, old
'''


WRITE = """
import os, time
from pathlib import Path

def write(name, text):
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)

def replace(name, old, new):
    text = Path(name).read_text()
    assert old in text
    Path(name).write_text(text.replace(old, new))

def write_unseen(name, text):
    before = os.stat(name)
    with open(name, "w") as stream:
        stream.write(text)
    os.utime(name, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (os.stat(name).st_size, os.stat(name).st_mtime_ns) == (before.st_size, before.st_mtime_ns)
"""

ONES = {
    "kernels/ones.py": """
        import os, sys
        from kernelwright import kernel, recorded
        from tvm import te
        from kernels._one import ONE

        try:
            from kernels._later import ONE as LATER
        except ImportError:
            LATER = 0
        HERE = os.path.dirname(__file__)
        BESIDE = f"{os.path.dirname(HERE)}-beside"
        sys.path.append(BESIDE)
        from kw_beside import MORE

        OWN = 1
        READ = int(open(f"{HERE}/one.txt").read()) + int(open(f"{BESIDE}/more.txt").read())
        LISTED = len(os.listdir(f"{HERE}/listed"))
        ASKED = int(os.path.exists(f"{HERE}/asked"))
        try:
            WANTED = int(open(f"{HERE}/wanted.txt").read())
        except FileNotFoundError:
            WANTED = 0


        @kernel(configs=recorded("ones.json", default=[{"plus": 0}]), outputs=["y"])
        def ones(plus):
            inside = int(open(f"{HERE}/inside.txt").read())
            value = OWN + MORE + ONE + LATER + READ + LISTED + ASKED + WANTED + inside + plus
            x = te.placeholder((te.var("n"),), "float32", name="x")
            return te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] * te.const(value, "float32"), name="y")])
        """,
    "kernels/_one.py": "ONE = +1",
    "kernels/one.txt": "1",
    "kernels/inside.txt": "1",
    "kernels/listed/first": "",
}
"""A definition file that multiplies with the number of ones that it finds, and what it reads."""

EDITS = {
    FILES: [
        ('replace("kernels/ones.py", "OWN = 1", "OWN = 11")', 15),
        ('write("kernels/_one.py", "ONE = 11")', 25),
        ('write("kernels/one.txt", "11")', 35),
        ('write("kernels/inside.txt", "11")', 45),
        ('write(f"{os.getcwd()}-beside/more.txt", "1")', 46),
        ('write(f"{os.getcwd()}-beside/kw_beside.py", "MORE = 1")', 47),
    ],
    FOUND: [
        ('write("kernels/_later.py", "ONE = 1")', 48),
        ('write("kernels/wanted.txt", "1")', 49),
        ('write("kernels/listed/second", "")', 50),
        ('write("kernels/asked", "")', 51),
    ],
    TABLES: [('write("kernels/ones.json", \'{"schema": 1, "kernels": {"ones": [{"plus": 1}]}}\')', 52)],
    SETTINGS: [('replace("pyproject.toml", "targets", "archs = [\\"x86-64-v2\\"]\\ntargets")', 52)],
    CLOCK: [
        ('write_unseen("kernels/_one.py", "ONE = 12")', 53),
        ('write_unseen("kernels/inside.txt", "12")', 54),
        ('time.sleep(2.1); call(); write_unseen("kernels/one.txt", "12")', 55),
        ('at_the_end_of_a_compile(lambda: write_unseen("kernels/one.txt", "13"))', 56),
    ],
    VARIABLES: [('os.environ["KERNELWRIGHT_ARCHS"] = "x86-64-v3"', 56)],
}
"""Rows of files -> what is done one after the other, and the number that counts then."""

BY_TESTS_OF_THEIR_OWN = {
    HEADERS: "test_headers_count_at_the_next_call_and_in_the_next_process",
    ROOTS: "test_a_project_is_looked_for_when_a_file_is_loaded",
    INSTALLED: "test_another_nvcc_counts_in_the_next_process",
}


@pytest.fixture
def demand(tmp_path: Path) -> Demand:
    """A folder that is no project."""
    return Demand(Project(tmp_path))


def test_each_row_of_the_table_has_a_scenario_and_the_other_way_round() -> None:
    assert set(rows()) == {*LIVE, *EDITS, *BY_TESTS_OF_THEIR_OWN}
    assert {row: columns[:2] for row, columns in rows().items() if "yes" not in columns[0]} == {
        ROOTS: ("when it is loaded again",) * 2,
        INSTALLED: ("in the next process",) * 2,
    }


@pytest.mark.parametrize("row", LIVE, ids=str)
def test_what_a_definition_of_the_process_has_around_it_counts_at_the_next_call(demand: Demand, row: str) -> None:
    done = demand.run(f"scenarios = {list(LIVE[row].items())!r}\n{ALL_AT_ONCE}")
    if rows()[row][0] == AGAIN:
        assert done.stderr.count("evaluates its definition again") >= len(LIVE[row]) - 3, done.stderr


@pytest.fixture
def ones(cpu_project: Project) -> Demand:
    beside = f"../{cpu_project.folder.name}-beside"
    for name, text in {**ONES, f"{beside}/more.txt": "0", f"{beside}/kw_beside.py": "MORE = 0"}.items():
        cpu_project.write(name, text)
    return Demand(cpu_project)


IN_A_PROCESS = """
from kernelwright.ondemand import watched
from kernelwright.ondemand.definition import Compilable
from kernels.ones import ones as imported
loaded, other = kw.load("kernels/ones.py").ones, kw.load("kernels/scale.py").scale
x = np.ones(2, "float32")
load = Compilable._load_job

def call():
    values = [float(array(one(x))[0]) for one in (loaded, imported)]
    assert values[0] == values[1], values
    return values[0]

def at_the_end_of_a_compile(edit):
    def loading(*arguments):
        kernel = load(*arguments)
        if Compilable._load_job is loading:
            Compilable._load_job = load
            edit()
        return kernel
    write("kernels/_one.py", "ONE = 1")
    Compilable._load_job = loading
    young, watched.COARSE_NS = watched.COARSE_NS, 0  # as if it was long after the edit
    assert [float(array(loaded(x))[0]) for _ in range(2)] == [44, 45]
    watched.COARSE_NS = young
    assert Compilable._load_job is load
    write("kernels/_one.py", "ONE = 12")

assert call() == 5
first, of_other = loaded.compile(), other.compile()
for edit, value in edits:
    exec(edit)
    assert [call(), call()] == [value, value], (edit, call(), value)
    kernel = loaded.compile()
    assert float(array(kernel(x))[0]) == value, edit
    for one in (loaded, imported):
        assert list(one._eager._choices.chosen.values())[-1].key == kernel.key, edit
    factor = int(value)
    assert f"T.float32({factor}" in loaded.lower().script() and f"T.float32({factor}" in imported.lower().script(), edit
    assert other.compile().cached or "archs" in edit.lower(), edit
assert float(array(first(x))[0]) == 5, "what was compiled before is what it was"
assert sys.modules["kernels._one"].ONE == 1, "what the process has imported stays"
"""


OUTSIDE = """
def factor(name):
    text = getattr(kw.load(f"kernels/{name}.py"), name).lower(dtype="float32").script()
    return next(number for number in "2345" if f"T.float32({number}" in text)

sys.path[:0] = ["one", "three"]
import helper
from parts import f
assert [factor(name) for name in ("one", "two", "three")] == ["2", "3", "4"], "of two of one name, each its own"
Path("three/parts/f.py").write_text("F = 5")
assert factor("three") == "5", "a package without __init__.py"
assert (sys.modules["helper"], f.F) == (helper, 4), "what the process has imported stays"
"""


def test_modules_outside_of_the_project_are_read_anew_whatever_the_process_has_imported(demand: Demand) -> None:
    top = Project(demand.project.folder / "project")
    for name, module, number in (("one", "helper", 2), ("two", "helper", 3), ("three", "parts.f", 4)):
        folder = demand.project.write(f"{name}/{module.replace('.', '/')}.py", f"F = {number}").parents["." in module]
        body = f"import sys\nsys.path.insert(0, {str(folder)!r})\nfrom {module} import F\nfactor = F"
        Demand(top).definition(name, body)
    demand.run(f"from pathlib import Path\n{OUTSIDE}".replace("kernels/", "project/kernels/"))


def test_an_edit_of_a_file_counts_at_the_next_call_and_gives_the_kernel_of_compile(ones: Demand) -> None:
    edits = [edit for row in EDITS for edit in EDITS[row]]
    ones.run(f"{WRITE}\nedits = {edits!r}\n{IN_A_PROCESS}")


def test_an_edit_of_a_file_counts_in_the_next_build(ones: Demand, monkeypatch: pytest.MonkeyPatch) -> None:
    project = ones.project
    monkeypatch.chdir(project.folder)
    seen = [edit for row in EDITS for edit in EDITS[row] if rows()[row][2] == "yes"]
    for edit, value in [("", 5), *seen]:
        if "at_the_end_of_a_compile" in edit:
            continue
        exec(f"{WRITE}\n{edit}", {"call": lambda: None})
        run = project.scons("-j2")
        printed = project.python("import demo, numpy as np\nprint(np.from_dlpack(demo.ones(np.ones(2, 'f4')))[0])")
        assert float(printed) == value, edit
        assert not edit or "archs" in edit or not [stage for stage in run.stages if "scale" in stage], edit
    assert project.scons("-j2").stages == []


def test_headers_count_at_the_next_call_and_in_the_next_process(project: Project) -> None:
    """Nothing can call the kernel here: so the first part asks what a call asks."""
    demand = Demand(project)
    inner = project.write("headers/inner.h", "#define VALUE 1\n")
    header = project.write("headers/my.h", '#include "inner.h"\n__device__ int included = VALUE;\n')
    early = header.parent / "early/my.h"
    flags = ["-isystem", str(early.parent), "-Xcompiler", f"-idirafter,{header.parent}", "-include", "my.h"]
    begin = f"""
import hashlib
from kernelwright.ondemand.eager import Choices
scale = kw.load("kernels/scale.py").scale.using(archs=["sm_80"], flags={flags})
"""
    demand.run(f"""{begin}
choices = Choices(scale)
first = choices.kernel({{"dtype": "float32"}})
assert choices.watch.settle() and choices.watch.is_current()
open("{inner}", "w").write("#define VALUE 2\\n")
assert not choices.watch.is_current() and not scale.compile(dtype="float32").cached
""")
    program = f"""{begin}
kernel = scale.compile(dtype="float32")
image = (kernel.artifacts / "dtype-float32/cuda/sm_80.cubin").read_bytes()
print(kernel.cached, hashlib.sha256(image).hexdigest())
"""
    traps = {"NVCC_APPEND_FLAGS": "-G -lineinfo", "NVCC_PREPEND_FLAGS": "-G", "CPATH": "/nowhere", "CFLAGS": "-g"}
    cached, second = demand.run(program, env=traps).stdout.split()
    assert cached == "True", "compilers do not see these variables"
    inner.write_text("#define VALUE 1\n")
    cached, first = demand.run(program).stdout.split()
    assert cached == "True" and first != second, "what was made of it before has stayed"
    project.write("headers/early/my.h", "__device__ int included = 3;\n")
    cached, third = demand.run(program, env=traps).stdout.split()
    assert cached == "False" and third not in (first, second)


def test_another_nvcc_counts_in_the_next_process(project: Project) -> None:
    demand = Demand(project)
    nvcc = project.folder / "bin/nvcc"
    program = f"""
    scale = kw.load("kernels/scale.py").scale.using(archs=["sm_80"], settings={{"nvcc": "{nvcc}"}})
    print(scale.compile(dtype="float32").cached)
    """
    for comment, cached in [("first", "False"), ("other", "False")]:  # of the same size
        project.write("bin/nvcc", f'#!/bin/sh\n# {comment}\nexec {shutil.which("nvcc")} "$@"\n').chmod(0o755)
        assert demand.run(program).stdout == f"{cached}\n"


def test_a_project_is_looked_for_when_a_file_is_loaded(cpu_project: Project) -> None:
    demand = Demand(cpu_project)
    demand.definition("times")
    demand.run("""
        def level(kernel):
            assert (array(kernel(x)) == 2).all()
            return list(kernel._eager._choices.chosen.values())[-1].key == v2.key

        x = np.ones((1, 4), "float32")
        times = kw.load("kernels/times.py").times
        v2 = times.using(archs=["x86-64-v2"]).compile()
        assert not level(times)
        open("kernels/SConstruct", "w")
        open("kernels/pyproject.toml", "w").write('[tool.kernelwright]\\ntargets = ["llvm"]\\narchs = ["x86-64-v2"]')
        assert not level(times) and times.compile().key != v2.key
        again = kw.load("kernels/times.py").times
        v2 = again.using(archs=["x86-64-v2"]).compile()
        assert level(again)
        """)


def test_what_changes_while_a_call_compiles_counts_at_the_next_one(demand: Demand) -> None:
    demand.run(
        ALL_AT_ONCE.partition("old = []")[0]
        + """
from kernelwright.ondemand.definition import Compilable
load = Compilable._load_job

def loading(*arguments):
    kernel = load(*arguments)
    Compilable._load_job = load
    names["F"] = 3
    return kernel

names = {"kw": kw, "te": te, "F": 2}
cell(DEFINITION.replace("EXPRESSION", "F"), names)
Compilable._load_job = loading
assert [value(names["times"]) for _ in range(3)] == [2, 3, 3]
"""
    )


def test_what_is_compiled_is_the_program_that_the_key_is_of(demand: Demand) -> None:
    """The definition returns another program each time; a cached kernel is the one of its program all the same."""
    program = (
        ALL_AT_ONCE.partition("old = []")[0]
        + """
names = {"kw": kw, "te": te, "n": iter(range(START, 100))}
cell(DEFINITION.replace("EXPRESSION", "next(n)"), names)
assert [value(names["times"].compile()) for _ in range(2)] == [START, START + 1]
assert [value(names["times"]) for _ in range(2)] == [START + 2, START + 3]
"""
    )
    for start in (2, 1):
        demand.run(program.replace("START", str(start)))


def test_a_source_that_is_edited_during_the_compile_is_never_taken_for_the_one_before(cpu_project: Project) -> None:
    """The file has another text when a worker executes it than when its record was read."""
    demand = Demand(cpu_project)
    demand.definition("times")
    demand.project.write("kernels/factor.py", "FACTOR = 2\n")
    demand.project.replace("kernels/times.py", "te.const(factor", "te.const(FACTOR")
    demand.project.replace("kernels/times.py", "from tvm", "from kernels.factor import FACTOR\nfrom tvm")
    demand.run("""
from pathlib import Path
x = np.ones((3, 4), "float32")
from kernelwright.ondemand.session import SESSIONS
source = Path("kernels/factor.py")
times = kw.load("kernels/times.py").times

def edited_meanwhile():
    origin = times._origin()
    source.write_text("FACTOR = 3\\n")
    return times._load(origin, {})

SESSIONS.close()
assert (array(edited_meanwhile()(x)) == 3).all(), "it is done once more"
assert (array(times.compile()(x)) == 3).all() and (array(times(x)) == 3).all()
""")


def test_what_tvmscript_reads_counts_at_the_next_call(demand: Demand) -> None:
    """Its parser reads the text of a function, with annotations that are texts, and what is in them."""
    demand.run(
        ALL_AT_ONCE.partition("old = []")[0]
        + """
SCRIPT = \"""
from tvm.script import tirx as T

@kw.kernel(outputs=["y"])
def times():
    @T.prim_func(s_tir=True)
    def main(x: T.Buffer((1, WIDTH), "float32"), y: T.Buffer((1, WIDTH), "float32")):
        for i in T.serial(WIDTH):
            with T.sblock("y"):
                j = T.axis.spatial(WIDTH, i)
                y[0, j] = x[0, j] * T.float32(FACTOR)
    return main
\"""
for first in ("", "from __future__ import annotations"):
    names = {"kw": kw, "WIDTH": 4, "FACTOR": 2}
    cell(first + SCRIPT, names)
    kernel = names["times"]
    assert [value(kernel), value(kernel)] == [2, 2]
    cell("FACTOR = 3", names)
    assert [value(kernel), value(kernel)] == [3, 3]
    cell("WIDTH = 5", names)
    with pytest.raises((TypeError, ValueError)):
        kernel(x)
    assert array(kernel(np.ones((1, 5), "float32"))).shape == (1, 5)
    assert kernel._eager._choices is not None, "all of it can be compared"
"""
    )


def test_an_edit_that_only_one_variant_sees_compiles_the_kernel_anew(demand: Demand) -> None:
    """Of a kernel with a space: its first point runs where data is only aligned to its elements, or the preferred."""
    demand.run(
        ALL_AT_ONCE.partition("old = []")[0]
        + '''
names = {"kw": kw}
cell("""
from tvm.script import tirx as T

@kw.kernel(tune=[{"block": 1}, {"block": 8}], preferred={"x86-64-v2": {"block": 8}}, outputs=["y"])
def times(block: int):
    factor = FIRST if block == 1 else SECOND

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle, y_handle: T.handle):
        x = T.match_buffer(x_handle, (64,), "float32", align=4 * block)
        y = T.match_buffer(y_handle, (64,), "float32")
        for i in T.serial(64 // block):
            for k in T.vectorized(block):
                y[i * block + k] = x[i * block + k] * T.float32(factor)

    return main
""", names)
memory = np.ones(4 * 128, "uint8")
start = -memory.ctypes.data % 64
aligned, other = (memory[at : at + 256].view("float32") for at in (start, start + 4))
aligned[:], other[-1] = 1, 1
for first, second in (2.0, 5.0), (3.0, 5.0), (3.0, 4.0), (2.0, 5.0):
    cell(f"FIRST, SECOND = {first}, {second}", names)
    times = names["times"].using(archs=["x86-64-v2"])
    for data, factor in (other, first), (aligned, second):
        assert (array(times(data)) == factor).all(), (first, second, factor)
'''
    )
