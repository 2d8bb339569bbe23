"""What is wrong when something is compiled on demand is said with its place and a remedy; and nothing stale is used."""

from __future__ import annotations

import shutil
import stat
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.demand import Demand
from support.project import Project

SAID = '''
def said(call, *arguments, **options):
    """The message of the error that a call is; it has no line of ours."""
    with pytest.raises(kw.KernelwrightError) as error:
        call(*arguments, **options)
    text = str(error.value)
    assert "site_scons" not in text and "ondemand" not in text and "_bootstrap" not in text, text
    return text

def loaded(name):
    return getattr(kw.load(f"kernels/{name}.py"), name)

def require(text, *parts):
    for part in parts:
        assert part in text, f"{part!r} is not in:\\n{text}"

x = np.ones((3, 4), "float32")
'''


@pytest.fixture
def demand(cpu_project: Project) -> Demand:
    demand = Demand(cpu_project)
    demand.definition("times")
    return demand


def test_a_config_that_is_none_is_told_with_its_kernel_and_place(demand: Demand) -> None:
    demand.run(
        SAID
        + """
times = loaded("times")
place = "kernels/times.py:6 times"
require(said(times.compile, dtypes="float32"), place, "key 'dtypes' is not a parameter", "remedy: add a parameter")
require(said(times.compile, factor=3.5j), place, "factor")
require(said(times.compile, dtype=["float32"]), place, "dtype")
require(said(times.compile, dtype="float32", factor=float("nan")), place, "factor")
require(said(times.compile, factor=3), place, "'dtype'")
require(said(times.compile, dtype="float99"), place, "float99", "[lower]", "times/dtype-float99")
require(said(times.compile, dtype="a/../b\\n"), "kernels/times.py:10 times/dtype-a", "[lower]")
for wrong in ([7], ["float32"], [None], [{1: 2}], [{"dtype": "float32"}, [("dtype", "float32")]]):
    require(said(times.par_compile, wrong), "times", "config")
require(said(times.par_compile, 7), "times", "config")
require(said(times.par_compile, {"dtype": "float32"}), "times", "config")
with pytest.warns(match="float99"):
    assert times.par_compile([{"dtype": "float99"}], ignore_error=True) == [None]
"""
    )


def test_a_variant_that_fails_is_told_with_its_stage_and_place(demand: Demand) -> None:
    demand.definition("raises", "raise LookupError('nothing there')")
    demand.definition("returns", "return 7")
    demand.definition("leaves", "import sys; sys.exit(3)")
    demand.definition("dies", "import os; os._exit(3)")
    demand.definition("prints", "print('a word of the definition')")
    demand.definition("starts", "import threading, time; threading.Thread(target=time.sleep, args=(100,)).start()")
    demand.definition("hangs", "while True: pass")
    done = demand.run(
        SAID
        + """
variant = "/dtype-float32 [lower]: "
require(said(loaded("raises").compile), "kernels/raises.py:8 raises" + variant, "raised LookupError: nothing there")
require(said(loaded("returns").compile), "kernels/returns.py:6 returns" + variant, "expected a PrimFunc")
require(said(loaded("leaves").compile), "kernels/leaves.py:8 leaves" + variant, "sys.exit", "remedy: ")
require(said(loaded("dies").compile), "kernels/dies.py:6 dies" + variant, "3")
assert (array(loaded("prints")(x)) == 2).all()
assert (array(loaded("starts")(x)) == 2).all()
import time
begin = time.monotonic()
hanging = loaded("hangs").using(settings={"worker_timeout": 2})
require(said(hanging.compile), "kernels/hangs.py:6 hangs" + variant, "2 s", "worker_timeout")
assert time.monotonic() - begin < 40
require(said(kw.load, "kernels/none.py"), "none.py")
require(said(kw.load, "kernels"), "kernels")
open("kernels/broken.py", "w").write("def broken(:\\n")
require(said(kw.load, "kernels/broken.py"), "kernels/broken.py:1", "invalid syntax")
open("kernels/empty.py", "w").write("")
require(said(kw.load, "kernels/empty.py"), "kernels/empty.py", "declares no kernel")
with pytest.raises(AttributeError, match="has no kernel 'tines'; it has times"):
    kw.load("kernels/times.py").tines
"""
    )
    lines = [line for line in done.stderr.splitlines() if "a word of the definition" in line]
    assert lines and all(line.startswith("kernels/prints.py prints/dtype-float32 [lower]: ") for line in lines)
    assert demand.rest() == []


