// Vector clocks: which accesses of which thread happened before what a thread does now.
//
// A barrier of the block orders everything at once, and epochs (shadow.hpp) are all that it needs. An
// mbarrier orders some threads of an epoch with some others, so a block that initialises one keeps
// clocks from then on. A thread stamps its accesses with its time. An arrival publishes what the
// thread knows and its time, and a new time begins; a completed wait learns what was published. What
// TMA writes is stamped by the mbarrier that it reports to: a writer of its own, whose time is the
// number of phases completed. What wgmma reads is stamped by a reader of its own for each warp, whose time
// is the number of products issued; the warp's lanes learn it at the wait.
//
// Writes of threads reach wgmma only through a fence of the async proxy. The second half of a clock, there
// once any thread has fenced, holds the times of writes that are behind such a fence.
#pragma once
#include <algorithm>
#include <cstdint>
#include <vector>

#include "counters.hpp"

namespace emulator {

// A time for each thread, mbarrier and reader of products; 0: nothing. Then, perhaps, the same of what
// is fenced.
using Clock = std::vector<uint32_t>;

struct WriteStamp {
  uint32_t writer, time;
};

// The latest reads of a word by the lanes of one warp. Lanes that are in step have one time; those of
// a warp whose leader alone arrives have two. A third would drop the older, so that a race may be
// missed there, but none is invented.
struct ReadStamps {
  uint32_t time[2], lanes[2];
};

// Barriers beyond these share a writer, which hides no order and may hide a race.
constexpr uint32_t kBarrierWriters = 64;

class Clocks {
 public:
  bool on = false;

  // All threads begin at a time after that of what they did before, which the others do not know but
  // for what the last synchronisation of their own warp has ordered.
  void start(uint32_t threads, uint64_t words, const uint16_t* warp_epoch) {
    on = true;
    threads_ = threads;
    warps_ = (threads + kWarp - 1) / kWarp;
    time_.resize(threads);
    known_.assign(threads, nothing());
    passed_.assign(threads, kBeforeClocks);
    fenced_for_all_.assign(threads, 0);
    writes_.resize(words);
    reads_.resize(words * (warps_ + 1));
    for (uint32_t thread = 0; thread < threads; thread++) {
      uint32_t warp = thread / kWarp, end = std::min(threads, (warp + 1) * kWarp);
      time_[thread] = stamp_of(warp_epoch[warp]);
      for (uint32_t lane = warp * kWarp; lane < end; lane++)
        known_[thread][lane] = time_[thread] - 1;
    }
  }
  // Of writes in earlier intervals of a block's barrier, before there were clocks.
  static constexpr uint32_t kBeforeClocks = 1;
  static uint32_t stamp_of(uint16_t warp_epoch) { return kBeforeClocks + 1 + warp_epoch; }
  uint32_t barrier_writer(size_t barrier) const {
    return threads_ + (uint32_t)(barrier % kBarrierWriters);
  }
  Clock nothing() const { return Clock(entries(), 0); }

  // -- edges --

  void publish(uint32_t thread, Clock& to) {
    join(to, known_[thread]);
    to[thread] = time_[thread]++;
  }
  void learn(uint32_t thread, const Clock& from) { join(known_[thread], from); }
  static void join(Clock& to, const Clock& from) {
    if (to.size() < from.size()) to.resize(from.size());
    for (size_t i = 0; i < from.size(); i++) to[i] = std::max(to[i], from[i]);
  }
  // A synchronisation of some lanes of a warp.
  void join_lanes(uint32_t first_thread, uint32_t lanes) {
    Clock& all = joined_;
    all = nothing();
    uint32_t latest = 0;
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      uint32_t thread = first_thread + (uint32_t)__builtin_ctz(rest);
      join(all, known_[thread]);
      all[thread] = time_[thread];
      latest = std::max(latest, time_[thread]);
    }
    for (uint32_t rest = lanes; rest; rest &= rest - 1) {
      uint32_t thread = first_thread + (uint32_t)__builtin_ctz(rest);
      known_[thread] = all;
      time_[thread] = latest + 1;
    }
  }

  // A barrier of the block. Epochs order what came before; the fences among it are known to all.
  void pass_block_barrier() {
    for (uint32_t thread = 0; thread < threads_; thread++) {
      passed_[thread] = time_[thread]++;
      if (known_[thread].size() == entries()) continue;
      for (uint32_t writer = 0; writer < threads_; writer++)
        fenced_for_all_[writer] =
            std::max(fenced_for_all_[writer], known_[thread][entries() + writer]);
    }
  }
  // A fence of the async proxy: covers the thread's own writes so far, and those that it knows of.
  void fence(uint32_t thread) {
    Clock& known = known_[thread];
    known.resize(2 * entries());
    for (uint32_t writer = 0; writer < threads_; writer++) {
      uint32_t& fenced = known[entries() + writer];
      fenced = std::max(fenced, std::max(known[writer], passed_[writer]));
    }
    known[entries() + thread] = time_[thread]++;
  }
  // The lanes of a warp learn that its products up to `serial` have read their operands.
  void learn_products(uint32_t warp, uint32_t serial) {
    uint32_t end = std::min(threads_, (warp + 1) * kWarp);
    for (uint32_t thread = warp * kWarp; thread < end; thread++)
      known_[thread][product_reader(warp)] = serial;
  }

  // -- accesses --

