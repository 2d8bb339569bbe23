"""What every launcher does with a call: it is compared with the variants, and the one that fits is launched.

A launcher is a parameter; see ``support/launchers.py``. Only what is written into the log of the driver, which stands
in, and what a call returns or raises is looked at. Devices, device code and memory are in test_launchers_devices.py.
"""

from __future__ import annotations

import json
import re

import pytest
from kernelwright.cuda import Size, Tensor
from support.launched import declared, process_of
from support.launchers import LAUNCHERS, Process, Variant


@pytest.fixture(params=LAUNCHERS)
def process(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Process:
    return process_of(tmp_path_factory, request.param)


# ---- launches


def test_a_launch_passes_dims_stream_and_typed_parameters(process: Process) -> None:
    process.run(
        """
        x, y = on_cuda((1000,), "float16"), on_cuda((1000,), "float16", data=0x20000)
        assert call(made.kernel("scale"), x, y, 1.5, -2, 2**40, stream=0x5150) is None
        """,
        parameters="ppfhil",
    )
    (launched,) = process.calls("launch")
    head, parameters = launched.split(" parameters ")
    assert head == "scale_kernel sm_80 grid 8 1 1 block 128 1 1 shared 0 stream 0x5150 on cuda:0"
    assert parameters.split() == ["0x10000", "0x20000", "1.5", "0xc000", "1000", str(2**40)]  # -2 as float16


def test_a_launch_is_in_the_stream_of_its_device_and_in_the_default_one_without_a_word(process: Process) -> None:
    process.run(
        """
        x, scale = on_cuda((5,), "float16", device=1), made.kernel("scale")
        call(scale, x, x, 1, 1, 1, stream=0x60)
        scale(x, x, 1, 1, 1)
        """
    )
    ends = ["stream 0x60 on cuda:1", "stream 0 on cuda:1"]
    assert [line.partition("shared 0 ")[2] for line in process.calls("launch")] == ends


def test_an_empty_grid_of_an_empty_array_is_not_launched(process: Process) -> None:
    process.run('x = on_cuda((0,), "float16", data=0); made.kernel("scale")(x, x, 1, 1, 1)')
    assert process.calls("launch") == process.calls("load") == []


def test_clusters_shared_memory_and_flags_are_passed_on_and_shared_memory_is_asked_for_once_a_device(
    process: Process,
) -> None:
    process.run(
        'k = made.kernel("special")\nfor device in (0, 0, 1):\n    k(on_cuda((4,), device=device))', capability=90
    )
    assert process.calls("set") == [f"special_kernel attribute 8 to 65536 on cuda:{device}" for device in (0, 1)]
    first, _, third = process.calls("launch")
    assert first.startswith("special_kernel sm_90a grid 8 1 1 block 128 1 1 shared 65536")
    assert set(re.findall(r"attribute (\d+: \d+)", first)) == {"4: 2", "2: 1", "6: 1"}
    assert "on cuda:1" in third


@pytest.mark.parametrize(("static", "asks"), [(0, False), (16384, False), (16385, True)])
def test_shared_memory_up_to_48_kib_with_that_which_is_static_needs_no_asking(
    process: Process, static: int, asks: bool
) -> None:
    process.run('k = made.kernel("shared")\nfor _ in range(2):\n    k(on_cuda((4,)))', static=static)
    assert process.calls("set") == (["shared_kernel attribute 8 to 32768 on cuda:0"] if asks else [])
    assert [" shared 32768 " in line for line in process.calls("launch")] == [True, True]


def test_more_shared_memory_than_the_device_has_is_refused(process: Process) -> None:
    text = process.refusal('made.kernel("special")(on_cuda((4,)))', capability=90, shared=66000, static=1000)
    assert text == (
        "RuntimeError: kernel 'special': device function special_kernel, grid (8, 1, 1), block (128, 1, 1), cluster "
        "(2, 1, 1), 65536 bytes of dynamic shared memory, cuda:0 (sm_90): with 1000 bytes of static shared memory that "
        "is more than the 66000 bytes of a block on this device\n  remedy: call a variant with smaller tiles"
    )


def test_a_launch_without_a_block_is_left_out_if_another_one_does_something(process: Process) -> None:
    process.run(
        """
        k = made.kernel("parts")
        for size in (32, 64, 65):
            k(on_cuda((size,)), on_cuda((size,)))
        """
    )
    launches = [" ".join(line.split()[:4]) for line in process.calls("launch")]
    whole, rest = "parts_kernel sm_80 grid", "parts_kernel_1 sm_80 grid"
    assert launches == [f"{rest} 32", f"{whole} 1", f"{whole} 1", f"{rest} 1"]


def test_several_launches_share_temporary_memory_that_is_freed_behind_them(process: Process) -> None:
    """With 50 elements the second launch is left out."""
    process.run(
        """
        k, x = made.kernel("two_steps"), on_cuda((100,), device=1)
        call(k, x, x, stream=7)
        k(on_cuda((50,)), on_cuda((50,)))
        """
    )
    log = [" ".join(line.split()[:2]) for line in process.log if line.startswith(("launch", "allocate", "free"))]
    first, second = "launch two_steps_kernel", "launch two_steps_kernel_1"
    assert log == ["allocate 400", first, second, "free in", "allocate 200", first, "free in"]
    assert process.calls("allocate")[0] == "400 in stream 0x7 from pool 1 of cuda:1"
    assert process.calls("free") == ["in stream 0x7", "in stream 0"]


def test_a_workspace_of_a_negative_size_is_refused(process: Process) -> None:
    process.run('memory, x = made.kernel("memory"), on_cuda((9,)); memory(x, 3), memory(x, 0)')
    assert len(process.calls("launch")) == 2
    for n, k in ((4, 1), (9, -1), (4, -1)):
        text = process.refusal(f'made.kernel("memory")(on_cuda(({n},)), {k})')
        assert text.startswith("ValueError: kernel 'memory': the size ") and "of a workspace is negative" in text, text
    assert process.calls("launch") == []


def test_a_check_of_the_definition_is_made(process: Process) -> None:
    text = process.refusal('made.kernel("two_steps")(on_cuda((101,)), on_cuda((101,)))')
    kind, _, said = text.partition("RuntimeError: ")
    # The library leaves the author's own words as they are.
    assert (kind, said.removeprefix("kernel 'two_steps': ")) == ("", 'n has to be a multiple of "10"')
    assert process.calls("launch") == []


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ("0", "the size n // parts divides by 0 in this call\n  remedy: pass other sizes and numbers"),
        ("-5", "device function divide_kernel would be launched with a dimension of -20"),
        (
            "101",
            "device function divide_kernel would be launched with grid (0, 1, 1), block (128, 1, 1), which does "
            "nothing, and no array is empty\n"
            "  passed: x = float32[100] on cuda:0, parts = the int 101, flag = the bool True\n"
            "  remedy: pass larger sizes, or compute 1 or more there, as in max(n // 256, 1)",
        ),
    ],
)
def test_a_grid_that_makes_no_sense_is_refused(process: Process, parts: str, message: str) -> None:
    text = process.refusal(f'made.kernel("divide")(on_cuda((100,)), {parts}, True)')
    assert text == f"ValueError: kernel 'divide': {message}"
    assert process.calls("launch") == []


