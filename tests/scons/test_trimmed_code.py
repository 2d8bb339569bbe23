"""PTX that nvcc's front end makes with the needed declarations of headers is what it makes with all of them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from kernelwright.processes.environment import tool_environment
from kernelwright.toolchain.nvcc import find_nvcc
from kernelwright.toolchain.nvcc_steps import Steps, read_steps
from kernelwright.toolchain.trimmed_source import TrimmedSource

SOURCES = {
    "half, tensor cores, and types of its own": """\
#include <cuda_fp16.h>
#include <mma.h>
extern "C" __global__ void k0(half *x, half2 *y) {
  x[0] = hexp(x[1]) + x[2] * __float2half(2.0f);
  y[0] = __hfma2(y[1], y[2], h2sqrt(y[3]));
  if (x[3] < x[4]) x[5] = __shfl_down_sync(0xffffffffu, x[6], 1);
}
extern "C" __global__ void k1(const half *a, const half *b, float *c) {
  using namespace nvcuda;
  wmma::fragment<wmma::matrix_a, 16, 16, 16, half, wmma::row_major> x;
  wmma::fragment<wmma::matrix_b, 16, 16, 16, half, wmma::col_major> y;
  wmma::fragment<wmma::accumulator, 16, 16, 16, float> z;
  wmma::fill_fragment(z, 0.0f);
  wmma::load_matrix_sync(x, a, 16);
  wmma::load_matrix_sync(y, b, 16);
  wmma::mma_sync(z, x, y, z);
  wmma::store_matrix_sync(c, z, 16, wmma::mem_row_major);
}
namespace mine {
struct pair { half x; float y; __device__ pair operator+(pair o) const { return {x + o.x, y + o.y}; } };
enum kind { first, second };
__device__ inline bool operator<(const pair &a, const pair &b) { return a.x < b.x; }
}
using mine::pair;
typedef struct { float4 v; } wide;
extern "C" __global__ void k2(pair *x, wide *w) {
  auto least = [&](pair a, pair b) { return a < b ? a : b; };
  x[0] = least(x[1], x[2]) + x[mine::second];
  w[0].v = make_float4(w[1].v.x, 0, 0, __ldg(&w[2].v).w);
}
""",
    "bfloat16, groups of threads, and asserting": """\
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <cassert>
#include <cstdio>
extern "C" __global__ void k0(__nv_bfloat16 *x, __nv_fp8_e4m3 *y, float *z) {
  x[0] = __hmax(x[1], x[2]) - x[3];
  z[0] = float(y[0]) + __bfloat162float(x[4]);
  y[1] = __nv_fp8_e4m3(z[1]);
}
extern "C" __global__ void k1(int *x) {
  auto tile = cooperative_groups::tiled_partition<32>(cooperative_groups::this_thread_block());
  x[threadIdx.x] = cooperative_groups::reduce(tile, x[threadIdx.x], cooperative_groups::plus<int>());
}
#define CHECKED(x) assert((x) > 0)
extern "C" __global__ void k2(float *x) {
  CHECKED(x[0]);
  printf("%s %d %f\\n", __FILE__, __LINE__, x[0]);
}
""",
    "the standard library": """\
#include <cstdint>
#include <limits>
#include <type_traits>
template <typename T> __device__ std::enable_if_t<std::is_floating_point_v<T>, T> f(T x) { return std::abs(x); }
template <typename T> __device__ std::enable_if_t<std::is_integral_v<T>, T> f(T x) { return max(x, T(3)); }
extern "C" __global__ void k(float *x, int64_t *y) {
  x[0] = f(x[1]) + std::pow(x[2], 2.5f);
  y[0] = f(y[1]) + INT64_C(7);
}
""",
    "memory of the device": """\
static __device__ int counter;
__constant__ float table[4] = {1, 2, 3, 4};
__device__ float shown = 3.0f;
__device__ __noinline__ float helper(float x) { return x * table[threadIdx.x & 3]; }
template <int N> __global__ void other(float *x) { x[N] = N; }
template __global__ void other<3>(float *);
extern "C" __global__ void k(float *x) {
  extern __shared__ double shared[];
  int *p = new int[4];
  p[atomicAdd(&counter, 1) & 3] = 1;
  x[p[1]] = helper(x[0]) + shared[0] + tex1Dfetch<float>(0, 1);
  delete[] p;
}
""",
    "CUDA's own standard library": """\
#include <cuda/atomic>
#include <cuda/std/array>
#include <cuda/std/tuple>
extern "C" __global__ void k(float *x, int *y) {
  cuda::std::array<int, 3> a{1, 2, 3};
  int sum = 0;
  for (auto v : a) sum += v;
  auto [p, q] = cuda::std::make_tuple(sum, 2.0f);
  x[3] = float(p) + q;
  cuda::atomic_ref<int, cuda::thread_scope_device>(*y).fetch_add(1);
}
""",
    "names from another scope": """\
#include <cmath>
#include <cuda_fp16.h>
using namespace std;
extern "C" __global__ void k(float *x, double *y, int *z) {
  x[0] = abs(x[1]) + pow(x[2], 3) + max(x[3], x[4]);
  y[0] = fabs(y[1]) + floor(y[2]);
  z[0] = abs(z[1]) + min(z[2], 3);
}
""",
    "variables with values, texts": """\
