// Runs one CUDA kernel on one CPU thread, checks it and counts its memory requests.
//
// The kernel is compiled with -fsanitize=thread, and this file supplies the __tsan_* functions that
// such code calls before each access. It is itself compiled without the sanitizer and linked into
// every kernel's library, with all but the emulator_* functions hidden: libraries share no state.
#include "emulated_cuda.h"
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#undef alignas

#include <algorithm>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <unordered_map>
#include <vector>

#include "api.h"
#include "clocks.hpp"
#include "counters.hpp"
#include "fiber.hpp"
#include "mbarrier.hpp"
#include "memory.hpp"
#include "shadow.hpp"
#include "tensor_core.hpp"

#define RETURN_ADDRESS ((uintptr_t)__builtin_return_address(0))
#define LIKELY(condition) __builtin_expect(!!(condition), 1)
#define UNLIKELY(condition) __builtin_expect(!!(condition), 0)
#define COLD __attribute__((noinline, cold))

extern "C" {
void emulated_entry(void** arguments);  // in the kernel's object
void emulated_touch_shared(void);
}

namespace emulator {

// ---- state --------------------------------------------------------------------------------------

struct Access {
  uint64_t address;
  uint32_t pc;
  uint8_t bytes, kind;
  uint16_t destination;  // of a 16-byte cp.async: its offset in the shared window, in 16 bytes
};

struct AsyncCopy {
  char* shared;
  const char* global;
  uint32_t bytes, source_bytes, pc;
};

enum LaneState {
  kRunning,
  kPaused,
  kAtBarrier,
  kAtWarpOperation,
  kAtMbarrier,
  kAtClusterBarrier,
  kExited,
  kLaneStates
};

// Accesses that a lane records before it pauses, so that a warp's records stay in the cache.
constexpr uint32_t kChunk = 512;
// A thread that makes 2^20 accesses between two synchronisations is taken to loop for ever.
constexpr uint32_t kMostPauses = (1u << 20) / kChunk;
// A warp yields to the others after so many chunks: it may be waiting for one of them.
constexpr uint32_t kRoundsInARow = 256;

// What a lane has accessed, with room for a chunk more; never shrinks.
struct Records {
  Access* begin = nullptr;
  Access* next = nullptr;
  Access* limit = nullptr;

  Records() = default;
  Records(const Records&) = delete;
  ~Records() { free(static_cast<void*>(begin)); }
  size_t size() const { return (size_t)(next - begin); }
  void clear() { next = begin; }
  void drop_front(size_t count) {
    if (count < size()) memmove(begin, begin + count, (size() - count) * sizeof(Access));
    next -= count;
  }
  void make_room() {
    if ((size_t)(limit - next) >= kChunk) return;
    size_t used = size(), capacity = 2 * (used + kChunk);
    begin = static_cast<Access*>(realloc(static_cast<void*>(begin), capacity * sizeof(Access)));
    if (!begin) abort();
    next = begin + used;
    limit = begin + capacity;
  }
};

// An instruction that all lanes of a warp execute together, as one of them sees it.
struct Collective {
  enum Kind { kMma, kLdmatrix, kWgmmaFence, kWgmma, kWgmmaCommit, kWgmmaWait } kind;
  uint32_t line, pc;
  float* sum;
  uint32_t count;  // registers of the sum; groups that a wait leaves
  const uint32_t* a;
  const uint32_t* b;
  uint64_t a_tile, b_tile;
  bool accumulate, half, a_transposed, b_transposed;
  uint32_t* matrices;
  const char* row;

