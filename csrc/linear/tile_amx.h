// Linear tiles with AMX, for 16 and more rows of quantised activations: the same sums in the same order as
// tile_avx512.h, to the bit, so that a row does not depend on how many there are.
//
// A product of tiles sums one activation group of 32 rows times two panels. The sums leave through memory to be scaled,
// two or four groups (a stage) at a time, so that a load seldom meets the store before it and a running sum is loaded
// once for all of them. A stage of activations stays in L1 while up to 16 panels pass; their codes are unpacked to
// signed bytes once for all rows. 16-bit activations are two planes of bytes: 256 times the upper one plus the lower.
//
// Bytes moved: as in tile_avx512.h, and 4 bytes to L1 and back for each row, output and group. Bound: these and the
// scaling, about 1500 GOPS at group 64 (the tiles alone do 2700).
// Measured (Sapphire Rapids, one core, 4864 x 896), GOPS and the ratio to tile_avx512.h in one run, at 16 and 64 rows:
//   w4g64 x a8 577, 799 (1.46, 2.05), w4g32 x a8 427, 556 (1.31, 1.59), w4g32a x a8 370, 438 (1.36, 1.53),
//   w8 x a8 361, 541 (1.12, 1.52), w8 x a16 300, 355 (1.4, 1.7), w5g32 x a8 404, 529 (1.39, 1.81)
// Tried: scaling a stage while the next one is multiplied is slower, its loads meet stores of tiles in flight.
#pragma once

#include "amx.h"
#include "kernels.h"
#include "linear/tile_avx512.h"

