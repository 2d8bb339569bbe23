"""What signature.json says of the host code, beside what TVM's own host code does with the stand-in for the driver."""

from __future__ import annotations

import ast
import json
import math
import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi
from kernelwright import backends
from kernelwright.core.errors import KernelwrightError
from kernelwright.library.plan import LoweredUnit
from launcher_build import FakeTensor, build
from nvrtc_package import Process, make_driver, make_package, plan_of
from support.kernel_library import covering
from workers_project import Project

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

NOTED = ("encode", "launch")
"""What is compared: tensor maps, and the launches behind them."""

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


def copying(grid: str = "n", indent: str = "") -> str:
    """Statements that launch a copy of x to y."""
    return f"""\
{indent}for i in T.thread_binding({grid}, thread="blockIdx.x"):
{indent}    for _ in T.thread_binding(32, thread="threadIdx.x"):
{indent}        with T.sblock("y"):
{indent}            k = T.axis.spatial(n, i)
{indent}            T.where(i < n)
{indent}            y[k] = x[k] + T.float32(1)
"""


def lowered(project: Project, name: str, text: str, arch: str = "sm_90") -> dict[str, Any]:
    """The signature of a kernel lowered for CUDA."""
    file = project.write(f"more/{name}.py", text.replace("NAME", name))
    result = project.lower(str(file.relative_to(project.folder)), name, "cuda", arch)
    return json.loads(result["contents"]["signature.json"])  # type: ignore[no-any-return]


# ---- all kernels of the library


@pytest.fixture(scope="module")
def library(project: Project) -> dict[str, list[dict[str, Any]]]:
    """The signatures of variants of each kernel of this repository that has code for CUDA, with each value of each
    parameter in one of them at least."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path in sorted((project.folder / "kernels").glob("[a-z]*.py")):
        for kernel in project.discover(f"kernels/{path.name}")["kernels"]:
            choices = kernel.get("choices", [])
            of_space = [{**c["config"], **point} for c in choices for point in c["points"].get("cuda", [])]
            wanted = covering(config for config in kernel["configs"] if not choices or config in of_space)
            for slug, config in zip(kernel["slugs"], kernel["configs"], strict=True):
                if config not in wanted:
                    continue
                result = project.lower(f"kernels/{path.name}", kernel["name"], "cuda", slug=slug, config=config)
                found.setdefault(kernel["name"], []).append(json.loads(result["contents"]["signature.json"]))
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


CODES = {"float16": (2, 16, 1), "float32": (2, 32, 1), "bfloat16": (4, 16, 1), "int8": (0, 8, 1), "int32": (0, 32, 1)}


def library_of(folder: Path, signatures: list[dict[str, Any]], lowerings: Path, arch: str = "sm_80") -> Any:
    """The library of a kernel, built of its lowerings."""
    for signature in signatures:
        place = Path(signature["kernel"], signature["slug"], "cuda")
        shutil.copytree(lowerings / place, folder / place)
        (folder / place / f"{arch}.cubin").write_text(arch)
    return tvm_ffi.load_module(str(build(folder, plan_of(signatures, [arch]), extra=["-O0"])))


def by_tvm(
    folder: Path,
    driver: Path,
    signatures: list[dict[str, Any]],
    lowerings: Path,
    monkeypatch: pytest.MonkeyPatch,
    arch: str = "sm_80",
) -> list[str]:
    """What TVM's host code launches, as the stand-in notes it."""
    kernel, log = signatures[0]["kernel"], folder / f"{signatures[0]['kernel']}.log"
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", str(driver / "libcuda.so.1"))
    monkeypatch.setenv("STANDIN_LOG", str(log))
    monkeypatch.setenv("STANDIN_SHARED", str(SHARED))
    module = library_of(folder, signatures, lowerings, arch)
    for number, signature in enumerate(signatures):
        monkeypatch.setenv("STANDIN_PARAMETERS", letters(signature))
        for call in calls_of(signature):
            values = [
                tvm_ffi.from_dlpack(FakeTensor(v[0], CODES[v[1]], device=(2, 0), data=v[2]))
                if isinstance(v, list)
                else v
                for v in call
            ]
            module[f"{kernel}__{number}"](*values)
    return [line for line in log.read_text().splitlines() if line.startswith(NOTED)]


