"""``kernelwright record`` and ``kernelwright.triton.record``: what a program asks Triton for, without a GPU."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import random
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from kernelwright.core.errors import DefinitionError, KernelwrightError, Where
from kernelwright.frontends.triton import stand_in
from kernelwright.frontends.triton.recorded_function import found as found_function
from kernelwright.frontends.triton.recording import Recording, Specialization, parse, text_of
from kernelwright.triton import record
from support.project import SITE_SCONS
from support.recorded import recorded

for needed in ("triton", "torch"):
    if importlib.util.find_spec(needed) is None:
        pytest.skip(f"{needed} is not installed", allow_module_level=True)

PROGRAM = '''\
"""Calls functions of Triton in many ways."""

import sys

import torch
import triton
import triton.language as tl
from shared import doubled, scaled

assert __name__ == "__main__" and sys.argv == ["ops.py", "first", "--second"], sys.argv


@triton.jit
def copy(x, y, n, step, mask, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at * step, doubled(tl.load(x + at * step, at < n)), at < n)


@triton.autotune([triton.Config({"BLOCK": b}, num_warps=w) for b in (64, 128) for w in (4, 8)], key=["n"])
@triton.heuristics({"EVEN": lambda arguments: arguments["n"] % arguments["BLOCK"] == 0})
@triton.jit
def tuned(x, n, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    pass


@triton.jit(do_not_specialize=["a"], do_not_specialize_on_alignment=["b"])
def numbers(a, b, c, d: tl.int64, e, f, g):
    pass


@triton.jit
def constants(pair, KIND: tl.constexpr, APPLY: tl.constexpr, LIMIT: tl.constexpr, SHAPE: tl.constexpr):
    pass


x = torch.zeros(256, device="cuda")
for n in (100, 101, 112):
    copy[(1,)](x, x[16:], n, 1, None, 128)
copy[(1,)](x[1:], x.half(), 100, x.view(16, 16).stride(0), x, BLOCK=128, num_warps=8, num_stages=2)
tuned[(1,)](x, 128)
tuned[lambda meta: (triton.cdiv(100, meta["BLOCK"]),)](x, 100)
numbers[(1,)](1, 16, 1, 16, True, 2.5, 2**40)
numbers[(1,)](16, 1, 16, 7, False, 1.0, 2**63)
constants[(1,)]((x, None, (1, 5, 2.0)), tl.bfloat16, doubled, float("-inf"), (4, ("a", None)))
scaled(x)
sys.exit(0)
'''
SHARED = """\
import triton
import triton.language as tl


@triton.jit
def doubled(x):
    return x * 2


@triton.jit
def scale(x, FACTOR: tl.constexpr):
    pass


def scaled(x):
    scale[(1,)](x, x.numel() / 2)
"""
BLOCKS = [({"BLOCK": block}, {} if warps == 4 else {"num_warps": warps}) for block in (64, 128) for warps in (4, 8)]
COPY = {"x": "*fp32 16", "y": "*fp32 16"}
EXPECTED = [
    *(("ops:copy", {**COPY, "n": n}, {"step": 1, "mask": None, "BLOCK": 128}, {}) for n in ("i32", "i32 16")),
    (
        "ops:copy",
        {"x": "*fp32", "y": "*fp16 16", "n": "i32", "step": "i32 16", "mask": "*fp32 16"},
        {"BLOCK": 128},
        {"num_warps": 8, "num_stages": 2},
    ),
    *(("ops:tuned", {"x": "*fp32 16", "n": "i32 16"}, {**block, "EVEN": True}, more) for block, more in BLOCKS),
    *(("ops:tuned", {"x": "*fp32 16", "n": "i32"}, {**block, "EVEN": False}, more) for block, more in BLOCKS),
    ("ops:numbers", {"a": "i32", "b": "i32", "d": "i64 16", "e": "u1", "f": "fp32", "g": "i64 16"}, {"c": 1}, {}),
    ("ops:numbers", {"a": "i32", "c": "i32 16", "d": "i64", "e": "u1", "f": "fp32", "g": "u64 16"}, {"b": 1}, {}),
    (
        "ops:constants",
        {"pair": ["*fp32 16", {"constant": None}, [{"constant": 1}, "i32", "fp32"]]},
        {
            "KIND": {"dtype": "bf16"},
            "APPLY": {"function": "shared:doubled"},
            "LIMIT": {"float": "-inf"},
            "SHAPE": [4, ["a", None]],
        },
        {},
    ),
    ("shared:scale", {"x": "*fp32 16"}, {"FACTOR": 128.0}, {}),
]
HEAD = "import sys, torch, triton, triton.language as tl\nx = torch.zeros(64)\n"
ADD = "@triton.jit\ndef add(x, N: tl.constexpr):\n    pass\n"


def program(folder: Path, body: str, name: str = "ops.py") -> str:
    """Write a program that has a function and a tensor."""
    (folder / name).write_text(HEAD + ADD + textwrap.dedent(body))
    return name


def lines_of(recording: Recording) -> list[tuple[Any, ...]]:
    """All of a recording, as JSON, to be compared with what is expected."""
    return sorted(
        json.dumps([name, one.types, one.constants, one.options, one.archs], sort_keys=True)
        for name, function in recording.items()
        for one in function.specializations
    )


def expected(archs: tuple[str, ...]) -> list[str]:
    return sorted(json.dumps([*one, archs], sort_keys=True) for one in EXPECTED)


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The folder in which a program was recorded, and what the command has printed."""
    folder = tmp_path_factory.mktemp("program")
    (folder / "ops.py").write_text(PROGRAM)
    (folder / "shared.py").write_text(SHARED)
    found = recorded(folder, "ops.py", "--output", "calls.json", "--arch", "sm_90a", arguments=["first", "--second"])
    assert found.stderr == ""
    return folder, found.stdout


