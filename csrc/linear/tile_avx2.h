// Linear tiles with AVX2 and FMA: two registers are the 16 rows of a panel, so nothing is summed across lanes.
//
// Bytes moved: the packed weights once; activations and tiles stay in L1 and L2. Bound expected: memory rate up to 2-3
// rows, above it the two multiply ports. Three ways to multiply, all exact:
//   floats     FMA, 6 rows x 16 outputs in 12 accumulators
//   w4 x a8    vpmaddubsw, its pairs added in int16 for 8 quads (15 * 127 * 2 * 8 < 2^15), then one vpmaddwd;
//              w5 x a8 for 4 quads (31 * 127 * 2 * 4 < 2^15)
//   the rest   codes as int16 pairs (columns 0 2 and 1 3 of a quad) by one AND and one shift, then vpmaddwd; int8
//              activations are widened on the way, since u8 x s8 pairs do not fit int16
// Measured on one busy Sapphire Rapids core without VNNI (weights in L2, GOPS; its 256-bit FMA ceiling 83), rows
// 1 / 4 / 64: f32 15 / 53 / 83, bf16 36 / 64 / 81, w8 x a16 69 / 104 / 103, w8 x a8 75 / 80 / 82,
// w4g64 x a8 98 / 158 / 172, w4g32 x a8 102 / 146 / 148, w4g32a x a8 97 / 139 / 138.
// The additions are inline assembly: GCC otherwise moves them behind the loop and spills the accumulators.
#pragma once

#include <immintrin.h>

#include "linear/blocking.h"

namespace fuse {
inline namespace FUSE_ISA {
namespace linear {

[[gnu::always_inline]] inline void add16(__m256i &acc, __m256i x) { asm("vpaddw %1, %0, %0" : "+x"(acc) : "x"(x)); }
[[gnu::always_inline]] inline void add32(__m256i &acc, __m256i x) { asm("vpaddd %1, %0, %0" : "+x"(acc) : "x"(x)); }

inline __m256i load256(const uint8_t *p) { return _mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)); }
inline __m256 load8_half(const uint8_t *p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
}
inline __m256i broadcast32(const uint8_t *p) { return _mm256_set1_epi32(int(load32(p))); }

// Rows 0-7 and 8-15 of one column.
template <Fmt F>
[[gnu::always_inline]] inline void load_column(const uint8_t *p, __m256 &low, __m256 &high) {
  if constexpr (F == Fmt::f32) {
    low = _mm256_loadu_ps(reinterpret_cast<const float *>(p));
    high = _mm256_loadu_ps(reinterpret_cast<const float *>(p) + 8);
  } else if constexpr (F == Fmt::f16) {
    low = load8_half(p);
    high = load8_half(p + 16);
  } else {
    const __m256i both = load256(p);
    low = _mm256_castsi256_ps(_mm256_slli_epi32(both, 16));
    high = _mm256_castsi256_ps(_mm256_and_si256(both, _mm256_set1_epi32(int(0xffff0000))));
  }
}

template <Fmt F>
struct FloatSpans256 {
  static constexpr int kRows = 6, kTileWide = 1;
  static constexpr int wide(int m) { return m == 1 ? 4 : m <= 3 ? 2 : 1; }

  template <int M, int P>
  [[gnu::noinline]] static void run(const Span &s) {
    const float *x = static_cast<const float *>(s.a.codes) + s.row * s.a.ld;
    const int64_t ld = s.a.ld, stride = s.w.panel_bytes;
    __m256 acc[P][M][2];
#pragma GCC unroll 8
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        acc[p][m][0] = _mm256_loadu_ps(s.tile + m * s.tile_ld + p * kPanel);
        acc[p][m][1] = _mm256_loadu_ps(s.tile + m * s.tile_ld + p * kPanel + 8);
      }
    const uint8_t *w = s.panel + s.begin * float_bytes(F);
    for (int32_t k = s.begin; k < s.end; k++, w += float_bytes(F)) {
#pragma GCC unroll 8
      for (int p = 0; p < P; p++) {
        __m256 low, high;
        load_column<F>(w + p * stride, low, high);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
          const __m256 value = _mm256_broadcast_ss(x + m * ld + k);
          acc[p][m][0] = _mm256_fmadd_ps(low, value, acc[p][m][0]);
          acc[p][m][1] = _mm256_fmadd_ps(high, value, acc[p][m][1]);
        }
      }
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        _mm256_storeu_ps(s.tile + m * s.tile_ld + p * kPanel, acc[p][m][0]);
        _mm256_storeu_ps(s.tile + m * s.tile_ld + p * kPanel + 8, acc[p][m][1]);
      }
  }
};

