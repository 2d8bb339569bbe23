// CUDA C++ as a host compiler sees it, for running generated device code on the CPU.
//
// The threads of a block are fibers, and blocks run one after the other, so every run of a kernel is the same. A thread
// runs until it waits for others: at __syncthreads, or in a function of its warp such as __shfl_sync; a warp, until it
// waits for other warps. Nothing runs in step that CUDA does not promise to: most missing barriers give a wrong result
// in one of the two orders of threads. What hardware leaves undefined is an error or NaN here: shared memory before it
// is written, lanes that take no part in a shuffle, barriers that only some threads reach, wide accesses to unaligned
// memory, and indices beyond the end of an array of known size. An instruction of PTX that is not known is an error once
// a thread gets there.
//
// Only what TVM's source uses is here; add what is missing.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <utility>

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __grid_constant__
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __cluster_dims__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))
// Variables of a block: in one section, to be filled with NaN before the next block.
#define __shared__ static __attribute__((section("cuda_shared")))
// "asm volatile(...)" becomes a call. The word alone, as in a cast, is followed by no parenthesis and stays.
#define asm
#define __asm__
#define volatile(...) (emulated::refuse_ptx(#__VA_ARGS__))
#define __volatile__(...) (emulated::refuse_ptx(#__VA_ARGS__))

// ---- types

#define VECTOR_TYPES(base, type, wide) \
  struct base##1 { type x; }; \
  struct __align__(wide < 8 ? 2 * wide : 16) base##2 { type x, y; }; \
  struct base##3 { type x, y, z; }; \
  struct __align__(wide < 4 ? 4 * wide : 16) base##4 { type x, y, z, w; }; \
  inline base##1 make_##base##1(type x) { return {x}; } \
  inline base##2 make_##base##2(type x, type y) { return {x, y}; } \
  inline base##3 make_##base##3(type x, type y, type z) { return {x, y, z}; } \
  inline base##4 make_##base##4(type x, type y, type z, type w) { return {x, y, z, w}; }
VECTOR_TYPES(char, signed char, 1)
VECTOR_TYPES(uchar, unsigned char, 1)
VECTOR_TYPES(short, short, 2)
VECTOR_TYPES(ushort, unsigned short, 2)
VECTOR_TYPES(int, int, 4)
VECTOR_TYPES(uint, unsigned int, 4)
VECTOR_TYPES(float, float, 4)
VECTOR_TYPES(long, long, 8)
VECTOR_TYPES(ulong, unsigned long, 8)
VECTOR_TYPES(longlong, long long, 8)
VECTOR_TYPES(ulonglong, unsigned long long, 8)
VECTOR_TYPES(double, double, 8)

struct dim3 { unsigned x = 1, y = 1, z = 1; };

template <typename To, typename From>
inline To bits_as(From value) {
  static_assert(sizeof(To) == sizeof(From));
  To result;
  std::memcpy(&result, &value, sizeof result);
  return result;
}

namespace emulated {
// A number of 16 bits; arithmetic is that of float, rounded after each operation as the instructions do.
template <typename Format>
struct alignas(2) Short {
  uint16_t bits;
  Short() = default;
  Short(const Short &) = default;
  Short(const volatile Short &other) : bits(other.bits) {}
  Short &operator=(const Short &) = default;
  void operator=(const Short &other) volatile { bits = other.bits; }
  template <typename T, typename = std::enable_if_t<std::is_arithmetic_v<T>>>
  Short(T value) : bits(Format::rounded(float(value))) {}
  operator float() const { return Format::widened(bits); }
  friend Short operator+(Short a, Short b) { return float(a) + float(b); }
  friend Short operator-(Short a, Short b) { return float(a) - float(b); }
  friend Short operator*(Short a, Short b) { return float(a) * float(b); }
  friend Short operator/(Short a, Short b) { return float(a) / float(b); }
  friend Short operator-(Short a) { return -float(a); }
  Short &operator+=(Short other) { return *this = *this + other; }
  Short &operator*=(Short other) { return *this = *this * other; }
};
template <typename T>
struct __align__(4) Two {
  T x, y;
  Two() = default;
  Two(T x, T y) : x(x), y(y) {}
};
struct Float16 {
  static uint16_t rounded(float value) { return bits_as<uint16_t>(_Float16(value)); }
  static float widened(uint16_t bits) { return bits_as<_Float16>(bits); }
};
struct Bfloat16 {
  static uint16_t rounded(float value) {  // to nearest, ties to even; a NaN stays one
    const uint32_t bits = bits_as<uint32_t>(value);
    return value != value ? 0x7fff : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
  }
  static float widened(uint16_t bits) { return bits_as<float>(uint32_t(bits) << 16); }
};
}  // namespace emulated

