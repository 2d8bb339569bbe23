"""Kernels that are compiled on demand: the same ones as scons makes, made once, and chosen as a package chooses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.demand import Demand
from support.project import Project

BACKENDS = ("tvm_ffi", "cython", "torch", "jax")
"""Those that run on the CPU; nvrtc needs a driver."""


@pytest.fixture
def demand(cpu_project: Project) -> Demand:
    demand = Demand(cpu_project)
    demand.definition("times")
    return demand


def test_a_kernel_of_a_file_is_compiled_once_and_neither_tvm_nor_scons_is_imported(demand: Demand) -> None:
    program = """
    loaded = kw.load("kernels/times.py")
    assert dir(loaded) == ["times"] == [kernel.name for kernel in loaded], dir(loaded)
    x = np.ones((3, 4), "float32")
    first = loaded.times.compile()
    assert first.variants == ({"dtype": "float32"},) and first.devices == {"cpu"}, (first.variants, first.devices)
    np.testing.assert_array_equal(array(first(x)), 2 * x)
    double = loaded.times.compile(dtype="float64")
    np.testing.assert_array_equal(array(double(x.astype("float64"))), 2 * x)
    other = loaded.times.compile(dtype="float32", factor=3)
    np.testing.assert_array_equal(array(other(x)), 3 * x)
    out = np.zeros_like(x)
    assert other(x, out) is None and (out == 3).all()
    made = [first, double, other]
    print([kernel.cached for kernel in made], len({kernel.key for kernel in made}))
    assert all((kernel.artifacts / "wrapper.c").is_file() for kernel in made)
    assert loaded.times.compile(dtype="float32").key == first.key and loaded.times.compile().cached
    imported = {"tvm", "SCons", "torch"} & set(sys.modules)
    assert not imported, imported
    """
    assert demand.run(program, tvm=False).stdout == "[False, False, False] 3\n"
    assert demand.run(program, tvm=False).stdout == "[True, True, True] 3\n"
    assert demand.rest() == []


def test_a_config_may_be_given_in_part(demand: Demand) -> None:
    demand.project.replace("kernels/times.py", '{"dtype": "float64"}', '{"dtype": "float32", "factor": 5}')
    demand.run(
        """
        times = kw.load("kernels/times.py").times
        assert times.compile().variants == ({"dtype": "float32"},)
        assert times.compile(factor=5).variants == ({"dtype": "float32", "factor": 5},)
        assert times.compile(dtype="float16").variants == ({"dtype": "float16"},)
        assert times.compile(factor=7, dtype="float32").variants == ({"dtype": "float32", "factor": 7},)
        """
    )


def test_an_imported_kernel_is_compiled_from_its_file_also_when_using_has_changed_it(demand: Demand) -> None:
    demand.run(
        """
        sys.path.insert(0, "kernels")
        from times import times

        of_file = kw.load("kernels/times.py").times
        changed = times.using(verbose=False), times.using(record="seen.json")
        keys = {kernel.compile().key for kernel in (of_file, times, *changed)}
        assert len(keys) == 1
        assert '"times"' in open("seen.json").read()
        """,
    )


def test_par_compile_keeps_the_order_and_makes_equal_ones_once(demand: Demand) -> None:
    done = demand.run(
        """
        times = kw.load("kernels/times.py").times
        assert times.par_compile([]) == [] == kw.par_compile([])

        def raising():
            yield {"dtype": "float32"}
            raise LookupError("no more")

        with pytest.raises(LookupError, match="no more"):
            times.par_compile(raising())
        assert not os.listdir(os.environ["KERNELWRIGHT_CACHE_DIR"] + "/kernels")
        wanted = [{"dtype": "float64"}, {"dtype": "float32"}, {"dtype": "float64"}, {"dtype": "float64"}]
        loud = times.using(verbose=True)
        kernels = loud.par_compile((config for config in wanted), num_workers=4)
        assert [kernel.variants for kernel in kernels] == [(config,) for config in wanted]
        assert len({kernel.key for kernel in kernels}) == 2
        assert [kernel.variants[0] for kernel in times.par_compile()] == [{"dtype": "float32"}, {"dtype": "float64"}]
        """
    )
    assert done.stderr.count("[ LOWER ]") == done.stderr.count("[ LINK ]") == 2, done.stderr
    assert "another process" not in done.stderr


def test_a_config_that_fails_costs_only_itself_if_errors_are_ignored(demand: Demand) -> None:
    demand.definition("picky", "if factor == 7:\n    raise ValueError('seven is wrong')")
    demand.run(
        """
        picky = kw.load("kernels/picky.py").picky
        configs = [{"dtype": "float32", "factor": factor} for factor in (2, 7, 3)]
        with pytest.warns(match="seven is wrong") as said:
            kernels = picky.par_compile(configs, ignore_error=True)
        assert [kernel and kernel.variants[0]["factor"] for kernel in kernels] == [2, None, 3]
        assert len(said) == 1 and said[0].filename == "<string>", said[0].filename
        with pytest.raises(kw.KernelwrightError, match="seven is wrong"):
            picky.par_compile(configs)
        with pytest.raises(kw.KernelwrightError, match="'no' is not a parameter"):
            picky.par_compile([{"dtype": "float32"}, {"no": 1}])
        """
    )


def test_the_first_failure_ends_what_runs_beside_it(demand: Demand) -> None:
    body = "if factor == 7:\n    raise ValueError('seven')\nif factor > 7:\n    import time; time.sleep(60)"
    demand.definition("slow", body)
    demand.run(
        """
        import time
        slow = kw.load("kernels/slow.py").slow
        begin = time.monotonic()
        with pytest.raises(kw.KernelwrightError, match="seven"):
            slow.par_compile([{"dtype": "float32", "factor": factor} for factor in (8, 7, 9, 10, 11)])
        assert time.monotonic() - begin < 30
        assert slow.compile(dtype="float32", factor=1).variants[0]["factor"] == 1, "what comes next works"
        """
    )
    assert demand.rest() == []


def test_an_eager_call_chooses_as_the_package_does(demand: Demand) -> None:
    demand.project.write(
        "kernels/product.py",
        """
        from kernelwright import grid, kernel
        from tvm import te

        CONFIGS = [{"transposed": True, "sums": "float32"}, {"transposed": False, "sums": "float64"}]

        @kernel(configs=CONFIGS, outputs=["c"])
        def product(transposed: bool, sums: str):
            m, n, k = te.var("m"), te.var("n"), te.var("k")
            a = te.placeholder((m, k), "float32", name="a")
            b = te.placeholder((n, k) if transposed else (k, n), "float32", name="b")
            q = te.reduce_axis((0, k))
            second = (lambda j: b[j, q]) if transposed else (lambda j: b[q, j])
            s = te.compute((m, n), lambda i, j: te.sum((a[i, q] * second(j)).astype(sums), q), name="s")
            return te.create_prim_func([a, b, te.compute((m, n), lambda i, j: s[i, j].astype("float32"), name="c")])

        @kernel(configs=grid(squared=[False, True], sums=["float32", "float64"]), outputs=["y"])
        def power(squared: bool, sums: str):
            x = te.placeholder((te.var("n"),), "float32", name="x")
            return te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] * x[i] if squared else x[i], name="y")])

        @power.reference
        def _(x, squared):
            return x * x if squared else x
        """,
    )
    demand.project.built("-j2")
    demand.run(
        """
        sys.path.insert(0, "build")
        import demo
        times = kw.load("kernels/times.py").times
        scale = kw.load("kernels/scale.py").scale

        words = "no built variant accepts", "no listed config fits"

        def outcome(call, *arguments):
            try:
                result = call(*arguments)
            except (TypeError, ValueError) as error:
                return type(error), str(error).splitlines()[0].replace(*words), str(error).count("expects")
            return type(result), result.dtype, result.shape, array(result).tobytes()

        f32, f64 = np.ones((3, 4), "float32"), np.ones((3, 4))
        for arguments in [(f32,), (f64,), (f32[:, :2],), (f32.astype("int32"),), (f32, 1), (), (f32.ravel(),)]:
            assert outcome(times, *arguments) == outcome(demo.times, *arguments), arguments
        for arguments in [(f32[0],), (f32[0].astype("float16"),), (f64[0],), (f32,), ("x",), (None,)]:
            assert outcome(scale, *arguments) == outcome(demo.scale, *arguments), arguments
        product = kw.load("kernels/product.py").product
        g = np.random.default_rng(0).random((9, 9), "float32")
        for arguments in [(g[:2, :3].copy(), g[:k, :n].copy()) for k, n in [(5, 3), (3, 5), (5, 7), (3, 3)]]:
            assert outcome(product, *arguments) == outcome(demo.product, *arguments), arguments
        assert np.allclose(array(product(g[:2, :3].copy(), g[:3, :5].copy())), g[:2, :3] @ g[:3, :5])
        with pytest.raises(ValueError, match="(?s)fit several variants.*name one: product.compile"):
            product(g, g)
        assert np.allclose(array(product.compile(transposed=False, sums="float64")(g, g)), g @ g)
        assert np.allclose(array(demo.product.variant(transposed=True, sums="float32")(g, g)), g @ g.T)
        power = kw.load("kernels/product.py").power
        assert outcome(power, g[0]) == outcome(demo.power, g[0])
        with pytest.raises(ValueError, match="(?s)fit several variants.*name one: power.compile"):
            power(g[0])
        assert np.allclose(array(power.compile(squared=True, sums="float32")(g[0])), g[0] ** 2)
        power.bind(lambda x: {"squared": True, "sums": "float64"})
        assert np.allclose(array(power(g[0])), g[0] ** 2), "what is bound decides among several"
        out = np.zeros((3, 4), "float32")
        assert times(f32, out) is None and (out == 2).all()
        with pytest.raises(TypeError) as error:
            times(f32.astype("float16"))
        message = str(error.value)
        assert "passed: x = float16[3, 4] on cpu" in message
        assert all(f"dtype-{name} expects: x = {name}[n, 4]" in message for name in ("float32", "float64"))
        """
    )


def test_a_bound_function_gives_a_config_for_what_no_listed_one_fits(demand: Demand) -> None:
    done = demand.run(
        """
        times = kw.load("kernels/times.py").times
        asked = []

        @times.bind
        def config(x):
            asked.append(x.shape)
            return {"dtype": str(x.dtype), "factor": 5}

        x = np.ones((3, 4), "float16")
        assert (array(times(x)) == 5).all() and (array(times(x)) == 5).all() and asked == [(3, 4)] * 2
        assert (array(times(x.astype("float32"))) == 2).all() and len(asked) == 2
        times.bind(lambda x: {"dtype": "float99"})
        with pytest.raises(kw.KernelwrightError, match="float99"):
            times(x)
        """
    )
    assert done.stderr == ""


def test_a_bound_function_is_asked_at_each_call(demand: Demand) -> None:
    demand.project.write(
        "kernels/shift.py",
        """
        from kernelwright import kernel
        from tvm import te


        @kernel(configs=[{"dtype": "float32", "power": 0}], outputs=["y"])
        def shift(dtype: str, power: int):
            n = te.var("n")
            x = te.placeholder((n, 4), dtype, name="x")
            s = te.var("s", "int32")
            value = s.astype(dtype) * te.const(10**power, dtype)
            return te.create_prim_func([x, s, te.compute((n, 4), lambda i, j: x[i, j] + value, name="y")])
        """,
    )
    demand.run(
        """
        shift = kw.load("kernels/shift.py").shift
        shift.bind(lambda x, s: {"dtype": str(x.dtype), "power": 1 if s < 5 else 2})
        x = np.zeros((3, 4))
        assert [float(array(shift(x, s)).max()) for s in (3, 7, 4, 7)] == [30, 700, 40, 700]
        assert [float(array(shift(x.astype("float32"), s)).max()) for s in (3, 7)] == [3, 7]
        """
    )
    assert len(demand.kernels()) == 3


def test_a_call_with_another_shape_needs_no_cache(demand: Demand) -> None:
    demand.run(
        """
        import shutil
        times = kw.load("kernels/times.py").times
        for dtype in ("float32", "float64", "float32"):
            times(np.ones((3, 4), dtype))
            times(np.ones((4, 4), dtype))
        shutil.rmtree(os.environ["KERNELWRIGHT_CACHE_DIR"])
        for rows in range(5, 9):
            for dtype in ("float64", "float32"):
                assert (array(times(np.ones((rows, 4), dtype))) == 2).all()
        assert not os.path.exists(os.environ["KERNELWRIGHT_CACHE_DIR"])
        """
    )


def test_several_variants_fit_and_the_first_one_is_compiled(demand: Demand) -> None:
    demand.project.replace("kernels/times.py", '{"dtype": "float64"}', '{"dtype": "float32", "factor": 5}')
    demand.run(
        """
        times = kw.load("kernels/times.py").times
        assert (array(times(np.ones((1, 4), "float32"))) == 2).all()
        """
    )
    assert len(demand.kernels()) == 1


@pytest.mark.parametrize("backend", BACKENDS)
def test_each_backend_by_name(demand: Demand, backend: str) -> None:
    make = {"torch": "import torch; x = torch.ones(5)", "jax": "import jax; x = jax.numpy.ones(5)"}
    done = demand.script(
        f"""
        import sys
        sys.meta_path.pop(0)
        {make.get(backend, 'x = np.ones(5, "float32")')}
        scale = kw.load("kernels/scale.py").scale
        kernel = scale.using(backend="{backend}").compile(dtype="float32")
        assert (array(kernel(x)) == 2).all()
        again = scale.using(backend="{backend}", verbose=True).compile(dtype="float32")
        assert again.cached and (array(again(x)) == 2).all(), "in another session, it is loaded once more"
        assert "tvm" not in sys.modules
        print(type(kernel(x)).__module__.partition(".")[0])
        """
    )
    printed, said = done.communicate(timeout=300)
    assert done.returncode == 0, said
    assert printed.strip() == {"torch": "torch", "jax": "jaxlib"}.get(backend, printed.strip())


def test_archs_without_a_device_give_images_and_a_clear_answer_to_a_call(demand: Demand) -> None:
    done = demand.run(
        """
        scale = kw.load("kernels/scale.py").scale
        kernel = scale.using(archs=["sm_90a"]).compile(dtype="float32")
        assert kernel.devices == {"cuda"}, kernel.devices
        image = kernel.artifacts / "dtype-float32/cuda/sm_90a.cubin"
        assert image.read_bytes()[:4] == b"\\x7fELF"
        with pytest.raises((TypeError, ValueError), match="cpu"):
            kernel(np.ones(3, "float32"))
        nvrtc = scale.using(archs="sm_90a", backend="nvrtc").compile(dtype="float32")
        assert nvrtc.key != kernel.key
        for wrong, said in [("sm_1", "sm_1"), ("", "arch")]:
            with pytest.raises(kw.KernelwrightError, match=said):
                scale.using(archs=[wrong]).compile()
        """,
    )
    assert done.stderr == ""


PROGRAMS = """
from tvm import te, tirx
import tvm

