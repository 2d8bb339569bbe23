"""What every launcher does with devices: their code, their memory, their contexts, graph capture, and their errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from support.launched import ARCHS, driver_of, process_of, scale
from support.launchers import LAUNCHERS, Kernel, Process, make_package
from support.moments import HANGS_AFTER_S

CALL = 'x = on_cuda((5,), "float16"); scale = made.kernel("scale"); scale(x, x, 1, 1, 1)'
REFUSAL = CALL.replace("scale(x, x, 1, 1, 1)", "print(refusal(lambda: scale(x, x, 1, 1, 1)))")


@pytest.fixture(params=LAUNCHERS)
def launcher(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def process(launcher: str, tmp_path_factory: pytest.TempPathFactory) -> Process:
    return process_of(tmp_path_factory, launcher)


def of_scale(
    launcher: str, factory: pytest.TempPathFactory, folder: Path, archs: Sequence[str] = ("sm_80",), **options: Any
) -> Process:
    """Processes of a package that has only that kernel."""
    make_package(folder, {"scale": Kernel(scale().variants, options=options)}, archs, launcher=launcher)
    return Process(folder, driver_of(factory))


# ---- which image


ALL_KINDS = ["compute_80", "compute_90", "compute_90a", "compute_100f", "sm_80", "sm_86", "sm_90", "sm_90a"]
ALL_KINDS += ["sm_100", "sm_100f", "sm_100a", "sm_103", "sm_103f", "sm_75"]


@pytest.mark.parametrize(
    ("built", "expected"),
    [
        (ARCHS, {80: "sm_80", 86: "sm_80", 90: "sm_90a", 100: "sm_100f", 103: "sm_100f", 120: "compute_80", 75: None}),
        (["compute_80", "compute_90a", "compute_100f"], {90: "compute_90a", 91: "compute_80", 103: "compute_100f"}),
        (["sm_80", "sm_90"], {75: None, 90: "sm_90", 91: "sm_90", 120: None}),
        (["sm_90a"], {90: "sm_90a", 91: None}),
        (
            ALL_KINDS,
            {70: None, 75: "sm_75", 80: "sm_80", 86: "sm_86", 89: "sm_86", 90: "sm_90a", 100: "sm_100a"}
            | {101: "sm_100f", 103: "sm_103", 107: "sm_103f", 110: "compute_90", 120: "compute_90"},
        ),
    ],
    ids=lambda given: " ".join(given) if isinstance(given, (list, tuple)) else "",
)
def test_the_best_image_for_the_device_is_loaded(launcher, tmp_path, tmp_path_factory, built, expected):
    """A device has one capability for as long as a process uses it."""
    process = of_scale(launcher, tmp_path_factory, tmp_path, built)
    said = process.run(f"""
        x = on_cuda((5,), "float16")
        for capability in {[*expected]}:
            os.environ["STANDIN_CAPABILITY"] = str(capability)
            if not os.fork():
                print(refusal(lambda: made.kernel("scale")(x, x, 1, 1, 1)).partition("\\n")[0], flush=True)
                os._exit(0)
            os.wait()
        """)
    assert process.calls("load") == [loaded for loaded in expected.values() if loaded]
    message = (
        f"RuntimeError: kernel 'scale': cuda:0 is an sm_{{}}, and variant default was built for {', '.join(built)}"
    )
    assert said.splitlines() == ["nothing was raised" if arch else message.format(sm) for sm, arch in expected.items()]


def test_what_a_device_can_do_is_asked_of_that_device(process: Process) -> None:
    code = """
        x, y = on_cuda((100,), device=1), on_cuda((5,), "float16", device=1)
        made.kernel("scale")(y, 1, 1, 1)
        for name in ("two_steps", "special", "persistent"):
            made.kernel(name)(x)
        made.kernel("resident")(x, 64, 65536)
        """
    process.run(code, capability=90)
    expected = process.log
    process.run(code, capability=90, first=1)
    assert process.log == expected and len(process.calls("launch")) == 7
    text = process.refusal('made.kernel("scale")(on_cuda((5,), "float16", device=1), 1, 1, 1)', capability=75, first=1)
    assert "cuda:1 is an sm_75" in text


def test_preload_loads_for_any_driver_and_says_which_device_there_is_or_no_image_suits(process: Process) -> None:
    process.run("""
        norm, x = made.kernel("norm"), on_cuda((3, 64))
        norm.preload("cuda:0")
        norm(x, x)
        """)
    assert process.order("load", "launch") == ["load"] * 4 + ["launch"]
    message = (
        "RuntimeError: kernel 'scale': cuda:0 is an sm_75, and variant default was built for "
        f"{', '.join(ARCHS)}\n  remedy: add sm_75 to its archs\n"
    )
    code = f"{REFUSAL}\nprint(refusal(lambda: scale.preload('cuda')), scale.supported('cuda'))"
    assert process.run(code, capability=75) == message + message.rstrip("\n") + " False\n"
    said = process.run("""
        norm = made.kernel("norm")
        print([norm.supported(name) for name in ("cuda", "cuda:1", "cuda:2", "cpu")])
        print(refusal(lambda: norm.preload("cuda:2")))
        print(refusal(lambda: norm.preload("tpu")))
        print(refusal(lambda: norm.preload("cpu")))
        """).splitlines()
    assert said[:2] == [
        "[True, True, False, False]",
        "ValueError: kernel 'norm': there is no cuda:2, the process sees 2 CUDA devices",
    ]
    assert said[2].startswith("ValueError: unknown device 'tpu'")
    assert said[3].startswith("ValueError: kernel 'norm': it cannot run on cpu: ")
    assert process.log[0] == "init" and process.calls("load") == [], "a question loads nothing"
    process.run(CALL, version=12000, fail="cuDriverGetVersion=999")
    assert process.calls("load") == ["sm_80"]


def test_threads_load_an_image_once(process: Process, launcher: str) -> None:
    """For cuda.core, once for each device."""
    process.run("""
        import threading
        scale, start, errors = made.kernel("scale"), threading.Barrier(8), []
        def work(number):
            x = on_cuda((5,), "float16", number % 2)
            start.wait()
            try:
                for _ in range(20):
                    scale(x, x, 1, 1, 1)
            except Exception as error:
                errors.append(error)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert not errors, errors
        """)
    assert process.calls("load") == ["sm_80"] * (1 if launcher == "library" else 2)
    assert len(process.calls("launch")) == 160


def test_compressed_code_needs_a_driver_that_can_decompress_it(launcher, tmp_path, tmp_path_factory):
    process = of_scale(launcher, tmp_path_factory, tmp_path, driver=12040)
    assert process.run(REFUSAL, version=12030) == (
        "RuntimeError: kernel 'scale': sm_80 of variant default is compressed, and needs a driver for CUDA 12.4 or "
        "newer; this one is for CUDA 12.3\n  remedy: install a newer NVIDIA driver, or compress it less, with "
        "compress = speed\n"
    )
    assert process.calls("load") == []
    assert process.run(REFUSAL, version=12040) == "nothing was raised\n" and process.calls("load") == ["sm_80"]


OLD_DRIVER = (
    "RuntimeError: kernel 'scale': the code of variant default for cuda:0 ({arch}) needs a driver for CUDA {needed} or "
    "newer; this one is for CUDA {has}\n  remedy: install an NVIDIA driver for CUDA {needed}{number}, or compile it "
    "with CUDA {has}\n"
)


@pytest.mark.parametrize(
    ("toolkit", "capability", "version", "loaded", "said"),
    [
        (12080, 80, 12000, ["sm_80"], ""),  # machine code needs the major version only
        (12080, 90, 12070, [], OLD_DRIVER.format(arch="compute_80", needed="12.8", has="12.7", number="")),
        (12080, 90, 12080, ["compute_80"], ""),
        (13000, 80, 12090, [], OLD_DRIVER.format(arch="sm_80", needed="13.0", has="12.9", number=" (580 or newer)")),
        (0, 80, 12000, ["sm_80"], ""),  # not known, so the driver decides
        (13000, 75, 12000, [], "cuda:0 is an sm_75, and variant default was built for sm_80, compute_80"),
    ],
)
def test_code_that_the_driver_is_too_old_for_is_not_loaded_and_both_versions_are_named(
    launcher, tmp_path, tmp_path_factory, toolkit, capability, version, loaded, said
):
    process = of_scale(launcher, tmp_path_factory, tmp_path, ("sm_80", "compute_80"), toolkit=toolkit)
    assert said in process.run(REFUSAL, capability=capability, version=version)
    assert process.calls("load") == loaded


# ---- errors of the driver


@pytest.mark.parametrize(
    ("toolkit", "driver", "says"),
    [
        (
            12040,
            12020,
            "its device code was made with CUDA 12.4, and the driver is for CUDA 12.2\n"
            "  remedy: install an NVIDIA driver for CUDA 12.4, or compile it with CUDA 12.2",
        ),
        (
            13000,
            13000,
            "its device code was made with CUDA 13.0, and the driver is for CUDA 13.0, which is new enough\n"
            "  remedy: install the package again: its device code may be damaged",
        ),
        (
            0,
            12080,
            "the driver is for CUDA 12.8\n  remedy: install a newer NVIDIA driver, or compile it with an older CUDA",
        ),
    ],
)
def test_device_code_that_the_driver_cannot_read_names_both_versions(
    launcher: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, toolkit: int, driver: int, says: str
) -> None:
    process = of_scale(launcher, tmp_path_factory, tmp_path, toolkit=toolkit)
    said = process.run(
        f"""
        {CALL.rpartition("; ")[0]}
        for function in ("cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction"):
            for status in (200, 209, 218, 222):
                os.environ["STANDIN_FAIL"] = f"{{function}}={{status}}"
                print(refusal(lambda: scale(x, x, 1, 1, 1)).partition("\\n  ")[2], end="|")
        """,
        version=driver,
    )
    assert said == f"{says}|" * 12


EARLIER = (
    "\n  it comes from earlier work on the device, of this kernel or of anything else\n  remedy: restart the process, "
    "since CUDA cannot be used in it any more; with CUDA_LAUNCH_BLOCKING=1 in its environment the launch at fault "
    "raises the error"
)


@pytest.mark.parametrize("blocking", [False, True])
def test_an_error_of_earlier_work_says_so(process: Process, blocking: bool) -> None:
    sticky = [226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721, 810, 911]
    said = process.run(f"""
        os.environ["CUDA_LAUNCH_BLOCKING"] = "{int(blocking)}"
        {CALL.rpartition("; ")[0]}
        for status in {[*sticky, 701]}:
            os.environ["STANDIN_FAIL"] = f"cuLaunchKernelEx={{status}}"
            head, *more = refusal(lambda: scale(x, x, 1, 1, 1)).partition("\\n")
            print("".join(more), end="|")
        """)
    at_fault = "\n  remedy: restart the process, since CUDA cannot be used in it any more"
    assert said.split("|") == [at_fault if blocking else EARLIER] * len(sticky) + ["", ""], "701 is of this launch"


def test_a_failed_launch_says_what_was_launched_where_and_frees_temporary_memory(process: Process) -> None:
    code = "x = on_cuda((100,)); print(refusal(lambda: made.kernel('two_steps')(x, x)))"
    assert process.run(code, fail="cuLaunchKernelEx=700").startswith(
        "RuntimeError: kernel 'two_steps': launching device function two_steps_kernel, grid (100, 1, 1), "
        "block (128, 1, 1), 0 bytes of dynamic shared memory, cuda:0 (sm_80) failed with CUDA_ERROR_ILLEGAL_ADDRESS"
    )
    assert len(process.calls("allocate")) == len(process.calls("free")) == 1
    said = process.run(code, fail="cuMemAllocFromPoolAsync=2")
    assert said.startswith(
        "RuntimeError: kernel 'two_steps': allocating a workspace of 400 bytes on cuda:0 failed with"
    )
    assert said.rstrip().endswith("\n  remedy: pass smaller arrays, or free memory of the device")


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        ("cuInit=100", "initialising CUDA failed with "),
        ("cuDeviceGetCount=3", "counting CUDA devices failed with "),
        ("cuDevicePrimaryCtxRetain=2", "opening cuda:0 failed with CUDA_ERROR_OUT_OF_MEMORY"),
        ("cuLibraryLoadData=222", "loading sm_80 of variant default "),
        ("cuLibraryGetKernel=500", {"library": "finding the device function scale_kernel in sm_80 failed with "}),
        ("cuKernelGetFunction=500", {"library": "finding the device function scale_kernel in sm_80 failed with "}),
    ],
)
def test_a_failure_of_the_driver_is_an_exception_and_can_be_retried(process, launcher, fail, message):
    printed = process.run(f"{REFUSAL}\nos.environ['STANDIN_FAIL'] = ''\nscale(x, x, 1, 1, 1)", fail=fail)
    if isinstance(message, Mapping):
        message = message.get(launcher, "loading sm_80 of variant default with the device function scale_kernel failed")
    assert printed.startswith(f"RuntimeError: kernel 'scale': {message}"), printed
    assert len(process.calls("launch")) == 1


def test_a_machine_without_a_driver_gets_an_exception(launcher, process, tmp_path_factory):
    without = Process(process.folder, None)
    said = without.run(f"{REFUSAL}\nprint(scale.supported('cuda'))")
    assert said.startswith("RuntimeError: kernel 'scale': there is no CUDA driver: ")
    assert "\n  remedy: install the NVIDIA driver (5" in said and said.endswith("\nFalse\n")


FORK = """
import signal
x, scale = on_cuda((5,), "float16"), made.kernel("scale")
def call_in_child():
    if os.fork():
        assert os.wait()[1] == 0
        return
    signal.alarm(300)  # against a hang
    print(refusal(lambda: scale(x, x, 1, 1, 1)), flush=True)
    os._exit(0)
