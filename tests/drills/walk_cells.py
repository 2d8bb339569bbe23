"""What the cells of a walk's notebook bind, and how a definition in a cell uses it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CellSource:
    """A global of the notebook that gives a definition a digit.

    Arguments:
        bind: the cell that binds it.
        value: the expression in the definition.
        others: further cells that change its digit.
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
}
"""Name -> global; those of them whose change a call does not see are wrong results."""