def test_what_nvcc_refuses_is_told_and_kept(project: Project) -> None:
    demand = Demand(project)
    project.write("broken.h", "#error this header is broken\n")
    header = project.folder / "broken.h"
    demand.run(
        SAID
        + f"""
scale = loaded("scale").using(archs=["sm_90a"])
text = said(scale.using(flags=["-include", "{header}"]).compile)
require(text, "kernels/scale.py:5 scale/dtype-float32 [nvcc]: ", "this header is broken", "broken.h")
text = said(scale.using(flags=["-no-such-flag"]).compile)
require(text, "scale/dtype-float32 [nvcc]", "no-such-flag")
assert scale.compile().devices == {{"cuda"}}
"""
    )
    assert demand.rest() == []


def test_without_a_device_and_an_arch_the_remedy_is_named(demand: Demand) -> None:
    text = (demand.project.folder / "kernels/times.py").read_text()
    demand.project.write(
        "kernels/gpu.py", text.replace("def times", "def gpu").replace("@kernel(", '@kernel(targets=["cuda"], ')
    )
    demand.run(
        SAID
        + """
where = "kernels/gpu.py:6 gpu [settings]: "
require(said(loaded("gpu").compile), where, "no CUDA device", "archs=['sm_90a'], or KERNELWRIGHT_ARCHS=sm_90a")
require(said(loaded("gpu"), x), where, "no CUDA device")
require(said(loaded("times").using(target="cuda").compile), "times [settings]: ", "CUDA", "archs=")
require(said(loaded("times").using(archs=["native"], target="cuda").compile), "CUDA", "archs=")
require(said(loaded("gpu").using(archs=["x86-64-v3"]).compile), where, "x86-64-v3", "it is compiled for cuda")
"""
    )


def test_wrong_variables_list_the_right_values_and_unknown_ones_are_pointed_at(demand: Demand) -> None:
    for variable, value, right in (
        ("KERNELWRIGHT_BACKEND", "tvmffi", "tvm_ffi, cython"),
        ("KERNELWRIGHT_TARGET", "gpu", "llvm"),
        ("KERNELWRIGHT_VERBOSE", "loud", "true"),
        ("KERNELWRIGHT_NUM_WORKERS", "0", "from 1 up"),
    ):
        program = f"require(said(loaded, 'times'), '{variable}', {value!r}, {right!r})"
        demand.run(SAID + program, env={variable: value})
    done = demand.run(SAID + "loaded('times').compile(); loaded('times').compile()", env={"KERNELWRIGHT_BACKENDS": "x"})
    assert done.stderr.count("KERNELWRIGHT_BACKENDS has no effect") == 1
    assert "did you mean KERNELWRIGHT_BACKEND?" in done.stderr


# The cache folder.


def test_damage_anywhere_in_the_cache_costs_only_time(demand: Demand) -> None:
    program = SAID + "kernel = loaded('times').compile(); assert (array(kernel(x)) == 2).all(); print(kernel.cached)"
    assert demand.run(program).stdout == "False\n"
    (kernel,) = (demand.cache / "kernels").iterdir()
    for path in (kernel / "_lib/times.so", kernel / "manifest.json", kernel / "later.json"):
        for damage in (
            lambda p: p.write_bytes(p.read_bytes()[:-9] + b"?" * 9),
            lambda p: p.write_bytes(b""),
            Path.unlink,
        ):
            damage(path)
            assert demand.run(program).stdout == "False\n", path
            assert demand.run(program).stdout == "True\n"
    for path in demand.cache.rglob("*"):
        if path.is_file() and path.name != "CACHEDIR.TAG":
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2] + b"\0?")
    assert demand.run(program).stdout == "False\n"
    assert demand.run(program).stdout == "True\n"


