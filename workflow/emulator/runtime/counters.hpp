// The counter model: what one warp-level request costs in sectors, bytes and bank wavefronts.
//
// Global memory: a request costs one sector for each distinct aligned 32-byte piece that its lanes
// touch. Shared memory: 32 banks of 4 bytes; a wavefront serves one word of every bank, so a phase
// costs as many wavefronts as the most crowded bank has distinct words. 8-byte accesses take two
// phases (half warps) and 16-byte accesses four (quarter warps). Two phases of a load become one
// when every lane shares its address with its neighbour at distance one, or every lane with that at
// distance two. Both rules reproduce the hardware counters recorded in tests/emulator/calibration.csv.
#pragma once
#include <cstdint>
#include <cstring>
#include <unordered_map>
#include <vector>

#include "api.h"

namespace emulator {

constexpr uint32_t kWarp = 32;

struct RequestCost {
  uint32_t sectors = 0, unique_bytes = 0, wavefronts = 0, least_wavefronts = 0;
};

// Distinct sectors, and distinct bytes in them.
inline void global_cost(const uint64_t* address, uint32_t active, uint32_t bytes, RequestCost& cost) {
  uint64_t sector[2 * kWarp];
  uint32_t touched[2 * kWarp];  // one bit a byte
  uint32_t count = 0;
  auto touch = [&](uint64_t id, uint32_t mask) {
    for (uint32_t i = count; i-- > 0;)
      if (sector[i] == id) {
        touched[i] |= mask;
        return;
      }
    sector[count] = id;
    touched[count++] = mask;
  };
  for (uint32_t lane = 0; lane < kWarp; lane++) {
    if (!(active >> lane & 1)) continue;
    uint32_t start = (uint32_t)(address[lane] & 31), first = bytes < 32 - start ? bytes : 32 - start;
    touch(address[lane] >> 5, (uint32_t)(((1ull << first) - 1) << start));
    if (first < bytes) touch((address[lane] >> 5) + 1, (uint32_t)((1ull << (bytes - first)) - 1));
  }
  cost.sectors = count;
  for (uint32_t i = 0; i < count; i++) cost.unique_bytes += (uint32_t)__builtin_popcount(touched[i]);
}

// Distinct words of the most crowded bank, over the lanes of one phase.
inline uint32_t bank_wavefronts(const uint64_t* address, uint32_t active, uint32_t bytes) {
  uint64_t words[kWarp][kWarp];  // [bank][n-th distinct word]
  uint8_t distinct[kWarp] = {0};
  uint32_t most = 0;
  for (uint32_t lane = 0; lane < kWarp; lane++) {
    if (!(active >> lane & 1)) continue;
    for (uint64_t word = address[lane] >> 2; word <= (address[lane] + bytes - 1) >> 2; word++) {
      uint32_t bank = (uint32_t)(word & 31), i = 0;
      while (i < distinct[bank] && words[bank][i] != word) i++;
      if (i < distinct[bank] || i == kWarp) continue;
      words[bank][i] = word;
      distinct[bank]++;
      if (distinct[bank] > most) most = distinct[bank];
    }
  }
  return most;
}

// A 16-byte cp.async bypasses the L1 cache, and its sectors are counted where they go: the 32-byte
// pieces of shared memory that each 128-byte line of global memory fills. (Fits 21 of 21 layouts
// measured on an H200; 4- and 8-byte copies go through L1 and count as loads do, 45 of 45.)
inline uint32_t bypass_sectors(const uint64_t* address, const uint16_t* destination, uint32_t active) {
  uint64_t pieces[kWarp];
  uint32_t count = 0;
  for (uint32_t rest = active; rest; rest &= rest - 1) {
    uint32_t lane = (uint32_t)__builtin_ctz(rest), i = count;
    uint64_t piece = address[lane] >> 7 << 16 | destination[lane] >> 1;
    while (i > 0 && pieces[i - 1] != piece) i--;
    if (!i) pieces[count++] = piece;
  }
  return count;
}

inline bool lanes_share_addresses(const uint64_t* address, uint32_t active, uint32_t distance) {
  for (uint32_t lane = 0; lane < kWarp; lane++) {
    uint32_t partner = lane ^ distance;
    if ((active >> lane & 1) && (active >> partner & 1) && address[lane] != address[partner])
      return false;
  }
  return true;
}

inline void shared_cost(const uint64_t* address, uint32_t active, uint32_t bytes, bool load,
                        RequestCost& cost) {
  uint32_t lanes_per_phase = bytes <= 4 ? 32 : bytes == 8 ? 16 : 8;
  if (bytes > 4 && load &&
      (lanes_share_addresses(address, active, 1) || lanes_share_addresses(address, active, 2)))
    lanes_per_phase *= 2;
  for (uint32_t first = 0; first < kWarp; first += lanes_per_phase) {
    uint32_t phase = lanes_per_phase == 32 ? active : active & (((1u << lanes_per_phase) - 1) << first);
    if (!phase) continue;
    cost.wavefronts += bank_wavefronts(address, phase, bytes);
    cost.least_wavefronts++;
  }
}

// The cost depends only on the distances between the lanes' addresses and on the alignment of the
// first. A loop repeats few such patterns at each site, so each is costed once and then recognised.
struct Pattern {
  uint64_t delta[kWarp];
  uint32_t active = 0;
  RequestCost cost;
};
constexpr uint32_t kPatterns = 8;  // one for each alignment of a 4-byte word in a sector

struct Site {
  EmulatorSite counts{};
  Pattern patterns[kPatterns];
};

class Counters {
 public:
  uint64_t weight = 1;  // of the block that runs
  EmulatorBlockCounts block{};

