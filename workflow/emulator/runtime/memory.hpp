// Where an address points: a global buffer, the shared window, a stack, or the library's own data.
#pragma once
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

namespace emulator {

constexpr uint32_t kMaxBuffers = 16;
constexpr uint32_t kSlotBits = 32;                  // 4 GiB of addresses a buffer
constexpr uint64_t kSlotBytes = 1ull << kSlotBits;
constexpr uint64_t kBufferOffset = 1ull << 30;      // inaccessible in front of each buffer

// Who wrote a word of a global buffer in this launch.
struct GlobalWriter {
  uint32_t thread_plus_one;  // over the whole grid; 0: nobody
  uint32_t epoch;            // barrier interval of the write
  uint32_t pc;
  uint32_t atomic : 1, time : 31;  // by the thread's vector clock, where the block keeps them
};

struct Buffer {
  uint64_t bytes = 0;
  GlobalWriter* writers = nullptr;  // allocated at the first checked write
};

// Each buffer lies alone in a slot of addresses: an index that is wrong by less than a gigabyte
// still falls into the slot of its own buffer, so that the report names the right array.
struct Arena {
  char* begin = nullptr;
  uint32_t count = 0;
  Buffer buffers[kMaxBuffers];

  bool contains(uintptr_t address) const {
    return address - (uintptr_t)begin < (uint64_t)kMaxBuffers * kSlotBytes;
  }
  uint32_t slot(uintptr_t address) const {
    return (uint32_t)((address - (uintptr_t)begin) >> kSlotBits);
  }
  // Bytes from the start of the slot's buffer; negative in front of it.
  int64_t offset(uintptr_t address) const {
    return (int64_t)((address - (uintptr_t)begin) & (kSlotBytes - 1)) - (int64_t)kBufferOffset;
  }
  void* allocate(uint64_t bytes) {
    if (!begin) {
      void* memory = mmap(nullptr, (uint64_t)kMaxBuffers * kSlotBytes, PROT_NONE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (memory == MAP_FAILED) return nullptr;
      begin = static_cast<char*>(memory);
    }
    uint64_t page = (uint64_t)sysconf(_SC_PAGESIZE);
    if (count == kMaxBuffers || bytes > kSlotBytes - 2 * kBufferOffset) return nullptr;
    char* start = begin + (uint64_t)count * kSlotBytes + kBufferOffset;
    if (mprotect(start, (bytes + page - 1) & ~(page - 1), PROT_READ | PROT_WRITE)) return nullptr;
    buffers[count++].bytes = bytes;
    return start;
  }
  void forget_writers() {
    for (uint32_t i = 0; i < count; i++) {
      free(buffers[i].writers);
      buffers[i].writers = nullptr;
    }
  }
  void release() {
    forget_writers();
    if (begin) munmap(begin, (uint64_t)kMaxBuffers * kSlotBytes);
    begin = nullptr;
    count = 0;
  }
  // Lets a reported access go ahead, so that one fault does not hide the next.
  bool make_accessible(uintptr_t address, uint32_t bytes) {
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t first = address & ~(page - 1), last = (address + bytes - 1) & ~(page - 1);
    return mprotect((void*)first, last - first + page, PROT_READ | PROT_WRITE) == 0;
  }
};

// The kernel's library: its load address, its data, and its TLS segment, which is shared memory.
struct Module {
  uintptr_t base = 0;
  char* shared = nullptr;
  uint64_t shared_bytes = 0;
  std::vector<std::pair<uintptr_t, uintptr_t>> segments;
  uintptr_t wanted = 0;

  // Looked up at every launch: each thread of the host process has its own TLS block.
  bool locate(uintptr_t code_address) {
    wanted = code_address;
    shared = nullptr;
    shared_bytes = 0;
    segments.clear();
    return dl_iterate_phdr(visit, this) == 1 && shared;
  }
  bool owns(uintptr_t address) const {
    for (auto& segment : segments)
      if (address >= segment.first && address < segment.second) return true;
    return false;
  }

 private:
  static int visit(struct dl_phdr_info* info, size_t, void* data) {
    Module* module = static_cast<Module*>(data);
    bool found = false;
    for (int i = 0; i < info->dlpi_phnum; i++) {
      auto& header = info->dlpi_phdr[i];
      if (header.p_type == PT_LOAD &&
          module->wanted - (info->dlpi_addr + header.p_vaddr) < header.p_memsz)
        found = true;
    }
    if (!found) return 0;
    module->base = info->dlpi_addr;
    for (int i = 0; i < info->dlpi_phnum; i++) {
      auto& header = info->dlpi_phdr[i];
      if (header.p_type == PT_LOAD)
        module->segments.push_back({info->dlpi_addr + header.p_vaddr,
                                    info->dlpi_addr + header.p_vaddr + header.p_memsz});
      if (header.p_type == PT_TLS) {
        module->shared = static_cast<char*>(info->dlpi_tls_data);
        module->shared_bytes = header.p_memsz;
      }
    }
    return 1;
  }
};

}  // namespace emulator