def test_a_program_is_recorded_with_all_that_its_calls_are_specialised_for(first: tuple[Path, str]) -> None:
    folder, _ = first
    recording = parse((folder / "calls.json").read_bytes())
    assert lines_of(recording) == expected(("sm_90a",))
    assert recording["ops:numbers"].parameters == tuple("abcdefg")
    text = SHARED[SHARED.index("def scale(") : SHARED.index("\n\n\ndef scaled")]
    assert recording["shared:scale"].source == hashlib.sha256(text.encode()).hexdigest()[:16]


def test_the_last_line_says_how_much_was_seen(first: tuple[Path, str]) -> None:
    # Each tuned call tries four configs, and then runs one of them.
    assert first[1] == f"calls.json: 5 functions, {len(EXPECTED)} specializations ({len(EXPECTED)} new) from 18 calls\n"


def test_a_second_recording_adds_what_is_new(first: tuple[Path, str]) -> None:
    folder, _ = first
    before = (folder / "calls.json").read_bytes()
    words, arguments = ["ops.py", "--output", "again.json", "--arch", "sm_90a"], ["first", "--second"]
    (folder / "again.json").write_bytes(before)
    assert "(0 new)" in recorded(folder, *words, arguments=arguments).stdout
    assert (folder / "again.json").read_bytes() == before
    words[-1] = "sm_80"
    assert f"({len(EXPECTED)} new)" in recorded(folder, *words, arguments=arguments).stdout
    assert lines_of(parse((folder / "again.json").read_bytes())) == expected(("sm_80", "sm_90a"))


def test_a_program_gets_the_answers_of_a_gpu_of_each_arch(tmp_path: Path) -> None:
    body = """
    properties = torch.cuda.get_device_properties(torch.device("cuda"))
    driver = triton.runtime.driver.active
    told = driver.utils.get_device_properties(driver.get_current_device())
    assert told["multiprocessor_count"] == properties.multi_processor_count
    assert told["max_shared_mem"] == properties.shared_memory_per_block_optin
    assert torch.cuda.get_device_capability() == (properties.major, properties.minor)
    assert driver.get_current_target().arch == 10 * properties.major + properties.minor
    add[(properties.multi_processor_count,)](x, properties.multi_processor_count)
    add[(1,)](x, N=told["max_shared_mem"])
    add[(1,)](x, 1)
    """
    words = ["--output", "calls.json", "--arch", "sm_90a", "--arch", "sm_80"]
    out = recorded(tmp_path, program(tmp_path, body), *words).stdout
    assert out == "calls.json: 1 function, 5 specializations (5 new) from 6 calls\n"
    found = parse((tmp_path / "calls.json").read_bytes())["ops:add"].specializations
    assert {(one.constants["N"], one.archs) for one in found} == {
        *((132, ("sm_90a",)), (227 * 1024, ("sm_90a",)), (108, ("sm_80",)), (163 * 1024, ("sm_80",))),
        (1, ("sm_80", "sm_90a")),
    }


def test_what_is_put_on_a_gpu_is_on_the_cpu_and_says_otherwise(tmp_path: Path) -> None:
    body = """
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            assert x.is_cuda and x.device == torch.device("cuda", 0)
            with torch.cuda.device(x.device.index), torch.cuda.stream(torch.cuda.Stream()):
                add[(1,)](x, 2)
            return torch.empty_like(x)

        @staticmethod
        def backward(ctx, gradient):
            assert gradient.is_cuda and torch.cuda.current_device() == gradient.get_device() == 0
            y = torch.empty(3, dtype=torch.float64, device=gradient.device)
            add[(1,)](y, 3)
            return gradient.to("cuda:0")

    torch.cuda.set_device(0)
    torch.manual_seed(1)
    x = torch.ones(4, requires_grad=True).cuda().to(torch.device("cuda"), torch.float32)
    Double.apply(x).sum().backward()
    ones = torch.ones(4, device=0, requires_grad=True)
    torch.autograd.grad(Double.apply(ones).sum(), ones)
    layer = torch.nn.Linear(4, 4, device="cuda").half().to("cuda")
    add[(1,)](layer.weight, 4)
    with torch.device("cuda"):
        add[(1,)](torch.zeros(3, dtype=torch.int8, pin_memory=True), 5)
    torch.set_default_device("cuda")
    add[(1,)](torch.arange(3), 6)
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    torch.cuda.current_stream().wait_event(event)
    torch.cuda.synchronize()
    assert event.query() and torch.cuda.is_available() and torch.cuda.device_count() == 1
    assert torch.mm(layer.weight, layer.weight, out_dtype=torch.float32).dtype == torch.float32
    assert triton.testing.do_bench(lambda: add[(1,)](x, 7)) > 0
    """
    recorded(tmp_path, program(tmp_path, body), "--arch", "sm_90a")
    found = parse((tmp_path / "calls.json").read_bytes())["ops:add"].specializations
    assert [(one.types["x"], one.constants["N"]) for one in sorted(found, key=lambda one: one.constants["N"])] == [
        *(("*fp32 16", 2), ("*fp64 16", 3), ("*fp16 16", 4), ("*i8 16", 5), ("*i64 16", 6), ("*fp32 16", 7))
    ]