# ---- variants


def test_the_first_variant_that_fits_is_launched(process: Process) -> None:
    process.run(
        """
        norm = made.kernel("norm")
        for shape, dtype, data in (
            ((3, 64), "float16", 0x10000), ((3, 64), "float16", 0x10002), ((3, 64), "float32", 0x10004),
            ((3, 128), "float32", 0x10008), ((0, 128), "float32", 0x10001),
        ):
            x = on_cuda(shape, dtype, data=data)
            norm(x, x)
        assert norm.variants[1] == {"hidden": 64, "dtype": "float16", "alignment": 2}
        chosen = norm.variant(hidden=64, alignment=2)
        assert repr(chosen) == "<kernel norm, variant v1>"
        x = on_cuda((3, 64), "float16")
        chosen(x, x)
        """
    )
    assert [line.split()[0] for line in process.calls("launch")] == ["norm_0", "norm_1", "norm_2", "norm_3", "norm_1"]


def test_sizes_choose_among_variants_and_what_fits_several_has_to_be_named(process: Process) -> None:
    said = process.run(
        """
        product = made.kernel("product")
        def outcome(*shapes):
            return refusal(lambda: product(*map(on_cuda, shapes))).splitlines()[0]
        for b in ((5, 3), (3, 5), (3, 3), (5, 7)):
            print(outcome((2, 3), b))
        print(outcome((2, 3), (3, 3), (2, 3)))
        product._of_variant(1)(on_cuda((2, 3)), on_cuda((3, 3)))
        """
    ).splitlines()
    several = "ValueError: kernel 'product': these arguments fit several variants, which differ in meaning"
    none = "ValueError: kernel 'product': no built variant accepts these arguments"
    assert said == ["nothing was raised", "nothing was raised", several, none, several]
    assert [line.split()[0] for line in process.calls("launch")] == ["product_0", "product_1", "product_1"]


