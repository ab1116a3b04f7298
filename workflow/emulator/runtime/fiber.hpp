// A fiber runs one GPU thread on its own stack until the thread reaches a synchronisation.
//
// The switch is written by hand because it takes about 60 ns; swapcontext asks the kernel to save the
// signal mask and takes fifteen times as long.
#pragma once
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>

extern "C" void emulated_switch_stack(void** save, void* load);

#if defined(__x86_64__)
asm(R"(
.text
.globl emulated_switch_stack
.hidden emulated_switch_stack
.type emulated_switch_stack,@function
emulated_switch_stack:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size emulated_switch_stack,.-emulated_switch_stack
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl emulated_switch_stack
.hidden emulated_switch_stack
.type emulated_switch_stack,%function
emulated_switch_stack:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
.size emulated_switch_stack,.-emulated_switch_stack
)");
#else
#error "the emulator switches stacks on x86-64 and arm64 only"
#endif

namespace emulator {

constexpr uint32_t kMaxThreads = 1024;
constexpr size_t kStackBytes = 64u << 10;

// All stacks lie side by side, so that one comparison tells local memory from the rest.
struct Stacks {
  char* begin = nullptr;
  size_t bytes = 0;

  bool reserve(uint32_t threads) {
    bytes = threads * kStackBytes;
    void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) return false;
    begin = static_cast<char*>(memory);
    // An overrun stops the process instead of spoiling the neighbour's stack.
    for (uint32_t i = 0; i < threads; i++)
      mprotect(begin + i * kStackBytes, (size_t)sysconf(_SC_PAGESIZE), PROT_NONE);
    return true;
  }
  // After every launch: guard pages are mappings, of which a process may have only some 65,000.
  void release() {
    if (begin) munmap(begin, bytes);
    begin = nullptr;
  }
  bool contains(uintptr_t address) const {
    return address - (uintptr_t)begin < bytes;
  }
  // The tops are staggered: equal offsets in every stack would share a few cache sets.
  char* top(uint32_t thread) const {
    char* end = begin + (thread + 1) * kStackBytes - 128 - (thread % 32) * 192;
    return (char*)((uintptr_t)end & ~(uintptr_t)63);
  }
};

// The stack pointer of a fiber that will begin in `start` when it is first switched to.
inline void* fiber_stack_pointer(char* top, void (*start)()) {
#if defined(__x86_64__)
  void** slot = (void**)top;
  *--slot = nullptr;  // keeps the alignment that a call leaves behind
  *--slot = (void*)start;
  for (int i = 0; i < 6; i++) *--slot = nullptr;
  return slot;
#else
  uint64_t* slot = (uint64_t*)(top - 160);
  memset(slot, 0, 160);
  slot[11] = (uint64_t)start;  // x30, the link register
  return slot;
#endif
}

}  // namespace emulator