def letters(signature: Mapping[str, Any]) -> str:
    """The types of the parameters of each device function, as the stand-in takes them."""
    functions = signature["device_kernels"]
    return " ".join(f"{f['name']}:{''.join(LETTERS[dtype] for dtype in f['params'])}" for f in functions)


def by_nvrtc(process: Process, library: Mapping[str, list[dict[str, Any]]], **standin: object) -> dict[str, list[str]]:
    """What the generated modules launch, by kernel."""
    work = [
        [name, [[letters(signature), calls_of(signature)] for signature in signatures]]
        for name, signatures in library.items()
    ]
    process.run(
        f"""
        import os
        for name, variants in {work!r}:
            kernel = made.kernel(name)
            for index, (letters, calls) in enumerate(variants):
                os.environ["STANDIN_PARAMETERS"] = letters
                variant = type(kernel)(name, kernel._entry, kernel._module, kernel._shared, index)
                for call in calls:
                    variant(*[on_cuda(v[0], v[1], data=v[2]) if isinstance(v, list) else v for v in call])
        """,
        shared=SHARED,
        **standin,
    )
    launches: dict[str, list[str]] = {name: [] for name in library}
    lines: list[str] = []
    for line in process.log:
        lines += [line] if line.startswith(NOTED) else []
        if line.startswith("launch"):
            launches[re.sub(r"_kernel(_\d+)?$", "", line.split()[1])] += lines
            lines = []
    return launches


def plain(launches: list[str]) -> list[str]:
    """Launches without stream (the default one has two handles), addresses of workspaces and numbers of maps."""
    varying = {r"stream \S+ ": "", "0x[0-9a-f]{8,}": "workspace", r"\bmap \d+": "map"}
    for pattern, replacement in varying.items():
        launches = [re.sub(pattern, replacement, line) for line in launches]
    return launches