def test_variants_of_equal_inputs_are_named_where_they_differ_in_what_the_reference_takes(process: Process) -> None:
    said = process.run(
        """
        x = on_cuda((4,), "int8")
        for name in ("head", "knows"):
            for size in (8, 32):
                made.kernel(name)(x, on_cuda((size,), "int8"))  # an output that is passed chooses
            print(refusal(lambda: made.kernel(name)(x)).splitlines()[0])
        """
    ).splitlines()
    assert said == [
        "nothing was raised",
        "ValueError: kernel 'knows': these arguments fit several variants, which differ in meaning",
    ]
    launched = [line.split()[0] for line in process.calls("launch")]
    assert launched == ["head_0", "head_2", "head_0", "knows_0", "knows_2"]


def test_kernel_objects_can_be_asked_and_not_pickled_and_nothing_is_touched_before_it_is_needed(
    process: Process,
) -> None:
    printed = process.run(
        """
        import copy, pickle
        norm = made.kernel("norm")
        assert repr(norm) == "<kernel norm with 4 variants>" and norm.devices == {"cuda"} and norm.name == "norm"
        assert norm.__doc__ == "A kernel." and copy.copy(norm) is norm and copy.deepcopy(norm) is norm
        print(refusal(lambda: pickle.dumps(norm)).splitlines()[0])
        print(refusal(lambda: norm.variant(hidden=7)))
        """
    )
    pickled, missing = printed.splitlines()
    assert pickled.startswith("TypeError: ") and "cannot be pickled" in pickled
    assert (
        missing.startswith("NoVariantError: ") and "norm has no variant with hidden=7; built are: hidden=64" in missing
    )
    assert process.log == []


@pytest.mark.parametrize(
    ("second", "message"),
    [
        ("data=0x10001", "argument 'x' has data that is not aligned to 2 bytes"),
        ("data=0", "x data pointer is NULL on argument #0"),
        ("strides=(128, 1)", "Mismatched x.strides on argument #0"),
        ("device=1", "Mismatched y.device_id on argument #1"),
        ("data=0x10002", ""),
    ],
)
def test_a_call_like_an_earlier_one_is_compared_as_well(process: Process, second: str, message: str) -> None:
    text = process.run(
        f"""
        x, norm = on_cuda((3, 64), "float16"), made.kernel("norm").variant(alignment=2)
        norm(x, x)
        norm(x, x)
        print(refusal(lambda: norm(on_cuda((3, 64), "float16", {second}), x)))
        """
    )
    assert message in text if message else text == "nothing was raised\n"
    assert len(process.calls("launch")) == (2 if message else 3)


def test_a_choice_for_data_that_is_aligned_less_is_not_remembered(process: Process) -> None:
    process.run(
        """
        x, odd = on_cuda((3, 64), "float16"), on_cuda((3, 64), "float16", data=0x10002)
        norm = made.kernel("norm")
        for array in (odd, x, odd, x):
            norm(array, array)
        """
    )
    assert [line.split()[0] for line in process.calls("launch")] == ["norm_1", "norm_0"] * 2


def test_where_data_begins_is_what_is_aligned_and_passed(process: Process) -> None:
    process.run(
        """
        for data, offset in ((0x10000, 0x400), (0x10004, 0x3c), (0x10000, 0x404)):
            array = on_cuda((3, 64), "float16", data=data, byte_offset=offset)
            made.kernel("norm")(array, array)
        """,
        parameters="pp",
    )
    names = [line.split()[0] for line in process.calls("launch")]
    assert names == ["norm_0", "norm_0", "norm_1"]
    assert process.parameters() == ["0x10400 0x10400", "0x10040 0x10040", "0x10404 0x10404"]


# ---- wrong calls

LARGEST = 2**31 - 2**16
"""The largest size of an int32 that can be rounded up to blocks."""

NOT_INT32 = "which does not fit int32, as which the function gets it"
MOST = "beyond the 2147418112 that int32 sizes allow"
TENSOR = "expected a tensor: an array of NumPy, PyTorch, JAX, CuPy or another library with DLPack"
NONE_FITS = "no built variant accepts these arguments"
MISALIGNED = "ValueError: argument 'x' has data that is not aligned to {} bytes"
MISMATCHED = "ValueError: Mismatched {} on argument #{} when calling:"
COUNT = "TypeError: takes 5 arguments (x, [y], alpha, beta, shift), or 4 with the outputs left out; {} were given"