using half = emulated::Short<emulated::Float16>;
using nv_bfloat16 = emulated::Short<emulated::Bfloat16>;
using half2 = emulated::Two<half>;
using nv_bfloat162 = emulated::Two<nv_bfloat16>;
using __half = half;
using __half2 = half2;
using __nv_bfloat16 = nv_bfloat16;
using __nv_bfloat162 = nv_bfloat162;

inline half2 make_half2(half x, half y) { return {x, y}; }
inline half2 __halves2half2(half x, half y) { return {x, y}; }
inline half2 __floats2half2_rn(float x, float y) { return {x, y}; }
inline float2 __half22float2(half2 v) { return {v.x, v.y}; }
inline nv_bfloat162 __floats2bfloat162_rn(float x, float y) { return {x, y}; }
inline float2 __bfloat1622float2(nv_bfloat162 v) { return {v.x, v.y}; }
inline float __half2float(half v) { return v; }
inline half __float2half(float v) { return v; }
inline half __float2half_rn(float v) { return v; }
inline float __bfloat162float(nv_bfloat16 v) { return v; }
inline nv_bfloat16 __float2bfloat16(float v) { return v; }
inline nv_bfloat16 __float2bfloat16_rn(float v) { return v; }
inline unsigned short __half_as_ushort(half v) { return v.bits; }
inline half __ushort_as_half(unsigned short v) { return bits_as<half>(v); }
template <typename T> bool __hgt(T a, T b) { return float(a) > float(b); }
template <typename T> bool __hge(T a, T b) { return float(a) >= float(b); }
template <typename T> bool __hlt(T a, T b) { return float(a) < float(b); }
template <typename T> bool __hle(T a, T b) { return float(a) <= float(b); }
template <typename T> bool __heq(T a, T b) { return float(a) == float(b); }
template <typename T> bool __hne(T a, T b) { return float(a) != float(b); }
template <typename T> T __hmax(T a, T b) { return fmaxf(a, b); }
template <typename T> T __hmin(T a, T b) { return fminf(a, b); }
template <typename T> T __habs(T a) { return fabsf(a); }
template <typename T> T __hfma(T a, T b, T c) { return fmaf(a, b, c); }
template <typename T> T hexp(T a) { return expf(a); }
template <typename T> T hexp2(T a) { return exp2f(a); }
template <typename T> T hlog(T a) { return logf(a); }
template <typename T> T hsqrt(T a) { return sqrtf(a); }
template <typename T> T hrsqrt(T a) { return 1 / sqrtf(a); }

// ---- arithmetic

#define MIN_AND_MAX(type) \
  inline type max(type a, type b) { return a < b ? b : a; } \
  inline type min(type a, type b) { return b < a ? b : a; }
MIN_AND_MAX(int)
MIN_AND_MAX(unsigned)
MIN_AND_MAX(long)
MIN_AND_MAX(unsigned long)
MIN_AND_MAX(long long)
MIN_AND_MAX(unsigned long long)
// Of a number and NaN the number, as in CUDA.
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }

