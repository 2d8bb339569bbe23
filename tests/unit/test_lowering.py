"""Lowering in real workers: schedules, signatures, symbols, errors, and equal bytes for equal inputs."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.errors import DefinitionError, LoweringError
from support.launcher_build import scalar, tensor
from support.workers_project import Project

HEAD = """\
from kernelwright import grid, kernel
from tvm import te, tirx
from tvm.script import ir as I
from tvm.script import tirx as T

"""

MATMUL = """
@kernel(configs=grid(dtype=["float32", "float16"]), outputs=["c"])
def matmul(dtype):
    m = te.var("m")
    a = te.placeholder((m, 1024), dtype, name="a")
    b = te.placeholder((1024, 1024), dtype, name="b")
    k = te.reduce_axis((0, 1024), name="k")
    c = te.compute((m, 1024), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return te.create_prim_func([a, b, c])
"""

SOFTMAX = """
@kernel(outputs=["y"])
def softmax():
    n = te.var("n")
    x = te.placeholder((n, 64), "float32", name="x")
    k1, k2 = te.reduce_axis((0, 64), name="k1"), te.reduce_axis((0, 64), name="k2")
    top = te.compute((n,), lambda i: te.max(x[i, k1], axis=k1), name="top")
    e = te.compute((n, 64), lambda i, j: te.exp(x[i, j] - top[i]), name="e")
    total = te.compute((n,), lambda i: te.sum(e[i, k2], axis=k2), name="total")
    return te.create_prim_func([x, te.compute((n, 64), lambda i, j: e[i, j] / total[i], name="y")])
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Project]:
    project = Project(tmp_path_factory.mktemp("lowering"))
    with project.pool:
        yield project


def lowered(project: Project, kernel: str, text: str, target: str = "llvm", **more: Any) -> dict[str, Any]:
    """The result of lowering a kernel, with its parsed signature."""
    file = project.write(f"kernels/{kernel}.py", HEAD + text)
    result = project.lower(str(file.relative_to(project.folder)), kernel, target, **more)
    return {**result, "signature": json.loads(result["contents"]["signature.json"])}


def body(function: str, decorator: str = "@kernel", name: str = "k") -> str:
    """A definition whose function is the given TVMScript."""
    lines = "\n".join("    " + line for line in function.strip("\n").splitlines())
    return f"{decorator}\ndef {name}():\n{lines}\n    return main\n"


SHAPES = body(
    """
n, m = tirx.Var("n", "int32"), tirx.Var("m", "int64")
@T.prim_func(s_tir=True)
def main(
    alpha: T.float32,
    x: T.Buffer((n, 4), "float16"),
    y: T.Buffer((2 * n + 1, T.max(n, 3), (n + 3) // 4 % 5), "int8"),
    z: T.Buffer((m - 1, T.min(m, 7)), "bool"),
    w: T.Buffer((m,), "float32"),
    n_rows: T.int64,
):
    for i in range(n):
        with T.sblock("x"):
            j = T.axis.spatial(n, i)
            x[j, 0] = x[j, 0] + T.cast(alpha, "float16")
            w[0] = T.float32(0)
""",
    '@kernel(outputs=["w"])',
)


def test_the_signature_says_names_types_shapes_and_what_is_written(project: Project) -> None:
    signature = lowered(project, "k", SHAPES)["signature"]
    assert signature["arguments"] == [
        scalar("alpha", "float32"),
        tensor("x", "float16", ["n", 4]) | {"written": True},
        tensor("y", "int8", ["(2 * n) + 1", "max(n, 3)", "((n + 3) // 4) % 5"]),
        tensor("z", "bool", ["m - 1", "min(m, 7)"]),
        tensor("w", "float32", ["m"], output=True),
        scalar("n_rows", "int64"),
    ]
    assert list(signature["symbols"].items()) == [("n", "int32"), ("m", "int64")]
    assert signature["entry"] == "kw_k__default__x86_64_v3"
    assert signature["schedule"] == "as written"
    assert signature["device_kernels"] == [] and signature["config"] == {} and signature["schema"] == 1
    path = project.folder / "host.o"
    path.write_bytes(lowered(project, "k", SHAPES)["contents"]["host.o"])
    table = subprocess.run(["nm", "-g", "--defined-only", path], capture_output=True, text=True, check=True).stdout
    strong = [line.split()[2] for line in table.splitlines() if line.split()[1] not in "WV"]
    assert strong == ["kw_k__default__x86_64_v3"]
    assert "__tvm_ffi_main" not in table


