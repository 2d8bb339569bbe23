"""Which declarations of its headers a source keeps: all that a name in it can mean, and hardly any others."""

from __future__ import annotations

import pytest
from kernelwright.toolchain.declarations import Declarations, declared_in, names_in
from kernelwright.toolchain.trimming import has_numbers, next_part, own_part, parted, read_headers, trimmed

KERNEL = 'extern "C" __attribute__((global)) void k(float *x) { x[0] = %s; }\n'


def kept(text: str, used: str) -> list[str]:
    """What is kept of a text for a source with some names, but for ends of blocks."""
    needed = Declarations(declared_in(text)).needed(names_in(used))
    return [one.text.strip() for one in needed if one.text.strip() != "}"]


ALWAYS = [
    "#pragma nv_diag_suppress 20012",
    'asm("comment");',
    "static_assert(sizeof(int) == 4);",
    "using namespace other;",
]
OF_DEVICE = [
    *("static int helper(int *x) { return 1; }", "__attribute__((device)) int counter;"),
    "__attribute__((global)) void other(int *x) { helper(x); }",
]
OVERLOADS = ["int f(int);", "float f(float);", "template <typename T> T f(T *x) { return *x; }"]
PRAGMAS = "#pragma nv_exec_check_disable\nint f(int);\n#pragma diag_suppress 1\nint g(int);\n"
OF_MEMBERS = "two::two(int x) : a{x}, b{x} { }\nint f(int);\nint f(float x) { return 1; }\nint g(int);\n"
TWO = ["int one(int);", "static int two(float x) { return one(3); }"]


@pytest.mark.parametrize(
    ("text", "used", "found"),
    [
        pytest.param("\n".join([*TWO, "int three(int x) { return x; }\n"]), "two", TWO, id="with what it uses"),
        pytest.param("\n".join([*OVERLOADS, "int g(int);\n"]), "f", OVERLOADS, id="all overloads"),
        pytest.param("\n".join([*ALWAYS, ""]), "nothing", ALWAYS, id="what has no name"),
        pytest.param("\n".join([*OF_DEVICE, "int unused(int);\n"]), "nothing", OF_DEVICE, id="of the device"),
        pytest.param(PRAGMAS, "f", [PRAGMAS[:41], "#pragma diag_suppress 1"], id="with its pragma"),
        pytest.param(PRAGMAS, "g", ["#pragma diag_suppress 1", "int g(int);"], id="without that of another"),
        pytest.param(
            "void f() { asm(\"{ .reg .b32 x;\"); char c = '}'; }\nvoid g();\n", "g", ["void g();"], id="braces"
        ),
        pytest.param(
            "constexpr int f = 1'000; int g(int x) { return x * 2'000; }\nint h(float);\n",
            *("g", ["int g(int x) { return x * 2'000; }"]),
            id="marks between digits",
        ),
        pytest.param(OF_MEMBERS, "f", ["int f(int);", "int f(float x) { return 1; }"], id="values of members"),
        pytest.param(OF_MEMBERS, "two", ["two::two(int x) : a{x}, b{x} { }"], id="a constructor"),
    ],
)
def test_what_is_needed_is_kept_and_no_other(text: str, used: str, found: list[str]) -> None:
    assert kept(text, used) == found


@pytest.mark.parametrize(
    ("declaration", "name"),
    [
        ("typedef unsigned long size;", "size"),
        ("typedef struct { int member; } pair, *pairs;", "pairs"),
        ("typedef void (*callback)(int);", "callback"),
        ("struct __attribute__((aligned(8))) vector { int x, y; };", "vector"),
        ("template <> struct trait<int> : base<int> { typedef int type; };", "trait"),
        ("enum color { red, green };", "green"),
        ("using number = float;", "number"),
        ("using ::elsewhere::number;", "number"),
        ("template <class T> using pointer = T *;", "pointer"),
        ("extern const int first, second;", "second"),
        ("constexpr int count = 3;", "count"),
        ("int table[4] = {1, 2, 3, 4};", "table"),
        ("uint3 __attribute__((device_builtin)) extern const place;", "place"),
        ("static __attribute__((device)) inline int f(int x) noexcept(true) { return x; }", "f"),
        ("template <typename T> typename only_if<sizeof(T) == 16 && 2 >= 1, T>::type f(T x) { return x; }", "f"),
        ("half::half(float x) : value(x) { }", "half"),
        ("half &half::operator=(const half &other) { return *this; }", "half"),
        ("struct returned f(int x) { return {}; }", "f"),
        ("auto f(int x) -> decltype(x) { return x; }", "f"),
        ("void (*f(int x))(int);", "f"),
        ("handler (*f(int x))(int);", "f"),
        ("handler *(*f(int x))(int);", "f"),
        ("int e(int), f(int);", "f"),
        ("__typeof__(1 + 1) f(int);", "f"),
        ("half::half(float x) : value(x), other(1) { }", "half"),
        ("static int __attribute__((unused)) f(pair<int, int> x);", "f"),
        ("half (f)(half x) { return x; }", "f"),
        ("constexpr int e(3), f(4);", "e"),
        ("constexpr int e{3}, f{4}, g{5};", "f"),
        ("struct one : two { int three; } e = {3}, f = {4}, g = {5};", "f"),
        ("template <int n = (1 < 2)> using pointer = int *;", "pointer"),
        ("template <int n, bool is_small = (n < 4)> constexpr int f(int x) { return 1; };", "f"),
    ],
)
def test_a_declaration_has_its_names(declaration: str, name: str) -> None:
    after = "int after(int);"
    assert kept(f"{declaration}\n{after}\n", name) == [declaration]
    assert kept(f"{declaration}\n{after}\n", "after") == [after]


