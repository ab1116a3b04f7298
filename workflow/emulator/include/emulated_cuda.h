// What a CUDA C++ kernel sees when g++ or clang++ compiles it for the emulator.
//
// The file is force-included before a .cu file, which stays as it is. A wrapper around inline PTX
// asks for LADDER_EMULATOR and calls the emulated_* function of the same meaning instead.
#pragma once
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <type_traits>
#include <utility>

#define LADDER_EMULATOR 1

// ---- keywords -----------------------------------------------------------------------------------
// A thread_local variable is static at block scope and legal with extern, as __shared__ is. The
// TLS segment of the kernel's library is therefore the shared memory of the one block that runs.
#define __shared__ thread_local __attribute__((aligned(16)))
#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __launch_bounds__(...)
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(bytes) __attribute__((aligned(bytes)))
#define warpSize 32
// CUDA allows alignas after __shared__, where C++ does not.
#define alignas(bytes) __attribute__((aligned(bytes)))
// __noinline__ is left alone: the standard headers of g++ use the word inside their own attributes.

// A barrier in two branches must stay two barriers, and one must stay one: clang may merge or copy
// calls that are not marked so.
#if defined(__clang__)
#define EMULATED_BARRIER __attribute__((noduplicate, convergent))
#else
#define EMULATED_BARRIER
#endif

// ---- vector types -------------------------------------------------------------------------------
// Copies are out of line (in the runtime), so that each is one 8- or 16-byte access at its call
// site, as LDG.64 and LDG.128 are. Inlined copies would be split into scalar loads. The default
// constructor stays trivial: a shared array of these types then needs no initialisation guard.
struct uint3 { unsigned x, y, z; };
struct dim3 {
  unsigned x, y, z;
  dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {}
};

#define EMULATED_VECTOR2(NAME, T)                                             \
  struct alignas(2 * sizeof(T)) NAME {                                        \
    T x, y;                                                                   \
    NAME() = default;                                                         \
    NAME(T x_, T y_) : x(x_), y(y_) {}                                        \
    NAME(const NAME&) noexcept;                                               \
    NAME& operator=(const NAME&) noexcept;                                    \
  };                                                                          \
  static inline NAME make_##NAME(T x, T y) { return NAME(x, y); }
#define EMULATED_VECTOR4(NAME, T)                                             \
  struct alignas(4 * sizeof(T)) NAME {                                        \
    T x, y, z, w;                                                             \
    NAME() = default;                                                         \
    NAME(T x_, T y_, T z_, T w_) : x(x_), y(y_), z(z_), w(w_) {}              \
    NAME(const NAME&) noexcept;                                               \
    NAME& operator=(const NAME&) noexcept;                                    \
  };                                                                          \
  static inline NAME make_##NAME(T x, T y, T z, T w) { return NAME(x, y, z, w); }
EMULATED_VECTOR2(float2, float)
EMULATED_VECTOR2(int2, int)
EMULATED_VECTOR2(uint2, unsigned)
EMULATED_VECTOR4(float4, float)
EMULATED_VECTOR4(int4, int)
EMULATED_VECTOR4(uint4, unsigned)
#undef EMULATED_VECTOR2
#undef EMULATED_VECTOR4