"""
FORKED = "RuntimeError: kernel 'scale': CUDA was used before this process was forked, and does not survive that\n"


@pytest.mark.parametrize("fail", ["", "cuInit=100"])
def test_a_child_that_was_forked_after_cuda_gets_an_exception_also_if_that_had_failed(process, fail):
    printed = process.run(FORK + "refusal(lambda: scale(x, x, 1, 1, 1))\ncall_in_child()", fail=fail)
    assert printed.startswith(FORKED)


def test_a_child_that_was_forked_before_cuda_can_use_it_and_may_drop_outputs_of_its_parent(process: Process) -> None:
    assert process.run(FORK + "call_in_child()") == "nothing was raised\n"
    kept = "kept, inner = [scale(x, 1, 1, 1)], scale\nscale = lambda *passed: (kept.clear(), inner(*passed))\n"
    assert process.run(FORK + kept + "call_in_child()").startswith(FORKED)
    assert process.calls("free") == process.calls("wait") == []


# ---- contexts


def test_the_context_that_was_current_is_current_afterwards_and_another_stays_in_its_own(process: Process) -> None:
    printed = process.run("""
        from cuda.bindings import driver
        x, scale = on_cuda((5,), "float16", 1), made.kernel("scale")
        scale(x, x, 1, 1, 1)
        print(driver.cuCtxGetDevice()[0].name)
        _, first = driver.cuDevicePrimaryCtxRetain(0)
        driver.cuCtxSetCurrent(first)
        scale(x, x, 1, 1, 1)
        print(int(driver.cuCtxGetDevice()[1]))
        assert scale(on_cuda((5,), "float16", 0), 1, 1, 1).shape == (5,)
        far = on_cuda((100,), device=1)
        made.kernel("two_steps")(far, far)
        made.kernel("two_steps")(far)
        print(int(driver.cuCtxGetDevice()[1]))
        """)
    assert printed == "CUDA_ERROR_INVALID_CONTEXT\n0\n0\n"
    launched = [line.split()[-1] for line in process.calls("launch")]
    assert launched == ["cuda:1", "cuda:1", "cuda:0", *["cuda:1"] * 4]
    said = process.run("""
        import ctypes
        from cuda.bindings import driver
        driver.cuInit(0)
        library, own = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        library.cuCtxCreate_v2(ctypes.byref(own), 0, 0)
        library.cuCtxSetCurrent(own)
        x, scale = on_cuda((5,), "float16"), made.kernel("scale")
        for stream in (None, 1, 2, 0xf001, 0x77):
            call(scale, x, x, 1, 1, 1, stream=stream)
        now = ctypes.c_void_p()
        library.cuCtxGetCurrent(ctypes.byref(now))
        assert now.value == own.value
        print(refusal(lambda: call(scale, x, 1, 1, 1, stream=0xf001)))
        """)
    assert ["a context of its own" in line for line in process.calls("launch")] == [False, False, False, True, False]
    assert said == (
        "RuntimeError: kernel 'scale': its output would be made in a stream of another context of cuda:0 than the "
        "primary one\n  remedy: pass the outputs\n"
    )
    assert process.calls("allocate") == []


# ---- memory

MEMORY = """
import gc, threading
scale, MANY = made.kernel("scale"), 1 << 27  # 256 MiB of float16
def on(handle, n=1000, device=0):
    return call(scale, on_cuda((n,), "float16", device), 1, 1, 1, stream=handle)