@pytest.mark.parametrize(
    "operator",
    [
        "half operator+(const half &a, const half &b) { return a; }",
        "bool operator<(half a, half b);",
        "half operator++(half &a, const int ignored);",
        "template <typename T> bool operator==(const half &a, T b) { return true; }",
    ],
)
def test_an_operator_is_kept_with_the_type_that_it_is_for(operator: str) -> None:
    text = f"struct half {{ int x; }};\n{operator}\n"
    assert operator in kept(text, "half")
    assert kept(text, "other a b ignored T") == []


@pytest.mark.parametrize(
    "text",
    [
        "__attribute__((device)) __attribute__((used)) int f() { return 1; }",
        "__attribute__((device)) int count(3);",
        "__attribute__((device)) float *place(&there);",
        "__attribute__((constant)) float x{3.0f};",
        "static __attribute__((device)) const int table[] = {1, 2};",
    ],
)
def test_what_is_in_the_output_though_nothing_names_it_is_kept(text: str) -> None:
    assert kept(f"{text}\n__attribute__((device)) int g(float x);\n", "nothing") == [text]


def test_names_may_be_of_any_namespace_types_without_names_have_numbers_and_blocks_stay_closed() -> None:
    text = "namespace std { struct pair; int big(pair); }\ntypedef std::pair two;\nfloat big(...);\n"
    assert {"int big(pair);", "float big(...);"} < {*kept(text, "big two")}
    text = 'extern "C++" { namespace a { int f(int); } inline namespace b { int g(int); } }\n'
    assert [one.text.strip() for one in Declarations(declared_in(text)).needed(["g"])].count("}") == 3
    assert names_in("0x1f + 1.0f + 1e3 + f1") == {"f1"}
    assert has_numbers(".func _Z1fIN8INTERNALUt4_EEiT_") and not has_numbers(".func _Z1fIUtx_EEiT_Ut4")


# ---- sources


def test_a_source_is_parted_behind_each_of_its_headers_but_not_within_braces() -> None:
    found = parted("#include <a.h>\nint x;\n#if X\n#include <b.h>\n#endif\nint y;\n")
    first, second = '# 1 "device.cu"\n#include <a.h>', '# 2 "device.cu"\nint x;\n#if X\n#include <b.h>\n#endif'
    assert found == ([first, second], '# 6 "device.cu"\nint y;\n')
    found = parted("namespace a {\n#include <a.h>\n#include <b.h>\n}\n#include <c.h>\n")
    assert found and found[0] == ['# 1 "device.cu"\nnamespace a {\n#include <a.h>\n#include <b.h>\n}\n#include <c.h>']
    assert parted("int y;\n") == ([""], '# 1 "device.cu"\nint y;\n')


@pytest.mark.parametrize(
    "source",
    [
        '#include "mine.h"\nint y;\n',
        "__global__ void k();\n#include <a.h>\n",
        '#pragma pop_macro("x")\nint y;\n',
        "int x = __COUNTER__;\n",
        "namespace a {\n#include <a.h>\n}\n",
        '#if __has_include("mine.h")\n#endif\nint y;\n',
        "const char *y = __BASE_FILE__;\n",
    ],
)
def test_some_sources_are_not_parted(source: str) -> None:
    assert parted(source) is None