namespace fuse {
inline namespace FUSE_ISA {
namespace linear {

template <Fmt F, ActType T, int Group>
class Amx {
 public:
  static void run(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
                  int64_t tile_ld) {
    const MatrixTiles shapes(Group);
    for (int32_t m = m0; m < m1; m += kRows) {
      const int32_t rows = m1 - m < 16 ? 16 : m1 - m < kRows ? m1 - m : kRows, row = m1 - m < 16 ? m1 - 16 : m;
      for (int32_t p = p0; p < p1; p += kPanels) {
        Amx block(w, a, row, rows, p, p1 - p < kPanels ? p1 - p : kPanels);
        block.multiply();
        block.store(tile + (row - m0) * tile_ld + (p - p0) * kPanel, tile_ld);
      }
    }
  }

 private:
  // Groups and columns of a stage: as many as leave room in L1.
  static constexpr int kStage = Group == 32 && T == ActType::a8 ? 4 : 2, kColumns = kStage * Group;
  static constexpr int kRows = 64, kPanels = 16, kPlanes = T == ActType::a8 ? 1 : 2;

  const Weight &w_;
  const Act &a_;
  const Walk<F> walk_;
  const int32_t row0_, rows_, blocks_, panel0_, panels_;  // blocks of 16 rows; the last one ends with the last row
  const int64_t groups_;
  alignas(64) int8_t codes_[2][kStage][Group * 16];
  alignas(64) uint8_t planes_[2][kRows][kColumns];  // of 16-bit activations: upper and lower bytes of a stage
  alignas(64) int32_t sums_[2][2][kPlanes][kStage][256];
  float corrections_[kRows][kStage];  // of minima: the sums of a stage of activations, scaled
  alignas(64) float totals_[kPanels][kRows / 16][256];

  Amx(const Weight &w, const Act &a, int32_t row0, int32_t rows, int32_t panel0, int32_t panels)
      : w_(w), a_(a), walk_(w, a), row0_(row0), rows_(rows), blocks_((rows + 15) / 16), panel0_(panel0),
        panels_(panels), groups_(a.ld / Group) {}

  // First row of a block, counted from row0_.
  int32_t start(int32_t block) const { return block * 16 + 16 < rows_ ? block * 16 : rows_ - 16; }

  void multiply() {
    __builtin_memset(totals_, 0, size_t(panels_) * sizeof totals_[0]);
    const int32_t live = live_groups(w_, a_);
    for (int32_t group = 0; group < live; group += kStage) {
      const int32_t groups = live - group < kStage ? live - group : kStage;
      if constexpr (T == ActType::a16) split(group, groups);
      if constexpr (F == Fmt::w4a) correct(group, groups);
      for (int32_t p = 0; p < panels_; p += 2) {
        const int32_t count = panels_ - p < 2 ? 1 : 2;
        for (int32_t j = 0; j < count; j++)
          for (int32_t i = 0; i < groups; i++) unpack(p + j, group + i, codes_[j][i]);
        for (int32_t b = 0; b < blocks_; b += 2) {
          const bool pair = b + 1 < blocks_;
          if (count == 2)
            pair ? step<2, 2>(b, p, group, groups) : step<1, 2>(b, p, group, groups);
          else
            pair ? step<2, 1>(b, p, group, groups) : step<1, 1>(b, p, group, groups);
        }
      }
    }
  }

  void store(float *tile, int64_t ld) const {
    for (int32_t p = 0; p < panels_; p++)
      for (int32_t b = 0; b < blocks_; b++)
        for (int32_t m = 0; m < 16; m++) {
          __m512 total = _mm512_load_ps(totals_[p][b] + m * 16);
          if constexpr (F == Fmt::w8) total = _mm512_mul_ps(total, _mm512_loadu_ps(panel_at(w_, panel0_ + p)));
          _mm512_storeu_ps(tile + (start(b) + m) * ld + p * kPanel, total);
        }
  }

  void unpack(int32_t p, int32_t group, int8_t *out) const {
    const uint8_t *quad = panel_at(w_, panel0_ + p) + walk_.quads(group), *fifths = quad - fifth_bytes(F);
    const __m512i zero = _mm512_set1_epi8(int8_t(zero_point(F)));
    for (int32_t q = 0; q < Group / 4; q++, quad += quad_bytes(F), fifths += 8, out += 64)
      _mm512_store_si512(out, _mm512_sub_epi8(load_codes<F>(quad, fifths), zero));
  }

  void correct(int32_t group, int32_t groups) {
    for (int32_t m = 0; m < rows_; m++)
      for (int32_t i = 0; i < groups; i++) {
        const int64_t at = (row0_ + m) * groups_ + group + i;
        corrections_[m][i] = a_.scales[at] * float(a_.sums[at]);
      }
  }

  // 32 codes a time; quads lie as k0 k2 k1 k3.
  void split(int32_t group, int32_t groups) {
    const int16_t *row = static_cast<const int16_t *>(a_.codes) + row0_ * a_.ld + int64_t(group) * Group;
    for (int32_t m = 0; m < rows_; m++, row += a_.ld)
      for (int32_t k = 0; k < groups * Group; k += 32) {
        const __m512i words = _mm512_loadu_si512(row + k);
        const __m256i upper = _mm512_cvtepi16_epi8(_mm512_srli_epi16(words, 8)), lower = _mm512_cvtepi16_epi8(words);
        _mm256_store_si256(reinterpret_cast<__m256i *>(planes_[0][m] + k), ordered(upper));
        _mm256_store_si256(reinterpret_cast<__m256i *>(planes_[1][m] + k), ordered(lower));
      }
  }

  static __m256i ordered(__m256i bytes) {
    const __m128i places = _mm_setr_epi8(0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15);
    return _mm256_shuffle_epi8(bytes, _mm256_broadcastsi128_si256(places));
  }

  // R blocks of rows times P panels over the groups of a stage.
  template <int R, int P>
  void step(int32_t block, int32_t p, int32_t group, int32_t groups) {
    for (int plane = 0; plane < kPlanes; plane++) {
      const uint8_t *x = planes_[plane][0];
      int64_t ld = sizeof planes_[0][0];
      if constexpr (T == ActType::a8) {
        ld = a_.ld;
        x = static_cast<const uint8_t *>(a_.codes) + row0_ * ld + int64_t(group) * Group;
      }
      const uint8_t *upper = x + start(block) * ld, *lower = x + start(R == 2 ? block + 1 : block) * ld;
      for (int32_t i = 0; i < groups; i++, upper += Group, lower += Group) {
        tile_load<6>(codes_[0][i], 64);
        tile_load<4>(upper, ld);
        if (P == 2) tile_load<7>(codes_[1][i], 64);
        if (R == 2) tile_load<5>(lower, ld);
        if (plane == 0) dots<R, P, true>(sums_, plane, i);
        else dots<R, P, false>(sums_, plane, i);
      }
    }
    for (int r = 0; r < R; r++)
      for (int j = 0; j < P; j++) {
        if (groups == kStage) scale<kStage>(block + r, p + j, group, sums_[r][j], 0);
        else
          for (int32_t i = 0; i < groups; i++) scale<1>(block + r, p + j, group + i, sums_[r][j], i);
      }
  }

  template <int R, int P, bool Signed>
  [[gnu::always_inline]] static void dots(int32_t (&sums)[2][2][kPlanes][kStage][256], int plane, int32_t i) {
    tile_zero<0>();
    if (P == 2) tile_zero<1>();
    if (R == 2) tile_zero<2>();
    if (R == 2 && P == 2) tile_zero<3>();
    tile_dot_int8<0, 4, 6, Signed>();
    if (P == 2) tile_dot_int8<1, 4, 7, Signed>();
    if (R == 2) tile_dot_int8<2, 5, 6, Signed>();
    if (R == 2 && P == 2) tile_dot_int8<3, 5, 7, Signed>();
    tile_store<0>(sums[0][0][plane][i], 64);
    if (P == 2) tile_store<1>(sums[0][1][plane][i], 64);
    if (R == 2) tile_store<2>(sums[1][0][plane][i], 64);
    if (R == 2 && P == 2) tile_store<3>(sums[1][1][plane][i], 64);
  }

  // Adds the sums of G groups of a stage from the i-th, scaled, to the running sums of one block of rows and one panel.
  template <int G>
  void scale(int32_t block, int32_t p, int32_t group, const int32_t (&sums)[kPlanes][kStage][256], int32_t i0) {
    float *total = totals_[p][block];
    const float *act = a_.scales + (row0_ + start(block)) * groups_ + group;
    const float *corrections = corrections_[start(block)] + i0;
    __m512 scales[G], minima[G];
#pragma GCC unroll 4
    for (int i = 0; i < G; i++) {
      const uint8_t *head = panel_at(w_, panel0_ + p) + walk_.head(group + i);
      if constexpr (F != Fmt::w8) scales[i] = load_column<Fmt::f16>(head);
      if constexpr (F == Fmt::w4a) minima[i] = load_column<Fmt::f16>(head + 32);
    }
    for (int m = 0; m < 16; m++, act += groups_, corrections += kStage) {
      __m512 acc = _mm512_load_ps(total + m * 16);
#pragma GCC unroll 4
      for (int i = 0; i < G; i++) {
        __m512i sum = _mm512_load_si512(sums[0][i0 + i] + m * 16);
        if constexpr (T == ActType::a16)
          sum = _mm512_add_epi32(_mm512_slli_epi32(sum, 8), _mm512_load_si512(sums[1][i0 + i] + m * 16));
        __m512 factor = _mm512_set1_ps(act[i]);
        if constexpr (F != Fmt::w8) factor = _mm512_mul_ps(scales[i], factor);
        acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factor, acc);
        if constexpr (F == Fmt::w4a) acc = _mm512_fmadd_ps(minima[i], _mm512_set1_ps(corrections[i]), acc);
      }
      _mm512_store_ps(total + m * 16, acc);
    }
  }
};

template <Fmt F, ActType T>
void amx_tile(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
              int64_t tile_ld) {
  const TileFn run = m1 - m0 < 16 ? Avx512::int_fn<F, T> : a.group == 32 ? Amx<F, T, 32>::run : Amx<F, T, 64>::run;
  run(w, a, m0, m1, p0, p1, tile, tile_ld);
}

template <Fmt F>
inline void fill_amx(Kernels &k) {
  k.tile[int(F)][int(ActType::a8)] = amx_tile<F, ActType::a8>;
  k.tile[int(F)][int(ActType::a16)] = amx_tile<F, ActType::a16>;
}

inline void fill_amx(Kernels &k) {
  fill_amx<Fmt::w8>(k);
  fill_amx<Fmt::w8g>(k);
  fill_amx<Fmt::w4>(k);
  fill_amx<Fmt::w4a>(k);
  fill_amx<Fmt::w5>(k);
}

}  // namespace linear
}  // namespace FUSE_ISA
}  // namespace fuse