OPERATORS = """
import threading
from concurrent.futures import ThreadPoolExecutor
from torch.library import Library, custom_op, register_autograd, triton_op, wrap_triton

@custom_op("acme::one", mutates_args=(), device_types="cpu")
def one(x: torch.Tensor) -> torch.Tensor:
    raise AssertionError("the tensor is on a GPU")

@one.register_kernel("cuda")
def _(x):
    assert x.is_cuda
    add[(1,)](torch.empty(8, dtype=torch.float16, device=x.device), 1)
    return torch.zeros(8, device="cuda")

@triton_op("acme::two", mutates_args={})
def two(x: torch.Tensor) -> torch.Tensor:
    wrap_triton(add)[(1,)](x, 2)
    return torch.zeros_like(x, device=x.device)

def backward(ctx, gradient):
    assert gradient.is_cuda
    add[(1,)](gradient, 3)
    return gradient

two.register_autograd(backward)

@custom_op("acme::made", mutates_args=(), device_types="cuda")
def made(device: torch.device) -> torch.Tensor:
    x = torch.zeros(8, device=device)
    assert x.is_cuda
    add[(1,)](x, 4)
    return x

library = Library("acme_library", "DEF")
library.define("five(Tensor x) -> Tensor")
library.impl("five", lambda x: add[(1,)](x, 5) or x.new_zeros(8, device=x.device), "CUDA")
library.impl("five", lambda x: 1 / 0, "CPU")
library.define("six(Tensor x) -> Tensor")
library.impl("six", lambda keys, x: add[(1,)](x, 30) or x.new_zeros(8, device=x.device), "CUDA", with_keyset=True)

x = torch.zeros(8, device="cuda", requires_grad=True)
assert one(x).is_cuda and torch.ops.acme_library.five(x.detach()).is_cuda and made(torch.device("cuda")).is_cuda
assert torch.ops.acme_library.six(x.detach()).is_cuda
two(x).sum().backward()
wrap_triton(add)[(1,)](x, 6)

with torch.library._scoped_library("aten", "IMPL") as scoped:
    scoped.impl("tril", lambda x, diagonal=0: add[(1,)](x, 7) or x, "CUDA")
    torch.tril(torch.ones(4, 4, device="cuda"))
assert torch.tril(torch.ones(2, 2, device="cuda")).sum() == 3

def work(n):
    x = torch.zeros(8, device="cuda")
    assert x.is_cuda
    add[(1,)](x, n)

class Worker(threading.Thread):
    def run(self):
        work(8)

worker = Worker()
worker.start()
worker.join()
with ThreadPoolExecutor(2) as pool:
    list(pool.map(work, range(9, 30)))
"""


def test_operators_of_libraries_and_other_threads_see_the_gpu_too(tmp_path: Path) -> None:
    said = recorded(tmp_path, program(tmp_path, OPERATORS), "--arch", "sm_90a")
    assert "30 specializations (30 new) from 30 calls" in said.stdout and said.stderr == ""
    found = parse((tmp_path / "calls.json").read_bytes())["ops:add"].specializations
    assert {one.constants["N"] for one in found} == {*range(1, 31)}


def test_what_programs_of_today_do_with_pytorch_works_without_a_gpu(tmp_path: Path) -> None:
    body = """
    import io
    from torch.utils.checkpoint import checkpoint
    from torch.utils.data import DataLoader

    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            add[(1,)](x, 1)
            ctx.save_for_backward(x)
            return x * 2

        @staticmethod
        def backward(ctx, gradient):
            add[(1,)](*ctx.saved_tensors, 2)
            return gradient

    layer = torch.nn.Linear(4, 4).to("cuda")
    for batch in DataLoader(torch.zeros(4, 4), batch_size=2, num_workers=1):
        checkpoint(lambda x: Double.apply(layer(x)), batch.cuda(), use_reentrant=False).sum().backward()
    file = io.BytesIO()
    torch.save(layer.state_dict(), file)
    file.seek(0)
    layer.load_state_dict(torch.load(file, map_location=torch.device("cuda")))
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        add[(1,)](x, 3)
    graph.replay()
    torch.cuda.nvtx.range_push("compiled")
    torch.compile(lambda x: add[(1,)](x, 4))(x)
    torch.cuda.nvtx.range_pop()
    """
    recorded(tmp_path, program(tmp_path, body), "--arch", "sm_90a")
    found = parse((tmp_path / "calls.json").read_bytes())["ops:add"].specializations
    assert {one.constants["N"] for one in found} == {1, 2, 3, 4}


def test_what_is_compiled_ahead_can_be_asked_and_launched(tmp_path: Path) -> None:
    body = """
    ahead = add.warmup(x, 2, grid=(1,))
    ahead._init_handles()
    assert 0 < ahead.n_regs < 256 and ahead.n_spills == 0 and ahead.metadata.shared == 0
    ahead[(1, 1, 1)](x, 2)
    add[(1,)](x, 2)
    add[(1,)](x, 3)
    driver = triton.runtime.driver.active
    assert not hasattr(driver, "other")
    try:
        driver.utils.fill_tma_descriptor_tiled
    except AttributeError as error:
        assert "has no answer without a GPU: do without it, or record on a GPU" in str(error)
    """
    said = recorded(tmp_path, program(tmp_path, body), "--arch", "sm_90a")
    assert said.stdout == "calls.json: 1 function, 2 specializations (2 new) from 3 calls\n"


