// A thin float32 vector for all instruction sets, so that a kernel is written once: `F32` has `F32::N` lanes.
//
// load_n / store_n touch only the first n lanes' memory (n < N allowed, 0 < n); the other lanes read as zero.
// sum and max over lanes fold halves in a fixed order. exp is Cephes' polynomial after a two-part reduction: relative
// error below 2e-7 on [-87.3, 88.3], clamped outside, except that below -87.3 it is 0 (so that exp(-inf) = 0).
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_FEATURE_MATMUL_INT8)
#include <arm_neon.h>
#endif

namespace fuse {
inline namespace FUSE_ISA {

#define FUSE_INLINE [[gnu::always_inline]] inline

FUSE_INLINE uint32_t float_bits(float x) {
  uint32_t word;
  std::memcpy(&word, &x, sizeof word);
  return word;
}

FUSE_INLINE float bits_float(uint32_t word) {
  float x;
  std::memcpy(&x, &word, sizeof x);
  return x;
}

FUSE_INLINE float half_to_float(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fffu) << 13;
  if ((half & 0x7c00u) == 0x7c00u) return bits_float(sign | 0x7f800000u | magnitude);
  return bits_float(sign | float_bits(bits_float(magnitude) * 0x1p112f));  // the product also scales subnormals
}

#if defined(__AVX512F__)

struct F32 {
  static constexpr int N = 16;
  __m512 v;
};
struct Mask {
  __mmask16 v;
};

FUSE_INLINE __mmask16 first_lanes(int64_t n) { return static_cast<__mmask16>(n >= 16 ? 0xffffu : (1u << n) - 1u); }
FUSE_INLINE F32 set1(float x) { return {_mm512_set1_ps(x)}; }
FUSE_INLINE F32 load(const float *p) { return {_mm512_loadu_ps(p)}; }
FUSE_INLINE F32 load_n(const float *p, int64_t n) { return {_mm512_maskz_loadu_ps(first_lanes(n), p)}; }
FUSE_INLINE void store(float *p, F32 a) { _mm512_storeu_ps(p, a.v); }
FUSE_INLINE void store_n(float *p, F32 a, int64_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), a.v); }
FUSE_INLINE F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
FUSE_INLINE F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
FUSE_INLINE F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
FUSE_INLINE F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
FUSE_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
FUSE_INLINE F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
FUSE_INLINE F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
FUSE_INLINE F32 abs(F32 a) { return {_mm512_abs_ps(a.v)}; }
FUSE_INLINE F32 round(F32 a) { return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
FUSE_INLINE F32 pow2(F32 n) {  // n integral, -126..127
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127)), 23))};
}
FUSE_INLINE Mask less(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
FUSE_INLINE Mask greater(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_GT_OQ)}; }
FUSE_INLINE uint32_t bits(Mask m) { return m.v; }
FUSE_INLINE F32 select(Mask m, F32 a, F32 b) { return {_mm512_mask_blend_ps(m.v, b.v, a.v)}; }  // m ? a : b

#elif defined(__AVX2__)

struct F32 {
  static constexpr int N = 8;
  __m256 v;
};
struct Mask {
  __m256 v;
};

FUSE_INLINE __m256i first_lanes(int64_t n) {
  return _mm256_cmpgt_epi32(_mm256_set1_epi32(static_cast<int>(n)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
}
FUSE_INLINE F32 set1(float x) { return {_mm256_set1_ps(x)}; }
FUSE_INLINE F32 load(const float *p) { return {_mm256_loadu_ps(p)}; }
FUSE_INLINE F32 load_n(const float *p, int64_t n) { return {_mm256_maskload_ps(p, first_lanes(n))}; }
FUSE_INLINE void store(float *p, F32 a) { _mm256_storeu_ps(p, a.v); }
FUSE_INLINE void store_n(float *p, F32 a, int64_t n) { _mm256_maskstore_ps(p, first_lanes(n), a.v); }
FUSE_INLINE F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
FUSE_INLINE F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
FUSE_INLINE F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
FUSE_INLINE F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
FUSE_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
FUSE_INLINE F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
FUSE_INLINE F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
FUSE_INLINE F32 abs(F32 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.v)}; }
FUSE_INLINE F32 round(F32 a) { return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)}; }
FUSE_INLINE F32 pow2(F32 n) {
  return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127)), 23))};
}
FUSE_INLINE Mask less(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
FUSE_INLINE Mask greater(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_GT_OQ)}; }
FUSE_INLINE uint32_t bits(Mask m) { return static_cast<uint32_t>(_mm256_movemask_ps(m.v)); }
FUSE_INLINE F32 select(Mask m, F32 a, F32 b) { return {_mm256_blendv_ps(b.v, a.v, m.v)}; }

