"""What ``sample.py`` may change in the code: random statements, and steps whose loss gives a wrong or an old result.

Random changes of Python are those of mutmut, which is used as a library; those of C are a short list of tokens. The
rules know what this project lives by: what is in a key, what is noted, what is looked at twice, and in which order.
Both leave out what is no bug: wording, annotations, docstrings, and what compiles to the same program.
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

SOURCES = Path("site_scons/kernelwright")
C_FILES = (".h", ".c")

NO_BUILDS = ("tests/unit/", "tests/contracts/", "tests/fuzz/")
"""Where most tests build nothing; they come first."""
TESTS_OF = {
    "backends/launcher/threads.h": "launcher_threads|launcher|launches",
    "backends/launcher/workspace.h": "launcher_threads|launcher|launches",
    "backends/launcher/tables.h": "launchers_tables|launcher_tables",
    "backends/launcher/tensormap.h": "launchers_tables|tensor_map|launcher",
    "backends/launcher/cutedsl.h": "cutedsl|launcher",
    "backends/launcher/device.h": "launchers_devices|launcher",
    "backends/launcher/memory.h": "launchers_devices|launcher",
    "backends/launcher/xla.h": "jax",
    "backends/launcher/order.h": "order|launcher",
    "backends/launcher/python": "cython|order|torch|launchers",
    "backends/launcher": "launcher|order|library_emitter",
    "frontends/torch/include": "operators_for_torch",
    "testing": "backend_launches|launchers",
}
"""Part of the code in C -> what is in the names of the files in `NO_BUILDS` that call it, the best first."""
TESTS_OF_RULES = {
    "a field is left out of a key": "keys|stage_code|assembly",
    "a lock or a flush is dropped": "locks",
}
"""The same of changes by some rules: these tests look at the code, and do not run it."""


@dataclass(frozen=True)
class Change:
    """Some characters of a file that a text takes the place of; ``path`` is below `SOURCES`.

    ``function`` is a qualified name; that of a class or a constant if the place is in no function.
    """

    path: str
    function: str
    start: int
    end: int
    text: str
    rule: str


@dataclass(frozen=True)
class Scope:
    """A function, a class without its functions, or a constant; ``statements`` are its own, in order."""

    name: str
    node: ast.stmt
    statements: tuple[ast.stmt, ...]


def texts_of(folder: Path) -> dict[str, str]:
    """The files below a folder that may be changed, by their paths."""
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".py", *C_FILES))
    return {path.relative_to(folder).as_posix(): path.read_text(encoding="utf-8") for path in files}


class Source:
    """A file of Python with its syntax tree."""

    def __init__(self, path: str, text: str) -> None:
        self.path, self.text, self.tree = path, text, ast.parse(text)
        self._lines = [0]
        for line in text.encode().splitlines(keepends=True):
            self._lines.append(self._lines[-1] + len(line))
        self._is_ascii = text.isascii()

    def offset(self, line: int, column: int) -> int:
        place = self._lines[line - 1] + column
        return place if self._is_ascii else len(self.text.encode()[:place].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno or 0, node.end_col_offset or 0)

    def code(self, node: ast.expr | ast.stmt) -> str:
        start, end = self.span(node)
        return self.text[start:end]

    def change(self, scope: Scope, node: ast.expr | ast.stmt, text: str, rule: str) -> Change:
        return Change(self.path, scope.name, *self.span(node), text, rule)

    def scopes(self) -> Iterator[Scope]:
        """All functions, and what is in none: fields of classes, and constants."""
        yield from self._scopes(self.tree.body, "")

    def _scopes(self, body: Iterable[ast.stmt], prefix: str) -> Iterator[Scope]:
        for node in body:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield Scope(prefix + node.name, node, tuple(statements(node.body)))
                yield from self._scopes(statements(node.body, functions=True), f"{prefix}{node.name}.<locals>.")
            elif isinstance(node, ast.ClassDef):
                yield Scope(prefix + node.name, node, ())
                yield from self._scopes(node.body, f"{prefix}{node.name}.")
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value and not prefix:
                target = node.targets[0] if isinstance(node, ast.Assign) else node.target
                yield Scope(ast.unparse(target), node, (node,))


def statements(body: Iterable[ast.stmt], functions: bool = False) -> Iterator[ast.stmt]:
    """The statements of a body and of the blocks in it, without those of functions; or these functions."""
    for node in body:
        is_other = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
        if is_other == functions and not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            yield node
        for block in () if is_other else blocks(node):
            yield from statements(block, functions)


def blocks(node: ast.stmt) -> list[list[ast.stmt]]:
    """The blocks of a compound statement."""
    found = [getattr(node, name, []) for name in ("body", "orelse", "finalbody")]
    found += [part.body for name in ("handlers", "cases") for part in getattr(node, name, [])]
    return [block for block in found if block]


def is_program(text: str, original: str) -> bool:
    """Whether a changed text of Python compiles, to something else."""
    try:
        compile(text, "mutant", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return ast.dump(ast.parse(text)) != ast.dump(ast.parse(original))


# ---- random changes of Python ----


def random_changes(source: Source, scope: Scope, statement: ast.stmt) -> list[Change]:
    """What mutmut would change in a statement, of a compound one in its head."""
    import libcst as cst
    from libcst.metadata import MetadataWrapper, PositionProvider
    from mutmut.mutation.mutators import mutation_operators

    start, _ = source.span(statement)
    text = " " * statement.col_offset + source.code(statement)
    if isinstance(statement, ast.If) and text.lstrip().startswith("elif"):
        text, start = text.replace("elif", "if", 1), start + 2
    last = min((block[0].lineno for block in blocks(statement)), default=(statement.end_lineno or 0) + 1)
    try:
        wrapper = MetadataWrapper(cst.parse_module(textwrap.dedent(text)))
    except cst.ParserSyntaxError:
        return []
    places = wrapper.resolve(PositionProvider)
    lines = [start] + [source.offset(n, statement.col_offset) for n in range(statement.lineno + 1, last)]
    changes = []
    for old, raised in mutable(wrapper.module):
        place = places[old]
        if place.end.line > len(lines):
            continue
        for kind, operator in mutation_operators:
            for new in operator(old) if isinstance(old, kind) else ():
                code = wrapper.module.code_for_node(new)
                if raised and isinstance(old, cst.Call | cst.SimpleString | cst.BinaryOperation):
                    continue
                if not is_wording(wrapper.module.code_for_node(old), code):
                    span = (lines[p.line - 1] + p.column for p in (place.start, place.end))
                    changes.append(Change(source.path, scope.name, *span, code, "random"))
    return changes


def mutable(node: object, raised: bool = False) -> Iterator[tuple[object, bool]]:
    """A node of libcst and those in it that may be changed, each with whether it is part of what is raised."""
    import libcst as cst

    assert isinstance(node, cst.CSTNode)
    if isinstance(node, cst.Annotation | cst.Decorator | cst.Import | cst.ImportFrom | cst.Assert):
        return
    if isinstance(node, cst.Expr) and isinstance(node.value, cst.BaseString):
        return
    called = getattr(node, "func", None) if isinstance(node, cst.Call) else None
    called = called.attr if isinstance(called, cst.Attribute) else called
    name = called.value if isinstance(called, cst.Name) else ""
    raised = raised or isinstance(node, cst.Raise) or name.endswith("Error")
    if isinstance(node, cst.FormattedString) and raised:
        return
    if name not in ("len", "isinstance", "cast"):
        yield node, raised
    for child in node.children:
        yield from mutable(child, raised)


def is_wording(old: str, new: str) -> bool:
    """Whether a change is one of words that are only read, or of how a codec is spelt."""
    text = re.sub(r"^[A-Z_]+ = ", "", old)
    return text[:1] + text[-1:] in ('""', "''") and (" " in text or text.lower() == new.lower() == '"utf-8"')


# ---- rules for Python ----

NOTES = re.compile(r"(^|_)(add|append|depend|extend|look|note|read|record|rely|remember|see|seen|update|watch)")
LOCKS = re.compile(r"(?<!B)lock|exclusive|guard")
DIGESTS = re.compile(r"digest|canonical|sha256|identity|fingerprint|signature|stamp|(^|_)key")
STAMPS = re.compile(r"stamp|\bstat\b|mtime|_ns\(|digest|fsync|flush|\.replace\(|rename\(|unlink|write|publish|note")
QUIET = re.compile(r"^(?:(?:self\._?)?(?:progress|stream)\.|sys\.std|gc\.|print|warnings|logg)")
SAID = re.compile(r"(?:^|[._])(?:note|warn)(?:_once)?\(f?['\"]")
MADE = re.compile(r"[^=]* = (?:\w+\.)*(?:[A-Z]\w*|replace|hashlib\.\w+|re\.\w+)\(")
RELEASES = re.compile(r"(?:^|_)(?:REVISION|FORM)$")
DEFAULTS = re.compile(r"^(stream|device|device_id|index|arch|target)$")


def requests(sources: Iterable[Source]) -> set[str]:
    """The dataclasses that are in a key: those that have a field aside, and those that are fields of one."""
    classes = {n.name: n for source in sources for n in ast.walk(source.tree) if isinstance(n, ast.ClassDef)}
    found: set[str] = set()
    new = {name for name, node in classes.items() if any("ASIDE" in ast.unparse(field) for field in fields(node))}
    while new - found:
        found |= new
        asked = (
            ast.unparse(f.annotation) for name in new for f in fields(classes[name]) if "ASIDE" not in ast.unparse(f)
        )
        words = {word for annotation in asked for word in re.findall(r"\w+", annotation)}
        new = {word for word in words & set(classes) if fields(classes[word])}
    return found


def fields(node: ast.ClassDef) -> list[ast.AnnAssign]:
    """The fields of a frozen dataclass; of another class none."""
    is_frozen = any("frozen=True" in ast.unparse(decorator) for decorator in node.decorator_list)
    return [n for n in node.body if isinstance(n, ast.AnnAssign)] if is_frozen else []


def rule_changes(source: Source, scope: Scope, in_keys: set[str]) -> Iterator[Change]:
    """What rules change in a function, or in the fields of a class."""
    if isinstance(scope.node, ast.ClassDef):
        if scope.name in in_keys:
            yield from fields_aside(source, scope)
        return
    if scope.statements and not isinstance(scope.node, ast.Assign | ast.AnnAssign):
        yield from swapped(source, scope)
    for statement in scope.statements:
        heads = [n for n in ast.iter_child_nodes(statement) if isinstance(n, ast.expr | ast.withitem | ast.keyword)]
        yield from whole_statement(source, scope, statement)
        for node in (found for head in heads for found in ast.walk(head)):
            yield from expression(source, scope, node, isinstance(statement, ast.If | ast.While))


def fields_aside(source: Source, scope: Scope) -> Iterator[Change]:
    assert isinstance(scope.node, ast.ClassDef)
    for node in fields(scope.node):
        if "ASIDE" not in ast.unparse(node) and "ClassVar" not in ast.unparse(node.annotation):
            value = source.code(node.value) if node.value else ""
            if value.startswith("_"):
                continue  # a function makes the field
            default = value[len("field(") : -1] if value.startswith("field(") else f"default={value}" if value else ""
            made = f"__import__('dataclasses').field({default}{', ' if default else ''}metadata={{'aside': True}})"
            head = f"{source.code(node.target)}: {source.code(node.annotation)}"
            yield source.change(scope, node, f"{head} = {made}", "a field is left out of a key")


def swapped(source: Source, scope: Scope) -> Iterator[Change]:
    """Two steps in the other order, where that is possible and one of them is a stamp, a write or a note.

    What is shown may come in any order, and so may what only makes an object. So may files in a scratch folder, which
    nobody sees until all of them are there.
    """
    bodies = [getattr(scope.node, "body", []), *(b for s in scope.statements for b in blocks(s))]
    for first, second in (pair for body in bodies for pair in pairwise(body)):
        if not all(isinstance(n, ast.Expr | ast.Assign) and isinstance(n.value, ast.Call) for n in (first, second)):
            continue
        one, other = source.code(first), source.code(second)
        if any(QUIET.search(code) or MADE.match(code) or re.search(r"\bscratch\b", code) for code in (one, other)):
            continue
        bound = {n.id for n in ast.walk(first) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)}
        used = {n.id for n in ast.walk(second) if isinstance(n, ast.Name)}
        if not bound & used and (STAMPS.search(one) or STAMPS.search(other)):
            (start, end), (begin, stop) = source.span(first), source.span(second)
            text = other + source.text[end:begin] + one
            yield Change(source.path, scope.name, start, stop, text, "two steps are swapped")


def whole_statement(source: Source, scope: Scope, node: ast.stmt) -> Iterator[Change]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        called = ast.unparse(node.value.func).rpartition(".")[2]
        if QUIET.search(ast.unparse(node)) or SAID.search(ast.unparse(node)) or is_memo(source.code(scope.node), node):
            return
        is_lock = called in ("fsync", "flush", "flock", "sync", "acquire")
        what = "a lock or a flush" if is_lock else "a dependency or a note" if NOTES.search(called) else "a step"
        yield source.change(scope, node, "pass", f"{what} is dropped")
        if "LOCK_EX" in (code := source.code(node)):
            yield source.change(scope, node, code.replace("LOCK_EX", "LOCK_SH"), "a lock or a flush is dropped")
    if isinstance(node, ast.While):
        start, _ = source.span(node)
        yield Change(source.path, scope.name, start, start + len("while"), "if", "a look is dropped")
    if isinstance(node, ast.With):
        for item in node.items:
            if LOCKS.search(ast.unparse(item.context_expr)) and item.optional_vars is None:
                none = "__import__('contextlib').nullcontext()"
                yield source.change(scope, item.context_expr, none, "a lock or a flush is dropped")
    is_look = isinstance(node, ast.If) and not node.orelse and len(node.body) == 1
    if is_look and isinstance(node.body[0], ast.Return | ast.Raise | ast.Continue):  # type: ignore[attr-defined]
        yield source.change(scope, node.test, "False", "a look is dropped")  # type: ignore[attr-defined]


def is_memo(function: str, node: ast.Expr) -> bool:
    """Whether a statement only notes what is not to be done again, as ``if x not in done: ...; done.add(x)``."""
    found = re.fullmatch(r"(.+)\.add\((.+)\)", ast.unparse(node))
    return found is not None and f"{found[2]} not in {found[1]}" in function


def expression(source: Source, scope: Scope, node: ast.AST, is_test: bool) -> Iterator[Change]:
    """What is changed in an expression; ``is_test``: it is that of an ``if`` or a ``while``."""
    if isinstance(node, ast.BoolOp) and (isinstance(node.op, ast.And) or is_test):
        for value in node.values:
            rest = [source.code(other) for other in node.values if other is not value]
            word = "and" if isinstance(node.op, ast.And) else "or"
            yield source.change(scope, node, f"({f' {word} '.join(rest)})", "a condition is widened")
    if isinstance(node, ast.Call) and not ast.unparse(node.func).endswith("Thread"):
        for keyword in node.keywords:
            if keyword.arg and DEFAULTS.match(keyword.arg) and not isinstance(keyword.value, ast.Constant):
                none = "0" if keyword.arg in ("device_id", "index") else "None"
                yield source.change(scope, keyword.value, none, "a stream or a device is the default")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv) and isinstance(node.left, ast.UnaryOp):
        one, other = source.code(node.left), source.code(node.right)
        yield source.change(scope, node, f"(-(-({one}) // {other}))", "a size is rounded the other way")
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Eq | ast.NotEq):
        for side in (node.left, node.comparators[0]):
            yield from elements(source, scope, side, "a part of a comparison is left out")
    name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
    for argument in node.args if isinstance(node, ast.Call) and name in ("max", "min") and len(node.args) == 2 else ():
        yield source.change(scope, node, source.code(argument), "a part of a comparison is left out")
    if isinstance(node, ast.Call) and DIGESTS.search(name.rpartition(".")[2]):
        for argument in node.args:
            yield from elements(source, scope, argument, "a part of a digest is left out")
    if DIGESTS.search(scope.name.rpartition(".")[2]) and isinstance(node, ast.Tuple | ast.List | ast.Dict):
        yield from elements(source, scope, node, "a part of a digest is left out")


def elements(source: Source, scope: Scope, node: ast.expr, rule: str) -> Iterator[Change]:
    """Each element of a tuple, a list or a dictionary replaced by nothing; not wording, nor what a release changes."""
    is_list = isinstance(node, ast.Tuple | ast.List) and len(node.elts) > 1 and isinstance(node.ctx, ast.Load)
    for item in node.elts if is_list else node.values if isinstance(node, ast.Dict) else ():  # type: ignore[attr-defined]
        if not (RELEASES.search(source.code(item)) or is_wording(source.code(item), "None")):
            yield source.change(scope, item, "*()" if isinstance(item, ast.Starred) else "None", rule)


# ---- C ----

C_FUNCTION = re.compile(
    r"^(?:KW_\w+ |static |cdef )[^;{}=]*?\b(\w+)\([^;{}]*\)[^;{}()]*\{\n?(.*?)(?:^\}|(?<= )\}$)", re.M | re.S
)
C_NUMBER = re.compile(r"(?<![\w.])(\d+)(?![\w.])")
C_STEP = re.compile(
    r"(?<=[\n;{)] )[ \t]*(?!return|else|if|for|while|do|goto)"
    r"(?:[\w>.*\[\]-]+ (?:=|[-+|&]=) [^;{}]*|\*?\w+(?:(?:->|\.)\w+)*\([^;{}]*\));"
)
C_TOKENS = {
    **{" < ": " <= ", " <= ": " < ", " > ": " >= ", " >= ": " > ", " == ": " != ", " != ": " == "},
    **{" && ": " || ", " || ": " && ", " + ": " - ", " - ": " + ", " * ": " + ", "++": "--"},
}
C_RANDOM = (
    *((re.compile(re.escape(old)), new) for old, new in C_TOKENS.items()),
    (re.compile(r"(?<=return )[^;(]+(?=;)"), "0"),
    (re.compile(r"(?<=return )(?=[a-z][^;]*;)"), "!"),
    (re.compile(r"\bif \((?=[^&|;{}]*\) )"), "if (!"),
)
C_SWAPPED = re.compile(r"(?<=\n)( *)(atomic_\w+\([^;{}]*\);)\n\1((?!for|return)[^;{}\n]*;)")
C_OPERAND = r"(?:[^&|;{}()]|\([^&|;{}()]*\))+"
C_RULES = (
    ("a condition is widened", re.compile(rf" && {C_OPERAND}(?=\)|&&)"), ""),
    ("a condition is widened", re.compile(rf" \|\| {C_OPERAND}(?=\)|\|\|)"), ""),
    ("a look is dropped", re.compile(rf"(?<=\bif \(){C_OPERAND}(?=\) (?:return|continue|break|goto))"), "0"),
    ("a stream or a device is the default", re.compile(r"(?<=, )(?:\w+(?:->|\.))?stream(?=[,)])"), "NULL"),
    ("a stream or a device is the default", re.compile(r"\b\w+->device(?:\.device_id)?(?=[,;)])"), "0"),
    ("a size is rounded down", re.compile(r" \+ [\w.>-]+ - 1(?=\) /)"), ""),
)  # fmt: skip


def c_functions(text: str) -> Iterator[tuple[str, int, int]]:
    """Name, begin and end of the body of each function."""
    for found in C_FUNCTION.finditer(text):
        yield found[1], found.start(2), found.end(2)


def c_changes(path: str, text: str, rules: bool) -> Iterator[Change]:
    """What random changes, or rules, make of a file of C."""
    comments = [found.span() for found in re.finditer(r"/\*.*?\*/|\"(?:[^\"\\\n]|\\.)*\"|^#[^\n]*", text, re.M | re.S)]
    for name, begin, end in c_functions(text):
        found = [(place, "", "a step is dropped" if rules else "random") for place in C_STEP.finditer(text, begin, end)]
        kinds = C_RULES if rules else tuple(("random", *pair) for pair in C_RANDOM)
        found += [(place, new, rule) for rule, pattern, new in kinds for place in pattern.finditer(text, begin, end)]
        if rules:
            swaps = C_SWAPPED.finditer(text, begin, end)
            found += [(place, place.expand(r"\1\3\n\1\2"), "two steps are swapped") for place in swaps]
        else:
            found += [(place, str(int(place[1]) + 1), "random") for place in C_NUMBER.finditer(text, begin, end)]
        for place, new, rule in found:
            if not any(first < place.end() and place.start() < last for first, last in comments):
                step = ";" if place[0].endswith(";") and not new else new
                yield Change(path, name, place.start(), place.end(), step, rule)


def occurrences(function: str, old: str, new: str, texts: Mapping[str, str]) -> list[Change]:
    """Where something is in the functions of a (qualified) name in any of these files, with what takes its place."""
    return [
        Change(path, function, start + place.start(), start + place.end(), new, "planted")
        for path, text in texts.items()
        if old in text and function.rpartition(".")[2] in text
        for start, end in spans(path, text, function)
        for place in re.finditer(re.escape(old), text[start:end])
    ]


def spans(path: str, text: str, function: str) -> list[tuple[int, int]]:
    """Begin and end of the functions of a name, or of a class or a constant, in a file."""
    if not path.endswith(".py"):
        return [(start, end) for name, start, end in c_functions(text) if name == function]
    source = Source(path, text)
    return [source.span(scope.node) for scope in source.scopes() if scope.name == function]