def test_macros_reach_the_source_with_those_that_they_use_or_any_of_them_may_be_meant() -> None:
    headers = read_headers("#define A B(1)\n#define B(x) x\n#define C 3\n#undef C\n#define D 4\nint f(int);\n")
    assert own_part(headers, "int y = A;") == "#define A B(1)\n#define B(x) x\nint y = A;"
    assert own_part(headers, "int y = C;") == "#undef C\nint y = C;"
    headers = read_headers("#define JOINED(a, b) a##b\n#define AB 3\n")
    assert own_part(headers, "int y = AB;") == "#define AB 3\nint y = AB;"
    for rest in ("int y = JOINED(A, B);", "#define J(a, b) a %:%: b\nint y = J(A, B);"):
        assert own_part(headers, rest) == f"#define JOINED(a, b) a##b\n#define AB 3\n{rest}"
    headers = read_headers("#define A B\n#define B __COUNTER__\n")
    assert own_part(headers, "int y = A;") is None
    assert own_part(headers, "int y = C;") == "int y = C;"


def test_a_part_of_headers_begins_with_the_macros_before_it_and_adds_what_it_leaves() -> None:
    first = read_headers("#define A 1\n#define B 2\n#undef B\nint f(int);\n")
    assert next_part(first, "int g(int);") == "#define A 1\n#undef B\nint g(int);"
    second = read_headers("#define A 1\n#undef B\n#undef A\nint g(int);\nint f(float);\n", first)
    assert second.macros == {"A": "#undef A\n", "B": "#undef B\n"}
    assert [one.text.strip() for one in second.declarations.needed(["f"])] == ["int f(int);", "int f(float);"]
    assert [one.text.strip() for one in first.declarations.needed(["f", "g"])] == ["int f(int);"]
    text = '#define A 1\n#pragma push_macro("A")\n#undef A\n#define A 2\n#pragma pop_macro("A")\n'
    assert read_headers(text).macros == {"A": "#define A 1\n"}
    assert read_headers('#pragma push_macro("A")\n#define A 2\n#pragma pop_macro("A")\n').macros == {"A": "#undef A\n"}


def test_a_kernel_gets_what_it_needs_and_the_source_stays_as_it_is() -> None:
    headers = read_headers('# 1 "a.h" 1\nfloat sine(float);\nfloat cosine(float);\n')
    own = "static float mine(float x) { return sine(x); }\n"
    text = trimmed(headers, own + KERNEL % "mine(x[1])")
    assert text is not None and "float sine(float);" in text and "cosine" not in text
    assert text.count("__attribute__((global))") == 1
    headers = read_headers("struct half { int x; };\n")
    own = "typedef half number;\nnumber operator%(number a, number b) { return a; }\n"
    text = trimmed(headers, own + KERNEL % "(half() % half()).x")
    assert text is not None and "operator%" in text
    own = '# 7 "device.cu"\nint unused(int x) { return mistake; }\n' + KERNEL % "1"
    text = trimmed(read_headers('# 1 "a.h" 1\nint other(int);\n'), own)
    assert text is not None and text.endswith(f"\n{own}") and "other" not in text


@pytest.mark.parametrize(
    ("declaration", "own"),
    [
        ("extern unsigned __cudaPushCallConfiguration(int, int);", "void host() { t<<<1, 1>>>(); }\n"),
        ("template <> struct tuple_size<two> { };", "void f(two x) { auto &[a, b] = x; }\n"),
        ("template <int I> int get(const two &x);", "void f(two x) { const auto [a, b] = x; }\n"),
    ],
)
def test_syntax_means_names(declaration: str, own: str) -> None:
    headers = read_headers(f'# 1 "a.h" 1\n{declaration}\n')
    for text, is_kept in ((KERNEL % "1", False), (own + KERNEL % "1", True)):
        made = trimmed(headers, text)
        assert made is not None and (declaration in made) == is_kept


def test_an_operator_between_headers_is_kept_whatever_its_type_is_called() -> None:
    between = "using number = half;\nnumber operator%(number a, number b) { return a; }\n"
    between += "__attribute__((device)) half place(three);\n"
    begin, end = '# 1 "/headers.cu"\n# 1 "/half.h" 1 3\nstruct half { int x; };\n', '# 3 "/headers.cu" 2\n'
    for text, is_kept in ((begin + end + between, True), (begin + between + end, False)):
        first = read_headers(text)
        headers = read_headers('# 1 "/b.h" 1\n# 2 "/headers.cu" 2\n', first)
        made = trimmed(headers, KERNEL % "(half() % half()).x")
        assert made is not None and ("operator%" in made) == ("half place(three)" in made) == is_kept


@pytest.mark.parametrize(
    "text",
    [
        "int line(int x = __builtin_LINE());\n",
        "template <typename T> __attribute__((global)) void line(T *x) { }\n",
        "template <typename T> __attribute__((device)) T line = 1;\n",
    ],
)
def test_some_sources_need_all_of_their_headers(text: str) -> None:
    own = KERNEL % "line()"
    assert trimmed(read_headers(text), own) is None
    assert trimmed(read_headers("template <typename T> __attribute__((device)) T line(T (&x)[3]);\n"), own) is not None
    assert trimmed(read_headers(""), text + own) is not None