  // Whether two lanes execute one instruction: operands other than registers are equal too.
  bool same(const Collective& other) const {
    return kind == other.kind && line == other.line && count == other.count &&
           a_tile == other.a_tile && b_tile == other.b_tile && accumulate == other.accumulate &&
           half == other.half && a_transposed == other.a_transposed &&
           b_transposed == other.b_transposed;
  }
};

struct Lane {
  void* stack_pointer;
  uint3 thread_idx;
  uint32_t thread, warp;
  LaneState state;
  uint32_t waiting_pc, waiting_line;
  uint32_t pauses;
  uint32_t budget;  // accesses left before the next pause
  // at a warp-level operation: the mask and value given, and what the group exchanged
  uint32_t mask;
  uint64_t value;
  const uint64_t* exchanged;
  uint32_t exchanged_mask;
  const Collective* collective;
  bool sums_under_way;             // products of the warp may yet write to some of its registers
  WarpProducts products;           // of the warp, in its first lane
  std::vector<Collective> issued;  // products of the warp so far, in its first lane
  uint32_t barrier, parity;  // of the mbarrier that it waits for
  Records records;  // since the last flush
  std::vector<AsyncCopy> open_group;
  std::vector<std::vector<AsyncCopy>> groups;
};

struct SharedArray {
  uint64_t offset, bytes;
};

constexpr uint32_t kMostClusterBlocks = 16;

// The last read of a shared word by another block of the cluster.
struct RemoteRead {
  uint32_t epoch, pc, thread;  // epoch: of the cluster barrier before it
};
// A place that reads another block's shared memory, since the last cluster barrier.
struct PeerRead {
  uint32_t pc, thread;
  int64_t offset;
  uint3 block;
};

// What a block of a cluster keeps while another one runs: the values of the variables below.
struct Block {
  uint3 index;
  Lane* lanes;
  bool finished;
  uint32_t epoch, first_epoch;
  uint16_t warp_epoch[kMaxThreads / kWarp];
  std::vector<char> window;
  std::vector<ShadowWord> shadow;
  std::vector<RemoteRead> remote_reads;
  std::vector<Barrier> barriers;
  Clocks clocks;
};

constexpr uint16_t kCpAsync = 1, kTma = 2;  // what a word in flight waits for

// Bytes of the window that the compiler added: the guard of a shared array of vector types.
constexpr uint8_t kCompilers = 255;

static Stacks stacks;
static Arena arena;
static Module module;
static Counters counters;
static Lane* all_lanes;  // of a whole cluster
static Lane* lanes;      // of the block that runs
static Lane* current;
static void* scheduler_stack;

static EmulatorLaunch launch;
static EmulatorTotals totals;
static std::vector<EmulatorFinding> findings;
static std::vector<EmulatorBlockCounts> block_counts;
static std::vector<SharedArray> shared_arrays;
static std::vector<uint8_t> array_of_byte;  // of the shared window: array + 1, 0 or kCompilers
static std::vector<ShadowWord> shadow;
static uint3 block_idx;
static uint32_t threads_per_block, epoch, first_epoch_of_block, last_epoch;
static uint16_t warp_epoch[kMaxThreads / kWarp];
static uint64_t exchange[kMaxThreads / kWarp][kWarp][kWarp];  // [warp][leading lane][lane]
static std::vector<Barrier> barriers;
static Clocks clocks;
static std::vector<Block> cluster;  // its blocks; empty where clusters have one block
static uint32_t rank, cluster_epoch;
static std::vector<RemoteRead> remote_reads;  // of the shared words of the block that runs
static std::vector<PeerRead> peer_reads;
static bool aborted;

static uint64_t linear_block() {
  return block_idx.x +
         (uint64_t)launch.grid[0] * (block_idx.y + (uint64_t)launch.grid[1] * block_idx.z);
}

// ---- findings -----------------------------------------------------------------------------------

constexpr size_t kMostFindings = 256;

static COLD void report(EmulatorFindingKind kind, EmulatorSpace space, uint32_t pc, uint32_t other_pc,
                        int32_t array, int64_t offset, uint32_t bytes, uint32_t thread,
                        uint32_t other_thread) {
  for (auto& known : findings)
    if (known.kind == (uint32_t)kind && known.pc == pc && known.other_pc == other_pc &&
        known.array == array) {
      known.count++;
      return;
    }
  if (findings.size() >= kMostFindings) return;
  EmulatorFinding finding{};
  finding.kind = kind;
  finding.space = space;
  finding.pc = pc;
  finding.other_pc = other_pc;
  finding.array = array;
  finding.offset = offset;
  finding.bytes = bytes;
  finding.thread = thread;
  finding.other_thread = other_thread;
  finding.block = linear_block();
  finding.count = 1;
  findings.push_back(finding);
}

// ---- fibers -------------------------------------------------------------------------------------

static inline void yield() {
  totals.switches++;
  emulated_switch_stack(&current->stack_pointer, scheduler_stack);
}
static inline void resume(Lane& lane) {
  current = &lane;
  emulated_switch_stack(&scheduler_stack, lane.stack_pointer);
}
static void run_thread() {
  emulated_entry(launch.arguments);
  current->state = kExited;
  for (;;) yield();
}
[[noreturn]] static COLD void abandon_launch() {
  aborted = true;
  for (;;) yield();
}
static COLD void pause(uint32_t pc) {
  Lane& lane = *current;
  if (++lane.pauses > kMostPauses) {
    report(kEndlessLoop, kOtherSpace, pc, 0, -1, 0, 0, lane.thread, 0);
    abandon_launch();
  }
  lane.state = kPaused;
  yield();
}

// ---- checks of one access -----------------------------------------------------------------------

static COLD void out_of_bounds(uintptr_t address, uint32_t bytes, uint32_t pc, uint32_t slot,
                               int64_t offset) {
  report(kOutOfBounds, kGlobal, pc, 0, (int32_t)slot, offset, bytes, current->thread, 0);
  if (!arena.make_accessible(address, bytes)) abandon_launch();
}

static uint64_t cluster_of(uint64_t block) {
  uint64_t x = block % launch.grid[0], y = block / launch.grid[0] % launch.grid[1],
           z = block / launch.grid[0] / launch.grid[1];
  return x / launch.cluster[0] +
         (uint64_t)launch.grid[0] * (y / launch.cluster[1] +
                                     (uint64_t)launch.grid[1] * (z / launch.cluster[2]));
}
// Whether a barrier of the cluster lies between another block's write and now.
static bool ordered_by_cluster(const GlobalWriter& writer) {
  return !cluster.empty() && writer.epoch < cluster_epoch &&
         cluster_of((writer.thread_plus_one - 1) / threads_per_block) == cluster_of(linear_block());
}

// A flag in global memory that is up, and what the one that raised it had seen.
struct Flag {
  uint64_t block;
  Clock clock;
};
static std::unordered_map<uintptr_t, Flag> flags;
// What each warp of the present block has learnt from flags, by the block that raised them.
static std::vector<std::unordered_map<uint64_t, Clock>> learnt_from_flags;

// Whether a flag of the writer's block, raised after the write, has been awaited by this warp.
static bool ordered_by_flag(const GlobalWriter& writer) {
  if (learnt_from_flags.empty()) return false;
  uint32_t thread = (writer.thread_plus_one - 1) % threads_per_block;
  const auto& learnt = learnt_from_flags[current->thread / kWarp];
  auto from = learnt.find((writer.thread_plus_one - 1) / threads_per_block);
  return from != learnt.end() && from->second[thread] >= writer.time;
}

static void check_global_words(uint32_t slot, int64_t offset, uint32_t bytes, uint32_t pc,
                               uint32_t kind) {
  Buffer& buffer = arena.buffers[slot];
  bool writes = kind == kStore || kind == kAtomic;
  if (!buffer.writers) {
    if (!writes) return;
    buffer.writers = (GlobalWriter*)calloc(buffer.bytes / 4 + 1, sizeof(GlobalWriter));
    if (!buffer.writers) return;
  }
  Lane& lane = *current;
  uint32_t first = (uint32_t)(linear_block() * threads_per_block) + 1;  // of this block's threads
  uint32_t time = clocks.on ? clocks.time(lane.thread) : 0;
  for (int64_t word = offset >> 2; word <= (offset + bytes - 1) >> 2; word++) {
    GlobalWriter& writer = buffer.writers[word];
    if (UNLIKELY(writer.thread_plus_one && writer.thread_plus_one != first + lane.thread &&
                 !(kind == kAtomic && writer.atomic))) {
      bool same_block = writer.thread_plus_one - first < threads_per_block;
      bool ordered =
          same_block ? writer.epoch != epoch ||
                           (clocks.on && clocks.knows(lane.thread, writer.thread_plus_one - first,
                                                      writer.time))
                     : ordered_by_cluster(writer) || ordered_by_flag(writer);
      if (!ordered)
        report(kGlobalRace, kGlobal, pc, writer.pc, (int32_t)slot, offset, bytes, lane.thread,
               same_block ? writer.thread_plus_one - first
                          : (writer.thread_plus_one - 1) % threads_per_block);
    }
    if (writes) writer = GlobalWriter{first + lane.thread, epoch, pc, kind == kAtomic, time};
  }
}

static inline void check_global(uintptr_t address, uint32_t bytes, uint32_t kind, uint32_t pc) {
  uint32_t slot = arena.slot(address);
  int64_t offset = arena.offset(address);
  if (UNLIKELY((uint64_t)offset + bytes > arena.buffers[slot].bytes || offset < 0))
    out_of_bounds(address, bytes, pc, slot, offset);
  else if (UNLIKELY(kind == kStore || kind == kAtomic || arena.buffers[slot].writers))
    check_global_words(slot, offset, bytes, pc, kind);
  if (UNLIKELY(address & (bytes - 1)) && kind != kAsyncSource)  // which may be cut short
    report(kMisaligned, kGlobal, pc, 0, (int32_t)slot, offset, bytes, current->thread, 0);
}

static inline int32_t shared_array(uint64_t offset) { return (int32_t)array_of_byte[offset] - 1; }
static int64_t offset_in_array(uint64_t offset) {
  int32_t array = shared_array(offset);
  return (int64_t)offset - (array < 0 ? 0 : (int64_t)shared_arrays[(size_t)array].offset);
}
static COLD void report_shared(EmulatorFindingKind kind, uint64_t offset, uint32_t bytes, uint32_t pc,
                               uint32_t other_pc, uint32_t other_thread) {
  report(kind, kShared, pc, other_pc, shared_array(offset), offset_in_array(offset), bytes,
         current->thread, other_thread);
}

static COLD void shared_out_of_bounds(int64_t offset, uint32_t bytes, uint32_t pc) {
  // an overrun belongs to the array that begins last before it, a negative offset to the first
  int32_t nearest = shared_arrays.empty() ? -1 : 0;
  for (size_t i = 0; i < shared_arrays.size(); i++)
    if ((int64_t)shared_arrays[i].offset <= offset) nearest = (int32_t)i;  // sorted by offset
  int64_t in_array = offset - (nearest < 0 ? 0 : (int64_t)shared_arrays[(size_t)nearest].offset);
  report(kOutOfBounds, kShared, pc, 0, nearest, in_array, bytes, current->thread, 0);
}

// An index that leaves the shared window meets memory that is not the kernel's: the launch ends there.
constexpr uint64_t kNearShared = 1u << 20;

static COLD void elsewhere(uintptr_t address, uint32_t bytes, uint32_t pc) {
  if (module.owns(address)) return;  // constants, and the library's own tables
  int64_t offset = (int64_t)(address - (uintptr_t)module.shared);
  if (offset > -(int64_t)kNearShared && offset < (int64_t)(module.shared_bytes + kNearShared))
    shared_out_of_bounds(offset, bytes, pc);
  else
    report(kWildAddress, kOtherSpace, pc, 0, -1, (int64_t)address, bytes, current->thread, 0);
  abandon_launch();
}

static inline bool in_array(uint64_t offset, uint32_t bytes) {
  return array_of_byte[offset] && offset + bytes <= module.shared_bytes &&
         array_of_byte[offset] == array_of_byte[offset + bytes - 1];
}

// Whether the last write of a word lies in this epoch and nothing orders it before the current thread.
template <bool kByClocks>
static inline bool write_unordered(uint64_t i) {
  const ShadowWord& word = shadow[i];
  if (word.write_epoch != epoch) return false;
  if (kByClocks) return !clocks.knows_write(current->thread, i);
  return unordered(word.writer, current->thread, warp_epoch[current->warp]);
}

template <bool kByClocks>
static inline void check_shared_read(uint64_t i, uint64_t offset, uint32_t bytes, uint32_t pc) {
  ShadowWord& word = shadow[i];
  uint32_t thread = current->thread;
  if (UNLIKELY(word.write_epoch < first_epoch_of_block))
    report_shared(kUninitialisedRead, offset, bytes, pc, 0, 0);
  else if (UNLIKELY(write_unordered<kByClocks>(i)))
    report_shared(kRaceReadWrite, offset, bytes, pc, word.write_pc, word.writer.thread);
  if (kByClocks) {
    if (word.read_epoch != epoch) clocks.forget_reads(i);
    word.read_epoch = epoch;
    word.read_pc = pc;
    clocks.note_read(i, thread, clocks.time(thread));
    return;
  }
  Reader reader{(uint16_t)thread, warp_epoch[current->warp]};
  if (word.read_epoch != epoch) {
    word.read_epoch = epoch;
    word.reader = word.other_reader = reader;
    word.read_pc = pc;
  } else if (word.reader.thread == thread) {
    word.reader = reader;
  } else if (word.other_reader.thread / 32 == word.reader.thread / 32) {
    word.other_reader = reader;
  }
}

// A write conflicts with an earlier write or read of the same interval.
template <bool kByClocks>
static inline void check_shared_conflicts(uint64_t i, uint64_t offset, uint32_t bytes, uint32_t pc) {
  ShadowWord& word = shadow[i];
  if (UNLIKELY(write_unordered<kByClocks>(i)))
    report_shared(kRaceWriteWrite, offset, bytes, pc, word.write_pc, word.writer.thread);
  if (word.read_epoch == epoch) {
    if (kByClocks) {
      int64_t reader = clocks.unknown_reader(i, current->thread);
      if (UNLIKELY(reader >= 0))
        report_shared(kRaceReadWrite, offset, bytes, pc, word.read_pc, (uint32_t)reader);
      word.read_epoch = 0;  // what is ordered before this write need not be compared again
      return;
    }
    uint32_t thread = current->thread;
    uint16_t now = warp_epoch[current->warp];
    if (UNLIKELY(unordered(word.reader, thread, now)))
      report_shared(kRaceReadWrite, offset, bytes, pc, word.read_pc, word.reader.thread);
    else if (UNLIKELY(unordered(word.other_reader, thread, now)))
      report_shared(kRaceReadWrite, offset, bytes, pc, word.read_pc, word.other_reader.thread);
  }
}
template <bool kByClocks>
static inline void note_shared_write(uint64_t i, uint32_t pc) {
  ShadowWord& word = shadow[i];
  word.write_epoch = epoch;
  word.writer = Reader{(uint16_t)current->thread, warp_epoch[current->warp]};
  word.write_pc = pc;
  if (kByClocks) clocks.note_write(i, current->thread, clocks.time(current->thread));
}

static inline bool reads(uint32_t kind) { return kind == kLoad || kind == kMatrixLoad; }

// A block of the cluster that reads this block's memory must have come to a cluster barrier before it
// is written again.
static COLD void check_remote_readers(uint64_t offset, uint32_t bytes, uint32_t pc) {
  for (uint64_t i = offset >> 2; i <= (offset + bytes - 1) >> 2; i++)
    if (remote_reads[i].epoch == cluster_epoch) {
      report_shared(kClusterRace, offset, bytes, pc, remote_reads[i].pc, remote_reads[i].thread);
      return;
    }
}

template <bool kByClocks>
static inline void check_shared_words(uint64_t offset, uint32_t bytes, uint32_t kind, uint32_t pc) {
  for (uint64_t i = offset >> 2; i <= (offset + bytes - 1) >> 2; i++) {
    ShadowWord& word = shadow[i];
    if (UNLIKELY(word.in_flight))
      report_shared(kInFlight, offset, bytes, pc, word.write_pc, word.writer.thread);
    if (reads(kind)) {
      check_shared_read<kByClocks>(i, offset, bytes, pc);
    } else {
      check_shared_conflicts<kByClocks>(i, offset, bytes, pc);
      if (kind == kAsyncDestination) {
        // until it lands: the word belongs to this copy
        word.in_flight = kCpAsync;
        word.write_pc = pc;
        word.writer.thread = (uint16_t)current->thread;
      } else {
        note_shared_write<kByClocks>(i, pc);
      }
    }
  }
}

static inline void check_shared(uint64_t offset, uint32_t bytes, uint32_t kind, uint32_t pc) {
  if (UNLIKELY(!in_array(offset, bytes))) {
    shared_out_of_bounds((int64_t)offset, bytes, pc);
    return;
  }
  if (UNLIKELY(offset & (bytes - 1))) report_shared(kMisaligned, offset, bytes, pc, 0, 0);
  if (!reads(kind) && UNLIKELY(!remote_reads.empty())) check_remote_readers(offset, bytes, pc);
  if (UNLIKELY(clocks.on))
    check_shared_words<true>(offset, bytes, kind, pc);
  else
    check_shared_words<false>(offset, bytes, kind, pc);
}

// A copy of cp.async has landed; others may read it after the next synchronisation.
template <bool kByClocks>
static inline void land_in_shared(uint64_t offset, uint32_t bytes, uint32_t pc) {
  for (uint64_t i = offset >> 2; i <= (offset + bytes - 1) >> 2; i++) {
    shadow[i].in_flight = 0;
    check_shared_conflicts<kByClocks>(i, offset, bytes, pc);
    note_shared_write<kByClocks>(i, pc);
  }
}

// Registers of a sum must be left alone until a wait has ended the products that write to it.
static COLD void check_sums(uintptr_t address, uint32_t bytes, uint32_t pc) {
  const Lane& lane = *current;
  for (const PendingSum& sum : lanes[lane.warp * kWarp].products.sums)
    if (launch.check && sum.products && sum.holds(lane.thread % kWarp, address))
      report(kSumUnderWay, kOtherSpace, pc, sum.pc, -1, 0, bytes, lane.thread, 0);
}

// ---- the hook: every load and store of the kernel -----------------------------------------------

static inline __attribute__((always_inline)) void access(uintptr_t address, uint32_t bytes,
                                                         uint32_t kind, uintptr_t return_address,
                                                         uint16_t destination = 0) {
  if (stacks.contains(address)) {  // registers and local memory
    if (UNLIKELY(current->sums_under_way))
      check_sums(address, bytes, (uint32_t)(return_address - module.base));
    return;
  }
  uint32_t pc = (uint32_t)(return_address - module.base);
  if (LIKELY(arena.contains(address))) {
    if (launch.check) check_global(address, bytes, kind, pc);
  } else if (LIKELY(address - (uintptr_t)module.shared < module.shared_bytes)) {
    if (UNLIKELY(array_of_byte[address - (uintptr_t)module.shared] == kCompilers)) return;
    if (launch.check) check_shared(address - (uintptr_t)module.shared, bytes, kind, pc);
  } else {
    elsewhere(address, bytes, pc);
    return;
  }
  Lane& lane = *current;
  if (launch.trace)
    *lane.records.next++ = Access{address, pc, (uint8_t)bytes, (uint8_t)kind, destination};
  if (UNLIKELY(--lane.budget == 0)) pause(pc);
}

static void access_range(uintptr_t address, size_t bytes, uint32_t kind, uintptr_t return_address) {
  while (bytes) {
    uint32_t piece = 16;
    while (piece > 1 && (address % piece || piece > bytes)) piece /= 2;
    access(address, piece, kind, return_address);
    address += piece;
    bytes -= piece;
  }
}

}  // namespace emulator

