"""Finds the device functions in a source with libclang.

Clang reads the source as CUDA, as for a device, with the headers of the nvcc that is installed. These are written for
nvcc, so Clang finds errors in them, and in functions that use them. Such errors do not matter here: a definition needs
only the names and types of parameters, and nvcc compiles the rest.
"""

from __future__ import annotations

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from ...core.errors import DefinitionError, ToolchainError, Where, printable
from ...core.need import Need
from ...toolchain.ask import answer
from ...toolchain.host_compiler import find_host_compiler
from ...toolchain.nvcc import find_nvcc
from .bounds import Question, answers, question_text, questions_of, with_values
from .function import Found, Function, Parameter, TemplateParameter

NEED = Need("clang", "libclang>=18.1,<19")
"""The package with the parser."""

WHERE = Where(stage="import")

PRELUDE = "/kernelwright/prelude.h"
"""A header that is read before the source. There is no such file: Clang is given its text."""

QUESTIONS = "/kernelwright/questions.cu"
"""A source that includes another one and asks for constants in it. Clang is given its text."""

BOUNDS = "kernelwright_bounds="
CLUSTER = "kernelwright_cluster="
"""What annotations of a function begin with; the arguments of ``__launch_bounds__`` and ``__cluster_dims__`` follow."""

LAUNCH = f"""
#undef __launch_bounds__
#undef __cluster_dims__
#define kernelwright_annotated(name, ...) __attribute__((annotate(name #__VA_ARGS__)))
#define __launch_bounds__(...) kernelwright_annotated("{BOUNDS}", __VA_ARGS__)
#define __cluster_dims__(...) kernelwright_annotated("{CLUSTER}", __VA_ARGS__)
"""
"""Clang's own attributes do not keep their text. The inner macro has macros in the arguments expanded."""

HANDLES = frozenset({"cudaTextureObject_t", "cudaSurfaceObject_t", "CUtexObject", "CUsurfObject"})
"""Names of unsigned 64-bit integers that are handles, which host code gets from the driver."""

WITH_CUDA = "#include <cuda_runtime.h>\n"

WITHOUT_CUDA = """
#include <stddef.h>
#define __global__ __attribute__((global))
#define __device__ __attribute__((device))
#define __host__ __attribute__((host))
#define __shared__ __attribute__((shared))
#define __constant__ __attribute__((constant))
#define __managed__
#define __forceinline__ inline
#define __noinline__
#define __grid_constant__
#define __maxnreg__(...)
#define __align__(n) __attribute__((aligned(n)))
struct __half { short bits; };
struct __align__(4) __half2 { __half x, y; };
struct __nv_bfloat16 { short bits; };
struct __align__(4) __nv_bfloat162 { __nv_bfloat16 x, y; };
typedef unsigned long long cudaTextureObject_t, cudaSurfaceObject_t;
typedef __half half;
typedef __half2 half2;
typedef __nv_bfloat16 nv_bfloat16;
typedef __nv_bfloat162 nv_bfloat162;
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
struct __align__(8) float2 { float x, y; };
struct __align__(16) float4 { float x, y, z, w; };
struct __align__(8) int2 { int x, y; };
struct __align__(16) int4 { int x, y, z, w; };
struct __align__(8) uint2 { unsigned x, y; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
"""
"""What types of parameters use of CUDA's headers, for a machine without these headers."""

NOT_FOUND = "file not found"
UNFINISHED = "expected '}'"
"""Clang's words for a function that has no end, which may have swallowed others."""

SCOPES = ("NAMESPACE", "LINKAGE_SPEC", "UNEXPOSED_DECL")
FUNCTIONS = ("FUNCTION_DECL", "FUNCTION_TEMPLATE")
ALIASES = ("TYPEDEF_DECL", "TYPE_ALIAS_DECL")
ENUMERATOR = "ENUM_CONSTANT_DECL"
MOST_ERRORS = 10

GRAMMAR = ("Parse Issue", "Lexical or Preprocessor Issue")
"""Clang's categories of errors behind which it may have missed a function. Others are about what something means."""