  // What all lanes of a warp know, the own accesses of each left out.
  Clock common_knowledge(uint32_t warp) const {
    uint32_t first = warp * kWarp, end = std::min(threads_, first + kWarp);
    Clock common(2 * entries(), UINT32_MAX);
    for (uint32_t thread = first; thread < end; thread++) {
      const Clock& known = known_[thread];
      uint32_t own = common[thread];
      for (size_t i = 0; i < known.size(); i++) common[i] = std::min(common[i], known[i]);
      common[thread] = own;
      for (size_t i = known.size(); i < common.size(); i++) common[i] = 0;
    }
    for (uint32_t writer = 0; writer < threads_; writer++) {
      uint32_t& fenced = common[entries() + writer];
      fenced = std::max(fenced, fenced_for_all_[writer]);
    }
    return common;
  }
  // Whether whoever knows this knows the last write of a word.
  bool includes_write(const Clock& knowledge, uint64_t word) const {
    return knowledge[writes_[word].writer] >= writes_[word].time;
  }
  // The same of a fence behind that write; copies of TMA need none.
  bool includes_fence(const Clock& knowledge, uint64_t word) const {
    const WriteStamp& write = writes_[word];
    return write.writer >= threads_ || knowledge[entries() + write.writer] >= write.time;
  }
  uint32_t time(uint32_t thread) const { return time_[thread]; }
  bool knows(uint32_t thread, uint32_t writer, uint32_t time) const {
    return writer == thread || known_[thread][writer] >= time;
  }
  bool knows_write(uint32_t thread, uint64_t word) const {
    return knows(thread, writes_[word].writer, writes_[word].time);
  }
  void note_write(uint64_t word, uint32_t writer, uint32_t time) {
    writes_[word] = WriteStamp{writer, time};
  }
  void forget_reads(uint64_t word) {
    std::fill_n(reads_.begin() + (long)(word * (warps_ + 1)), warps_ + 1, ReadStamps{});
  }
  void note_read(uint64_t word, uint32_t thread, uint32_t time) {
    ReadStamps& reads = reads_[word * (warps_ + 1) + thread / kWarp];
    uint32_t lane = 1u << thread % kWarp;
    for (int i = 0; i < 2; i++)
      if (reads.lanes[i] && reads.time[i] == time) {
        reads.lanes[i] |= lane;
        reads.lanes[1 - i] &= ~lane;
        return;
      }
    for (int i = 0; i < 2; i++)  // what this read knows of needs no record beside it
      for (uint32_t rest = reads.lanes[i]; rest; rest &= rest - 1) {
        uint32_t reader = thread / kWarp * kWarp + (uint32_t)__builtin_ctz(rest);
        if (knows(thread, reader, reads.time[i])) reads.lanes[i] &= ~(rest & -rest);
      }
    int place = !reads.lanes[0] ? 0 : !reads.lanes[1] ? 1 : reads.time[0] < reads.time[1] ? 0 : 1;
    reads.time[place] = time;
    reads.lanes[place] = lane;
  }
  // Product number `serial` of a warp. Warps that are in step have one time, as lanes above.
  void note_product_read(uint64_t word, uint32_t warp, uint32_t serial) {
    ReadStamps& reads = reads_[word * (warps_ + 1) + warps_];
    uint32_t bit = 1u << warp;
    for (uint32_t& warps : reads.lanes) warps &= ~bit;
    int place = reads.lanes[0] && reads.time[0] == serial   ? 0
                : reads.lanes[1] && reads.time[1] == serial ? 1
                : !reads.lanes[0]                           ? 0
                : !reads.lanes[1]                           ? 1
                : reads.time[0] < reads.time[1]             ? 0
                                                            : 1;
    if (reads.time[place] != serial) reads.lanes[place] = 0;
    reads.time[place] = serial;
    reads.lanes[place] |= bit;
  }
  // A reader of whose access the thread does not know, or -1: a thread, or the first of the warp whose
  // product reads.
  int64_t unknown_reader(uint64_t word, uint32_t thread) const {
    const ReadStamps* of_word = &reads_[word * (warps_ + 1)];
    for (int i = 0; i < 2; i++)
      for (uint32_t rest = of_word[warps_].lanes[i]; rest; rest &= rest - 1) {
        uint32_t warp = (uint32_t)__builtin_ctz(rest);
        if (known_[thread][product_reader(warp)] < of_word[warps_].time[i]) return warp * kWarp;
      }
    for (uint32_t warp = 0; warp < warps_; warp++)
      for (int i = 0; i < 2; i++)
        for (uint32_t rest = of_word[warp].lanes[i]; rest; rest &= rest - 1) {
          uint32_t reader = warp * kWarp + (uint32_t)__builtin_ctz(rest);
          if (!knows(thread, reader, of_word[warp].time[i])) return reader;
        }
    return -1;
  }

 private:
  uint32_t threads_ = 0, warps_ = 0;
  Clock time_;                     // [thread]
  std::vector<Clock> known_;       // [thread][writer or reader]
  Clock passed_;                   // [thread]: its time at the last barrier of the block
  Clock fenced_for_all_;           // [thread]: its writes up to this are behind a fence before that
  std::vector<WriteStamp> writes_;
  std::vector<ReadStamps> reads_;  // [word][warp], then one with a bit for the products of each warp

  uint32_t entries() const { return threads_ + kBarrierWriters + warps_; }
  uint32_t product_reader(uint32_t warp) const { return threads_ + kBarrierWriters + warp; }
  Clock joined_;
};

}  // namespace emulator
