"""What only the backend cuda_core does: its generated modules, and how Python takes arrays, numbers and streams.

What its launcher has in common with the one in C is in tests/contracts, and the order of streams in test_order.py.
"""

from __future__ import annotations

import ast
import ctypes
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kernelwright import backends
from kernelwright.backends import launcher
from kernelwright.backends.plan import KernelPlan, LoweredUnit
from kernelwright.core.dtype import Dtype
from kernelwright.core.errors import KernelwrightError, Where
from kernelwright.core.signature import HostCheck, Parameter
from kernelwright.define.arguments import DTYPES
from kernelwright.runtime import cuda_core_arrays, cuda_core_tensor_maps
from kernelwright.runtime.cuda_core_arrays import Array
from kernelwright.runtime.cuda_core_launch import DeviceCode, LaunchError, int8, uint16
from support.launched import driver_of, process_of
from support.launcher_build import scalar, signature, tensor
from support.launchers import Kernel, Process, Variant, entry_of, make_package, plan_of

BACKEND = backends.get("cuda_core")


def launch(kernel: str, params: Sequence[Mapping[str, Any]], grid: int | str, **more: Any) -> dict[str, Any]:
    """One launch of signature.json."""
    return {"kernel": kernel, "params": [*params], "grid": [grid, 1, 1], "block": [128, 1, 1], "shared": 0, **more}


def pointers(*names: str) -> list[dict[str, Any]]:
    return [{"tensor": name} for name in names]


def number(expression: int | str, dtype: str) -> dict[str, Any]:
    return {"scalar": expression, "dtype": dtype}


def cuda_signature(
    kernel: str, arguments: Sequence[Mapping[str, Any]], launches: Sequence[Mapping[str, Any]], **more: Any
) -> dict[str, Any]:
    """What signature.json says of a lowering for CUDA."""
    data = signature(kernel, arguments, target="cuda", arch="sm_80", symbols={"n": "int32"})
    return {**data, "launches": [*launches], "workspaces": [], "host_checks": [], **more}


def scale(**launched: Any) -> dict[str, Any]:
    """y = x * alpha."""
    arguments = [tensor("x", "float16", ["n"]), tensor("y", "float16", ["n"], output=True), scalar("alpha", "float32")]
    step = launch("scale_kernel", [*pointers("x", "y"), number("alpha", "float32")], "(n + 127) // 128")
    return cuda_signature("scale", arguments, [{**step, **launched}])


MAP = {
    **{"tensor": "x", "dtype": "float16", "sizes": [64, "n"], "strides": [128], "box": [64, 8], "steps": [1, 1]},
    **{"interleave": 0, "swizzle": 3, "promotion": 2, "fill": 0},
}


def boxes(changed: Mapping[str, Any], grid: int | str = "n", **flags: Any) -> dict[str, Any]:
    """A launch with a tensor map."""
    launches = [launch("boxes_kernel", [{"tensor_map": 0}], grid, **flags)]
    return cuda_signature("boxes", [tensor("x", "float16", ["n", 64])], launches, tensor_maps=[{**MAP, **changed}])


# ---- what is generated


def test_the_stub_has_a_stream_and_a_module_knows_a_size_that_is_only_in_a_map() -> None:
    entry = {**entry_of(Kernel([Variant(scale())])), "doc": "Use it as f(x, /) -> y."}
    text = BACKEND.stub("scale", entry)
    assert "Use it as f(x, /) -> y." in text
    assert "self, /, x: _Tensor, y: _Tensor, alpha: _b.float, *, stream: _Any = None)" in text
    assert text.count("stream: _Any = None") == 2
    (module,) = BACKEND.emit(plan_of([boxes({}, grid=1)])).values()
    assert "n = x.shape[0]" in module


def with_launch(**launch: Any) -> Callable[[], KernelPlan]:
    return lambda: changed(plan_of([scale()]).units[0], **launch)


def of(data: dict[str, Any]) -> Callable[[], KernelPlan]:
    return lambda: plan_of([data])


