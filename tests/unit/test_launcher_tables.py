"""Tuning tables in kernel libraries: which variant runs on which device for which sizes, and what the choice says.

Variants are written by hand, in C. Each writes its own number, so that a call tells which one has run.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from kernelwright.core.errors import KernelwrightError
from kernelwright.library.plan import KernelPlan, LoweredUnit
from kernelwright.library.sources import emit
from kernelwright.runtime.arguments import Described, Signatures
from kernelwright.runtime.tables import NO_TABLES, DeviceTable, Rules, Tuned, table_for
from launcher_build import (
    FakeTensor,
    build,
    c_unit,
    cuda_unit,
    plan,
    scalar,
    signature,
    tensor,
)
from support.forked import starter
from test_launcher_cuda import Machine, folder, machine, on_cuda  # noqa: F401 (two of these are fixtures)

NUMBER = "BEGIN ((float *)tensor(argument + 3)->data)[0] = NUMBER; END"
SYMBOLS = {"m": "int32", "n": "int32"}
ARCH = "x86-64"
HERE = "Test CPU @ 2 GHz"
COUNT = os.sysconf("SC_NPROCESSORS_ONLN")
CPUINFO = f"processor\t: 0\nmodel name\t: {HERE} \nmodel name\t: second\n"


def arguments(dtype: str = "float32", alignment: int | None = None) -> list[dict[str, Any]]:
    """x of two sizes, a number, y of one size, and the output of one element."""
    more = {} if alignment is None else {"alignment": alignment}
    return [
        tensor("x", dtype, ["m", "n"]) | more,
        scalar("k", "int32"),
        tensor("y", dtype, ["m", 4]),
        tensor("out", "float32", [1], output=True),
    ]


def unit(
    place: Path, number: int, slug: str, items: Sequence[Mapping[str, Any]], arch: str = ARCH, name: str = "which"
) -> LoweredUnit:
    data = signature(name, items, slug=slug, symbols=SYMBOLS, arch=arch)
    return c_unit(place, NUMBER.replace("NUMBER", str(number)), data)


def of_devices(*rules: Mapping[int, Rules], **device: Any) -> tuple[DeviceTable, ...]:
    """A table for this machine's CPU with each of some rules."""
    known = {"target": "llvm", "arch": ARCH, "name": HERE, "count": COUNT} | device
    return tuple(DeviceTable(rules=each, **known) for each in rules)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("tables")
    (found / "cpuinfo").write_text(CPUINFO)
    return found


@pytest.fixture(scope="module")
def kernel(place: Path) -> KernelPlan:
    """Two declared variants, float32 and float64, and three that only run where a table says so.

    Variant 2 is for float32 that is aligned to 64 bytes, 3 for any float32, 4 for float64.
    """
    units = [unit(place, 0, "single", arguments()), unit(place, 1, "double", arguments("float64"))]
    units += [unit(place, 2, "aligned", arguments(alignment=64)), unit(place, 3, "other", arguments())]
    units += [unit(place, 4, "wide", arguments("float64"))]
    return replace(plan("which", *units, outputs=["out"]), declared=2)


def flags(place: Path, cpuinfo: str = "cpuinfo") -> list[str]:
    return [f'-DKW_CPUINFO="{place / cpuinfo}"']


def loaded(place: Path, kernel: KernelPlan, cpuinfo: str = "cpuinfo") -> Any:
    """The kernel's library. Each is loaded from a path of its own, since what it has found out stays in it."""
    library = build(place, kernel, extra=flags(place, cpuinfo))
    loaded.count = getattr(loaded, "count", 0) + 1  # type: ignore[attr-defined]
    return tvm_ffi.load_module(str(library.rename(place / f"{loaded.count}.so")))  # type: ignore[attr-defined]