def adds(value, name="adds", dtype="float32"):
    x = te.placeholder((te.var("n"),), dtype, name="x")
    function = te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] + te.const(value, dtype), name="y")])
    return function.with_attr("global_symbol", name)

x = np.arange(4, dtype="float32")
"""


def test_programs_without_a_definition(demand: Demand) -> None:
    demand.run(
        PROGRAMS
        + """
outputs = [-1]
kernel = kw.compile(adds(1), outputs=outputs)
outputs[0] = 0
outputs.append("z")
np.testing.assert_array_equal(array(kernel(x)), x + 1)
assert not kernel.cached and kw.compile(adds(1), outputs=[-1]).cached
for same in (["y"], (1,), [1]):
    np.testing.assert_array_equal(array(kw.compile(adds(1), outputs=same)(x)), x + 1)
out = np.zeros_like(x)
kw.compile(adds(1))(x, out)
np.testing.assert_array_equal(out, x + 1)
module = kw.compile(tvm.IRModule({"shifts": adds(3, "shifts")}), outputs=[-1])
np.testing.assert_array_equal(array(module(x)), x + 3)
kernels = kw.par_compile([adds(5), adds(6), adds(5)], outputs=[-1], num_workers=4)
assert [float(array(kernel(x))[0]) for kernel in kernels] == [5, 6, 5]
assert len({kernel.key for kernel in kernels}) == 2