inline float rsqrtf(float v) { return 1 / sqrtf(v); }
inline float __expf(float v) { return expf(v); }
inline float __exp10f(float v) { return powf(10, v); }
inline float __logf(float v) { return logf(v); }
inline float __log2f(float v) { return log2f(v); }
inline float __powf(float a, float b) { return powf(a, b); }
inline float __sinf(float v) { return sinf(v); }
inline float __cosf(float v) { return cosf(v); }
inline float __tanf(float v) { return tanf(v); }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __frcp_rn(float v) { return 1 / v; }
inline float __fsqrt_rn(float v) { return sqrtf(v); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
inline float __saturatef(float v) { return fminf(fmaxf(v, 0), 1); }
inline int __float_as_int(float v) { return bits_as<int>(v); }
inline unsigned __float_as_uint(float v) { return bits_as<unsigned>(v); }
inline float __int_as_float(int v) { return bits_as<float>(v); }
inline float __uint_as_float(unsigned v) { return bits_as<float>(v); }
inline int __float2int_rn(float v) { return int(nearbyintf(v)); }
inline int __popc(unsigned v) { return __builtin_popcount(v); }
inline int __popcll(unsigned long long v) { return __builtin_popcountll(v); }
inline int __clz(int v) { return v ? __builtin_clz(unsigned(v)) : 32; }
inline int __clzll(long long v) { return v ? __builtin_clzll((unsigned long long)v) : 64; }
inline int __ffs(int v) { return __builtin_ffs(v); }
inline unsigned __umulhi(unsigned a, unsigned b) { return unsigned((unsigned long long)a * b >> 32); }
inline unsigned __brev(unsigned v) {
  unsigned result = 0;
  for (int bit = 0; bit < 32; ++bit) result |= (v >> bit & 1) << (31 - bit);
  return result;
}
inline int __dp4a(int a, int b, int c) {
  for (int byte = 0; byte < 4; ++byte) c += int8_t(a >> 8 * byte) * int8_t(b >> 8 * byte);
  return c;
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int byte = 0; byte < 4; ++byte) c += uint8_t(a >> 8 * byte) * uint8_t(b >> 8 * byte);
  return c;
}
#define CUDART_INF_F INFINITY
#define CUDART_NAN_F NAN
#define CUDART_INF double(INFINITY)

template <typename T> T __ldg(const T *from) { return *from; }
template <typename T> T __ldcs(const T *from) { return *from; }
template <typename T> T __ldcg(const T *from) { return *from; }
template <typename T> void __stcs(T *to, T value) { *to = value; }
template <typename T> void __stcg(T *to, T value) { *to = value; }
template <typename T> T exchanged(T *at, T value) { return std::exchange(*at, value); }
template <typename T> T atomicAdd(T *at, std::common_type_t<T> v) { return exchanged(at, T(*at + v)); }
template <typename T> T atomicSub(T *at, std::common_type_t<T> v) { return exchanged(at, T(*at - v)); }
template <typename T> T atomicMax(T *at, std::common_type_t<T> v) { return exchanged(at, *at < v ? v : *at); }
template <typename T> T atomicMin(T *at, std::common_type_t<T> v) { return exchanged(at, v < *at ? v : *at); }
template <typename T> T atomicAnd(T *at, std::common_type_t<T> v) { return exchanged(at, T(*at & v)); }
template <typename T> T atomicOr(T *at, std::common_type_t<T> v) { return exchanged(at, T(*at | v)); }
template <typename T> T atomicExch(T *at, std::common_type_t<T> v) { return exchanged(at, v); }
template <typename T> T atomicCAS(T *at, std::common_type_t<T> expected, std::common_type_t<T> v) {
  return exchanged(at, *at == expected ? v : *at);
}
inline unsigned atomicInc(unsigned *at, unsigned last) { return exchanged(at, *at >= last ? 0 : *at + 1); }
inline void __threadfence() {}
inline void __threadfence_block() {}

// ---- threads, of which cuda_on_cpu.cpp has the rest