UNNAMED = cuda_signature("k", [tensor("x", "float32", ["n * n"])], [launch("f", pointers("x"), "n")])
OLDER = {name: value for name, value in scale().items() if name not in ("launches", "host_logic")}


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (with_launch(preferred_cluster=(2, 1, 1)), "preferred clusters, which cuda.core does not offer"),
        (with_launch(params=(Parameter(dtype="bfloat16", scalar="n"),)), "of dtype 'bfloat16', which cannot be passed"),
        (of(boxes({"dtype": "float4_e2m1fn"})), "there are no tensor maps of float4_e2m1fn"),
        (of(boxes({}, cooperative=True)), "launched with tensor maps and with clusters or flags"),
        (of(UNNAMED), "the size 'n' is not the size of an argument by itself"),
        (of(scale() | {"launches": None, "host_logic": ""}), "the host code"),
        (of(OLDER), "signature.json says nothing of the host code"),
        *(
            (of(boxes(change)), "signature.json is damaged")
            for change in ({"sizes": []}, {"strides": [128, 1]}, {"box": [64]}, {"box": [64, 2.5]}, {"swizzle": "3"})
        ),
    ],
)
def test_what_it_cannot_do_is_an_error_of_the_build(made: Callable[[], KernelPlan], message: str) -> None:
    with pytest.raises(KernelwrightError, match=re.escape(message)) as caught:
        BACKEND.check(made())
        BACKEND.emit(made())
    assert caught.value.remedy and caught.value.where.kernel


def test_tensors_of_every_dtype_have_maps_with_and_without_a_library() -> None:
    header = Path(*launcher.__path__, "tensormap.h").read_text()
    in_libraries = {name: int(number) for name, number in re.findall(r'\{"(\w+)", (\d+)\}', header)}
    assert in_libraries == cuda_core_tensor_maps.DTYPES
    assert set(DTYPES) == set(in_libraries)
    bytes_of_elements = json.loads(re.search(r"bytes\[\] = \{(.*?)\};", header).expand(r"[\1]"))
    assert bytes_of_elements[: len(cuda_core_tensor_maps.ELEMENT)] == [*cuda_core_tensor_maps.ELEMENT]
    sizes = {name: Dtype.parse(name, Where()).bits // 8 or 1 for name in DTYPES}
    assert {name: cuda_core_tensor_maps.ELEMENT[number] for name, number in in_libraries.items()} == sizes


def test_memory_of_a_structure_is_aligned_and_within_what_was_asked_for() -> None:
    for size in (1, 4, 100, 128) * 20:  # where such memory begins is up to malloc
        structure = cuda_core_tensor_maps.Structure(size)
        begin = ctypes.addressof(structure._memory)
        assert structure.address % cuda_core_tensor_maps.ALIGNMENT == 0
        assert begin <= structure.address <= begin + len(structure._memory) - size


def test_an_array_of_an_older_library_is_told_the_stream_as_well() -> None:
    class Old:
        def __dlpack__(self, *, stream: int) -> int:
            return stream

    assert cuda_core_arrays._export(Old(), 5) == 5


def changed(unit: LoweredUnit, **launch: Any) -> KernelPlan:
    """A plan with this lowering, whose first launch is another one."""
    assert unit.launches is not None
    unit = replace(unit, launches=(replace(unit.launches[0], **launch),)) if launch else unit
    plan = plan_of([scale()])
    return replace(plan, variants=(replace(plan.variants[0], slug=unit.slug, units=(unit,)),), outputs=())


@pytest.mark.parametrize("name", ['f", grid=print(1), x="', "f\n", "a b", "", "1f", "f\\", "é"])
def test_a_name_that_is_none_does_not_enter_a_module(name: str) -> None:
    (unit,) = plan_of([scale()]).units
    named = replace(unit, arguments=(replace(unit.arguments[0], name=name), *unit.arguments[1:]))
    for plan in (changed(unit, kernel=name), changed(named), replace(changed(unit), name=name)):
        with pytest.raises(KernelwrightError, match=r"expected an identifier") as caught:
            BACKEND.emit(plan)
        assert caught.value.remedy


TEXTS = ['"""', "\\", 'ends with "', "\\u0041\n\t", "\N{PILE OF POO}", "'", "{kernel}"]


@pytest.mark.parametrize("text", TEXTS)
def test_texts_of_any_characters_enter_a_module_as_they_are(text: str) -> None:
    (unit,) = plan_of([scale()]).units
    check = HostCheck("n > 0", "ValueError", text)
    arguments = (replace(unit.arguments[0], shape=(text, "n")), *unit.arguments[1:])
    plan = replace(unit, slug=text, host_checks=(check,), arguments=arguments)
    (module,) = BACKEND.emit(changed(plan)).values()
    tree = ast.parse(module)
    constants = [node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)]
    assert constants.count(text) == 4  # the check's message, and the slug in three tables
    (function,) = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    said = ast.get_docstring(function, clean=False)
    assert said is not None and said.startswith(f"Variant {text.splitlines()[0]}")


