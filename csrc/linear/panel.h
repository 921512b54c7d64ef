// Where things lie in a weight panel, and the numbers a format is made of. Plain C++ for every instruction set.
#pragma once

#include "contract.h"
#include "simd.h"
#include "simd.h"

namespace fuse {
inline namespace FUSE_ISA {
namespace linear {

constexpr bool is_float(Fmt f) { return f == Fmt::f32 || f == Fmt::f16 || f == Fmt::bf16; }
constexpr bool is_nibbles(Fmt f) { return f == Fmt::w4 || f == Fmt::w4a || f == Fmt::w5; }

constexpr int64_t quad_bytes(Fmt f) { return is_nibbles(f) ? 32 : 64; }  // 16 rows x 4 columns
constexpr int64_t fifth_bytes(Fmt f) { return f == Fmt::w5 ? 64 : 0; }   // of a group, right before its quads; 8 a quad
constexpr int64_t group_head(Fmt f) {                                    // scales, minima and fifth bits
  return f == Fmt::w8 ? 0 : (f == Fmt::w4a ? 64 : 32) + fifth_bytes(f);
}
constexpr int64_t panel_head(Fmt f) { return f == Fmt::w8 ? 64 : 0; }
constexpr int32_t zero_point(Fmt f) { return f == Fmt::w4 ? 8 : f == Fmt::w4a ? 0 : f == Fmt::w5 ? 16 : 128; }
constexpr int64_t float_bytes(Fmt f) { return f == Fmt::f32 ? 64 : 32; }                     // a column of a panel

inline const uint8_t *panel_at(const Weight &w, int32_t p) { return w.data + int64_t(p) * w.panel_bytes; }

// Quads are addressed by activation group, which is never wider than a weight group and divides it by a power of two;
// w8 has one endless group.
template <Fmt F>
struct Walk {
  int32_t shift = 0;
  int64_t weight_stride, act_stride;

  Walk(const Weight &w, const Act &a) {
    while (w.group > a.group << shift) shift++;
    act_stride = a.group / 4 * quad_bytes(F);
    weight_stride = group_head(F) + (act_stride << shift);
  }
  int64_t head(int32_t g) const { return panel_head(F) + (g >> shift) * weight_stride; }
  int64_t quads(int32_t g) const { return head(g) + group_head(F) + (g & ((1 << shift) - 1)) * act_stride; }
};

// Activation groups that hold columns of the matrix; padding beyond them is never read.
inline int32_t live_groups(const Weight &w, const Act &a) { return (w.k + a.group - 1) / a.group; }

inline uint16_t load16(const uint8_t *p) {
  uint16_t x;
  __builtin_memcpy(&x, p, 2);
  return x;
}

inline uint32_t load32(const uint8_t *p) {
  uint32_t x;
  __builtin_memcpy(&x, p, 4);
  return x;
}

inline uint64_t load64(const uint8_t *p) {
  uint64_t x;
  __builtin_memcpy(&x, p, 8);
  return x;
}

inline float load_half(const uint8_t *p) { return half_to_float(load16(p)); }

// Code of row r, column k of a group's quads.
template <Fmt F>
inline int32_t code_at(const uint8_t *quads, int32_t r, int32_t k) {
  const uint8_t *quad = quads + k / 4 * quad_bytes(F);
  if (!is_nibbles(F)) return quad[r * 4 + k % 4];
  const uint8_t both = quad[r % 8 * 4 + k % 4];
  const int32_t code = r < 8 ? both & 15 : both >> 4;
  if (F != Fmt::w5) return code;
  const uint8_t fifths = quads[k / 4 * 8 + r / 2 - fifth_bytes(F)];
  return code | (fifths >> (r % 2 * 4 + k % 4) & 1) << 4;
}

// Value of row r, column k of a float panel.
template <Fmt F>
inline float value_at(const uint8_t *panel, int32_t r, int64_t k) {
  const uint8_t *column = panel + k * float_bytes(F);
  if (F == Fmt::f32) return bits_float(load32(column + r * 4));
  if (F == Fmt::f16) return load_half(column + r * 2);
  return bits_float(uint32_t(load16(column + (r % 8 * 2 + r / 8) * 2)) << 16);
}

}  // namespace linear
}  // namespace FUSE_ISA
}  // namespace fuse