def functions_in(source: Path) -> Found:
    """The device functions that a source defines.

    Raises:
        ToolchainError: libclang is not installed, or cannot be loaded.
        DefinitionError: Clang does not understand the source.
    """
    cindex = _libclang()
    unit_type = cindex.TranslationUnit
    # What bodies of functions mean does not matter, so the errors are those of a run without bodies.
    declared = _parse(cindex, source, unit_type.PARSE_SKIP_FUNCTION_BODIES)
    whole = _parse(cindex, source, 0)
    missing = _missing(declared)
    errors = _errors(declared, source)
    places = {error.location.offset for error in errors}
    in_bodies = [e for e in _ungrammatical(_errors(whole, source)) if e.location.offset not in places]
    fatal = [*_ungrammatical(errors), *(error for error in in_bodies if error.spelling == UNFINISHED)]
    if fatal and not missing:
        raise _not_understood(fatal)
    errors += in_bodies
    found = list(_walk(whole.cursor, ()))
    here = [(scope, cursor) for scope, cursor in found if _file(cursor) == str(source)]
    others = [cursor for _, cursor in found if _file(cursor) != str(source) and not _is_of_system(cindex, cursor)]
    elsewhere = {os.path.normpath(_file(cursor)) for cursor in others if _is_device_function(cursor)}
    texts = tuple(map(_text, errors[:MOST_ERRORS]))
    functions = _Functions(cindex, found, errors).among(here)
    return Found(_with_threads(cindex, source, functions), tuple(sorted(elsewhere)), missing, texts)


def _with_threads(cindex: Any, source: Path, functions: list[Function]) -> tuple[Function, ...]:
    """The functions with the threads in their bounds. To compute these, Clang reads the source once more if need be."""
    questions = list(dict.fromkeys(question for function in functions for question in questions_of(function)))
    values: dict[Question, int] = {}
    if questions:
        text = question_text(str(source.resolve()), questions)
        option = cindex.TranslationUnit.PARSE_SKIP_FUNCTION_BODIES
        values = answers(_parse(cindex, Path(QUESTIONS), option, text), QUESTIONS, questions)
    return tuple(replace(function, threads=with_values(function, values)) for function in functions)


def _libclang() -> Any:
    try:
        from clang import cindex
    except ImportError:
        raise ToolchainError("libclang, which reads the source, is not installed", WHERE, NEED.install) from None
    try:
        cindex.conf.lib  # noqa: B018 (the library is loaded when it is asked for)
    except cindex.LibclangError as error:
        raise ToolchainError(f"libclang cannot be loaded: {error}", WHERE, NEED.install) from error
    return cindex


def _parse(cindex: Any, source: Path, option: int, content: str | None = None) -> Any:
    """The source as Clang reads it; it goes on where a header is missing.

    Arguments:
        content: the text of the source, if it is in no file.
    """
    going_on = 0x200  # CXTranslationUnit_KeepGoing of clang-c/Index.h, which Python's module does not name
    include = _cuda_include()
    text = (WITH_CUDA if include else WITHOUT_CUDA) + LAUNCH
    arguments = [*_arguments(), *(["-isystem", str(include), "-isystem", str(include / "cccl")] if include else [])]
    try:
        given = [(PRELUDE, text), *([(str(source), content)] if content else [])]
        return cindex.Index.create().parse(str(source), arguments, given, going_on | option)
    except cindex.TranslationUnitLoadError as error:
        raise DefinitionError(f"Clang cannot read it: {error}", replace(WHERE, location=str(source))) from error


def _arguments() -> list[str]:
    device = ["-x", "cuda", "--cuda-device-only", "-nocudainc", "-nocudalib", "--cuda-gpu-arch=sm_90"]
    defined = ["-D__CUDACC__", "-D__NVCC__", "-D__CUDACC_VER_MAJOR__=13", "-D__CUDACC_VER_MINOR__=0"]
    defined += ["-D__CUDA_ARCH_FEAT_SM90_ALL"]  # functions for sm_90a are not to be missed
    return [*device, *defined, "-std=c++17", "-Wno-everything", "-ferror-limit=0", *_headers(), "-include", PRELUDE]


def _headers() -> list[str]:
    """The compiler's own headers, such as ``stddef.h``, which the package of libclang leaves out."""
    try:
        compiler = find_host_compiler("", os.environ)
        return ["-idirafter", answer([compiler, "-print-file-name=include"], "").strip()]
    except ToolchainError:
        return []


def _cuda_include() -> Path | None:
    """The folder of CUDA's headers; None: there is no nvcc."""
    try:
        top = Path(find_nvcc("", os.environ)).resolve().parent.parent
    except ToolchainError:
        return None
    folders = (top / "include", top / "targets/x86_64-linux/include")
    return next((folder for folder in folders if (folder / "cuda_runtime.h").is_file()), None)


# What Clang did not understand.


def _missing(unit: Any) -> tuple[str, ...]:
    spellings = [found.spelling for found in unit.diagnostics if found.spelling.endswith(NOT_FOUND)]
    return tuple(dict.fromkeys(text.removesuffix(NOT_FOUND).strip().strip("'") for text in spellings))


