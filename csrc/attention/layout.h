// Layout of a KV block. A block holds everything its tokens need, so copying `block_bytes` copies it.
//
//   K       [kv_heads][block_size / 16][head_dim][16 tokens]   a panel of 16 tokens: scores need no horizontal sums
//   V       [kv_heads][block_size][v_stride]                   v_stride = head_dim rounded up to 16; the rest is unused
//   scales  float [2: K, V][scale heads][block_size]           i8_token: 1 scale head; i8_token_head: kv_heads; else none
//   padding up to a multiple of 64 bytes
//
// Elements are float, half, bfloat16 or int8 codes in the same places. Codes are widened to float32 lanes and multiplied
// by unquantised queries: one conversion serves all query rows of the KV head, and only K and V carry rounding errors.
// Unused tokens and the padding of V rows may hold anything, NaN included.
#pragma once

#include "attention/attention.h"
#include "attention/elements.h"

namespace fuse {
inline namespace FUSE_ISA {

template <KvFmt F>
struct ElementOf {
  using type = int8_t;
};
template <>
struct ElementOf<KvFmt::f32> {
  using type = float;
};
template <>
struct ElementOf<KvFmt::f16> {
  using type = Half;
};
template <>
struct ElementOf<KvFmt::bf16> {
  using type = Bf16;
};

FUSE_INLINE int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

template <KvFmt F>
struct Blocks {
  using E = typename ElementOf<F>::type;
  static constexpr bool int8 = sizeof(E) == 1;
  static constexpr bool token_scales = F == KvFmt::i8_token || F == KvFmt::i8_token_head;

  uint8_t *base;
  int64_t block_bytes, block_size, head_dim, v_stride, k_head, v_head, v_start, scale_start, scale_heads;

  FUSE_INLINE explicit Blocks(const KvPool &pool)
      : base(pool.base), block_bytes(pool.block_bytes), block_size(pool.block_size), head_dim(pool.head_dim),
        v_stride(round_up(pool.head_dim, 16)), k_head(block_size * head_dim), v_head(block_size * v_stride),
        v_start(k_head * pool.kv_heads * int64_t(sizeof(E))),
        scale_start(v_start + v_head * pool.kv_heads * int64_t(sizeof(E))),
        scale_heads(F == KvFmt::i8_token ? 1 : pool.kv_heads) {}

  // Panel of the token at `offset`, a multiple of 16.
  FUSE_INLINE E *k_panel(int64_t block, int64_t head, int64_t offset) const {
    return reinterpret_cast<E *>(base + block * block_bytes) + head * k_head + offset * head_dim;
  }
  FUSE_INLINE E *v_row(int64_t block, int64_t head, int64_t offset) const {
    return reinterpret_cast<E *>(base + block * block_bytes + v_start) + head * v_head + offset * v_stride;
  }
  FUSE_INLINE float *scale(int64_t block, int64_t is_v, int64_t head, int64_t offset) const {
    const int64_t row = is_v * scale_heads + (F == KvFmt::i8_token ? 0 : head);
    return reinterpret_cast<float *>(base + block * block_bytes + scale_start) + row * block_size + offset;
  }
};

}  // namespace FUSE_ISA
}  // namespace fuse
