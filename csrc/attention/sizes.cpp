#include "attention/attention.h"

namespace fuse {
namespace {

int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }

int64_t element_bytes(KvFmt fmt) {
  switch (fmt) {
    case KvFmt::f32: return 4;
    case KvFmt::f16:
    case KvFmt::bf16: return 2;
    default: return 1;
  }
}

int64_t scale_heads(KvFmt fmt, int32_t kv_heads) {
  return fmt == KvFmt::i8_token ? 1 : fmt == KvFmt::i8_token_head ? kv_heads : 0;
}

}  // namespace

int64_t attention_workspace_bytes(const AttentionSizes &s, bool naive) {
  if (naive) return int64_t(sizeof(float)) * s.threads * s.max_tokens * round_up(s.max_context, 16);
  // A sequence is split where tiles * kSplitsPerThread * threads > sum of tiles over all units, so the tiles of all
  // split sequences times kv_heads stay below kSplitsPerThread * threads * (tiles of the longest).
  const int64_t tiles = (s.max_context + kTile - 1) / kTile;
  if (s.threads == 1 || tiles < 2) return 0;
  const int64_t by_share = (kSplitsPerThread * s.threads * tiles - 1) / s.kv_heads;
  const int64_t split_tiles = by_share < s.max_seqs * tiles ? by_share : s.max_seqs * tiles;
  return int64_t(sizeof(float)) * split_tiles * s.heads * (round_up(s.head_dim, 16) + kPartTail);
}

int64_t kv_block_bytes(KvFmt fmt, int32_t block_size, int32_t kv_heads, int32_t head_dim) {
  const int64_t row = (head_dim + round_up(head_dim, 16)) * element_bytes(fmt) * kv_heads;
  return round_up(block_size * (row + 2 * int64_t(sizeof(float)) * scale_heads(fmt, kv_heads)), 64);
}

const char *kv_pool_error(const KvPool &pool) {
  if (!pool.base || pool.kv_heads < 1 || pool.head_dim < 1) return "A KV pool has no address or no size.";
  if (pool.group < 0 || pool.group >= kMaxGroups) return "A model has at most 4 cache groups.";
  if (pool.head_dim > 16 * kMaxDimPanels) return "KV heads hold at most 1024 values.";
  if (pool.block_size < 16 || pool.block_size % 16) return "The KV block size must be a multiple of 16 tokens.";
  if (pool.block_bytes < kv_block_bytes(pool.fmt, pool.block_size, pool.kv_heads, pool.head_dim))
    return "The KV blocks are too small for this format and shape.";
  if (pool.fmt == KvFmt::i8_head && !pool.head_scales) return "The i8_head cache format needs head_scales.";
  return nullptr;
}

}  // namespace fuse