def _errors(unit: Any, source: Path) -> list[Any]:
    """The errors in the source itself; those in headers do not matter as long as what they declare is known."""
    return [
        found
        for found in unit.diagnostics
        if found.severity >= found.Error and not found.spelling.endswith(NOT_FOUND) and _file(found) == str(source)
    ]


def _ungrammatical(errors: list[Any]) -> list[Any]:
    return [error for error in errors if error.category_name in GRAMMAR]


def _not_understood(errors: list[Any]) -> DefinitionError:
    first, *others = errors
    where = replace(WHERE, location=f"{_file(first)}:{first.location.line}")
    detail = "\n".join(map(_text, others[: MOST_ERRORS - 1])) or None
    return DefinitionError(f"Clang says: {first.spelling}", where, "mend the source", detail)


def _text(error: Any) -> str:
    return printable(f"{_file(error)}:{error.location.line}: {error.spelling}")


# Functions.


def _is_of_system(cindex: Any, cursor: Any) -> bool:
    """Whether something is in a header of CUDA or of the compiler."""
    return bool(cindex.conf.lib.clang_Location_isInSystemHeader(cursor.location))


def _file(thing: Any) -> str:
    """The file that a cursor or an error is in."""
    return str(thing.location.file)


def _walk(cursor: Any, scope: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """All functions below a cursor, with the names of the namespaces that they are in."""
    for child in cursor.get_children():
        if child.kind.name in FUNCTIONS:
            yield scope, child
        elif child.kind.name in SCOPES:
            # A function in a namespace without a name is found by its own name.
            named = child.kind.name == "NAMESPACE" and child.spelling and not child.spelling.startswith("(")
            yield from _walk(child, (*scope, child.spelling) if named else scope)


def _is_device_function(cursor: Any) -> bool:
    return any(child.kind.name == "CUDAGLOBAL_ATTR" for child in cursor.get_children()) and cursor.is_definition()


def _is_template(cursor: Any) -> bool:
    return bool(cursor.kind.name == "FUNCTION_TEMPLATE")


class _Functions:
    """The device functions among all functions of a source.

    Arguments:
        found: all functions, with the namespaces that they are in.
        errors: what Clang did not understand.
    """

    def __init__(self, cindex: Any, found: list[tuple[tuple[str, ...], Any]], errors: list[Any]) -> None:
        self._cindex = cindex
        self._errors = errors
        self._declared: defaultdict[str, list[Any]] = defaultdict(list)
        for _, cursor in found:
            self._declared[cursor.get_usr()].append(cursor)

    def among(self, found: list[tuple[tuple[str, ...], Any]]) -> list[Function]:
        """The device functions among some functions."""
        same: defaultdict[tuple[str, bool], set[str]] = defaultdict(set)
        for scope, cursor in found:
            same["::".join((*scope, cursor.spelling)), _is_template(cursor)].add(cursor.get_usr())
        made = []
        for scope, cursor in found:
            if _is_device_function(cursor):
                name, is_template = "::".join((*scope, cursor.spelling)), _is_template(cursor)
                others = len(same[name, is_template]) > 1 or (not is_template and bool(same[name, True]))
                made.append(self._function(name, cursor, others))
        return made

    def _function(self, name: str, cursor: Any, is_overloaded: bool) -> Function:
        children = list(cursor.get_children())
        names = [child.spelling for child in children if child.kind.name == "PARM_DECL"]
        body = body_of(self._cindex, cursor)
        return Function(
            name,
            cursor.location.line,
            tuple(_parameter(*pair) for pair in zip(names, cursor.type.argument_types(), strict=True)),
            tuple(_template_parameter(child) for child in children if child.kind.name.startswith("TEMPLATE_")),
            self._annotation(cursor, BOUNDS),
            cluster=self._annotation(cursor, CLUSTER),
            has_dynamic_shared=has_dynamic_shared(body),
            is_cooperative=waits_for_grid(body),
            is_overloaded=is_overloaded,
            problem=_problem(cursor, children, self._errors) or self._unfilled(body),
        )

    def _annotation(self, cursor: Any, mark: str) -> str:
        """What one of the declarations of a function is annotated with, with the names that the definition has."""
        for declared in self._declared[cursor.get_usr()]:  # later declarations inherit the annotations of the first one
            children = list(declared.get_children())
            notes = [child.spelling for child in children if child.kind.name == "ANNOTATE_ATTR"]
            if text := next((note.removeprefix(mark) for note in notes if note.startswith(mark)), ""):
                return _renamed(text, _template_names(declared), _template_names(cursor))
        return ""

    def _unfilled(self, body: list[Any]) -> str:
        names = unfilled_constants(self._cindex, body)
        return f"it reads {', '.join(names)} in constant memory, which host code has to fill" if names else ""


def _renamed(text: str, names: list[str], others: list[str]) -> str:
    """A text with the other names in place of the names."""
    known = dict(zip(names, others, strict=True))
    return re.sub(r"[A-Za-z_]\w*", lambda word: known.get(word[0]) or word[0], text)


def _template_names(cursor: Any) -> list[str]:
    return [child.spelling for child in cursor.get_children() if child.kind.name.startswith("TEMPLATE_")]


def _problem(cursor: Any, children: list[Any], errors: list[Any]) -> str:
    """Why a function cannot be a kernel."""
    body = next((child.extent.start.offset for child in children if child.kind.name == "COMPOUND_STMT"), 0)
    for error in errors:
        if cursor.extent.start.offset <= error.location.offset < body:
            return f"Clang does not understand it: {printable(error.spelling)}"
    if cursor.get_num_template_arguments() >= 0 and not _is_template(cursor):
        return "it is a specialisation of a template, which the kernel of that template takes where its config says so"
    result = cursor.result_type.get_canonical().spelling
    return "" if result == "void" else f"its result is {result}, and that of a device function is void"


# Types.


def _parameter(name: str, given: Any) -> Parameter:
    if handle := _handle(given):
        return Parameter(name, handle, "other", handle)
    declared = given.get_canonical()
    kind = declared.kind.name
    if kind in ("INCOMPLETEARRAY", "CONSTANTARRAY"):
        return _pointer(name, declared.spelling, declared.element_type, declared.is_const_qualified())
    if kind == "POINTER":
        return _pointer(name, declared.spelling, declared.get_pointee())
    if members := _members(declared) if kind == "RECORD" else ():
        return Parameter(name, declared.spelling, "structure", _element(declared), members=members)
    is_number = kind not in ("RECORD", "LVALUEREFERENCE", "RVALUEREFERENCE", "MEMBERPOINTER")
    return Parameter(name, declared.spelling, "number" if is_number else "other", _element(declared))


def _members(declared: Any) -> tuple[Parameter, ...]:
    """The members of a structure that can be passed; none: it has bases, bits or arrays, or others that cannot be."""
    fields = list(declared.get_fields())
    odd = any(child.kind.name == "CXX_BASE_SPECIFIER" for child in declared.get_declaration().get_children())
    if odd or any(field.is_bitfield() or field.type.get_canonical().kind.name == "CONSTANTARRAY" for field in fields):
        return ()
    members = tuple(_parameter(field.spelling, field.type) for field in fields)
    return () if any(member.kind == "other" for member in members) else members


def _handle(given: Any) -> str:
    """The name of the handle that a type is; empty: it is none."""
    while given.kind.name in ("TYPEDEF", "ELABORATED"):
        declaration = given.get_declaration()
        if declaration.spelling in HANDLES or declaration.kind.name not in ALIASES:
            break
        given = declaration.underlying_typedef_type
    name = given.get_declaration().spelling
    return name if name in HANDLES else ""


def _pointer(name: str, spelling: str, pointee: Any, is_constant: bool = False) -> Parameter:
    inner: list[int] = []
    is_constant |= pointee.is_const_qualified()  # of an array, the array itself is constant, and not its elements
    while pointee.kind.name == "CONSTANTARRAY":
        inner.append(pointee.element_count)
        pointee = pointee.element_type
    kind: Literal["pointer", "other"] = "pointer"
    if pointee.kind.name in ("POINTER", "FUNCTIONPROTO", "INCOMPLETEARRAY", "DEPENDENTSIZEDARRAY"):
        kind = "other"
    size = alignment = 0
    if pointee.kind.name == "RECORD":
        size, alignment = pointee.get_size(), pointee.get_align()
        kind = kind if size > 0 else "other"  # for a class that is declared and not defined, it is negative
    return Parameter(
        name, spelling, kind, _element(pointee), size, alignment, is_constant=is_constant, inner=tuple(inner)
    )


def _element(declared: Any) -> str:
    """A type without qualifiers; of an enumeration, the integer that it is."""
    if declared.kind.name == "ENUM":
        return _element(declared.get_declaration().enum_type.get_canonical())
    return " ".join(word for word in declared.spelling.split() if word not in ("const", "volatile", "__restrict"))


def _template_parameter(cursor: Any) -> TemplateParameter:
    tokens = [token.spelling for token in cursor.get_tokens()]
    default = tuple(tokens[tokens.index("=") + 1 :]) if "=" in tokens else ()
    kind: Literal["type", "integer", "bool", "enumeration", "other"] = "other"
    taken = cursor.type.get_canonical()
    if taken.kind.name == "ENUM" and "..." not in tokens:
        values = [child.enum_value for child in taken.get_declaration().get_children() if child.kind.name == ENUMERATOR]
        return TemplateParameter(cursor.spelling, "enumeration", default, taken.spelling, next(iter(values), 0))
    if cursor.kind.name == "TEMPLATE_TYPE_PARAMETER":
        kind = "type"
    elif cursor.kind.name == "TEMPLATE_NON_TYPE_PARAMETER":
        kind = _kind_of_value(taken.spelling)
    return TemplateParameter(cursor.spelling, "other" if "..." in tokens else kind, default)


def _kind_of_value(spelling: str) -> Literal["integer", "bool", "other"]:
    if spelling == "bool":
        return "bool"
    is_integer = {*spelling.split()} <= {"unsigned", "signed", "char", "short", "int", "long"}
    return "integer" if is_integer else "other"


GRID = "grid_group"
"""The class of all blocks of a launch in ``cooperative_groups.h``."""

WAITING = ("sync", "barrier_arrive", "barrier_wait")
"""Functions and methods in which the blocks of a grid wait for each other."""

REFERENCES = ("DECL_REF_EXPR", "MEMBER_REF_EXPR", "OVERLOADED_DECL_REF")


def body_of(cindex: Any, function: Any) -> list[Any]:
    """All cursors in a function, and in the functions of the author's that it calls."""
    lib, known, waiting, body = cindex.conf.lib, {function.get_usr()}, [function], []
    while waiting:
        inner = list(waiting.pop().walk_preorder())
        body += inner
        for called in (called for cursor in inner for called in _called(lib, cursor)):
            if called.get_usr() not in known and not lib.clang_Location_isInSystemHeader(called.location):
                known.add(called.get_usr())
                waiting.append(called)
    return body


def _called(lib: Any, cursor: Any) -> Iterator[Any]:
    """The definitions of the functions that a cursor may refer to: several, if types of a template decide."""
    if cursor.kind.name not in REFERENCES:
        return
    count = lib.clang_getNumOverloadedDecls(cursor)
    named = [lib.clang_getOverloadedDecl(cursor, number) for number in range(count)] or [cursor.referenced]
    for function in named:
        if function is not None and function.kind.name in (*FUNCTIONS, "CXX_METHOD"):
            definition = function.get_definition()
            if definition is not None:
                yield definition


def waits_for_grid(body: list[Any]) -> bool:
    """Whether the blocks of a launch wait for each other by cooperative groups."""
    return any(_waits(cursor) for cursor in body if cursor.kind.name == "CALL_EXPR" and cursor.spelling in WAITING)


def _waits(call: Any) -> bool:
    method = call.referenced
    parent = method.semantic_parent if method is not None else None
    arguments = [argument.type.get_canonical().spelling for argument in call.get_arguments()]
    words = {word for spelling in arguments for word in spelling.replace("::", " ").split()}
    return GRID in words or (parent is not None and parent.spelling == GRID)


def unfilled_constants(cindex: Any, body: list[Any]) -> list[str]:
    """The variables in constant memory that a body reads, and that have no value in the source."""
    used = (cursor.referenced for cursor in body if cursor.kind.name == "DECL_REF_EXPR")
    variables = (variable for variable in used if variable is not None and variable.kind.name == "VAR_DECL")
    return sorted({variable.spelling for variable in variables if _is_unfilled(cindex, variable)})


def _is_unfilled(cindex: Any, variable: Any) -> bool:
    if not any(child.kind.name == "CUDACONSTANT_ATTR" for child in variable.get_children()):
        return False
    initializer = cindex.conf.lib.clang_Cursor_getVarDeclInitializer  # Python's module does not name it
    initializer.argtypes, initializer.restype = [cindex.Cursor], cindex.Cursor
    value = initializer(variable)
    # Clang gives a variable of a class an initializer if it has none, at the place of the variable's name.
    return value.kind.is_invalid() or bool(value.extent.start.offset <= variable.location.offset)


def has_dynamic_shared(body: list[Any]) -> bool:
    """Whether a body has an array in shared memory whose size the launch gives."""
    return any(cursor.kind.name == "VAR_DECL" and cursor.storage_class.name == "EXTERN" for cursor in body)
