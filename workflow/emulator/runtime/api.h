// The C interface between the runtime and its Python face (workflow/ladder/emulator/library.py
// mirrors every struct; change both together).
#pragma once
#include <stdint.h>

#define EMULATOR_API extern "C" __attribute__((visibility("default")))

enum EmulatorSpace { kGlobal = 0, kShared = 1, kOtherSpace = 2 };
enum EmulatorAccessKind {
  kLoad = 0,
  kStore = 1,
  kAsyncSource = 2,
  kAsyncDestination = 3,
  kAtomic = 4,
  kMatrixLoad = 5,  // ldmatrix
};
enum EmulatorFindingKind {
  kOutOfBounds = 1,
  kRaceWriteWrite,
  kRaceReadWrite,
  kUninitialisedRead,
  kMisaligned,
  kInFlight,
  kDivergentBarrier,
  kDeadlock,
  kGlobalRace,
  kWildAddress,
  kTrap,
  kShuffleSource,
  kEndlessLoop,
  kMachineFault,
  kUninitialisedBarrier,
  kOverArrival,
  kTransactionCount,
  kPeerExited,
  kClusterRace,
  kDivergentWarp,
  kMissingFence,
  kMissingProxyFence,
  kSumUnderWay,
  kMisalignedTile,
};

// One static access: a call site x space x width x kind. Counts are of warp-level requests.
struct EmulatorSite {
  uint64_t pc;  // offset of the return address in the library
  uint32_t space, bytes, kind, array;
  uint64_t requests;         // warp-level instructions
  uint64_t lanes;            // threads that took part
  uint64_t sectors;          // distinct 32-byte sectors (global)
  uint64_t unique_bytes;     // distinct bytes (global)
  uint64_t wavefronts;       // passes over the 32 banks (shared)
  uint64_t least_wavefronts; // passes that the width alone costs (shared)
  uint64_t most_sectors, most_wavefronts;  // of any one request
};

struct EmulatorFinding {
  uint32_t kind, space;
  uint64_t pc, other_pc;
  int32_t array;
  uint32_t thread, other_thread, bytes;  // of a wait for an mbarrier that never ends: arrivals and
                                         // bytes that are missing in other_thread and bytes; of a
                                         // rank outside the cluster the rank in bytes
  uint64_t block;
  int64_t offset;  // bytes from the start of the array, negative in front of it; of a divergent
                   // barrier or warp its line, and in `bytes` the other's line or 0
  uint64_t count;
};

struct EmulatorTotals {
  uint64_t threads, blocks, accesses, switches, barriers;
  uint64_t unmatched_requests;  // could not be ordered in lockstep: see docs/emulator.md
  uint64_t tma_load_bytes, tma_load_sectors;  // inside the matrix; distinct 32-byte sectors of a copy
  uint64_t cluster_load_bytes;
  uint64_t mma_instructions, wgmma_instructions;  // of warps: a wgmma is one of each of its four
  uint64_t tensor_core_flops;                     // multiplications and additions
  uint64_t aborted;
  double seconds;
};

struct EmulatorBlockCounts { uint64_t block, requests, sectors, unique_bytes, wavefronts; };

// What a TensorMap holds here; as large as CUDA's CUtensorMap. Extents and pitch are in floats.
constexpr uint64_t kTensorMapMark = 0x70616d2d726f736eull;
struct EmulatorTensorMap {
  uint64_t mark;
  const float* base;  // element (0, 0)
  uint32_t rows, columns;
  uint64_t pitch;
  uint32_t box_rows, box_columns;
  uint32_t swizzle;  // width of the pattern in bytes; 0: none
  uint32_t unused[21];
};
static_assert(sizeof(EmulatorTensorMap) == 128, "the size of a CUtensorMap");

struct EmulatorLaunch {
  uint32_t grid[3], block[3];
  void** arguments;
  uint32_t trace, check, reverse;
  uint32_t shared_symbols, guard_symbols;
  uint32_t cluster[3];
  const uint64_t* shared_offsets;  // in the TLS segment: of each shared array, then of each guard
  const uint64_t* shared_sizes;
  const uint64_t* blocks;   // linear block indices to run, or null for all
  const uint64_t* weights;  // how many blocks each stands for, or null for one
  uint64_t block_count;
};