# ---- helpers of generated modules


def test_numbers_that_do_not_fit_are_refused_and_compact_arrays_are_told() -> None:
    assert (int8(-128).value, uint16(65535).value) == (-128, 65535)
    for convert, value in ((int8, 128), (int8, -129), (uint16, -1), (uint16, 65536)):
        with pytest.raises(LaunchError, match=f"passed {value}, which does not fit"):
            convert(value)
    for arrays, compact in ((COMPACT, True), (GAPS, False)):
        for shape, strides in arrays:
            assert Array(0x10000, "float32", shape, strides, (2, 0)).is_compact is compact, (shape, strides)


def test_arrays_without_elements_share_memory_with_none() -> None:
    first, inside = (Array(0x10000 + step, "float32", (4,), None, (2, 0)) for step in (0, 4))
    empty = inside._replace(shape=(0,))
    assert first.shares_memory(inside, False) and not first.shares_memory(inside, True)
    assert not any(one.shares_memory(other, False) for one, other in ((first, empty), (empty, first)))


COMPACT = (
    *(((3, 4), None), ((3, 4), (4, 1)), ((2, 3, 4), (12, 4, 1)), ((3, 1), (1, 7)), ((1, 4), (99, 1))),
    *(((3, 0), (5, 2)), ((), ())),
)
GAPS = ((4, 4), (1, 4)), ((3, 4), (5, 1)), ((3, 4), (-4, 1)), ((2, 3, 4), (4, 8, 1)), ((4,), (0,))


# ---- calls


@pytest.fixture
def process(tmp_path_factory: pytest.TempPathFactory) -> Process:
    return process_of(tmp_path_factory, "cuda_core")