def test_a_program_that_fails_keeps_what_was_seen_and_shows_its_own_traceback(tmp_path: Path) -> None:
    body = """
    @triton.autotune([triton.Config({"N": n}) for n in (1, 2)], key=[])
    @triton.jit
    def other(x, y, N: tl.constexpr):
        pass

    def call():
        add[(1,)](x, 1)
        other[(1,)](x)

    call()
    """
    failed = recorded(tmp_path, program(tmp_path, body), "--output", "calls.json", "--arch", "sm_90a", status=1)
    assert failed.stdout == "calls.json: 1 function, 1 specialization (1 new) from 2 calls\n"
    traceback, _, ours = failed.stderr.partition("kernelwright: ")
    assert ours.startswith("[record]: the program ended with exit status 1, so calls.json has only what was seen")
    lines = traceback.splitlines()
    assert lines[0] == "Traceback (most recent call last):" and lines[1].startswith('  File "ops.py", line 16')
    assert "missing 1 required positional argument: 'y'" in lines[-1]
    assert "kernelwright" not in traceback and "runpy" not in traceback
    assert len(parse((tmp_path / "calls.json").read_bytes())["ops:add"].specializations) == 1


def test_an_error_with_a_cause_is_shown_as_python_does(tmp_path: Path) -> None:
    body = """
    add[(1,)](x, 1)
    try:
        int("nowhere")
    except ValueError as error:
        raise RuntimeError("the second") from error
    """
    name = program(tmp_path, body)
    before, call, after = (tmp_path / name).read_text().partition("add[(1,)](x, 1)\n")
    assert call
    (tmp_path / "alone.py").write_text("\n" * (before.count("\n") + 1) + after)
    plain = subprocess.run([sys.executable, "alone.py"], cwd=tmp_path, capture_output=True, text=True)
    failed = recorded(tmp_path, name, "--arch", "sm_90a", status=1)
    said = plain.stderr.replace(str(tmp_path / "alone.py"), name)
    assert "the second" in said and failed.stderr.startswith(said)


@pytest.mark.parametrize(
    ("end", "status", "said"),
    [
        ("sys.exit()", 0, ""),
        ("raise SystemExit(False)", 0, ""),
        ("sys.exit(3)", 1, "the program ended with exit status 3"),
        ("sys.exit('enough')", 1, "enough\nkernelwright: [record]: the program ended with exit status 1"),
        ("import os; os._exit(4)", 1, "the program ended with exit status 4, so calls.json has only what was seen"),
        ("import os; os.kill(os.getpid(), 9)", 1, "was ended by signal 9, so calls.json has only what was seen before"),
    ],
)
def test_the_end_of_the_program_decides_the_exit_status(tmp_path: Path, end: str, status: int, said: str) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own/beside.py").touch()
    name = program(tmp_path, f"import beside\nadd[(1,)](x, 1)\n{end}")
    (tmp_path / name).rename(tmp_path / "own" / name)
    (tmp_path / name).symlink_to(f"own/{name}")  # Python looks for modules beside what a link leads to
    ended = recorded(tmp_path, name, "--arch", "sm_90a", status=status)
    assert said in ended.stderr
    assert ended.stdout.endswith(f" from {'at least ' * ('signal' in said)}1 call\n")
    assert [*parse((tmp_path / "calls.json").read_bytes())] == ["ops:add"]


def test_what_forks_of_the_program_call_is_recorded_once_and_whoever_ends_last(tmp_path: Path) -> None:
    body = """
    import multiprocessing, os

    def work(*numbers):
        for n in numbers:
            add[(1,)](x, n)

    work(1)
    fork = multiprocessing.get_context("fork")
    with fork.Pool(2) as pool:
        pool.map(work, [1, 2, 3])
        pool.close()
        pool.join()
    if os.fork() == 0:
        work(1, 4, 4)
        sys.exit(5)
    assert os.waitstatus_to_exitcode(os.wait()[1]) == 5
    work(5)
    os._exit(0)
    """
    said = recorded(tmp_path, program(tmp_path, body), "--arch", "sm_90a")
    assert said.stdout == "calls.json: 1 function, 5 specializations (5 new) from 8 calls\n"


def test_a_command_that_is_terminated_keeps_what_was_seen(tmp_path: Path) -> None:
    name = program(tmp_path, "add[(1,)](x, 1)\nprint('ready', flush=True)\nimport time; time.sleep(600)")
    command = [sys.executable, "-m", "kernelwright", "record", "--arch", "sm_90a", name]
    environment = {**os.environ, "PYTHONPATH": str(SITE_SCONS)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, text=True, **pipes) as process:
        assert process.stdout and process.stderr and process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.wait(60) == 1
        assert "the program was ended by signal 15, so calls.json has only what was seen" in process.stderr.read()
    assert [*parse((tmp_path / "calls.json").read_bytes())] == ["ops:add"]


def test_functions_that_no_build_can_import_are_left_out_and_named(tmp_path: Path) -> None:
    body = """
    import importlib.util, pathlib, tempfile

    def put(folder, name):
        pathlib.Path(folder).mkdir(exist_ok=True)
        file = pathlib.Path(folder, f"{name}.py")
        file.write_text(pathlib.Path("ops.py").read_text().partition("import importlib")[0])
        return file

    def make():
        @triton.jit
        def inner(x):
            pass
        return inner

    add[(1,)](x, 1)
    put("lib", "kept")
    sys.path.append("lib")
    import kept
    kept.add[(1,)](x, 2)
    make()[(1,)](x)
    with tempfile.TemporaryDirectory() as folder:
        put(folder, "written")
        sys.path.append(folder)
        import written
        written.add[(1,)](x, 3)
        spec = importlib.util.spec_from_file_location("loaded", put(folder, "other"))
        loaded = importlib.util.module_from_spec(spec)
        sys.modules["loaded"] = loaded
        spec.loader.exec_module(loaded)
        loaded.add[(1,)](x, 4)
        loaded.add[(1,)](x, 5)
    """
    said = recorded(tmp_path, program(tmp_path, body), "--arch", "sm_90a")
    assert {*parse((tmp_path / "calls.json").read_bytes())} == {"ops:add", "kept:add"}
    first, *reasons, remedy = said.stderr.splitlines()
    assert first == "kernelwright: [record]: these functions are not recorded, because no build could import them"
    inner, written, loaded = reasons
    assert inner == "    ops:make.<locals>.inner is defined inside of a function"
    assert written.startswith("    written:add is in a module that the program has put into a temporary folder, /")
    assert loaded.startswith("    loaded:add is in a module that Python does not find by its name, /")
    assert remedy.startswith("  remedy: move a function that you want in the package to the top of a module")


