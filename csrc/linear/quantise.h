// Activations to codes: max|x| of a group, then x * (limit / max) rounded to nearest even, and the sum of the codes.
//
// Bytes moved: x is read twice, the second time from L1; 1 or 2 bytes a value are written. A group whose largest
// magnitude is below 2^-100 counts as zero (its reciprocal would overflow). A group with an infinity or NaN gets a NaN
// scale and zero codes, so that every output that reads it is NaN: seen, where a clipped code would not be.
#pragma once

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "linear/panel.h"

namespace fuse {
inline namespace FUSE_ISA {
namespace linear {

constexpr int kMaxActGroup = 64;

#ifdef __AVX2__

inline uint32_t largest_bits(const float *x, int32_t n) {
  const __m256i magnitude = _mm256_set1_epi32(0x7fffffff);
  __m256i top = _mm256_setzero_si256();
  for (int32_t i = 0; i < n; i += 8)
    top = _mm256_max_epi32(top, _mm256_and_si256(magnitude, _mm256_castps_si256(_mm256_loadu_ps(x + i))));
  __m128i half = _mm_max_epi32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_max_epi32(half, _mm_shuffle_epi32(half, 0xb1));
  return uint32_t(_mm_cvtsi128_si32(half));
}

inline int32_t sum_of(__m256i v) {
  __m128i half = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0x4e));
  half = _mm_add_epi32(half, _mm_shuffle_epi32(half, 0xb1));
  return _mm_cvtsi128_si32(half);
}

inline __m256i rounded(const float *x, __m256 inverse) {
  return _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_loadu_ps(x), inverse));
}

inline int32_t store_codes(const float *x, int32_t n, float inverse, int8_t *out) {
  const __m256 factor = _mm256_set1_ps(inverse);
  const __m256i order = _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7);
  __m256i sum = _mm256_setzero_si256();
  for (int32_t i = 0; i < n; i += 32) {
    const __m256i a = rounded(x + i, factor), b = rounded(x + i + 8, factor);
    const __m256i c = rounded(x + i + 16, factor), d = rounded(x + i + 24, factor);
    sum = _mm256_add_epi32(sum, _mm256_add_epi32(_mm256_add_epi32(a, b), _mm256_add_epi32(c, d)));
    const __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(a, b), _mm256_packs_epi32(c, d));
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + i), _mm256_permutevar8x32_epi32(bytes, order));
  }
  return sum_of(sum);
}

inline int32_t store_codes(const float *x, int32_t n, float inverse, int16_t *out) {
  const __m256 factor = _mm256_set1_ps(inverse);
  __m256i sum = _mm256_setzero_si256();
  for (int32_t i = 0; i < n; i += 16) {
    const __m256i a = rounded(x + i, factor), b = rounded(x + i + 8, factor);
    sum = _mm256_add_epi32(sum, _mm256_add_epi32(a, b));
    __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
    words = _mm256_shufflehi_epi16(_mm256_shufflelo_epi16(words, 0xd8), 0xd8);  // k0 k2 k1 k3
    _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + i), words);
  }
  return sum_of(sum);
}

#else

inline uint32_t largest_bits(const float *x, int32_t n) {
  uint32_t top = 0;
  for (int32_t i = 0; i < n; i++) {
    const uint32_t bits = float_bits(x[i]) & 0x7fffffff;
    top = bits > top ? bits : top;
  }
  return top;
}

inline int32_t store_codes(const float *x, int32_t n, float inverse, int8_t *out) {
  int32_t sum = 0;
  for (int32_t i = 0; i < n; i++) sum += out[i] = int8_t(__builtin_rintf(x[i] * inverse));
  return sum;
}

inline int32_t store_codes(const float *x, int32_t n, float inverse, int16_t *out) {
  constexpr int32_t place[4] = {0, 2, 1, 3};
  int32_t sum = 0;
  for (int32_t i = 0; i < n; i++) sum += out[i / 4 * 4 + place[i % 4]] = int16_t(__builtin_rintf(x[i] * inverse));
  return sum;
}

#endif

template <class Code>
inline void quantise_group(const float *x, int32_t group, Code *codes, float &scale, int32_t &sum) {
  constexpr float limit = sizeof(Code) == 1 ? 127.0f : 32767.0f;
  constexpr uint32_t infinity = 0x7f800000, smallest = 0x0d800000;  // 2^-100
  const uint32_t bits = largest_bits(x, group);
  if (bits < smallest || bits >= infinity) {
    __builtin_memset(codes, 0, size_t(uint32_t(group)) * sizeof(Code));
    scale = bits < smallest ? 0.0f : __builtin_nanf("");
    sum = 0;
    return;
  }
  const float top = bits_float(bits);
  scale = top / limit;
  sum = store_codes(x, group, limit / top, codes);
}

// Columns [k0, k1) from x[0 .. k1 - k0); k0 is a multiple of the group, a group that k1 cuts is padded with zeros.
template <class Code>
void quantise_slice_int(const float *x, int32_t k0, int32_t k1, const Act &out, int32_t row) {
  Code *codes = static_cast<Code *>(out.codes) + row * out.ld;
  const int64_t first = row * (out.ld / out.group);
  for (int32_t k = k0; k < k1; k += out.group) {
    const int64_t g = first + k / out.group;
    if (k1 - k >= out.group) {
      quantise_group(x + (k - k0), out.group, codes + k, out.scales[g], out.sums[g]);
    } else {
      float padded[kMaxActGroup] = {};
      __builtin_memcpy(padded, x + (k - k0), (k1 - k) * sizeof(float));
      quantise_group(padded, out.group, codes + k, out.scales[g], out.sums[g]);
    }
  }
}

template <class Code>
void quantise_int(const float *x, int32_t k, const Act &out, int32_t row) {
  quantise_slice_int<Code>(x, 0, k, out, row);
  const int64_t groups = out.ld / out.group, done = (k + out.group - 1) / out.group;
  Code *codes = static_cast<Code *>(out.codes) + row * out.ld;
  __builtin_memset(codes + done * out.group, 0, (groups - done) * out.group * sizeof(Code));
  __builtin_memset(out.scales + row * groups + done, 0, (groups - done) * sizeof(float));
  __builtin_memset(out.sums + row * groups + done, 0, (groups - done) * sizeof(int32_t));
}

inline void copy_slice(const float *x, int32_t k0, int32_t k1, const Act &out, int32_t row) {
  __builtin_memcpy(static_cast<float *>(out.codes) + row * out.ld + k0, x, (k1 - k0) * sizeof(float));
}

inline void copy_row(const float *x, int32_t k, const Act &out, int32_t row) {
  copy_slice(x, 0, k, out, row);
  __builtin_memset(static_cast<float *>(out.codes) + row * out.ld + k, 0, (out.ld - k) * sizeof(float));
}

}  // namespace linear
}  // namespace FUSE_ISA
}  // namespace fuse
