"""What signature.json says of the host code, beside what TVM's own host code does with the stand-in for the driver."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kernelwright import backends
from kernelwright.core.errors import KernelwrightError
from support.kernel_library import covering
from support.launched import driver_of
from support.launchers import LAUNCHERS, Kernel, Process, Variant, make_package, plan_of
from support.workers_project import Project

ROOT = Path(__file__).parent.parent.parent

HEAD = """\
from kernelwright import kernel
from tvm import tirx
from tvm.script import tirx as T

"""


SIZES = (1, 3, 31, 1024, 5001)
"""Sizes that symbols take in turn."""

LETTERS = {"handle": "p", "float32": "f", "float16": "h", "int32": "i", "int64": "l", "float64": "d"}
LETTERS |= {"int8": "b", "uint8": "b", "bool": "b", "uint64": "l", "tensor_map": "t"}

NOTED = ("allocate", "encode", "launch")
"""What is compared: temporary memory, tensor maps, and the launches behind them."""

SHARED = 227 << 10
"""Bytes that a block may opt in to on an H100."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("launches"))
    shutil.copytree(ROOT / "kernels", project.folder / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    with project.pool:
        yield project


def definition(body: str, parameters: str = 'x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")') -> str:
    """A definition whose function has this body."""
    lines = "".join(f"        {line}\n" for line in body.strip("\n").splitlines())
    head = 'n, m = tirx.Var("n", "int32"), tirx.Var("m", "int64")'
    function = f"    @T.prim_func(s_tir=True)\n    def main({parameters}):\n{lines}\n    return main\n"
    return f"{HEAD}@kernel\ndef NAME():\n    {head}\n\n{function}"


def copying(grid: str = "n", indent: str = "", statement: str = "y[k] = x[k] + T.float32(1)", block: str = "y") -> str:
    """Statements that launch a copy of x to y."""
    return f"""\
{indent}for i in T.thread_binding({grid}, thread="blockIdx.x"):
{indent}    for _ in T.thread_binding(32, thread="threadIdx.x"):
{indent}        with T.sblock("{block}"):
{indent}            k = T.axis.spatial(n, i)
{indent}            T.where(i < n)
{indent}            {statement}
"""


def lowered(project: Project, name: str, text: str, arch: str = "sm_90") -> Variant:
    """A kernel lowered for CUDA."""
    file = project.write(f"more/{name}.py", text.replace("NAME", name))
    return variant_of(project.lower(str(file.relative_to(project.folder)), name, "cuda", arch))


def variant_of(result: Mapping[str, Any]) -> Variant:
    contents = result["contents"]
    return Variant(json.loads(contents["signature.json"]), contents["host.c"].decode())


CHOSEN = ("cumsum", "gemm", "saxpy", "top_p_sampling")
"""Kernels of this repository: several launches, temporary memory, tensor maps, dynamic shared memory, and a plain one.

The launches of all kernels, as their signatures say them, compute what is right in ``tests/emulated``.
"""


@pytest.fixture(scope="module")
def library(project: Project) -> dict[str, list[Variant]]:
    """Variants of these kernels, with each value of each parameter in one of them at least."""
    found: dict[str, list[Variant]] = {}
    for name in CHOSEN:
        for kernel in project.discover(f"kernels/{name}.py")["kernels"]:
            choices = kernel.get("choices", [])
            of_space = [{**c["config"], **point} for c in choices for point in c["points"].get("cuda", [])]
            wanted = covering(config for config in kernel["configs"] if not choices or config in of_space)
            for slug, config in zip(kernel["slugs"], kernel["configs"], strict=True):
                if config not in wanted:
                    continue
                result = project.lower(f"kernels/{name}.py", kernel["name"], "cuda", slug=slug, config=config)
                found.setdefault(kernel["name"], []).append(variant_of(result))
    return found


def size_of(size: int | str, symbols: Mapping[str, int]) -> int:
    return size if isinstance(size, int) else int(eval(size, {"min": min, "max": max}, dict(symbols)))


def numbers(dtype: str) -> list[Any]:
    """Five numbers of a type, the least and the greatest of an integer among them."""
    if dtype == "bool":
        return [True, False, 1, 0, True]
    if "float" in dtype:
        return [1.5, -2, 0.1, 65504.0, 1e-7]
    bits = int(dtype.removeprefix("u").removeprefix("int"))
    low, high = (0, 2 ** min(bits, 63) - 1) if dtype.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    return [7, low, high, 100, 1] if dtype.startswith("u") else [7, -7, high, low, 100]


def calls_of(signature: Mapping[str, Any]) -> list[list[Any]]:
    """Arguments for a handful of calls: ``[shape, dtype, address]`` of an array, or a number."""
    calls = []
    for turn in range(len(SIZES)):
        symbols = {name: SIZES[(turn + 2 * i) % len(SIZES)] for i, name in enumerate(signature["symbols"])}
        call: list[Any] = []
        for position, argument in enumerate(signature["arguments"]):
            if argument["kind"] == "tensor":
                shape = [size_of(size, symbols) for size in argument["shape"]]
                call.append([shape, argument["dtype"], 0x10000 * (position + 1)])
            else:
                call.append(symbols.get(argument["name"], numbers(argument["dtype"])[turn]))
        calls.append(call)
    return calls


def letters(signature: Mapping[str, Any]) -> str:
    """The types of the parameters of each device function, as the stand-in takes them."""
    functions = signature["device_kernels"]
    return " ".join(f"{f['name']}:{''.join(LETTERS[dtype] for dtype in f['params'])}" for f in functions)


def launched(
    folder: Path, driver: Path, launcher: str, kernels: Mapping[str, list[Variant]], arch: str, **standin: object
) -> dict[str, list[str]]:
    """What is launched through a launcher, by kernel."""
    make_package(folder / launcher, {name: Kernel(kernels[name]) for name in kernels}, [arch], launcher=launcher)
    process = Process(folder / launcher, driver)
    work = {name: [[letters(v.signature), calls_of(v.signature)] for v in kernels[name]] for name in kernels}
    process.run(
        f"""
        for name, variants in {work!r}.items():
            kernel = made.kernel(name)
            for index, (letters, calls) in enumerate(variants):
                os.environ["STANDIN_PARAMETERS"] = letters
                variant = kernel._of_variant(index)
                for passed in calls:
                    variant(*[on_cuda(v[0], v[1], data=v[2]) if isinstance(v, list) else v for v in passed])
        """,
        shared=SHARED,
        **standin,
    )
    launches: dict[str, list[str]] = {name: [] for name in kernels}
    lines: list[str] = []
    for line in process.log:
        lines += [plain(line)] if line.startswith(NOTED) else []
        if line.startswith("launch"):
            launches[re.sub(r"_kernel(_\d+)?$", "", line.split()[1])] += lines
            lines = []
    return launches


def plain(line: str) -> str:
    """A line of the log without addresses of workspaces and numbers of maps."""
    return re.sub(r"\bmap \d+", "map", re.sub("0x[0-9a-f]{8,}", "workspace", line))


def test_kernels_launch_what_the_host_code_of_tvm_launches(library, tmp_path, tmp_path_factory):
    known = [variant for variants in library.values() for variant in variants]
    assert library.keys() == {*CHOSEN} and all(variant.signature["launches"] for variant in known)
    driver = driver_of(tmp_path_factory)
    by_tvm, by_module = (launched(tmp_path, driver, launcher, library, "sm_80") for launcher in LAUNCHERS)
    for name, variants in library.items():
        assert len(by_tvm[name]) >= len(SIZES) * len(variants), name
        assert by_module[name] == by_tvm[name], name


TENSORS = 'x: T.Buffer((n,), "float32"), y: T.Buffer((n,), "float32")'

CLUSTER = """\
for i in T.thread_binding(n * 2, thread="blockIdx.x"):
    for c in T.thread_binding(2, thread="clusterCtaIdx.x"):
        for _ in T.thread_binding(32, thread="threadIdx.x"):
            with T.sblock("y"):
                k = T.axis.spatial(n, i)
                T.where(i < n)
                y[k] = x[k]
"""

SHARING = """\
for i in T.thread_binding(n, thread="blockIdx.x"):
    with T.sblock("shares"):
        T.reads(x[0:n])
        T.writes(y[0:n])
        shared = T.alloc_buffer((32,), "float32", scope="shared.dyn")
        for t in T.thread_binding(32, thread="threadIdx.x"):
            shared[t] = x[i]
            y[i] = shared[0]
"""


def through_memory(dtype: str) -> str:
    """Two launches with temporary memory between them."""
    steps = copying(statement="middle[k] = x[k]") + copying(statement="y[k] = middle[k]", block="z")
    return f'middle = T.alloc_buffer((n,), "{dtype}")\n{steps}'


KINDS = {
    "branch": ("if n > 31:\n{copy}else:\n{double}", TENSORS),
    "nested": ("if n > 3:\n    if n % 2 == 0 or n > 1000:\n{deep}", TENSORS),
    "shifted": ("{grid:T.shift_right(n + 7, 3) + T.bitwise_and(n, 7) + T.bitwise_or(n, 1)}", TENSORS),
    "chosen": ("{grid:T.if_then_else(n > 100, n // 2, n) + T.Select(n < 4, 1, n % 5)}", TENSORS),
    "truncated": (
        "{grid:T.max(T.truncdiv(q, 3) + T.truncmod(q, 3) * 3 + T.floordiv(q, 4) + 20, 1) % 1000 + 1}",
        TENSORS + ", q: T.int16",
    ),
    "clamped": ("{grid:T.min(T.max(T.cast(q, 'int32'), 1), 9)}", TENSORS + ", q: T.int8"),
    "narrowed": ("{grid:T.cast((m + T.int64(7)) // T.int64(8), 'int32')}", TENSORS + ', w: T.Buffer((m,), "int8")'),
    "half": ("{value:T.cast(q, 'float32')}", TENSORS + ", q: T.float16"),
    "double": ("{value:T.cast(q * q, 'float32')}", TENSORS + ", q: T.float64"),
    "byte": ("{value:T.cast(q, 'float32')}", TENSORS + ", q: T.uint8"),
    "word": ("{value:T.cast(q, 'float32')}", TENSORS + ", q: T.uint64"),
    "flag": ("{value:T.Select(q, T.float32(1), T.float32(2))}", TENSORS + ", q: T.bool"),
    "cluster": (CLUSTER, TENSORS),
    "sharing": (SHARING, TENSORS),
    "middle": (through_memory("float32"), TENSORS),
}
"""Name -> body, in which braces stand for a launch, and parameters."""


def kind(name: str) -> str:
    """The definition of one of these."""
    body, parameters = KINDS[name]
    body = body.replace("{copy}", copying(indent="    ")).replace("{double}", copying("n * 2", indent="    "))
    body = body.replace("{deep}", copying(indent="        "))
    if body.startswith("{grid:"):
        body = copying(body[6:-1])
    elif body.startswith("{value:"):
        body = copying().replace("T.float32(1)", body[7:-1])
    return definition(body, parameters)


def test_kinds_of_host_code_launch_what_the_host_code_of_tvm_launches(project, tmp_path, tmp_path_factory):
    kernels = {name: [lowered(project, name, kind(name))] for name in KINDS}
    assert [name for name, (variant,) in kernels.items() if variant.signature["launches"] is None] == []
    driver, here = driver_of(tmp_path_factory), {"capability": 90}
    by_tvm, by_module = (launched(tmp_path, driver, launcher, kernels, "sm_90", **here) for launcher in LAUNCHERS)
    for name in kernels:
        assert by_module[name] == by_tvm[name] != [], name


def with_size(name: str, more: str = "") -> str:
    """A definition with a size of that name."""
    text = definition(copying(), f"{TENSORS}{more}, w: T.Buffer((r,), 'int8')")
    return text.replace("n, m =", f'r = tirx.Var("{name}", "int32"); n, m =')


PACKED, EXTERN = 'T.call_packed("foo.bar", n)', 'T.call_extern("int32", "f", n)'
ROWS = 'x: T.Buffer((n, 4), "float32", {}), y: T.Buffer((n,), "float32")'
WORDS = {
    "packed": (definition(f"T.evaluate({PACKED})\n{copying()}"), f"calls {PACKED}"),
    "extern": (definition(f"T.evaluate({EXTERN})\n{copying()}"), f"calls {EXTERN}"),
    "names": (with_size("q", ", q: T.int32"), "has a size and an argument that are both named 'q'"),
    "ascii": (with_size("größe"), "has a size named 'größe', which is not ASCII"),
    # From 2**31 on this is negative in C, and would not be in Python.
    "wraps": (definition(copying("T.cast(q, 'int32')"), TENSORS + ", q: T.uint32"), 'computes T.Cast("int32", q)'),
    # Python would compare the number of twice the precision that the caller has passed.
    "rounds": (
        definition("if q >= T.float32(0.1):\n" + copying(indent="    "), TENSORS + ", q: T.float32"),
        "computes T.float32(0.10000000000000001) in float32",
    ),
    "loop": (
        definition(f"for step in range(n):\n{copying(indent='    ')}"),
        "has a loop around what it launches: for step in range(n)",
    ),
    "offset": (
        definition(copying().replace("x[k]", "x[k, 0]"), ROWS.format("elem_offset=4")),
        "takes argument 'x' with an offset of its own",
    ),
}


@pytest.mark.parametrize("name", WORDS)
def test_what_cannot_be_said_is_said_in_words_and_is_an_error_of_the_backend(project: Project, name: str) -> None:
    text, logic = WORDS[name]
    signature = lowered(project, name, text).signature
    assert signature["launches"] is None and signature["host_logic"].startswith(f"the host code {logic}")
    with pytest.raises(KernelwrightError, match=re.escape(logic)) as caught:
        backends.get("cuda_core").check(plan_of([signature]))
    where = caught.value.where
    assert "use the backend tvm_ffi" in str(caught.value)
    assert (where.kernel, where.variant, where.stage) == (name, "default", "wrap")


def test_assertions_vectors_and_strides_are_said_and_the_cpu_has_no_launches(project: Project) -> None:
    text = definition(f'assert n % 4 == 0, "n is odd"\n{copying()}')
    (check,) = lowered(project, "asserting", text).signature["host_checks"]
    assert check == {"error": "RuntimeError", "message": "n is odd", "passes": "(n % 4) == 0"}
    body = f'if n > 3:\n    assert n % 4 == 0, "n is odd"\n{copying(indent="    ")}'
    (check,) = lowered(project, "guarded", definition(body)).signature["host_checks"]
    assert {n: eval(check["passes"], {}, {"n": n}) for n in (3, 4, 5)} == {3: True, 4: True, 5: False}
    text = definition(through_memory("float32x4"), TENSORS.replace("float32", "float32x4"))
    for name, size, expected in (("vectors", "n", 1600), ("constant", "64", 1024)):
        sized = text.replace("alloc_buffer((n,)", f"alloc_buffer(({size},)").replace("middle[k]", f"middle[k % {size}]")
        (workspace,) = lowered(project, name, sized.replace("vectors", name)).signature["workspaces"]
        assert eval(str(workspace["bytes"]), {}, {"n": 100}) == expected
    text = definition(copying().replace("x[k]", "x[k, 0]"), ROWS.format("strides=(8, 1)"))
    signature = lowered(project, "strided", text).signature
    assert (signature["arguments"][0]["strides"], len(signature["launches"])) == ([8, 1], 1)
    file = project.copy("plain")
    signature = json.loads(project.lower(file, "plain")["contents"]["signature.json"])
    assert not {"launches", "host_logic", "workspaces"} & set(signature)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": [1, 2]}, "grid is [1, 2], expected a list of 3"),
        ({"shared": 1.5}, "shared is 1.5, expected an integer or whole characters"),
        ({"params": [{}]}, "dtype"),
        *(
            ({"grid": [expression, 1, 1]}, "signature.json has")
            for expression in ("open('x')", "n.real", "[n]", "lambda: n", "other", "n **", "n ** 2")
        ),
    ],
)
def test_damaged_launches_and_expressions_of_other_kinds_do_not_get_into_generated_code(project, change, message):
    signature = lowered(project, "grid", definition(copying())).signature
    launch = {**signature["launches"][0], **change}
    with pytest.raises(KernelwrightError, match=re.escape(message)):
        backends.get("cuda_core").emit(plan_of([{**signature, "launches": [launch]}]))
