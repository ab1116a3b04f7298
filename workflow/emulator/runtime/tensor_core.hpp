// What the tensor-core instructions do with values: formats, layouts of fragments, tiles in shared memory.
//
// Operands are rounded as the hardware does it (of a TF32 operand it ignores the low 13 bits), products
// are exact. Their sum with what was there is formed in FP64 and rounded once to FP32: not what a tensor
// core's accumulator does, which cuts off bits in a way that NVIDIA does not publish.
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "counters.hpp"
#include "mbarrier.hpp"

namespace emulator {

inline float float_of_bits(uint32_t bits) {
  float value;
  memcpy(&value, &bits, 4);
  return value;
}
inline uint32_t bits_of_float(float value) {
  uint32_t bits;
  memcpy(&bits, &value, 4);
  return bits;
}
inline float tf32_operand(uint32_t bits) { return float_of_bits(bits & 0xffffe000u); }

inline float float_of_half(uint32_t half) {
  uint32_t sign = (half & 0x8000) << 16, exponent = half >> 10 & 31, fraction = half & 0x3ff;
  if (exponent == 31) return float_of_bits(sign | 0x7f800000 | fraction << 13);
  float value = exponent ? std::ldexp((float)(fraction | 0x400), (int)exponent - 25)
                         : std::ldexp((float)fraction, -24);
  return sign ? -value : value;
}
// To nearest even.
inline uint32_t half_of_float(float value) {
  uint32_t sign = bits_of_float(value) >> 16 & 0x8000;
  float magnitude = std::fabs(value);
  if (std::isnan(value)) return 0x7fff;
  if (magnitude >= 65520.0f) return sign | 0x7c00;
  // In units of the last place of the result, an integer after rounding; 2^-24 below the normal numbers.
  int exponent = magnitude < 0x1p-14f ? -14 : std::ilogb(magnitude);
  uint32_t units = (uint32_t)std::nearbyint(std::ldexp(magnitude, 10 - exponent));
  // A carry out of the fraction raises the exponent, as it should.
  return sign | (units + ((uint32_t)(exponent + 14) << 10));
}

// The element of a fragment of A (16 x k), B (k x 8) or a sum (16 x 8): see mma.cuh. FP16 has two of
// them in a register.
struct Place {
  uint32_t row, column;
};
inline Place place_in_a(uint32_t lane, uint32_t i, bool half, uint32_t part) {
  uint32_t across = half ? 2 * (lane % 4) + part : lane % 4;
  return {lane / 4 + i % 2 * 8, across + i / 2 * (half ? 8 : 4)};
}
inline Place place_in_b(uint32_t lane, uint32_t i, bool half, uint32_t part) {
  uint32_t down = half ? 2 * (lane % 4) + part : lane % 4;
  return {down + i * (half ? 8 : 4), lane / 4};
}
inline Place place_in_sum(uint32_t lane, uint32_t i) {
  return {lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + 2 * (lane % 4) + i % 2};
}

constexpr uint32_t kRows = 16;        // of A that one warp multiplies
constexpr uint32_t kMostDepth = 16;   // elements along k of one product
constexpr uint32_t kMostColumns = 256;

// One warp's share of a product: sum (16 x columns) = A (16 x depth) B (depth x columns) + sum.
struct Multiplication {
  float a[kRows][kMostDepth], b[kMostDepth][kMostColumns], sum[kRows][kMostColumns];

  void set_a(uint32_t lane, const uint32_t* registers, bool half) {
    for (uint32_t i = 0; i < 4; i++)
      for (uint32_t part = 0; part <= half; part++) {
        Place place = place_in_a(lane, i, half, part);
        a[place.row][place.column] =
            half ? float_of_half(registers[i] >> 16 * part & 0xffff) : tf32_operand(registers[i]);
      }
  }
  void set_b(uint32_t lane, const uint32_t* registers, bool half) {
    for (uint32_t i = 0; i < 2; i++)
      for (uint32_t part = 0; part <= half; part++) {
        Place place = place_in_b(lane, i, half, part);
        b[place.row][place.column] =
            half ? float_of_half(registers[i] >> 16 * part & 0xffff) : tf32_operand(registers[i]);
      }
  }
  void set_sum(uint32_t lane, const float* registers, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
      Place place = place_in_sum(lane, i);
      sum[place.row][place.column] = registers[i];
    }
  }
  void get_sum(uint32_t lane, float* registers, uint32_t count) const {
    for (uint32_t i = 0; i < count; i++) {
      Place place = place_in_sum(lane, i);
      registers[i] = sum[place.row][place.column];
    }
  }
  void run(uint32_t depth, uint32_t columns, bool accumulate) {
    double exact[kMostColumns];
    for (uint32_t row = 0; row < kRows; row++) {
      for (uint32_t j = 0; j < columns; j++) exact[j] = accumulate ? (double)sum[row][j] : 0.0;
      for (uint32_t k = 0; k < depth; k++) {
        double factor = a[row][k];
        for (uint32_t j = 0; j < columns; j++) exact[j] += factor * (double)b[k][j];
      }
      for (uint32_t j = 0; j < columns; j++) sum[row][j] = (float)exact[j];
    }
  }
};