using namespace emulator;

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
#define SIZED_HOOKS(BYTES)                                                                       \
  void __tsan_read##BYTES(void* a) { access((uintptr_t)a, BYTES, kLoad, RETURN_ADDRESS); }       \
  void __tsan_write##BYTES(void* a) { access((uintptr_t)a, BYTES, kStore, RETURN_ADDRESS); }     \
  void __tsan_unaligned_read##BYTES(void* a) {                                                   \
    access((uintptr_t)a, BYTES, kLoad, RETURN_ADDRESS);                                          \
  }                                                                                              \
  void __tsan_unaligned_write##BYTES(void* a) {                                                  \
    access((uintptr_t)a, BYTES, kStore, RETURN_ADDRESS);                                         \
  }                                                                                              \
  void __tsan_read_write##BYTES(void* a) {                                                       \
    access((uintptr_t)a, BYTES, kLoad, RETURN_ADDRESS);                                          \
    access((uintptr_t)a, BYTES, kStore, RETURN_ADDRESS);                                         \
  }                                                                                              \
  void __tsan_unaligned_read_write##BYTES(void* a) {                                             \
    access((uintptr_t)a, BYTES, kLoad, RETURN_ADDRESS);                                          \
    access((uintptr_t)a, BYTES, kStore, RETURN_ADDRESS);                                         \
  }
SIZED_HOOKS(1)
SIZED_HOOKS(2)
SIZED_HOOKS(4)
SIZED_HOOKS(8)
SIZED_HOOKS(16)
#undef SIZED_HOOKS
void __tsan_read_range(void* a, size_t n) { access_range((uintptr_t)a, n, kLoad, RETURN_ADDRESS); }
void __tsan_write_range(void* a, size_t n) { access_range((uintptr_t)a, n, kStore, RETURN_ADDRESS); }
void* __tsan_memcpy(void* to, const void* from, size_t n) {
  access_range((uintptr_t)from, n, kLoad, RETURN_ADDRESS);
  access_range((uintptr_t)to, n, kStore, RETURN_ADDRESS);
  return memcpy(to, from, n);
}
void* __tsan_memmove(void* to, const void* from, size_t n) {
  access_range((uintptr_t)from, n, kLoad, RETURN_ADDRESS);
  access_range((uintptr_t)to, n, kStore, RETURN_ADDRESS);
  return memmove(to, from, n);
}
void* __tsan_memset(void* to, int value, size_t n) {
  access_range((uintptr_t)to, n, kStore, RETURN_ADDRESS);
  return memset(to, value, n);
}
}

// The compiler must not use what the type says of the alignment: a kernel may be wrong about it.
template <size_t Bytes>
static inline __attribute__((always_inline)) void copy_vector(void* to, const void* from,
                                                              uintptr_t return_address) {
  asm("" : "+r"(to), "+r"(from));
  access((uintptr_t)from, Bytes, kLoad, return_address);
  access((uintptr_t)to, Bytes, kStore, return_address);
  memmove(to, from, Bytes);
}

// A vector copy is one load and one store of the full width, at its call site.
#define VECTOR_COPIES(T)                                                                     \
  T::T(const T& from) noexcept { copy_vector<sizeof(T)>(this, &from, RETURN_ADDRESS); }      \
  T& T::operator=(const T& from) noexcept {                                                  \
    copy_vector<sizeof(T)>(this, &from, RETURN_ADDRESS);                                     \
    return *this;                                                                            \
  }
VECTOR_COPIES(float2)
VECTOR_COPIES(float4)
VECTOR_COPIES(int2)
VECTOR_COPIES(int4)
VECTOR_COPIES(uint2)
VECTOR_COPIES(uint4)
#undef VECTOR_COPIES

// ---- what a kernel calls ------------------------------------------------------------------------

static void wait_for_warp(uint32_t mask, uint64_t value, uintptr_t return_address) {
  Lane& lane = *current;
  lane.state = kAtWarpOperation;
  lane.mask = mask;
  lane.value = value;
  lane.collective = nullptr;
  lane.waiting_pc = (uint32_t)(return_address - module.base);
  yield();
}

// All lanes come, and the scheduler executes the instruction for them (run_collective).
static void execute_together(Collective& collective, uintptr_t return_address) {
  collective.pc = (uint32_t)(return_address - module.base);
  Lane& lane = *current;
  lane.state = kAtWarpOperation;
  lane.mask = 0xffffffffu;
  lane.collective = &collective;
  lane.waiting_pc = collective.pc;
  yield();
}

static void wait_at_barrier(uint64_t value, uint32_t pc, uint32_t line) {
  Lane& lane = *current;
  lane.state = kAtBarrier;
  lane.value = value;
  lane.waiting_pc = pc;
  lane.waiting_line = line;
  yield();
}

extern "C" {
uint3 emulated_thread_idx() { return current->thread_idx; }
uint3 emulated_block_idx() { return block_idx; }
uint3 emulated_block_dim() { return uint3{launch.block[0], launch.block[1], launch.block[2]}; }
uint3 emulated_grid_dim() { return uint3{launch.grid[0], launch.grid[1], launch.grid[2]}; }

void emulated_syncthreads(unsigned line) {
  wait_at_barrier(0, (uint32_t)(RETURN_ADDRESS - module.base), line);
}

int emulated_syncthreads_reduce(int predicate, int operation, unsigned line) {
  uint32_t pc = (uint32_t)(RETURN_ADDRESS - module.base);
  wait_at_barrier((uint64_t)predicate, pc, line);
  int count = 0, live = 0;
  for (uint32_t i = 0; i < threads_per_block; i++)
    if (lanes[i].state != kExited) {
      live++;
      count += (int)lanes[i].value;
    }
  wait_at_barrier((uint64_t)predicate, pc, line);  // nobody may change its value before all have counted
  return operation == 0 ? count > 0 : operation == 1 ? count == live : count;
}

void emulated_syncwarp(unsigned mask) { wait_for_warp(mask, 0, RETURN_ADDRESS); }

uint64_t emulated_shuffle(unsigned mask, uint64_t value, int operand, int width, int mode) {
  wait_for_warp(mask, value, RETURN_ADDRESS);
  Lane& lane = *current;
  int self = (int)(lane.thread % kWarp), segment = self & ~(width - 1), inner = self & (width - 1);
  int source = self;
  switch (mode) {
    case emulated::kShuffleIndex: source = segment + (operand & (width - 1)); break;
    case emulated::kShuffleUp: source = inner < operand ? self : self - operand; break;
    case emulated::kShuffleDown: source = inner + operand >= width ? self : self + operand; break;
    default: source = (inner ^ operand) >= width ? self : self ^ operand;
  }
  if (!(lane.exchanged_mask >> source & 1)) {
    report(kShuffleSource, kOtherSpace, lane.waiting_pc, 0, -1, 0, 0, lane.thread,
           lane.warp * kWarp + (uint32_t)source);
    return 0x7fc0dead7fc0deadull;
  }
  return lane.exchanged[source];
}

unsigned emulated_ballot(unsigned mask, int predicate) {
  wait_for_warp(mask, (uint64_t)predicate, RETURN_ADDRESS);
  Lane& lane = *current;
  unsigned result = 0;
  for (uint32_t i = 0; i < kWarp; i++)
    if ((lane.exchanged_mask >> i & 1) && lane.exchanged[i]) result |= 1u << i;
  return result;
}

unsigned emulated_activemask() {
  unsigned result = 0;
  uint32_t first = current->warp * kWarp;
  for (uint32_t i = 0; i < kWarp && first + i < threads_per_block; i++)
    if (lanes[first + i].state != kExited) result |= 1u << i;
  return result;
}

void emulated_cp_async(void* shared, const void* global, unsigned bytes, unsigned source_bytes) {
  uintptr_t return_address = RETURN_ADDRESS;
  uint32_t pc = (uint32_t)(return_address - module.base);
  if (source_bytes) {
    access((uintptr_t)global, source_bytes, kAsyncSource, return_address,
           (uint16_t)((uint64_t)((char*)shared - module.shared) >> 4));
    if (launch.check && (uintptr_t)global % bytes)
      report(kMisaligned, kGlobal, pc, 0, (int32_t)arena.slot((uintptr_t)global),
             arena.offset((uintptr_t)global), bytes, current->thread, 0);
  }
  access((uintptr_t)shared, bytes, kAsyncDestination, return_address);
  current->open_group.push_back(
      AsyncCopy{(char*)shared, (const char*)global, bytes, source_bytes, pc});
}

void emulated_cp_async_commit() {
  Lane& lane = *current;
  lane.groups.push_back(std::move(lane.open_group));
  lane.open_group.clear();
}

void emulated_cp_async_wait(unsigned pending_groups) {
  Lane& lane = *current;
  size_t finished = lane.groups.size() > pending_groups ? lane.groups.size() - pending_groups : 0;
  for (size_t i = 0; i < finished; i++)
    for (const AsyncCopy& copy : lane.groups[i]) {
      memcpy(copy.shared, copy.global, copy.source_bytes);
      memset(copy.shared + copy.source_bytes, 0, copy.bytes - copy.source_bytes);
      uint64_t offset = (uint64_t)(copy.shared - module.shared);
      if (!launch.check || offset >= module.shared_bytes || !in_array(offset, copy.bytes)) continue;
      if (clocks.on)
        land_in_shared<true>(offset, copy.bytes, copy.pc);
      else
        land_in_shared<false>(offset, copy.bytes, copy.pc);
    }
  lane.groups.erase(lane.groups.begin(), lane.groups.begin() + (long)finished);
}

float emulated_atomic_add_float(float* address, float value) {
  access((uintptr_t)address, 4, kAtomic, RETURN_ADDRESS);
  float old = *address;
  *address = old + value;
  return old;
}
int emulated_atomic_add_int(int* address, int value) {
  access((uintptr_t)address, 4, kAtomic, RETURN_ADDRESS);
  int old = *address;
  *address = (int)((unsigned)old + (unsigned)value);
  return old;
}
void emulated_trap() {
  report(kTrap, kOtherSpace, (uint32_t)(RETURN_ADDRESS - module.base), 0, -1, 0, 0, current->thread,
         0);
  abandon_launch();
}
}

// ---- mbarriers ----------------------------------------------------------------------------------