def arrays(m: int, n: int = 4, dtype: str = "float32", offset: int = 0) -> tuple[Any, ...]:
    """The inputs of a call; x begins so many elements behind a multiple of 64 bytes."""
    memory = np.zeros(m * n + 64, dtype)
    start = -(memory.ctypes.data // memory.itemsize) % (64 // memory.itemsize) + offset
    return memory[start : start + m * n].reshape(m, n), 7, np.zeros((m, 4), dtype)


def ran(module: Any, *passed: Any, name: str = "which") -> int:
    return int(np.from_dlpack(module[name](*passed))[0])


def told(module: Any, *passed: Any, function: str = "kw_choice") -> tuple[int, str]:
    number, _, reason = module[function](*passed).partition(" ")
    return int(number), reason


RANGES = ((4, 2), (16, 0), (None, 3))
BY_M = {0: Rules(("m",), RANGES), 1: Rules(("m", "n"), ((64, 1), (None, 4)))}


@pytest.fixture(scope="module")
def tuned(place: Path, kernel: KernelPlan) -> Any:
    return loaded(place, replace(kernel, tables=of_devices(BY_M)))


# ---- sizes


@pytest.mark.parametrize(("m", "number"), [(0, 2), (1, 2), (4, 2), (5, 0), (16, 0), (17, 3), (4000, 3)])
def test_each_range_runs_the_variant_that_the_table_has_for_it(tuned: Any, m: int, number: int) -> None:
    passed = arrays(m)
    assert ran(tuned, *passed) == number
    assert told(tuned, *passed)[0] == number
    out = np.zeros(1, "float32")
    tuned["which"](*passed, out)
    assert out[0] == number


def test_each_of_many_ranges_ends_where_the_table_says(place: Path, kernel: KernelPlan) -> None:
    """So many that they are bisected."""
    ends = [*range(2, 90, 2), None]
    rules = Rules(("m",), tuple((end, 3 * (number % 2)) for number, end in enumerate(ends)))
    module = loaded(place, replace(kernel, tables=of_devices({0: rules})))
    chosen = [ran(module, *arrays(m)) for m in range(1, 92)]
    assert chosen == [rules.choose({"m": m}) for m in range(1, 92)]


@pytest.mark.parametrize(("m", "n", "number"), [(8, 8, 1), (5, 13, 4), (65, 1, 4), (64, 1, 1), (0, 2000, 1)])
def test_the_product_of_two_sizes_decides(tuned: Any, m: int, n: int, number: int) -> None:
    assert ran(tuned, *arrays(m, n, "float64")) == number


def test_each_declared_variant_has_its_own_rules_also_when_those_of_the_first_are_known(tuned: Any) -> None:
    assert ran(tuned, *arrays(3)) == 2 and ran(tuned, *arrays(3, 4, "float64")) == 1
    assert ran(tuned, *arrays(20, 5)) == 3 and ran(tuned, *arrays(20, 5, "float64")) == 4


def test_a_chosen_variant_that_the_call_does_not_fit_leaves_the_declared_one(tuned: Any) -> None:
    passed = arrays(3, offset=1)
    assert ran(tuned, *passed) == 0
    number, reason = told(tuned, *passed)
    assert number == 0
    assert reason == (
        f"it is the first declared variant that fits; the tuning table of '{HERE}' (count {COUNT}), which is this "
        "device, has aligned for m = 3, up to 4, which these arguments do not fit"
    )


def test_the_choice_says_why(tuned: Any) -> None:
    known = f"the tuning table of '{HERE}' (count {COUNT}), which is this device, has "
    assert told(tuned, *arrays(3)) == (2, known + "aligned for m = 3, up to 4")
    assert told(tuned, *arrays(5)) == (0, known + "single for m = 5, from 5 to 16")
    assert told(tuned, *arrays(17)) == (3, known + "other for m = 17, above 16")
    assert told(tuned, *arrays(20, 5, "float64")) == (4, known + "wide for m * n = 100, above 64")


def test_a_number_decides_like_a_size(place: Path, kernel: KernelPlan) -> None:
    module = loaded(place, replace(kernel, tables=of_devices({0: Rules(("k", "m"), ((0, 0), (100, 2), (None, 3)))})))
    x, _, y = arrays(3)
    assert [ran(module, x, k, y) for k in (-2, -1, 0, 1, 33, 34, True)] == [0, 0, 0, 2, 2, 3, 2]


def test_sizes_whose_product_int64_does_not_hold_are_beyond_every_end(place: Path, tmp_path: Path) -> None:
    items = [
        scalar("a", "int64"),
        scalar("b", "int64"),
        scalar("c", "int64"),
        tensor("out", "float32", [1], output=True),
    ]
    units = [
        c_unit(
            tmp_path, NUMBER.replace("NUMBER", str(i)), signature("big", items, slug=f"v{i}", symbols={"a": "int64"})
        )
        for i in range(3)
    ]
    rules = Rules(("a", "b", "c"), ((0, 1), (2**62, 0), (None, 2)))
    made = replace(plan("big", *units, outputs=["out"]), declared=1, tables=of_devices({0: rules}))
    library = build(tmp_path, made, extra=flags(place))
    module = tvm_ffi.load_module(str(library))
    big = 2**40
    calls = [(big, big, 1), (big, big, big), (big, big, 0), (-big, big, 1), (-big, big, -1), (-big, -big, big)]
    calls += [(-(2**63), 1, 1), (-(2**63), -1, 1), (-(2**63), -1, -1), (2**62, 1, 1), (2**62, 2, 1), (3, 5, 7)]
    for call in calls:
        assert ran(module, *call, name="big") == rules.choose(dict(zip("abc", call, strict=True))), call


def test_sizes_that_a_call_lacks_are_not_looked_for(tuned: Any) -> None:
    """The lookup begins before the call is compared with variants."""
    assert ran(tuned, *arrays(3)) == 2, "from now on the table is known"
    x, k, y = arrays(3)
    flat = FakeTensor(())
    flat._managed.shape = 8  # nothing can be read there
    for passed in ((flat, k, y), (x, k, flat), (np.float32(1), k, y), (x, k)):
        with pytest.raises(TypeError, match=r"no built variant accepts|expected a tensor|takes 4 arguments"):
            tuned["which"](*passed)
    for device in ((2, 0), (2, 127), (2, 2**30), (10, 0), (2, -1)):
        elsewhere = FakeTensor((3, 4), device=device)
        with pytest.raises(ValueError, match="it was built for llvm"):
            tuned["which"](elsewhere, k, elsewhere)
    assert ran(tuned, *arrays(5)) == 0 and ran(tuned, *arrays(17)) == 3


# ---- variants


def test_variants_behind_the_declared_ones_are_not_compared_and_can_be_called_by_themselves(
    place: Path, kernel: KernelPlan
) -> None:
    module = loaded(place, kernel)
    assert ran(module, *arrays(3)) == 0 and ran(module, *arrays(3, dtype="float64")) == 1
    assert told(module, *arrays(3)) == (0, NO_TABLES)
    assert ran(module, *arrays(3), name="which__3") == 3
    assert told(module, *arrays(3), function="kw_choice__3") == (3, "it is the variant that was asked for")
    with pytest.raises(TypeError, match="no built variant accepts") as raised:
        module["which"](*arrays(3, dtype="int32"))
    assert "double expects" in str(raised.value) and "aligned expects" not in str(raised.value)


def test_single_variants_do_not_look_at_tables(tuned: Any) -> None:
    for number in (0, 3):
        assert ran(tuned, *arrays(3), name=f"which__{number}") == number
        assert told(tuned, *arrays(3), function=f"kw_choice__{number}")[0] == number
    with pytest.raises(ValueError, match="aligned to 64 bytes"):
        tuned["which__2"](*arrays(3, offset=1))


def test_one_declared_variant_of_several_is_the_kernel_and_not_itself(place: Path, kernel: KernelPlan) -> None:
    """Both are about one variant, but only a call of the kernel looks at tables, and its errors say so."""
    only = replace(kernel, variants=(kernel.variants[0], *kernel.variants[2:4]), declared=1)
    module = loaded(place, replace(only, tables=of_devices({0: Rules((), ((None, 2),))})))
    assert ran(module, *arrays(3)) == 3 and ran(module, *arrays(3), name="which__0") == 0
    assert told(module, *arrays(3))[1].endswith("has other for any size")
    on_gpu = [FakeTensor((3, 4), device=(2, 0)), 7, FakeTensor((3, 4), device=(2, 0))]
    with pytest.raises(ValueError, match="it was built for llvm"):
        module["which"](*on_gpu)
    with pytest.raises(ValueError, match="other was built for llvm"):
        module["which__2"](*on_gpu)


ERRORS: list[tuple[Callable[[], Sequence[Any]], str]] = [
    (lambda: arrays(3)[:1], "takes 4 arguments"),
    (lambda: ("text", *arrays(3)[1:]), "expected a tensor"),
    (lambda: arrays(3, dtype="int32"), "no built variant accepts"),
    (lambda: (arrays(3)[0], 2**40, arrays(3)[2]), "int32"),
]


@pytest.mark.parametrize(("passed", "message"), ERRORS, ids=[message for _, message in ERRORS])
def test_the_choice_for_a_wrong_call_raises_what_the_call_raises(
    tuned: Any, passed: Callable[[], Sequence[Any]], message: str
) -> None:
    raised = []
    for function in ("which", "kw_choice"):
        with pytest.raises((TypeError, ValueError), match=message) as error:
            tuned[function](*passed())
        raised.append((type(error.value), str(error.value)))
    assert raised[0] == raised[1]


def test_the_choice_does_not_run_the_kernel(tuned: Any) -> None:
    out = np.full(1, -1, "float32")
    told(tuned, *arrays(17), out)
    assert out[0] == -1


# ---- devices


@pytest.mark.parametrize(
    ("device", "number"),
    [
        ({}, 3),
        ({"name": "another"}, 3),
        ({"count": COUNT + 7}, 3),
        ({"arch": "x86-64-v2"}, 0),
        ({"target": "cuda", "arch": "sm_80"}, 0),
    ],
)
def test_a_table_counts_on_devices_with_its_arch(
    place: Path, kernel: KernelPlan, device: dict[str, Any], number: int
) -> None:
    module = loaded(place, replace(kernel, tables=of_devices(BY_M, **device)))
    assert ran(module, *arrays(17)) == number
    nearest = {"name": f"the nearest to this device, '{HERE}'", "count": f"count {COUNT + 7}), the nearest to this"}
    reason = told(module, *arrays(17))[1]
    if not number:
        assert reason == "it is the first declared variant that fits; no tuning table is for x86-64"
    for key in device.keys() & nearest:
        assert nearest[key] in reason


def test_of_several_tables_the_nearest_one_counts(place: Path, kernel: KernelPlan) -> None:
    names = [("a", COUNT + 1), (HERE, COUNT + 1), ("b", COUNT), (HERE, COUNT), ("c", COUNT)]
    for last in range(1, len(names) + 1):
        tables = [
            DeviceTable("llvm", ARCH, name, count, {0: Rules(("m",), ((1000 + i, 0), (None, 3)))})
            for i, (name, count) in enumerate(names[:last])
        ]
        expected = table_for(tables, "llvm", ARCH, HERE, COUNT)
        module = loaded(place, replace(kernel, tables=tuple(tables)))
        assert expected is not None
        assert told(module, *arrays(3))[1].endswith(f"up to {expected.rules[0].ranges[0][0]}")


def test_what_the_definition_prefers_counts_on_devices_whose_arch_has_no_table(place: Path, kernel: KernelPlan) -> None:
    (preferred,) = of_devices({0: Rules((), ((None, 3),))}, name="", count=0)
    module = loaded(place, replace(kernel, tables=(preferred,)))
    assert told(module, *arrays(5)) == (3, f"the definition's preference for {ARCH} has other for any size")
    assert told(module, *arrays(5, dtype="float64")) == (
        1,
        f"it is the first declared variant that fits; the definition's preference for {ARCH} has no rules for it",
    )
    far = replace(preferred, name="another", count=10**6, rules={0: Rules((), ((None, 0),))})
    module = loaded(place, replace(kernel, tables=(preferred, far)))
    assert told(module, *arrays(5))[0] == 0, "another device's table is nearer than none"


def test_a_declared_variant_without_rules_runs_itself(place: Path, kernel: KernelPlan) -> None:
    module = loaded(place, replace(kernel, tables=of_devices({0: BY_M[0]})))
    assert ran(module, *arrays(400, dtype="float64")) == 1
    assert told(module, *arrays(400, dtype="float64"))[1].endswith("which is this device, has no rules for it")


@pytest.mark.parametrize("content", [None, "", "processor: 0\n", "model name", f"model name\t: {'x' * 5000}\n"])
def test_a_machine_that_does_not_say_its_name_has_the_nearest_table(
    place: Path, kernel: KernelPlan, content: str | None, request: pytest.FixtureRequest
) -> None:
    name = f"cpuinfo of {request.node.name}".replace("/", "")
    name = "".join(c if c.isalnum() else "_" for c in name)[:60]
    (place / name).unlink(missing_ok=True)
    if content is not None:
        (place / name).write_text(content)
    module = loaded(place, replace(kernel, tables=of_devices(BY_M)), cpuinfo=name)
    assert ran(module, *arrays(17)) == 3
    assert "the nearest to this device, '" in told(module, *arrays(17))[1]


def test_this_machine_is_known_by_its_own_name(place: Path, kernel: KernelPlan) -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    library = build(place, replace(kernel, tables=of_devices(BY_M, name=name)))
    module = tvm_ffi.load_module(str(library.rename(place / "real.so")))
    assert "which is this device" in told(module, *arrays(17))[1]


def test_the_arch_is_that_of_the_code_that_the_declared_variant_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    units = [unit(tmp_path, 10, "single", arguments(), arch) for arch in ("x86-64", "x86-64-v2")]
    units += [unit(tmp_path, 13, "other", arguments(), "x86-64-v2")]
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    rules = {0: Rules((), ((None, 1),))}
    made = replace(plan("which", *units, outputs=["out"]), declared=1, tables=of_devices(rules, arch="x86-64-v2"))
    assert ran(loaded(tmp_path, made), *arrays(3)) == 13
    monkeypatch.setenv("KERNELWRIGHT_CPU_LEVEL", "x86-64")
    module = loaded(tmp_path, made)
    assert ran(module, *arrays(3)) == 10
    assert told(module, *arrays(3))[1].endswith("no tuning table is for x86-64")
    # What only runs where a table says so has no code for this CPU, and needs none.
    assert module["kw_supported"](1, 0) == ""
    module["kw_preload"](1, 0)
    with pytest.raises(RuntimeError, match="variant other was built for x86-64-v2 only"):
        module["which__1"](*arrays(3))


def test_a_table_names_no_variant_without_code_for_its_arch(tmp_path: Path) -> None:
    units = [unit(tmp_path, 10, "single", arguments(), arch) for arch in ("x86-64", "x86-64-v2")]
    units += [unit(tmp_path, 13, "other", arguments(), "x86-64")]
    (tmp_path / "cpuinfo").write_text(CPUINFO)
    rules = {0: Rules((), ((None, 1),))}
    made = replace(plan("which", *units, outputs=["out"]), declared=1, tables=of_devices(rules, arch="x86-64-v2"))
    assert ran(loaded(tmp_path, made), *arrays(3)) == 10


# ---- threads and forks


def test_threads_that_make_the_first_call_at_once_decide_alike(place: Path, kernel: KernelPlan) -> None:
    module = loaded(place, replace(kernel, tables=of_devices(BY_M)))
    passed, numbers, barrier = arrays(17), [], threading.Barrier(8)

    def call() -> None:
        barrier.wait()
        numbers.append(ran(module, *passed))

    threads = [threading.Thread(target=call) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert numbers == [3] * 8


FORK = """
import os, sys
import numpy as np, tvm_ffi

module = tvm_ffi.load_module(sys.argv[1])
x = np.zeros((17, 4), "float32")

def number():
    return int(np.from_dlpack(module["which"](x, 7, x))[0])

if sys.argv[2] == "before":
    assert number() == 3
child = os.fork()
if not child:
    os._exit(number())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), number())
"""


@pytest.mark.parametrize("first", ["before", "in the child"])
def test_a_child_of_fork_decides_like_its_parent(place: Path, kernel: KernelPlan, first: str) -> None:
    library = build(place, replace(kernel, tables=of_devices(BY_M)), extra=flags(place))
    done = starter("numpy", "tvm_ffi").run(FORK, library, first, env=os.environ)
    assert done.stdout.split() == ["3", "3"], done.stderr


# ---- what a table may not have


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({2: Rules((), ((None, 3),))}, "has rules for a variant that there is not"),
        ({0: Rules((), ((None, 9),))}, "has rules for a variant that there is not"),
        ({0: Rules(("m",), ((4, 2), (4, 3), (None, 0)))}, "has ranges that do not rise"),
        ({0: Rules(("m",), ((4, 2), (8, 3)))}, "has ranges that do not rise"),
        ({0: Rules(("m",), ())}, "has ranges that do not rise"),
        ({0: Rules(("m",), ((None, 2), (None, 3)))}, "has ranges that do not rise"),
        ({0: Rules(("m",), ((2**63 - 1, 2), (None, 3)))}, "has ranges that do not rise"),
        ({0: Rules(("q",), ((None, 2),))}, "decides by the size 'q', which no input tells"),
    ],
)
def test_a_table_that_cannot_be_looked_up_is_refused(kernel: KernelPlan, rules: dict[int, Rules], message: str) -> None:
    with pytest.raises(KernelwrightError, match=f"its tuning table of '{HERE}'.* {message}") as raised:
        emit(replace(kernel, tables=of_devices(rules)))
    assert "remedy: tune the kernel again" in str(raised.value) and "which" in str(raised.value)


