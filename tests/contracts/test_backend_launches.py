"""What each backend for CUDA promises of its launches, by what plug-ins can run, too (``kernelwright.testing``)."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import tvm_ffi
from kernelwright import backends
from kernelwright.testing import LAUNCHES, Caller
from kernelwright.testing.calls import LAUNCHED, in_stream_of_tvm_ffi
from kernelwright.testing.launches import STREAM, a_launch_is_in_the_callers_stream, an_argument_may_be_left_out
from support.contract import imported
from support.project import Project

pytestmark = pytest.mark.filterwarnings("ignore")  # of forks, in a process with threads


def with_argument(kernel: Any, stream: int, *arguments: Any) -> Any:
    return kernel(*arguments, stream=stream)


def as_it_is(array: Any) -> Any:
    return array


CALLERS = {
    caller.backend: caller
    for caller in (
        Caller("tvm_ffi", np.asarray, np.from_dlpack, device_array=tvm_ffi.from_dlpack),
        Caller("cython", np.asarray, np.asarray, device_array=as_it_is, in_stream=with_argument),
        Caller("cuda_core", np.asarray, np.asarray, device_array=as_it_is, in_stream=with_argument),
    )
}
"""Those of torch and jax have no arrays on a device without a GPU: ``tests/gpu`` asks them."""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The package that ``Caller.launched`` builds, for all backends at once."""
    needed = {name: [*backends.get(name).build_needs, *backends.get(name).run_needs] for name in CALLERS}
    able = [name for name, needs in needed.items() if all(find_spec(need.module) for need in needs)]
    settings = f'[tool.kernelwright]\ntargets = ["cuda"]\narchs = ["sm_80"]\nbackends = {able}\n'
    project = Project.of(tmp_path_factory.mktemp("launched"), settings, launched=LAUNCHED)
    project.replace("SConstruct", '"demo"', '"launched"')
    project.scons("-j2")
    return imported(project.folder / "build", "launched")


@pytest.mark.parametrize("promise", LAUNCHES, ids=lambda promise: promise.__name__)
@pytest.mark.parametrize("name", CALLERS)
def test_a_backend_keeps_what_plug_ins_promise_of_launches(name: str, promise: Any, package: Any) -> None:
    kernels = getattr(package.backends, name, None)
    if kernels is None:
        pytest.skip(f"what {name} needs is not installed")
    promise(CALLERS[name], kernels)


def test_a_backend_that_breaks_them_is_found(package: Any) -> None:
    """Here one that is called with an array in place of None, and one that makes outputs in another stream."""

    def in_stream(kernel: Any, stream: int, *arguments: Any) -> Any:
        return in_stream_of_tvm_ffi(kernel, stream if len(arguments) == 4 else 0, *arguments)

    bad = replace(CALLERS["tvm_ffi"], in_stream=in_stream)
    with pytest.raises(AssertionError, match=f"stream {STREAM:#x} on cuda:0', 'stream 0 on"):
        a_launch_is_in_the_callers_stream(bad, package.backends.tvm_ffi)
    add = package.backends.tvm_ffi.add

    class Filling:
        """It passes the array in place of the one that is left out."""

        @staticmethod
        def add(x: Any, bias: Any = None, *more: Any, **named: Any) -> Any:
            return add(x, x if bias is None else bias, *more, **named)

    with pytest.raises(AssertionError, match="0x10000', '0x10000"):
        an_argument_may_be_left_out(CALLERS["tvm_ffi"], Filling)