def test_a_program_of_which_nothing_can_be_built_is_an_error(tmp_path: Path) -> None:
    body = """
    def make():
        @triton.jit
        def inner(x):
            pass
        return inner

    make()[(1,)](x)
    """
    failed = recorded(tmp_path, program(tmp_path, body), "--arch", "sm_90a", status=1)
    assert "ops:make.<locals>.inner is defined inside of a function" in failed.stderr
    assert not (tmp_path / "calls.json").exists()


def test_a_module_is_run_as_python_runs_it(tmp_path: Path) -> None:
    (tmp_path / "acme").mkdir()
    (tmp_path / "acme/__init__.py").write_text("NUMBER = 7\n")
    body = """
    from . import NUMBER
    assert sys.argv[1:] == ["-b", "--", "--arch"] and sys.argv[0].endswith("acme/ops.py"), sys.argv
    add[(1,)](x, NUMBER)
    """
    program(tmp_path / "acme", body)
    recorded(tmp_path, "-m acme.ops", "--arch", "sm_90a", arguments=["-b", "--", "--arch"])
    assert [*parse((tmp_path / "calls.json").read_bytes())] == ["acme.ops:add"]


def test_a_damaged_file_stops_it_before_the_program_runs_and_can_be_replaced(tmp_path: Path) -> None:
    name = program(tmp_path, "add[(1,)](x, 1)\nprint('it runs')")
    (tmp_path / "calls.json").write_text('{"schema": 1}')
    failed = recorded(tmp_path, name, "--arch", "sm_90a", status=1)
    assert failed.stderr.startswith("kernelwright: calls.json: is damaged: functions")
    assert "--fresh" in failed.stderr and failed.stdout == ""
    assert "it runs" in recorded(tmp_path, name, "--arch", "sm_90a", "--fresh").stdout
    assert [*parse((tmp_path / "calls.json").read_bytes())] == ["ops:add"]


def test_fresh_forgets_what_the_file_has_and_without_it_an_edited_function_is_replaced(tmp_path: Path) -> None:
    name = program(tmp_path, "add[(1,)](x, 1)\nadd[(1,)](x, 2)")
    recorded(tmp_path, name, "--arch", "sm_90a")
    program(tmp_path, "add[(1,)](x, 3)")
    assert "3 specializations (1 new)" in recorded(tmp_path, name, "--arch", "sm_90a").stdout
    assert "1 specialization (1 new)" in recorded(tmp_path, name, "--arch", "sm_90a", "--fresh").stdout
    edited = (tmp_path / name).read_text().replace("    pass", "    tl.store(x, N)").replace("x, 3", "x, 4")
    (tmp_path / name).write_text(edited)
    assert "1 specialization (1 new)" in recorded(tmp_path, name, "--arch", "sm_90a").stdout
    (tmp_path / name).write_text(edited.replace("(x, N: tl", "(x, y, N: tl").replace("(x, 4)", "(x, x, 4)"))
    failed = recorded(tmp_path, name, "--arch", "sm_90a", status=1)
    assert "ops:add has the parameters (x, N) in one and (x, y, N) in the other" in failed.stderr


@pytest.mark.parametrize(
    ("body", "words", "said"),
    [
        ("print(1)", ["ops.py", "--arch", "sm_90a"], "no call of a function of Triton was seen"),
        ("raise ValueError", ["ops.py", "--arch", "sm_90a"], "exit status 1, so nothing was recorded"),
        ("", ["ops.py", "--arch", "sm_90"], "a recording for 'sm_90' is not possible"),
        ("", ["none.py", "--arch", "sm_90a"], "there is no file none.py"),
        ("", ["", "--arch", "sm_90a"], "there is no program to run"),
    ],
)
def test_a_recording_of_nothing_is_an_error_and_leaves_the_file(
    tmp_path: Path, body: str, words: list[str], said: str
) -> None:
    program(tmp_path, body)
    text = '{"schema": 1, "functions": {}}'
    (tmp_path / "calls.json").write_text(text)
    failed = recorded(tmp_path, *words, status=1)
    assert said in failed.stderr and failed.stdout.strip() in ("", "1")
    assert (tmp_path / "calls.json").read_text() == text