// ---- entry points of the runtime ----------------------------------------------------------------
extern "C" {
__attribute__((const)) uint3 emulated_thread_idx(void);
__attribute__((const)) uint3 emulated_block_idx(void);
__attribute__((const)) uint3 emulated_block_dim(void);
__attribute__((const)) uint3 emulated_grid_dim(void);
// `line` tells barriers apart: a compiler may copy one barrier to two places, or merge two that look
// alike.
EMULATED_BARRIER void emulated_syncthreads(unsigned line);
EMULATED_BARRIER int emulated_syncthreads_reduce(int predicate, int operation, unsigned line);
EMULATED_BARRIER void emulated_syncwarp(unsigned mask);
EMULATED_BARRIER uint64_t emulated_shuffle(unsigned mask, uint64_t value, int operand, int width,
                                           int mode);
EMULATED_BARRIER unsigned emulated_ballot(unsigned mask, int predicate);
unsigned emulated_activemask(void);
// Copies `bytes` to shared memory, of which the first `source_bytes` come from global memory and the
// rest are zeros. The copy takes place at the wait that completes its group.
void emulated_cp_async(void* shared, const void* global, unsigned bytes, unsigned source_bytes);
void emulated_cp_async_commit(void);
void emulated_cp_async_wait(unsigned pending_groups);
// The instructions of mbarrier.cuh, tma.cuh, cluster.cuh and flag.cuh.
void emulated_mbarrier_init(void* barrier, unsigned arrivals);
EMULATED_BARRIER void emulated_mbarrier_arrive(void* barrier, unsigned expected_bytes);
EMULATED_BARRIER void emulated_mbarrier_wait(void* barrier, unsigned parity);
void emulated_tma_load_2d(void* shared, const void* map, int column, int row, void* barrier);
unsigned emulated_cluster_rank(void);
unsigned emulated_cluster_size(void);
EMULATED_BARRIER void emulated_cluster_sync(void);
void emulated_cluster_load(void* value, const void* shared, unsigned rank);
EMULATED_BARRIER void emulated_flag_raise(unsigned* flag);
EMULATED_BARRIER void emulated_flag_await(unsigned* flag);
// The instructions of mma.cuh, proxy.cuh and wgmma.cuh. `line` is the kernel's, which tells whether the
// lanes of a warp are at one instruction. Operands: `half` is FP16, else TF32; of wgmma `a` or `a_tile`.
EMULATED_BARRIER void emulated_mma(float* sum, const unsigned* a, const unsigned* b, int half,
                                   unsigned line);
EMULATED_BARRIER void emulated_ldmatrix(unsigned* matrices, const void* row, int transposed,
                                        unsigned line);
EMULATED_BARRIER void emulated_fence_proxy_async(void);
EMULATED_BARRIER void emulated_wgmma_fence(unsigned line);
EMULATED_BARRIER void emulated_wgmma(float* sum, unsigned count, const unsigned* a, uint64_t a_tile,
                                     uint64_t b_tile, int accumulate, int half, int a_transposed,
                                     int b_transposed, unsigned line);
EMULATED_BARRIER void emulated_wgmma_commit(unsigned line);
EMULATED_BARRIER void emulated_wgmma_wait(unsigned pending_groups, unsigned line);
void emulated_wgmma_tile(const void* tile);
// Of shared memory: the offset in the block's window.
size_t emulated_shared_address(const void* address);
unsigned emulated_pack_f16(float low, float high);
float emulated_unpack_f16(unsigned half);
float emulated_atomic_add_float(float* address, float value);
int emulated_atomic_add_int(int* address, int value);
void emulated_trap(void);
}

#define threadIdx (emulated_thread_idx())
#define blockIdx (emulated_block_idx())
#define blockDim (emulated_block_dim())
#define gridDim (emulated_grid_dim())

#define __syncthreads() emulated_syncthreads(__LINE__)
#define __syncthreads_or(predicate) emulated_syncthreads_reduce((predicate) ? 1 : 0, 0, __LINE__)
#define __syncthreads_and(predicate) emulated_syncthreads_reduce((predicate) ? 1 : 0, 1, __LINE__)
#define __syncthreads_count(predicate) emulated_syncthreads_reduce((predicate) ? 1 : 0, 2, __LINE__)
#define __ballot_sync(mask, predicate) emulated_ballot((mask), (predicate) ? 1 : 0)
#define __any_sync(mask, predicate) (emulated_ballot((mask), (predicate) ? 1 : 0) != 0)
#define __all_sync(mask, predicate) (emulated_ballot((mask), (predicate) ? 0 : 1) == 0)
#define __activemask() emulated_activemask()
#define __trap() emulated_trap()

static __forceinline__ void __syncwarp(unsigned mask = 0xffffffffu) { emulated_syncwarp(mask); }