#include <cuda_fp16.h>
__device__ int count(3);
__device__ int *where(&count);
__device__ __attribute__((used)) int hidden() { return count; }
extern "C" __global__ void k(int *x) {
  asm volatile(R"({ .reg .u32 a;
 mov.u32 a, 3; st.global.u32 [%0], a; })" ::"l"(x));
  const char *text = R"x(} " )x";
  x[1] = text[threadIdx.x] + 1'000'000;
}
""",
    "a function beside the type of its argument": """\
namespace std { struct one { float v; }; __device__ inline float f(one x) { return x.v * 3; } }
using one = std::one;
#include <cuda_fp16.h>
template <class T> __device__ float f(const T &x) { return x.v * 2; }
extern "C" __global__ void k(one *x) { x[0].v = f(x[1]); }
""",
    "parts of a value": """\
#include <utility>
struct two { int a, b; };
namespace std {
template <> struct tuple_size<two> { static constexpr size_t value = 2; };
template <size_t I> struct tuple_element<I, two> { using type = int; };
}
template <int I> __host__ __device__ int get(const two &x) { return I == 0 ? x.b : x.a; }
#include <cuda_fp16.h>
extern "C" __global__ void k(two *x) { auto [a, b] = x[0]; x[1].a = a; x[1].b = b + 1; }
""",
    "lines and operators between headers": """\
#include <cassert>
#include <cstdio>
struct number { float v; __device__ operator float() const { return v; } };
using other = number;
__device__ number operator+(other a, other b) { return {a.v * 3 + b.v}; }
__device__ int f(int *x) { assert(x[0]); printf("%s", __FILE__); return __LINE__; }
#include <cuda_fp16.h>
extern "C" __global__ void k0(number *x) { x[0].v = x[1] + x[2]; }
extern "C" __global__ void k1(int *x) { x[0] = f(x); }
""",
    "what host code makes": """\
template <typename T> __global__ void other(T *x) { x[0] = 1; }
void host(float *x) { other<float><<<1, 1>>>(x); }
extern "C" __global__ void k0(float *x) { x[0] = 1; }
template <typename T> __device__ T shown = 1;
void *place() { return &shown<float>; }
extern "C" __global__ void k1(float *x) { x[0] = 1; }
""",
}


WHOLE = """\
#include <cmath>
enum { unused = 1 };
enum { used = 2 };
template <typename T> __device__ __noinline__ float f(T x, float *y) { return y[x] * y[3]; }
extern "C" __global__ void k(float *x) { x[0] = f(used, x); }
"""
"""It has types with numbers in place of names, which change with what is left out."""

WITH_CODE_FOR_ARCHS = [
    *("half, tensor cores, and types of its own", "bfloat16, groups of threads, and asserting"),
    *("memory of the device", "CUDA's own standard library"),
]
"""Those whose headers have other text for other archs."""


def test_a_source_that_needs_all_of_its_headers_is_compiled_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "device.cu").write_text(WHOLE)
    source = source_in(tmp_path, steps_of(tmp_path, "compute_80"))
    assert not source.make_ptx(checked=True)


@pytest.mark.parametrize(
    ("name", "arch"), [(name, "compute_90a" if name in WITH_CODE_FOR_ARCHS else "compute_80") for name in SOURCES]
)
def test_the_same_ptx(name: str, arch: str, tmp_path: Path) -> None:
    (tmp_path / "device.cu").write_text(SOURCES[name])
    steps = steps_of(tmp_path, arch)
    run(steps.front_end(), tmp_path)
    output = tmp_path / "device.ptx"
    whole, size = output.read_bytes(), (tmp_path / steps.preprocessed).stat().st_size
    output.unlink()
    assert source_in(tmp_path, steps).make_ptx(checked=True)
    assert output.read_bytes() == whole
    assert (tmp_path / steps.preprocessed).stat().st_size < size / 2


def source_in(folder: Path, steps: Steps) -> TrimmedSource:
    """The device.cu in a folder, of whose headers nothing is known."""
    return TrimmedSource(
        folder / "device.cu",
        steps,
        folder,
        lambda c: run(c, folder),
        lambda c: run(c, folder),
        lambda *given: given[-1](),
    )


def steps_of(folder: Path, arch: str) -> Steps:
    """What nvcc would run to make PTX of device.cu in a folder."""
    options = ["--dryrun", "-std=c++17", "-O3", "-ptx", f"-arch={arch}", "-o", f"{folder}/device.ptx"]
    command = [find_nvcc("", {}), *options]
    environment = tool_environment() | {"TMPDIR": str(folder)}
    done = subprocess.run(
        [*command, "device.cu"], cwd=folder, env=environment, capture_output=True, text=True, check=True
    )
    return read_steps(done.stderr, "ptx", str(folder))


def run(command: object, folder: Path) -> None:
    """Run a command in a folder."""
    done = subprocess.run(list(command), cwd=folder, capture_output=True, text=True, check=False)  # type: ignore[call-overload]
    assert done.returncode == 0, done.stderr[:3000]
