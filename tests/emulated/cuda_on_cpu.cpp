// Threads of emulated hardware: see cuda_on_cpu.h. It is compiled once, and linked to each kernel.
#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "cuda_on_cpu.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;
unsigned char buf_dyn_shmem[emulated::MAX_DYNAMIC];
extern "C" char __start_cuda_shared[] __attribute__((weak)), __stop_cuda_shared[] __attribute__((weak));

namespace emulated {

constexpr int MAX_THREADS = 1024;
constexpr size_t STACK = 64 << 10;

enum State { READY, AT_BARRIER, IN_WARP, AT_CONDITION, ENDED };

struct Fiber {
  uint3 index;  // threadIdx
  State state = ENDED;
  int line = 0;           // of the barrier at which it waits
  const char *what = "";  // the function of its warp in which it waits,
  unsigned mask = 0;      // for which lanes,
  uint64_t value = 0;     // and what it gives to them
  bool (*is_ready)(uint32_t, uint32_t) = nullptr;  // the condition that it waits for,
  uint32_t place = 0, number = 0;                  // and of what
  bool started = false;
  ucontext_t start;
  jmp_buf point;  // where it goes on
};

// What an instruction copies after the thread has gone on.
struct Copy {
  unsigned char *to;
  const void *from;
};

struct Machine {
  std::vector<Fiber> fibers{MAX_THREADS};
  char *stacks = nullptr;
  int threads = 0;
  int current = 0;
  unsigned active[MAX_THREADS / WARP];  // the lanes of each warp that have not ended
  uint64_t lanes[MAX_THREADS];          // what each thread gave when its warp last met
  std::vector<std::vector<Copy>> copies[MAX_THREADS];  // of each thread by groups; the last group is open
  bool late = false;                                   // whether copies are made when they are waited for, or at once
  unsigned dynamic = 0;                                // bytes of dynamic shared memory
  void (*body)(void *) = nullptr;
  void *argument = nullptr;
  jmp_buf scheduler;
  std::string error;
};

static Machine m;

// What a thread has of a and b, unpacked. There are two of each, in turns: a thread that has met the others of its warp
// may be at the next mma while they still read.
struct Fragments {
  float a[8], b[4];
};
static Fragments fragments[2][MAX_THREADS];
static bool turns[MAX_THREADS];

[[noreturn]] static void to_scheduler() { _longjmp(m.scheduler, 1); }

[[noreturn]] void fail(const std::string &text) {
  const auto at = [](const uint3 &index) {
    return std::to_string(index.x) + "," + std::to_string(index.y) + "," + std::to_string(index.z);
  };
  m.error = text + " (block " + at(blockIdx) + ", thread " + at(threadIdx) + ")";
  to_scheduler();
}

void fail(const char *text) { fail(std::string(text)); }

void refuse_ptx(const char *text) { fail("instructions of PTX cannot be emulated: " + std::string(text)); }

int thread() { return m.current; }

bool is_late() { return m.late; }

unsigned dynamic_bytes() { return m.dynamic; }

static void wait(State state) {
  Fiber &self = m.fibers[m.current];
  self.state = state;
  if (!_setjmp(self.point)) to_scheduler();
}

void barrier(int line) {
  m.fibers[m.current].line = line;
  wait(AT_BARRIER);
}

void wait_for(const char *what, bool (*is_ready)(uint32_t, uint32_t), uint32_t place, uint32_t number) {
  Fiber &self = m.fibers[m.current];
  self.what = what, self.is_ready = is_ready, self.place = place, self.number = number;
  if (!is_ready(place, number)) wait(AT_CONDITION);
}

const uint64_t *meet(const char *function, unsigned mask, uint64_t value) {
  Fiber &self = m.fibers[m.current];
  if (!(mask >> lane() & 1)) fail(std::string(function) + " has a mask without the lane that calls it");
  self.what = function, self.mask = mask, self.value = value;
  wait(IN_WARP);
  return m.lanes + m.current / WARP * WARP;
}

unsigned active() { return m.active[m.current / WARP]; }

int lane() { return m.current % WARP; }

static void run_fiber() {
  while (true) {
    m.body(m.argument);
    end_thread();
    m.active[m.current / WARP] &= ~(1u << lane());
    wait(ENDED);
  }
}

static void resume(int number) {
  Fiber &fiber = m.fibers[number];
  m.current = number;
  threadIdx = fiber.index;
  if (_setjmp(m.scheduler)) return;
  if (fiber.started) _longjmp(fiber.point, 1);
  fiber.started = true;
  getcontext(&fiber.start);
  fiber.start.uc_stack.ss_sp = m.stacks + STACK * number;
  fiber.start.uc_stack.ss_size = STACK;
  makecontext(&fiber.start, run_fiber, 0);
  setcontext(&fiber.start);
}

// Let the threads of the block go on if all of them wait at the barrier; whether they do.
static bool release_block() {
  const auto begin = m.fibers.begin(), end = begin + m.threads;
  const auto waits = [](const Fiber &fiber) { return fiber.state == AT_BARRIER; };
  const auto first = std::find_if(begin, end, waits);
  const auto is_there = [&](const Fiber &fiber) { return waits(fiber) || fiber.state == ENDED; };
  if (first == end || !std::all_of(begin, end, is_there)) return false;
  for (auto fiber = begin; fiber != end; ++fiber) {
    if (!waits(*fiber)) continue;
    if (fiber->line != first->line)
      fail("threads of a block wait at different barriers, in lines " + std::to_string(first->line) + " and " +
           std::to_string(fiber->line));
    fiber->state = READY;
  }
  return true;
}

// Let those threads go on whose condition has come true; whether there are any.
static bool release_ready() {
  bool any = false;
  for (int i = 0; i < m.threads; ++i) {
    Fiber &fiber = m.fibers[i];
    if (fiber.state != AT_CONDITION || !fiber.is_ready(fiber.place, fiber.number)) continue;
    fiber.state = READY;
    any = true;
  }
  return any;
}

// Let those lanes of a warp go on who have met; whether there are any.
static bool release_warp(int start, int count) {
  bool any = false;
  for (int i = 0; i < count; ++i) {
    const Fiber &one = m.fibers[start + i];
    if (one.state != IN_WARP) continue;
    const unsigned chosen = one.mask & m.active[start / WARP];
    bool complete = true;
    for (int k = 0; k < count; ++k) {
      const Fiber &other = m.fibers[start + k];
      const bool has_come = other.state == IN_WARP && other.mask == one.mask && other.what == one.what;
      complete = complete && (has_come || !(chosen >> k & 1));
    }
    for (int k = 0; complete && k < count; ++k) {
      if (!(chosen >> k & 1)) continue;
      m.lanes[start + k] = m.fibers[start + k].value;
      m.fibers[start + k].state = READY;
      any = true;
    }
  }
  return any;
}

// Run the lanes of a warp until all wait for other warps, or have ended: one warp runs as far ahead as it can.
static void run_warp(int start, bool reversed) {
  const int count = std::min(WARP, m.threads - start);
  do {
    for (int i = 0; i < count && m.error.empty(); ++i) {
      const int number = start + (reversed ? count - 1 - i : i);
      if (m.fibers[number].state == READY) resume(number);
    }
  } while (m.error.empty() && release_warp(start, count));
}

// Say who waits for whom, of threads that will wait forever.
[[noreturn]] static void fail_waiting() {
  std::string text = "threads wait for others that do not come:";
  for (int i = 0; i < m.threads; ++i) {
    const Fiber &f = m.fibers[i];
    if (text.size() > 600) break;
    const std::string number = std::to_string(i);
    if (f.state == AT_BARRIER) text += " " + number + " at the barrier in line " + std::to_string(f.line) + ";";
    if (f.state == AT_CONDITION) text += " " + number + " at " + f.what + ";";
    if (f.state == IN_WARP) text += " " + number + " in " + f.what + ";";
  }
  fail(text);
}

static void run_block(const Geometry &geometry) {
  if (&__start_cuda_shared[0]) memset(__start_cuda_shared, 0xff, __stop_cuda_shared - __start_cuda_shared);
  memset(buf_dyn_shmem, 0xff, geometry.dynamic);
  std::fill(std::begin(m.active), std::end(m.active), 0);
  for (int i = 0; i < m.threads; ++i) {
    m.fibers[i].state = READY;
    m.active[i / WARP] |= 1u << i % WARP;
    m.copies[i].assign(1, {});
    turns[i] = false;
  }
  begin_block(m.threads);
  const int warps = (m.threads + WARP - 1) / WARP;
  const auto ended = [](const Fiber &fiber) { return fiber.state == ENDED; };
  while (true) {
    for (int i = 0; i < warps; ++i) run_warp((geometry.reversed ? warps - 1 - i : i) * WARP, geometry.reversed);
    if (!m.error.empty()) return;
    if (_setjmp(m.scheduler)) return;  // where fail() ends
    if (std::all_of(m.fibers.begin(), m.fibers.begin() + m.threads, ended)) return end_block();
    // Copies that are on their way come as late as they can.
    if (!release_ready() && !release_block() && !deliver()) fail_waiting();
  }
}

const char *run(void (*body)(void *), void *argument, const Geometry &geometry) {
  const auto &[x, y, z] = geometry.grid;
  const auto &block = geometry.block;
  gridDim = {x, y, z};
  blockDim = {block[0], block[1], block[2]};
  m.threads = int(block[0] * block[1] * block[2]);
  m.body = body, m.argument = argument, m.late = geometry.reversed, m.dynamic = geometry.dynamic;
  m.error.clear();
  for (Fiber &fiber : m.fibers) fiber.started = false;  // of an earlier launch that failed
  constexpr int LAZY = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  if (!m.stacks) m.stacks = (char *)mmap(nullptr, STACK * MAX_THREADS, PROT_READ | PROT_WRITE, LAZY, -1, 0);
  for (int i = 0; i < m.threads; ++i)
    m.fibers[i].index = {i % block[0], i / block[0] % block[1], i / (block[0] * block[1])};
  const uint64_t blocks = uint64_t(x) * y * z;
  for (uint64_t turn = 0; turn < blocks && m.error.empty(); ++turn) {
    const uint64_t i = geometry.reversed ? blocks - 1 - turn : turn;
    blockIdx = {unsigned(i % x), unsigned(i / x % y), unsigned(i / (uint64_t(x) * y))};
    run_block(geometry);
  }
  return m.error.c_str();
}

// ---- instructions of PTX

// Hardware may copy at any time until somebody waits for it: one order of threads has the first moment, one the last.
void cp_async_16(uint32_t to, const void *from) {
  const Copy copy{buf_dyn_shmem + int32_t(to), from};
  if ((uintptr_t(copy.to) | uintptr_t(from)) % 16) fail("cp.async of memory that is not aligned to 16 bytes");
  if (m.late) m.copies[m.current].back().push_back(copy);
  else memcpy(copy.to, from, 16);
}

void cp_async_commit_group() { m.copies[m.current].emplace_back(); }

void cp_async_wait_group(int unfinished) {
  auto &groups = m.copies[m.current];
  while (int(groups.size()) > unfinished + 1) {
    for (const Copy &copy : groups.front()) memcpy(copy.to, copy.from, 16);
    groups.erase(groups.begin());
  }
}

static uint16_t element(uint64_t row, int column) {
  if (row % 16) fail("ldmatrix of a row that is not aligned to 16 bytes");
  uint16_t bits;
  memcpy(&bits, buf_dyn_shmem + int32_t(row) + 2 * column, 2);
  return bits;
}

static void load_matrices(uint32_t *result, uint32_t row, bool transposed) {
  uint64_t rows[WARP];
  memcpy(rows, meet("ldmatrix", ~0u, row), sizeof rows);
  const int outer = lane() / 4, inner = lane() % 4 * 2;
  for (int i = 0; i < 4; ++i) {
    const uint64_t *matrix = rows + 8 * i;
    const uint16_t low = transposed ? element(matrix[inner], outer) : element(matrix[outer], inner);
    const uint16_t high = transposed ? element(matrix[inner + 1], outer) : element(matrix[outer], inner + 1);
    result[i] = low | uint32_t(high) << 16;
  }
  meet("the end of ldmatrix", ~0u, 0);  // no lane runs ahead while others read
}

void ldmatrix_x4(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, uint32_t row) {
  uint32_t result[4];
  load_matrices(result, row, false);
  r0 = result[0], r1 = result[1], r2 = result[2], r3 = result[3];
}

void ldmatrix_x4_trans(uint32_t &r0, uint32_t &r1, uint32_t &r2, uint32_t &r3, uint32_t row) {
  uint32_t result[4];
  load_matrices(result, row, true);
  r0 = result[0], r1 = result[1], r2 = result[2], r3 = result[3];
}

static void unpack(float *values, uint32_t word) {
  values[0] = Float16::widened(uint16_t(word));
  values[1] = Float16::widened(uint16_t(word >> 16));
}

void mma_m16n8k16(float &d0, float &d1, float &d2, float &d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                  uint32_t b0, uint32_t b1, float c0, float c1, float c2, float c3) {
  Fragments *of_turn = fragments[turns[m.current] ^= true];
  Fragments &own = of_turn[m.current];
  unpack(own.a, a0), unpack(own.a + 2, a1), unpack(own.a + 4, a2), unpack(own.a + 6, a3);
  unpack(own.b, b0), unpack(own.b + 2, b1);
  meet("mma", ~0u, 0);
  const Fragments *lanes = of_turn + m.current / WARP * WARP;
  float d[4] = {c0, c1, c2, c3};
  for (int i = 0; i < 4; ++i) {
    const Fragments *row = lanes + lane() / 4 * 4, *column = lanes + (lane() % 4 * 2 + i % 2) * 4;
    for (int k = 0; k < 16; ++k)
      d[i] += row[k % 8 / 2].a[4 * (k / 8) + 2 * (i / 2) + k % 2] * column[k % 8 / 2].b[2 * (k / 8) + k % 2];
  }
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}

}  // namespace emulated

// What the host compiler calls for an unaligned access and for an index out of bounds (-fsanitize).
extern "C" {
struct SanitizerPlace {
  const char *file;
  uint32_t line, column;
};
void __ubsan_handle_type_mismatch_v1_abort(void *place, uintptr_t) {
  emulated::fail("line " + std::to_string(static_cast<SanitizerPlace *>(place)->line) +
                 ": an access to memory that is not aligned to its size");
}
void __ubsan_handle_out_of_bounds_abort(void *place, uintptr_t index) {
  emulated::fail("line " + std::to_string(static_cast<SanitizerPlace *>(place)->line) + ": index " +
                 std::to_string(static_cast<intptr_t>(index)) + " is beyond the end of an array");
}
}