namespace emulator {

// Offset of a barrier in the shared window; the launch ends where there can be none.
static uint64_t barrier_offset(const void* barrier, uint32_t pc) {
  uint64_t offset = (uint64_t)((const char*)barrier - module.shared);
  if (offset < module.shared_bytes && in_array(offset, 8)) return offset;
  if (offset < module.shared_bytes)
    shared_out_of_bounds((int64_t)offset, 8, pc);
  else
    report(kWildAddress, kOtherSpace, pc, 0, -1, (int64_t)(uintptr_t)barrier, 8, current->thread, 0);
  abandon_launch();
}

static uint32_t initialised_barrier(const void* barrier, uint32_t pc) {
  uint64_t offset = barrier_offset(barrier, pc);
  for (uint32_t i = 0; i < barriers.size(); i++)
    if (barriers[i].offset == offset) {
      if (launch.check) check_shared(offset, 8, kLoad, pc);
      return i;
    }
  report_shared(kUninitialisedBarrier, offset, 8, pc, 0, 0);
  abandon_launch();
}

// What came before in this epoch gets the stamps that it would have had.
static void start_clocks() {
  clocks.start(threads_per_block, shadow.size(), warp_epoch);
  for (uint64_t i = 0; i < shadow.size(); i++) {
    const ShadowWord& word = shadow[i];
    clocks.note_write(i, word.writer.thread,
                      word.write_epoch == epoch ? Clocks::stamp_of(word.writer.warp_epoch)
                                                : Clocks::kBeforeClocks);
    if (word.read_epoch != epoch) continue;
    clocks.forget_reads(i);
    for (const Reader& reader : {word.reader, word.other_reader})
      clocks.note_read(i, reader.thread, Clocks::stamp_of(reader.warp_epoch));
  }
}

static void deliver(const TileCopy& copy, uint32_t writer, uint32_t time) {
  if (!copy.lands) return;
  uint64_t to = copy.offset;
  size_t row_bytes = copy.map.box_columns * sizeof(float);
  char box_row[256 * sizeof(float)];  // the longest there is
  for (uint32_t row = 0; row < copy.map.box_rows; row++) {
    InsideColumns inside = inside_columns(copy, row);
    memset(box_row, 0, row_bytes);
    if (inside.first < inside.last)
      memcpy(box_row + inside.first * sizeof(float), global_element(copy, row, inside.first),
             (size_t)(inside.last - inside.first) * sizeof(float));
    for (size_t chunk = 0; chunk < row_bytes; chunk += 16, to += 16)
      memcpy(module.shared + swizzled(to, copy.map.swizzle), box_row + chunk, 16);
  }
  if (!launch.check) return;
  for (uint64_t i = copy.offset >> 2; i < (copy.offset + copy.bytes()) >> 2; i++) {
    shadow[i].in_flight = 0;
    shadow[i].write_epoch = epoch;
    clocks.note_write(i, writer, time);
  }
}

static void complete_phase(uint32_t index) {
  Barrier& barrier = barriers[index];
  barrier.completions++;
  uint32_t writer = clocks.on ? clocks.barrier_writer(index) : 0;
  for (const TileCopy& copy : barrier.copies) deliver(copy, writer, barrier.completions);
  if (clocks.on) {
    if (!barrier.copies.empty())
      barrier.published[writer] = std::max(barrier.published[writer], barrier.completions);
    barrier.completed = barrier.published;
  }
  barrier.copies.clear();
  barrier.expected = barrier.queued = 0;
  barrier.pending = barrier.arrivals;
  barrier.phase++;
}

// After an arrival or a new copy: completes the phase if it waits for nothing more.
static void settle(uint32_t index, uint32_t pc) {
  Barrier& barrier = barriers[index];
  if (barrier.pending) return;
  if (barrier.queued > barrier.expected) {
    report_shared(kTransactionCount, barrier.offset, (uint32_t)(barrier.queued - barrier.expected),
                  barrier.copies.empty() ? pc : barrier.copies.back().pc, 0, 0);
    barrier.expected = barrier.queued;
  }
  if (!barrier.expected) complete_phase(index);
}

static uint32_t distinct_sectors(const TileCopy& copy) {
  uint32_t count = 0;
  uint64_t last = 0;  // rows follow each other in memory
  for (uint32_t row = 0; row < copy.map.box_rows; row++) {
    InsideColumns inside = inside_columns(copy, row);
    if (inside.first == inside.last) continue;
    uint64_t first = (uint64_t)global_element(copy, row, inside.first) >> 5,
             end = ((uint64_t)global_element(copy, row, inside.last) - 1) >> 5;
    if (first == last) first++;
    if (first <= end) count += (uint32_t)(end - first + 1);
    last = end;
  }
  return count;
}

static void count_copy(const TileCopy& copy) {
  uint64_t bytes = 0;
  for (uint32_t row = 0; row < copy.map.box_rows; row++) {
    InsideColumns inside = inside_columns(copy, row);
    bytes += (uint64_t)(inside.last - inside.first) * sizeof(float);
  }
  uint32_t sectors = distinct_sectors(copy);
  totals.tma_load_bytes += counters.weight * bytes;
  totals.tma_load_sectors += counters.weight * sectors;
  counters.block.requests++;
  counters.block.sectors += sectors;
  counters.block.unique_bytes += bytes;
}

// The copy writes at some time between now and the completion of its phase: what the destination was
// used for must be over now.
static void check_copy(const TileCopy& copy) {
  for (uint32_t row = 0; row < copy.map.box_rows; row++) {
    InsideColumns inside = inside_columns(copy, row);
    if (inside.first == inside.last) continue;
    uintptr_t first = (uintptr_t)global_element(copy, row, inside.first);
    if (arena.buffers[arena.slot(first)].writers)
      check_global_words(arena.slot(first), arena.offset(first),
                         (uint32_t)(inside.last - inside.first) * 4, copy.pc, kLoad);
  }
  if (!copy.lands) return;
  if (!remote_reads.empty()) check_remote_readers(copy.offset, copy.bytes(), copy.pc);
  for (uint64_t i = copy.offset >> 2; i < (copy.offset + copy.bytes()) >> 2; i++) {
    if (shadow[i].in_flight)
      report_shared(kInFlight, 4 * i, 4, copy.pc, shadow[i].write_pc, shadow[i].writer.thread);
    check_shared_conflicts<true>(i, 4 * i, 4, copy.pc);
    shadow[i].in_flight = kTma;
    shadow[i].write_pc = copy.pc;
    shadow[i].writer.thread = (uint16_t)copy.thread;
  }
}

}  // namespace emulator

extern "C" {
void emulated_mbarrier_init(void* barrier, unsigned arrivals) {
  uint32_t pc = (uint32_t)(RETURN_ADDRESS - module.base);
  uint64_t offset = barrier_offset(barrier, pc);
  if (launch.check) {
    if (!clocks.on) start_clocks();
    check_shared(offset, 8, kStore, pc);
  }
  Barrier fresh(offset, arrivals);
  if (clocks.on) fresh.published = fresh.completed = clocks.nothing();
  for (Barrier& known : barriers)
    if (known.offset == offset) {
      fresh.completions = known.completions;  // the times of its copies must not repeat
      known = std::move(fresh);
      return;
    }
  barriers.push_back(std::move(fresh));
}

void emulated_mbarrier_arrive(void* address, unsigned expected_bytes) {
  uint32_t pc = (uint32_t)(RETURN_ADDRESS - module.base), index = initialised_barrier(address, pc);
  Barrier& barrier = barriers[index];
  if (!barrier.pending) {
    report_shared(kOverArrival, barrier.offset, 8, pc, 0, 0);
    return;
  }
  barrier.expected += expected_bytes;
  if (clocks.on) clocks.publish(current->thread, barrier.published);
  barrier.pending--;
  settle(index, pc);
}

// A warp waits as a whole: its lanes go on together, as they do where they try in a loop.
void emulated_mbarrier_wait(void* address, unsigned parity) {
  Lane& lane = *current;
  lane.waiting_pc = (uint32_t)(RETURN_ADDRESS - module.base);
  lane.barrier = initialised_barrier(address, lane.waiting_pc);
  lane.parity = parity;
  lane.state = kAtMbarrier;
  yield();
}

void emulated_tma_load_2d(void* shared, const void* map, int column, int row, void* address) {
  uint32_t pc = (uint32_t)(RETURN_ADDRESS - module.base), index = initialised_barrier(address, pc);
  TileCopy copy{};
  memcpy(&copy.map, map, sizeof copy.map);
  if (copy.map.mark != kTensorMapMark) {
    report(kWildAddress, kOtherSpace, pc, 0, -1, (int64_t)(uintptr_t)map, sizeof copy.map,
           current->thread, 0);
    abandon_launch();
  }
  copy.offset = (uint64_t)((char*)shared - module.shared);
  copy.column = column;
  copy.row = row;
  copy.thread = current->thread;
  copy.pc = pc;
  copy.lands = copy.offset < module.shared_bytes && in_array(copy.offset, copy.bytes());
  if (!copy.lands)
    shared_out_of_bounds((int64_t)copy.offset, copy.bytes(), pc);
  else if ((uintptr_t)shared % copy.alignment()) {
    if (launch.check) report_shared(kMisalignedTile, copy.offset, copy.alignment(), pc, 0, 0);
    copy.lands = !copy.map.swizzle;
  }
  if (launch.trace) count_copy(copy);
  if (launch.check) check_copy(copy);
  barriers[index].queued += copy.bytes();
  barriers[index].copies.push_back(copy);
  settle(index, pc);
}
}

// ---- clusters -----------------------------------------------------------------------------------

namespace emulator {

static void check_peer_words(const Block& peer, uint64_t offset, uint32_t pc) {
  for (uint64_t i = offset >> 2; i < (offset + 16) >> 2; i++) {
    const ShadowWord& word = peer.shadow[i];
    if (word.in_flight)
      report_shared(kInFlight, offset, 16, pc, word.write_pc, word.writer.thread);
    else if (word.write_epoch < peer.first_epoch)
      report_shared(kUninitialisedRead, offset, 16, pc, 0, 0);
    else if (word.write_epoch >= cluster_epoch)
      report_shared(kClusterRace, offset, 16, pc, word.write_pc, word.writer.thread);
  }
}

}  // namespace emulator

extern "C" {
unsigned emulated_cluster_rank() { return rank; }
unsigned emulated_cluster_size() { return cluster.empty() ? 1 : (unsigned)cluster.size(); }

void emulated_cluster_sync() {
  current->waiting_pc = (uint32_t)(RETURN_ADDRESS - module.base);
  current->state = kAtClusterBarrier;
  yield();
}

void emulated_cluster_load(void* value, const void* shared, unsigned peer_rank) {
  uint32_t pc = (uint32_t)(RETURN_ADDRESS - module.base);
  uint64_t offset = (uint64_t)((const char*)shared - module.shared);
  if (offset >= module.shared_bytes) {
    report(kWildAddress, kOtherSpace, pc, 0, -1, (int64_t)(uintptr_t)shared, 16, current->thread, 0);
    abandon_launch();
  }
  if (!in_array(offset, 16)) {
    shared_out_of_bounds((int64_t)offset, 16, pc);
    abandon_launch();
  }
  if (peer_rank >= emulated_cluster_size()) {
    report_shared(kWildAddress, offset, peer_rank, pc, 0, 0);
    abandon_launch();
  }
  if (launch.trace) totals.cluster_load_bytes += 16 * counters.weight;
  if (peer_rank == rank) {
    if (launch.check) check_shared(offset, 16, kLoad, pc);
    memcpy(value, shared, 16);
    return;
  }
  Block& peer = cluster[peer_rank];
  memcpy(value, peer.window.data() + offset, 16);
  if (!launch.check) return;
  if (offset % 16) report_shared(kMisaligned, offset, 16, pc, 0, 0);
  check_peer_words(peer, offset, pc);
  for (uint64_t i = offset >> 2; i < (offset + 16) >> 2; i++)
    peer.remote_reads[i] = RemoteRead{cluster_epoch, pc, current->thread};
  for (const PeerRead& known : peer_reads)
    if (known.pc == pc) return;
  peer_reads.push_back(PeerRead{pc, current->thread, (int64_t)offset, block_idx});
}
}

