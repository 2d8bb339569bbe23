"""What stands in for CuTe DSL's runtime, under host code written by hand that calls it the way exported code does."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import tvm_ffi
from kernelwright.backends import sources as kernel_library
from kernelwright.backends.launcher import LAUNCHER
from kernelwright.backends.plan import LoweredUnit
from kernelwright.frontends.cutedsl.compiler import ANSWERED, HOST
from support.launcher_build import FakeTensor, compile_and_link, include_folders, plan, signature, tensor
from test_launcher_cuda import Machine, folder, machine

__all__ = ["folder", "machine"]

EXPORTED = r"""
#include <stddef.h>
#include <stdint.h>
#include <tvm/ffi/c_api.h>

typedef struct { uint32_t id, pad, value[16]; } attribute;
typedef struct {
  uint32_t grid[3], block[3];
  size_t shared;
  void *stream;
  attribute *attributes;
  uint32_t count;
} config;

int32_t cuda_dialect_init_library_once(void **, int32_t (*)(void **), int32_t (*)(void **, int32_t), void *);
void cuda_dialect_unload_library_once(void **);
int32_t _cudaDeviceGetAttribute(int32_t *, int32_t, int32_t);
int32_t _cudaGetDevice(int32_t *);
int32_t _cudaSetDevice(int32_t);
int32_t _cuKernelGetAttribute(int32_t *, int32_t, void *, int32_t);
int32_t _cudaKernelSetAttributeForDevice(void *, int32_t, int32_t, int32_t);
int32_t _cudaLaunchKernelEx(const config *, void *, void **);
int32_t _cudaLibraryGetKernel(void **, void *, const char *);
int32_t _cudaLibraryLoadData(void **, const void *, void *, void *, int32_t, void *, void *, int32_t);
int32_t kw_cutedsl_print(const char *, ...);
void kw_cutedsl_raise_parts(const char *, const char **, int32_t);
void CuteDSLRT_TVMFFISetRaisedCudaError(void *, int32_t);

static void *library, *kernel;

static int32_t init(void **result) { return _cudaLibraryLoadData(result, NULL, NULL, NULL, 0, NULL, NULL, 0); }

static int32_t load(void **result, int32_t device) {
  int32_t most, fixed, status = _cudaDeviceGetAttribute(&most, 97, device);
  if (!status) status = _cudaLibraryGetKernel(&kernel, *result, NAME);
  if (!status) status = _cuKernelGetAttribute(&fixed, 1, kernel, device);
  if (!status) status = _cudaKernelSetAttributeForDevice(kernel, 8, most - fixed, device);
  return status;
}