def test_an_unscheduled_function_is_scheduled_for_the_gpu_and_its_host_code_has_the_kernels_name(project):
    result = lowered(project, "softmax", SOFTMAX, "cuda")
    assert result["files"] == ("device.cu", "host.c", "module.tir", "signature.json")
    assert result["schedule"] == result["signature"]["schedule"] == "dlight.gpu.GeneralReduction"
    (kernel,) = result["signature"]["device_kernels"]
    assert {"blockIdx.x", "threadIdx.x"} <= set(kernel.pop("launch"))
    assert kernel == {"name": "softmax_kernel", "params": ["handle", "handle", "int32"]}
    assert b"__global__" in result["contents"]["device.cu"]
    assert b"thread=" in result["contents"]["module.tir"]
    contents = result["contents"]
    assert b'"softmax(x: Tensor([n, 64], float32), y: Tensor([n, 64], float32))"' in contents["host.c"]
    assert b"int32_t kw_softmax__default__cuda(void* self_handle" in contents["host.c"]
    assert b"__tvm_ffi_softmax" not in contents["host.c"]


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_matmul_rule_does_not_crash_tvm(project: Project, dtype: str) -> None:
    # The part that crashes, and that takes long to import, is not even imported.
    hook = 'lambda event, arguments: event == "import" and print("imports", arguments[0])'
    text = f"import sys\nsys.addaudithook({hook})\nimport colorsys\n{MATMUL}"
    result = lowered(project, "matmul", text, "cuda", slug=f"dtype-{dtype}", config={"dtype": dtype})
    assert result["schedule"] == "dlight.gpu.Matmul"
    printed = "".join(project.printed)
    assert "imports colorsys\n" in printed and "tensor_intrin.cuda" not in printed


def test_a_rule_that_fails_falls_through_to_the_next_and_the_list_of_the_ir_says_which_passes_are_whose(
    project: Project, tmp_path: Path
) -> None:
    text = MATMUL.replace('te.var("m")', 'te.var("m", "int64")')
    asked = {"slug": "dtype-float32", "config": {"dtype": "float32"}}
    shown = lowered(project, "matmul", text, "cuda", **asked, ir=str(tmp_path))
    plain = lowered(project, "matmul", text, "cuda", **asked)
    assert plain["schedule"] == "dlight.gpu.Fallback"
    assert shown["contents"] == plain["contents"] and shown["dependencies"] == plain["dependencies"]
    lines = (tmp_path / "index.txt").read_text().splitlines()
    tried = [line.removeprefix("# ") for line in lines[1:] if line.startswith("#")]
    assert tried[0] == "scheduling with dlight.gpu.Matmul" and tried[-1] == "lowering (dlight.gpu.Fallback)"
    files = [line.split()[0] for line in lines if not line.startswith("#")]
    assert files == sorted(path.name for path in tmp_path.glob("*.tir"))
    assert lines.index(f"# {tried[-1]}") < len(lines) - 40, "the passes of the rule that worked follow"


def test_ir_that_tvm_cannot_print_does_not_disturb_the_lowering(project: Project, tmp_path: Path) -> None:
    text = "import tvm\ntvm.IRModule.script = lambda self, **options: 1 / 0\n" + SOFTMAX.replace("softmax", "silent")
    result = lowered(project, "silent", text, "llvm", ir=str(tmp_path))
    assert {"module.tir", "signature.json", "host.o"} == result["contents"].keys()
    content = (tmp_path / "001-tirx.BindTarget.tir").read_text()
    assert content == "# TVM cannot print this module: ZeroDivisionError: division by zero\n"


def test_a_function_that_no_rule_schedules_is_an_error_that_lists_the_rules(project: Project) -> None:
    text = body("""
@T.prim_func(s_tir=True)
def main(x: T.Buffer((32,), "int32")):
    for i in range(32):
        with T.sblock("a"):
            j = T.axis.spatial(32, i)
            x[j] = x[j] + 1
""")
    with pytest.raises(LoweringError, match="no thread bindings") as caught:
        lowered(project, "k", text, "cuda")
    for rule in ("Matmul", "GEMV", "Reduction", "GeneralReduction", "Transpose", "Fallback"):
        assert f"dlight.gpu.{rule}: " in str(caught.value.detail)
    assert "T.thread_binding" in str(caught.value.remedy)


