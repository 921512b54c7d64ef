// Writing keys and values into their blocks, one token at a time.
//
// Bytes: reads 2 * head_dim floats a KV head, writes as many elements; K goes into 16-token panels, so its elements lie
// 16 apart. int8 codes are round(x * (127 / max|x|)) to nearest even with scale = max|x| / 127; a vector whose largest
// value is below 1e-30 gets scale 0 and codes 0. Static scales: code = round(x * (1 / scale)), clipped to +-127, and
// every clipped value is counted.
#pragma once

#include "attention/layout.h"

namespace fuse {
inline namespace FUSE_ISA {

FUSE_INLINE float max_abs(const float *x, int64_t n) {
  F32 largest = set1(0.0f);
  for_lanes(n, [&](int64_t i, int64_t lanes) { largest = max(abs(load_n(x + i, lanes)), largest); });
  return max_lanes(largest);
}

struct Int8Scale {
  float scale, inverse;
};

FUSE_INLINE Int8Scale dynamic_scale(float largest) {
  if (!(largest >= 1e-30f)) return {0.0f, 0.0f};
  return {largest / 127.0f, 127.0f / largest};
}

FUSE_INLINE Int8Scale static_scale(float scale) { return {scale, scale > 0.0f ? 1.0f / scale : 0.0f}; }

struct Encoder {
  float inverse;
  int64_t clipped = 0;

  FUSE_INLINE F32 operator()(F32 x, const int8_t *) {
    const F32 wide = round(min(max(x * set1(inverse), set1(-1000.0f)), set1(1000.0f)));
    clipped += __builtin_popcount(bits(greater(abs(wide), set1(127.0f))));
    return min(max(wide, set1(-127.0f)), set1(127.0f));
  }
  template <class E>
  FUSE_INLINE F32 operator()(F32 x, const E *) {
    return x;
  }
};

// n elements of x to out, `stride` elements apart; returns the number of clipped values.
template <class E>
FUSE_INLINE int64_t encode(const float *x, int64_t n, float inverse, E *out, int64_t stride) {
  Encoder encoder{inverse};
  for_lanes(n, [&](int64_t i, int64_t lanes) {
    E lane[F32::N];
    narrow(encoder(load_n(x + i, lanes), lane), lanes, lane);
    for (int64_t j = 0; j < lanes; ++j) out[(i + j) * stride] = lane[j];
  });
  return encoder.clipped;
}

// Scale of one head's vector x; i8_token takes the same vector's scale for all heads, computed once by the caller.
template <KvFmt F>
FUSE_INLINE Int8Scale head_scale(const KvPool &pool, int32_t is_v, int32_t head, const float *x, Int8Scale token) {
  if constexpr (F == KvFmt::i8_token_head) return dynamic_scale(max_abs(x, pool.head_dim));
  if constexpr (F == KvFmt::i8_head) return static_scale(pool.head_scales[is_v * pool.kv_heads + head]);
  return token;
}

// K (is_v = 0) or V of heads h0..h1 at one slot.
template <KvFmt F>
FUSE_INLINE int64_t write_part(const KvPool &pool, int32_t slot, int32_t h0, int32_t h1, const float *x, int32_t is_v) {
  if (!x) return 0;
  const Blocks<F> blocks(pool);
  const int64_t block = slot / pool.block_size, offset = slot % pool.block_size, panel = offset / 16 * 16, d = pool.head_dim;
  Int8Scale token{1.0f, 1.0f};
  if constexpr (F == KvFmt::i8_token) token = dynamic_scale(max_abs(x, d * (h1 - h0)));
  int64_t clipped = 0;
  for (int32_t head = h0; head < h1; ++head, x += d) {
    const Int8Scale s = head_scale<F>(pool, is_v, head, x, token);
    if constexpr (Blocks<F>::token_scales) *blocks.scale(block, is_v, head, offset) = s.scale;
    clipped += is_v ? encode(x, d, s.inverse, blocks.v_row(block, head, offset), 1)
                    : encode(x, d, s.inverse, blocks.k_panel(block, head, panel) + (offset - panel), 16);
  }
  return clipped;
}

template <KvFmt F>
int64_t kv_write(const KvPool &pool, int32_t slot, int32_t h0, int32_t h1, const float *k, const float *v) {
  return write_part<F>(pool, slot, h0, h1, k, 0) + write_part<F>(pool, slot, h0, h1, v, 1);
}

template <KvFmt F>
void kv_write_step(const KvWriteParams &p, const Step &step, Worker &worker) {
  constexpr int32_t tokens = 16;  // a panel, so that two workers seldom write the same cache line
  const int32_t *slots = step.kv_slots[p.pool.group];
  int64_t clipped = 0;
  for (int64_t unit; (unit = worker.next()) * tokens < step.num_tokens;) {
    const int32_t t0 = static_cast<int32_t>(unit) * tokens;
    for (int32_t t = t0; t < t0 + tokens && t < step.num_tokens; ++t)
      clipped += kv_write<F>(p.pool, slots[t], 0, p.pool.kv_heads, p.k + t * p.ldk, p.v + t * p.ldv);
  }
  if (clipped) __atomic_fetch_add(&worker.counters[c_kv_clipped], clipped, __ATOMIC_RELAXED);
}

}  // namespace FUSE_ISA
}  // namespace fuse