def test_a_variant_with_other_outputs_cannot_take_the_place_of_a_declared_one(place: Path, kernel: KernelPlan) -> None:
    items = [*arguments()[:3], tensor("out", "float32", [2], output=True)]
    other = plan("which", unit(place, 5, "longer", items), outputs=["out"]).variants
    rules = {0: Rules((), ((None, 5),))}
    with pytest.raises(KernelwrightError, match="names longer, which makes other outputs"):
        emit(replace(kernel, variants=(*kernel.variants, *other), tables=of_devices(rules)))


# ---- the same choice as in Python


def random_rules(chance: random.Random) -> Rules:
    by = tuple(chance.sample(["m", "n", "k"], chance.randrange(4)))
    ends = sorted(chance.sample(range(300), chance.choice([1, 3, 12, 33, 100]))) if by else []
    return Rules(by, tuple((end, chance.choice([0, 2, 3])) for end in [*ends, None]))


def random_tables(chance: random.Random) -> tuple[DeviceTable, ...]:
    return tuple(
        DeviceTable(
            "llvm",
            chance.choice([ARCH, ARCH, "x86-64-v2"]),
            chance.choice([HERE, "another", "third", ""]),
            max(1, COUNT + chance.randrange(-2, 3)),
            {0: random_rules(chance)} if chance.random() < 0.9 else {},
        )
        for _ in range(chance.randrange(1, 7))
    )