def test_all_kernels_launch_what_the_host_code_of_tvm_launches(
    project: Project,
    library: dict[str, list[dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It takes long: TVM lowers all kernels of the library, and each is launched in two ways."""
    assert len(library) >= 16 and all(s["launches"] for signatures in library.values() for s in signatures)
    driver = make_driver(tmp_path / "driver")
    make_package(tmp_path / "package", library)
    launched = by_nvrtc(Process(tmp_path / "package", driver), library)
    for name, signatures in library.items():
        expected = by_tvm(tmp_path, driver, signatures, project.folder / "out", monkeypatch)
        assert len(expected) >= len(SIZES) * len(signatures), name
        assert plain(launched[name]) == plain(expected), name


# ---- kinds of host code

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


def test_kinds_of_host_code_launch_what_the_host_code_of_tvm_launches(
    project: Project, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signatures = {name: [lowered(project, name, kind(name))] for name in KINDS}
    assert [name for name, (signature,) in signatures.items() if signature["launches"] is None] == []
    driver = make_driver(tmp_path / "driver")
    make_package(tmp_path / "package", signatures, ["sm_90"])
    monkeypatch.setenv("STANDIN_CAPABILITY", "90")
    launched = by_nvrtc(Process(tmp_path / "package", driver), signatures, capability=90)
    for name, listed in signatures.items():
        expected = by_tvm(tmp_path, driver, listed, project.folder / "out", monkeypatch, "sm_90")
        assert plain(launched[name]) == plain(expected) != [], name


@pytest.mark.parametrize(
    ("text", "logic"),
    [
        (definition('T.evaluate(T.call_packed("foo.bar", n))\n' + copying()), 'calls T.call_packed("foo.bar", n)'),
        (
            definition('T.evaluate(T.call_extern("int32", "f", n))\n' + copying()),
            'calls T.call_extern("int32", "f", n)',
        ),
        (
            definition(copying(), TENSORS + ", q: T.int32, w: T.Buffer((r,), 'int8')").replace(
                "n, m =", 'r = tirx.Var("q", "int32"); n, m ='
            ),
            "has a size and an argument that are both named 'q'",
        ),
        (
            definition(copying(), TENSORS + ", w: T.Buffer((r,), 'int8')").replace(
                "n, m =", 'r = tirx.Var("größe", "int32"); n, m ='
            ),
            "has a size named 'größe', which is not ASCII",
        ),
        (
            # From 2**31 on this is negative in C, and would not be in Python.
            definition(copying("T.cast(q, 'int32')"), TENSORS + ", q: T.uint32"),
            'computes T.Cast("int32", q)',
        ),
        (
            # Python would compare the number of twice the precision that the caller has passed.
            definition("if q >= T.float32(0.1):\n" + copying(indent="    "), TENSORS + ", q: T.float32"),
            "computes T.float32(0.10000000000000001) in float32",
        ),
    ],
    ids=["packed", "extern", "names", "ascii", "wraps", "rounds"],
)
def test_what_cannot_be_said_is_said_in_words(project: Project, text: str, logic: str) -> None:
    signature = lowered(project, "words", text)
    assert (signature["launches"], signature["host_logic"]) == (None, f"the host code {logic}")


def test_an_assertion_of_the_definition_is_a_check(project: Project) -> None:
    signature = lowered(project, "asserting", definition(f'assert n % 4 == 0, "n is odd"\n{copying()}'))
    assert signature["host_checks"] == [{"error": "RuntimeError", "message": "n is odd", "passes": "(n % 4) == 0"}]


def test_an_assertion_under_a_condition_is_a_check_under_it(project: Project) -> None:
    body = f'if n > 3:\n    assert n % 4 == 0, "n is odd"\n{copying(indent="    ")}'
    (check,) = lowered(project, "guarded", definition(body))["host_checks"]
    assert {n: eval(check["passes"], {}, {"n": n}) for n in (3, 4, 5)} == {3: True, 4: True, 5: False}


def test_a_choice_takes_the_value_of_its_condition(project: Project) -> None:
    text = definition(copying("T.if_then_else(n > 100, n // 2, n) + T.Select(n < 4, 1000, n % 5)"))
    (launch,) = lowered(project, "chosen", text)["launches"]
    assert [eval(launch["grid"][0], {}, {"n": n}) for n in (2, 8, 202)] == [1002, 11, 103]


def test_memory_that_blocks_share_and_ask_for_at_the_launch_is_asked_for(project: Project) -> None:
    body = """
for i in T.thread_binding(n, thread="blockIdx.x"):
    with T.sblock("shares"):
        T.reads(x[0:n])
        T.writes(y[0:n])
        shared = T.alloc_buffer((32,), "float32", scope="shared.dyn")
        for t in T.thread_binding(32, thread="threadIdx.x"):
            shared[t] = x[i]
            y[i] = shared[0]
"""
    (launch,) = lowered(project, "sharing", definition(body))["launches"]
    assert launch["shared"] == 128


def test_divisions_that_round_towards_zero_do_so(project: Project) -> None:
    text = definition(copying("T.truncdiv(q, 3) + T.truncmod(q, 5) + 20"), TENSORS + ", q: T.int32")
    (launch,) = lowered(project, "truncated", text)["launches"]
    names = {"truncdiv": lambda a, b: int(a / b), "truncmod": math.fmod}
    assert [eval(launch["grid"][0], names, {"q": q}) for q in (-7, 7)] == [16, 24]


def test_sizes_of_grids_are_expressions_over_symbols(project: Project) -> None:
    signature = lowered(project, "grid", definition(copying("T.max((n + 127) // 128 * 2, n - 5)")))
    (launch,) = signature["launches"]
    assert launch["grid"][1:] == [1, 1] and launch["block"] == [32, 1, 1] and launch["shared"] == 0
    assert eval(launch["grid"][0], {"max": max}, {"n": 1000}) == 995
    assert ast.unparse(ast.parse(launch["grid"][0])).count("n") >= 2


def test_a_condition_around_launches_is_their_condition(project: Project) -> None:
    body = f"if n > 3:\n{copying(indent='    ')}else:\n{copying('n * 2', indent='    ')}"
    first, second = lowered(project, "branch", definition(body))["launches"]
    for n in (3, 4):
        taken = [eval(launch["when"], {}, {"n": n}) for launch in (first, second)]
        assert taken == [n > 3, n <= 3]


def test_a_condition_within_a_condition_holds_together_with_it(project: Project) -> None:
    body = f"if n > 3:\n    if n % 2 == 0:\n{copying(indent='        ')}    else:\n{copying(indent='        ')}"
    launches = lowered(project, "nested", definition(body))["launches"]
    taken = {n: [eval(launch["when"], {}, {"n": n}) for launch in launches] for n in (2, 3, 4, 5)}
    assert taken == {2: [False, False], 3: [False, False], 4: [True, False], 5: [False, True]}


def test_temporary_memory_of_vectors_has_room_for_all_their_lanes(project: Project) -> None:
    parameters = TENSORS.replace("float32", "float32x4")
    body = (
        'middle = T.alloc_buffer((n,), "float32x4")\n'
        + copying().replace("y[k] = x[k] + T.float32(1)", "middle[k] = x[k]")
        + copying().replace("x[k] + T.float32(1)", "middle[k]").replace('"y"', '"z"')
    )
    (workspace,) = lowered(project, "vectors", definition(body, parameters))["workspaces"]
    assert eval(str(workspace["bytes"]), {}, {"n": 100}) == 1600


def test_temporary_memory_is_a_workspace(project: Project) -> None:
    body = (
        'middle = T.alloc_buffer((n,), "float32")\n'
        + copying().replace("y[k]", "middle[k]")
        + copying().replace("x[k]", "middle[k]").replace('"y"', '"z"')
    )
    signature = lowered(project, "middle", definition(body))
    assert [eval(str(w["bytes"]), {}, {"n": 100}) for w in signature["workspaces"]] == [400]
    used = [[next(iter(p.items())) for p in launch["params"] if "scalar" not in p] for launch in signature["launches"]]
    assert sorted(used[0]) == [("tensor", "x"), ("workspace", 0)]
    assert sorted(used[1]) == [("tensor", "y"), ("workspace", 0)]


def test_a_loop_of_launches_is_no_data(project: Project) -> None:
    signature = lowered(project, "loop", definition(f"for step in range(n):\n{copying(indent='    ')}"))
    assert signature["launches"] is None
    assert signature["host_logic"].startswith("the host code has a loop around what it launches: for step in range(n)")


def test_strides_of_an_argument_are_data_and_an_offset_is_none(project: Project) -> None:
    body = copying().replace("x[k]", "x[k, 0]")
    with_strides = 'x: T.Buffer((n, 4), "float32", strides=(8, 1)), y: T.Buffer((n,), "float32")'
    signature = lowered(project, "strided", definition(body, with_strides))
    assert (signature["arguments"][0]["strides"], len(signature["launches"])) == ([8, 1], 1)
    with_offset = with_strides.replace("strides=(8, 1)", "elem_offset=4")
    signature = lowered(project, "shifted", definition(body, with_offset))
    assert signature["launches"] is None
    assert signature["host_logic"] == "the host code takes argument 'x' with an offset of its own"


def test_the_cpu_has_no_launches(project: Project) -> None:
    file = project.copy("plain")
    signature = json.loads(project.lower(file, "plain")["contents"]["signature.json"])
    assert not {"launches", "host_logic", "workspaces"} & set(signature)


def test_host_code_that_is_no_data_is_an_error_of_the_backend(project: Project) -> None:
    signature = lowered(project, "loop", definition(f"for step in range(n):\n{copying(indent='    ')}"))
    with pytest.raises(KernelwrightError) as caught:
        backends.get("nvrtc").check(plan_of([signature]))
    text = str(caught.value)
    assert "loop around what it launches" in text and "use the backend tvm_ffi" in text
    assert (caught.value.where.kernel, caught.value.where.variant, caught.value.where.stage) == (
        "loop",
        "default",
        "wrap",
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"grid": [1, 2]}, "grid is [1, 2], expected three expressions"),
        ({"shared": 1.5}, "shared is 1.5, expected an integer or an expression"),
        ({"params": [{}]}, "dtype"),
    ],
)
def test_damaged_launches_are_refused(project: Project, change: dict[str, Any], message: str) -> None:
    signature = lowered(project, "grid", definition(copying()))
    launch = {**signature["launches"][0], **change}
    with pytest.raises(KernelwrightError, match=re.escape(message)):
        LoweredUnit.from_json({**signature, "launches": [launch]}, "host.c")


@pytest.mark.parametrize("expression", ["open('x')", "n.real", "[n]", "lambda: n", "other", "n **", "n ** 2"])
def test_expressions_of_other_kinds_do_not_get_into_generated_code(project: Project, expression: str) -> None:
    signature = lowered(project, "grid", definition(copying()))
    launch = {**signature["launches"][0], "grid": [expression, 1, 1]}
    with pytest.raises(KernelwrightError, match=r"signature\.json has"):
        backends.get("nvrtc").emit(plan_of([{**signature, "launches": [launch]}]))


# ---- wrong calls

WRONG = {
    "saxpy": [
        [1.5],
        [1.5, [[5], "float32", 16], [[6], "float32", 16], [[5], "float32", 16]],
        [1.5, [[5], "float32", 16], [[5], "float32", 16], [[6], "float32", 16]],
        [1.5, [[5], "float32", 16], [[5], "float32", 3], [[5], "float32", 16]],
        [1.5, [[5], "float32", 0], [[5], "float32", 16], [[5], "float32", 16]],
        [1.5, [[5], "float32", 16, [2]], [[5], "float32", 16], [[5], "float32", 16]],
        [1.5, [[5], "float32", 16], [[5], "float32", 16], [[5], "float32", 16], 7],
        [1.5, 3, [[5], "float32", 16], [[5], "float32", 16]],
        [1.5, None, [[5], "float32", 16], [[5], "float32", 16]],
        [1.5, [[2**31 - 1], "float32", 16], [[5], "float32", 16], [[5], "float32", 16]],
    ],
    "rms_norm": [
        [[[3, 4096], "float32", 16], [[4096], "float16", 16], [[3, 4096], "float32", 16]],
        [[[3, 100], "float32", 16], [[100], "float32", 16], [[3, 100], "float32", 16]],
        [[[3, 4096], "float32", 16], [[4096], "float32", 16], [[4, 4096], "float32", 16]],
        [[[3, 4096], "float32", 16, [1, 3]], [[4096], "float32", 16], [[3, 4096], "float32", 16]],
        [[[2**20, 4096], "float32", 16], [[4096], "float32", 16]],
    ],
}
"""Calls by kernel, as :func:`calls_of` has them; an array may have strides as well."""

REPORT = """
import json
from pathlib import Path
messages = []
for name, calls in json.loads(Path("{path}").read_text()).items():
    kernel = made.kernel(name)
    for call in calls:
        values = [
            on_cuda(v[0], v[1], data=v[2], strides=v[3] if len(v) > 3 else None) if isinstance(v, list) else v
            for v in call
        ]
        try:
            kernel(*values)
            messages.append("nothing was raised")
        except Exception as error:
            messages.append(f"{{type(error).__name__}}: {{error}}")
print(json.dumps(messages))
"""


def messages_of_library(module: Any, name: str) -> list[str]:
    messages = []
    for call in WRONG[name]:
        values = [
            tvm_ffi.from_dlpack(FakeTensor(v[0], CODES[v[1]], device=(2, 0), data=v[2], strides=(*v, None)[3]))
            if isinstance(v, list)
            else v
            for v in call
        ]
        try:
            module[name](*values)
            messages.append("nothing was raised")
        except (TypeError, ValueError) as error:
            messages.append(f"{type(error).__name__}: {error}")
    return messages


def test_wrong_calls_get_the_words_of_the_library(
    project: Project,
    library: dict[str, list[dict[str, Any]]],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver = make_driver(tmp_path / "driver")
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", str(driver / "libcuda.so.1"))
    make_package(tmp_path / "package", {name: library[name] for name in WRONG})
    (tmp_path / "calls.json").write_text(json.dumps(WRONG))
    found = json.loads(Process(tmp_path / "package", driver).run(REPORT.format(path=tmp_path / "calls.json")))
    expected = []
    for name in WRONG:
        module = library_of(tmp_path, library[name], project.folder / "out")
        expected += messages_of_library(module, name)
    for own, theirs in zip(found, expected, strict=True):
        # NumPy has no arrays on CUDA.
        assert own == theirs.replace("numpy.", "cupy.") != "nothing was raised"
