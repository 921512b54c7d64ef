// What naive and blockwise attention share: where a row's keys are, and the softmax of one row over one tile.
//
// Scores of a row live in 16-float panels at fixed positions; keys a row must not see become -inf by selection (unused
// memory may hold NaN), and V is never read outside the range some row of the chunk sees. Sums over keys run a panel at
// a time into the same lanes, so leading and trailing masked panels change no bit.
#pragma once

#include "attention/layout.h"
#include "attention/product.h"

namespace fuse {
inline namespace FUSE_ISA {

constexpr int kTilePanels = kTile / 16;
constexpr float kMinusInf = -__builtin_inff();

struct Sequence {
  int32_t token0, tokens, context;  // first row in the batch, query rows, keys including this step's
  const int32_t *table;
};

FUSE_INLINE Sequence sequence(const Step &step, int32_t group, int32_t s) {
  const int32_t token0 = step.seq_starts[s];
  return {token0, step.seq_starts[s + 1] - token0, step.context_lens[s],
          step.block_tables[group] + s * step.table_stride[group]};
}

struct KeySpan {  // key positions lo .. hi, both included
  int32_t lo, hi;
};

FUSE_INLINE KeySpan seen(const Sequence &s, int32_t query, int32_t window) {
  const int32_t hi = s.context - s.tokens + query;
  return {window > 0 && hi >= window ? hi - window + 1 : 0, hi};
}

FUSE_INLINE KeySpan seen(const Sequence &s, int32_t first_query, int32_t last_query, int32_t window) {
  return {seen(s, first_query, window).lo, seen(s, last_query, window).hi};
}

FUSE_INLINE KeySpan within(KeySpan span, int32_t tile) {
  const int32_t lo = tile * kTile, hi = lo + kTile - 1;
  return {span.lo > lo ? span.lo : lo, span.hi < hi ? span.hi : hi};
}

// Pointers to the panels of one tile of one KV head; only panels inside the span are looked up.
template <KvFmt F>
struct Tile {
  using E = typename ElementOf<F>::type;
  const E *k[kTilePanels], *v[kTilePanels];
  const float *k_scale[kTilePanels], *v_scale[kTilePanels];

  FUSE_INLINE void locate(const Blocks<F> &blocks, const int32_t *table, int32_t head, int32_t tile, KeySpan span) {
    const int32_t first = span.lo / 16 - tile * kTilePanels, last = span.hi / 16 - tile * kTilePanels;
    int64_t index = span.lo / blocks.block_size, offset = span.lo / 16 * 16 - index * blocks.block_size;
    for (int32_t i = first; i <= last; ++i) {
      const int64_t block = table[index];
      k[i] = blocks.k_panel(block, head, offset);
      v[i] = blocks.v_row(block, head, offset);
      if constexpr (Blocks<F>::token_scales) {
        k_scale[i] = blocks.scale(block, 0, head, offset);
        v_scale[i] = blocks.scale(block, 1, head, offset);
      }
      offset += 16;
      if (offset == blocks.block_size) offset = 0, ++index;
    }
  }
};

struct PanelRange {  // panels of a tile
  int lo, hi;        // both included
};

FUSE_INLINE PanelRange panels_of(KeySpan span, int32_t tile) {
  return {span.lo / 16 - tile * kTilePanels, span.hi / 16 - tile * kTilePanels};
}

FUSE_INLINE F32 lane_numbers() {
  alignas(64) static constexpr float numbers[16] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
  return load(numbers);
}

// Finished scores of one row in panels `range` (scale of the key, soft cap, mask); returns their maximum.
template <KvFmt F>
FUSE_INLINE float finish_scores(float *scores, const Tile<F> &tile, PanelRange range, KeySpan span, int32_t origin,
                                float softcap) {
  F32 largest = set1(kMinusInf);
  for (int panel = range.lo; panel <= range.hi; ++panel) {
    const int32_t first = origin + panel * 16;
    const bool whole = first >= span.lo && first + 15 <= span.hi;
    for (int v = 0; v < 16; v += F32::N) {
      F32 x = load(scores + panel * 16 + v);
      if constexpr (Blocks<F>::token_scales) x = x * load(tile.k_scale[panel] + v);
      if (softcap > 0) x = set1(softcap) * tanh(x * set1(1.0f / softcap));
      if (!whole) {
        const F32 at = lane_numbers() + set1(static_cast<float>(v));
        x = select(less(at, set1(static_cast<float>(span.lo - first))), set1(kMinusInf), x);
        x = select(greater(at, set1(static_cast<float>(span.hi - first))), set1(kMinusInf), x);
      }
      store(scores + panel * 16 + v, x);
      largest = max(x, largest);
    }
  }
  return max_lanes(largest);
}

// Scores to weights exp(score - maximum), each times the scale of its value; adds the unscaled weights to `sum`.
template <KvFmt F>
FUSE_INLINE void exponentials(float *scores, const Tile<F> &tile, PanelRange range, float maximum, F32 (&sum)[kLanes]) {
  const F32 shift = set1(maximum > kMinusInf ? maximum : 0.0f);
  for (int panel = range.lo; panel <= range.hi; ++panel)
    for (int v = 0; v < kLanes; ++v) {
      float *at = scores + panel * 16 + v * F32::N;
      F32 weight = exp(load(at) - shift);
      sum[v] = sum[v] + weight;
      if constexpr (Blocks<F>::token_scales) weight = weight * load(tile.v_scale[panel] + v * F32::N);
      store(at, weight);
    }
}

FUSE_INLINE float total(const F32 (&sum)[kLanes]) {
  F32 all = sum[0];
  for (int v = 1; v < kLanes; ++v) all = all + sum[v];
  return sum_lanes(all);
}

// out[r][0 .. v_stride) (+)= weights[r][key] * V[key] for the keys of `span`, in runs of keys that lie together.
template <KvFmt F>
FUSE_INLINE void add_values(const float *weights, int64_t weight_row, const Tile<F> &tile, KeySpan span, int32_t origin,
                            const Blocks<F> &blocks, float *out, int rows, bool fresh) {
  using E = typename ElementOf<F>::type;
  const int panels = static_cast<int>(blocks.v_stride / 16);
  const E *columns[kMaxDimPanels];
  for (int32_t key = span.lo - origin; key <= span.hi - origin;) {
    const int32_t first = key;
    const E *run = tile.v[key / 16] + key % 16 * blocks.v_stride;
    for (key = key / 16 * 16 + 16; key <= span.hi - origin; key += 16)
      if (tile.v[key / 16] != tile.v[key / 16 - 1] + 16 * blocks.v_stride) break;
    const int32_t end = key <= span.hi - origin ? key : span.hi - origin + 1;
    for (int p = 0; p < panels; ++p) columns[p] = run + p * 16;
    multiply(Product<E>{weights + first, weight_row, columns, blocks.v_stride, end - first, out, blocks.v_stride, fresh},
             rows, panels);
    fresh = false;
  }
}

// Head `head` of the batch row `token`, times `factor`.
FUSE_INLINE void load_query(const AttentionParams &p, int32_t token, int32_t head, float factor, float *out) {
  const float *q = p.q + token * p.ldq + int64_t(head) * p.pool.head_dim;
  for_lanes(p.pool.head_dim, [&](int64_t i, int64_t n) { store_n(out + i, load_n(q + i, n) * set1(factor), n); });
}

FUSE_INLINE void store_output(const AttentionParams &p, int32_t token, int32_t head, float factor, const float *x) {
  float *out = p.out + token * p.ldo + int64_t(head) * p.pool.head_dim;
  for_lanes(p.pool.head_dim, [&](int64_t i, int64_t n) { store_n(out + i, load_n(x + i, n) * set1(factor), n); });
}

template <KvFmt F>
FUSE_INLINE float static_factor(const KvPool &pool, int32_t is_v, int32_t head) {
  return F == KvFmt::i8_head ? pool.head_scales[is_v * pool.kv_heads + head] : 1.0f;
}

// Worker 0 adds the rows served and the bytes of K and V that each sequence's queries can see.
template <KvFmt F>
FUSE_INLINE void count_work(const AttentionParams &p, const Step &step, Worker &worker, Counter rows) {
  if (worker.tid != 0) return;
  worker.counters[rows] += step.num_tokens;
  const KvPool &pool = p.pool;
  const int64_t scales = Blocks<F>::token_scales ? (F == KvFmt::i8_token ? 1 : pool.kv_heads) : 0;
  const int64_t key_bytes = 2 * (int64_t(pool.head_dim) * pool.kv_heads * int64_t(sizeof(typename ElementOf<F>::type)) +
                                 scales * int64_t(sizeof(float)));
  int64_t keys = 0;
  for (int32_t s = 0; s < step.num_seqs; ++s) {
    const Sequence q = sequence(step, pool.group, s);
    if (q.tokens > 0) keys += q.context - seen(q, 0, p.window).lo;
  }
  if constexpr (Blocks<F>::int8) worker.counters[c_kv_int8_bytes] += keys * key_bytes;
  if constexpr (F == KvFmt::f16 || F == KvFmt::bf16) worker.counters[c_kv_half_bytes] += keys * key_bytes;
}

}  // namespace FUSE_ISA
}  // namespace fuse
