// Linear tiles with AMX, for 16 and more rows of 8-bit activations: the same sums in the same order as tile_avx512.h,
// to the bit, so that a row does not depend on how many there are.
//
// A product of tiles sums one activation group of 32 rows times two panels; the sums leave through memory to be scaled,
// four groups at a time, so that a load seldom meets the store before it and a running sum is loaded once for all four.
// The codes of a stage are unpacked to signed bytes once for all rows.
//
// Measured (Sapphire Rapids, one core, weights in L2, 4864 x 896 and 896 x 4864, beside tile_avx512.h in the same run):
// w4g64 at 16 / 32 / 64 rows 1.4-1.6 / 1.6-1.7 / 1.9-2.0 x, up to 870 GOPS. Without scaling the tiles would do 2700,
// the scaling alone allows 1500; scaling one stage while the next one is multiplied was slower (the loads meet stores
// of tiles in flight).
#pragma once

#include "amx.h"
#include "kernels.h"
#include "linear/tile_avx512.h"

namespace fuse {
inline namespace FUSE_ISA {
namespace linear {

template <Fmt F>
class Amx {
 public:
  static void run(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
                  int64_t tile_ld) {
    if (m1 - m0 < 16) return Avx512::int_fn<F, ActType::a8>(w, a, m0, m1, p0, p1, tile, tile_ld);
    const MatrixTiles shapes(a.group);
    for (int32_t m = m0; m < m1; m += kMaxRows) {
      const int32_t rows = m1 - m < kMaxRows ? m1 - m : kMaxRows;
      Amx block(w, a, rows < 16 ? m1 - 16 : m, rows < 16 ? 16 : rows);
      float *out = tile + (block.m0_ - m0) * tile_ld;
      for (int32_t p = p0; p < p1; p += 2) block.panels(p, p1 - p < 2 ? 1 : 2, out + (p - p0) * kPanel, tile_ld);
    }
  }

 private:
  static constexpr int32_t kStage = 4, kMaxRows = 64, kBlocks = kMaxRows / 16;

  const Weight &w_;
  const Act &a_;
  const Walk<F> walk_;
  const int32_t m0_, rows_, blocks_;  // blocks of 16 rows; the last one ends with the last row
  const int64_t groups_;
  const uint8_t *panel_[2];
  alignas(64) int8_t codes_[2][kStage][1024];
  alignas(64) int32_t sums_[2][2][kStage][256];
  alignas(64) float totals_[kBlocks][2][256];

  Amx(const Weight &w, const Act &a, int32_t m0, int32_t rows)
      : w_(w), a_(a), walk_(w, a), m0_(m0), rows_(rows), blocks_((rows + 15) / 16), groups_(a.ld / a.group) {}

  int32_t row_of(int32_t block) const { return m0_ + (block * 16 + 16 < rows_ ? block * 16 : rows_ - 16); }

  void panels(int32_t p, int32_t count, float *out, int64_t ld) {
    for (int32_t i = 0; i < count; i++) panel_[i] = panel_at(w_, p + i);
    __builtin_memset(totals_, 0, size_t(blocks_) * sizeof totals_[0]);
    const int32_t live = live_groups(w_, a_);
    for (int32_t g = 0; g < live; g += kStage) {
      const int32_t groups = live - g < kStage ? live - g : kStage;
      for (int32_t j = 0; j < count; j++)
        for (int32_t i = 0; i < groups; i++) unpack(g + i, j, codes_[j][i]);
      for (int32_t b = 0; b < blocks_; b += 2) {
        if (count == 2) {
          if (b + 1 < blocks_) step<2, 2>(b, g, groups);
          else step<1, 2>(b, g, groups);
        } else {
          if (b + 1 < blocks_) step<2, 1>(b, g, groups);
          else step<1, 1>(b, g, groups);
        }
      }
    }
    for (int32_t b = 0; b < blocks_; b++)
      for (int32_t m = 0; m < 16; m++)
        for (int32_t j = 0; j < count; j++) {
          __m512 total = _mm512_load_ps(totals_[b][j] + m * 16);
          if constexpr (F == Fmt::w8) total = _mm512_mul_ps(total, _mm512_loadu_ps(panel_[j]));
          _mm512_storeu_ps(out + (row_of(b) - m0_ + m) * ld + j * kPanel, total);
        }
  }

  void unpack(int32_t g, int32_t j, int8_t *out) const {
    const uint8_t *quad = panel_[j] + walk_.quads(g), *fifths = quad - fifth_bytes(F);
    const __m512i zero = _mm512_set1_epi8(int8_t(zero_point(F)));
    for (int32_t q = 0; q < a_.group / 4; q++, quad += quad_bytes(F), fifths += 8, out += 64)
      _mm512_store_si512(out, _mm512_sub_epi8(load_codes<F>(quad, fifths), zero));
  }

  // R blocks of rows times P panels over the groups of a stage.
  template <int R, int P>
  void step(int32_t block, int32_t group, int32_t groups) {
    const int8_t *x = static_cast<const int8_t *>(a_.codes) + int64_t(group) * a_.group;
    const int8_t *upper = x + row_of(block) * a_.ld, *lower = R == 2 ? x + row_of(block + 1) * a_.ld : nullptr;
    for (int32_t i = 0; i < groups; i++, upper += a_.group, lower += a_.group) {
      tile_load<6>(codes_[0][i], 64);
      tile_load<4>(upper, a_.ld);
      if (P == 2) tile_load<7>(codes_[1][i], 64);
      if (R == 2) tile_load<5>(lower, a_.ld);
      tile_zero<0>();
      if (P == 2) tile_zero<1>();
      if (R == 2) tile_zero<2>();
      if (R == 2 && P == 2) tile_zero<3>();
      tile_dot_int8<0, 4, 6>();
      if (P == 2) tile_dot_int8<1, 4, 7>();
      if (R == 2) tile_dot_int8<2, 5, 6>();
      if (R == 2 && P == 2) tile_dot_int8<3, 5, 7>();
      tile_store<0>(sums_[0][0][i], 64);
      if (P == 2) tile_store<1>(sums_[0][1][i], 64);
      if (R == 2) tile_store<2>(sums_[1][0][i], 64);
      if (R == 2 && P == 2) tile_store<3>(sums_[1][1][i], 64);
    }
    for (int32_t r = 0; r < R; r++)
      for (int32_t j = 0; j < P; j++) {
        if (groups == kStage) scale<kStage>(block + r, j, group, sums_[r][j]);
        else
          for (int32_t i = 0; i < groups; i++) scale<1>(block + r, j, group + i, sums_[r][j] + i);
      }
  }

  // Adds the sums of G groups, scaled, to the running sums of one block of rows and one panel.
  template <int G>
  void scale(int32_t block, int32_t j, int32_t group, const int32_t (*sums)[256]) {
    float *total = totals_[block][j];
    const int64_t first = row_of(block) * groups_ + group;
    const float *act = a_.scales + first;
    const int32_t *acts = a_.sums + first;
    __m512 scales[G], minima[G];
#pragma GCC unroll 4
    for (int i = 0; i < G; i++) {
      const uint8_t *head = panel_[j] + walk_.head(group + i);
      if constexpr (F != Fmt::w8) scales[i] = load_column<Fmt::f16>(head);
      if constexpr (F == Fmt::w4a) minima[i] = load_column<Fmt::f16>(head + 32);
    }
    for (int m = 0; m < 16; m++, act += groups_, acts += groups_) {
      __m512 acc = _mm512_load_ps(total + m * 16);
#pragma GCC unroll 4
      for (int i = 0; i < G; i++) {
        __m512 factor = _mm512_set1_ps(act[i]);
        if constexpr (F != Fmt::w8) factor = _mm512_mul_ps(scales[i], factor);
        acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(sums[i] + m * 16)), factor, acc);
        if constexpr (F == Fmt::w4a) acc = _mm512_fmadd_ps(minima[i], _mm512_set1_ps(act[i] * float(acts[i])), acc);
      }
      _mm512_store_ps(total + m * 16, acc);
    }
  }
};

inline void fill_amx(Kernels &k) {
  k.tile[int(Fmt::w8)][int(ActType::a8)] = Amx<Fmt::w8>::run;
  k.tile[int(Fmt::w8g)][int(ActType::a8)] = Amx<Fmt::w8g>::run;
  k.tile[int(Fmt::w4)][int(ActType::a8)] = Amx<Fmt::w4>::run;
  k.tile[int(Fmt::w4a)][int(ActType::a8)] = Amx<Fmt::w4a>::run;
  k.tile[int(Fmt::w5)][int(ActType::a8)] = Amx<Fmt::w5>::run;
}

}  // namespace linear
}  // namespace FUSE_ISA
}  // namespace fuse