namespace emulated {

constexpr int WARP = 32;
constexpr size_t MAX_DYNAMIC = 227 << 10;
constexpr uint64_t POISON = ~0ull;  // NaN in every type of floating point

struct Geometry {
  unsigned grid[3], block[3], dynamic;
  int reversed;  // from the last block and thread to the first
};

// End the whole launch with an error.
[[noreturn]] void fail(const char *text);
[[noreturn]] void refuse_ptx(const char *text);

// Wait for the other threads of the block; in which line of the code.
void barrier(int line);

// Wait for the lanes of the mask in the same function; what each lane of the warp gave.
const uint64_t *meet(const char *function, unsigned mask, uint64_t value = 0);

// The lanes of the warp that have not ended.
unsigned active();

// Which lane of its warp the running thread is.
int lane();

// Run all blocks: each thread calls the body with its argument. Returns an error, or nothing.
const char *run(void (*body)(void *), void *argument, const Geometry &geometry);

template <typename T>
T shuffled(const char *function, unsigned mask, T value, int source) {
  static_assert(sizeof(T) <= 8);
  uint64_t sent = 0;
  std::memcpy(&sent, &value, sizeof value);
  const unsigned taking_part = mask & active();
  const uint64_t *lanes = meet(function, mask, sent);
  const uint64_t got = taking_part >> source & 1 ? lanes[source] : POISON;
  std::memcpy(&value, &got, sizeof value);
  return value;
}

template <typename T, typename Operation>
T combined(const char *function, unsigned mask, T value, Operation operation) {
  const unsigned taking_part = mask & active();
  const uint64_t *lanes = meet(function, mask, uint64_t(value));
  bool first = true;
  T result{};
  for (int i = 0; i < WARP; ++i)
    if (taking_part >> i & 1) result = std::exchange(first, false) ? T(lanes[i]) : T(operation(result, T(lanes[i])));
  return result;
}

template <typename... P, size_t... I>
void call(void (*kernel)(P...), void **values, std::index_sequence<I...>) {
  kernel(*static_cast<std::remove_reference_t<P> *>(values[I])...);
}

template <typename... P>
const char *launch(void (*kernel)(P...), void **values, const Geometry *geometry) {
  struct Call {
    void (*kernel)(P...);
    void **values;
  } made{kernel, values};
  const auto body = [](void *argument) {
    const Call &made = *static_cast<Call *>(argument);
    call(made.kernel, made.values, std::index_sequence_for<P...>());
  };
  return run(body, &made, *geometry);
}

}  // namespace emulated

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
constexpr int warpSize = emulated::WARP;
namespace emulated {

// ---- what cuda_on_cpu.cpp gives to wgmma_on_cpu.cpp

// The number of the running thread in its block.
int thread();

// Whether what hardware may do at any time is done at the last moment, or at once.
bool is_late();

unsigned dynamic_bytes();

// Wait until a condition is true; `what` is for messages.
void wait_for(const char *what, bool (*is_ready)(uint32_t, uint32_t), uint32_t place, uint32_t number);

// ---- and what it calls there

void begin_block(int threads);
void end_thread();
void end_block();

// Make the copies that nobody waited for until now; whether there were any.
bool deliver();

}  // namespace emulated

// Where TVM has "extern __shared__".
extern unsigned char buf_dyn_shmem[emulated::MAX_DYNAMIC] __attribute__((aligned(1024)));

// ---- instructions of PTX that emulation.py calls in place of asm

// An address of shared memory as instructions have it: how far from the dynamic part.
inline size_t __cvta_generic_to_shared(const void *at) { return static_cast<const unsigned char *>(at) - buf_dyn_shmem; }

namespace emulated {

void cp_async_16(uint32_t to, const void *from);
void cp_async_commit_group();
void cp_async_wait_group(int unfinished);

// PTX ISA, "ldmatrix": four matrices of 8 x 8 elements of 16 bits; a lane gives the address of one of 32 rows.
void ldmatrix_x4(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, uint32_t row);
void ldmatrix_x4_trans(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, uint32_t row);

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
void mma_m16n8k16(float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                  uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3);

// PTX ISA, "cvt" with two sources: the first is the upper half.
inline void cvt_f16x2(uint32_t &result, float upper, float lower) {
  result = uint32_t(half(upper).bits) << 16 | half(lower).bits;
}

template <typename T>
void st_global(const void *address, T value) {
  void *to = const_cast<void *>(address);
  if (uintptr_t(to) % sizeof value) fail("st.global to memory that is not aligned to its size");
  std::memcpy(to, &value, sizeof value);
}

// PTX ISA, "mbarrier". A phase is complete when all have arrived, and all bytes that were announced have come.
void mbarrier_init(uint32_t at, uint32_t count);
void mbarrier_arrive(uint32_t at);
void mbarrier_arrive_expect_tx(uint32_t at, uint32_t bytes);
void mbarrier_wait(uint32_t at, uint32_t parity, uint32_t ticks);

// Makes what this thread has written to shared memory, or initialized there, visible to copies.
void fence_for_copies();

// What cuTensorMapEncodeTiled makes, here with its arguments as they are.
struct TensorMap {
  const unsigned char *address;
  uint32_t rank, itemsize, swizzle;
  uint64_t sizes[5], strides[5];
  uint32_t box[5], steps[5];
};

// PTX ISA, "cp.async.bulk.tensor" in tile mode.
void load_box(uint32_t to, const TensorMap &map, const int *coordinates, int rank, uint32_t barrier);

template <typename... Rest>
void tma_load(uint32_t to, const void *map, Rest... rest) {
  const int given[] = {int(rest)...};
  constexpr int rank = sizeof...(rest) - 1;
  load_box(to, *static_cast<const TensorMap *>(map), given, rank, uint32_t(given[rank]));
}

// PTX ISA, "wgmma.mma_async" of float16, k = 16, with both matrices in shared memory.
struct Product {
  uint64_t a, b;  // descriptors
  bool accumulate;
  int n, scale_a, scale_b;
  bool a_along_m, b_along_n;  // which dimension has neighbours in memory; otherwise it is k
};
void start_product(float *const *d, int count, const Product &product);

template <typename Given, size_t... I>
void start_product_of(const Given &given, std::index_sequence<I...>) {
  constexpr size_t count = sizeof...(I);
  float *const d[] = {&std::get<I>(given)...};
  const Product product{std::get<count>(given),     std::get<count + 1>(given), std::get<count + 2>(given) != 0,
                        std::get<count + 3>(given), std::get<count + 4>(given), std::get<count + 5>(given),
                        std::get<count + 6>(given) != 0, std::get<count + 7>(given) != 0};
  start_product(d, count, product);
}

// The accumulators, two descriptors and a predicate, and behind them the numbers in the text of the instruction.
template <typename... Given>
void wgmma_f16(Given &&...given) {
  start_product_of(std::forward_as_tuple(given...), std::make_index_sequence<sizeof...(given) - 8>());
}
void wgmma_fence();
void wgmma_commit_group();
void wgmma_wait_group(int unfinished);

}  // namespace emulated