for wrong in ("no", 2, -3, 1.5):
    with pytest.raises(kw.KernelwrightError, match="output"):
        kw.compile(adds(1), outputs=[wrong])
for nothing in (None, 7, lambda: 1, "text", np.ones(3)):
    with pytest.raises(kw.KernelwrightError, match="is no PrimFunc and no IRModule"):
        kw.compile(nothing)
""",
    )


def test_pass_configs_are_checked_and_are_part_of_the_key(demand: Demand) -> None:
    demand.run(
        PROGRAMS
        + """
plain = kw.compile(adds(1), outputs=[-1])
other = kw.compile(adds(1), outputs=[-1], pass_configs={"tirx.disable_vectorize": True})
assert plain.key != other.key
np.testing.assert_array_equal(array(other(x)), x + 1)
with pytest.raises(kw.KernelwrightError, match="tirx.disable_vectorize"):
    kw.compile(adds(1), pass_configs={"tirx.disable_vectorise": True})
with pytest.raises(kw.KernelwrightError, match="tirx.disable_vectorize"):
    kw.load("kernels/times.py").times.using(pass_configs={"tirx.disable_vectorise": True}).compile()
times = kw.load("kernels/times.py").times
assert times.compile().key != times.using(pass_configs={"tirx.disable_vectorize": True}).compile().key
""",
    )


def device_files(folder: Path) -> dict[str, bytes]:
    """What a variant's compile has made that is the same for everyone: what TVM has made, and the images."""
    names = ("signature.json", "module.tir", "device.cu", "host.c", "host.o")
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.name in names or path.suffix == ".cubin"
    }