#elif defined(__ARM_FEATURE_MATMUL_INT8)

struct F32 {
  static constexpr int N = 4;
  float32x4_t v;
};
struct Mask {
  uint32x4_t v;
};

FUSE_INLINE F32 set1(float x) { return {vdupq_n_f32(x)}; }
FUSE_INLINE F32 load(const float *p) { return {vld1q_f32(p)}; }
FUSE_INLINE F32 load_n(const float *p, int64_t n) {
  if (n >= 4) return load(p);
  float lane[4] = {};
  std::memcpy(lane, p, static_cast<size_t>(n) * sizeof(float));
  return load(lane);
}
FUSE_INLINE void store(float *p, F32 a) { vst1q_f32(p, a.v); }
FUSE_INLINE void store_n(float *p, F32 a, int64_t n) {
  if (n >= 4) return store(p, a);
  float lane[4];
  store(lane, a);
  std::memcpy(p, lane, static_cast<size_t>(n) * sizeof(float));
}
FUSE_INLINE F32 operator+(F32 a, F32 b) { return {vaddq_f32(a.v, b.v)}; }
FUSE_INLINE F32 operator-(F32 a, F32 b) { return {vsubq_f32(a.v, b.v)}; }
FUSE_INLINE F32 operator*(F32 a, F32 b) { return {vmulq_f32(a.v, b.v)}; }
FUSE_INLINE F32 operator/(F32 a, F32 b) { return {vdivq_f32(a.v, b.v)}; }
FUSE_INLINE F32 fma(F32 a, F32 b, F32 c) { return {vfmaq_f32(c.v, a.v, b.v)}; }
FUSE_INLINE Mask less(F32 a, F32 b) { return {vcltq_f32(a.v, b.v)}; }
FUSE_INLINE Mask greater(F32 a, F32 b) { return {vcgtq_f32(a.v, b.v)}; }
FUSE_INLINE uint32_t bits(Mask m) {
  constexpr uint32_t lane[4] = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(m.v, vld1q_u32(lane)));
}
FUSE_INLINE F32 select(Mask m, F32 a, F32 b) { return {vbslq_f32(m.v, a.v, b.v)}; }
FUSE_INLINE F32 max(F32 a, F32 b) { return select(greater(a, b), a, b); }  // b where one is NaN, as in the other sets
FUSE_INLINE F32 min(F32 a, F32 b) { return select(less(a, b), a, b); }
FUSE_INLINE F32 abs(F32 a) { return {vabsq_f32(a.v)}; }
FUSE_INLINE F32 round(F32 a) { return {vrndnq_f32(a.v)}; }
FUSE_INLINE F32 pow2(F32 n) {
  return {vreinterpretq_f32_s32(vshlq_n_s32(vaddq_s32(vcvtq_s32_f32(n.v), vdupq_n_s32(127)), 23))};
}

#else

struct F32 {
  static constexpr int N = 1;
  float v;
};
struct Mask {
  bool v;
};

