// Naive attention: all scores of a head are written to memory, a second pass makes them a softmax, a third multiplies V.
//
// The baseline for blockwise attention: vectorised and threaded over (sequence, head), but heads that share K and V
// read them again, and every score travels to memory and back three times. The workspace holds
// [max_tokens, max_context] floats a worker. The sum over keys runs in one go, so results differ from blockwise in
// rounding.
#pragma once

#include "attention/tile.h"

namespace fuse {
inline namespace FUSE_ISA {

template <KvFmt F>
struct Naive {
  using E = typename ElementOf<F>::type;

  const AttentionParams &p;
  const Sequence s;
  const Blocks<F> blocks;
  const int32_t head, kv_head;
  float *scores, *query, *out, *sums;
  const int64_t stride;

  Naive(const AttentionParams &params, const Step &step, Worker &worker, int32_t seq, int32_t q_head, float *workspace)
      : p(params), s(sequence(step, params.pool.group, seq)), blocks(params.pool), head(q_head),
        kv_head(q_head / (params.heads / params.pool.kv_heads)), scores(workspace), stride(round_up(s.context, 16)) {
    query = reinterpret_cast<float *>(worker.scratch);
    out = query + kMaxRows * blocks.head_dim;
  }

  // body(tile number, its part of what rows i .. i + rows see, its panels' addresses)
  template <class Body>
  FUSE_INLINE void for_tiles(int32_t i, int32_t rows, Body body) const {
    const KeySpan span = seen(s, i, i + rows - 1, p.window);
    Tile<F> tile;
    for (int32_t t = span.lo / kTile; t <= span.hi / kTile; ++t) {
      const KeySpan visible = within(span, t);
      tile.locate(blocks, s.table, kv_head, t, visible);
      body(t, visible, tile);
    }
  }

  FUSE_INLINE void score(int32_t i, int32_t rows) {
    const float factor = p.scale * static_factor<F>(p.pool, 0, kv_head);
    for (int32_t r = 0; r < rows; ++r) load_query(p, s.token0 + i + r, head, factor, query + r * blocks.head_dim);
    for_tiles(i, rows, [&](int32_t t, KeySpan visible, const Tile<F> &tile) {
      const PanelRange range = panels_of(visible, t);
      float *to = scores + i * stride + t * kTile + range.lo * 16;
      multiply(Product<E>{query, blocks.head_dim, tile.k + range.lo, 16, blocks.head_dim, to, stride, true}, rows,
               range.hi - range.lo + 1);
    });
  }

  // Scores of rows i .. i + rows to weights; the sums of the weights go to `sums`.
  FUSE_INLINE void softmax(int32_t i, int32_t rows, float *sums_R) {
    for (int32_t r = 0; r < rows; ++r) {
      const KeySpan mine = seen(s, i + r, p.window);
      float *row = scores + (i + r) * stride, maximum = kMinusInf;
      for_tiles(i, rows, [&](int32_t t, KeySpan visible, const Tile<F> &tile) {
        const float m = finish_scores<F>(row + t * kTile, tile, panels_of(visible, t), mine, t * kTile, p.softcap);
        maximum = m > maximum ? m : maximum;
      });
      F32 sum[kLanes];
      for (F32 &x : sum) x = set1(0.0f);
      for_tiles(i, rows, [&](int32_t t, KeySpan visible, const Tile<F> &tile) {
        exponentials<F>(row + t * kTile, tile, panels_of(visible, t), maximum, sum);
      });
      sums_R[r] = total(sum);
    }
  }

  FUSE_INLINE void weigh(int32_t i, int32_t rows, const float *sums_R) {
    bool fresh = true;
    for_tiles(i, rows, [&](int32_t t, KeySpan visible, const Tile<F> &tile) {
      add_values<F>(scores + i * stride + t * kTile, stride, tile, visible, t * kTile, blocks, out, rows, fresh);
      fresh = false;
    });
    const float unit = static_factor<F>(p.pool, 1, kv_head);
    for (int32_t r = 0; r < rows; ++r)
      store_output(p, s.token0 + i + r, head, unit / sums_R[r], out + r * blocks.v_stride);
  }

  void run() {
    auto for_chunks = [&](auto body) {
      for (int32_t i = 0; i < s.tokens; i += kMaxRows) body(i, s.tokens - i < kMaxRows ? s.tokens - i : kMaxRows);
    };
    for_chunks([&](int32_t i, int32_t rows) { score(i, rows); });
    for_chunks([&](int32_t i, int32_t rows) {
      float sums_R[kMaxRows];
      softmax(i, rows, sums_R);
      weigh(i, rows, sums_R);
    });
  }
};

template <KvFmt F>
void attention_naive(const AttentionParams &p, const Step &step, Worker &worker) {
  int64_t share = 0;  // floats of workspace a worker
  for (int32_t s = 0; s < step.num_seqs; ++s) {
    const Sequence q = sequence(step, p.pool.group, s);
    const int64_t need = q.tokens * round_up(q.context, 16);
    share = need > share ? need : share;
  }
  float *workspace = static_cast<float *>(p.workspace) + worker.tid * share;
  const int64_t units = int64_t(step.num_seqs) * p.heads;
  for (int64_t unit; (unit = worker.next()) < units;)
    Naive<F>(p, step, worker, static_cast<int32_t>(unit / p.heads), static_cast<int32_t>(unit % p.heads), workspace).run();
  count_work<F>(p, step, worker, c_attention_naive);
}

}  // namespace FUSE_ISA
}  // namespace fuse