WRONG = {
    "scale": {
        "x": COUNT.format(1),
        "x, x, x, 1, 1, 1": COUNT.format(6),
        "None, x, 1, 1, 1": f"TypeError: argument 'x' is None, {TENSOR}",
        "x, 3, 1, 1, 1": f"TypeError: argument 'y' is the int 3, {TENSOR}",
        "x, 2.5, 1, 1, 1": f"TypeError: argument 'y' is the float 2.5, {TENSOR}",
        "x, 'text', 1, 1, 1": f"TypeError: argument 'y' is a str, {TENSOR}",
        "x, [x], 1, 1, 1": f"TypeError: argument 'y' is a Python object that is not a tensor, {TENSOR}",
        "x, half((6,)), 1, 1, 1": MISMATCHED.format("y.shape[0]", 1),
        f"half(({2**31},)), x, 1, 1, 1": f"ValueError: argument 'x' has the size {2**31} in dimension 0, {NOT_INT32}",
        f"half(({2**33},)), 1, 1, 1": f"ValueError: argument 'x' has the size {2**33} in dimension 0, {NOT_INT32}",
        "half((-2,)), x, 1, 1, 1": "ValueError: argument 'x' has a dimension of -2, expected one from 0",
        "half((5,), strides=(2,)), x, 1, 1, 1": MISMATCHED.format("x.strides", 0),
        "half((5,), data=0), x, 1, 1, 1": "ValueError: x data pointer is NULL on argument #0 when calling:",
        "half((5,), data=3), x, 1, 1, 1": MISALIGNED.format(2),
        "half((5,), byte_offset=1), x, 1, 1, 1": MISALIGNED.format(2),
        "x, half((5,), device=1), 1, 1, 1": MISMATCHED.format("y.device_id", 1),
        "far, far, 1, 1, 1": "ValueError: there is no cuda:2, the process sees 2 CUDA devices",
        "x, Immutable(), 1, 1, 1": (
            "ValueError: argument 'y' is an array of JAX, which is immutable, and the kernel writes it"
        ),
        "Broken(), x, 1, 1, 1": "TypeError: argument 'x' is a __main__.Broken that cannot be passed: no",
    },
    "norm": {
        "byte((3, 64)), byte((3, 64))": f"TypeError: {NONE_FITS}",
        "half((64,)), half((64,))": f"TypeError: {NONE_FITS}",
        "half((3, 65)), half((3, 65))": f"ValueError: {NONE_FITS}",
        f"half((3, {2**32 + 64})), half((3, 64))": f"ValueError: {NONE_FITS}",
        "half((3, 64)), half((4, 64))": MISMATCHED.format("y.shape[0]", 1),
        "on_cuda((3, 128), data=0x10004), on_cuda((3, 128))": MISALIGNED.format(8),
    },
    "square": {
        "byte((3, 4)), byte((3, 3))": MISMATCHED.format("x.shape[1]", 0),
        "byte((2**16, 2**16)), byte((2**15, 1))": MISMATCHED.format("y.shape[0]", 1),
    },
    "numbers": {
        "y, 128, 0, 0, 0": "ValueError: argument 'a' is 128, which does not fit int8",
        "y, -129, 0, 0, 0": "ValueError: argument 'a' is -129, which does not fit int8",
        "y, 0, -1, 0, 0": "ValueError: argument 'b' is -1, which does not fit uint16",
        "y, 0, numpy.int64(65536), 0, 0": "ValueError: argument 'b' is 65536, which does not fit uint16",
        **dict.fromkeys(
            (f"y, {number}, 0, 0, 0" for number in ("1.5", "numpy.float32(4)", "numpy.array([4])", "1j", "'4'")),
            f"TypeError: {NONE_FITS}",
        ),
        "y, 0, 0, 0, 1j": f"TypeError: {NONE_FITS}",
        "y, 0, 0, 0, 'a'": f"TypeError: {NONE_FITS}",
    },
    "fill": {
        "y, -3": (
            "ValueError: output 'y' would have the shape [-3], expected sizes from 0, with a product up to the "
            "2147418112 that int32 sizes allow"
        ),
        "y, 2**31": "ValueError: argument 'count' is 2147483648, which does not fit int32",
    },
}
"""Kernel -> its arguments -> kind and first line of what the call raises, without the name of the kernel."""