// ---- flags --------------------------------------------------------------------------------------

namespace emulator {

// The flag's place in its buffer; the launch ends where there is none.
static void check_flag(const unsigned* flag, uint32_t pc) {
  uintptr_t address = (uintptr_t)flag;
  if (arena.contains(address)) {
    uint32_t slot = arena.slot(address);
    int64_t offset = arena.offset(address);
    if (offset >= 0 && (uint64_t)offset + sizeof *flag <= arena.buffers[slot].bytes) return;
    report(kOutOfBounds, kGlobal, pc, 0, (int32_t)slot, offset, sizeof *flag, current->thread, 0);
  } else {
    report(kWildAddress, kOtherSpace, pc, 0, -1, (int64_t)address, sizeof *flag, current->thread, 0);
  }
  abandon_launch();
}

}  // namespace emulator

extern "C" {
void emulated_flag_raise(unsigned* flag) {
  check_flag(flag, (uint32_t)(RETURN_ADDRESS - module.base));
  if (launch.check) {
    if (!clocks.on) start_clocks();
    Flag raised{linear_block(), clocks.nothing()};
    clocks.publish(current->thread, raised.clock);
    flags[(uintptr_t)flag] = raised;
  }
  *flag = 1;
}

// Blocks run one after the other: a flag that is not up now will never be.
void emulated_flag_await(unsigned* flag) {
  uint32_t pc = (uint32_t)(RETURN_ADDRESS - module.base);
  check_flag(flag, pc);
  if (*flag == 0) {
    report(kDeadlock, kGlobal, pc, 0, (int32_t)arena.slot((uintptr_t)flag),
           arena.offset((uintptr_t)flag), sizeof *flag, current->thread, 0);
    abandon_launch();
  }
  *flag = 0;
  auto raised = flags.find((uintptr_t)flag);
  if (raised == flags.end()) return;
  learnt_from_flags.resize((threads_per_block + kWarp - 1) / kWarp);
  Clock& known = learnt_from_flags[current->thread / kWarp][raised->second.block];
  Clocks::join(known, raised->second.clock);
  flags.erase(raised);
}
}

// ---- tensor cores -------------------------------------------------------------------------------

namespace emulator {

constexpr uint32_t kWarpgroup = 4 * kWarp;

static Multiplication multiplication;

static void count_multiplication(uint64_t& instructions, uint32_t columns, uint32_t depth) {
  if (!launch.trace) return;
  instructions += counters.weight;
  totals.tensor_core_flops += counters.weight * 2 * kRows * columns * depth;
  counters.block.requests++;
}

static void multiply_fragments(Lane* warp) {
  const Collective& lead = *warp[0].collective;
  uint32_t depth = lead.half ? 16 : 8;
  for (uint32_t lane = 0; lane < kWarp; lane++) {
    const Collective& own = *warp[lane].collective;
    multiplication.set_a(lane, own.a, lead.half);
    multiplication.set_b(lane, own.b, lead.half);
    multiplication.set_sum(lane, own.sum, 4);
  }
  multiplication.run(depth, 8, true);
  for (uint32_t lane = 0; lane < kWarp; lane++)
    multiplication.get_sum(lane, warp[lane].collective->sum, 4);
  count_multiplication(totals.mma_instructions, 8, depth);
}

static void load_matrices(Lane* warp) {
  for (uint32_t lane = 0; lane < kWarp; lane++) {
    const Collective& own = *warp[lane].collective;
    uint32_t group = lane / 4, inner = lane % 4;
    for (uint32_t i = 0; i < 4; i++) {
      const Lane* rows = warp + 8 * i;
      if (!own.a_transposed) {
        memcpy(&own.matrices[i], rows[group].collective->row + 4 * inner, 4);
        continue;
      }
      uint16_t pair[2];
      for (uint32_t part = 0; part < 2; part++)
        memcpy(&pair[part], rows[2 * inner + part].collective->row + 2 * group, 2);
      memcpy(&own.matrices[i], pair, 4);
    }
  }
}

// The four warps of a warpgroup execute the same products in the same order. Returns whether this one
// is in step.
static bool check_warpgroup(uint32_t warp_index, Lane* warp) {
  const Collective& lead = *warp[0].collective;
  uint32_t first = warp_index * kWarp / kWarpgroup * kWarpgroup;
  warp[0].issued.push_back(lead);
  size_t index = warp[0].issued.size() - 1;
  if (first + kWarpgroup > threads_per_block) {
    report(kDivergentWarp, kOtherSpace, warp[0].waiting_pc, 0, -1, lead.line, 0, warp[0].thread,
           threads_per_block);
    return false;
  }
  for (uint32_t other = first; other < first + kWarpgroup; other += kWarp) {
    if (lanes[other].issued.size() <= index || lanes[other].issued[index].same(lead)) continue;
    report(kDivergentWarp, kOtherSpace, warp[0].waiting_pc, 0, -1, lead.line,
           lanes[other].issued[index].line, warp[0].thread, other);
    return false;
  }
  return true;
}

// Calls `word` with each word of the operands in shared memory that a warp's product reads.
template <class Word>
static void for_each_word_read(const Product& product, uint32_t warp_index, Word word) {
  auto words = [&](uint64_t offset) {
    for (uint64_t i = offset >> 2; i < (offset + 16) >> 2; i++) word(i);
  };
  if (!product.a_in_registers)
    product.a_tile.for_each_piece(warp_index % 4 * kRows, kRows, product.depth(), words);
  product.b_tile.for_each_piece(0, product.columns, product.depth(), words);
}

static void note_product_read(uint64_t i, const Product& product, uint32_t warp_index) {
  ShadowWord& word = shadow[i];
  if (word.read_epoch != epoch) clocks.forget_reads(i);
  word.read_epoch = epoch;
  word.read_pc = product.pc;
  clocks.note_product_read(i, warp_index, product.serial);
}

// What a product reads between now and its wait must be there now. All lanes of the warp must know.
static void check_product(const Product& product, uint32_t warp_index) {
  if (!clocks.on) start_clocks();
  const Clock known = clocks.common_knowledge(warp_index);
  for_each_word_read(product, warp_index, [&](uint64_t i) {
    const ShadowWord& word = shadow[i];
    if (UNLIKELY(word.in_flight))
      report_shared(kInFlight, 4 * i, 4, product.pc, word.write_pc, word.writer.thread);
    else if (UNLIKELY(word.write_epoch < first_epoch_of_block))
      report_shared(kUninitialisedRead, 4 * i, 4, product.pc, 0, 0);
    else if (UNLIKELY(word.write_epoch == epoch && !clocks.includes_write(known, i)))
      report_shared(kRaceReadWrite, 4 * i, 4, product.pc, word.write_pc, word.writer.thread);
    else if (UNLIKELY(!clocks.includes_fence(known, i)))
      report_shared(kMissingProxyFence, 4 * i, 4, product.pc, word.write_pc, word.writer.thread);
    note_product_read(i, product, warp_index);
  });
}

static bool tile_in_shared(const OperandTile& tile, uint32_t first, uint32_t lines, uint32_t depth,
                           uint32_t pc) {
  if (!tile.aligned()) {
    report_shared(kMisalignedTile, tile.start, tile.alignment(), pc, 0, 0);
    return false;
  }
  int64_t outside = -1;
  tile.for_each_piece(first, lines, depth, [&](uint64_t offset) {
    if (outside < 0 && (offset >= module.shared_bytes || !in_array(offset, 16)))
      outside = (int64_t)offset;
  });
  if (outside >= 0) shared_out_of_bounds(outside, 16, pc);
  return outside < 0;
}

// The sum that the warp names, poisoned if no product writes to it yet.
static uint32_t pending_sum(WarpProducts& products, Lane* warp, uint32_t pc) {
  const Collective& lead = *warp[0].collective;
  uint32_t place = 0, free = (uint32_t)products.sums.size();
  for (; place < products.sums.size(); place++) {
    const PendingSum& known = products.sums[place];
    if (!known.products)
      free = place;
    else if (known.registers[0] == lead.sum && known.count == lead.count)
      return place;
  }
  if (free == products.sums.size()) products.sums.emplace_back();
  PendingSum& sum = products.sums[free];
  sum.count = lead.count;
  sum.products = 0;
  sum.pc = pc;
  sum.values.resize(kWarp * lead.count);
  for (uint32_t lane = 0; lane < kWarp; lane++) {
    sum.registers[lane] = warp[lane].collective->sum;
    memcpy(&sum.values[lane * sum.count], sum.registers[lane], sum.count * sizeof(float));
    std::fill_n((uint32_t*)sum.registers[lane], sum.count, 0x7fc0deadu);
    warp[lane].sums_under_way = true;
  }
  return free;
}

static void issue_product(uint32_t warp_index, Lane* warp) {
  const Collective& lead = *warp[0].collective;
  WarpProducts& products = warp[0].products;
  Product product{};
  product.pc = warp[0].waiting_pc;
  product.half = lead.half;
  product.accumulate = lead.accumulate;
  product.columns = 2 * lead.count;
  product.serial = ++products.issued;
  product.a_in_registers = lead.a != nullptr;
  if (lead.a)
    for (uint32_t lane = 0; lane < kWarp; lane++)
      memcpy(product.a[lane], warp[lane].collective->a, sizeof product.a[lane]);
  product.a_tile = OperandTile(lead.a_tile, lead.half, lead.a_transposed);
  product.b_tile = OperandTile(lead.b_tile, lead.half, lead.b_transposed);
  uint32_t depth = product.depth(), first_row = warp_index % 4 * kRows;
  if (!check_warpgroup(warp_index, warp)) {
    aborted = true;
    return;
  }
  if (launch.check && !products.fenced)
    report(kMissingFence, kOtherSpace, product.pc, 0, -1, 0, 0, warp[0].thread, 0);
  product.readable =
      (lead.a || tile_in_shared(product.a_tile, first_row, kRows, depth, product.pc)) &&
      tile_in_shared(product.b_tile, 0, product.columns, depth, product.pc);
  if (launch.check && product.readable) check_product(product, warp_index);
  product.sum = pending_sum(products, warp, product.pc);
  products.sums[product.sum].products++;
  products.open_group.push_back(product);
  count_multiplication(totals.wgmma_instructions, product.columns, depth);
}

static float operand_in_shared(const OperandTile& tile, uint32_t line, uint32_t k) {
  const char* at = module.shared + tile.offset(line, k);
  uint32_t bits = 0;
  memcpy(&bits, at, tile.element_bytes());
  return tile.half ? float_of_half(bits) : tf32_operand(bits);
}

static void execute_product(const Product& product, uint32_t warp_index, PendingSum& sum) {
  uint32_t depth = product.depth(), first_row = warp_index % 4 * kRows;
  if (!product.readable) {
    std::fill(sum.values.begin(), sum.values.end(), float_of_bits(0x7fc0deadu));
    return;
  }
  if (product.a_in_registers)
    for (uint32_t lane = 0; lane < kWarp; lane++)
      multiplication.set_a(lane, product.a[lane], product.half);
  else
    for (uint32_t row = 0; row < kRows; row++)
      for (uint32_t k = 0; k < depth; k++)
        multiplication.a[row][k] = operand_in_shared(product.a_tile, first_row + row, k);
  for (uint32_t k = 0; k < depth; k++)
    for (uint32_t column = 0; column < product.columns; column++)
      multiplication.b[k][column] = operand_in_shared(product.b_tile, column, k);
  for (uint32_t lane = 0; lane < kWarp; lane++)
    multiplication.set_sum(lane, &sum.values[lane * sum.count], sum.count);
  multiplication.run(depth, product.columns, product.accumulate);
  for (uint32_t lane = 0; lane < kWarp; lane++)
    multiplication.get_sum(lane, &sum.values[lane * sum.count], sum.count);
}

// Products are executed here, as late as the program allows: what was overwritten too early is wrong.
static void wait_for_products(uint32_t warp_index, Lane* warp, uint32_t pending_groups) {
  WarpProducts& products = warp[0].products;
  products.fenced = false;
  size_t finished = products.groups.size() - std::min<size_t>(products.groups.size(), pending_groups);
  for (size_t i = 0; i < finished; i++)
    for (const Product& product : products.groups[i]) {
      PendingSum& sum = products.sums[product.sum];
      execute_product(product, warp_index, sum);
      if (clocks.on) clocks.learn_products(warp_index, product.serial);
      if (--sum.products) continue;
      for (uint32_t lane = 0; lane < kWarp; lane++)
        memcpy(sum.registers[lane], &sum.values[lane * sum.count], sum.count * sizeof(float));
    }
  products.groups.erase(products.groups.begin(), products.groups.begin() + (long)finished);
  bool under_way = products.under_way();
  for (uint32_t lane = 0; lane < kWarp; lane++) warp[lane].sums_under_way = under_way;
}

// A barrier of the block does not end products: their reads belong to the next interval too.
static void note_reads_under_way() {
  for (uint32_t warp = 0; warp * kWarp < threads_per_block; warp++) {
    const WarpProducts& products = lanes[warp * kWarp].products;
    auto note = [&](const std::vector<Product>& group) {
      for (const Product& product : group)
        if (product.readable)
          for_each_word_read(product, warp,
                             [&](uint64_t i) { note_product_read(i, product, warp); });
    };
    for (const std::vector<Product>& group : products.groups) note(group);
    note(products.open_group);
  }
}

// All lanes of the warp must be at the instruction; what happens else is undefined, and the launch ends.
static bool check_convergence(const Lane* warp, uint32_t group) {
  uint32_t lead = (uint32_t)__builtin_ctz(group);
  while (!warp[lead].collective) lead++;  // some lanes may be at a shuffle
  const Collective& collective = *warp[lead].collective;
  for (uint32_t lane = 0; lane < kWarp; lane++) {
    bool here = group >> lane & 1;
    const Collective* other = here ? warp[lane].collective : nullptr;
    if (other && other->same(collective)) continue;
    report(kDivergentWarp, kOtherSpace, warp[lead].waiting_pc, here ? warp[lane].waiting_pc : 0, -1,
           collective.line, other ? other->line : 0, warp[lead].thread,
           warp[lead].thread - lead + lane);
    return false;
  }
  return true;
}

static void run_collective(uint32_t warp_index, uint32_t group) {
  Lane* warp = lanes + warp_index * kWarp;
  if (!check_convergence(warp, group)) {
    aborted = true;
    return;
  }
  current = warp;
  const Collective& lead = *warp[0].collective;
  WarpProducts& products = warp[0].products;
  switch (lead.kind) {
    case Collective::kMma: multiply_fragments(warp); break;
    case Collective::kLdmatrix: load_matrices(warp); break;
    case Collective::kWgmmaFence: products.fenced = true; break;
    case Collective::kWgmma: issue_product(warp_index, warp); break;
    case Collective::kWgmmaCommit:
      products.groups.push_back(std::move(products.open_group));
      products.open_group.clear();
      break;
    case Collective::kWgmmaWait: wait_for_products(warp_index, warp, lead.count);
  }
}

}  // namespace emulator