LOOPS = """
@T.prim_func{mode}
def main(x: T.Buffer((8,), "float32"), y: T.Buffer((8,), "float32")):
    for i in range(8):
        {body}
"""
WITHOUT_AXES = "with T.sblock('y'):\n            y[i] = x[i] * T.float32(2)"


@pytest.mark.parametrize(
    ("mode", "inner"),
    [
        ("", "y[i] = x[i] * T.float32(2)"),
        ("(s_tir=True)", "y[i] = x[i] * T.float32(2)"),
        ("(s_tir=True)", WITHOUT_AXES),
    ],
)
def test_plain_loops_are_an_error_on_the_gpu_that_shows_a_block(project: Project, mode: str, inner: str) -> None:
    text = body(LOOPS.format(mode=mode, body=inner))
    with pytest.raises(LoweringError, match="plain loops: its body needs blocks") as caught:
        lowered(project, "k", text, "cuda")
    example = str(caught.value.detail)
    assert "dlight" not in str(caught.value) and "T.sblock" in example
    assert "block" in str(caught.value.remedy) and "T.thread_binding" in str(caught.value.remedy)
    # What the message shows can be scheduled, and on the CPU plain loops are code as any other.
    assert lowered(project, "k", body(example), "cuda")["schedule"] == "dlight.gpu.Fallback"
    assert lowered(project, "k", text, "llvm")["schedule"] == "as written"


PLAIN = """
@T.prim_func{mode}
def main(x: T.Buffer((128,), "float32"), y: T.Buffer((128,), "float32")):
    {bind}
"""
LOOP = "for i in T.thread_binding(128, thread='threadIdx.x'):\n        y[i] = x[i]"


def test_a_function_with_loop_annotations_is_left_as_written_on_the_cpu(project: Project) -> None:
    text = SOFTMAX.replace("return te", "function = te").rstrip() + "\n    return function\n"
    assert lowered(project, "softmax", text)["schedule"] == "dlight.cpu.Reduction"
    scheduled = text.replace(
        "    return function",
        "    from tvm import s_tir\n    s = s_tir.Schedule(function)\n"
        "    s.parallel(s.get_loops(s.get_sblock('y'))[0])\n    return s.mod['main']",
    )
    assert lowered(project, "softmax", scheduled)["schedule"] == "as written"


def test_a_definition_gets_the_target_that_it_is_lowered_for(project: Project) -> None:
    text = """
@kernel
def k(target):
    n = {"llvm": 3, "cuda": 5}[target.kind.name]
    x = te.placeholder((n,), "float32", name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] + 1.0, name="y")])
"""
    for target, size in (("llvm", 3), ("cuda", 5)):
        assert lowered(project, "k", text, target)["signature"]["arguments"][0]["shape"] == [size]


MODULE = """
@kernel
def k():
    @I.ir_module
    class Module:
        @T.prim_func(s_tir=True)
        def {first}(x: T.Buffer((4,), "float32")):
            for i in range(4):
                x[i] = T.float32(1)
        @T.prim_func(s_tir=True)
        def {second}(x: T.Buffer((4,), "float32")):
            for i in range(4):
                x[i] = T.float32(2)
    return Module
"""


def test_the_entry_of_a_module_is_called_main_unless_it_is_the_only_function(project: Project) -> None:
    text = MODULE.format(first="one", second="two")
    with pytest.raises(DefinitionError, match="its public functions are: one, two"):
        lowered(project, "k", text)
    alone = text[: text.rindex("        @T.prim_func")] + "    return Module\n"
    assert lowered(project, "k", alone)["signature"]["arguments"][0]["name"] == "x"


WRITES = """
@T.prim_func(s_tir=True)
def main(a: T.Buffer((16,), "float32"), b: T.Buffer((16,), "float32"), c: T.Buffer((16,), "float32"),
         d: T.Buffer((16,), "float32"), e: T.Buffer((16,), "float32"), f: T.Buffer((4,), "float32"),
         g: T.Buffer((4,), "float32")):
    with T.sblock("view"):
        T.reads(e[0:16], a[0:16], b[0:16], c[0:16])
        T.writes(d[0:16])
        view = T.match_buffer(d[0:16], (16,), "float32", offset_factor=1)
        seen = T.match_buffer(e[0:16], (16,), "float32", offset_factor=1)
        view[0] = a[0] + seen[0]
        T.evaluate(T.call_extern("int32", "f", b.access_ptr("r"), c.access_ptr("w")))
        T.evaluate(T.call_extern("int32", "fill", f.data, T.address_of(g[0])))
"""