def test_wrong_arguments_are_refused_with_their_name(process: Process) -> None:
    calls = [f"lambda: made.kernel({name!r})({passed})" for name, rows in WRONG.items() for passed in rows]
    printed = process.run(
        f"""
        import json, sys
        import numpy
        sys.modules["jaxlib"] = sys  # as if it had been imported
        class Broken:
            def __dlpack_device__(self):
                return 2, 0
            def __dlpack__(self, **options):
                raise BufferError("no\\nbuffer")
        class Immutable(FakeTensor):
            def __init__(self):
                super().__init__((5,), (2, 16, 1), device=(2, 0))
        Immutable.__module__ = "jaxlib._jax"
        def half(shape, **more):
            return on_cuda(shape, "float16", **more)
        def byte(shape):
            return on_cuda(shape, "int8")
        x, y, far = half((5,)), on_cuda((5,)), half((5,), device=2)
        calls = [{", ".join(calls)}]
        print(json.dumps([refusal(work).splitlines()[0] for work in calls]))
        """
    )
    raised = iter(json.loads(printed))
    said = {
        name: {passed: next(raised).replace(f"kernel '{name}': ", "", 1) for passed in WRONG[name]} for name in WRONG
    }
    assert said == WRONG
    assert printed.count(": kernel '") == len(calls) and process.calls("launch") == []


def test_arguments_that_no_variant_takes_are_shown_with_what_each_expects(process: Process) -> None:
    text = process.refusal('made.kernel("norm")(on_cuda((3, 64), "int8"), on_cuda((3, 64)))')
    assert text.splitlines() == [
        "TypeError: kernel 'norm': no built variant accepts these arguments",
        "  passed: x = int8[3, 64] on cuda:0, y = float32[3, 64] on cuda:0",
        "  v0 expects: x = float16[tokens, 64], y = float16[tokens, 64]",
        "  v1 expects: x = float16[tokens, 64], y = float16[tokens, 64]",
        "  v2 expects: x = float32[tokens, 64], y = float32[tokens, 64]",
        "  v3 expects: x = float32[tokens, 128], y = float32[tokens, 128]",
        "  remedy: convert the arguments, or add a config for them to the definition",
    ]


@pytest.mark.parametrize("stride", [2**32 + 1, -(2**32) + 1])
def test_a_stride_that_is_right_in_its_low_32_bits_only_is_refused(process: Process, stride: int) -> None:
    x = f'on_cuda((5,), "float16", strides=({stride},))'
    first = process.refusal(f'made.kernel("scale")({x}, {x}, 1, 1, 1)').splitlines()[0]
    assert first in {
        f"ValueError: kernel 'scale': argument 'x' has a stride of {stride}, {MOST}",
        "ValueError: kernel 'scale': Mismatched x.strides on argument #0 when calling:",
    }


def test_large_dimensions_are_accepted_and_any_of_an_empty_array(process: Process) -> None:
    process.run(f'x = on_cuda(({LARGEST},), "float16"); made.kernel("scale")(x, x, 1, 1, 1)')
    assert " grid 16776704 1 1 " in process.calls("launch")[0]
    process.run(f'empty = on_cuda((0, {LARGEST}), "int8"); made.kernel("square")(on_cuda((0, 0), "int8"), empty)')


def test_arrays_have_any_number_of_elements_if_each_number_fits_its_type(process: Process) -> None:
    """The arrays are as large as they say; only what a function gets in 32 bits has to fit them."""
    said = process.run(
        """
        def run(m, n, step):
            x, y = on_cuda((m, n), "int8", strides=(step, 1)), on_cuda((m, n, 4096), "int8")
            print(refusal(lambda: made.kernel("large")(x, y)))
        run(256, 7168, 4096 * 7168)
        run(2, 2**31 + 8, 2**31 - 1)
        run(2, 8, -2**31)
        run(2, 8, 2**31)
        run(2**31, 1, 1)
        """,
        parameters="ppiill",
    )
    assert [parameters.split()[2:] for parameters in process.parameters()] == [
        ["256", "29360128", "7168", str(256 * 7168 * 4096)],
        ["2", "2147483647", str(2**31 + 8), str(2 * (2**31 + 8) * 4096)],
        ["2", "-2147483648", "8", "65536"],
    ]
    assert said.count("nothing was raised") == 3
    remedy = 'remedy: pass a smaller array, or give the function a parameter of 64 bits: Size(..., dtype="int64")'
    for wrong in ("stride", "size"):
        text = f"kernel 'large': argument 'x' has the {wrong} 2147483648 in dimension 0, {NOT_INT32}\n  {remedy}"
        assert f"ValueError: {text}\n" in said


def test_launches_know_how_many_multiprocessors_the_device_has(process: Process) -> None:
    for n, count, grid in ((10**6, 100, 200), (10**6, 7, 14), (130, 7, 2)):
        process.run(f'made.kernel("persistent")(on_cuda(({n},)))', parameters="pip", count=count)
        assert process.calls("launch")[0].split()[3] == str(grid) and process.parameters()[0].split()[1] == str(count)
        assert process.calls("allocate")[0].startswith(f"{64 * count} in")
    refused = process.refusal('made.kernel("persistent")(on_cuda((130,)))', count=0)
    assert refused.startswith("ValueError: kernel 'persistent': the device does not say how many multiprocessors it")