def entry_of(kernel: KernelPlan) -> dict[str, Any]:
    """The kernel's part of the manifest, as far as signatures are read from it."""
    variants = []
    for variant in kernel.variants:
        items = [
            {"name": a.name, "kind": a.kind, "dtype": a.dtype, "shape": list(a.shape), "output": a.output}
            for a in variant.units[0].arguments
        ]
        variants.append({"slug": variant.slug, "arguments": items, "symbols": SYMBOLS, "units": [{"target": "llvm"}]})
    return {"variants": variants, "declared": kernel.declared}


@pytest.mark.parametrize("seed", range(6))
def test_c_and_python_choose_alike(place: Path, kernel: KernelPlan, seed: int) -> None:
    chance = random.Random(seed)
    tables = random_tables(chance)
    module = loaded(place, replace(kernel, tables=tables))
    usable = replace(kernel, tables=tables).usable_tables
    found = Tuned(0, ARCH, HERE, COUNT, table_for(usable, "llvm", ARCH, HERE, COUNT))
    signatures, slugs = Signatures("which", entry_of(kernel)), [variant.slug for variant in kernel.variants]
    for _ in range(150):
        m, n, k, offset = chance.randrange(20), chance.randrange(20), chance.randrange(-3, 20), chance.randrange(2)
        x, _, y = arrays(m, n, offset=offset)
        symbols = signatures.choose(
            [Described("float32", x.shape), Described(value=k), Described("float32", y.shape)]
        ).symbols
        rules = found.rules()
        wanted = rules.choose(symbols) if rules else 0
        number = 0 if wanted == 2 and offset and x.size else wanted
        assert told(module, x, k, y) == (number, found.reason(symbols, number, slugs))
        assert ran(module, x, k, y) == number