def test_writes_through_views_and_pointers_count(project: Project) -> None:
    arguments = lowered(project, "k", body(WRITES, "@kernel(outputs=[5, 6])"))["signature"]["arguments"]
    written = {a["name"]: a["written"] for a in arguments}
    assert written == {"a": False, "b": False, "c": True, "d": True, "e": False, "f": True, "g": True}


VECTORS = """
@T.prim_func(s_tir=True)
def main(x: T.Buffer((64,), "float32"), y: T.Buffer((64,), "float32"), z: T.Buffer((64,), "float32", align=32)):
    for b in T.parallel(16):
        for v in T.vectorized(4):
            with T.sblock("y"):
                i = T.axis.spatial(64, b * 4 + v)
                y[i] = x[i]
        with T.sblock("z"):
            j = T.axis.spatial(64, b)
            z[j] = T.float32(1)
"""


def test_cpu_code_needs_no_more_than_the_elements_alignment(project: Project) -> None:
    result = lowered(project, "k", body(VECTORS))
    assert [a.get("alignment") for a in result["signature"]["arguments"]] == [None, None, 32]
    path = project.folder / "vectors.o"
    path.write_bytes(result["contents"]["host.o"])
    code = subprocess.run(["objdump", "-d", path], capture_output=True, text=True, check=True).stdout
    start = code.index("__tvm_parallel_lambda") if "__tvm_parallel_lambda" in code else 0
    moves = [line for line in code[start:].splitlines() if "vmovap" in line and "(%rsp)" not in line]
    assert not [line for line in moves if "(%r" in line], moves


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (body(PLAIN.format(mode="", bind=LOOP), '@kernel(outputs=["out"])'), "tensor arguments are x, y"),
        (body("@T.prim_func\ndef main(p: T.handle('float32')):\n    T.evaluate(0)"), "plain pointer"),
        (
            "@kernel\ndef k():\n    x = te.placeholder((4,), 'float32', name='a.b')\n"
            "    return te.create_prim_func([x, te.compute((4,), lambda i: x[i], name='y')])",
            "'a.b' cannot be the name",
        ),
        (
            "@kernel\ndef k():\n    x = te.placeholder((te.var('n'),), 'float32', name='x')\n"
            "    y = te.placeholder((te.var('n'),), 'float32', name='y')\n"
            "    return te.create_prim_func([x, y, te.compute((4,), lambda i: x[i] + y[i], name='z')])",
            "two different size variables are named 'n'",
        ),
        *(
            (
                f"@kernel\ndef k():\n    n = m = te.var({name!r})\n    for i in range({terms}): m = tirx.Add(m, n)\n"
                "    x = te.placeholder((m,), 'float32', name='x')\n"
                "    return te.create_prim_func([x, te.compute((4,), lambda i: x[0], name='y')])",
                what,
            )
            for name, terms, what in (
                *((name, 0, f"a size variable is named {name!r}, which cannot be") for name in ("in", "n.a", "0", "")),
                ("n", 600, "a size of argument 'x' has too many terms inside of one another"),
            )
        ),
    ],
)
def test_arguments_that_cannot_be_called_are_errors(project: Project, text: str, what: str) -> None:
    with pytest.raises(DefinitionError, match=what.replace(".", r"\.")) as caught:
        lowered(project, "k", text)
    assert str(caught.value.where.location).startswith("kernels/k.py:")


def test_outputs_are_listed_by_position_or_name_and_what_does_not_fit_is_an_error_at_the_definition(project):
    def text(outputs: object) -> str:
        return body(PLAIN.format(mode="", bind=LOOP), f"@kernel(outputs={outputs})")

    for outputs in ([-1], [1], ["y"]):
        arguments = lowered(project, "k", text(outputs), "cuda")["signature"]["arguments"]
        assert [argument["output"] for argument in arguments] == [False, True]
    with pytest.raises(DefinitionError, match=r"position 2, but there are 2 arguments \(x, y\)") as caught:
        lowered(project, "k", text([2]))
    assert str(caught.value.where.location).startswith("kernels/k.py:")
    with pytest.raises(DefinitionError, match="outputs names 'alpha', which is no tensor argument"):
        lowered(project, "k", SHAPES.replace('outputs=["w"]', "outputs=[0]"))


READER = """
@kernel(outputs=[OUTPUTS])
def reader():
    n = te.var("n")
    x = te.placeholder((n,), "float32", name="x")
    return te.create_prim_func([x, te.compute((n,), lambda i: x[i] * 2.0, name="y")])
"""