def test_launches_know_how_many_of_their_blocks_a_multiprocessor_has_at_once(process: Process) -> None:
    calls = """
        resident = made.kernel("resident")
        for threads, shared in ((64, 0), (64, 0), (128, 60000), (64, 0)):
            resident(on_cuda((5,)), threads, shared)
        """
    process.run(calls, parameters="first_kernel:ppii second_kernel:pl", count=7, resident=1100)
    asked = [f"first_kernel {threads} threads {shared} bytes" for threads, shared in ((128, 0), (256, 60000), (128, 0))]
    assert process.calls("occupancy") == asked, "an answer is remembered"
    grids = [line.split()[3] for line in process.calls("launch") if line.startswith("first")]
    assert grids == [str(7 * blocks) for blocks in (8, 8, 4, 8)]
    assert [line.split()[1] for line in process.parameters()[1::2]] == grids
    assert [line.split()[0] for line in process.calls("allocate")] == [str(4 * int(grid)) for grid in grids]
    what = "RuntimeError: kernel 'resident': {}device function first_kernel, grid (1, 1, 1), block ({}, 2, 1), {} bytes"
    for threads, shared, doing, problem in (
        (64, 8, "", ": no multiprocessor has room for a block\n  remedy: call a variant with smaller tiles"),
        (64, 10**6, "", "more than the 101376 bytes of a block"),
        (600, 0, "launching ", " failed with "),
    ):
        text = process.refusal(f'made.kernel("resident")(on_cuda((5,)), {threads}, {shared})', resident=100)
        assert text.startswith(what.format(doing, threads, shared)) and problem in text
    text = process.refusal(
        'made.kernel("resident")(on_cuda((5,)), 2**20, 0)', resident=2**30, fail="cuLaunchKernelEx=1"
    )
    assert "grid (100, 1, 1), block (1048576, 2, 1)" in text and process.calls("occupancy") == [], (
        "no device has such blocks"
    )


def test_strides_are_those_that_are_declared_with_what_only_strides_tell(process: Process) -> None:
    said = process.run(
        """
        for x, y in ((7, 14), (5, 10), (7, 7), (7, 15)):
            arrays = on_cuda((4, 5), strides=(x, 1)), on_cuda((4, 5), strides=(y, 1))
            print(refusal(lambda: made.kernel("strided")(*arrays)).splitlines()[0])
        """
    ).splitlines()
    assert said[:2] == ["nothing was raised"] * 2 and len(process.calls("launch")) == 2
    wrong = "ValueError: kernel 'strided': argument 'y' has the stride {} in dimension 0, expected 14 (it has to be "
    assert all(line.startswith(wrong.format(y)) for line, y in zip(said[2:], (7, 15), strict=True)), said


def test_a_device_that_has_no_number_is_refused(process: Process) -> None:
    text = process.refusal('made.kernel("special")(FakeTensor((4,), device=(10, 3)))')
    assert text.startswith("ValueError: kernel 'special': ") and "on device 3 of DLPack type 10" in text


# ---- numbers


def test_a_number_that_fits_its_parameter_in_every_call_is_compared_in_none() -> None:
    for more, checks in ((0, 0), (1, 1)):
        passed = {"x": Tensor("float32", "n"), "number": Size("n % 8") + (2**31 - 8 + more)}
        variant = Variant.of("more", declared("more_kernel", "n", passed))
        assert len(variant.signature["host_checks"]) == checks


def test_numbers_that_no_machine_has_are_refused(process: Process) -> None:
    """The launcher in C does not get to see which ones they are."""
    printed = process.run(
        """
        import numpy
        numbers, x = made.kernel("numbers"), on_cuda((4,))
        for given in ((2**63, 0), (numpy.uint64(2**64 - 1), 0), (-(2**70), 0), (0, 10**400)):
            print(refusal(lambda: numbers(x, 0, 0, *given)))
        """
    )
    *beyond, large = printed.splitlines()
    for line, number in zip(beyond, (2**63, 2**64 - 1, -(2**70)), strict=True):
        shown = f"({number}|an int beyond int64)"
        assert re.fullmatch(f"ValueError: kernel 'numbers': argument 'c' is {shown}, which does not fit int64", line)
    assert re.fullmatch(
        r"ValueError: kernel 'numbers': argument 'd' is an int that is too large for a? ?float(64)?", large
    )