# ---- CUDA, with the stand-in driver


def first_launch(threads: int) -> Any:
    """A kernel whose grid tells which variant it is of."""
    from tvm.script import tirx as T

    @T.prim_func(s_tir=True)
    def main(x_handle: T.handle):
        n = T.int32()
        x = T.match_buffer(x_handle, (n,), "float16", align=2)
        for i in T.thread_binding(n, thread="blockIdx.x"):
            for _ in T.thread_binding(threads, thread="threadIdx.x"):
                with T.sblock("x"):
                    k = T.axis.spatial(n, i)
                    x[k] = T.float16(0)

    return main


@pytest.fixture(scope="module")
def on_gpu(folder: Path) -> KernelPlan:  # noqa: F811
    """A declared variant for three archs, and one for sm_90a only; they have 32 and 64 threads."""
    made = []
    for slug, threads, archs in (("small", 32, ["sm_80", "sm_90", "sm_90a"]), ("large", 64, ["sm_90a"])):
        data = signature(
            "touch", [tensor("x", "float16", ["n"])], slug=slug, target="cuda", arch="sm_80", symbols={"n": "int32"}
        )
        made.append(cuda_unit(folder, first_launch(threads), data, archs))
    rules = {0: Rules(("n",), ((100, 0), (None, 1)))}
    h100 = DeviceTable("cuda", "sm_90a", "NVIDIA H100", 132, rules)
    always = replace(h100, name="NVIDIA H800", count=100, rules={0: Rules((), ((None, 1),))})
    return replace(plan("touch", *made), declared=1, tables=(h100, always))