@pytest.mark.parametrize(
    ("target", "outputs", "shown"),
    [("llvm", "0", "0, which is 'x'"), ("cuda", "-2", "-2, which is 'x'"), ("cuda", "'x'", "'x'")],
)
def test_an_output_that_is_only_read_is_an_error(project: Project, target: str, outputs: str, shown: str) -> None:
    with pytest.raises(DefinitionError) as caught:
        lowered(project, "reader", READER.replace("OUTPUTS", outputs), target)
    assert caught.value.message == f"outputs lists {shown}, and the function does not write it"
    assert (caught.value.where.kernel, caught.value.where.location) == ("reader", "kernels/reader.py:7")
    assert caught.value.remedy == "list what it writes: y"


def test_an_unknown_cpu_arch_and_a_failure_inside_tvm_are_errors_at_their_place(project: Project) -> None:
    with pytest.raises(LoweringError, match="'x86-64-v9'") as caught:
        lowered(project, "k", SHAPES, arch="x86-64-v9")
    assert "x86-64-v" in str(caught.value.remedy)
    text = body("""
n, k = tirx.Var("n", "int32"), tirx.Var("k", "int32")
@T.prim_func(s_tir=True)
def main(x: T.Buffer((n * k,), "float32")):
    for i in range(n):
        x[i] = T.float32(1)
""")
    with pytest.raises(LoweringError, match=r"TVM cannot lower the function for llvm \(x86-64-v3\)") as caught:
        lowered(project, "k", text)
    where = caught.value.where
    assert (where.kernel, where.variant, where.stage) == ("k", "default", "lower")
    assert str(where.location).startswith("kernels/k.py:")


SLUGS = """
@kernel(configs=[{"s": "a-b"}, {"s": "a_b"}, {"s": "c"}])
def k(s):
    x = te.placeholder((4,), "float32", name="x")
    return te.create_prim_func([x, te.compute((4,), lambda i: x[i], name="y")])
"""


@pytest.mark.parametrize("target", ["llvm", "cuda"])
def test_a_config_that_is_not_listed_is_lowered_as_if_it_were_the_last_one(project: Project, target: str) -> None:
    asked = {"config": {"s": "a-b"}, "slug": "s-a-b"}
    few = SLUGS.replace('{"s": "a-b"}, {"s": "a_b"}, {"s": "c"}', '{"s": "c"}, {"s": "a_b"}')
    unlisted = lowered(project, "k", few, target, **asked, listed=False)
    listed = lowered(project, "k", few.replace('"a_b"}', '"a_b"}, {"s": "a-b"}'), target, **asked)
    assert unlisted["contents"] == listed["contents"]
    assert unlisted["signature"]["entry"].isidentifier()


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"t": 1}, "config key 't' is not a parameter of the definition"),
        ({}, "gives no value for parameter 's'"),
        ({"s": [1]}, "is not a bool, int, float or str"),
        ({"s": float("nan")}, "is equal to nothing"),
    ],
)
def test_a_config_that_is_not_listed_is_checked_as_those_that_are(project, config, told):
    with pytest.raises(DefinitionError, match=told) as caught:
        lowered(project, "k", SLUGS, config=config, slug="s-e", listed=False)
    where = caught.value.where
    assert (where.kernel, where.variant, where.stage) == ("k", "s-e", "lower")
    assert where.location == f"kernels/k.py:{(HEAD + SLUGS).splitlines().index(SLUGS.splitlines()[1]) + 1}"
    with pytest.raises(DefinitionError, match="has another config"):  # the file was edited during the build
        lowered(project, "k", SLUGS, config={"s": "d"}, slug="s-e", listed=False)


QUADS = body("""
@T.prim_func(s_tir=True)
def main(x: T.Buffer((1024,), "float32"), y: T.Buffer((1024,), "float32")):
    for b in T.thread_binding(8, thread="blockIdx.x"):
        for t in T.thread_binding(32, thread="threadIdx.x"):
            for v in T.vectorized(4):
                with T.sblock("y"):
                    j = T.axis.spatial(1024, b * 128 + t * 4 + v)
                    y[j] = x[j] * T.float32(2)
""")