extern "C" {
void emulated_mma(float* sum, const unsigned* a, const unsigned* b, int half, unsigned line) {
  Collective mma{};
  mma.kind = Collective::kMma;
  mma.line = line;
  mma.sum = sum;
  mma.a = a;
  mma.b = b;
  mma.half = half;
  execute_together(mma, RETURN_ADDRESS);
}

void emulated_ldmatrix(unsigned* matrices, const void* row, int transposed, unsigned line) {
  Collective load{};
  load.kind = Collective::kLdmatrix;
  load.line = line;
  load.matrices = matrices;
  load.row = static_cast<const char*>(row);
  load.a_transposed = transposed;
  uint64_t offset = (uint64_t)(load.row - module.shared);
  if (offset >= module.shared_bytes) {
    report(kWildAddress, kOtherSpace, (uint32_t)(RETURN_ADDRESS - module.base), 0, -1,
           (int64_t)(uintptr_t)row, 16, current->thread, 0);
    abandon_launch();
  }
  access((uintptr_t)row, 16, kMatrixLoad, RETURN_ADDRESS);
  execute_together(load, RETURN_ADDRESS);
}

void emulated_fence_proxy_async() {
  if (!launch.check) return;
  if (!clocks.on) start_clocks();
  clocks.fence(current->thread);
}

void emulated_wgmma_fence(unsigned line) {
  Collective fence{};
  fence.kind = Collective::kWgmmaFence;
  fence.line = line;
  execute_together(fence, RETURN_ADDRESS);
}

void emulated_wgmma(float* sum, unsigned count, const unsigned* a, uint64_t a_tile, uint64_t b_tile,
                    int accumulate, int half, int a_transposed, int b_transposed, unsigned line) {
  Collective product{};
  product.kind = Collective::kWgmma;
  product.line = line;
  product.sum = sum;
  product.count = count;
  product.a = a;
  product.a_tile = a_tile;
  product.b_tile = b_tile;
  product.accumulate = accumulate;
  product.half = half;
  product.a_transposed = a_transposed;
  product.b_transposed = b_transposed;
  execute_together(product, RETURN_ADDRESS);
}

void emulated_wgmma_commit(unsigned line) {
  Collective commit{};
  commit.kind = Collective::kWgmmaCommit;
  commit.line = line;
  execute_together(commit, RETURN_ADDRESS);
}

void emulated_wgmma_wait(unsigned pending_groups, unsigned line) {
  Collective wait{};
  wait.kind = Collective::kWgmmaWait;
  wait.line = line;
  wait.count = pending_groups;
  execute_together(wait, RETURN_ADDRESS);
}

// A descriptor has no room for the low four bits of an address.
void emulated_wgmma_tile(const void* tile) {
  uint64_t offset = (uint64_t)((const char*)tile - module.shared);
  if (launch.check && offset < module.shared_bytes && offset % 16)
    report_shared(kMisalignedTile, offset, 16, (uint32_t)(RETURN_ADDRESS - module.base), 0, 0);
}

size_t emulated_shared_address(const void* address) {
  uint64_t offset = (uint64_t)((const char*)address - module.shared);
  if (offset >= module.shared_bytes) {
    report(kWildAddress, kOtherSpace, (uint32_t)(RETURN_ADDRESS - module.base), 0, -1,
           (int64_t)(uintptr_t)address, 0, current->thread, 0);
    abandon_launch();
  }
  return offset;
}

unsigned emulated_pack_f16(float low, float high) {
  return half_of_float(low) | half_of_float(high) << 16;
}
float emulated_unpack_f16(unsigned half) { return float_of_half(half); }
}

// ---- from a warp's records to requests ----------------------------------------------------------

