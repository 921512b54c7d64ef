// Linear tiles in plain C++: the portable fallback, and the statement of what the other variants compute.
//
// For every row and output: integer codes are summed exactly over one activation group, then
//     acc = fma(sum of codes, weight scale * activation scale, acc)           group after group
//     acc = fma(minimum, activation scale * sum of activation codes, acc)     where the format has minima
// so the result of a row depends on nothing but its values, and all variants agree bit for bit.
#pragma once

#include "linear/panel.h"

namespace fuse {
inline namespace FUSE_ISA {
namespace linear {

template <Fmt F>
void scalar_float_tile(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
                       int64_t tile_ld) {
  for (int32_t p = p0; p < p1; p++) {
    for (int32_t m = m0; m < m1; m++) {
      const float *x = static_cast<const float *>(a.codes) + m * a.ld;
      float acc[kPanel] = {};
      for (int32_t k = 0; k < w.k; k++)
        for (int32_t r = 0; r < kPanel; r++) acc[r] += value_at<F>(panel_at(w, p), r, k) * x[k];
      __builtin_memcpy(tile + (m - m0) * tile_ld + (p - p0) * kPanel, acc, sizeof acc);
    }
  }
}

// The code of column j of a quad; int16 quads are stored k0 k2 k1 k3.
template <ActType T>
inline int32_t act_code(const void *row, int64_t k) {
  if (T == ActType::a8) return static_cast<const int8_t *>(row)[k];
  constexpr int32_t place[4] = {0, 2, 1, 3};
  return static_cast<const int16_t *>(row)[k / 4 * 4 + place[k % 4]];
}

template <ActType T>
inline const void *act_row(const Act &a, int64_t m) {
  return static_cast<const uint8_t *>(a.codes) + m * a.ld * (T == ActType::a8 ? 1 : 2);
}

template <Fmt F, ActType T>
void scalar_row(const Weight &w, const Act &a, int32_t m, const uint8_t *panel, float *acc) {
  const Walk<F> walk(w, a);
  const int64_t groups = a.ld / a.group;
  for (int32_t g = 0; g < live_groups(w, a); g++) {
    const uint8_t *head = panel + walk.head(g), *quads = panel + walk.quads(g);
    const float scale = a.scales[m * groups + g];
    const int32_t total = a.sums[m * groups + g];
    int32_t sum[kPanel];
    for (int32_t r = 0; r < kPanel; r++) sum[r] = -zero_point(F) * total;
    for (int32_t k = 0; k < a.group; k++) {
      const int32_t x = act_code<T>(act_row<T>(a, m), int64_t(g) * a.group + k);
      for (int32_t r = 0; r < kPanel; r++) sum[r] += code_at<F>(quads, r, k) * x;
    }
    for (int32_t r = 0; r < kPanel; r++) {
      const float factor = F == Fmt::w8 ? scale : load_half(head + 2 * r) * scale;
      acc[r] = __builtin_fmaf(float(sum[r]), factor, acc[r]);
      if (F == Fmt::w4a) acc[r] = __builtin_fmaf(load_half(head + 32 + 2 * r), scale * float(total), acc[r]);
    }
  }
}

template <Fmt F, ActType T>
void scalar_int_tile(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
                     int64_t tile_ld) {
  for (int32_t p = p0; p < p1; p++) {
    for (int32_t m = m0; m < m1; m++) {
      const uint8_t *panel = panel_at(w, p);
      float acc[kPanel] = {};
      scalar_row<F, T>(w, a, m, panel, acc);
      for (int32_t r = 0; F == Fmt::w8 && r < kPanel; r++) acc[r] *= bits_float(load32(panel + 4 * r));
      __builtin_memcpy(tile + (m - m0) * tile_ld + (p - p0) * kPanel, acc, sizeof acc);
    }
  }
}

struct Scalar {
  template <Fmt F>
  static constexpr TileFn float_tile() { return scalar_float_tile<F>; }
  template <Fmt F, ActType T>
  static constexpr TileFn int_tile() { return scalar_int_tile<F, T>; }
};

}  // namespace linear
}  // namespace FUSE_ISA
}  // namespace fuse