def test_numbers_in_range_of_any_library_are_passed(process: Process) -> None:
    process.run(
        """
        import numpy
        numbers, x = made.kernel("numbers"), on_cuda((4,))
        for given in (
            (127, 65535, 2**63 - 1, 1.5), (-128, 0, -(2**63), 7), (True, False, True, True),
            (numpy.int64(5), numpy.uint8(3), numpy.int8(4), numpy.float32(0.5)),
            (numpy.bool_(True), numpy.int8(7), numpy.uint64(9), numpy.float64(2.5)),
        ):
            numbers(x, *given)
        """,
        parameters="pbhld",
    )
    assert [line.partition(" ")[2] for line in process.parameters()] == [
        f"127 0xffff {2**63 - 1} 1.5",
        f"-128 0 {-(2**63)} 7",
        "1 0 1 1",
        "5 0x3 4 0.5",
        "1 0x7 9 2.5",
    ]


def test_flags_may_be_of_numpy(process: Process) -> None:
    process.run(
        """
        import numpy
        for flag in (True, numpy.bool_(True), 1, numpy.uint8(3)):
            made.kernel("divide")(on_cuda((5,)), 1, flag)
        """,
        parameters="pib",
    )
    assert process.parameters() == ["0x10000 1 1"] * 4


# ---- outputs


@pytest.mark.parametrize("kind", ["numpy.int64", "int"])
def test_a_number_decides_the_size_of_an_output_in_each_call(process: Process, kind: str) -> None:
    printed = process.run(
        f"""
        import numpy
        x, fill, y = on_cuda((4,)), made.kernel("fill"), on_cuda((4,))
        for count in (4, 1000000, 4):
            print(fill(x, {kind}(count)).shape)
        fill(x, {kind}(4), y)
        print(refusal(lambda: fill(x, {kind}(1000000), y)).splitlines()[0])
        """
    )
    assert printed.splitlines() == [
        *["(4,)", "(1000000,)", "(4,)"],
        "ValueError: kernel 'fill': Mismatched y.shape[0] on argument #2 when calling:",
    ]
    assert len(process.calls("launch")) == 4


def test_outputs_that_are_left_out_are_device_memory(process: Process) -> None:
    printed = process.run(
        """
        y = made.kernel("scale")(on_cuda((1000,), "float16", device=1), 1, 1, 1)
        print(y.shape, y.dtype, y.__dlpack_device__()[1], y)
        """
    )
    assert printed == "(1000,) float16 1 <output of kernel scale: float16[1000] on cuda:1>\n"
    assert process.calls("allocate") == ["2000 in stream 0 from pool 1 of cuda:1"]
    assert "on cuda:1" in process.calls("launch")[0]


# ---- leading dimensions


def test_a_size_that_is_arithmetic_of_one_name_tells_it(process: Process) -> None:
    process.run(
        """
        gated = made.kernel("gated")
        sizes = [gated(on_cuda((n, 2 * d + 1)), on_cuda((2 * d + 1,))).shape for n, d in ((3, 4), (1, 1), (2, 0))]
        assert sizes == [(3, 4), (1, 1), (2, 0)]
        gated(on_cuda((5, 3)), on_cuda((3,)), on_cuda((5, 1)))
        """,
        parameters="pppil",
    )
    assert [line.split()[3] for line in process.calls("launch")] == ["12", "1", "5"]
    assert [line.split()[3:] for line in process.parameters()] == [["4", "8"], ["1", "2"], ["1", "2"]]


def test_a_name_that_no_size_is_by_itself_has_multiples_and_strides(process: Process) -> None:
    process.run("assert made.kernel('ends')(on_cuda((2, 17), strides=(32, 1))).shape == (24,)", parameters="ppi")
    assert [line.split()[3] for line in process.calls("launch")] == ["2"] and process.parameters()[0].split()[-1] == "8"
    said = process.refusal("made.kernel('ends')(on_cuda((2, 13), strides=(24, 1)))")
    assert "multiple of 4" in said and "__times_" not in said


@pytest.mark.parametrize(
    ("shapes", "said"),
    [
        ("(3, 8), (8,)", "  default: argument 'x' has the size 8 in dimension 1, which is no 2 * d + 1\n"),
        ("(3, 0), (0,)", "  default: argument 'x' has the size 0 in dimension 1, which is no 2 * d + 1\n"),
        ("(3, 9), (7,)", "\n  remedy: pass arrays whose sizes fit each other"),
        ("(3, 9), (9,), (3, 5)", "\n  remedy: pass arrays whose sizes fit each other"),
    ],
)
def test_a_size_from_which_no_name_follows_is_refused(process: Process, shapes: str, said: str) -> None:
    passed = ", ".join(f"on_cuda({shape})" for shape in re.findall(r"\([^)]*\)", shapes))
    assert said in process.refusal(f'made.kernel("gated")({passed})')
    assert process.calls("launch") == []


