// Linear tiles with NEON and its int8 products: four registers are the 16 rows of a panel.
//
// Nothing is summed across lanes: usdot and udot add a quad's four products in the 32-bit lane of its row, and take
// four activations from one lane of a register that holds four quads of them. int16 activations are split into a
// signed high and an unsigned low byte, and a group's quads are passed over twice, 256 * (codes * high) + codes * low:
// two products a quad, and no second set of accumulators. All exact in 32 bits.
//
// Bytes moved: the packed weights once; activations and tiles stay in L1 and L2, and so does the group of the second
// pass. Bound expected: memory rate for a few rows, above it the dot products (16 MAC each, 8 for int16 activations)
// or FMAs (4 MAC). Checked under emulation only, so nothing is measured and the block sizes follow the registers.
#pragma once

#include <arm_neon.h>

#include "linear/blocking.h"

namespace fuse {
inline namespace FUSE_ISA {
namespace linear {

constexpr int kParts = 4;  // registers a panel column, four rows each

inline float32x4_t load4_half(const uint8_t *p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }

// The 16 rows of one column.
template <Fmt F>
[[gnu::always_inline]] inline void load_column(const uint8_t *p, float32x4_t (&column)[kParts]) {
  if constexpr (F == Fmt::bf16) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      const uint32x4_t both = vreinterpretq_u32_u8(vld1q_u8(p + i * 16));
      column[i] = vreinterpretq_f32_u32(vshlq_n_u32(both, 16));
      column[i + 2] = vreinterpretq_f32_u32(vandq_u32(both, vdupq_n_u32(0xffff0000u)));
    }
  } else {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; i++)
      column[i] = F == Fmt::f16 ? load4_half(p + i * 8) : vreinterpretq_f32_u8(vld1q_u8(p + i * 16));
  }
}

template <Fmt F>
struct FloatSpansNeon {
  static constexpr int kRows = 6, kTileWide = 1;
  static constexpr int wide(int m) { return m == 1 ? 4 : m <= 3 ? 2 : 1; }

  template <int M, int P>
  [[gnu::noinline]] static void run(const Span &s) {
    const float *x = static_cast<const float *>(s.a.codes) + s.row * s.a.ld;
    const int64_t ld = s.a.ld, stride = s.w.panel_bytes;
    float32x4_t acc[P][M][kParts];
#pragma GCC unroll 8
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
      for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int i = 0; i < kParts; i++) acc[p][m][i] = vld1q_f32(s.tile + m * s.tile_ld + p * kPanel + i * 4);
    const uint8_t *w = s.panel + s.begin * float_bytes(F);
    for (int32_t k = s.begin; k < s.end; k++, w += float_bytes(F)) {
#pragma GCC unroll 8
      for (int p = 0; p < P; p++) {
        float32x4_t column[kParts];
        load_column<F>(w + p * stride, column);
#pragma GCC unroll 8
        for (int m = 0; m < M; m++) {
          const float32x4_t value = vdupq_n_f32(x[m * ld + k]);
#pragma GCC unroll 4
          for (int i = 0; i < kParts; i++) acc[p][m][i] = vfmaq_f32(acc[p][m][i], column[i], value);
        }
      }
    }
#pragma GCC unroll 8
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
      for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int i = 0; i < kParts; i++) vst1q_f32(s.tile + m * s.tile_ld + p * kPanel + i * 4, acc[p][m][i]);
  }
};

// 16 in every byte of 16 whose bit is set.
[[gnu::always_inline]] inline uint8x16_t sixteens(const uint8_t *bits) {
  const uint8x8_t bit = vcreate_u8(0x8040201008040201);
  const uint8x16_t spread = vcombine_u8(vld1_dup_u8(bits), vld1_dup_u8(bits + 1));
  return vandq_u8(vtstq_u8(spread, vcombine_u8(bit, bit)), vdupq_n_u8(16));
}

