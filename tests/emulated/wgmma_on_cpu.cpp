// What sm_90a adds, for emulated threads: barriers in memory, copies of boxes (TMA), and products of warpgroups (wgmma).
//
// Copies and products are done at once in one order of threads, and in the other one as late as can be: a copy when all
// threads wait, a product when its thread waits for it. Until then the accumulators are NaN.
#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "cuda_on_cpu.h"

namespace emulated {

// Of cuda_on_cpu.cpp. The header does not have it, because with all of <string> each kernel would take 50 ms more.
[[noreturn]] void fail(const std::string &text);

constexpr int WARPGROUP = 128;

// ---- barriers in shared memory

struct Barrier {
  uint32_t count, pending, phase;
  int64_t bytes;  // that are still to come
  int fenceless;  // the thread that initialized it, as long as copies need not see that; otherwise -1
};

static std::map<uint32_t, Barrier> barriers;

static Barrier &barrier_at(uint32_t at) {
  const auto found = barriers.find(at);
  if (found == barriers.end()) fail("an mbarrier that was not initialized");
  return found->second;
}

static void complete(Barrier &barrier) {
  if (barrier.pending || barrier.bytes) return;
  ++barrier.phase;
  barrier.pending = barrier.count;
}

void mbarrier_init(uint32_t at, uint32_t count) {
  if (at % 8) fail("an mbarrier that is not aligned to 8 bytes");
  if (!count || count >= 1u << 20) fail("mbarrier.init with a count of " + std::to_string(count));
  if (!barriers.insert({at, {count, count, 0, 0, thread()}}).second) fail("mbarrier.init of what is an mbarrier");
}

static void arrive(Barrier &barrier) {
  if (!barrier.pending) fail("more threads arrive at an mbarrier than it has a count of");
  --barrier.pending;
  complete(barrier);
}

void mbarrier_arrive(uint32_t at) { arrive(barrier_at(at)); }

void mbarrier_arrive_expect_tx(uint32_t at, uint32_t bytes) {
  barrier_at(at).bytes += bytes;
  mbarrier_arrive(at);
}

static bool has_phase_ended(uint32_t at, uint32_t parity) { return (barriers.at(at).phase & 1) != parity; }

void mbarrier_wait(uint32_t at, uint32_t parity, uint32_t) {
  barrier_at(at);
  if (parity > 1) fail("mbarrier.try_wait for a parity of " + std::to_string(parity));
  wait_for("an mbarrier", has_phase_ended, at, parity);
}

void fence_for_copies() {
  for (auto &[at, barrier] : barriers)
    if (barrier.fenceless == thread()) barrier.fenceless = -1;
}

// ---- copies

struct BoxCopy {
  TensorMap map;
  uint32_t to, barrier;
  int at[5];
};

static std::vector<BoxCopy> on_their_way;

// PTX ISA, "Swizzling Modes": the bits of an address that choose one of eight times 16 bytes are changed by those above.
static uint32_t swizzled(uint32_t address, uint32_t span) { return address ^ ((address >> 7 & (span / 16 - 1)) << 4); }

static uint32_t span_of(uint32_t swizzle) { return swizzle ? 16u << swizzle : 16; }

static const unsigned char *element_of(const BoxCopy &copy, const uint32_t *index) {
  const TensorMap &map = copy.map;
  const unsigned char *address = map.address;
  for (uint32_t axis = 0; axis < map.rank; ++axis) {
    const int64_t at = int64_t(copy.at[axis]) + int64_t(index[axis]) * map.steps[axis];
    if (at < 0 || uint64_t(at) >= map.sizes[axis]) return nullptr;
    address += at * map.strides[axis];
  }
  return address;
}

static void do_copy(const BoxCopy &copy) {
  const TensorMap &map = copy.map;
  uint32_t index[5] = {}, count = 1;
  for (uint32_t axis = 0; axis < map.rank; ++axis) count *= map.box[axis];
  for (uint32_t i = 0; i < count; ++i) {
    unsigned char *to = buf_dyn_shmem + swizzled(copy.to + i * map.itemsize, span_of(map.swizzle));
    const unsigned char *from = element_of(copy, index);
    from ? memcpy(to, from, map.itemsize) : memset(to, 0, map.itemsize);
    for (uint32_t axis = 0; axis < map.rank && ++index[axis] == map.box[axis]; ++axis) index[axis] = 0;
  }
  Barrier &barrier = barrier_at(copy.barrier);
  barrier.bytes -= int64_t(count) * map.itemsize;
  complete(barrier);
}

void load_box(uint32_t to, const TensorMap &map, const int *coordinates, int rank, uint32_t barrier) {
  BoxCopy copy{map, to, barrier};
  uint64_t bytes = map.itemsize;
  for (int axis = 0; axis < rank; ++axis) copy.at[axis] = coordinates[axis], bytes *= map.box[axis];
  if (uint32_t(rank) != map.rank) fail("cp.async.bulk.tensor of another rank than its tensor map");
  if (to % 128) fail("cp.async.bulk.tensor to shared memory that is not aligned to 128 bytes");
  if (to + bytes > dynamic_bytes()) fail("cp.async.bulk.tensor beyond the end of shared memory");
  if (barrier_at(barrier).fenceless >= 0) fail("cp.async.bulk.tensor with an mbarrier whose initialization has no fence");
  if (is_late()) on_their_way.push_back(copy);
  else do_copy(copy);
}

bool deliver() {
  const bool any = !on_their_way.empty();
  for (const BoxCopy &copy : on_their_way) do_copy(copy);
  on_their_way.clear();
  return any;
}

// ---- products of warpgroups

// Matrix descriptor of wgmma, with what its fields mean in bytes (PTX ISA, "Matrix Descriptor Format").
struct Matrix {
  uint32_t start, leading, stride, span;
  bool along_k;
};

static Matrix matrix_of(uint64_t descriptor, bool along_k) {
  static const uint32_t SPANS[] = {16, 128, 64, 32};
  const auto bytes = [&](int bit) { return uint32_t(descriptor >> bit & 0x3fff) << 4; };
  const Matrix matrix{bytes(0), bytes(16), bytes(32), SPANS[descriptor >> 62], along_k};
  if (descriptor & 0x3fffc000c000c000) fail("a matrix descriptor of wgmma with other bits than are emulated");
  // The swizzle goes by the address, and repeats after 8 rows. Without a base offset a matrix begins with such rows.
  if (matrix.span > 16 && matrix.start >> 7 & (matrix.span / 16 - 1))
    fail("a matrix of wgmma that does not begin where its swizzle does");
  return matrix;
}

// PTX ISA, "Strides" and "Canonical Layouts" of wgmma: an element by its row or column, and by k.
static float element(const Matrix &matrix, uint32_t outer, uint32_t k) {
  uint32_t at = matrix.start;
  const uint32_t wide = matrix.span / 2;  // elements
  if (matrix.along_k && matrix.span > 16) at += outer % 8 * matrix.span + outer / 8 * matrix.stride + k * 2;
  else if (matrix.along_k) at += outer % 8 * 16 + outer / 8 * matrix.stride + k % 8 * 2 + k / 8 * matrix.leading;
  else if (matrix.span > 16)
    at += outer % wide * 2 + outer / wide * matrix.leading + k % 8 * matrix.span + k / 8 * matrix.stride;
  else at += outer % 8 * 2 + outer / 8 * matrix.stride + k % 8 * 16 + k / 8 * matrix.leading;
  at = swizzled(at, matrix.span);
  if (at + 2 > dynamic_bytes()) fail("wgmma reads beyond the end of shared memory");
  uint16_t bits;
  memcpy(&bits, buf_dyn_shmem + at, 2);
  return Float16::widened(bits);
}

struct Started {
  Product product;
  float *first;  // of the accumulators
};

// The accumulators of one thread.
struct Accumulators {
  std::vector<float *> at;
  std::vector<float> values;  // what they are when all products that were started are done
  int started = 0;
};

struct Thread {
  std::map<float *, Accumulators> accumulators;
  std::vector<std::vector<Started>> groups{1};  // the last one is open
  bool fenced = false;                          // since products were last done
  uint64_t history = 0, count = 0;              // of all products
};

static std::vector<Thread> threads;

// PTX ISA, "Matrix fragments for wgmma.mma_async.m64nNk16": thread t has rows of its warp and pairs of columns.
static void do_product(const Product &product, std::vector<float> &d) {
  const Matrix a = matrix_of(product.a, !product.a_along_m), b = matrix_of(product.b, !product.b_along_n);
  const int row = thread() % WARPGROUP / WARP * 16 + lane() / 4, column = lane() % 4 * 2;
  float rows[2][16];
  for (int i = 0; i < 32; ++i) rows[i / 16][i % 16] = product.scale_a * element(a, row + i / 16 * 8, i % 16);
  for (int j = 0; j < product.n / 4; ++j) {
    float values[16];
    for (int k = 0; k < 16; ++k) values[k] = product.scale_b * element(b, j / 2 * 8 + column + j % 2, k);
    for (int h = 0; h < 2; ++h) {
      float &sum = d[j / 2 * 4 + h * 2 + j % 2];
      if (!product.accumulate) sum = 0;
      for (int k = 0; k < 16; ++k) sum += rows[h][k] * values[k];
    }
  }
}

static void require_alike(const Product &product) {
  const uint64_t mark = (product.a * 31 + product.b) * 31 + product.accumulate;
  const uint64_t *lanes = meet("wgmma.mma_async", ~0u, mark);
  if (std::any_of(lanes, lanes + WARP, [&](uint64_t other) { return other != mark; }))
    fail("lanes of a warp start wgmma with different operands");
  Thread &self = threads[thread()];
  self.history = self.history * 1000003 + mark;
  ++self.count;
}

// The accumulators must not have been touched since the last product, unless a fence says that they may have.
static Accumulators &accumulators_of(Thread &self, float *const *d, int count) {
  const auto [found, is_new] = self.accumulators.try_emplace(d[0]);
  Accumulators &own = found->second;
  std::vector<float> now;
  for (int i = 0; i < count; ++i) now.push_back(*d[i]);
  if (own.started) return own;
  const bool same = !is_new && !memcmp(now.data(), own.values.data(), count * sizeof(float));
  if (!self.fenced && !same) fail("wgmma with accumulators that were written, and no wgmma.fence since");
  own.at.assign(d, d + count);
  own.values = now;
  return own;
}

void start_product(float *const *d, int count, const Product &product) {
  require_alike(product);
  if (count != product.n / 2) fail("wgmma with another number of accumulators than its shape has");
  Thread &self = threads[thread()];
  Accumulators &own = accumulators_of(self, d, count);
  ++own.started;
  self.groups.back().push_back({product, d[0]});
  if (!is_late()) do_product(product, own.values);
  for (int i = 0; i < count; ++i) *d[i] = NAN;
}

void wgmma_fence() { threads[thread()].fenced = true; }

void wgmma_commit_group() { threads[thread()].groups.emplace_back(); }

static void finish(Thread &self, const Started &started) {
  Accumulators &own = self.accumulators.at(started.first);
  if (is_late()) do_product(started.product, own.values);
  if (--own.started) return;
  for (size_t i = 0; i < own.at.size(); ++i) *own.at[i] = own.values[i];
  self.fenced = false;
}

void wgmma_wait_group(int unfinished) {
  Thread &self = threads[thread()];
  while (int(self.groups.size()) > unfinished + 1) {
    for (const Started &started : self.groups.front()) finish(self, started);
    self.groups.erase(self.groups.begin());
  }
}

// ---- of a block

void begin_block(int count) {
  barriers.clear();
  on_their_way.clear();
  threads.assign(count, {});
}

void end_thread() {
  for (const auto &[first, own] : threads[thread()].accumulators)
    if (own.started) fail("a thread ends before it has waited for its wgmma");
}

void end_block() {
  if (!on_their_way.empty()) fail("copies are on their way when the block ends");
  for (const auto &[at, barrier] : barriers)
    if (barrier.bytes) fail("an mbarrier waits for " + std::to_string(barrier.bytes) + " bytes when the block ends");
  for (size_t i = 0; i < threads.size(); ++i) {
    const size_t first = i / WARPGROUP * WARPGROUP;
    if (threads[i].count && first + WARPGROUP > threads.size()) fail("wgmma in less than a warpgroup");
    if (threads[i].history != threads[first].history) fail("warps of a warpgroup start different wgmma");
  }
}

}  // namespace emulated