namespace emulator {

static inline uint32_t space_of(uint64_t address) {
  return arena.contains(address) ? kGlobal : kShared;
}
static inline uint32_t array_of(uint64_t address, uint32_t space) {
  if (space == kGlobal) return arena.slot(address);
  return array_of_byte[address - (uintptr_t)module.shared];
}
static void count_request(uint64_t* address, const uint16_t* destination, uint32_t active,
                          const Access& access) {
  uint64_t first = address[__builtin_ctz(active)];
  uint32_t space = space_of(first);
  counters.request(address, destination, active, access.pc, space, access.bytes, access.kind,
                   array_of(first, space));
}

// Lanes that took the same path have the same call sites at the same places of their records.
// Returns how many records of each lane were matched so.
static size_t count_aligned(Lane* warp, uint32_t width) {
  const Access* records[kWarp];
  uint32_t active = 0, lead = 0;
  size_t shortest = 0;
  for (uint32_t i = 0; i < width; i++) {
    size_t size = warp[i].records.size();
    if (!size) continue;
    if (!active || size < shortest) shortest = size;
    if (!active) lead = i;
    active |= 1u << i;
    records[i] = warp[i].records.begin;
  }
  uint64_t address[kWarp];
  uint16_t destination[kWarp];
  for (size_t n = 0; n < shortest; n++) {
    const Access& first = records[lead][n];
    uint32_t different = 0;
    for (uint32_t rest = active; rest; rest &= rest - 1) {
      uint32_t lane = (uint32_t)__builtin_ctz(rest);
      const Access& access = records[lane][n];
      different |= (access.pc ^ first.pc) | (uint32_t)(access.bytes ^ first.bytes);
      address[lane] = access.address;
    }
    if (UNLIKELY(different)) return n;
    if (UNLIKELY(first.kind == kAsyncSource))
      for (uint32_t rest = active; rest; rest &= rest - 1)
        destination[__builtin_ctz(rest)] = records[__builtin_ctz(rest)][n].destination;
    count_request(address, destination, active, first);
  }
  return shortest;
}

// Lanes that took different paths: the n-th access from a call site since the last synchronisation is
// one request for all lanes that have an n-th one. The groups must also be executable in lockstep
// (no group may have to come both before and after another); those that are not are counted as
// unmatched, because the hardware would split them in a way that the records do not show.
static void count_divergent(Lane* warp, uint32_t width, size_t skip) {
  struct Group {
    uint64_t address[kWarp];
    uint16_t destination[kWarp];
    Access access;
    uint32_t active = 0, arrived = 0;
  };
  static std::vector<Group> groups;
  static std::vector<uint32_t> path[kWarp];
  static std::unordered_map<uint64_t, uint32_t> occurrences, index;
  groups.clear();
  index.clear();
  for (uint32_t lane = 0; lane < width; lane++) {
    path[lane].clear();
    occurrences.clear();
    auto& records = warp[lane].records;
    for (size_t n = skip; n < records.size(); n++) {
      const Access& access = records.begin[n];
      uint64_t site = (uint64_t)access.pc | (uint64_t)access.bytes << 32 |
                      (uint64_t)access.kind << 38 | (uint64_t)space_of(access.address) << 42;
      uint64_t key = site * 0x9e3779b97f4a7c15ull + occurrences[site]++;
      auto place = index.emplace(key, (uint32_t)groups.size());
      if (place.second) {
        groups.emplace_back();
        groups.back().access = access;
      }
      Group& group = groups[place.first->second];
      group.address[lane] = access.address;
      group.destination[lane] = access.destination;
      group.active |= 1u << lane;
      path[lane].push_back(place.first->second);
    }
  }
  size_t done[kWarp] = {0};
  std::vector<uint32_t> ready;
  auto arrive = [&](uint32_t lane) {
    if (done[lane] == path[lane].size()) return;
    Group& group = groups[path[lane][done[lane]]];
    group.arrived |= 1u << lane;
    if (group.arrived == group.active) ready.push_back(path[lane][done[lane]]);
  };
  for (uint32_t lane = 0; lane < width; lane++) arrive(lane);
  size_t executed = 0;
  while (!ready.empty()) {
    uint32_t next = ready.back();
    ready.pop_back();
    executed++;
    for (uint32_t rest = groups[next].active; rest; rest &= rest - 1) {
      uint32_t lane = (uint32_t)__builtin_ctz(rest);
      done[lane]++;
      arrive(lane);
    }
  }
  totals.unmatched_requests += groups.size() - executed;
  for (Group& group : groups) count_request(group.address, group.destination, group.active, group.access);
}

// Turns the records of a warp into requests: all of them where the warp has synchronised, else those
// that match for certain.
static void flush(uint32_t warp_index, bool synchronised) {
  Lane* warp = lanes + warp_index * kWarp;
  uint32_t width = std::min(kWarp, threads_per_block - warp_index * kWarp);
  size_t most = 0;
  bool one_path = true, all_here = true;
  for (uint32_t i = 0; i < width; i++) {
    size_t size = warp[i].records.size();
    if (size && most && size != most) one_path = false;
    most = std::max(most, size);
    // A lane with nothing to show may yet catch up, unless it has exited.
    if (!size && warp[i].state != kExited) all_here = false;
  }
  if (most) {
    size_t matched = synchronised || all_here ? count_aligned(warp, width) : 0;
    if (synchronised && !(one_path && matched == most)) {
      count_divergent(warp, width, matched);
      matched = most;
    }
    for (uint32_t i = 0; i < width; i++) {
      size_t counted = std::min(matched, warp[i].records.size());
      totals.accesses += counted;
      warp[i].records.drop_front(counted);
    }
  }
  for (uint32_t i = 0; i < width; i++) {
    warp[i].records.make_room();
    warp[i].budget = kChunk;
  }
}

// ---- the scheduler ------------------------------------------------------------------------------

// What a release of lanes from a warp-level operation has been.
enum WarpRelease { kNoRelease, kTogether, kSynchronised };

// Releases each group of lanes that has gathered at a warp-level operation. Only those that are meant to
// order memory accesses synchronise; an instruction that lanes execute together does not.
static WarpRelease release_warp_groups(uint32_t warp_index) {
  Lane* warp = lanes + warp_index * kWarp;
  uint32_t width = std::min(kWarp, threads_per_block - warp_index * kWarp), waiting = 0, alive = 0;
  for (uint32_t i = 0; i < width; i++) {
    if (warp[i].state != kExited) alive |= 1u << i;
    if (warp[i].state == kAtWarpOperation) waiting |= 1u << i;
  }
  WarpRelease released = kNoRelease;
  for (uint32_t rest = waiting; rest;) {
    uint32_t lead = (uint32_t)__builtin_ctz(rest), group = 0;
    for (uint32_t i = 0; i < width; i++)
      if ((waiting >> i & 1) && warp[i].mask == warp[lead].mask) group |= 1u << i;
    rest &= ~group;
    if ((group & warp[lead].mask & alive) != (warp[lead].mask & alive)) continue;
    bool together = false;
    for (uint32_t i = 0; i < width; i++) together |= (group >> i & 1) && warp[i].collective;
    if (together) {
      run_collective(warp_index, group);
      if (aborted) return kNoRelease;
    } else if (clocks.on) {
      clocks.join_lanes(warp_index * kWarp, group);
    }
    for (uint32_t i = 0; i < width; i++) {
      if (!(group >> i & 1)) continue;
      exchange[warp_index][lead][i] = warp[i].value;
      warp[i].exchanged = exchange[warp_index][lead];
      warp[i].exchanged_mask = group & warp[lead].mask;
      warp[i].state = kRunning;
      warp[i].pauses = 0;
    }
    released = std::max(released, together ? kTogether : kSynchronised);
  }
  return released;
}

// Lets the lanes go on whose mbarrier has completed the phase that they wait for.
static bool release_mbarrier_waits(uint32_t warp_index) {
  Lane* warp = lanes + warp_index * kWarp;
  uint32_t width = std::min(kWarp, threads_per_block - warp_index * kWarp);
  bool released = false;
  for (uint32_t i = 0; i < width; i++) {
    if (warp[i].state != kAtMbarrier || !barriers[warp[i].barrier].passed(warp[i].parity)) continue;
    if (clocks.on) clocks.learn(warp[i].thread, barriers[warp[i].barrier].completed);
    warp[i].state = kRunning;
    warp[i].pauses = 0;
    released = true;
  }
  return released;
}

static COLD void report_warp_deadlock(uint32_t warp_index) {
  Lane* warp = lanes + warp_index * kWarp;
  uint32_t width = std::min(kWarp, threads_per_block - warp_index * kWarp);
  for (uint32_t i = 0; i < width; i++)
    if (warp[i].state == kAtWarpOperation) {
      uint32_t missing = 0;
      for (uint32_t j = 0; j < width; j++)
        if ((warp[i].mask >> j & 1) && warp[j].state != kAtWarpOperation && warp[j].state != kExited)
          missing = warp[j].thread;
      report(kDeadlock, kOtherSpace, warp[i].waiting_pc, 0, -1, 0, 0, warp[i].thread, missing);
      return;
    }
}

// Runs a warp until all its lanes wait for other warps, have exited, or have used their turn.
static void run_warp(uint32_t warp_index) {
  Lane* warp = lanes + warp_index * kWarp;
  uint32_t width = std::min(kWarp, threads_per_block - warp_index * kWarp);
  for (uint32_t round = 0; round < kRoundsInARow; round++) {
    bool ran = false, paused = false, waiting = false, at_mbarrier = false;
    for (uint32_t k = 0; k < width; k++) {
      Lane& lane = warp[launch.reverse ? width - 1 - k : k];
      if (lane.state == kPaused) lane.state = kRunning;
      if (lane.state != kRunning) continue;
      ran = true;
      resume(lane);
      if (UNLIKELY(aborted)) return;
    }
    for (uint32_t i = 0; i < width; i++) {
      paused |= warp[i].state == kPaused;
      waiting |= warp[i].state == kAtWarpOperation;
      at_mbarrier |= warp[i].state == kAtMbarrier;
    }
    WarpRelease release = waiting ? release_warp_groups(warp_index) : kNoRelease;
    if (UNLIKELY(aborted)) return;
    if (release == kSynchronised) warp_epoch[warp_index]++;
    bool released = release != kNoRelease;
    if (UNLIKELY(at_mbarrier) && !paused) released |= release_mbarrier_waits(warp_index);
    if (launch.trace)
      flush(warp_index, released || !paused);
    else
      for (uint32_t i = 0; i < width; i++) warp[i].budget = kChunk;
    if (!released && !paused) {
      if (waiting && !ran && !at_mbarrier) {
        report_warp_deadlock(warp_index);
        aborted = true;
      }
      if (!waiting || !ran) return;
    }
  }
}

// All live threads wait: opens the barrier, or reports that they wait at different ones.
static void open_barrier(uint32_t live) {
  Lane* first = nullptr;
  bool reported = false;
  for (uint32_t i = 0; i < threads_per_block; i++) {
    Lane& lane = lanes[i];
    if (lane.state != kAtBarrier) continue;
    if (!first) first = &lane;
    if (lane.waiting_line != first->waiting_line && !reported && launch.check) {
      report(kDivergentBarrier, kOtherSpace, lane.waiting_pc, first->waiting_pc, -1, lane.waiting_line,
             first->waiting_line, lane.thread, first->thread);
      reported = true;
    }
    lane.state = kRunning;
    lane.pauses = 0;
  }
  if (first && live != threads_per_block && launch.check) {
    uint32_t exited = 0;
    while (lanes[exited].state != kExited) exited++;
    report(kDivergentBarrier, kOtherSpace, first->waiting_pc, 0, -1, first->waiting_line, 0,
           first->thread, exited);
  }
  epoch = ++last_epoch;
  totals.barriers++;
  if (clocks.on) {
    clocks.pass_block_barrier();
    note_reads_under_way();
  }
}

// Nothing else can run: delivers the copies that threads wait for. Returns whether any phase was
// completed.
static bool deliver_copies() {
  bool completed = false;
  for (uint32_t i = 0; i < threads_per_block; i++) {
    const Lane& lane = lanes[i];
    if (lane.state != kAtMbarrier || barriers[lane.barrier].passed(lane.parity) ||
        !barriers[lane.barrier].needs_copies_only())
      continue;
    complete_phase(lane.barrier);
    completed = true;
  }
  return completed;
}

static bool a_wait_has_ended() {
  for (uint32_t i = 0; i < threads_per_block; i++)
    if (lanes[i].state == kAtMbarrier && barriers[lanes[i].barrier].passed(lanes[i].parity))
      return true;
  return false;
}

static COLD void report_block_deadlock() {
  const Lane* at_barrier = nullptr;
  for (uint32_t i = 0; i < threads_per_block; i++)
    if (lanes[i].state == kAtBarrier) at_barrier = &lanes[i];
  for (uint32_t i = 0; i < threads_per_block; i++) {
    const Lane& lane = lanes[i];
    if (lane.state == kAtMbarrier) {
      const Barrier& barrier = barriers[lane.barrier];
      report(kDeadlock, kShared, lane.waiting_pc, 0, shared_array(barrier.offset),
             offset_in_array(barrier.offset), (uint32_t)(barrier.expected - barrier.queued),
             lane.thread, barrier.pending);
    } else if (lane.state == kAtClusterBarrier && at_barrier) {
      report(kDeadlock, kOtherSpace, lane.waiting_pc, 0, -1, 0, 0, lane.thread, at_barrier->thread);
    }
  }
}

static COLD void report_unfinished_copies() {
  for (const Barrier& barrier : barriers)
    for (const TileCopy& copy : barrier.copies)
      report(kInFlight, kShared, copy.pc, 0, shared_array(copy.offset), offset_in_array(copy.offset), 0,
             copy.thread, 0);
}

static COLD void report_unfinished_products() {
  for (uint32_t first = 0; first < threads_per_block; first += kWarp) {
    const Lane& lead = lanes[first];
    for (const PendingSum& sum : lead.products.sums)
      if (sum.products) report(kSumUnderWay, kOtherSpace, sum.pc, 0, -1, 0, 0, lead.thread, 0);
    const Lane& group = lanes[first / kWarpgroup * kWarpgroup];
    if (lead.issued.size() == group.issued.size()) continue;
    const Lane& more = lead.issued.size() > group.issued.size() ? lead : group;
    const Collective& lonely = more.issued[std::min(lead.issued.size(), group.issued.size())];
    report(kDivergentWarp, kOtherSpace, lonely.pc, 0, -1, lonely.line, 0, more.thread,
           (&more == &lead ? group : lead).thread);
  }
}

static void start_block(uint64_t block) {
  block_idx = uint3{(uint32_t)(block % launch.grid[0]),
                    (uint32_t)(block / launch.grid[0] % launch.grid[1]),
                    (uint32_t)(block / launch.grid[0] / launch.grid[1])};
  first_epoch_of_block = epoch = ++last_epoch;
  barriers.clear();
  clocks.on = false;
  learnt_from_flags.clear();
  for (const SharedArray& array : shared_arrays) {  // shared memory starts undefined: a NaN
    uint32_t* word = (uint32_t*)(module.shared + array.offset);
    std::fill(word, word + array.bytes / 4, 0x7fc0deadu);
  }
  if (launch.check)
    for (ShadowWord& word : shadow) word.in_flight = 0;
  for (uint32_t i = 0; i < threads_per_block; i++) {
    Lane& lane = lanes[i];
    lane.thread = i;
    lane.warp = i / kWarp;
    lane.thread_idx = uint3{i % launch.block[0], i / launch.block[0] % launch.block[1],
                            i / launch.block[0] / launch.block[1]};
    lane.state = kRunning;
    lane.pauses = 0;
    lane.groups.clear();
    lane.open_group.clear();
    lane.collective = nullptr;
    lane.sums_under_way = false;
    lane.products = WarpProducts();
    lane.issued.clear();
    lane.records.clear();
    lane.budget = kChunk;
    lane.records.make_room();
    lane.stack_pointer = fiber_stack_pointer(stacks.top((uint32_t)(&lane - all_lanes)), run_thread);
  }
  totals.blocks++;
  totals.threads += threads_per_block;
}

static void open_cluster_barrier(Lane* of_block) {
  for (uint32_t i = 0; i < threads_per_block; i++)
    if (of_block[i].state == kAtClusterBarrier) {
      of_block[i].state = kRunning;
      of_block[i].pauses = 0;
    }
}

// Runs the block to its end, or until all its threads wait for the other blocks of the cluster.
static void run_block() {
  uint32_t warps = (threads_per_block + kWarp - 1) / kWarp;
  for (;;) {
    for (uint32_t i = 0; i < warps; i++) {
      run_warp(launch.reverse ? warps - 1 - i : i);
      if (aborted) return;
    }
    uint32_t in_state[kLaneStates] = {0};
    for (uint32_t i = 0; i < threads_per_block; i++) in_state[lanes[i].state]++;
    uint32_t live = threads_per_block - in_state[kExited];
    if (!live) {
      if (launch.check) {
        report_unfinished_copies();
        report_unfinished_products();
      }
      return;
    }
    if (in_state[kRunning] || in_state[kPaused]) continue;
    if (in_state[kAtMbarrier] && (a_wait_has_ended() || deliver_copies())) continue;
    if (in_state[kAtBarrier] == live) {
      open_barrier(live);
    } else if (in_state[kAtClusterBarrier] == live) {
      if (!cluster.empty()) return;
      epoch = ++last_epoch;
      open_cluster_barrier(lanes);
    } else if (in_state[kAtMbarrier] || in_state[kAtClusterBarrier]) {
      report_block_deadlock();
      aborted = true;
      return;
    }
  }
}

// Exchanges the block that runs with one that is kept. Done twice, it changes nothing.
static void exchange_block(Block& kept) {
  std::swap(block_idx, kept.index);
  std::swap(lanes, kept.lanes);
  std::swap(epoch, kept.epoch);
  std::swap(first_epoch_of_block, kept.first_epoch);
  std::swap(warp_epoch, kept.warp_epoch);
  shadow.swap(kept.shadow);
  remote_reads.swap(kept.remote_reads);
  barriers.swap(kept.barriers);
  std::swap(clocks, kept.clocks);
  std::swap_ranges(kept.window.begin(), kept.window.end(), module.shared);
}

// Any block may exit before another has made its reads after the last barrier of the cluster.
static COLD void report_reads_of_exited_blocks() {
  for (const PeerRead& read : peer_reads) {
    block_idx = read.block;
    report(kPeerExited, kShared, read.pc, 0, shared_array((uint64_t)read.offset),
           offset_in_array((uint64_t)read.offset), 16, read.thread, 0);
  }
}

// Runs the blocks of a cluster in turn, each as far as it comes.
static void run_cluster(uint64_t first_block) {
  uint32_t size = (uint32_t)cluster.size();
  cluster_epoch = ++last_epoch;
  peer_reads.clear();
  for (rank = 0; rank < size; rank++) {
    Block& block = cluster[rank];
    uint32_t x = rank % launch.cluster[0], y = rank / launch.cluster[0] % launch.cluster[1],
             z = rank / launch.cluster[0] / launch.cluster[1];
    exchange_block(block);
    lanes = all_lanes + rank * threads_per_block;
    start_block(first_block + x + (uint64_t)launch.grid[0] * (y + (uint64_t)launch.grid[1] * z));
    exchange_block(block);
    block.finished = false;
    block.remote_reads.assign(launch.check ? block.shadow.size() : 0, RemoteRead{});
  }
  for (;;) {
    uint32_t unfinished = 0;
    for (uint32_t i = 0; i < size; i++) {
      rank = launch.reverse ? size - 1 - i : i;
      Block& block = cluster[rank];
      if (block.finished) continue;
      exchange_block(block);
      run_block();
      bool finished = true;
      for (uint32_t t = 0; t < threads_per_block; t++) finished &= lanes[t].state == kExited;
      exchange_block(block);
      if (aborted) return;
      block.finished = finished;
      unfinished += !finished;
    }
    if (!unfinished) break;
    cluster_epoch = ++last_epoch;
    totals.barriers++;
    peer_reads.clear();
    for (Block& block : cluster) {
      block.epoch = cluster_epoch;
      open_cluster_barrier(block.lanes);
    }
  }
  report_reads_of_exited_blocks();
}

// ---- faults that the hooks cannot see coming ----------------------------------------------------

// A division by zero, an overrun of a thread's stack, a jump to nowhere: the launch ends with a finding
// instead of ending the process.
class SignalGuard {
 public:
  static sigjmp_buf escape;

