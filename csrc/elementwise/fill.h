// Kernels over contiguous float32 vectors: activations, norm, rotary embedding.
//
// Algorithm: one pass over the vector (two for the norm), written once over simd.h's F32. Lane i of a vector holds
// element i whatever the length, and the norm's sum of squares keeps one partial sum a lane, so a result depends only
// on the values and the length. Bytes moved: each input and output once, from the first- or second-level cache.
// Bound expected: two 32-byte loads a cycle; exp makes silu and gelu arithmetic-bound at about 20 operations a vector.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace fuse {
inline namespace FUSE_ISA {

FUSE_INLINE F32 load_lanes(const float *p, int64_t lanes) { return lanes == F32::N ? load(p) : load_n(p, lanes); }
FUSE_INLINE void store_lanes(float *p, F32 a, int64_t lanes) {
  if (lanes == F32::N)
    store(p, a);
  else
    store_n(p, a, lanes);
}

template <class Op>
FUSE_INLINE void map(const float *x, float *out, int64_t n, Op op) {
  for_lanes(n, [&](int64_t i, int64_t lanes) { store_lanes(out + i, op(load_lanes(x + i, lanes)), lanes); });
}

template <class Op>
FUSE_INLINE void map(const float *a, const float *b, float *out, int64_t n, Op op) {
  for_lanes(n, [&](int64_t i, int64_t lanes) {
    store_lanes(out + i, op(load_lanes(a + i, lanes), load_lanes(b + i, lanes)), lanes);
  });
}

FUSE_INLINE F32 silu(F32 x) { return x * sigmoid(x); }

// 0.5 x (1 + tanh(u)) = x sigmoid(2u), which keeps its relative precision where tanh(u) is near -1.
FUSE_INLINE F32 gelu_tanh(F32 x) {
  const F32 inner = fma(x * x * set1(0.044715f), x, x);
  return x * sigmoid(inner * set1(1.5957691216057308f));
}

inline void affine(const float *x, float scale, float shift, float *out, int64_t n) {
  map(x, out, n, [=](F32 v) { return v * set1(scale) + set1(shift); });
}

inline void softcap(const float *x, float cap, float *out, int64_t n) {
  map(x, out, n, [=](F32 v) { return set1(cap) * tanh(v / set1(cap)); });
}

inline void activate_silu(const float *x, float *out, int64_t n) { map(x, out, n, [](F32 v) { return silu(v); }); }
inline void activate_gelu(const float *x, float *out, int64_t n) { map(x, out, n, [](F32 v) { return gelu_tanh(v); }); }

inline void gated_silu(const float *gate, const float *up, float *out, int64_t n) {
  map(gate, up, out, n, [](F32 g, F32 u) { return silu(g) * u; });
}

inline void gated_gelu(const float *gate, const float *up, float *out, int64_t n) {
  map(gate, up, out, n, [](F32 g, F32 u) { return gelu_tanh(g) * u; });
}

inline void add(const float *a, const float *b, float *out, int64_t n) {
  map(a, b, out, n, [](F32 x, F32 y) { return x + y; });
}

inline void mul(const float *a, const float *b, float *out, int64_t n) {
  map(a, b, out, n, [](F32 x, F32 y) { return x * y; });
}

inline void rms_norm(const float *x, const float *weight, float eps, float *out, int64_t n) {
  F32 squares = set1(0.0f);
  for_lanes(n, [&](int64_t i, int64_t lanes) {
    const F32 v = load_lanes(x + i, lanes);
    squares = fma(v, v, squares);
  });
  const float scale = 1.0f / __builtin_sqrtf(sum_lanes(squares) / static_cast<float>(n) + eps);
  map(x, weight, out, n, [=](F32 v, F32 w) { return v * set1(scale) * w; });
}

inline void rope(const float *x, const float *angles, float *out, int32_t dim) {
  const int32_t half = dim / 2;
  for_lanes(half, [&](int64_t i, int64_t lanes) {
    const F32 a = load_lanes(x + i, lanes), b = load_lanes(x + half + i, lanes);
    const F32 cosine = load_lanes(angles + i, lanes), sine = load_lanes(angles + half + i, lanes);
    store_lanes(out + i, a * cosine - b * sine, lanes);
    store_lanes(out + half + i, b * cosine + a * sine, lanes);
  });
}

inline void fill_elementwise(Kernels &k) {
  k.affine = affine;
  k.softcap = softcap;
  k.activation[int(Activation::silu)] = activate_silu;
  k.activation[int(Activation::gelu_tanh)] = activate_gelu;
  k.gated[int(Activation::silu)] = gated_silu;
  k.gated[int(Activation::gelu_tanh)] = gated_gelu;
  k.add = add;
  k.mul = mul;
  k.rms_norm = rms_norm;
  k.rope = rope;
}

}  // namespace FUSE_ISA
}  // namespace fuse