namespace emulated {
enum ShuffleMode { kShuffleIndex, kShuffleUp, kShuffleDown, kShuffleXor };
template <class T>
static __forceinline__ T shuffle(unsigned mask, T value, int operand, int width, ShuffleMode mode) {
  static_assert(sizeof(T) <= 8, "a shuffle moves at most 8 bytes");
  uint64_t bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = emulated_shuffle(mask, bits, operand, width, mode);
  T result;
  __builtin_memcpy(&result, &bits, sizeof(T));
  return result;
}
}  // namespace emulated

template <class T>
static __forceinline__ T __shfl_sync(unsigned mask, T value, int lane, int width = 32) {
  return emulated::shuffle(mask, value, lane, width, emulated::kShuffleIndex);
}
template <class T>
static __forceinline__ T __shfl_up_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return emulated::shuffle(mask, value, (int)delta, width, emulated::kShuffleUp);
}
template <class T>
static __forceinline__ T __shfl_down_sync(unsigned mask, T value, unsigned delta, int width = 32) {
  return emulated::shuffle(mask, value, (int)delta, width, emulated::kShuffleDown);
}
template <class T>
static __forceinline__ T __shfl_xor_sync(unsigned mask, T value, int lanes, int width = 32) {
  return emulated::shuffle(mask, value, lanes, width, emulated::kShuffleXor);
}

template <class T> static __forceinline__ T __ldg(const T* address) { return *address; }
template <class T> static __forceinline__ T __ldcg(const T* address) { return *address; }
template <class T> static __forceinline__ T __ldca(const T* address) { return *address; }
template <class T> static __forceinline__ T __ldcs(const T* address) { return *address; }
template <class T> static __forceinline__ void __stcs(T* address, T value) { *address = value; }
template <class T> static __forceinline__ void __stcg(T* address, T value) { *address = value; }
template <class T> static __forceinline__ void __stwt(T* address, T value) { *address = value; }
static __forceinline__ float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
static __forceinline__ float __fadd_rn(float a, float b) { return a + b; }
static __forceinline__ float __fmul_rn(float a, float b) { return a * b; }
static __forceinline__ float __int_as_float(int bits) {
  float value;
  __builtin_memcpy(&value, &bits, 4);
  return value;
}
static __forceinline__ int __float_as_int(float value) {
  int bits;
  __builtin_memcpy(&bits, &value, 4);
  return bits;
}
static __forceinline__ size_t __cvta_generic_to_shared(const void* address) {
  return emulated_shared_address(address);
}
static __forceinline__ float atomicAdd(float* address, float value) {
  return emulated_atomic_add_float(address, value);
}
static __forceinline__ int atomicAdd(int* address, int value) {
  return emulated_atomic_add_int(address, value);
}
static __forceinline__ void __threadfence(void) {}
static __forceinline__ void __threadfence_block(void) {}
// Of one type or of two, as CUDA has them.
template <class T, class U>
static __forceinline__ typename std::common_type<T, U>::type min(T a, U b) {
  return b < a ? b : a;
}
template <class T, class U>
static __forceinline__ typename std::common_type<T, U>::type max(T a, U b) {
  return a < b ? b : a;
}

// ---- the entry of the library: arguments as cudaLaunchKernel takes them --------------------------
#if defined(__clang__)
#define EMULATED_UNINSTRUMENTED __attribute__((no_sanitize("thread"), noinline))
#else
#define EMULATED_UNINSTRUMENTED __attribute__((no_sanitize_thread, noinline))
#endif
namespace emulated {
template <class... Arguments, size_t... I>
static EMULATED_UNINSTRUMENTED void call(void (*kernel)(Arguments...), void** arguments,
                                         std::index_sequence<I...>) {
  kernel(*(typename std::remove_reference<Arguments>::type*)arguments[I]...);
}
template <class... Arguments>
static EMULATED_UNINSTRUMENTED void unpack(void (*kernel)(Arguments...), void** arguments) {
  call(kernel, arguments, std::make_index_sequence<sizeof...(Arguments)>());
}
}  // namespace emulated
#define EMULATED_ENTRY(KERNEL)                                                  \
  extern "C" EMULATED_UNINSTRUMENTED void emulated_entry(void** arguments) {    \
    emulated::unpack(KERNEL, arguments);                                        \
  }