"""
POOL = ["pool 1 of cuda:0", "pool 1 keeps 0xffffffffffffffff"]


def memory_calls(process: Process) -> list[str]:
    """What was asked for that has to do with memory, pools by the order in which they were made."""
    kinds = ("pool", "allocate", "free", "wait", "launch", "use", "destroy")
    return [line.split(" scale_kernel")[0] for line in process.log if line.startswith(kinds)]


def test_outputs_are_allocated_in_the_launchs_stream_from_one_pool_for_each_device_and_end_quietly(process):
    process.run(MEMORY + "on(7)")
    assert memory_calls(process) == [*POOL, "allocate 2000 in stream 0x7 from pool 1 of cuda:0", "launch"]
    process.run("""
        for device in (0, 1, 0):
            x = on_cuda((100,), device=device)
            made.kernel("two_steps")(x, x)
            made.kernel("two_steps")(x)
        made.kernel("fill")(on_cuda((4,)), 10)
        """)
    keeps = "keeps 0xffffffffffffffff"
    assert process.calls("pool") == ["1 of cuda:0", f"1 {keeps}", "2 of cuda:1", f"2 {keeps}"]
    assert {line.split(" from ")[1] for line in process.calls("allocate")} == {"pool 1 of cuda:0", "pool 2 of cuda:1"}
    code = """