  SignalGuard() {
    stack_t alternate{};
    alternate.ss_sp = handler_stack_;
    alternate.ss_size = sizeof handler_stack_;
    sigaltstack(&alternate, &old_stack_);
    struct sigaction action {};
    action.sa_sigaction = handle;
    action.sa_flags = SA_SIGINFO | SA_ONSTACK;
    for (int i = 0; i < kSignals; i++) sigaction(signals_[i], &action, &old_actions_[i]);
  }
  ~SignalGuard() {
    for (int i = 0; i < kSignals; i++) sigaction(signals_[i], &old_actions_[i], nullptr);
    sigaltstack(&old_stack_, nullptr);
  }

 private:
  static constexpr int kSignals = 4;
  static constexpr int signals_[kSignals] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL};
  static char handler_stack_[64 << 10];
  stack_t old_stack_{};
  struct sigaction old_actions_[kSignals];

  static void handle(int, siginfo_t* info, void* context) {
    const ucontext_t* state = static_cast<const ucontext_t*>(context);
#if defined(__x86_64__)
    uintptr_t pc = (uintptr_t)state->uc_mcontext.gregs[REG_RIP];
#else
    uintptr_t pc = (uintptr_t)state->uc_mcontext.pc;
#endif
    // + 1: the program counter of a finding is a return address, which follows its instruction
    uint32_t known = module.owns(pc) ? (uint32_t)(pc - module.base) + 1 : 0;
    report(kMachineFault, kOtherSpace, known, 0, -1, (int64_t)(uintptr_t)info->si_addr, 0,
           current ? current->thread : 0, 0);
    aborted = true;
    siglongjmp(escape, 1);
  }
};
sigjmp_buf SignalGuard::escape;
char SignalGuard::handler_stack_[64 << 10];

static __attribute__((noinline)) void run_guarded(uint64_t block) {
  if (sigsetjmp(SignalGuard::escape, 1)) return;
  if (!cluster.empty()) {
    run_cluster(block);
    return;
  }
  start_block(block);
  run_block();
}

// The block of rank 0 in each cluster.
static bool leads_cluster(uint64_t block) {
  return block % launch.grid[0] % launch.cluster[0] == 0 &&
         block / launch.grid[0] % launch.grid[1] % launch.cluster[1] == 0 &&
         block / launch.grid[0] / launch.grid[1] % launch.cluster[2] == 0;
}

}  // namespace emulator

// ---- what the host calls ------------------------------------------------------------------------

// A buffer of `bytes` bytes with at least a gigabyte of inaccessible addresses on either side, or null.
EMULATOR_API void* emulator_allocate(uint64_t bytes) { return arena.allocate(bytes); }
// Gives back all that a launch took but its results.
EMULATOR_API void emulator_release(void) {
  arena.release();
  stacks.release();
  delete[] all_lanes;
  all_lanes = lanes = nullptr;
  std::vector<ShadowWord>().swap(shadow);
  std::vector<Block>().swap(cluster);
  clocks = Clocks();
}

// 0: ran to its end; 1: ended early, the findings say why; negative: could not start.
EMULATOR_API int emulator_launch(const EmulatorLaunch* request) {
  launch = *request;
  threads_per_block = launch.block[0] * launch.block[1] * launch.block[2];
  if (!threads_per_block || threads_per_block > kMaxThreads) return -1;
  uint32_t blocks_together = launch.cluster[0] * launch.cluster[1] * launch.cluster[2];
  if (!blocks_together || blocks_together > kMostClusterBlocks) return -4;
  for (int axis = 0; axis < 3; axis++)
    if (launch.grid[axis] % launch.cluster[axis]) return -4;
  if (blocks_together > 1 && launch.blocks) return -5;
  if (!stacks.reserve(blocks_together * threads_per_block)) return -2;
  lanes = all_lanes = new Lane[blocks_together * threads_per_block]();
  emulated_touch_shared();
  if (!module.locate((uintptr_t)&emulated_entry)) return -3;

  counters.clear();
  findings.clear();
  block_counts.clear();
  arena.forget_writers();
  totals = EmulatorTotals{};
  aborted = false;
  last_epoch = 0;
  shared_arrays.clear();
  array_of_byte.assign(module.shared_bytes + 16, 0);
  for (uint32_t i = 0; i < launch.shared_symbols; i++) {
    SharedArray array{launch.shared_offsets[i], launch.shared_sizes[i]};
    shared_arrays.push_back(array);
    for (uint64_t byte = array.offset; byte < array.offset + array.bytes; byte++)
      array_of_byte[byte] = (uint8_t)(i + 1);
  }
  for (uint32_t i = launch.shared_symbols; i < launch.shared_symbols + launch.guard_symbols; i++)
    for (uint64_t byte = 0; byte < launch.shared_sizes[i]; byte++)
      array_of_byte[launch.shared_offsets[i] + byte] = kCompilers;
  uint64_t used = 0;
  for (const SharedArray& array : shared_arrays) used = std::max(used, array.offset + array.bytes);
  shadow.assign(used / 4 + 1, ShadowWord{});
  remote_reads.clear();
  flags.clear();
  rank = 0;
  cluster = std::vector<Block>(blocks_together > 1 ? blocks_together : 0);
  for (Block& block : cluster) {
    block.window.resize(used);
    block.shadow = shadow;
  }

  SignalGuard guard;
  auto start = std::chrono::steady_clock::now();
  uint64_t all = (uint64_t)launch.grid[0] * launch.grid[1] * launch.grid[2];
  uint64_t count = launch.blocks ? launch.block_count : all;
  for (uint64_t i = 0; i < count && !aborted; i++) {
    if (!cluster.empty() && !leads_cluster(i)) continue;
    counters.weight = launch.weights ? launch.weights[i] : 1;
    counters.block = EmulatorBlockCounts{};
    counters.block.block = launch.blocks ? launch.blocks[i] : i;
    run_guarded(counters.block.block);
    if (launch.blocks) block_counts.push_back(counters.block);
  }
  totals.aborted = aborted;
  totals.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return aborted ? 1 : 0;
}

EMULATOR_API uint64_t emulator_site_count(void) { return counters.size(); }
EMULATOR_API void emulator_site(uint64_t i, EmulatorSite* site) { *site = counters.site(i); }
EMULATOR_API uint64_t emulator_finding_count(void) { return findings.size(); }
EMULATOR_API void emulator_finding(uint64_t i, EmulatorFinding* finding) { *finding = findings[i]; }
EMULATOR_API uint64_t emulator_block_counts(const EmulatorBlockCounts** counts) {
  *counts = block_counts.data();
  return block_counts.size();
}
EMULATOR_API void emulator_totals(EmulatorTotals* result) { *result = totals; }