/* An array x: its number of elements is the dynamic shared memory, its first stride the width of the grid. */
int32_t __tvm_ffi_ENTRY(void *self, const TVMFFIAny *arguments, int32_t count, TVMFFIAny *result) {
  const DLTensor *x = (const DLTensor *)((const char *)arguments[0].v_ptr + sizeof(TVMFFIObject));
  if (arguments[0].type_index == kTVMFFIDLTensorPtr) x = arguments[0].v_ptr;
  (void)self, (void)count, (void)result;
  int32_t before, status = cuda_dialect_init_library_once(&library, init, load, NULL);
  if (status) return -1;
  if (x->shape[0] == 13) {
    const char *parts[] = {"an unlucky ", NULL, "number"};
    kw_cutedsl_raise_parts("ValueError", parts, 3);
    return -1;
  }
  if (x->shape[0] == 14) kw_cutedsl_print("\nError: %d is not better.\n\n", 14);
  if (x->shape[0] >= 200000) kw_cutedsl_print("\nError: kernel 'k' launch shared memory exceeds current GPU arch\n");
  struct { void *data; int32_t size; } view = {x->data, (int32_t)x->shape[0]};
  attribute attributes[] = {{.id = 4, .value = {2, 1, 1}}, {.id = 6, .value = {1}}};
  void *parameters[] = {&view.data, &view.size};
  config asked = {{(uint32_t)x->strides[0], 3, 1}, {32, 2, 1}, (size_t)x->shape[0], NULL, attributes, 2};
  _cudaGetDevice(&before);
  status = _cudaSetDevice(x->device.device_id);
  if (!status) status = _cudaLaunchKernelEx(&asked, kernel, parameters);
  _cudaSetDevice(before);
  if (status > 0) CuteDSLRT_TVMFFISetRaisedCudaError(NULL, status);
  return status ? -1 : 0;
}
"""


@pytest.fixture(scope="module")
def library(folder: Path) -> Path:
    """A kernel of two variants, float32 and float16, each with an object of its own."""
    units = [exported_unit(folder, dtype) for dtype in ("float32", "float16")]
    kernel = plan("taken", *units)
    (folder / "taken").mkdir(exist_ok=True)
    for name, text in kernel_library.emit(kernel).items():
        (folder / "taken" / name).write_text(text)
    objects = [str(Path(unit.host).with_suffix(".o")) for unit in units]
    compile_and_link(folder, "taken", objects, "taken.so")
    return folder / "taken.so"


def exported_unit(folder: Path, dtype: str) -> LoweredUnit:
    """What the front end would leave."""
    data = signature(
        "taken", [tensor("x", dtype, ["n"])], slug=dtype, target="cuda", arch="sm_80", symbols={"n": "int32"}
    )
    data["device_kernels"] = [{"name": f"device_{dtype}", "params": [], "launch": []}]
    base = Path("taken", dtype, "cuda")
    (folder / base).mkdir(parents=True, exist_ok=True)
    text = EXPORTED.replace("ENTRY", data["entry"]).replace("NAME", f'"device_{dtype}"')
    (folder / base / "exported.c").write_text(text)
    host = HOST.format(kernel="taken", slug=dtype, version="4.8", entry=data["entry"])
    (folder / base / "host.c").write_text(host)
    command = ["gcc", "-O1", "-fPIC", "-Wall", "-Wextra", "-Werror", *(f"-I{path}" for path in include_folders())]
    command += ["-c", str(base / "exported.c"), "-o", str(base / "host.o")]
    subprocess.run(command, cwd=folder, check=True)
    images = {arch: str(base / f"{arch}.cubin") for arch in ("sm_80", "sm_90a")}
    for arch, path in images.items():
        (folder / path).write_text(arch)
    return LoweredUnit.from_json(data, str(base / "host.c"), images)


def array(size: int, dtype: tuple[int, int, int] = (2, 32, 1), device: int = 0, stride: int = 5) -> Any:
    return tvm_ffi.from_dlpack(FakeTensor([size], dtype, device=(2, device), strides=[stride], data=0x100))


def test_a_launch_keeps_grid_block_shared_memory_attributes_parameters_and_the_stream_of_its_device(library, machine):
    machine.set(capability=90, parameters="pi")
    taken = machine.load(library)["taken"]
    taken(array(1000))
    first, second = (tvm_ffi.device(f"cuda:{number}") for number in range(2))
    with tvm_ffi.use_raw_stream(first, 0x50), tvm_ffi.use_raw_stream(second, 0x60):
        taken(array(8, device=1))
    launch, other = machine.calls("launch")
    assert "stream 0x60 on cuda:1 " in other
    assert launch == (
        "device_float32 sm_90a grid 5 3 1 block 32 2 1 shared 1000 stream 0 on cuda:0 "
        "attribute 4: 2 attribute 6: 1 parameters 0x100 1000"
    )


def test_each_variant_finds_its_own_functions_and_loads_its_image_once_for_a_device(library, machine):
    machine.set(capability=80)
    taken = machine.load(library)["taken"]
    for _ in range(2):
        taken(array(8))
        taken(array(8, (2, 16, 1), device=1))
    found = (re.match(r"(.*) grid .* on (cuda:\d)", launch) for launch in machine.calls("launch"))
    names = [" ".join(match.groups()) for match in found if match]
    assert names == ["device_float32 sm_80 cuda:0", "device_float16 sm_80 cuda:1"] * 2
    assert machine.calls("load") == ["sm_80", "sm_80"]


def test_more_shared_memory_is_asked_for_when_a_launch_needs_it(library: Path, machine: Machine) -> None:
    taken = machine.load(library)["taken"]
    taken(array(8))
    assert machine.calls("set") == []
    taken(array(60000))
    assert machine.calls("set") == ["device_float32 attribute 8 to 60000 on cuda:0"]
    with pytest.raises(
        RuntimeError, match=r"(?s)kernel 'taken'.*that is more than the 101376 bytes of a block.*remedy"
    ):
        taken(array(200000))


def test_an_empty_grid_is_an_error_where_there_is_something_to_do_and_empty_tensors_get_strides(library, machine):
    with pytest.raises(ValueError, match=r"grid \(0, 3, 1\), block \(32, 2, 1\), which does nothing, and no array is"):
        machine.load(library)["taken"](array(8, stride=0))
    assert machine.calls("launch") == []
    machine.load(library)["taken"](array(0))
    (launch,) = machine.calls("launch")
    assert "grid 1 3 1" in launch


def test_errors_of_exported_code_and_what_it_would_print_of_a_launch_name_the_kernel(library, machine):
    taken = machine.load(library)["taken"]
    for size, error, said in ((13, ValueError, "an unlucky number"), (14, RuntimeError, r"14 is not better\.")):
        with pytest.raises(error, match=f"^kernel 'taken': {said}$"):
            taken(array(size))
    assert machine.calls("launch") == []
    taken(array(15))
    assert len(machine.calls("launch")) == 1


def test_errors_of_the_driver_are_told_once_and_a_later_call_can_succeed(library: Path, machine: Machine) -> None:
    taken = machine.load(library)["taken"]
    for failure in ("cuInit=100", "cuLibraryLoadData=700", "cuLaunchKernelEx=700"):
        machine.set(fail=failure)
        with pytest.raises(RuntimeError, match=r"^kernel 'taken': (initialising|loading|launching)"):
            taken(array(8))
    machine.set(fail="")
    taken(array(8))
    assert len(machine.calls("launch")) == 1


def test_a_device_without_an_image_is_an_error(library: Path, machine: Machine) -> None:
    machine.set(capability=75)
    with pytest.raises(RuntimeError, match=r"is an sm_75, and variant float32 was built for sm_80, sm_90a"):
        machine.load(library)["taken"](array(8))


def test_the_front_end_allows_no_call_that_the_launcher_does_not_answer() -> None:
    text = (LAUNCHER / "cutedsl.h").read_text()
    answered = set(re.findall(r"^KW_HIDDEN (?:__attribute__\S+ \S+ \S+ )?\w+ (\w+)\(", text, re.M))
    elsewhere = {"TVMFFIEnvGetStream", "_GLOBAL_OFFSET_TABLE_", "memcpy", "memset"}
    assert answered == ANSWERED - elsewhere