y = on(7)
os.environ["STANDIN_DESTROYED"] = "7"
thread = threading.Thread(target=lambda kept: kept.clear(), args=([y],))
del y
thread.start()
thread.join()
gc.collect()
"""
    process.run(MEMORY + code)
    assert process.log[-1].startswith("launch scale_kernel")


def test_what_outputs_and_failed_launches_leave_is_freed_once_the_device_has_done_its_work(process):
    code = """
on(7, MANY, 1)
on(8, device=1)
os.environ["STANDIN_DESTROYED"] = "7"
kept = on(9, device=1)
kept = on(9, device=1)
"""
    process.run(MEMORY + code)
    small = "allocate 2000 in stream {} from pool 1 of cuda:1".format
    freed = ["wait for cuda:1", "free in stream 0x9", "free in stream 0x9"]
    again = [small("0x9"), "launch"] * 2
    assert memory_calls(process)[3:] == ["launch", small("0x8"), "launch", *freed, *again]
    process.run(MEMORY + "kept = on(7, MANY); on(7, MANY); on(7); print(kept.shape); last = on(7)")
    assert process.calls("wait") == ["for cuda:0"] and process.calls("free") == ["in stream 0x7"] * 2
    assert len(process.calls("allocate")) == 4
    code = 'os.environ["STANDIN_FAIL"] = "cuLaunchKernelEx=1"\nfor _ in range(2):\n    refusal(lambda: on(7, MANY + 1))'
    process.run(MEMORY + code)
    assert process.order("allocate", "wait", "free") == ["allocate", "wait", "free", "allocate"]


def test_memory_that_ran_out_is_taken_back_from_outputs_that_have_ended(process: Process) -> None:
    said = process.run(MEMORY + "on(7)\nkept = on(8)\nprint(refusal(lambda: on(8)))", memory=3000)
    refused = "RuntimeError: kernel 'scale': allocating 2000 bytes for an output failed with CUDA_ERROR_OUT_OF_MEMORY"
    assert said.startswith(refused)
    again = ["free in stream 0x8", "allocate 2000 in stream 0x8 from pool 1 of cuda:0", "launch"]
    assert memory_calls(process)[3:] == ["launch", "wait for cuda:0", *again]


def test_temporary_memory_is_taken_back_from_outputs_and_plain_memory_needs_no_pools(process: Process) -> None:
    process.run(MEMORY + "x = on_cuda((100,))\non(7)\ncall(made.kernel('two_steps'), x, x, stream=8)", memory=2100)
    assert process.calls("free") == ["in stream 0x8", "in stream 0x8"] and process.calls("wait") == ["for cuda:0"]
    captured = "os.environ['STANDIN_CAPTURE'] = '8'\nx = on_cuda((100,))\n"
    refused = "print(refusal(lambda: call(made.kernel('two_steps'), x, x, stream=8)))"
    assert "CUDA_ERROR_OUT_OF_MEMORY" in process.run(f"{MEMORY}on(7)\n{captured}{refused}", memory=2100)
    assert process.calls("end") == [], "to wait for the device would end the capture"
    code = "on(7, MANY + 1); kept = on(7); x = on_cuda((100,)); made.kernel('two_steps')(x, x)"
    process.run(MEMORY + code, pools=0)
    outputs = [f"allocate {2 << 27 | 2}", "launch", "wait for cuda:0", "free", "allocate 2000", "launch"]
    assert memory_calls(process)[:6] == outputs
    assert memory_calls(process)[6] == "allocate 400" and memory_calls(process)[-1] == "free"


def test_memory_is_kept_where_the_device_cannot_be_waited_for(process: Process) -> None:
    """Another thread captures a graph. Nothing is freed until that is over, and calls go on."""
    code = """