def test_without_an_arch_and_a_gpu_the_error_says_what_to_do(tmp_path: Path) -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    failed = recorded(tmp_path, program(tmp_path, "add[(1,)](x, 1)"), status=1)
    assert "Triton finds no GPU here" in failed.stderr and "--arch sm_90a" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_what_cannot_be_written_is_named_and_all_else_is_recorded(tmp_path: Path) -> None:
    body = """
    import enum
    from triton.experimental import gluon

    Size = enum.IntEnum("Size", {"SMALL": 4})

    @gluon.jit
    def low(x):
        pass

    add[(1,)](x, (1, torch.float32))
    add[(1,)](x, N=Size.SMALL)
    add[(1,)](x, object)
    low[(1,)](x)
    """
    failed = recorded(tmp_path, program(tmp_path, body), "--arch", "sm_90a", status=1)
    assert failed.stderr.splitlines()[:4] == [
        "kernelwright: [record]: some calls cannot be recorded",
        "    ops:add has the parameter 'N', which is torch.float32, which a recording cannot have",
        "    ops:add has the parameter 'N', which is <class 'object'>, which a recording cannot have",
        "    ops:low is a function of Gluon, and a recording has those with @triton.jit",
    ]
    (one,) = parse((tmp_path / "calls.json").read_bytes())["ops:add"].specializations
    assert json.dumps(one.constants) == '{"N": 4}'


def test_two_functions_of_one_name_are_refused(tmp_path: Path) -> None:
    body = """
    add[(1,)](x, 1)
    @triton.jit
    def add(x, N: tl.constexpr):
        tl.store(x, N)
    add[(1,)](x, 1)
    """
    failed = recorded(tmp_path, program(tmp_path, body), "--arch", "sm_90a", status=1)
    assert "ops:add is the name of two different functions" in failed.stderr


def test_options_are_recorded_where_they_are_not_the_default_whatever_the_environment_says(tmp_path: Path) -> None:
    body = """
    import os
    add[(1,)](x, 1, num_warps=4, num_stages=3, enable_fp_fusion=True, debug=False)
    add[(1,)](x, 2, maxnreg=64, launch_pdl=True, allowed_dot_input_precisions=("ieee",))
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "0"
    add[(1,)](x, 3)
    """
    recorded(tmp_path, program(tmp_path, body), "--arch", "sm_90a")
    found = parse((tmp_path / "calls.json").read_bytes())["ops:add"].specializations
    assert {one.constants["N"]: one.options for one in found} == {
        1: {},
        2: {"maxnreg": 64, "launch_pdl": True, "allowed_dot_input_precisions": ["ieee"]},
        3: {"enable_fp_fusion": False},
    }


def test_the_interpreter_is_refused(tmp_path: Path) -> None:
    program(tmp_path, "add[(1,)](x, 1)")
    script = "import kernelwright.triton as t\nwith t.record('calls.json', 'sm_90a'): pass\n"
    environment = {**os.environ, "PYTHONPATH": str(SITE_SCONS), "TRITON_INTERPRET": "1"}
    command = [sys.executable, "-c", script]
    failed = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert "TRITON_INTERPRET is set" in failed.stderr


def test_what_definitions_import_does_not_import_triton():
    script = "import sys, kernelwright.triton\nassert not {'triton', 'torch'} & {*sys.modules}"
    subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": str(SITE_SCONS)}, check=True)


# What follows runs in this process.

MODULE = """\
import triton
import triton.language as tl


@triton.jit
def inner(x):
    return x + 1


@triton.jit(do_not_specialize=["c"], do_not_specialize_on_alignment=["b"])
def mixed(p, q, a, b, c, d: tl.int64, t, BLOCK: tl.constexpr, KIND: tl.constexpr, F: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(p + at).to(KIND)
    if q is not None:
        value = value + tl.load(q + at).to(KIND)
    if F is not None:
        value = F(value)
    tl.store(p + at, value * (a + b + c + d + t[0]))


@triton.autotune([triton.Config({"BLOCK": block}) for block in (16, 32)], key=["n"], cache_results=True)
@triton.jit
def tuned(p, n, BLOCK: tl.constexpr):
    tl.store(p + tl.arange(0, BLOCK), n)


@triton.autotune([triton.Config({"BLOCK": block}) for block in (16, 32)], key=["n"], do_bench=lambda call, **_: 1 / 0)
@triton.jit
def measured(p, n, BLOCK: tl.constexpr):
    pass
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module with functions of Triton."""
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / "recorded_ops.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("recorded_ops")
    del sys.modules["recorded_ops"]


def state() -> list[Any]:
    """What a recording replaces for a while."""
    import torch
    import triton
    from torch.overrides import _get_current_function_mode_stack
    from triton.runtime.autotuner import Autotuner
    from triton.runtime.jit import JITFunction

    seen = [vars(owner) for owner in (torch.cuda, JITFunction, Autotuner, triton.runtime.driver, triton.knobs.cache)]
    return [
        *(dict(each) for each in seen),
        (torch.set_default_device, vars(torch.autograd)["_engine_run_backward"]),
        _get_current_function_mode_stack(),
        {name: value for name, value in os.environ.items() if name.startswith("TRITON")},
    ]


@pytest.mark.parametrize("fails", [False, True])
def test_everything_is_as_before_when_the_block_ends(tmp_path: Path, module: Any, fails: bool) -> None:
    import torch

    torch.manual_seed(0)  # imports what it needs
    x, tuners = torch.zeros(64), (module.tuned, module.measured)
    before = state(), [dict(vars(each)) for each in (module.mixed, *tuners)]
    error: type[Exception] = ZeroDivisionError
    try:
        with record(tmp_path / "calls.json", "sm_90a"):
            module.tuned[(1,)](x, 1)
            module.measured[(1,)](x, 1)
            module.mixed[(1,)](x, None, 2, 3, 4, 5, (6,), 16, x, None)
            assert x.is_cuda and torch.cuda.is_available()
            raise error if fails else KeyError
    except (KeyError, error):
        pass
    assert state() == before[0]
    assert not x.is_cuda and not (tmp_path / "cache").exists()
    for one, kept in zip((module.mixed, *tuners), before[1], strict=True):
        names = {"device_caches", "cache", "cache_results", "do_bench"} & {*vars(one), *kept}
        assert names and all(vars(one).get(name) is kept.get(name) for name in names)
    assert {*parse((tmp_path / "calls.json").read_bytes())} == {"recorded_ops:tuned", "recorded_ops:measured"}


