"""Kernels that are compiled on demand: the same ones as scons makes, made once, and chosen as a package chooses."""

from __future__ import annotations

import pytest
from support.demand import Demand
from support.project import CUBE, Project
from support.tuned import BLOCKS


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


def test_a_config_may_be_given_in_part_and_the_first_that_fits_is_called(demand: Demand) -> None:
    demand.project.replace("kernels/times.py", '{"dtype": "float64"}', '{"dtype": "float32", "factor": 5}')
    demand.run(
        """
        times = kw.load("kernels/times.py").times
        assert (array(times(np.ones((1, 4), "float32"))) == 2).all()
        assert len(os.listdir(os.environ["KERNELWRIGHT_CACHE_DIR"] + "/kernels")) == 1
        for given, config in [
            ({}, {"dtype": "float32"}),
            ({"factor": 5}, {"dtype": "float32", "factor": 5}),
            ({"dtype": "float16"}, {"dtype": "float16"}),
            ({"factor": 7, "dtype": "float32"}, {"dtype": "float32", "factor": 7}),
        ]:
            assert times.compile(**given).variants == (config,)
        x = np.ones((1, 4), "float32")
        signs = [np.copysign(1, array(times.compile(dtype="float32", factor=zero)(x))[0, 0]) for zero in (0.0, -0.0)]
        assert signs == [1, -1], "zeros of both signs are two configs"
        """
    )