on(7, MANY)
on(7)
os.environ["STANDIN_CAPTURE"] = "5"
kept = on(7)
os.environ["STANDIN_CAPTURE"] = ""
on(7, MANY + 1)
kept = on(7)
"""
    process.run(MEMORY + code)
    kinds = process.order("launch", "wait", "free")
    assert kinds == [*["launch"] * 4, "wait", *["free"] * 3, "launch"]


def test_memory_that_is_released_during_the_wait_for_the_device_is_kept(process: Process, tmp_path: Path) -> None:
    """Work that was begun after the wait may use it."""
    code = f"""
import signal
signal.alarm({int(HANGS_AFTER_S)})
late = on(9)
on(7, MANY)
on(7)
os.mkfifo("{tmp_path}/gate")
os.environ["STANDIN_HOLD"] = "cuCtxSynchronize={tmp_path}/gate"
thread = threading.Thread(target=on, args=(8,))
thread.start()
with open("{tmp_path}/gate", "w"):  # it is in the wait now
    del late
thread.join()
"""
    process.run(MEMORY + code)
    assert process.order("wait", "free") == ["wait", "free", "free"]


def test_a_wait_that_fails_is_made_again_after_as_much_memory_again(process: Process) -> None:
    """Each one makes the capture of another thread fail."""
    code = """