@pytest.fixture(scope="module")
def gpu_library(folder: Path, on_gpu: KernelPlan) -> Path:  # noqa: F811
    return build(folder, on_gpu).rename(folder / "on_gpu.so")


def threads_of(machine: Machine) -> list[int]:  # noqa: F811
    return [int(line.split(" block ")[1].split()[0]) for line in machine.calls("launch")]


@pytest.mark.parametrize(
    ("standin", "sizes", "expected"),
    [
        ({"name": "NVIDIA H100", "count": 132, "capability": 90}, [100, 101], [32, 64]),
        ({"name": "NVIDIA H800", "count": 100, "capability": 90}, [100, 101], [64, 64]),
        ({"name": "another", "count": 120, "capability": 90}, [100, 101], [32, 64]),
        ({"name": "another", "count": 110, "capability": 90}, [100, 101], [64, 64]),
        ({"name": "another", "count": 116, "capability": 90}, [100, 101], [64, 64]),  # the lower of two
        ({"count": -1, "capability": 90}, [100, 101], [64, 64]),
        ({"name": "NVIDIA H100", "count": 132, "capability": 80}, [100, 101], [32, 32]),
        ({"name": "NVIDIA H100", "count": 132, "capability": 90, "fail": "cuDeviceGetName=1"}, [100, 101], [32, 64]),
    ],
)
def test_a_gpu_has_the_table_of_its_name_or_of_the_nearest_count(
    machine: Machine,  # noqa: F811
    gpu_library: Path,
    standin: dict[str, Any],
    sizes: list[int],
    expected: list[int],
) -> None:
    machine.set(**standin)
    module = machine.load(gpu_library)
    choices = []
    for size in sizes:
        module["touch"](on_cuda((size,)))
        choices.append(told(module, on_cuda((size,))))
    assert threads_of(machine) == expected
    assert [32 if number == 0 else 64 for number, _ in choices] == expected
    has_name = "fail" not in standin and standin.get("name", "").startswith("NVIDIA") and standin["capability"] == 90
    assert ("which is this device" in choices[0][1]) == has_name
    assert ("no tuning table is for sm_80" in choices[0][1]) == (standin["capability"] == 80)


