// Stored elements of the KV cache: float32, IEEE half, bfloat16 and int8 codes, to and from float32 lanes.
#pragma once

#include "simd.h"

namespace fuse {
inline namespace FUSE_ISA {

struct Half {
  uint16_t bits;
};
struct Bf16 {
  uint16_t bits;
};

FUSE_INLINE uint16_t float_to_half(float x) {  // to nearest even
  const uint32_t word = float_bits(x), magnitude = word & 0x7fffffffu;
  const uint16_t sign = static_cast<uint16_t>(word >> 16 & 0x8000u);
  if (magnitude > 0x7f800000u) return sign | 0x7e00u;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00u;
  if (magnitude < 0x38800000u)  // the sum with 0.5 rounds at 2^-24, the step of subnormal halves
    return static_cast<uint16_t>(sign | (float_bits(bits_float(magnitude) + 0.5f) - 0x3f000000u));
  return static_cast<uint16_t>(sign | (magnitude - 0x38000000u + 0xfffu + (magnitude >> 13 & 1u)) >> 13);
}

FUSE_INLINE uint16_t float_to_bf16(float x) {  // to nearest even
  const uint32_t word = float_bits(x);
  if ((word & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(word >> 16 | 0x40u);
  return static_cast<uint16_t>((word + 0x7fffu + (word >> 16 & 1u)) >> 16);
}

// F32::N elements to float32 lanes.
FUSE_INLINE F32 widen(const float *p) { return load(p); }
#if defined(__AVX512F__)
FUSE_INLINE F32 widen(const Half *p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)))};
}
FUSE_INLINE F32 widen(const Bf16 *p) {
  const __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i *>(p)));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(wide, 16))};
}
FUSE_INLINE F32 widen(const int8_t *p) {
  return {_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p))))};
}
#elif defined(__AVX2__)
FUSE_INLINE F32 widen(const Half *p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)))};
}
FUSE_INLINE F32 widen(const Bf16 *p) {
  const __m256i wide = _mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i *>(p)));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(wide, 16))};
}
FUSE_INLINE F32 widen(const int8_t *p) {
  return {_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i *>(p))))};
}
#elif defined(__ARM_FEATURE_MATMUL_INT8)
FUSE_INLINE F32 widen(const Half *p) {
  return {vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(reinterpret_cast<const uint16_t *>(p))))};
}
FUSE_INLINE F32 widen(const Bf16 *p) {
  return {vreinterpretq_f32_u32(vshll_n_u16(vld1_u16(reinterpret_cast<const uint16_t *>(p)), 16))};
}
FUSE_INLINE F32 widen(const int8_t *p) {
  int32_t codes;
  std::memcpy(&codes, p, sizeof codes);
  return {vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(vcreate_s8(static_cast<uint32_t>(codes))))))};
}
#else
FUSE_INLINE F32 widen(const Half *p) { return {half_to_float(p->bits)}; }
FUSE_INLINE F32 widen(const Bf16 *p) { return {bits_float(static_cast<uint32_t>(p->bits) << 16)}; }
FUSE_INLINE F32 widen(const int8_t *p) { return {static_cast<float>(*p)}; }
#endif

FUSE_INLINE void convert(float x, float &out) { out = x; }
FUSE_INLINE void convert(float x, Half &out) { out.bits = float_to_half(x); }
FUSE_INLINE void convert(float x, Bf16 &out) { out.bits = float_to_bf16(x); }
FUSE_INLINE void convert(float x, int8_t &out) { out = static_cast<int8_t>(x); }

// The first n lanes of x as elements.
template <class E>
FUSE_INLINE void narrow(F32 x, int64_t n, E *out) {
  float lane[F32::N];
  store(lane, x);
  for (int64_t i = 0; i < n; ++i) convert(lane[i], out[i]);
}

#if defined(__AVX2__)
FUSE_INLINE void narrow(F32 x, int64_t n, Half *out) {
  Half lane[F32::N];
#if defined(__AVX512F__)
  _mm256_storeu_si256(reinterpret_cast<__m256i *>(lane), _mm512_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
#else
  _mm_storeu_si128(reinterpret_cast<__m128i *>(lane), _mm256_cvtps_ph(x.v, _MM_FROUND_TO_NEAREST_INT));
#endif
  std::memcpy(out, lane, static_cast<size_t>(n) * sizeof(Half));
}
#endif

}  // namespace FUSE_ISA
}  // namespace fuse