on(7, MANY)
on(7)
os.environ["STANDIN_FAIL"] = "cuCtxSynchronize=900"
for _ in range(9):
    on(7)
os.environ["STANDIN_FAIL"] = ""
on(7, MANY)
on(7)
on(7)
"""
    process.run(MEMORY + code)
    assert process.order("launch", "wait", "free") == [*["launch"] * 12, "wait", *["free"] * 12, *["launch"] * 2]


def test_a_pool_that_cannot_be_made_is_an_exception_and_can_be_retried(process: Process) -> None:
    code = """
for failing in ("cuMemPoolCreate=2", "cuMemPoolSetAttribute=1", ""):
    os.environ["STANDIN_FAIL"] = failing
    print(refusal(lambda: on(7)).partition(" failed with ")[2])
"""
    no_memory, _, other, *_ = process.run(MEMORY + code).splitlines()
    assert no_memory == "CUDA_ERROR_OUT_OF_MEMORY (no description)" and other.endswith("(no description)")
    assert memory_calls(process)[:3] == ["pool 1 of cuda:0", "destroy pool 1", "pool 2 of cuda:0"]
    assert len(process.calls("launch")) == 1


# ---- graph capture

CAPTURED = {
    "scale": 'x = on_cuda((5,), "float16"); call(k, x, x, 1, 1, 1, stream=0x77)',
    "special": "call(k, on_cuda((4,)), stream=0x77)",
}


@pytest.mark.parametrize("kernel", CAPTURED)
def test_the_first_call_may_be_captured_and_leaves_the_threads_mode(process: Process, kernel: str) -> None:
    """Opening the device, loading, and opting in to shared memory are refused in a capture, unless it is relaxed."""
    process.run(
        f"""
        from cuda.bindings import driver
        k, modes = made.kernel({kernel!r}), driver.CUstreamCaptureMode
        for mode in (modes.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL, modes.CU_STREAM_CAPTURE_MODE_GLOBAL):
            driver.cuThreadExchangeStreamCaptureMode(mode)
            {CAPTURED[kernel]}
            assert driver.cuThreadExchangeStreamCaptureMode(mode)[1] == mode
        """,
        capture="0x77",
        capability=90,
    )
    assert len(process.calls("load")) == 1 and len(process.calls("launch")) == 2


@pytest.mark.parametrize(
    "function", ["cuDevicePrimaryCtxRetain", "cuLibraryLoadData", "cuLibraryGetKernel", "cuKernelGetFunction"]
)
def test_what_a_capture_does_not_allow_says_preload_and_leaves_the_threads_mode(process, function):
    text = process.run(
        f"""
        from cuda.bindings import driver
        mode = driver.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_THREAD_LOCAL
        driver.cuThreadExchangeStreamCaptureMode(mode)
        {REFUSAL}
        assert driver.cuThreadExchangeStreamCaptureMode(mode)[1] == mode
        """,
        fail=f"{function}=900",
    )
    assert "failed with CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED" in text
    assert text.endswith(
        "\n  a graph is being captured, which does not allow this"
        "\n  remedy: call preload before the capture, pass the outputs, and use the captured stream\n"
    )


def test_what_other_threads_capture_is_told_and_temporary_memory_of_a_graph_needs_pools(process: Process) -> None:
    code = 'fill, x = made.kernel("fill"), on_cuda((4,))\n'
    text = process.run(code + "print(refusal(lambda: fill(x, 10)))\ncall(fill, x, 10, stream=8)", capture=7, blocking=1)
    assert "is captured failed with CUDA_ERROR_STREAM_CAPTURE_IMPLICIT" in text
    assert text.endswith(
        "\n  another stream that is not non-blocking is being captured, and the default stream would wait for it"
        "\n  remedy: use a stream of your own\n"
    )
    assert len(process.calls("launch")) == 1
    code = "x = on_cuda((100,)); print(refusal(lambda: call(made.kernel('two_steps'), x, x, stream=0x77)))"
    assert process.run(code, capture="0x77") == "nothing was raised\n"
    assert process.order("allocate", "launch", "free") == ["allocate", "launch", "launch", "free"]
    text = process.run(code + "\nmade.kernel('two_steps')(x, x)  # another thread captures", capture="0x77", pools=0)
    assert text == (
        "RuntimeError: kernel 'two_steps': it needs temporary memory, which a graph cannot hold on cuda:0: the device "
        "has no memory pools\n  remedy: call it outside of graph capture\n"
    )
    assert process.order("allocate", "launch", "free") == ["allocate", "launch", "launch", "free"]


def test_outputs_have_to_be_passed_in_a_capture(process: Process) -> None:
    code = 'fill, x = made.kernel("fill"), on_cuda((4,))\nprint(refusal(lambda: call(fill, x, 10, stream=0x77)))\n'
    text = process.run(code + "call(fill, x, 10, on_cuda((10,)), stream=0x77)", capture="0x77")
    assert text == (
        "RuntimeError: kernel 'fill': its output would be part of the graph that is captured on cuda:0, and gone once "
        "that has run\n  remedy: pass the outputs\n"
    )
    assert process.calls("allocate") == [] and len(process.calls("launch")) == 1