def test_a_cache_can_be_deleted_while_it_is_used(demand: Demand) -> None:
    demand.run(
        SAID
        + """
import shutil
times = loaded("times")
first = times.compile()
shutil.rmtree(os.environ["KERNELWRIGHT_CACHE_DIR"])
assert (array(first(x)) == 2).all()
again = times.compile()
assert not again.cached and (array(again(x)) == 2).all() and (array(times(x)) == 2).all()
other = times.compile(dtype="float64")
assert not other.cached and (array(other(x.astype("float64"))) == 2).all()
"""
    )


@pytest.fixture
def mounted(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own, where the cache is to be."""
    folder = tmp_path / "cache"
    folder.mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", str(folder)], capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


COMPILE = (
    SAID
    + """
times = loaded("times")
kernels = [times.compile(), times.compile(dtype="float32", factor=3)]
assert [float(array(kernel(x)).max()) for kernel in kernels] == [2, 3]
print([kernel.cached for kernel in kernels])
"""
)


def test_a_cache_on_another_file_system_works_and_is_read_when_it_is_read_only(
    cpu_project: Project, mounted: Path
) -> None:
    cpu_project.write("SConstruct", (cpu_project.folder / "SConstruct").read_text())
    demand = Demand(cpu_project, mounted)
    demand.definition("times")
    cpu_project.scons("-j2")
    assert demand.run(SAID + "print(loaded('times').compile().cached)").stdout == "False\n"
    shutil.rmtree(cpu_project.folder / "build")
    subprocess.run(["mount", "-o", "remount,ro", str(mounted)], check=True)
    done = demand.run(COMPILE + "print(times.compile(dtype='float32', factor=3).cached)")
    assert done.stdout == "[True, False]\nTrue\n"
    (line,) = done.stderr.splitlines()
    assert str(mounted) in line and "Read-only file system" in line and "set KERNELWRIGHT_CACHE_DIR" in line
    assert demand.run(COMPILE).stdout == "[True, False]\n", "nothing has stayed"


def test_a_full_cache_is_read_and_work_is_done_elsewhere(cpu_project: Project, mounted: Path) -> None:
    demand = Demand(cpu_project, mounted)
    demand.definition("times")
    demand.run(SAID + "loaded('times').compile()")
    with (mounted / "filler").open("wb", buffering=0) as stream, pytest.raises(OSError, match="No space"):
        while True:
            stream.write(bytes(4096))
    done = demand.run(COMPILE)
    assert done.stdout == "[True, False]\n"
    assert "No space left on device" in done.stderr and "kernelwright cache prune" in done.stderr, done.stderr


def test_a_folder_that_is_no_cache_is_refused_with_a_remedy(demand: Demand) -> None:
    program = SAID + "require(said(lambda: loaded('times').compile()), 'KERNELWRIGHT_CACHE_DIR')"
    for place in ("kernels", "kernels/times.py"):
        demand.run(program, env={"KERNELWRIGHT_CACHE_DIR": str(demand.project.folder / place)})
    assert sorted(path.name for path in (demand.project.folder / "kernels").iterdir()) == [
        "add_one.py",
        "scale.py",
        "times.py",
    ]


def test_a_disabled_cache_reads_and_keeps_nothing(demand: Demand) -> None:
    demand.run(SAID + "loaded('times').compile()")
    before = sorted(demand.project.files("cache"))
    program = SAID + "print([loaded('times').compile().cached for _ in range(2)])"
    assert demand.run(program, env={"KERNELWRIGHT_DISABLE_CACHE": "1"}).stdout == "[False, True]\n"
    assert sorted(demand.project.files("cache")) == before
    assert demand.run(program, env={"KERNELWRIGHT_CLEAR_CACHE": "1"}).stdout == "[False, True]\n"


def test_a_killed_holder_blocks_nobody_and_its_kernel_is_compiled_by_who_waits(demand: Demand) -> None:
    demand.definition(
        "slow", "import os, time\nif not os.path.exists('begun'):\n    open('begun', 'w').close()\n    time.sleep(100)"
    )
    first = demand.script("kw.load('kernels/slow.py').slow.compile()")
    end = time.monotonic() + 100
    while not (demand.project.folder / "begun").exists():
        assert time.monotonic() < end and first.poll() is None, first.communicate()
        time.sleep(0.02)
    program = "import sys; sys.modules['torch'] = None; import kernelwright as kw; print(kw.load('kernels/slow.py')"
    second = demand.start(["-c", f"{program}.slow.compile().cached)"])
    try:
        assert second.stderr is not None
        assert "another process compiles slow, waiting for it" in second.stderr.readline()
        first.kill()
        first.communicate()
        assert second.communicate(timeout=100)[0] == "False\n"
    finally:
        first.kill()
        second.kill()


# What is stale.


def test_a_source_that_is_edited_during_the_compile_is_never_taken_for_the_one_before(demand: Demand) -> None:
    """The file has another text when a worker executes it than when its record was read."""
    demand.project.write("kernels/factor.py", "FACTOR = 2\n")
    demand.project.replace("kernels/times.py", "te.const(factor", "te.const(FACTOR")
    demand.project.replace("kernels/times.py", "from tvm", "from kernels.factor import FACTOR\nfrom tvm")
    demand.run(
        SAID
        + """
from pathlib import Path
from kernelwright.ondemand.session import SESSIONS
source = Path("kernels/factor.py")
times = loaded("times")

def edited_meanwhile():
    origin = times._origin()
    source.write_text("FACTOR = 3\\n")
    return times._load(origin, {})

SESSIONS.close()
assert (array(edited_meanwhile()(x)) == 3).all(), "it is done once more"
assert (array(times.compile()(x)) == 3).all()
source.write_text("FACTOR = 2\\n")
assert (array(times.compile()(x)) == 2).all()
assert (array(times(x)) == 2).all()
source.write_text("FACTOR = 5\\n")
assert (array(times(x)) == 5).all()
assert (array(loaded("times")(x)) == 5).all()
"""
    )


@pytest.mark.parametrize(("backend", "says"), [("tvm_ffi", True), ("cython", True), ("tvm_ffi", False)])
def test_a_file_that_is_read_changes_within_a_process(demand: Demand, backend: str, says: bool) -> None:
    demand.project.write("kernels/factor.txt", "2")
    demand.project.replace("kernels/times.py", "te.const(factor", "te.const(FACTOR")
    demand.project.replace("kernels/times.py", "    pass", "    FACTOR = int(open('kernels/factor.txt').read())")
    if says:
        demand.project.replace("kernels/times.py", "@kernel(", "@kernel(reads=['factor.txt'], ")
    demand.run(
        SAID
        + f"""
times = loaded("times").using(backend="{backend}")
first = times.compile()
for factor in (3, 2, 5):
    open("kernels/factor.txt", "w").write(str(factor))
    kernel = times.compile()
    assert (array(kernel(x)) == factor).all(), factor
    assert (array(first(x)) == 2).all(), "what was compiled before is what it was"
    assert times.compile().cached
"""
    )


def cubin(name: str = "kernel") -> str:
    return f"({name}.artifacts / 'dtype-float32/cuda/sm_80.cubin').read_bytes()"


def test_stale_headers_flags_and_variables(project: Project) -> None:
    demand = Demand(project)
    inner = project.write("headers/inner.h", "#define VALUE 1\n")
    header = project.write("headers/my.h", '#include "inner.h"\n__device__ int included = VALUE;\n')
    early = header.parent / "early/my.h"
    flags = ["-isystem", str(early.parent), "-Xcompiler", f"-idirafter,{header.parent}", "-include", "my.h"]
    program = (
        SAID
        + f"""
import hashlib
kernel = loaded("scale").using(archs=["sm_80"], flags={flags}).compile(dtype="float32")
print(kernel.cached, hashlib.sha256({cubin()}).hexdigest())
"""
    )
    begin, first = demand.run(program).stdout.split()
    assert begin == "False"
    assert demand.run(program).stdout.split() == ["True", first]
    traps = {"NVCC_APPEND_FLAGS": "-G -lineinfo", "NVCC_PREPEND_FLAGS": "-G", "CPATH": "/nowhere", "CFLAGS": "-g"}
    assert demand.run(program, env=traps).stdout.split() == ["True", first], "compilers do not see them"
    inner.write_text("#define VALUE 2\n")
    cached, second = demand.run(program, env=traps).stdout.split()
    assert cached == "False" and second != first
    assert demand.run(program).stdout.split() == ["True", second]
    inner.write_text("#define VALUE 1\n")
    assert demand.run(program).stdout.split() == ["True", first], "it has stayed"
    project.write("headers/early/my.h", "__device__ int included = 3;\n")
    cached, third = demand.run(program).stdout.split()
    assert cached == "False" and third not in (first, second)


def test_another_nvcc_at_the_same_place_or_behind_cuda_home_compiles_anew(project: Project) -> None:
    demand = Demand(project)
    real = shutil.which("nvcc")
    assert real is not None

    def install(home: Path, comment: str) -> None:
        program = home / "bin/nvcc"
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(f'#!/bin/sh\n# {comment}\nexec {real} "$@"\n')
        program.chmod(program.stat().st_mode | stat.S_IXUSR)

    one, two = project.folder / "one", project.folder / "two"
    install(one, "first")
    install(two, "other")
    program = (
        SAID
        + """
scale = loaded("scale").using(archs=["sm_80"], settings={"nvcc": NVCC})
print(scale.compile(dtype="float32").cached)
"""
    )
    given = program.replace("NVCC", repr(str(one / "bin/nvcc")))
    assert demand.run(given).stdout == "False\n"
    assert demand.run(given).stdout == "True\n"
    install(one, "secon")
    assert demand.run(given).stdout == "False\n", "of the same size"
    assert demand.run(given).stdout == "True\n"
    assert demand.run(program.replace("NVCC", repr(str(two / "bin/nvcc")))).stdout == "False\n"
    wheels = program.replace("NVCC", "''")
    cached = [demand.run(wheels, env={"CUDA_HOME": str(home)}).stdout for home in (one, two)]
    assert cached in (["False\n", "True\n"], ["False\n", "False\n"]), cached


def test_an_eager_call_sees_that_its_definition_file_was_edited(demand: Demand) -> None:
    demand.run(
        SAID
        + """
from kernels.times import times as imported
times = loaded("times")
assert (array(times(x)) == 2).all() and (array(imported(x)) == 2).all()
text = open("kernels/times.py").read()
open("kernels/times.py", "w").write(text.replace("factor: int = 2", "factor: int = 7"))
assert (array(times(x)) == 7).all() and (array(imported(x)) == 7).all()
changed = text.replace("    pass", "    factor = int(open('kernels/factor.txt').read())")
for factor in ("3", "4"):
    open("kernels/factor.txt", "w").write(factor)
    open("kernels/times.py", "w").write(changed)
    assert (array(times(x)) == int(factor)).all() and (array(imported(x)) == int(factor)).all()
"""
    )


def test_an_imported_definition_with_options_is_compiled_from_its_file(demand: Demand) -> None:
    demand.run(
        SAID
        + """
from kernels.times import times
assert times.using(num_workers=1).compile().key == times.compile().key == loaded("times").compile().key
"""
    )