// One quad of 16 rows as unsigned bytes; `fifths` are its fifth bits where the format has them.
template <Fmt F>
[[gnu::always_inline]] inline void load_codes(const uint8_t *quad, const uint8_t *fifths, uint8x16_t (&codes)[kParts]) {
  if constexpr (is_nibbles(F)) {
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
      const uint8x16_t both = vld1q_u8(quad + i * 16);
      codes[i] = vandq_u8(both, vdupq_n_u8(15));
      codes[i + 2] = vshrq_n_u8(both, 4);
    }
#pragma GCC unroll 4
    for (int i = 0; F == Fmt::w5 && i < kParts; i++) codes[i] = vorrq_u8(codes[i], sixteens(fifths + i * 2));
  } else {
#pragma GCC unroll 4
    for (int i = 0; i < kParts; i++) codes[i] = vld1q_u8(quad + i * 16);
  }
}

enum class Bytes { codes, high, low };  // of the activations: whole int8 codes, or one half of int16 codes

// 16 activations, in the order of their columns.
template <Bytes B>
[[gnu::always_inline]] inline uint8x16_t load_activations(const uint8_t *p) {
  if constexpr (B == Bytes::codes) return vld1q_u8(p);
  constexpr uint8_t order[16] = {0, 2, 1, 3, 4, 6, 5, 7, 8, 10, 9, 11, 12, 14, 13, 15};
  return vqtbl1q_u8(vld2q_u8(p).val[B == Bytes::high], vld1q_u8(order));
}

template <Bytes B, int Quad>
[[gnu::always_inline]] inline int32x4_t dot_quad(int32x4_t sum, uint8x16_t codes, uint8x16_t values) {
  if constexpr (B == Bytes::low)
    return vreinterpretq_s32_u32(vdotq_laneq_u32(vreinterpretq_u32_s32(sum), codes, values, Quad));
  return vusdotq_laneq_s32(sum, codes, vreinterpretq_s8_u8(values), Quad);
}

template <Fmt F, ActType T>
struct IntSpansNeon {
  static constexpr int kRows = 4, kTileWide = 1;
  static constexpr int wide(int m) { return m == 1 ? 4 : m == 2 ? 2 : 1; }

  static constexpr int64_t kQuad = T == ActType::a8 ? 4 : 8;  // bytes of four activations

  template <int M, int P>
  using Sums = int32x4_t[P][M][kParts];

  template <int M, int P>
  [[gnu::noinline]] static void run(const Span &span) {
    const Walk<F> walk(span.w, span.a);
    Codes x(span, kQuad);
    const int32_t quads = span.a.group / 4;
    for (int32_t g = span.begin; g < span.end; g++, x.next_group(), x.next_quad(quads * kQuad)) {
      const uint8_t *first = span.panel + walk.quads(g);
      const int64_t stride = span.w.panel_bytes;
      Sums<M, P> sum;
      if constexpr (T == ActType::a8) {
        start<M, P>(x, sum);
        add<Bytes::codes, M, P>(first, stride, x, quads, sum);
      } else {
        clear<M, P>(sum);
        add<Bytes::high, M, P>(first, stride, x, quads, sum);
        widen_high<M, P>(x, sum);
        add<Bytes::low, M, P>(first, stride, x, quads, sum);
      }
      scale<M, P>(span.panel + walk.head(g), stride, x, sum, span.tile, span.tile_ld);
    }
  }

  static int32x4_t offset(const Codes &x, int m) { return vdupq_n_s32(-zero_point(F) * x.sums[m * x.groups]); }