def test_pass_configs_are_those_of_the_whole_lowering_and_fields_of_an_object_are_a_dict(project):
    vectors = lowered(project, "k", QUADS, "cuda")["contents"]["device.cu"].decode()
    given = {"tirx.disable_vectorize": True}
    scalars = lowered(project, "k", QUADS, "cuda", pass_configs=given)["contents"]["device.cu"].decode()
    assert "float4" in vectors and "float4" not in scalars
    again = lowered(project, "k", QUADS, "cuda")["contents"]["device.cu"].decode()
    assert again == vectors, "they end with the request"
    merged = lowered(project, "softmax", SOFTMAX, "cuda", pass_configs={"tirx.merge_static_smem": True})
    plain = lowered(project, "softmax", SOFTMAX, "cuda")
    assert merged["contents"]["module.tir"] != plain["contents"]["module.tir"], "schedules see them, too"
    loop = QUADS.replace("T.vectorized(4)", "T.serial(4)")
    rolled = lowered(project, "k", loop, "cuda")["contents"]["device.cu"].decode()
    given = {"tirx.UnrollLoop": {"auto_max_step": 64, "explicit_unroll": 1}}
    unrolled = lowered(project, "k", loop, "cuda", pass_configs=given)["contents"]["device.cu"].decode()
    assert rolled.count("2.0") == 1 and unrolled.count("2.0") == 4


NO_SUCH, OF_TYPE, UNROLL = (
    "TVM has 35 pass configs, and '{}' is none of them",
    "TVM expects a value of type ",
    "tirx.UnrollLoop",
)


@pytest.mark.parametrize(
    ("pass_configs", "told", "remedy"),
    [
        ({"tirx.disable_vectorise": True}, NO_SUCH.format("tirx.disable_vectorise"), "tirx.disable_vect"),
        ({"zzz": True}, NO_SUCH.format("zzz"), "they are relax.FuseOps.max_depth, "),
        ({"tirx.disable_vectorize": 1}, f"'tirx.disable_vectorize' is 1, {OF_TYPE}bool", "True or False"),
        ({"tirx.disable_vectorize": "yes"}, f"is 'yes', {OF_TYPE}bool", "True or False"),
        ({"tirx.vtcm_capacity": True}, f"is True, {OF_TYPE}int", "a whole number"),
        ({"tirx.add_lower_pass": {}}, "TVM expects an object of type ffi.Array, which is no data", "leave it out"),
        ({UNROLL: 4}, "expects a tirx.transform.UnrollLoopConfig: write a dict", r"auto_max_step \(int\)"),
        ({UNROLL: {"max_step": 4}}, "has no field 'max_step'", r"auto_max_step \(int\)"),
        ({UNROLL: {"auto_max_step": "4"}}, "field 'auto_max_step', is '4', TVM expects .* type int", "whole"),
        ({UNROLL: {"auto_max_step": 2**40}}, "which TVM takes for something else", "smaller number"),
    ],
)
def test_pass_configs_that_tvm_does_not_have_are_errors_wherever_they_come_from(project, pass_configs, told, remedy):
    declared = QUADS.replace("@kernel", f"@kernel(pass_configs={pass_configs!r})")
    for text, asked in ((QUADS, {"pass_configs": pass_configs}), (declared, {})):
        with pytest.raises(DefinitionError, match=told) as caught:
            lowered(project, "k", text, "cuda", **asked)
        where = caught.value.where
        assert re.search(remedy, str(caught.value.remedy))
        assert (where.kernel, where.stage, where.location) == ("k", "lower", "kernels/k.py:6")


def test_equal_inputs_give_equal_bytes_in_any_process_folder_and_order(tmp_path: Path) -> None:
    texts = {"softmax": SOFTMAX, "k": SHAPES, "matmul": MATMUL}
    jobs = [("softmax", "cuda"), ("k", "llvm"), ("matmul", "cuda")]

    def everything(folder: Path, order: list[tuple[str, str]]) -> dict[tuple[str, str], dict[str, bytes]]:
        results = {}
        with Project(folder).pool as pool:
            project = Project(folder)
            project.pool = pool
            for kernel, target in order:
                extra = {"slug": "dtype-float32", "config": {"dtype": "float32"}} if kernel == "matmul" else {}
                results[kernel, target] = lowered(project, kernel, texts[kernel], target, **extra)["contents"]
        return results

    (tmp_path / "a").mkdir()
    (tmp_path / "a much longer folder/b").mkdir(parents=True)
    first = everything(tmp_path / "a", jobs)
    second = everything(tmp_path / "a much longer folder/b", jobs[::-1] + jobs[:1])
    assert first == second
    for contents in first.values():
        for name, content in contents.items():
            assert str(tmp_path).encode() not in content, name
