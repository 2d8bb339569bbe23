"""The declarations in C++ text after the preprocessor, and those among them that a source can reach by names.

A declaration is left out if nothing that is kept has one of the names that it declares. All declarations of a name are
kept together. So overloads stay complete, and what a name means does not change. Operators have no names of their own:
those for a type are kept with the type.

The text is not parsed as C++. It is cut at semicolons and braces, and names are taken to be declared rather too often
than too rarely. A wrong cut is an error of the compiler, and then the whole text has to be compiled.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

NAME = re.compile(r"\b[A-Za-z_]\w*")

_TOKEN = re.compile(r"""\b\d[\w.]*(?:'\w+)+|"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*'|[{}();]|^\#[^\n]*""", re.M)
_BLOCK = re.compile(r'\s*(?:extern\s*"C(?:\+\+)?"|(?:inline\s+)?namespace\b[^{]*)\s*\Z')
_NESTED = r"\((?:[^()]|\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\))*\)"
_ASIDE = re.compile(
    r"\b(?:__attribute(?:__)?|alignas|__declspec|noexcept|throw|decltype|__decltype|typeof|__typeof|__typeof__|__asm__|asm"
    rf"|sizeof|alignof|__alignof|__alignof__)\s*{_NESTED}"
    r"|\[\[[^\]]*\]\]|^\#.*",
    re.M,
)
_OF_THE_NEXT = re.compile(r"\#\s*pragma\s+(?:nv_exec_check_disable|hd_warning_disable|nv_abi)\b")
_COMPARED = re.compile(r"[<>]=|->")
_ASSIGNED = re.compile(r"(?<![=!<>])=(?!=)")
_BRACES = re.compile(r"\{[^{}]*\}")
_ANGLES = re.compile(r"<[^<>]*>")
_OPERATOR_MEMBER = re.compile(r"(\w+)\s*(?:<[^<>]*>)?\s*::\s*operator\b")
_OPERANDS = re.compile(rf"\boperator\b\s*(?:\(\s*\)|[^\w\s(]+|\w+(?:\s*\[\s*\])?|\"\"\s*\w+)\s*({_NESTED})")
_EMITTED = re.compile(r"__attribute__\s*\(\(\s*(?:device|constant|managed|shared|global)\s*\)\)")
_USED = re.compile(r"__attribute__\s*\(\(.*?\b(?:__)?(?:used|constructor|destructor)\b")
_GOES_ON = re.compile(r"\s*[;,{]")
_VALUE = re.compile(r"\w\s*\(\s*(?:[-+\d\"'&{(]|\.\d)")
_DOUBTFUL = re.compile(r"(?=.*\boperator\b)|[^{]*__attribute__\s*\(\((?:device|constant|managed)\)\)[^{]*\Z", re.S)
_TEMPLATE = re.compile(r"\s*template\s*<(?!\s*>)[^{]*__attribute__\s*\(\((?:global|device|constant|managed)\)\)")
_KERNEL = re.compile(r"__attribute__\s*\(\(\s*global\s*\)\)")

_MEANT = (
    (re.compile(r"<<<"), {"cudaConfigureCall", "__cudaPushCallConfiguration", "__cudaPopCallConfiguration"}),
    (re.compile(r"\bauto\b[\s&]*\["), {"tuple_size", "tuple_element", "get"}),
)
"""Syntax, and names that the compiler looks up for it: for launches, and for names of the parts of a value."""

_KEYWORDS = frozenset(
    NAME.findall(
        "alignas alignof asm auto bool break case catch char class const constexpr const_cast continue decltype"
        " default do double dynamic_cast else enum explicit export extern false float for friend goto if inline int"
        " long mutable namespace noexcept nullptr operator private protected public register reinterpret_cast return"
        " short signed sizeof static static_assert static_cast struct switch template this throw true try typedef"
        " typeid typename union unsigned using virtual void volatile wchar_t while char16_t char32_t final override"
        " __attribute__ __asm__ __inline__ __inline __extension__ __restrict__ __restrict __volatile__ __const"
    )
)


@dataclass(frozen=True)
class Declaration:
    """One declaration of a text.

    Arguments:
        text: all of it.
        names: what it declares; empty: it is always kept.
    """

    text: str
    names: frozenset[str]

    @cached_property
    def reaches(self) -> frozenset[str]:
        """The names that it can mean."""
        return names_in(self.text)


class Declarations:
    """The declarations of a preprocessed text, in order. Beginnings and ends of namespaces are among them.

    Arguments:
        own: those of the text, as :func:`declared_in` gives them.
        before: those of the text before it, if there is one.
    """

    def __init__(self, own: Sequence[Declaration], before: Declarations | None = None) -> None:
        self.own = own
        self._all: list[Declaration] = [*(before._all if before else ()), *own]
        self._found: dict[str, list[int]] = {}
        if before:
            self._found = {name: [*numbers] for name, numbers in before._found.items()}
        for number, declaration in enumerate(own, len(self._all) - len(own)):
            for name in declaration.names:
                self._found.setdefault(name, []).append(number)

    @property
    def doubtful(self) -> frozenset[str]:
        """The names of those that may be needed though nothing mentions these names.

        An operator may be for an alias of a type: what uses the type does not have that name. A declaration that looks
        like one of a function may be a variable of the device, with a value in brackets.
        """
        return frozenset().union(*(one.names for one in self._all if _DOUBTFUL.match(one.text)))

    def needed(self, names: Iterable[str]) -> list[Declaration]:
        """Those that names reach, in order.

        Arguments:
            names: as :func:`names_in` gives them.
        """
        kept = {number for number, declaration in enumerate(self._all) if not declaration.names}
        reached = {*names}.union(*(self._all[number].reaches for number in kept))
        todo = [*reached]
        while todo:
            for number in self._found.get(todo.pop(), ()):
                if number not in kept:
                    kept.add(number)
                    new = self._all[number].reaches - reached
                    reached |= new
                    todo.extend(new)
        return [self._all[number] for number in sorted(kept)]


def declared_in(text: str) -> list[Declaration]:
    """The declarations of a preprocessed text."""
    return [_declaration(*part) for part in _parts(text)]


def is_made_elsewhere(declaration: Declaration) -> bool:
    """Whether it is a template of a kernel or of a variable of the device: host code decides what is made of it."""
    text = declaration.text
    return not declaration.names and _TEMPLATE.match(text) is not None and not _is_function_of_the_device(text)


def names_in(text: str) -> frozenset[str]:
    """All names in a text, and those that its syntax means."""
    meant = (names for syntax, names in _MEANT if syntax.search(text))
    return frozenset({*NAME.findall(text)} - _KEYWORDS).union(*meant)


def _parts(text: str) -> Iterator[tuple[str, int]]:
    """The texts of declarations, and where the body of each begins, or -1."""
    start, body, depth, end = -1, -1, 0, 0
    for token in _TOKEN.finditer(text):
        mark = token[0]
        if mark[0].isdigit():  # with a mark between digits, which begins no character
            continue
        if depth == 0 and start < 0:
            if _OF_THE_NEXT.match(mark):
                start, body = token.start(), -1
                continue
            if mark[0] == "#" or mark == "}":
                yield mark, -1
                end = token.end()
                continue
            start, body = end, -1
        if mark[0] == "#":
            continue
        if mark == "{" and depth == 0:
            if _BLOCK.match(text, start, token.start()):
                yield text[start : token.end()], -1
                start, end = -1, token.end()
                continue
            body = token.start() - start if body < 0 else body
        if mark in "{(":
            depth += 1
        elif mark in "})":
            depth -= 1
        if depth == 0 and (mark == ";" or (mark == "}" and _ends_here(text, start, body, token.end()))):
            yield text[start : token.end()], body
            start, end = -1, token.end()
    if text[end:].strip():
        yield text[end:], -1


def _ends_here(text: str, start: int, body: int, after: int) -> bool:
    """Whether a declaration ends with its body, as those of functions do; what is in braces may be a member's value."""
    return not _GOES_ON.match(text, after) and _is_function(_head(text[start : start + body]))


def _head(text: str) -> str:
    """What is before the body, without attributes and what is between angles."""
    head = _ASIDE.sub(" ", text)
    if "operator" in head:
        return head.strip()
    head, before = _COMPARED.sub(" ", head), ""
    while head != before:
        before, head = head, _ANGLES.sub(" ", head)
    return head.strip()


def _is_function_of_the_device(text: str) -> bool:
    return _KERNEL.search(text) is None and "(" in _head(text)


def _is_function(head: str) -> bool:
    if "operator" in head:
        return True
    called = head.find("(")
    return called >= 0 and not _ASSIGNED.search(head, 0, called) and not head.startswith("typedef")


@lru_cache(1 << 14)  # headers of different sources and archs are largely the same
def _declaration(text: str, body: int) -> Declaration:
    words = text.split(None, 1)
    if not words or text[0] == "}" or text[-1] == "{" or (text[0] == "#" and "\n" not in text):
        return Declaration(text, frozenset())
    names = frozenset(_declared(text, body)) - _KEYWORDS
    return Declaration(text, names)


def _declared(text: str, body: int) -> set[str]:
    """The names that a declaration declares, or more of them."""
    before = text if body < 0 else text[:body]
    head = _head(before)
    is_class = body >= 0 and text.rstrip().endswith(";")
    if "operator" in head:
        return _operands(before)
    if _KERNEL.search(before) or _USED.search(before) or head.startswith("static_assert"):
        return set()
    if re.match(r"using\s+namespace\b", head):
        return set()
    if _EMITTED.search(before) and body < 0 and _VALUE.search(head):
        return set()  # a variable with a value in brackets
    if _is_function(head) and not is_class:
        return _function(head) or {*NAME.findall(text)}
    if _EMITTED.search(before):
        return set()  # a variable of the device is in the output, also if nothing uses it
    if "<" in head or ">" in head:  # of a comparison, perhaps; then others may be in the same text
        return set() if _EMITTED.search(text) else {*NAME.findall(text)}
    if re.search(r"\benum\b", head):
        return {*NAME.findall(_ASIDE.sub(" ", text))}
    if head.startswith("using") or re.match(r"template\s+using\b", head):
        alias = re.match(r"(?:template\s+)?using\s+(\w+)\s*=", head)
        return {alias[1]} if alias else {*re.findall(r"(\w+)\s*[;,]", head)}
    if not re.search(r"\b(?:typedef|struct|class|union)\b", head):
        return _variables(head) if body < 0 else {*NAME.findall(text)}
    tail = _behind(text[body:]) if body >= 0 else ""
    return {*NAME.findall(re.split(r"(?<!:):(?!:)", head)[0]), *NAME.findall(_ASIDE.sub(" ", tail))}


def _behind(text: str) -> str:
    """What is outside of braces, and more of the text if a brace is in a string."""
    before = ""
    while text != before:
        before, text = text, _BRACES.sub(" ", text)
    return text


def _function(head: str) -> set[str]:
    """The name of a function; none, if it has another form than ``result name(parameters)``."""
    called = re.search(r"(\w+)\s*\((?!\s*[*&])", head)
    if called is None or called[1] in _KEYWORDS or re.search(r"[(,<>]", head[: called.start()]):
        return set()
    behind = re.sub(_NESTED, "()", head[called.start() :]).partition(":")[0]
    return set() if re.search(r",|\(\s*[^)]|\(\)\s*\(", behind) else {called[1]}


def _variables(head: str) -> set[str]:
    """The names of variables: what is before the first initial value, or all names where there are several."""
    declared = head.split("=")[0]
    if "," in head and declared != head:
        return {*NAME.findall(head)}
    return {words[-1] for one in declared.split(",") if (words := NAME.findall(one.split("[")[0]))}


def _operands(text: str) -> set[str]:
    """The types that an operator is for, or more names."""
    if memory := re.search(r"\boperator\s*(new|delete)\b", text):
        return {memory[1]}
    if member := _OPERATOR_MEMBER.search(text):
        return {member[1]}
    operands = _OPERANDS.search(text)
    if operands is None:
        return {*NAME.findall(text)}
    names: set[str] = set()
    for operand in operands[1].split(","):
        words = NAME.findall(operand)
        names.update(words[:-1] if len(words) > 1 else words)
    parameters = re.match(r"\s*template\s*<(.*?)>", text, re.S)
    return names - {"std", *(NAME.findall(parameters[1]) if parameters else ())}