def test_leading_dimensions_are_one_to_functions_and_outputs_have_those_of_an_input(process: Process) -> None:
    process.run(
        """
        leading, w = made.kernel("leading"), on_cuda((8,), data=0x30000)
        def launched(*lead, y=None, bias=None, sums=None, **more):
            x = on_cuda((*lead, 16), data=0x20000, **more)
            made_ = leading(x=x, w=w, bias=bias, y=y, sums=sums)
            assert (made_ is None) == (y is not None)
            assert made_ is None or [each.shape for each in made_] == [(*lead, 8), lead], made_
        launched(2, 3), launched(), launched(1, 2, 1, 4), launched(2, 3, strides=(60, 20, 1))
        launched(2, 3, bias=on_cuda((2, 3, 8), data=0x40000))
        launched(2, 3, y=on_cuda((2, 3, 8), data=0x50000), sums=on_cuda((2, 3), data=0x60000))
        launched(0, 7)
        """,
        parameters="pppppii",
    )
    launched = [line.split() for line in process.parameters()]
    assert [[*line[1:4], *line[5:]] for line in launched] == [
        ["0", "0x20000", "0x30000", "6", "16"],
        ["0", "0x20000", "0x30000", "1", "16"],
        ["0", "0x20000", "0x30000", "8", "16"],
        ["0", "0x20000", "0x30000", "6", "20"],
        ["0x40000", "0x20000", "0x30000", "6", "16"],
        ["0", "0x20000", "0x30000", "6", "16"],
    ]
    assert (launched[5][0], launched[5][4]) == ("0x50000", "0x60000")
    assert [line.split()[3] for line in process.calls("launch")] == ["6", "1", "8", "6", "6", "6"]


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            "bias=on_cuda((2, 3, 1, 8)), x=on_cuda((2, 1, 3, 16))",
            "ValueError: kernel 'leading': arguments 'bias' of shape [2, 3, 1, 8] and 'x' of shape [2, 1, 3, 16] "
            "differ in their leading dimensions, which fold into m\n  remedy: pass arrays with equal ones",
        ),
        (
            "y=on_cuda((6, 8)), sums=on_cuda((2, 3))",
            "ValueError: kernel 'leading': arguments 'x' of shape [2, 3, 16] and 'y' of shape [6, 8] differ in their ",
        ),
        (
            "x=on_cuda((2, 3, 16), strides=(61, 20, 1))",
            "ValueError: kernel 'leading': argument 'x' has leading dimensions that are not compact, and do not fold "
            "into m\n  remedy: pass a contiguous copy, such as",
        ),
        (
            "bias=on_cuda((2, 3, 8), strides=(8, 16, 1))",
            "ValueError: kernel 'leading': argument 'bias' has leading dimensions that are not compact, and do not",
        ),
        (
            "x=on_cuda(())",
            "TypeError: kernel 'leading': argument 'x' has 0 dimensions, expected 1 or more: leading ones",
        ),
        (
            'x=on_cuda((2, 3, 16), "int8")',
            "passed: bias = None, x = int8[2, 3, 16] on cuda:0, w = float32[8] on cuda:0\n  float32 expects: bias = "
            "float32[(..., m), d] or None, x = float32[(..., m), d * 2] with strides [any, 1], w = float32[d]\n",
        ),
        ("x=on_cuda((50, 30, 16))", "\n  float32 requires m < 1000, and m is 1500\n"),
    ],
)
def test_leading_dimensions_that_do_not_fold_are_refused(process: Process, call: str, said: str) -> None:
    named = f'{{"x": on_cuda((2, 3, 16)), "w": on_cuda((8,)), **dict({call})}}'
    assert said in process.refusal(f'made.kernel("leading")(**{named})')
    assert process.calls("launch") == []


def test_outputs_that_overlap_are_refused_and_those_that_follow_one_another_are_not(process: Process) -> None:
    """y is 192 bytes long. The last call is like those before it, but for its addresses."""
    call = """print(refusal(lambda: leading(x=on_cuda((2, 3, 16), data=0x20000), w=on_cuda((8,), data=0x30000),
                      y=on_cuda((2, 3, 8), data=0x40000), sums=on_cuda((2, 3), data=0x40000 + {}))), end=";")"""
    offsets = (0, 188, -20, 192, -24, 0)
    said = process.run("\n".join(['leading = made.kernel("leading")', *map(call.format, offsets)])).split(";")
    told = (
        "ValueError: kernel 'leading': outputs 'y' and 'sums' overlap in memory\n  remedy: pass arrays with memory of"
    )
    assert [told in one for one in said[:6]] == [True, True, True, False, False, True]
    assert len(process.calls("launch")) == 2
