"""A built package notes the calls that no variant fits, in all backends, and has them compiled if it is told to."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.project import ADD, SCALE, SCONSTRUCT, SITE_SCONS, Project

ONE_DTYPE = SCALE.replace('["float32", "float16"]', '["float32"]')

CALL = """
import json
import demo{imports}
good = {array}
assert list({result}) == [2.0, 2.0], "a call that fits"
for bad in ({bad}):
    for _ in range(2):
        try:
            {call}
        except {errors} as error:
            text = str(error)
        else:
            raise AssertionError(bad)
print(json.dumps(demo.misses()))
"""


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Project:
    """A package with a kernel of one variant, for all backends that run on a CPU."""
    project = Project(tmp_path_factory.mktemp("misses"))
    project.write("SConstruct", SCONSTRUCT)
    project.write("pyproject.toml", '[tool.kernelwright]\ntargets = ["llvm"]\n')
    project.write("kernels/scale.py", ONE_DTYPE)
    project.write("kernels/add_one.py", ADD)
    project.built("-j2", "BACKENDS=tvm_ffi,cython,torch,jax")
    return project


def noted(project: Project, backend: str, imports: str, array: str, bad: str, **more: str) -> list[dict[str, Any]]:
    call = more.get("call", f"demo.backends.{backend}.scale(bad)")
    errors = more.get("errors", "(TypeError, ValueError)")
    result = f"demo.backends.{backend}.scale(good)"
    result = f"np.from_dlpack({result})" if backend in ("tvm_ffi", "cython") else result
    code = CALL.format(imports=imports, array=array, bad=bad, call=call, errors=errors, result=result)
    calls: list[dict[str, Any]] = json.loads(project.python(code).splitlines()[-1])
    return calls


def call_of(dtype: str, shape: list[int], count: int = 2, device: bool = True) -> dict[str, Any]:
    argument = {"name": "x", "dtype": dtype, "shape": shape} | ({"device": "cpu"} if device else {})
    return {"kernel": "scale", "arguments": [argument], "count": count}


MISSED = [call_of("float16", [2]), call_of("float32", [2, 1])]


@pytest.mark.parametrize("backend", ["tvm_ffi", "cython"])
def test_missed_calls_of_numpy_arrays_are_noted(built: Project, backend: str) -> None:
    array = "np.ones(2, np.float32)"
    bad = "good.astype(np.float16), good[:, None], good.astype(np.float16)"
    calls = noted(built, backend, "\nimport numpy as np", array, bad)
    assert calls == [call_of("float16", [2], 4), call_of("float32", [2, 1])]


@pytest.mark.parametrize("backend", ["tvm_ffi", "cython", "torch"])
def test_missed_calls_of_tensors_of_pytorch_are_noted(built: Project, backend: str) -> None:
    pytest.importorskip("torch")
    calls = noted(built, backend, ", torch\nimport numpy as np", "torch.ones(2)", "good.half(), good[:, None]")
    assert calls == MISSED


def test_missed_calls_of_programs_that_pytorch_traces_are_noted(built: Project) -> None:
    pytest.importorskip("torch")
    call = "torch.compile(demo.backends.torch.scale.op.default, backend='eager', fullgraph=True)(bad)"
    (found,) = noted(built, "torch", ", torch", "torch.ones(2)", "good.half(),", call=call, errors="Exception")
    assert found["arguments"][0]["dtype"] == "float16" and found["kernel"] == "scale"


def test_missed_calls_of_jax_are_noted(built: Project) -> None:
    pytest.importorskip("jax")
    calls = noted(built, "jax", ", jax.numpy as jnp", "jnp.ones(2)", "good.astype('float16'), good[:, None]")
    assert [{**call, "count": 2} for call in calls] == [
        call_of("float16", [2], device=False),
        call_of("float32", [2, 1], device=False),
    ]


def test_calls_that_fit_and_calls_that_are_mistaken_are_not_noted(built: Project) -> None:
    built.python("""
        import numpy as np, demo
        x = np.ones(4, np.float32)
        demo.scale(x)
        for wrong in [(), (x, x, x), ("text",), (x, np.ones(3, np.float32)), (x[::2],)]:
            try:
                demo.scale(*wrong)
            except (TypeError, ValueError):
                continue
            raise AssertionError(wrong)
        try:
            demo.scale.variant(dtype="float32")(x.astype("float16"))
        except TypeError:
            pass
        import sys
        assert demo.misses() == [], demo.misses()
        demo.misses
    """)


def test_a_call_that_fits_imports_nothing_for_this(built: Project) -> None:
    built.python("""
        import sys, numpy as np, demo
        demo.scale(np.ones(4, np.float32))
        assert demo.misses() == [] and "demo._runtime.misses" not in sys.modules
    """)


def test_what_notes_calls_is_verified_as_all_that_is_loaded(built: Project, tmp_path: Path) -> None:
    import shutil

    copy = Project(tmp_path)
    shutil.copytree(built.folder / "build/demo", tmp_path / "build/demo")
    with (tmp_path / "build/demo/_runtime/misses.py").open("a") as stream:
        stream.write("raise SystemExit('it runs')\n")
    copy.python("""
        import numpy as np, demo
        try:
            demo.scale(np.ones(4, np.float16))
        except ImportError as error:
            assert "misses.py: was altered" in str(error)
        else:
            raise AssertionError
    """)


@pytest.mark.parametrize("backend", ["tvm_ffi", "torch"])
def test_a_missed_call_is_compiled_on_demand_if_the_user_says_so(built: Project, tmp_path: Path, backend: str) -> None:
    if backend == "torch":
        pytest.importorskip("torch")
    arrays = {"torch": "torch.ones(3, dtype=torch.float16)"}.get(backend, "np.ones(3, np.float16)")
    more = ", torch" if backend == "torch" else ""
    definition = tmp_path / "kernels/scale.py"
    definition.parent.mkdir()
    definition.write_text(SCALE)
    (tmp_path / "pyproject.toml").write_text('[tool.kernelwright]\ntargets = ["llvm"]\n')
    code = f"""
        import sys, numpy as np, demo{more}
        x = {arrays}
        scale = demo.backends.{backend}.scale
        def missed():
            try:
                scale(x)
            except TypeError as error:
                return error
            raise AssertionError("it was not missed")
        missed()
        demo.set_fallback("compile", {str(definition)!r})
        y = scale(x)
        y = y if type(y).__module__ == "torch" else np.from_dlpack(y)
        assert y.tolist() == [2, 2, 2] and "float16" in str(y.dtype), y
        given = x * 0
        assert scale(x, given) is None
        assert given.tolist() == [2, 2, 2]
        demo.set_fallback(None)
        missed()
        print([call["count"] for call in demo.misses()])
    """
    env = {
        "PYTHONPATH": f"{built.folder}/build:{SITE_SCONS}",
        "KERNELWRIGHT_CACHE_DIR": str(tmp_path / "cache"),
    }
    assert built.python(code, env=env).splitlines()[-1] == "[3, 1]"
    assert list((tmp_path / "cache/kernels").iterdir())


def test_without_kernelwright_nothing_can_be_compiled(built: Project) -> None:
    built.python("""
        import sys, demo
        sys.modules.pop("kernelwright", None)
        class Without:
            def find_spec(name, path=None, target=None):
                if name == "kernelwright":
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Without)
        try:
            demo.set_fallback("compile", "kernels/scale.py")
        except ImportError as error:
            assert "pip install kernelwright" in str(error)
        else:
            raise AssertionError
    """)