def test_a_driver_that_cannot_name_devices_is_no_error(
    tmp_path: Path,
    gpu_library: Path,
    machine: Machine,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    import subprocess

    from test_launcher_cuda import STANDIN

    driver = tmp_path / "nameless.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-DSTANDIN_NAMELESS", str(STANDIN), "-o", str(driver)], check=True)
    monkeypatch.setenv("KERNELWRIGHT_CUDA_DRIVER", str(driver))
    machine.set(capability=90, count=132, name="NVIDIA H100")
    module = machine.load(gpu_library)
    module["touch"](on_cuda((101,)))
    assert threads_of(machine) == [64]
    assert "the nearest to this device, '' (count 132)" in told(module, on_cuda((101,)))[1]


def test_devices_of_a_process_have_tables_of_their_own(machine: Machine, gpu_library: Path) -> None:  # noqa: F811
    machine.set(capability=90, count=132)
    module = machine.load(gpu_library)
    for device in (1, 0):
        reason = told(module, on_cuda((101,), device=device))[1]
        assert f"the nearest to this device, 'stand-in {device}' (count 132)" in reason
    with pytest.raises(ValueError, match="there is no cuda:70"):
        module["touch"](on_cuda((101,), device=70))


def test_what_is_found_for_one_gpu_is_not_for_another(machine: Machine, gpu_library: Path) -> None:  # noqa: F811
    """The second device is asked when it is used first, and has become another one until then."""
    machine.set(capability=90, name="NVIDIA H100", count=132)
    module = machine.load(gpu_library)
    module["touch"](on_cuda((100,), device=0))
    machine.set(name="NVIDIA H800", count=100)
    module["touch"](on_cuda((100,), device=1))
    module["touch"](on_cuda((100,), device=0))
    assert threads_of(machine) == [32, 64, 32]