def test_operators_that_were_there_before_are_as_before_when_the_block_ends(tmp_path: Path, module: Any) -> None:
    import torch

    def on_gpu(x: torch.Tensor) -> torch.Tensor:
        module.tuned[(1,)](x, 1)
        return torch.zeros(2, device="cuda")

    def on_cpu(x: torch.Tensor) -> torch.Tensor:
        return torch.ones(3)

    on_gpu.__annotations__ = on_cpu.__annotations__ = {"x": torch.Tensor, "return": torch.Tensor}
    before = torch.library.custom_op("kernelwright_test::before", on_cpu, mutates_args=())
    before.register_kernel("cuda")(on_gpu)
    x, functions = torch.zeros(64), dict(before._backend_fns)
    with record(tmp_path / "calls.json", "sm_90a"):
        assert len(before(x)) == 2
        during = torch.library.custom_op("kernelwright_test::during", on_cpu, mutates_args=(), device_types="cpu")
        during.register_kernel("cuda")(on_gpu)
        assert len(during(x)) == 2
    assert before._backend_fns == functions
    assert len(before(x)) == len(during(x)) == 3 and not before(x).is_cuda


def test_a_module_that_launches_when_it_is_imported_can_be_built_from(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = "import torch\nfrom recorded_ops import *\ntuned[(1,)](torch.zeros(64, device='cuda'), 1)\n"
    (tmp_path / "launching.py").write_text(text + "ahead = tuned.warmup(torch.zeros(64), 1, grid=(1,))\n")
    for _ in range(2):  # for two functions
        with stand_in.importing("sm_90a", "launching", Where()):
            function = found_function("launching:tuned", "calls.json", Where()).function
    assert function is module.tuned.fn
    assert len(function.device_caches[0][0]) == len(sys.modules["launching"].ahead) == 2
    refused = pytest.raises(DefinitionError, match="the definition file imports 'recorded_ops', which has recorded")
    with refused, stand_in.importing("sm_90a", "recorded_ops", Where()):
        pass
    monkeypatch.delitem(sys.modules, "launching")


def test_all_configs_are_recorded_whatever_was_measured_before(tmp_path: Path, module: Any) -> None:
    import torch

    x = torch.zeros(64)
    module.tuned.cache[(1, str(x.dtype))] = module.tuned.configs[1]
    with record(tmp_path / "calls.json", "sm_90a"):
        for each in (x, x[1:]):  # of one key for the tuner
            module.tuned[(1,)](each, 1)
            module.measured[(1,)](each, 1)
    for name in ("tuned", "measured"):
        found = parse((tmp_path / "calls.json").read_bytes())[f"recorded_ops:{name}"].specializations
        expected = {(block, kind) for block in (16, 32) for kind in ("*fp32", "*fp32 16")}
        assert {(one.constants["BLOCK"], one.types["p"]) for one in found} == expected
    assert module.tuned.cache == {(1, str(x.dtype)): module.tuned.configs[1]}


@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")
def test_fake_tensors_are_recorded_as_real_ones(tmp_path: Path, module: Any) -> None:
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    def calls() -> None:
        x = torch.zeros(64, dtype=torch.bfloat16, device="cuda")
        for each in (x, x[1:], x[8:], x.float()[1:]):
            module.tuned[(1,)](each, each.numel())

    with record(tmp_path / "real.json", "sm_90a"):
        calls()
    with record(tmp_path / "fake.json", "sm_90a"), FakeTensorMode():
        calls()
    assert (tmp_path / "fake.json").read_text() == (tmp_path / "real.json").read_text()


def test_an_error_of_the_block_is_not_covered_by_one_of_the_recording(tmp_path: Path, module: Any) -> None:
    with pytest.raises(LookupError), record(tmp_path / "calls.json", "sm_90a"):
        raise LookupError
    with pytest.raises(KernelwrightError, match="no call of a function"), record(tmp_path / "calls.json", "sm_90a"):
        pass
    assert not (tmp_path / "calls.json").exists()


def calls_of(module: Any, x: Any, chance: random.Random) -> list[dict[str, Any]]:
    """The arguments of some calls that Triton can compile."""
    import triton.language as tl

    numbers = [0, 1, 2, 16, 17, 2**31, 2**33, True, 2.5]
    pointers = [x, x[1:], x.half(), x.int(), x.bfloat16()[8:]]
    return [
        {
            "p": chance.choice(pointers),
            "q": chance.choice([*pointers, None]),
            **{name: chance.choice(numbers) for name in "abc"},
            "d": chance.choice([1, 2, 16]),
            "t": (chance.choice(numbers), chance.choice([None, 16])),
            "BLOCK": chance.choice([16, 32]),
            "KIND": chance.choice([tl.float32, tl.float16]),
            "F": chance.choice([None, module.inner]),
            **chance.choice([{}, {"num_warps": 8}, {"num_stages": 1, "enable_fp_fusion": False}]),
        }
        for _ in range(24)
    ]


def source_of(function: Any, parameters: tuple[str, ...], one: Specialization) -> Any:
    """What a line of a recording asks Triton's compiler for."""
    import triton.language as tl
    from triton.compiler import ASTSource

    constants: dict[tuple[int, ...], Any] = {}
    attributes: dict[tuple[int, ...], Any] = {}

    def value(constant: Any) -> Any:
        if isinstance(constant, dict) and "dtype" in constant:
            return tl.dtype(constant["dtype"])
        if isinstance(constant, dict) and "function" in constant:
            name, _, attribute = constant["function"].partition(":")
            return getattr(sys.modules[name], attribute)
        return constant

    def kind(told: Any, path: tuple[int, ...]) -> Any:
        if isinstance(told, list):
            return tuple(kind(inner, (*path, at)) for at, inner in enumerate(told))
        if isinstance(told, dict):
            constants[path] = value(told["constant"])
            return "constexpr"
        if told.endswith(" 16"):
            attributes[path] = [["tt.divisibility", 16]]
        return told.removesuffix(" 16")

    signature = {
        name: kind(one.types[name] if name in one.types else {"constant": one.constants[name]}, (at,))
        for at, name in enumerate(parameters)
    }
    return ASTSource(function, signature, constants, attributes)


def key_of(source: Any, options: Any) -> str:
    """What decides the code that Triton makes."""
    constants = {at: getattr(value, "cache_key", repr(value)) for at, value in sorted(source.constants.items())}
    attributes = {at: known for at, known in sorted(source.attrs.items()) if known}
    return json.dumps([source.signature, str(constants), str(attributes), options], sort_keys=True, default=str)


def test_the_lines_of_a_recording_ask_for_the_very_code_that_triton_compiles(tmp_path: Path, module: Any) -> None:
    import torch
    import triton
    from triton.backends.compiler import GPUTarget

    calls = calls_of(module, torch.zeros(64), random.Random(3))
    with record(tmp_path / "calls.json", "sm_90a") as notes:
        for call in calls:
            module.mixed[(1,)](**call)
    assert notes.calls == len(calls)
    target = GPUTarget("cuda", 90, 32)
    plain = vars(triton.compiler.make_backend(target).parse_options({}))
    with stand_in.standing_in("sm_90a"):
        kernels = [module.mixed.warmup(**call, grid=(1,)) for call in calls]
        compiled = {key_of(one.src, {name: getattr(one.metadata, name) for name in plain}): one for one in kernels}
        function = parse((tmp_path / "calls.json").read_bytes())["recorded_ops:mixed"]
        asked: dict[str, tuple[Any, dict[str, Any]]] = {}
        for one in function.specializations:
            source, options = source_of(module.mixed, function.parameters, one), dict(one.options)
            asked[key_of(source, {**plain, **options})] = source, options
        assert {*asked} == {*compiled} and len(function.specializations) == len(asked) > 15
        triton.knobs.cache.dir = str(tmp_path / "again")
        for key in sorted(asked)[::4]:
            source, options = asked[key]
            again = triton.compile(source, target=target, options=options)
            assert again.asm["cubin"] == compiled[key].asm["cubin"]


def test_on_a_gpu_all_runs_and_the_same_is_recorded(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU is one that compiles and does not launch."""
    import torch
    import triton

    launched: list[Any] = []

    def launcher(source: Any, metadata: Any) -> Callable[..., None]:
        return lambda *arguments: launched.append(source.fn.__name__)

    def calls() -> None:
        for each in (torch.zeros(64), torch.zeros(64), torch.zeros(64)[1:]):
            module.tuned[(1,)](each, 3)

    with record(tmp_path / "without.json", "sm_90a"):
        calls()
    with stand_in.standing_in("sm_90a"):
        driver = triton.runtime.driver.active
        monkeypatch.setattr(driver, "launcher_cls", launcher, raising=False)
        monkeypatch.setattr(driver.utils, "load_binary", lambda *_: (None, 0, 8, 0, 1024), raising=False)
        module.tuned[(1,)](torch.zeros(64), 3)  # what is compiled already is recorded all the same
        launched.clear()
        with record(tmp_path / "with.json") as notes:
            calls()
    assert notes.arch == "sm_90a" and launched == ["tuned"] * notes.calls
    found = parse((tmp_path / "with.json").read_bytes())["recorded_ops:tuned"].specializations
    everything = parse((tmp_path / "without.json").read_bytes())["recorded_ops:tuned"].specializations
    # The tuner knows the best config for the third call, which is of the same key.
    assert len(found) == 3 and {*map(str, found)} < {*map(str, everything)} and len(everything) == 4


def test_on_a_gpu_the_fastest_config_of_each_key_is_recorded(
    tmp_path: Path, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    import triton

    times = iter([3.0, 1.0, 2.0, 5.0])  # for n=3 the second config is faster, for n=4 the first
    monkeypatch.setattr(module.measured, "_do_bench", lambda call, quantiles: [next(times)] * 3)
    with stand_in.standing_in("sm_90a"):
        driver = triton.runtime.driver.active
        monkeypatch.setattr(driver, "launcher_cls", lambda *_: lambda *arguments: None, raising=False)
        monkeypatch.setattr(driver.utils, "load_binary", lambda *_: (None, 0, 8, 0, 1024), raising=False)
        with record(tmp_path / "calls.json"):
            for n in (3, 4, 3):
                module.measured[(1,)](torch.zeros(64), n)
    known = parse((tmp_path / "calls.json").read_bytes())["recorded_ops:measured"]
    assert [(choice.key, choice.config["BLOCK"], choice.archs) for choice in known.choices] == [
        ((3, "float32"), 32, ("sm_90a",)),
        ((4, "float32"), 16, ("sm_90a",)),
    ]
    assert parse(text_of({"f:f": known})) == {"f:f": known}
