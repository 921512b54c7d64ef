// Linear tiles with AVX-512 and VNNI: one register is the 16 rows of a panel, so nothing is summed across lanes.
//
// Bytes moved: the packed weights once; activations and tiles stay in L1 and L2. Bound expected: memory rate up to
// about 8 rows, above it two vpdpbusd (64 MAC each, 32 for int16 activations) or two FMAs (16 MAC) a cycle, less one
// unpacking step a quad for w4. Four-bit quads are loaded twice into one register and shifted by half (vpsrlvd), so
// both nibbles cost one shift and one AND; fifth bits are a mask under which 16 is added.
//
// Measured on one busy Sapphire Rapids core (weights in L2, GOPS; its int8 ceiling 631, FMA 164), rows 1 / 8 / 64:
//   f32 15 / 108 / 148, bf16 43 / 135 / 135, w8 x a8 199 / 518 / 527, w8 x a16 97 / 271 / 273,
//   w4g64 x a8 172 / 442 / 456, w4g32 x a8 156 / 354 / 310 (half the products a scaling), w4g32a x a8 140 / 270 / 271
// Tried: unrolling over an unknown number of quads and dividing by the group in the loop cost 15-25 %.
#pragma once

#include <immintrin.h>

#include "linear/blocking.h"

namespace fuse {
inline namespace FUSE_ISA {
namespace linear {

inline __m512i twice(const uint8_t *p) {
  return _mm512_broadcast_i64x4(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
}

// Shift counts: none for rows 0-7, `n` for rows 8-15.
inline __m512i upper_half(int n) { return _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(n), 1); }

template <Fmt F>
inline __m512 load_column(const uint8_t *p) {
  if constexpr (F == Fmt::f32) return _mm512_loadu_ps(p);
  if constexpr (F == Fmt::f16) return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
  const __m512i counts = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi32(16), 0);
  const __m512i value = _mm512_sllv_epi32(twice(p), counts);
  return _mm512_castsi512_ps(_mm512_and_si512(value, _mm512_set1_epi32(int(0xffff0000))));
}

template <Fmt F>
struct FloatSpans512 {
  static constexpr int kRows = 8, kTileWide = 2;
  static constexpr int wide(int m) { return m <= 4 ? 4 : 2; }

  template <int M, int P>
  [[gnu::noinline]] static void run(const Span &s) {
    const float *x = static_cast<const float *>(s.a.codes) + s.row * s.a.ld;
    const int64_t ld = s.a.ld, stride = s.w.panel_bytes;
    __m512 acc[P][M];
#pragma GCC unroll 8
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) acc[p][m] = _mm512_loadu_ps(s.tile + m * s.tile_ld + p * kPanel);
    const uint8_t *w = s.panel + s.begin * float_bytes(F);
    for (int32_t k = s.begin; k < s.end; k++, w += float_bytes(F)) {
      __m512 column[P];
#pragma GCC unroll 8
      for (int p = 0; p < P; p++) column[p] = load_column<F>(w + p * stride);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const __m512 value = _mm512_set1_ps(x[m * ld + k]);
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) acc[p][m] = _mm512_fmadd_ps(column[p], value, acc[p][m]);
      }
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) _mm512_storeu_ps(s.tile + m * s.tile_ld + p * kPanel, acc[p][m]);
  }
};

// One quad of 16 rows as unsigned bytes; `fifths` are its fifth bits where the format has them.
template <Fmt F>
inline __m512i load_codes(const uint8_t *quad, const uint8_t *fifths) {
  if constexpr (!is_nibbles(F)) return _mm512_loadu_si512(quad);
  const __m512i codes = _mm512_and_si512(_mm512_srlv_epi32(twice(quad), upper_half(4)), _mm512_set1_epi8(15));
  if constexpr (F != Fmt::w5) return codes;
  return _mm512_mask_add_epi8(codes, _cvtu64_mask64(load64(fifths)), codes, _mm512_set1_epi8(16));
}

inline __m512i broadcast32(const uint8_t *p) { return _mm512_set1_epi32(int(load32(p))); }

// out += one group's sums, scaled.
template <Fmt F>
[[gnu::always_inline]] inline void add_scaled(__m512i sum, __m512 scales, __m512 minima, float act, int32_t total,
                                              float *out) {
  __m512 factor = _mm512_set1_ps(act);
  if constexpr (F != Fmt::w8) factor = _mm512_mul_ps(scales, factor);
  __m512 acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum), factor, _mm512_loadu_ps(out));
  if constexpr (F == Fmt::w4a) acc = _mm512_fmadd_ps(minima, _mm512_set1_ps(act * float(total)), acc);
  _mm512_storeu_ps(out, acc);
}

template <Fmt F, ActType T>
struct IntSpans512 {
  static constexpr int kRows = 8, kTileWide = 2;
  static constexpr int wide(int m) { return m <= 4 ? 4 : 2; }

