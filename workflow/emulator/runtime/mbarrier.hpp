// Barriers in shared memory, and the copies of TMA that report to them.
//
// A copy is delivered as late as the program allows: when nothing else in the block can run and a
// thread waits for the phase that the copy completes. Who reads without having waited then meets a NaN.
#pragma once
#include <cstdint>
#include <vector>

#include "api.h"
#include "clocks.hpp"

namespace emulator {

struct TileCopy {
  EmulatorTensorMap map;
  uint64_t offset;  // of the destination in the shared window
  int32_t column, row;
  uint32_t thread, pc;
  bool lands;  // false: its destination is no place to write to

  // Where a tile must begin: a swizzle is a pattern of addresses that repeats.
  uint32_t alignment() const { return map.swizzle ? 8 * map.swizzle : 128; }
  uint32_t bytes() const { return map.box_rows * map.box_columns * 4; }
};

struct Barrier {
  uint64_t offset;  // in the shared window
  uint32_t arrivals, pending;
  uint64_t expected = 0, queued = 0;  // bytes: announced, and of the copies under way
  uint32_t phase = 0, completions = 0;
  std::vector<TileCopy> copies;
  Clock published, completed;

  Barrier(uint64_t offset_, uint32_t arrivals_)
      : offset(offset_), arrivals(arrivals_), pending(arrivals_) {}
  bool passed(uint32_t parity) const { return (phase & 1) != (parity & 1); }
  // Whether the copies under way are all that the phase still waits for.
  bool needs_copies_only() const { return !pending && expected && expected == queued; }
};

// Where the pattern of a swizzle of `width` bytes (0: none) puts the byte at `offset` of the window.
inline uint64_t swizzled(uint64_t offset, uint32_t width) {
  return width ? offset ^ ((offset >> 7 & (width / 16 - 1)) << 4) : offset;
}

// Columns [first, last) of the box that lie inside the matrix; none if the row does not.
struct InsideColumns {
  int64_t first, last;
};
inline InsideColumns inside_columns(const TileCopy& copy, uint32_t box_row) {
  int64_t row = (int64_t)copy.row + box_row;
  if (row < 0 || row >= (int64_t)copy.map.rows) return {0, 0};
  int64_t first = std::max<int64_t>(0, -(int64_t)copy.column);
  int64_t last = std::min<int64_t>(copy.map.box_columns, (int64_t)copy.map.columns - copy.column);
  return {first, std::max(first, last)};
}
inline const float* global_element(const TileCopy& copy, uint32_t box_row, int64_t box_column) {
  return copy.map.base + ((int64_t)copy.row + box_row) * (int64_t)copy.map.pitch + copy.column +
         box_column;
}

}  // namespace emulator
