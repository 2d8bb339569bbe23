"""Tuning tables in kernel libraries: that C chooses as Python does, on CPUs, and what a table may not have.

What the tables of GPUs do is in tests/contracts. Variants are written by hand, in C; each writes its own number.
"""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from kernelwright.backends.plan import KernelPlan, LoweredUnit
from kernelwright.backends.sources import emit
from kernelwright.core.errors import KernelwrightError
from kernelwright.runtime.arguments import Signatures
from kernelwright.runtime.expected import Described
from kernelwright.runtime.tables import DeviceTable, Rules, Tuned, table_for
from support.extension_build import entry_of
from support.forked import starter
from support.launcher_build import FakeTensor, build, c_unit, plan, scalar, signature, tensor

NUMBER = "BEGIN ((float *)tensor(argument + 3)->data)[0] = NUMBER; END"
SYMBOLS = {"m": "int32", "n": "int32"}
ARCH = "x86-64"
HERE = "Test CPU @ 2 GHz"
COUNT = os.sysconf("SC_NPROCESSORS_ONLN")
CPUINFO = f"processor\t: 0\nmodel name\t: {HERE} \nmodel name\t: second\n"


def arguments(dtype: str = "float32", alignment: int | None = None) -> list[dict[str, Any]]:
    """x of two sizes, a number, y of one size, and the output of one element."""
    more = {} if alignment is None else {"alignment": alignment}
    inputs = [tensor("x", dtype, ["m", "n"]) | more, scalar("k", "int32"), tensor("y", dtype, ["m", 4])]
    return [*inputs, tensor("out", "float32", [1], output=True)]


def unit(place: Path, number: int, slug: str, items: Sequence[Mapping[str, Any]], arch: str = ARCH) -> LoweredUnit:
    data = signature("which", items, slug=slug, symbols=SYMBOLS, arch=arch)
    return c_unit(place, NUMBER.replace("NUMBER", str(number)), data)


def of_devices(rules: Mapping[int, Rules], **device: Any) -> tuple[DeviceTable, ...]:
    """A table for this machine's CPU."""
    known = {"target": "llvm", "arch": ARCH, "name": HERE, "count": COUNT} | device
    return (DeviceTable(rules=rules, **known),)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="module")
def kernel(place: Path) -> KernelPlan:
    """Two declared variants, float32 and float64, and three that only run where a table says so.

    Variant 2 is for float32 that is aligned to 64 bytes, 3 for any float32, 4 for float64.
    """
    units = [unit(place, 0, "single", arguments()), unit(place, 1, "double", arguments("float64"))]
    units += [unit(place, 2, "aligned", arguments(alignment=64)), unit(place, 3, "other", arguments())]
    units += [unit(place, 4, "wide", arguments("float64"))]
    return replace(plan("which", *units, outputs=["out"]), declared=2)


def built(place: Path, kernel: KernelPlan) -> Path:
    """The kernel's library, for a machine that says of its CPU what the file ``cpuinfo`` has."""
    (place / "cpuinfo").write_text(CPUINFO)
    return build(place, kernel, extra=[f'-DKW_CPUINFO="{place / "cpuinfo"}"'])


def loaded(library: Path) -> Any:
    """Each is loaded from a path of its own, since what it has found out stays in it."""
    number = len([*library.parent.glob("*.so")])
    return tvm_ffi.load_module(str(shutil.copy(library, library.parent / f"{number}.so")))