  static constexpr int64_t kQuad = T == ActType::a8 ? 4 : 8;  // bytes of four activations

  template <int M, int P>
  [[gnu::noinline]] static void run(const Span &span) {
    const Walk<F> walk(span.w, span.a);
    Codes x(span, kQuad);
    const uint8_t *panel = span.panel;
    const int64_t stride = span.w.panel_bytes, tile_ld = span.tile_ld;
    const int32_t end = span.end, quads = span.a.group / 4;
    float *tile = span.tile;
    for (int32_t g = span.begin; g < end; g++, x.next_group()) {
      __m512i sum[P][M];
#pragma GCC unroll 8
      for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) sum[p][m] = _mm512_set1_epi32(-zero_point(F) * x.sums[m * x.groups]);
      const uint8_t *quad = panel + walk.quads(g), *fifths = quad - fifth_bytes(F);
      for (int32_t q = 0; q < quads; q += 4)
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++, quad += quad_bytes(F), fifths += 8, x.next_quad(kQuad))
          dot<M, P>(quad, fifths, stride, x, sum);
      scale<M, P>(panel + walk.head(g), stride, x, sum, tile, tile_ld);
    }
  }

  // One quad: exact, so the order does not matter.
  template <int M, int P>
  [[gnu::always_inline]] static void dot(const uint8_t *quad, const uint8_t *fifths, int64_t stride, const Codes &x,
                                         __m512i (&sum)[P][M]) {
    __m512i codes[P];
#pragma GCC unroll 8
    for (int p = 0; p < P; p++) codes[p] = load_codes<F>(quad + p * stride, fifths + p * stride);
    if constexpr (T == ActType::a8) {
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const __m512i value = broadcast32(x.row(m));
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) sum[p][m] = _mm512_dpbusd_epi32(sum[p][m], codes[p], value);
      }
    } else {
#pragma GCC unroll 2
      for (int pair = 0; pair < 2; pair++) {  // columns 0 and 2, then 1 and 3
        __m512i half[P];
#pragma GCC unroll 8
        for (int p = 0; p < P; p++)
          half[p] = pair ? _mm512_srli_epi16(codes[p], 8) : _mm512_and_si512(codes[p], _mm512_set1_epi16(255));
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
          const __m512i value = broadcast32(x.row(m) + pair * 4);
#pragma GCC unroll 8
          for (int p = 0; p < P; p++) sum[p][m] = _mm512_dpwssd_epi32(sum[p][m], half[p], value);
        }
      }
    }
  }

  template <int M, int P>
  [[gnu::always_inline]] static void scale(const uint8_t *head, int64_t stride, const Codes &x,
                                           const __m512i (&sum)[P][M], float *tile, int64_t tile_ld) {
#pragma GCC unroll 8
    for (int p = 0; p < P; p++, head += stride) {
      __m512 scales = _mm512_undefined_ps(), minima = _mm512_undefined_ps();
      if constexpr (F != Fmt::w8) scales = load_column<Fmt::f16>(head);
      if constexpr (F == Fmt::w4a) minima = load_column<Fmt::f16>(head + 32);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++)
        add_scaled<F>(sum[p][m], scales, minima, x.scales[m * x.groups], x.sums[m * x.groups],
                      tile + m * tile_ld + p * kPanel);
    }
  }
};

struct Avx512 {
  template <Fmt F>
  static void float_fn(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
                       int64_t tile_ld) {
    Blocking<FloatSpans512<F>>::tile(w, a, m0, m1, p0, p1, tile, tile_ld, w.k, F == Fmt::f32 ? 256 : 512);
  }

  template <Fmt F, ActType T>
  static void int_fn(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
                     int64_t tile_ld) {
    Blocking<IntSpans512<F, T>>::tile(w, a, m0, m1, p0, p1, tile, tile_ld, live_groups(w, a), 1024 / a.group);
    if constexpr (F == Fmt::w8) channel_scales(w, m1 - m0, p0, p1, tile, tile_ld);
  }

  static void channel_scales(const Weight &w, int32_t rows, int32_t p0, int32_t p1, float *tile, int64_t tile_ld) {
    for (int32_t m = 0; m < rows; m++)
      for (int32_t p = p0; p < p1; p++) {
        float *out = tile + m * tile_ld + (p - p0) * kPanel;
        _mm512_storeu_ps(out, _mm512_mul_ps(_mm512_loadu_ps(out), _mm512_loadu_ps(panel_at(w, p))));
      }
  }

  template <Fmt F>
  static constexpr TileFn float_tile() { return float_fn<F>; }
  template <Fmt F, ActType T>
  static constexpr TileFn int_tile() { return int_fn<F, T>; }
};

}  // namespace linear
}  // namespace FUSE_ISA
}  // namespace fuse