  void clear() {
    sites_.clear();
    index_.clear();
    memset(recent_, 0, sizeof recent_);
  }
  // address[lane] is read for active lanes only; the others are overwritten.
  void request(uint64_t* address, const uint16_t* destination, uint32_t active, uint32_t pc,
               uint32_t space, uint32_t bytes, uint32_t kind, uint32_t array) {
    Site& site = find(pc, space, bytes, kind, array);
    RequestCost cost = price(site, address, active);
    if (kind == kAsyncSource && bytes == 16)
      cost.sectors = bypass_sectors(address, destination, active);
    EmulatorSite& counts = site.counts;
    counts.requests += weight;
    counts.lanes += weight * (uint32_t)__builtin_popcount(active);
    counts.sectors += weight * cost.sectors;
    counts.unique_bytes += weight * cost.unique_bytes;
    counts.wavefronts += weight * cost.wavefronts;
    counts.least_wavefronts += weight * cost.least_wavefronts;
    if (cost.sectors > counts.most_sectors) counts.most_sectors = cost.sectors;
    if (cost.wavefronts > counts.most_wavefronts) counts.most_wavefronts = cost.wavefronts;
    block.requests++;
    block.sectors += cost.sectors;
    block.unique_bytes += cost.unique_bytes;
    block.wavefronts += cost.wavefronts;
  }
  size_t size() const { return sites_.size(); }
  const EmulatorSite& site(size_t i) const { return sites_[i]->counts; }
  ~Counters() { clear(); }

 private:
  struct Recent {
    uint64_t key;
    Site* site;
  };
  static constexpr uint32_t kRecent = 512;
  struct Owned {  // a unique_ptr would do; the vector keeps addresses stable
    Site* site;
    explicit Owned(Site* s) : site(s) {}
    Owned(Owned&& other) noexcept : site(other.site) { other.site = nullptr; }
    ~Owned() { delete site; }
    Site* operator->() const { return site; }
  };
  std::vector<Owned> sites_;
  std::unordered_map<uint64_t, Site*> index_;
  Recent recent_[kRecent] = {};

  Site& find(uint32_t pc, uint32_t space, uint32_t bytes, uint32_t kind, uint32_t array) {
    uint64_t key = (uint64_t)pc | (uint64_t)(space + 1) << 32 | (uint64_t)kind << 36 |
                   (uint64_t)bytes << 40 | (uint64_t)(array & 0xffff) << 48;
    Recent& recent = recent_[(pc ^ pc >> 9) % kRecent];
    if (__builtin_expect(recent.key == key, 1)) return *recent.site;
    Site*& known = index_[key];
    if (!known) {
      known = new Site();
      known->counts.pc = pc;
      known->counts.space = space;
      known->counts.bytes = bytes;
      known->counts.kind = kind;
      known->counts.array = array;
      sites_.emplace_back(known);
    }
    recent = Recent{key, known};
    return *known;
  }
  const RequestCost& price(Site& site, uint64_t* address, uint32_t active) {
    uint64_t base = address[__builtin_ctz(active)];
    if (active != 0xffffffffu)
      for (uint32_t lane = 0; lane < kWarp; lane++)
        if (!(active >> lane & 1)) address[lane] = base;
    bool global = site.counts.space == kGlobal;
    // Word-aligned shared patterns shift from bank to bank without changing their cost.
    Pattern& pattern = site.patterns[global ? (base & 31) >> 2 : 0];
    uint64_t difference = active ^ pattern.active;
    for (uint32_t lane = 0; lane < kWarp; lane++)
      difference |= (address[lane] - base) ^ pattern.delta[lane];
    if (__builtin_expect(!difference && !(base & 3), 1)) return pattern.cost;
    for (uint32_t lane = 0; lane < kWarp; lane++) pattern.delta[lane] = address[lane] - base;
    pattern.active = base & 3 ? 0 : active;  // recognise word-aligned patterns only
    pattern.cost = RequestCost{};
    if (global)
      global_cost(address, active, site.counts.bytes, pattern.cost);
    else
      shared_cost(address, active, site.counts.bytes, site.counts.kind == kLoad, pattern.cost);
    return pattern.cost;
  }
};

}  // namespace emulator