def test_an_imported_kernel_is_compiled_from_its_file_also_when_using_has_changed_it(demand: Demand) -> None:
    demand.run(
        """
        sys.path.insert(0, "kernels")
        from times import times

        of_file = kw.load("kernels/times.py").times
        changed = times.using(verbose=False), times.using(num_workers=1), times.using(record="seen.json")
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


def test_the_first_failure_ends_what_runs_beside_it_or_costs_only_itself_if_errors_are_ignored(demand: Demand) -> None:
    body = "if factor == 7:\n    raise ValueError('seven is wrong')\nif factor > 7:\n    import time; time.sleep(600)"
    demand.definition("picky", body)
    demand.run(
        """
        picky = kw.load("kernels/picky.py").picky
        with pytest.raises(kw.KernelwrightError, match="seven is wrong"):
            picky.par_compile([{"dtype": "float32", "factor": factor} for factor in (8, 7, 9, 10, 11)])
        with pytest.warns(match="seven is wrong") as said:
            configs = [{"dtype": "float32", "factor": factor} for factor in (2, 7, 3)]
            kernels = picky.par_compile(configs, ignore_error=True)
        assert [kernel and kernel.variants[0]["factor"] for kernel in kernels] == [2, None, 3], "what comes next works"
        # Python may find at any time that a log was not closed.
        names = [one.filename for one in said if one.category is not ResourceWarning]
        assert names == ["<string>"], names
        with pytest.raises(kw.KernelwrightError, match="'no' is not a parameter"):
            picky.par_compile([{"dtype": "float32"}, {"no": 1}])
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

        @kernel(configs=grid(most=[8, 64]), requires=["n <= most", "k <= most", "k != n"], outputs=["y"])
        def limited(most: int):
            n, k = te.var("n"), te.var("k")
            x = te.placeholder((n,), "float32", name="x")
            return te.create_prim_func([k, x, te.compute((n,), lambda i: x[i] + k * 0.0 + most, name="y")])

        @kernel(configs=grid(wide=[1, 2]), outputs=["y"])
        def sized(wide: int):
            k = te.var("k")
            b = te.placeholder((wide * k,), "float32", name="b")
            return te.create_prim_func([k, b, te.compute((k,), lambda i: b[i * wide] + wide, name="y")])
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
        limited = kw.load("kernels/product.py").limited
        found = []
        few = [(3, 4), (3, 9), (9, 4), (np.int64(3), 4), (np.int64(9), 4), (3, 4), (64, 8)]
        for k, n in [*few, (65, 3), (3, 65), (3, 3)]:
            arguments = k, np.zeros(n, "float32")
            assert outcome(limited, *arguments) == outcome(demo.limited, *arguments), arguments
            found.append(outcome(limited, *arguments))
        assert [int(np.frombuffer(one[3], "float32")[0]) for one in found[:7]] == [8, 64, 64, 8, 64, 8, 64]
        with pytest.raises(ValueError, match="(?s)most-8 requires n <= 8, and n is 65.*most-64 requires n <= 64, "):
            limited(3, np.zeros(65, "float32"))
        sized = kw.load("kernels/product.py").sized
        for k in (4, 2, 3, 4):
            arguments = k, np.zeros(4, "float32")
            assert outcome(sized, *arguments) == outcome(demo.sized, *arguments), arguments
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


def test_a_bound_function_is_asked_at_each_call_that_no_listed_config_fits(demand: Demand) -> None:
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
    done = demand.run(
        """
        shift, asked = kw.load("kernels/shift.py").shift, []

        @shift.bind
        def config(x, s):
            asked.append(int(s))
            return {"dtype": str(x.dtype), "power": 1 if s < 5 else 2}

        x = np.zeros((3, 4))
        assert [float(array(shift(x, s)).max()) for s in (3, 7, np.int32(4), 7)] == [30, 700, 40, 700]
        assert asked == [3, 7, 4, 7]
        assert [float(array(shift(x.astype("float32"), s)).max()) for s in (3, 7)] == [3, 7] and len(asked) == 4
        shift.bind(lambda x, s: {"dtype": "float99", "power": 1})
        with pytest.raises(kw.KernelwrightError, match="float99"):
            shift(x, 3)
        """
    )
    assert len(demand.kernels()) == 3 and done.stderr == ""


def test_a_scalar_of_numpy_and_an_array_of_no_dimensions_choose_each_its_own(demand: Demand) -> None:
    demand.run(
        """
        from tvm import te
        @kw.kernel(configs=[{"scalar": True}, {"scalar": False}], outputs=["y"])
        def times(scalar):
            x = te.placeholder((te.var("n"),), "float32", name="x")
            factor = te.var("f", "float32") if scalar else te.placeholder((), "float32", name="f")
            value = lambda i: x[i] * (factor if scalar else factor())
            return te.create_prim_func([factor, x, te.compute(x.shape, value, name="y")])

        x = np.ones(2, "float32")
        for number in (np.float32(2), np.array(3, "float32"), np.float32(2)):
            assert (array(times(number, x)) == number).all()
        """
    )


def test_arrays_of_jax_are_taken_by_its_backend(demand: Demand) -> None:
    done = demand.run(
        """
        import jax
        x = jax.numpy.ones(5)
        scale = kw.load("kernels/scale.py").scale.using(backend="jax")
        kernel, again = scale.compile(dtype="float32"), scale.using(verbose=True).compile(dtype="float32")
        assert again.cached and (array(again(x)) == 2).all(), "in another session, it is loaded once more"
        assert (array(kernel(x)) == 2).all() and "tvm" not in sys.modules
        print(type(kernel(x)).__module__.partition(".")[0])
        """,
        tvm=False,
    )
    assert done.stdout == "jaxlib\n", done.stderr


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
other = kw.compile(adds(1), outputs=[-1], pass_configs={"tirx.disable_vectorize": True})
assert other.key != kernel.key
np.testing.assert_array_equal(array(other(x)), x + 1)
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


def test_gradients_know_nothing_of_the_space_of_their_kernel(demand: Demand) -> None:
    """Whether they have one of their own or not."""
    text = CUBE.replace("outputs=", f"tune={BLOCKS}, outputs=", 1).replace(
        "(dtype: str)", "(dtype: str, block: int)", 1
    )
    own = text.replace(
        '"grad_w"])\ndef _(dtype: str)', '"grad_w"], tune=grid(rows=[1, 2]))\ndef _(dtype: str, rows: int)'
    )
    assert own != text
    demand.project.write("kernels/cube.py", text)
    demand.project.write("kernels/own.py", own)
    demand.run(
        """
        import torch
        for name in ("cube", "own"):
            cube = kw.load(f"kernels/{name}.py").cube.using(backend="torch").compile(dtype="float32")
            assert cube.variants == ({"dtype": "float32", "block": 1},)
            x = torch.ones(3, 4, requires_grad=True)
            cube(x, torch.ones(4), 2.0).sum().backward()
            assert (x.grad == 6).all()
        """
    )


WORDS = """
import traceback

import numpy as np
import kernelwright as kw
from tvm import te

def declare():
    @kw.kernel(configs=[{"dtype": "float32"}, {"dtype": "float64"}], outputs=[-1])
    def double(dtype):
        x = te.placeholder((te.var("n"),), dtype, name="x")
        return te.create_prim_func([x, te.compute(x.shape, lambda i: x[i] + x[i], name="y")])
    return double

double = declare()
loaded = lambda name: getattr(kw.load(f"kernels/{name}.py"), name)

def said(line):
    try:
        return str(eval(line))
    except Exception as error:
        assert not any("eager" in frame.filename for frame in traceback.extract_tb(error.__traceback__))
        return f"{type(error).__name__}: {error}"
"""

SAID = {
    "double(np.ones(2, 'int8'))": """TypeError: kernel 'double': no listed config fits these arguments
  passed: x = int8[2] on cpu
  dtype-float32 expects: x = float32[n]
  dtype-float64 expects: x = float64[n]
  remedy: convert the arguments, add a config for them to the definition, or have @double.bind name one""",
    "double": "<kernel double of <string>:",
    "double.compile(size=1)": "config key 'size' is not a parameter of the definition (its parameters: dtype)",
    "double.par_compile([1])": "double [lower]: config 1 is not a dict\n  remedy: ",
    "double.par_compile(7)": "config",
    "double.par_compile({'dtype': 'float32'})": "config",
    "double.using(targets_='x')": "the options are target, archs, backend,",
    "double.using(pass_configs={'tirx.disable_vectorise': True}).compile()": "tirx.disable_vectorize",
    "kw.compile(double)": "is no PrimFunc and no IRModule",
    "double.compile().source('cuda')": "there is no cuda of code for the CPU\n  remedy: compile it for CUDA: using(",
    "kw.load('nothing.py')": "/nothing.py does not exist\n  remedy: name a definition file",
    "kw.load('/dev/null')": "/dev/null is no file\n  remedy: name a definition file",
    "kw.load('.')": " is a folder\n  remedy: name a definition file",
    "kw.load('kernels/times.py').tines": "kernels/times.py has no kernel 'tines'; it has times",
    "(__import__('copy').deepcopy([double, [double.using()]]), double(x=np.ones(2, 'float32')).shape)": ">]], (2,))",
    "double.using(target='cuda').compile()": """double is to be compiled for CUDA only, this machine has no CUDA \
device, and no arch was given
  remedy: name the archs to compile for: using(archs=['sm_90a']), or KERNELWRIGHT_ARCHS=sm_90a""",
    "loaded('gpu').compile()": "kernels/gpu.py:6 gpu [settings]: gpu is to be compiled for CUDA only, this machine has",
    "loaded('gpu')(np.ones(2))": "kernels/gpu.py:6 gpu [settings]: gpu is to be compiled for CUDA only, this machine",
    "loaded('gpu').using(archs=['x86-64-v3']).compile()": "it is compiled for cuda",
    "double.using(archs=['x86-64-v3', 'neoverse-n1']).compile()": "CPUs of the families x86_64 and aarch64, and what",
    "loaded('times').compile(dtypes='float32')": "times/dtypes-float32 [lower]: config key 'dtypes' is not a",
    "loaded('times').compile(factor=3.5j)": "kernels/times.py:6 times [lower]: ",
    "loaded('times').compile(factor=3)": "times/factor-3 [lower]: config {'factor': 3} gives no value for",
    "loaded('times').compile(dtype='float99')": "kernels/times.py:6 times/dtype-float99 [lower]: TVM cannot lower",
    "loaded('times').compile(dtype='a/../b\\n')": "kernels/times.py:10 times/dtype-a..b_",
    "loaded('hangs').using(settings={'worker_timeout': 2}).compile()": "[lower]: a worker took longer than 2 s",
    "[__import__('sys').modules.update(Cython=None), double.using(backend='cython').compile()]": """ToolchainError: \
[settings]: the backend cython needs cython where kernels are built
  remedy: pip install 'cython>=3.1', or take cython out of backends""",
}
"""What somebody writes who is new to it -> what is said; it tells what was wrong, and what helps here."""


def test_a_mistake_is_told_in_words_that_help(demand: Demand) -> None:
    text = demand.definition("hangs", "while True: pass").read_text()
    text = text.replace("while True: pass", "pass").replace("def hangs", "def gpu")
    demand.project.write("kernels/gpu.py", text.replace("@kernel(", '@kernel(targets=["cuda"], '))
    demand.run(
        f"""{WORDS}
wrong = []
for line, expected in {SAID}.items():
    text = said(line)
    if expected not in text or "site_scons" in text or "_bootstrap" in text:
        wrong.append((line, text))
assert not wrong, wrong
""",
        env={"CUDA_VISIBLE_DEVICES": ""},
    )


def test_a_definition_that_moves_to_another_line_is_not_compiled_again(demand: Demand) -> None:
    source = WORDS.partition("double = declare()")[0]
    demand.run(f"""{WORDS}
first = double.compile()
exec({chr(10) + source!r})
assert not first.cached and declare().compile().cached
""")