COMPILE_ALL = """
import json
made = {}
for file in ("scale", "add_one"):
    kernel = getattr(kw.load(f"kernels/{file}.py"), file).using(archs=["x86-64-v3", "sm_80"], verbose=True)
    for one in kernel.par_compile():
        made.setdefault(file, []).append(str(one.artifacts))
print(json.dumps(made))
"""


@pytest.mark.parametrize("first", ["scons", "on demand"])
def test_what_is_compiled_on_demand_is_what_scons_makes_and_is_made_once(project: Project, first: str) -> None:
    demand = Demand(project, project.folder / ".cache/kernelwright")
    (project.folder / ".git").mkdir()
    environment = {"KERNELWRIGHT_CACHE_DIR": ""}
    if first == "scons":
        project.built("-j2")
    done = demand.run(COMPILE_ALL, env=environment)
    if first == "on demand":
        built = project.scons("-j2", env=environment)
        again = {stage.split()[0] for stage in built.stages}
        assert not again & {"LOWER", "CUBIN"}, built.output
        assert "CACHED" in built.labels
    else:
        assert "[ LOWER ]" not in done.stderr and "[ CUBIN ]" not in done.stderr, done.stderr
        assert done.stderr.count("[ CACHED ]") >= 9, done.stderr
    compared = 0
    for name, folders in json.loads(done.stdout).items():
        expected = device_files(project.folder / "build/kernels/demo" / name)
        found = {key: value for folder in folders for key, value in device_files(Path(folder)).items()}
        assert found.keys() == expected.keys()
        assert [key for key in found if found[key] != expected[key]] == []
        compared += len(found)
    assert compared == 3 * (3 + 5), compared