def arrays(m: int, n: int = 4, dtype: str = "float32", offset: int = 0) -> tuple[Any, ...]:
    """The inputs of a call; x begins so many elements behind a multiple of 64 bytes."""
    memory = np.zeros(m * n + 64, dtype)
    start = -(memory.ctypes.data // memory.itemsize) % (64 // memory.itemsize) + offset
    return memory[start : start + m * n].reshape(m, n), 7, np.zeros((m, 4), dtype)


def ran(module: Any, *passed: Any, name: str = "which") -> int:
    return int(np.from_dlpack(module[name](*passed))[0])


def told(module: Any, *passed: Any) -> tuple[int, str]:
    number, _, reason = module["kw_choice"](*passed).partition(" ")
    return int(number), reason


BY_M = {0: Rules(("m",), ((4, 2), (16, 0), (None, 3))), 1: Rules(("m", "n"), ((64, 1), (None, 4)))}


@pytest.fixture(scope="module")
def library(place: Path, kernel: KernelPlan) -> Path:
    return built(place, replace(kernel, tables=of_devices(BY_M))).rename(place / "tuned.so")


def random_rules(chance: random.Random, variants: Sequence[int]) -> Rules:
    by = tuple(chance.sample(["m", "n", "k"], chance.randrange(4)))
    ends = sorted(chance.sample(range(300), chance.choice([1, 3, 12, 33, 100]))) if by else []
    return Rules(by, tuple((end, chance.choice(variants)) for end in [*ends, None]))


def random_tables(chance: random.Random) -> tuple[DeviceTable, ...]:
    return tuple(
        DeviceTable(
            chance.choice(["llvm", "llvm", "llvm", "cuda"]),
            chance.choice([ARCH, ARCH, "x86-64-v2"]),
            chance.choice([HERE, "another", "third", ""]),
            max(1, COUNT + chance.randrange(-2, 3)),
            {
                declared: random_rules(chance, variants)
                for declared, variants in enumerate(([0, 2, 3], [1, 4]))
                if chance.random() < 0.9
            },
        )
        for _ in range(chance.randrange(1, 7))
    )


@pytest.mark.parametrize("seed", range(6))
def test_c_and_python_choose_alike_and_say_why_in_equal_words(place: Path, kernel: KernelPlan, seed: int) -> None:
    chance = random.Random(seed)
    tables = random_tables(chance)
    module = loaded(built(place, replace(kernel, tables=tables)))
    table = table_for(replace(kernel, tables=tables).usable_tables, "llvm", ARCH, HERE, COUNT)
    signatures, slugs = (
        Signatures("which", {**entry_of(kernel), "declared": kernel.declared}),
        [variant.slug for variant in kernel.variants],
    )
    for _ in range(150):
        m, n, k, offset = chance.randrange(20), chance.randrange(20), chance.randrange(-3, 20), chance.randrange(2)
        declared, dtype = chance.choice([(0, "float32"), (1, "float64")])
        x, _, y = arrays(m, n, dtype, offset)
        passed = [Described(dtype, x.shape), Described(value=k), Described(dtype, y.shape)]
        symbols, found = signatures.choose(passed).symbols, Tuned(declared, ARCH, HERE, COUNT, table)
        rules = found.rules()
        wanted = rules.choose(symbols) if rules else declared
        number = 0 if wanted == 2 and offset and x.size else wanted
        assert told(module, x, k, y) == (number, found.reason(symbols, number, slugs))
        assert ran(module, x, k, y) == number


def test_sizes_whose_product_int64_does_not_hold_are_beyond_every_end(tmp_path: Path) -> None:
    items = [*(scalar(name, "int64") for name in "abc"), tensor("out", "float32", [1], output=True)]
    units = [
        c_unit(
            tmp_path, NUMBER.replace("NUMBER", str(i)), signature("big", items, slug=f"v{i}", symbols={"a": "int64"})
        )
        for i in range(3)
    ]
    rules = Rules(("a", "b", "c"), ((0, 1), (2**62, 0), (None, 2)))
    made = replace(plan("big", *units, outputs=["out"]), declared=1, tables=of_devices({0: rules}))
    module = loaded(built(tmp_path, made))
    big = 2**40
    calls = [(big, big, 1), (big, big, big), (big, big, 0), (-big, big, 1), (-big, big, -1), (-big, -big, big)]
    calls += [(-(2**63), 1, 1), (-(2**63), -1, 1), (-(2**63), -1, -1), (2**62, 1, 1), (2**62, 2, 1), (3, 5, 7)]
    for call in calls:
        assert ran(module, *call, name="big") == rules.choose(dict(zip("abc", call, strict=True))), call


def test_sizes_that_a_call_lacks_are_not_looked_for(library: Path) -> None:
    """The lookup begins before the call is compared with variants."""
    tuned = loaded(library)
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


def test_a_table_gives_no_call_a_variant_that_requires_more(tmp_path: Path) -> None:
    items = [scalar("n", "int64"), tensor("out", "float32", [1], output=True)]
    data = signature("limited", items, slug="any"), signature("limited", items, slug="few") | {"requires": ["n <= 8"]}
    units = [c_unit(tmp_path, NUMBER.replace("3", "1").replace("NUMBER", str(i)), one) for i, one in enumerate(data)]
    tables = of_devices({0: Rules(("n",), ((16, 1), (None, 0)))})
    module = loaded(built(tmp_path, replace(plan("limited", *units, outputs=["out"]), declared=1, tables=tables)))
    assert [ran(module, n, name="limited") for n in (-3, 8, 9, 16, 17)] == [1, 1, 0, 0, 0]
    assert told(module, 9)[1].endswith("has few for n = 9, up to 16, which these arguments do not fit")
    with pytest.raises(ValueError, match="few requires n <= 8, and n is 9"):
        module["limited__1"](9)


def test_one_declared_variant_of_several_is_the_kernel_and_not_itself(place: Path, kernel: KernelPlan) -> None:
    """Both are about one variant, but only a call of the kernel looks at tables, and its errors say so."""
    only = replace(kernel, variants=(kernel.variants[0], *kernel.variants[2:4]), declared=1)
    module = loaded(built(place, replace(only, tables=of_devices({0: Rules((), ((None, 2),))}))))
    assert ran(module, *arrays(3)) == 3 and ran(module, *arrays(3), name="which__0") == 0
    assert told(module, *arrays(3))[1].endswith("has other for any size")
    on_gpu = [FakeTensor((3, 4), device=(2, 0)), 7, FakeTensor((3, 4), device=(2, 0))]
    with pytest.raises(ValueError, match="it was built for llvm"):
        module["which"](*on_gpu)
    with pytest.raises(ValueError, match="other was built for llvm"):
        module["which__2"](*on_gpu)
    with pytest.raises(ValueError, match="aligned to 64 bytes"):
        module["which__1"](*arrays(3, offset=1))


def test_a_machine_that_does_not_say_its_name_has_the_nearest_table_and_this_one_is_known_by_its_own(
    place, library, kernel
):
    for content in (None, "", "processor: 0\n", "model name", f"model name\t: {'x' * 5000}\n"):
        (place / "cpuinfo").unlink(missing_ok=True)
        if content is not None:
            (place / "cpuinfo").write_text(content)
        module = loaded(library)
        assert ran(module, *arrays(17)) == 3
        assert "the nearest to this device, '" in told(module, *arrays(17))[1]
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    module = loaded(build(place, replace(kernel, tables=of_devices(BY_M, name=name))))
    assert "which is this device" in told(module, *arrays(17))[1]


def test_the_arch_is_that_of_the_code_that_the_declared_variant_runs(tmp_path, monkeypatch):
    units = [unit(tmp_path, 10, "single", arguments(), arch) for arch in ("x86-64", "x86-64-v2")]
    units += [unit(tmp_path, 13, "other", arguments(), "x86-64-v2")]
    tables = of_devices({0: Rules((), ((None, 1),))}, arch="x86-64-v2")
    library = built(tmp_path, replace(plan("which", *units, outputs=["out"]), declared=1, tables=tables))
    assert ran(loaded(library), *arrays(3)) == 13
    monkeypatch.setenv("KERNELWRIGHT_CPU_LEVEL", "x86-64")
    module = loaded(library)
    assert ran(module, *arrays(3)) == 10
    assert told(module, *arrays(3))[1].endswith("no tuning table is for x86-64")
    # What only runs where a table says so has no code for this CPU, and needs none.
    assert module["kw_supported"](1, 0) == ""
    module["kw_preload"](1, 0)
    with pytest.raises(RuntimeError, match="variant other was built for x86-64-v2 only"):
        module["which__1"](*arrays(3))


def test_a_table_decides_by_the_sizes_of_the_arguments_of_its_own_declared_variant(tmp_path: Path) -> None:
    _, k, _, out = arguments()
    turned = [tensor("x", "float64", ["n", "m"]), k, tensor("y", "float64", ["n", 4]), out]
    units = [unit(tmp_path, 0, "single", arguments()), unit(tmp_path, 1, "double", turned)]
    units.append(unit(tmp_path, 4, "wide", turned))
    tables = of_devices({1: Rules(("m",), ((8, 1), (None, 2)))})
    module = loaded(built(tmp_path, replace(plan("which", *units, outputs=["out"]), declared=2, tables=tables)))
    assert [ran(module, *arrays(n, m, "float64")) for n, m in ((16, 4), (4, 16))] == [1, 4]


def test_threads_that_make_the_first_call_at_once_decide_alike(library: Path) -> None:
    module, passed, barrier = loaded(library), arrays(17), threading.Barrier(8)

    def call(number: int) -> int:
        barrier.wait()
        return ran(module, *passed)

    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(call, range(8))) == [3] * 8


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
def test_a_child_of_fork_decides_like_its_parent(library: Path, first: str) -> None:
    done = starter("numpy", "tvm_ffi").run(FORK, library, first, env=os.environ)
    assert done.stdout.split() == ["3", "3"], done.stderr


NO_VARIANT, NO_RISE = "has rules for a variant that does not exist", "has ranges that do not rise"


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        *((rules, NO_VARIANT) for rules in ({2: Rules((), ((None, 3),))}, {0: Rules((), ((None, 9),))})),
        ({0: Rules(("m",), ((4, 2), (4, 3), (None, 0)))}, NO_RISE),
        ({0: Rules(("m",), ((4, 2), (8, 3)))}, NO_RISE),
        ({0: Rules(("m",), ())}, NO_RISE),
        ({0: Rules(("m",), ((None, 2), (None, 3)))}, NO_RISE),
        ({0: Rules(("m",), ((2**63 - 1, 2), (None, 3)))}, NO_RISE),
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
    (narrow,) = plan("which", unit(place, 6, "narrow", arguments()), outputs=["out"]).variants
    narrow = replace(narrow, units=tuple(replace(each, limited={"m": "int32"}) for each in narrow.units))
    for variant in (*other, narrow):
        rules = {0: Rules((), ((None, len(kernel.variants)),))}
        with pytest.raises(KernelwrightError, match=f"names {variant.slug}, which makes other outputs or"):
            emit(replace(kernel, variants=(*kernel.variants, variant), tables=of_devices(rules)))