def test_a_gpu_for_whose_arch_only_declared_variants_have_code_is_supported(
    machine: Machine,  # noqa: F811
    gpu_library: Path,
) -> None:
    machine.set(capability=80)
    module = machine.load(gpu_library)
    assert module["kw_supported"](2, 0) == ""
    module["kw_preload"](2, 0)
    assert machine.calls("load") == ["sm_80"]
    with pytest.raises(RuntimeError, match="variant large was built for sm_90a"):
        module["touch__1"](on_cuda((5,)))


@pytest.fixture(scope="module")
def on_both(folder: Path, on_gpu: KernelPlan) -> Path:  # noqa: F811
    """Variant 0 is declared for the CPU, and runs on a GPU where a table says so; 1 is declared for GPUs alone."""
    items = [tensor("x", "float16", ["n"])]
    data = signature("touch", items, slug="large", symbols={"n": "int32"})
    cpu = c_unit(folder, "BEGIN (void)tensor, (void)argument; END", data)
    small, large = on_gpu.variants
    large = replace(large, units=(cpu, *large.units), tabled=("cuda",))
    rules = {1: Rules(("n",), ((100, 1), (None, 0)))}
    tables = (DeviceTable("cuda", "sm_90a", "NVIDIA H100", 132, rules),)
    made = replace(on_gpu, variants=(large, small), declared=2, tables=tables)
    return build(folder, made).rename(folder / "on_both.so")


def test_a_variant_that_is_declared_for_another_target_runs_where_a_table_says_so(
    machine: Machine,  # noqa: F811
    on_both: Path,
) -> None:
    machine.set(capability=90)
    module = machine.load(on_both)
    for size in (100, 101):
        module["touch"](on_cuda((size,)))
    assert threads_of(machine) == [32, 64]
    assert told(module, np.zeros(3, "float16"))[0] == 0
    assert module["kw_supported"](1, 0) == module["kw_supported"](2, 0) == ""
    with pytest.raises(TypeError) as raised:
        module["touch"](on_cuda((3,), (2, 32, 1)))
    assert "variant large" not in str(raised.value) and "large expects" not in str(raised.value)


def test_what_is_declared_for_another_target_needs_no_code_for_a_gpu(machine: Machine, on_both: Path) -> None:  # noqa: F811
    machine.set(capability=80)
    module = machine.load(on_both)
    assert module["kw_supported"](1, 0) == module["kw_supported"](2, 0) == ""
    module["kw_preload"](2, 0)
    assert machine.calls("load") == ["sm_80"]


def test_what_tables_choose_is_loaded_ahead_of_the_first_call(machine: Machine, gpu_library: Path) -> None:  # noqa: F811
    machine.set(capability=90, name="NVIDIA H100", count=132)
    module = machine.load(gpu_library)
    module["kw_preload"](2, 0)
    assert machine.calls("load") == ["sm_90a", "sm_90a"]
    module["touch"](on_cuda((101,)))
    assert len(machine.calls("load")) == 2


def test_a_device_that_nothing_was_built_for_is_the_error_of_the_declared_variant(
    machine: Machine,  # noqa: F811
    gpu_library: Path,
) -> None:
    machine.set(capability=70)
    module = machine.load(gpu_library)
    for function in ("touch", "kw_choice"):
        with pytest.raises(RuntimeError, match="cuda:0 is an sm_70, and variant small was built for"):
            module[function](on_cuda((101,)))
    assert "variant small" in module["kw_supported"](2, 0)