@pytest.fixture
def package(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Makes a package of kernels with one variant each, from their signatures."""

    def make(*signatures: dict[str, Any], archs: Sequence[str] = ("sm_80",)) -> Process:
        make_package(tmp_path, {data["kernel"]: Kernel([Variant(data)]) for data in signatures}, archs)
        return Process(tmp_path, driver_of(tmp_path_factory))

    return make


def test_a_condition_is_that_of_one_launch_and_not_of_those_behind_it(package: Any) -> None:
    steps = [launch("first", [], 1, when="n > 50"), launch("second", [], 1)]
    process = package(cuda_signature("k", [tensor("x", "float32", ["n"])], steps))
    process.run('for size in (51, 50):\n    made.kernel("k")(on_cuda((size,)))')
    assert [line.split()[0] for line in process.calls("launch")] == ["first", "second", "second"]


NAMES = [("call", "call_"), ("call_", "call"), ("workspace_0", "n"), ("min_", "min")]


def test_arguments_and_sizes_keep_apart_whatever_their_names_are(package: Any) -> None:
    signatures = []
    for turn, names in enumerate(NAMES):
        numbers = [number(name, "int32") for name in names]
        params = [{"workspace": 0}, *pointers("x"), *numbers, number("size", "int32")]
        arguments = [tensor("x", "float32", ["size"]), *(scalar(name, "int32") for name in names)]
        more: dict[str, Any] = {"symbols": {"size": "int32"}, "workspaces": [{"bytes": 64}]}
        signatures.append(cuda_signature(f"k{turn}", arguments, [launch("f", params, "size")], **more))
    process = package(*signatures)
    process.run("for turn in range(4):\n    made.kernel(f'k{turn}')(on_cuda((7,)), 11, 22)", parameters="ppiii")
    assert [line.partition(" ")[2] for line in process.parameters()] == ["0x10000 11 22 7"] * 4


def test_a_grid_that_clusters_do_not_divide_is_refused(package: Any) -> None:
    process = package(scale(cluster=[2, 1, 1], grid=["n", 1, 1]), archs=["sm_90a"])
    text = process.refusal('made.kernel("scale")(on_cuda((5,), "float16"), 1)', capability=90)
    assert "a grid of (5, 1, 1), no multiple of its clusters of (2, 1, 1)" in text


def test_streams_have_many_forms_and_what_is_none_is_refused(process):
    process.run("""
        class Protocol:
            def __cuda_stream__(self):
                return 0, 0x88
        class OfTorch:
            cuda_stream = 0x99
        class OfCupy:
            ptr = 0xaa
        for stream in (0x77, Protocol(), OfTorch(), OfCupy(), 0, 2, None):
            made.kernel("shared")(on_cuda((4,)), stream=stream)
        """)
    streams = [re.findall(r"stream (\S+) on", line)[0] for line in process.calls("launch")]
    assert streams == ["0x77", "0x88", "0x99", "0xaa", "0", "0x2", "0"]
    said = process.run("""
        for stream in ("fast", True, -1, 1.5):
            print(refusal(lambda: made.kernel("shared")(on_cuda((4,)), stream=stream)).splitlines()[0])
        """)
    shown = ("a str", "the bool True", "the int -1", "the float 1.5")
    message = "TypeError: kernel 'shared': stream is {}, expected a CUDA stream"
    assert said.splitlines() == [message.format(what) for what in shown]
    process.run('made.kernel("norm").variant(hidden=64, dtype="float32").preload("cuda:0")')
    assert len(process.calls("load")) == 1
    said = process.run(
        """
        class Array:
            def __init__(self, shape, strides=None, stream=None):
                self.__cuda_array_interface__ = {
                    "shape": shape, "typestr": "<f4", "data": (0x40000, False), "strides": strides, "stream": stream,
                    "version": 3,
                }
        made.kernel("two_steps")(Array((50,), (4,), 0x99), Array((50,)))
        print(refusal(lambda: made.kernel("leading")(x=Array((3, 16), (66, 4)), w=Array((8,)))))
        """,
        parameters="pp",
    )
    assert "cannot be passed: its strides are not multiples of the size of its elements" in said
    assert "0x40000" in process.parameters()[0]
    assert process.calls("record") == ["in stream 0x99"] and process.calls("wait") == ["in stream 0"]
    printed = process.run("""
        import copy, tvm_ffi
        y = made.kernel("scale")(on_cuda((1000,), "float16"), 1, 1, 1, stream=0x77)
        print(hasattr(y._view, "__dlpack_c_exchange_api__"), hasattr(y, "__dlpack_c_exchange_api__"))
        print(copy.copy(y).ptr == y.ptr)
        print(tvm_ffi.from_dlpack(y).shape)
        """)
    assert printed == "True False\nTrue\n(1000,)\n"
    assert process.log[-1] == "synchronize stream 0x77"


READ_ONLY = """
import ctypes, struct
class View:
    def __init__(self, read_only):
        self.__cuda_array_interface__ = {
            "shape": (3, 64), "typestr": "<f2", "data": (0x10000, read_only), "version": 3,
        }

class Exported(FakeTensor):
    # in the form of DLPack that has flags, of which the first forbids writing
    def __init__(self, read_only):
        super().__init__((3, 64), CODES["float16"], device=(2, 0))
        head = struct.pack("<IIQQQ", 1, 0, 0, 0, int(read_only))
        tensor = ctypes.string_at(ctypes.addressof(self._managed), ctypes.sizeof(self._managed) - 16)
        self.versioned = ctypes.create_string_buffer(head + tensor)

    def __dlpack__(self, **_):
        make = ctypes.pythonapi.PyCapsule_New
        make.restype, make.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
        return make(ctypes.addressof(self.versioned), b"dltensor_versioned", None)

norm = made.kernel("norm").variant(alignment=2)
for kind in (View, Exported):
    free, closed = (kind(read_only) for read_only in (False, True))
    print(refusal(lambda: norm(free, closed)).splitlines()[0])
    norm(free, free)
    for _ in range(2):
        norm(closed, free)
        print(refusal(lambda: norm(free, closed)).splitlines()[0])
"""


def test_memory_that_may_not_be_written_is_no_output_also_of_a_call_like_an_earlier_one(process: Process) -> None:
    expected = "ValueError: kernel 'norm': argument 'y' is a read-only array, and the kernel writes it"
    assert process.run(READ_ONLY).splitlines() == [expected] * 6
    assert len(process.calls("launch")) == 6


@pytest.mark.parametrize(("dtype", "codes"), [("int4x8", (0, 4, 8)), ("float4_e2m1fnx2", (17, 4, 2))])
def test_packed_data_is_aligned_to_its_elements(package: Any, dtype: str, codes: tuple[int, int, int]) -> None:
    process = package(cuda_signature("packed", [tensor("x", dtype, ["n"])], [launch("f", pointers("x"), "n")]))
    start = 0x10000 + codes[1] * codes[2] // 8
    process.run(f'made.kernel("packed")(FakeTensor((3,), {codes}, device=(2, 0), data={start}))')
    assert len(process.calls("launch")) == 1


def test_the_alignment_is_that_of_the_code_for_cuda(package: Any) -> None:
    """The arguments in the manifest are those of a variant's first lowering, which may be for the CPU."""
    data = scale()
    process = package({**data, "arguments": [{**data["arguments"][0], "alignment": 16}, *data["arguments"][1:]]})
    entry = process.folder / "made/scale.json"
    text = entry.read_text().replace(', "alignment": 16', "")
    entry.write_text(text)
    assert "alignment" not in text
    text = process.refusal('made.kernel("scale")(on_cuda((4,), "float16", data=0x10004), 1)')
    assert "argument 'x' has data that is not aligned to 16 bytes" in text


def test_arrays_that_are_not_on_cuda_are_refused(process: Process) -> None:
    """Of PyTorch, which says so in its own way."""
    pytest.importorskip("torch")
    said = process.run("""
        import numpy, torch
        x, scale = on_cuda((5,), "float16"), made.kernel("scale")
        for array in (numpy.zeros(5, "float16"), torch.zeros(5), torch.zeros(5, device="meta")):
            print(refusal(lambda: scale(x, array, 1, 1, 1)).splitlines()[0])
        """)
    built = "it was built for cuda (sm_80, sm_90, sm_90a, sm_100f, compute_80) only"
    places = ["cpu", "cpu", "device 0 of DLPack type 0"]
    assert [line.partition(", and ")[::2] for line in said.splitlines()] == [
        (f"ValueError: kernel 'scale': argument 'y' is on {place}", built) for place in places
    ]


def test_a_number_is_asked_for_once_and_may_be_an_array_of_rank_0(process):
    printed = process.run("""
        class Counting:
            # a number that is another one each time it is asked for
            asked = 0
            def __index__(self):
                self.asked += 1
                return 4 if self.asked == 1 else 1000000
        number = Counting()
        print(made.kernel("fill")(on_cuda((4,)), number).shape, number.asked)
        """)
    assert printed == "(4,) 1\n"
    assert " grid 4 1 1 " in process.calls("launch")[0]
    process.run(
        """
        import numpy
        x, scale = on_cuda((5,), "float16"), made.kernel("scale")
        scale(x, x, numpy.array(1.5), numpy.array(2.5), numpy.array(3))
        assert made.kernel("fill")(x32 := on_cuda((4,)), numpy.array(6)).shape == (6,)
        made.kernel("divide")(x32, numpy.array(1), numpy.array(True))
        """,
        parameters="scale_kernel:ppfhil divide_kernel:pib",
    )
    numbers, _, flag = process.parameters()
    assert (numbers, flag) == ("0x10000 0x10000 1.5 0x4100 5 3", "0x10000 1 1")


def test_a_limit_of_shared_memory_is_looked_at_and_raised_with_one_lock(process: Process) -> None:
    """Otherwise a thread that needs less would lower the limit of one that needs more."""
    code = """
        from cuda.bindings import driver
        special, set_limit, held = made.kernel("special"), driver.cuKernelSetAttribute, []
        lock = special._shared.cuda.lock
        driver.cuKernelSetAttribute = lambda *what: held.append(lock._is_owned()) or set_limit(*what)
        special(on_cuda((4,)))
        assert held == [True]
        """
    process.run(code, capability=90)


def test_only_so_many_kinds_of_calls_are_remembered(process: Process) -> None:
    process.run("""
        fill, x = made.kernel("fill"), on_cuda((4,))
        fill._shared.KEPT = 3
        for count in range(1, 9):
            fill(x, count, on_cuda((count,)))
            assert 1 <= len(fill._shared.matches) <= 3
        """)
    assert len(process.calls("launch")) == 8


def test_calls_that_no_variant_fits_are_noted_and_may_be_answered(process: Process) -> None:
    printed = process.run("""
        from types import SimpleNamespace
        from kernelwright.runtime.misses import Misses
        misses, scale, x = Misses(), made.kernel("scale"), on_cuda((5,), "float16")
        scale._loader = SimpleNamespace(missed_calls=lambda: misses)
        mistaken = [(x, x, 1, 1, 2**63), (x, on_cuda((6,), "float16"), 1, 1, 1)]
        wrong = [(x, x, 1, 1, 2.5), (on_cuda((5,)), 1, 1, 1), *mistaken]
        assert "nothing was raised" not in [refusal(lambda: scale(*arguments)) for arguments in wrong]
        for noted in misses.calls():
            print(noted["count"], [one.get("value", one.get("shape")) for one in noted["arguments"]])
        misses._definitions, misses._compiled = ("scale.py",), {"scale": lambda *arguments: len(arguments)}
        print(scale(on_cuda((5,)), 1, 1, 1))
        """)
    assert printed == "1 [None, None, 1, 1, 2.5]\n1 [None, 1, 1, 1]\n4\n", "its arrays tell dtypes to DLPack only"


def test_numbers_are_rounded_to_their_dtypes_and_several_outputs_come_in_the_order_of_the_definition(package):
    dtypes = {"a": "bfloat16", "b": "float8_e4m3fn", "c": "uint64"}
    arguments = [tensor("x", "float32", ["n"]), *(scalar(name, dtype) for name, dtype in dtypes.items())]
    arguments += [tensor("z", "float32", ["n"], output=True), tensor("y", "float32", ["n + 1"], output=True)]
    params = [*pointers("x", "z", "y"), number("a", "float32"), number("b", "float32"), number("c", "uint64")]
    process = package(cuda_signature("several", arguments, [launch("f", params, "n")], outputs=["y", "z"]))
    code = """
        import numpy
        for numbers in ((1.3, 1.3, 2**64 - 1), (numpy.bool_(True), 500, numpy.uint64(2**63))):
            made_now = made.kernel("several")(on_cuda((5,)), *numbers)
            print(type(made_now).__name__, [list(one.shape) for one in made_now])
    """
    assert process.run(code, parameters="pppffl") == "tuple [[6], [5]]\n" * 2
    numbers = [line.split()[-3:] for line in process.parameters()]
    assert numbers == [["1.29688", "1.25", "-1"], ["1", "nan", str(-(2**63))]]


@pytest.mark.parametrize(("dtype", "code"), [("bfloat16", 4), ("float8_e4m3fn", 10), ("float16", 2)])
def test_new_outputs_of_dtypes_that_numpy_lacks_are_exported(package, dtype: str, code: int) -> None:
    arguments = [tensor("x", "float32", ["n"]), tensor("y", dtype, ["n", "2"], output=True)]
    launches = [launch("f", [*pointers("x", "y")], "n")]
    process = package(cuda_signature("narrow", arguments, launches, outputs=["y"]))
    printed = process.run(
        """
        from made._runtime import dlpack
        import tvm_ffi
        y = made.kernel("narrow")(on_cuda((5,)))
        for version in (None, (1, 0)):
            capsule = y.__dlpack__(max_version=version)
            name = b"dltensor_versioned" if version else b"dltensor"
            kind = dlpack.VersionedTensor if version else dlpack.Tensor
            tensor = kind.from_address(dlpack.pointer_in(capsule, name))
            print((tensor.tensor if version else tensor).code)
        print(y.dtype, list(y.shape), tvm_ffi.from_dlpack(y).dtype)
        """,
        parameters="pp",
    )
    assert printed == f"{code}\n{code}\n{dtype} [5, 2] {dtype}\n"


def test_a_missing_image_is_an_error(package: Any) -> None:
    process = package(scale())
    (process.folder / "made/_images/scale/default.sm_80.cubin").unlink()
    text = process.refusal('made.kernel("scale")(on_cuda((5,), "float16"), 1)')
    assert text.startswith("ImportError") and "default.sm_80.cubin" in text


# ---- frameworks


def framework_call(array: str, stream: str) -> str:
    return f"""
from support import frameworks_standin
framework = frameworks_standin.{array.partition("_")[0]}()
def torch_array(number):
    return frameworks_standin.TorchTensor((64,), framework.float16, number)
def cupy_array(number):
    return frameworks_standin.CupyArray((64,), (2, 16, 1), number)
print(type(made.kernel("scale")({array}, 1, 1, 1, stream={stream})).__name__)
"""


@pytest.mark.parametrize("framework", ["torch", "cupy"])
@pytest.mark.parametrize(
    ("stream", "handle"),
    [("None", "0x510"), ("0x66", "0x66"), ("0", "0x0"), ("1", "0x0"), ("2", "0x2"), ("0x510", "0x510")],
)
def test_frameworks_allocate_in_the_stream_of_the_launch(process, framework, stream, handle):
    printed = process.run(framework_call(f"{framework}_array(1)", stream))
    dtype, kind = ("torch.float16", "TorchTensor") if framework == "torch" else ("float16", "CupyArray")
    assert printed == f"{framework} makes {dtype} [64] in {handle} on cuda:1\n{kind}\n"
    (launched,) = process.calls("launch")
    assert f"stream {handle.replace('0x0', '0')} on cuda:1" in launched
    assert process.calls("allocate") == []


def test_temporary_memory_is_of_the_framework_of_arrays_whatever_the_numbers_are_of(process: Process) -> None:
    printed = process.run("""
        from support import frameworks_standin
        torch = frameworks_standin.torch()
        x = frameworks_standin.TorchTensor((100,), torch.float32, 1)
        made.kernel("two_steps")(x, x)
        """)
    assert printed.splitlines() == ["torch makes torch.uint8 [400] in 0x510 on cuda:1", "torch frees torch.uint8 [400]"]
    assert process.calls("allocate") == process.calls("free") == [] and len(process.calls("launch")) == 2
    code = """
from support import frameworks_standin
torch, cupy = frameworks_standin.torch(), frameworks_standin.cupy()
x = frameworks_standin.CupyArray((64,), (2, 16, 1), 1)
number = frameworks_standin.TorchTensor((), torch.int32, 0)
print(type(made.kernel("scale")(x, 1, 1, number)).__name__)
"""
    assert process.run(code).splitlines() == ["cupy makes float16 [64] in 0x510 on cuda:1", "CupyArray"]
    assert "stream 0x510 on cuda:1" in process.calls("launch")[0]


def test_an_image_that_the_driver_cannot_read_is_none_to_choose_from() -> None:
    asked: list[Any] = []
    driver = SimpleNamespace(cuDriverGetVersion=lambda: 12080)
    cuda: Any = SimpleNamespace(kernel="f", driver=driver, checked=lambda doing, result: result)

    def find_image(*told: Any) -> Any:
        asked.append(told)
        return "compute_80", "path"

    code = DeviceCode(cuda, "v", ("sm_90a", "compute_80"), ("f",), find_image, drivers={"sm_90a": 13000})
    device: Any = SimpleNamespace(number=1, capability=90)
    assert code.choose(device) == ("compute_80", "path") and asked == [("f", "v", "compute_80", 1, 90)]