// 16 in every byte whose bit is set.
[[gnu::always_inline]] inline __m256i sixteens(const uint8_t *bits) {
  const __m256i byte = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
  const __m256i bit = _mm256_set1_epi64x(int64_t(0x8040201008040201));
  const __m256i here = _mm256_and_si256(_mm256_shuffle_epi8(broadcast32(bits), byte), bit);
  return _mm256_and_si256(_mm256_cmpeq_epi8(here, bit), _mm256_set1_epi8(16));
}

// A quad of nibbles as unsigned bytes, rows 0-7 and 8-15; `fifths` are its fifth bits where the format has them.
template <Fmt F>
[[gnu::always_inline]] inline void load_nibbles(const uint8_t *quad, const uint8_t *fifths, __m256i &low,
                                                __m256i &high) {
  const __m256i both = load256(quad), mask = _mm256_set1_epi8(15);
  low = _mm256_and_si256(both, mask);
  high = _mm256_and_si256(_mm256_srli_epi16(both, 4), mask);
  if constexpr (F == Fmt::w5) {
    low = _mm256_or_si256(low, sixteens(fifths));
    high = _mm256_or_si256(high, sixteens(fifths + 4));
  }
}

// Nibbles x a8: sums over as many quads as int16 can hold, then widened and added to the group's sums.
template <Fmt F>
struct NibbleSums {
  static constexpr int64_t kQuad = 4;
  static constexpr int kDepth = F == Fmt::w5 ? 4 : 8;

  template <int M, int P>
  [[gnu::always_inline]] static void add(const uint8_t *quad, int64_t stride, Codes &x, int32_t quads,
                                         __m256i (&sum)[P][M][2]) {
    const uint8_t *fifths = quad - fifth_bytes(F);
    for (; quads > 0; quads -= kDepth, quad += kDepth * 32, fifths += kDepth * 8, x.next_quad(kDepth * kQuad)) {
      __m256i part[P][M][2];
#pragma GCC unroll 8
      for (int q = 0; q < kDepth; q++) {
#pragma GCC unroll 8
        for (int p = 0; p < P; p++) {
          __m256i low, high;
          load_nibbles<F>(quad + p * stride + q * 32, fifths + p * stride + q * 8, low, high);
#pragma GCC unroll 8
          for (int m = 0; m < M; m++) {
            const __m256i value = broadcast32(x.row(m) + q * kQuad);
            const __m256i l = _mm256_maddubs_epi16(low, value), h = _mm256_maddubs_epi16(high, value);
            if (q == 0) {
              part[p][m][0] = l;
              part[p][m][1] = h;
            } else {
              add16(part[p][m][0], l);
              add16(part[p][m][1], h);
            }
          }
        }
      }
      const __m256i ones = _mm256_set1_epi16(1);
#pragma GCC unroll 8
      for (int p = 0; p < P; p++)
#pragma GCC unroll 8
        for (int m = 0; m < M; m++)
#pragma GCC unroll 2
          for (int h = 0; h < 2; h++)
            sum[p][m][h] = _mm256_add_epi32(sum[p][m][h], _mm256_madd_epi16(part[p][m][h], ones));
    }
  }
};

// Everything else: int16 pairs.
template <Fmt F, ActType T>
struct PairSums {
  static constexpr int64_t kQuad = T == ActType::a8 ? 4 : 8;

  [[gnu::always_inline]] static void load(const uint8_t *quad, const uint8_t *fifths, __m256i &low, __m256i &high) {
    if constexpr (is_nibbles(F)) {
      load_nibbles<F>(quad, fifths, low, high);
    } else {
      low = load256(quad);
      high = load256(quad + 32);
    }
  }

  // Columns 0 and 2 (pair 0) or 1 and 3 (pair 1) of a quad as int16.
  [[gnu::always_inline]] static __m256i activation(const uint8_t *x, int pair) {
    if constexpr (T == ActType::a16) return broadcast32(x + pair * 4);
    const __m256i bytes = broadcast32(x);
    return _mm256_srai_epi16(pair ? bytes : _mm256_slli_epi16(bytes, 8), 8);
  }

  [[gnu::always_inline]] static __m256i codes(__m256i bytes, int pair) {
    return pair ? _mm256_srli_epi16(bytes, 8) : _mm256_and_si256(bytes, _mm256_set1_epi16(255));
  }

  template <int M, int P>
  [[gnu::always_inline]] static void add(const uint8_t *quad, int64_t stride, Codes &x, int32_t quads,
                                         __m256i (&sum)[P][M][2]) {
    const uint8_t *fifths = quad - fifth_bytes(F);
    for (; quads > 0; quads--, quad += quad_bytes(F), fifths += 8, x.next_quad(kQuad)) {
#pragma GCC unroll 8
      for (int p = 0; p < P; p++) {
        __m256i low, high;
        load(quad + p * stride, fifths + p * stride, low, high);
#pragma GCC unroll 2
        for (int pair = 0; pair < 2; pair++) {
          const __m256i l = codes(low, pair), h = codes(high, pair);
#pragma GCC unroll 8
          for (int m = 0; m < M; m++) {
            const __m256i value = activation(x.row(m), pair);
            add32(sum[p][m][0], _mm256_madd_epi16(l, value));
            add32(sum[p][m][1], _mm256_madd_epi16(h, value));
          }
        }
      }
    }
  }
};