// An operand of wgmma in shared memory, as its descriptor describes it (wgmma.cuh). A line is a row of A
// or a column of B.
struct OperandTile {
  uint64_t start;                   // in the shared window
  uint32_t leading, stride, width;  // width of the swizzle, bytes; 0: none
  bool half, transposed;            // transposed: not K-major

  OperandTile() = default;
  OperandTile(uint64_t descriptor, bool half_, bool transposed_)
      : start((descriptor & 0x3fff) << 4),
        leading((uint32_t)(descriptor >> 16 & 0x3fff) << 4),
        stride((uint32_t)(descriptor >> 32 & 0x3fff) << 4),
        width(descriptor >> 62 ? 256u >> (descriptor >> 62) : 0),
        half(half_),
        transposed(transposed_) {}

  uint32_t element_bytes() const { return half ? 2 : 4; }
  uint32_t row_bytes() const { return width ? width : 16; }
  // Of the start: a multiple of it, or within the first row where a product begins inside a tile's row.
  uint32_t alignment() const { return width ? 8 * width : 16; }
  bool aligned() const {
    uint64_t beyond = start % alignment();
    return !beyond || (!transposed && beyond + kMostDepth * 2 <= row_bytes());
  }
  // Byte of the element `k` of a line in the shared window.
  uint64_t offset(uint32_t line, uint32_t k) const {
    uint32_t bytes = element_bytes(), row = row_bytes();
    uint64_t at = start;
    if (transposed) {
      uint32_t in_row = row / bytes, group = line / in_row;
      at += k % 8 * row + line % in_row * bytes;
      at += width ? k / 8 * stride + group * leading : k / 8 * leading + group * stride;
    } else {
      uint32_t along = k * bytes;
      at += line % 8 * row + line / 8 * stride;
      at += width ? along : along / 16 * leading + along % 16;
    }
    return swizzled(at, width);
  }
  // Calls `piece` with the offset of each aligned run of 16 bytes that holds elements of `lines` lines
  // from `first` on.
  template <class Piece>
  void for_each_piece(uint32_t first, uint32_t lines, uint32_t depth, Piece piece) const {
    uint32_t elements = 16 / element_bytes();
    if (transposed) {
      for (uint32_t line = first; line < first + lines; line += elements)
        for (uint32_t k = 0; k < depth; k++) piece(offset(line, k));
    } else {
      for (uint32_t line = first; line < first + lines; line++)
        for (uint32_t k = 0; k < depth; k += elements) piece(offset(line, k));
    }
  }
};

// One wgmma of one warp, from its issue to the wait.
struct Product {
  uint32_t a[kWarp][4];  // the registers of A
  OperandTile a_tile, b_tile;
  bool a_in_registers, half, accumulate;
  bool readable;  // its tiles lie in shared memory
  uint32_t columns, sum;  // which of the warp's sums
  uint32_t serial, pc;

  uint32_t depth() const { return half ? 16 : 8; }
};

// The registers of a sum that products under way will write: poisoned until a wait has ended these.
struct PendingSum {
  float* registers[kWarp];
  uint32_t count, products, pc;
  std::vector<float> values;  // [lane][register]

  bool holds(uint32_t lane, uintptr_t address) const {
    return address - (uintptr_t)registers[lane] < count * sizeof(float);
  }
};

// What a warp has asked of wgmma.
struct WarpProducts {
  std::vector<Product> open_group;
  std::vector<std::vector<Product>> groups;
  std::vector<PendingSum> sums;  // those of no product are free
  uint32_t issued = 0;
  bool fenced = false;  // since the last wait

  bool under_way() const { return !open_group.empty() || !groups.empty(); }
};

}  // namespace emulator