using CUtensorMap_st = emulated::TensorMap;
using CUtensorMap = CUtensorMap_st;

inline void __trap() { emulated::fail("__trap()"); }
#define __syncthreads() emulated::barrier(__LINE__)
inline void __syncwarp(unsigned mask = ~0u) { emulated::meet("__syncwarp", mask); }
// Where TVM asks for it all lanes that have not ended are there. If they are not, the next shuffle waits forever.
inline unsigned __activemask() { return emulated::active(); }

// A lane whose source is in another part of the warp gets its own value.
#define SHUFFLE(name, by_type, source_lane) \
  template <typename T> \
  T name(unsigned mask, T value, by_type by, int width = 32) { \
    const int lane = emulated::lane(), first = lane / width * width, source = source_lane; \
    return emulated::shuffled(#name, mask, value, source < first || source >= first + width ? lane : source); \
  }
SHUFFLE(__shfl_sync, int, first + by % width)
SHUFFLE(__shfl_xor_sync, int, (lane ^ by) < first + width ? (lane ^ by) : lane)
SHUFFLE(__shfl_down_sync, unsigned, lane + int(by))
SHUFFLE(__shfl_up_sync, unsigned, lane - int(by))
inline unsigned __ballot_sync(unsigned mask, int predicate) {
  const unsigned bit = predicate ? 1u << emulated::lane() : 0u;
  return emulated::combined("__ballot_sync", mask, bit, [](unsigned a, unsigned b) { return a | b; });
}
inline int __any_sync(unsigned mask, int predicate) { return __ballot_sync(mask, predicate) != 0; }
inline int __all_sync(unsigned mask, int predicate) { return __ballot_sync(mask, !predicate) == 0; }
#define REDUCE(name, type, expression) \
  inline type name(unsigned mask, type value) { \
    return emulated::combined(#name, mask, value, [](type a, type b) { return expression; }); \
  }
REDUCE(__reduce_add_sync, unsigned, a + b)
REDUCE(__reduce_add_sync, int, a + b)
REDUCE(__reduce_max_sync, unsigned, max(a, b))
REDUCE(__reduce_max_sync, int, max(a, b))
REDUCE(__reduce_min_sync, unsigned, min(a, b))
REDUCE(__reduce_min_sync, int, min(a, b))
REDUCE(__reduce_or_sync, unsigned, a | b)
inline unsigned __match_any_sync(unsigned mask, unsigned value) {
  const unsigned taking_part = mask & emulated::active();
  const uint64_t *lanes = emulated::meet("__match_any_sync", mask, value);
  unsigned same = 0;
  for (int i = 0; i < warpSize; ++i) same |= unsigned((taking_part >> i & 1) && unsigned(lanes[i]) == value) << i;
  return same;
}
// After "static" a C++ compiler takes the attribute of GNU only.
#define alignas(bytes) __attribute__((aligned(bytes)))