template <Fmt F, class Sums>
struct IntSpans256 {
  static constexpr int kRows = 4, kTileWide = 1;
  static constexpr int wide(int m) { return m == 1 ? 4 : m == 2 ? 2 : 1; }

  template <int M, int P>
  [[gnu::noinline]] static void run(const Span &span) {
    const Walk<F> walk(span.w, span.a);
    Codes x(span, Sums::kQuad);
    const uint8_t *panel = span.panel;
    const int64_t stride = span.w.panel_bytes, tile_ld = span.tile_ld;
    const int32_t end = span.end, quads = span.a.group / 4;
    float *tile = span.tile;
    for (int32_t g = span.begin; g < end; g++, x.next_group()) {
      __m256i sum[P][M][2];
#pragma GCC unroll 8
      for (int m = 0; m < M; m++)
#pragma GCC unroll 8
        for (int p = 0; p < P; p++)
          sum[p][m][0] = sum[p][m][1] = _mm256_set1_epi32(-zero_point(F) * x.sums[m * x.groups]);
      Sums::template add<M, P>(panel + walk.quads(g), stride, x, quads, sum);
      scale<M, P>(panel + walk.head(g), stride, x, sum, tile, tile_ld);
    }
  }

  template <int M, int P>
  [[gnu::always_inline]] static void scale(const uint8_t *heads, int64_t stride, const Codes &x,
                                           const __m256i (&sum)[P][M][2], float *tile, int64_t tile_ld) {
#pragma GCC unroll 8
    for (int p = 0; p < P; p++) {
      const uint8_t *head = heads + p * stride;
      __m256 scales[2], minima[2];
#pragma GCC unroll 2
      for (int h = 0; h < 2; h++) {
        if constexpr (F != Fmt::w8) scales[h] = load8_half(head + h * 16);
        if constexpr (F == Fmt::w4a) minima[h] = load8_half(head + 32 + h * 16);
      }
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) {
        const __m256 act = _mm256_broadcast_ss(x.scales + m * x.groups);
        __m256 total = act;
        if constexpr (F == Fmt::w4a) total = _mm256_mul_ps(act, _mm256_set1_ps(float(x.sums[m * x.groups])));
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
          float *out = tile + m * tile_ld + p * kPanel + h * 8;
          __m256 factor = act;
          if constexpr (F != Fmt::w8) factor = _mm256_mul_ps(scales[h], act);
          __m256 acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sum[p][m][h]), factor, _mm256_loadu_ps(out));
          if constexpr (F == Fmt::w4a) acc = _mm256_fmadd_ps(minima[h], total, acc);
          _mm256_storeu_ps(out, acc);
        }
      }
    }
  }
};

template <Fmt F, ActType T>
struct SumsOf {
  using type = PairSums<F, T>;
};
template <>
struct SumsOf<Fmt::w4, ActType::a8> {
  using type = NibbleSums<Fmt::w4>;
};
template <>
struct SumsOf<Fmt::w4a, ActType::a8> {
  using type = NibbleSums<Fmt::w4a>;
};
template <>
struct SumsOf<Fmt::w5, ActType::a8> {
  using type = NibbleSums<Fmt::w5>;
};

struct Avx2 {
  template <Fmt F>
  static void float_fn(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
                       int64_t tile_ld) {
    Blocking<FloatSpans256<F>>::tile(w, a, m0, m1, p0, p1, tile, tile_ld, w.k, F == Fmt::f32 ? 256 : 512);
  }

  template <Fmt F, ActType T>
  static void int_fn(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
                     int64_t tile_ld) {
    using Spans = IntSpans256<F, typename SumsOf<F, T>::type>;
    Blocking<Spans>::tile(w, a, m0, m1, p0, p1, tile, tile_ld, live_groups(w, a), 1024 / a.group);
    if constexpr (F != Fmt::w8) return;
    for (int32_t m = 0; m < m1 - m0; m++)
      for (int32_t p = p0; p < p1; p++)
        for (int32_t h = 0; h < kPanel; h += 8) {
          float *out = tile + m * tile_ld + (p - p0) * kPanel + h;
          const float *scales = reinterpret_cast<const float *>(panel_at(w, p)) + h;
          _mm256_storeu_ps(out, _mm256_mul_ps(_mm256_loadu_ps(out), _mm256_loadu_ps(scales)));
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