FUSE_INLINE F32 set1(float x) { return {x}; }
FUSE_INLINE F32 load(const float *p) { return {*p}; }
FUSE_INLINE F32 load_n(const float *p, int64_t) { return {*p}; }
FUSE_INLINE void store(float *p, F32 a) { *p = a.v; }
FUSE_INLINE void store_n(float *p, F32 a, int64_t) { *p = a.v; }
FUSE_INLINE F32 operator+(F32 a, F32 b) { return {a.v + b.v}; }
FUSE_INLINE F32 operator-(F32 a, F32 b) { return {a.v - b.v}; }
FUSE_INLINE F32 operator*(F32 a, F32 b) { return {a.v * b.v}; }
FUSE_INLINE F32 operator/(F32 a, F32 b) { return {a.v / b.v}; }
FUSE_INLINE F32 fma(F32 a, F32 b, F32 c) { return {a.v * b.v + c.v}; }
FUSE_INLINE F32 max(F32 a, F32 b) { return {a.v > b.v ? a.v : b.v}; }
FUSE_INLINE F32 min(F32 a, F32 b) { return {a.v < b.v ? a.v : b.v}; }
FUSE_INLINE F32 abs(F32 a) { return {__builtin_fabsf(a.v)}; }
FUSE_INLINE F32 round(F32 a) {  // |a| < 2^22: adding 1.5 * 2^23 leaves the nearest integer, ties to even
  return {(a.v + 12582912.0f) - 12582912.0f};
}
FUSE_INLINE F32 pow2(F32 n) {
  uint32_t word = static_cast<uint32_t>(static_cast<int32_t>(n.v) + 127) << 23;
  float x;
  std::memcpy(&x, &word, sizeof x);
  return {x};
}
FUSE_INLINE Mask less(F32 a, F32 b) { return {a.v < b.v}; }
FUSE_INLINE Mask greater(F32 a, F32 b) { return {a.v > b.v}; }
FUSE_INLINE uint32_t bits(Mask m) { return m.v; }
FUSE_INLINE F32 select(Mask m, F32 a, F32 b) { return m.v ? a : b; }

#endif

FUSE_INLINE float sum_lanes(F32 a) {
  float lane[F32::N];
  store(lane, a);
  for (int half = F32::N / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] += lane[i + half];
  return lane[0];
}

FUSE_INLINE float max_lanes(F32 a) {
  float lane[F32::N];
  store(lane, a);
  for (int half = F32::N / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lane[i] = lane[i] > lane[i + half] ? lane[i] : lane[i + half];
  return lane[0];
}

FUSE_INLINE F32 exp(F32 x) {
  const F32 lowest = set1(-87.3f);
  const F32 clamped = min(set1(88.3f), max(lowest, x));  // in this order a NaN stays one
  const F32 n = round(clamped * set1(1.44269504f));
  F32 r = fma(n, set1(-0.693359375f), clamped);
  r = fma(n, set1(2.12194440e-4f), r);
  F32 p = set1(1.9875691500e-4f);
  p = fma(p, r, set1(1.3981999507e-3f));
  p = fma(p, r, set1(8.3334519073e-3f));
  p = fma(p, r, set1(4.1665795894e-2f));
  p = fma(p, r, set1(1.6666665459e-1f));
  p = fma(p, r, set1(5.0000001201e-1f));
  p = fma(p, r * r, r) + set1(1.0f);
  return select(less(x, lowest), set1(0.0f), p * pow2(n));
}

FUSE_INLINE F32 sigmoid(F32 x) { return set1(1.0f) / (set1(1.0f) + exp(set1(0.0f) - x)); }

// Cephes: an odd polynomial near zero, 1 - 2 / (exp(2x) + 1) elsewhere: a relative error of a few 1e-7.
FUSE_INLINE F32 tanh(F32 x) {
  const F32 z = x * x;
  F32 p = set1(-5.70498872745e-3f);
  p = fma(p, z, set1(2.06390887954e-2f));
  p = fma(p, z, set1(-5.37397155531e-2f));
  p = fma(p, z, set1(1.33314422036e-1f));
  p = fma(p, z, set1(-3.33332819422e-1f));
  const F32 far = set1(1.0f) - set1(2.0f) / (exp(x + x) + set1(1.0f));
  return select(less(abs(x), set1(0.625f)), fma(p * z, x, x), far);
}

// body(offset, lanes) over [0, n): whole vectors first, the ragged rest last.
template <class Body>
FUSE_INLINE void for_lanes(int64_t n, Body body) {
  int64_t i = 0;
  for (; i + F32::N <= n; i += F32::N) body(i, F32::N);
  if (i < n) body(i, n - i);
}

}  // namespace FUSE_ISA
}  // namespace fuse
