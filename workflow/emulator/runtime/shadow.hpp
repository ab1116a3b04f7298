// What is known about each 4-byte word of shared memory: who wrote and read it, and when.
//
// Time is counted in epochs (barriers of the block) and, within a warp, in warp epochs
// (__syncwarp and shuffles). Two accesses of one word by different threads conflict when one writes
// and no synchronisation of both lies between them, whether or not this run's result suffers. In a
// block with mbarriers, vector clocks (clocks.hpp) tell the order of accesses of one epoch.
#pragma once
#include <cstdint>
#include <vector>

namespace emulator {

struct Reader {
  uint16_t thread, warp_epoch;
};

struct alignas(32) ShadowWord {
  uint32_t write_epoch;  // 0: never; epochs count from 1 and do not repeat in a launch
  uint32_t read_epoch;
  uint32_t write_pc, read_pc;
  Reader writer;
  Reader reader, other_reader;  // of read_epoch; the second from another warp where there is one
  uint16_t in_flight;           // destination of an unfinished asynchronous copy
};
static_assert(sizeof(ShadowWord) == 32, "one word's state is half a cache line");

inline bool unordered(const Reader& earlier, uint32_t thread, uint16_t warp_epoch) {
  return earlier.thread != thread &&
         (earlier.thread / 32 != thread / 32 || earlier.warp_epoch == warp_epoch);
}

}  // namespace emulator