  template <int M, int P, class Body>
  [[gnu::always_inline]] static void each(Body body) {
#pragma GCC unroll 8
    for (int p = 0; p < P; p++)
#pragma GCC unroll 8
      for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int i = 0; i < kParts; i++) body(p, m, i);
  }

  template <int M, int P>
  [[gnu::always_inline]] static void start(const Codes &x, Sums<M, P> &sum) {
    each<M, P>([&](int p, int m, int i) { sum[p][m][i] = offset(x, m); });
  }

  template <int M, int P>
  [[gnu::always_inline]] static void clear(Sums<M, P> &sum) {
    each<M, P>([&](int p, int m, int i) { sum[p][m][i] = vdupq_n_s32(0); });
  }

  template <int M, int P>
  [[gnu::always_inline]] static void widen_high(const Codes &x, Sums<M, P> &sum) {
    each<M, P>([&](int p, int m, int i) { sum[p][m][i] = vaddq_s32(offset(x, m), vshlq_n_s32(sum[p][m][i], 8)); });
  }

  // A group, four quads at a time: exact, so the order does not matter.
  template <Bytes B, int M, int P>
  [[gnu::always_inline]] static void add(const uint8_t *quad, int64_t stride, const Codes &x, int32_t quads,
                                         Sums<M, P> &sum) {
    const uint8_t *fifths = quad - fifth_bytes(F);
    for (int32_t q = 0; q < quads; q += 4, quad += 4 * quad_bytes(F), fifths += 4 * 8) {
      uint8x16_t values[M];
#pragma GCC unroll 8
      for (int m = 0; m < M; m++) values[m] = load_activations<B>(x.row(m) + q * kQuad);
      dot<B, 0, M, P>(quad, fifths, stride, values, sum);
      dot<B, 1, M, P>(quad, fifths, stride, values, sum);
      dot<B, 2, M, P>(quad, fifths, stride, values, sum);
      dot<B, 3, M, P>(quad, fifths, stride, values, sum);
    }
  }

  template <Bytes B, int Quad, int M, int P>
  [[gnu::always_inline]] static void dot(const uint8_t *quad, const uint8_t *fifths, int64_t stride,
                                         const uint8x16_t (&values)[M], Sums<M, P> &sum) {
#pragma GCC unroll 8
    for (int p = 0; p < P; p++) {
      uint8x16_t codes[kParts];
      load_codes<F>(quad + p * stride + Quad * quad_bytes(F), fifths + p * stride + Quad * 8, codes);
#pragma GCC unroll 8
      for (int m = 0; m < M; m++)
#pragma GCC unroll 4
        for (int i = 0; i < kParts; i++) sum[p][m][i] = dot_quad<B, Quad>(sum[p][m][i], codes[i], values[m]);
    }
  }

  template <int M, int P>
  [[gnu::always_inline]] static void scale(const uint8_t *head, int64_t stride, const Codes &x, const Sums<M, P> &sum,
                                           float *tile, int64_t tile_ld) {
    each<M, P>([&](int p, int m, int i) {
      const uint8_t *scales = head + p * stride + i * 8;
      const float act = x.scales[m * x.groups];
      float *out = tile + m * tile_ld + p * kPanel + i * 4;
      float32x4_t factor = vdupq_n_f32(act);
      if constexpr (F != Fmt::w8) factor = vmulq_f32(load4_half(scales), factor);
      float32x4_t acc = vfmaq_f32(vld1q_f32(out), vcvtq_f32_s32(sum[p][m][i]), factor);
      if constexpr (F == Fmt::w4a)
        acc = vfmaq_f32(acc, load4_half(scales + 32), vdupq_n_f32(act * float(x.sums[m * x.groups])));
      vst1q_f32(out, acc);
    });
  }
};

struct Neon {
  template <Fmt F>
  static void float_fn(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
                       int64_t tile_ld) {
    Blocking<FloatSpansNeon<F>>::tile(w, a, m0, m1, p0, p1, tile, tile_ld, w.k, F == Fmt::f32 ? 256 : 512);
  }

  template <Fmt F, ActType T>
  static void int_fn(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
                     int64_t tile_ld) {
    Blocking<IntSpansNeon<F, T>>::tile(w, a, m0, m1, p0, p1, tile, tile_ld, live_groups(w, a), 1024 / a.group);
    if constexpr (F == Fmt::w8) channel_scales(w, m1 - m0, p0, p1, tile, tile_ld);
  }

  static void channel_scales(const Weight &w, int32_t rows, int32_t p0, int32_t p1, float *tile, int64_t tile_ld) {
    for (int32_t m = 0; m < rows; m++)
      for (int32_t p = p0; p < p1; p++)
        for (int32_t r = 0; r < kPanel; r += 4) {
          float *out = tile + m * tile_ld + (p - p0) * kPanel + r;
          vst1q_f32(out, vmulq_f32(vld1q_f32(out), vld1q_f32(reinterpret_cast<const float *>(panel_at(w, p)) + r)));
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
