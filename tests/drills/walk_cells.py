"""What the cells of a walk's notebook bind, and how a definition in a cell uses it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CellSource:
    """A global of the notebook that gives a definition a digit: the cell that binds it, and how it is used.

    Others are further cells that change the digit.
    """

    bind: str
    value: str
    others: tuple[str, ...] = ()

    @property
    def ways(self) -> tuple[str, ...]:
        """All cells that change it."""
        return (self.bind, *self.others)


@dataclass
class Cell:
    """A global, and its digit now."""

    source: CellSource
    digit: int


CELLS: dict[str, CellSource] = {
    "plain": CellSource("PLAIN = {digit}", "PLAIN"),
    "list": CellSource("LIST = [{digit}]", "LIST[0]", ("LIST[0] = {digit}",)),
    "dict": CellSource("opts = {{'v': {digit}}}", "opts['v']", ("opts['v'] = {digit}",)),
    "nested": CellSource("deep = {{'v': [({digit},)]}}", "deep['v'][0][0]", ("deep['v'][0] = ({digit},)",)),
    "array": CellSource("ARRAY = np.array([{digit}])", "int(ARRAY[0])", ("ARRAY[0] = {digit}",)),
    "scalar": CellSource("SCALAR = np.int64({digit})", "int(SCALAR)"),
    "class": CellSource("class Config:\n    v = {digit}", "Config.v", ("Config.v = {digit}",)),
    "instance": CellSource(
        "class Held:\n    def __init__(self, v):\n        self.v = v\nheld = Held({digit})",
        "held.v",
        ("held = Held({digit})", "held.v = {digit}"),
    ),
    "frozen": CellSource(
        "import dataclasses\n@dataclasses.dataclass(frozen=True)\nclass Frozen:\n    v: int\nfrozen = Frozen({digit})",
        "frozen.v",
        ("frozen = Frozen({digit})",),
    ),
    "enum": CellSource("import enum\nclass Kind(enum.Enum):\n    V = {digit}\nkind = Kind.V", "kind.value"),
    "partial": CellSource("import functools\npartial = functools.partial(int, '{digit}')", "partial()"),
    "function": CellSource("def function():\n    return {digit}", "function()"),
    "default": CellSource("def default(v={digit}):\n    return v", "default()", ("default.__defaults__ = ({digit},)",)),
    "method": CellSource(
        "V1 = {digit}\nclass Method:\n    def get(self):\n        return V1\nmethod = Method()",
        "method.get()",
        ("V1 = {digit}",),
    ),
    "static": CellSource(
        "V2 = {digit}\nclass Static:\n    @staticmethod\n    def get():\n        return V2",
        "Static.get()",
        ("V2 = {digit}",),
    ),
    "cached": CellSource(
        "import functools\nV3 = {digit}\n@functools.lru_cache\ndef cached():\n    return V3",
        "cached()",
        ("V3 = {digit}\ncached.cache_clear()",),
    ),
    "functions": CellSource(
        "V4 = {digit}\nfunctions = {{'f': lambda: V4}}",
        "functions['f']()",
        ("V4 = {digit}", "functions['f'] = lambda: {digit}"),
    ),
    "module": CellSource(
        "import types\nmodule = types.ModuleType('module')\n"
        "exec('V = {digit}\\ndef get():\\n    return V', module.__dict__)\nget = module.get",
        "get()",
        ("module.V = {digit}",),
    ),
    "attribute": CellSource(
        "import types\nspace = types.SimpleNamespace(a=types.SimpleNamespace(v={digit}))",
        "space.a.v",
        ("space.a.v = {digit}", "space.a = types.SimpleNamespace(v={digit})"),
    ),
    "string": CellSource("exec('STRING = {digit}')", "eval('STRING')"),
    "default argument": CellSource(
        "V5 = {digit}\ndef argument(f=lambda: V5):\n    return f()", "argument()", ("V5 = {digit}",)
    ),
    "base class": CellSource(
        "class Base:\n    v = {digit}\nclass Derived(Base):\n    pass", "Derived().v", ("Base.v = {digit}",)
    ),
    "property": CellSource(
        "V6 = {digit}\nclass Owner:\n    @property\n    def v(self):\n        return V6\nowner = Owner()",
        "owner.v",
        ("V6 = {digit}", "Owner.v = property(lambda self: {digit})"),
    ),
    "getattr": CellSource(
        "V7 = {digit}\nclass Any:\n    def __getattr__(self, name):\n        return V7\nany_ = Any()",
        "any_.whatever",
        ("V7 = {digit}",),
    ),
    "slots": CellSource(
        "class Slots:\n    __slots__ = ('v',)\nslots = Slots()\nslots.v = {digit}", "slots.v", ("slots.v = {digit}",)
    ),
    "named class": CellSource(
        "class One:\n    v = {digit}\nclass Other:\n    v = {digit}\nnamed = One()",
        "named.v",
        ("Other.v = {digit}\nnamed.__class__ = Other", "One.v = {digit}\nnamed.__class__ = One"),
    ),
    "nonlocal": CellSource(
        "def pair():\n    v = {digit}\n    def get():\n        return v\n    def put(new):\n        nonlocal v\n"
        "        v = new\n    return get, put\nget_v, put_v = pair()",
        "get_v()",
        ("put_v({digit})",),
    ),
    "closed list": CellSource(
        "def listed():\n    v = [{digit}]\n    return lambda: v[0], v\nget_listed, its_list = listed()",
        "get_listed()",
        ("its_list[0] = {digit}",),
    ),
    "globals": CellSource("V8 = {digit}", "globals()['V' + str(8)]"),
    "attrgetter": CellSource(
        "import operator, types\nwithin = types.SimpleNamespace(v={digit})\ngetter = operator.attrgetter('v')",
        "getter(within)",
        ("within.v = {digit}",),
    ),
    "deque": CellSource(
        "import collections\ndeque = collections.deque([{digit}])", "deque[0]", ("deque[0] = {digit}",)
    ),
    "bytearray": CellSource("raw = bytearray([{digit}])", "raw[0]", ("raw[0] = {digit}",)),
    "view": CellSource(
        "buffer = bytearray([{digit}])\nview = memoryview(buffer).toreadonly()", "view[0]", ("buffer[0] = {digit}",)
    ),
    "array view": CellSource(
        "whole = np.array([0, {digit}])\npart = whole[1:]", "int(part[0])", ("whole[1] = {digit}",)
    ),
    "context": CellSource(
        "import contextvars\ncontext = contextvars.ContextVar('context')\ntoken = context.set({digit})",
        "context.get()",
        ("token = context.set({digit})",),
    ),
    "thread": CellSource(
        "import threading\nlocal = threading.local()\nlocal.v = {digit}", "local.v", ("local.v = {digit}",)
    ),
    "weak": CellSource(
        "import weakref\nclass Target:\n    v = {digit}\ntarget = Target()\nweak = weakref.ref(target)",
        "weak().v",
        ("target.v = {digit}",),
    ),
    "variable": CellSource(
        "os_ = __import__('os')\nos_.environ['WALK_CELL'] = '{digit}'", "int(os_.environ['WALK_CELL'])"
    ),
    "file": CellSource("open('walk.txt', 'w').write('{digit}')", "int(open('walk.txt').read())"),
    "installed": CellSource("import sys\nsys.walk_value = {digit}", "sys.walk_value"),
    "dispatch": CellSource(
        "import functools\n@functools.singledispatch\ndef dispatch(v):\n    return {digit}",
        "dispatch(1.5)",
        ("dispatch.register(float)(lambda v: {digit})",),
    ),
    "iterator": CellSource("V9 = {digit}\ndef numbers():\n    yield V9", "next(numbers())", ("V9 = {digit}",)),
    "comprehension": CellSource("V10 = {digit}", "[V10 for _ in range(1)][0]"),
    "default dict": CellSource(
        "import collections\nV11 = {digit}\ndefaults = collections.defaultdict(lambda: V11)",
        "defaults.copy()['new']",
        ("V11 = {digit}",),
    ),
    "chain": CellSource(
        "import collections\nlower = {{'v': {digit}}}\nchain = collections.ChainMap({{}}, lower)",
        "chain['v']",
        ("lower['v'] = {digit}",),
    ),
    "proxy": CellSource(
        "import types\nbehind = {{'v': {digit}}}\nproxy = types.MappingProxyType(behind)",
        "proxy['v']",
        ("behind['v'] = {digit}",),
    ),
    "set": CellSource("group = {{{digit}}}", "max(group)", ("group.clear()\ngroup.add({digit})",)),
    "callable": CellSource(
        "V12 = {digit}\nclass Callable:\n    def __call__(self):\n        return V12\ncallable_ = Callable()",
        "callable_()",
        ("V12 = {digit}", "Callable.__call__ = lambda self: {digit}"),
    ),
    "random": CellSource(
        "import random\ngenerator = random.Random()\nchosen = {digit}", "chosen + 0 * generator.randrange(3)"
    ),
}
"""Name -> global; those of them whose change a call does not see are wrong results."""
