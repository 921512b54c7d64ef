// Blockwise attention: online softmax over tiles of 256 keys at fixed absolute positions; prefill and decode alike.
//
// Algorithm. The query rows of a sequence for one KV head (tokens x heads of the group) form blocks of up to 48 rows; a
// block is a unit of work, handed out dynamically, the longest rows of a prompt first. For each tile and each chunk of
// rows that fits the registers: scores, their maximum m and sum of exponentials l, and the weighted sum of V; then
//   M' = max(M, m),  L = L exp(M - M') + l exp(m - M'),  O = O exp(M - M') + o exp(m - M').
// A decode row whose unit would be more than a quarter of a worker's share is split over its tiles: the partials (o, m,
// l) go to the workspace and are folded after one barrier, in the same order with the same arithmetic. So a row's bits
// depend on its keys and position alone: not on block size, neighbours, threads, chunks of the prompt, or the split.
// Workers agree on the split because it follows from the step and the number of threads only.
//
// Bytes: K and V of the visible keys once a row block (from L2 after the first chunk of rows), queries and outputs once.
// Bound: decode with few heads a group is bound by memory at long contexts, by the products' latency at short ones;
// prefill by multiply-adds. V is prefetched while the scores of its panel are computed.
// Measured (Sapphire Rapids, 2 threads on a shared machine, so ratios only; 2 KV heads, group 7, head_dim 64, int8 per
// token-head), microseconds of a decode row at contexts 512, 2048, 8192, 32768: AVX-512 12, 46, 176, 707; AVX2 20, 83,
// 309, 1179. One thread, AVX2, 3 KV heads, group 3, f16, context 512: blockwise 21, naive 30. int8 is within 10 % of f16
// while in cache, so integer products with quantised queries would buy little and cost accuracy.
#pragma once

#include "attention/tile.h"

namespace fuse {
inline namespace FUSE_ISA {

// How a sequence becomes units of work.
struct Shape {
  int32_t rows, blocks, tile0, tiles, splits;

  FUSE_INLINE int64_t units(int32_t kv_heads) const { return int64_t(blocks) * kv_heads * splits; }
};

FUSE_INLINE Shape shape(const Sequence &s, int32_t heads_per_group, int32_t window) {
  const KeySpan span = seen(s, 0, s.tokens - 1, window);
  const int32_t rows = s.tokens * heads_per_group;
  return {rows, (rows + kRowBlock - 1) / kRowBlock, span.lo / kTile, span.hi / kTile - span.lo / kTile + 1, 1};
}

struct Partial {  // folded state of one row: weighted sum, maximum, sum of weights
  float *o, *m, *l;
};

FUSE_INLINE void fold(const Partial &into, const float *o, float m, float l, int64_t n) {
  if (!(m > kMinusInf)) return;
  const float largest = *into.m > m ? *into.m : m;
  float factor[2 * F32::N];
  store(factor, exp(set1(*into.m - largest)));
  store(factor + F32::N, exp(set1(m - largest)));
  const F32 keep = set1(factor[0]), take = set1(factor[F32::N]);
  for (int64_t i = 0; i < n; i += F32::N) store(into.o + i, fma(load(o + i), take, load(into.o + i) * keep));
  *into.l = *into.l * factor[0] + l * factor[F32::N];
  *into.m = largest;
}

template <KvFmt F>
struct Blockwise {
  using E = typename ElementOf<F>::type;

  const AttentionParams &p;
  const Step &step;
  Worker &worker;
  const Blocks<F> blocks;
  const int32_t kv_heads, group;  // group: query heads a KV head
  const int64_t part_floats;      // a partial in the workspace
  int64_t total_tiles = 0;
  bool any_split = false;
  float *queries, *out, *part, *scores, *maxima, *sums;  // private to the worker

  virtual ~Blockwise() = default;
  Blockwise(const AttentionParams &params, const Step &s, Worker &w)
      : p(params), step(s), worker(w), blocks(params.pool), kv_heads(params.pool.kv_heads),
        group(params.heads / params.pool.kv_heads), part_floats(blocks.v_stride + kPartTail) {
    queries = reinterpret_cast<float *>(worker.scratch);
    out = queries + kRowBlock * blocks.v_stride;
    part = out + kRowBlock * blocks.v_stride;
    scores = part + kMaxRows * blocks.v_stride;
    maxima = scores + kMaxRows * kTile;
    sums = maxima + kRowBlock;
    for (int32_t i = 0; i < step.num_seqs; ++i) {
      const Shape unsplit = shape(at(i), group, p.window);
      total_tiles += unsplit.units(kv_heads) * unsplit.tiles;
    }
    for (int32_t i = 0; i < step.num_seqs; ++i) any_split |= shape_of(at(i)).splits > 1;
  }

  FUSE_INLINE Sequence at(int32_t i) const { return sequence(step, p.pool.group, i); }

  FUSE_INLINE Shape shape_of(const Sequence &s) const {
    Shape x = shape(s, group, p.window);
    const bool large = int64_t(x.tiles) * kSplitsPerThread * worker.threads > total_tiles;
    if (s.tokens == 1 && worker.threads > 1 && large) x.splits = x.tiles;
    return x;
  }

  // Scores, weights and weighted sum of V for `rows` query rows in one tile; leaves `part`, m and l of each row.
  FUSE_INLINE void chunk(const Sequence &s, const Tile<F> &tile, int32_t t, int32_t row0, int32_t row, int32_t rows,
                         float *m, float *l) {
    const int32_t origin = t * kTile;
    const KeySpan span = within(seen(s, (row0 + row) / group, (row0 + row + rows - 1) / group, p.window), t);
    for (int32_t r = 0; r < rows; ++r) m[r] = kMinusInf, l[r] = 0.0f;
    if (span.lo > span.hi) return;
    const PanelRange range = panels_of(span, t);
    Product<E> product{queries + row * blocks.head_dim, blocks.head_dim, tile.k + range.lo, 16, blocks.head_dim,
                       scores + range.lo * 16, kTile, true};
    if (row == 0) {
      product.ahead = tile.v + range.lo;
      product.ahead_bytes = 16 * blocks.v_stride * int64_t(sizeof(E));
    }
    multiply(product, rows, range.hi - range.lo + 1);
    for (int32_t r = 0; r < rows; ++r) {
      F32 sum[kLanes];
      for (F32 &x : sum) x = set1(0.0f);
      const KeySpan mine = seen(s, (row0 + row + r) / group, p.window);
      m[r] = finish_scores<F>(scores + r * kTile, tile, range, mine, origin, p.softcap);
      exponentials<F>(scores + r * kTile, tile, range, m[r], sum);
      l[r] = total(sum);
    }
    add_values<F>(scores, kTile, tile, span, origin, blocks, part, rows, true);
  }

  FUSE_INLINE float *partial(int64_t base, const Shape &x, int32_t head, int32_t tile, int32_t row) const {
    const int64_t index = (int64_t(head) * x.tiles + tile) * x.rows + row;
    return static_cast<float *>(p.workspace) + base + index * part_floats;
  }

  FUSE_INLINE void clear(int32_t rows) {
    for (int64_t i = 0; i < rows * blocks.v_stride; i += F32::N) store(out + i, set1(0.0f));
    for (int32_t r = 0; r < rows; ++r) maxima[r] = kMinusInf, sums[r] = 0.0f;
  }

  FUSE_INLINE void finish(const Sequence &s, int32_t head, int32_t row0, int32_t rows) {
    const float unit = static_factor<F>(p.pool, 1, head);
    for (int32_t r = 0; r < rows; ++r)
      store_output(p, s.token0 + (row0 + r) / group, head * group + (row0 + r) % group, unit / sums[r],
                   out + r * blocks.v_stride);
  }

  virtual int32_t row_block(const Sequence &) const { return kRowBlock; }

  // Rows row0 .. row0 + rows of one KV head over tiles tile0 .. tile1; a split unit keeps its one tile as partials.
  virtual void unit(const Sequence &s, const Shape &x, int64_t base, int32_t head, int32_t row0, int32_t rows,
                    int32_t tile0, int32_t tile1) {
    const int32_t chunks = (rows + kMaxRows - 1) / kMaxRows, size = (rows + chunks - 1) / chunks;
    const float factor = p.scale * static_factor<F>(p.pool, 0, head);
    const KeySpan span = seen(s, row0 / group, (row0 + rows - 1) / group, p.window);
    for (int32_t r = 0; r < rows; ++r)
      load_query(p, s.token0 + (row0 + r) / group, head * group + (row0 + r) % group, factor,
                 queries + r * blocks.head_dim);
    clear(rows);
    Tile<F> tile;
    for (int32_t t = tile0; t < tile1; ++t) {
      const KeySpan visible = within(span, t);
      if (visible.lo > visible.hi) continue;
      tile.locate(blocks, s.table, head, t, visible);
      for (int32_t row = 0; row < rows; row += size) {
        const int32_t count = rows - row < size ? rows - row : size;
        float m[kMaxRows], l[kMaxRows];
        chunk(s, tile, t, row0, row, count, m, l);
        for (int32_t r = 0; r < count; ++r) keep(x, base, head, t, row0, row + r, part + r * blocks.v_stride, m[r], l[r]);
      }
    }
    if (x.splits == 1) finish(s, head, row0, rows);
  }

  FUSE_INLINE void keep(const Shape &x, int64_t base, int32_t head, int32_t t, int32_t row0, int32_t row,
                        const float *o, float m, float l) {
    if (x.splits == 1) {
      fold({out + row * blocks.v_stride, maxima + row, sums + row}, o, m, l, blocks.v_stride);
      return;
    }
    float *to = partial(base, x, head, t - x.tile0, row0 + row);
    for (int64_t i = 0; i < blocks.v_stride; i += F32::N) store(to + i, load(o + i));
    to[blocks.v_stride] = m;
    to[blocks.v_stride + 1] = l;
  }

  // The partials of one block of rows, folded in the order of the tiles.
  FUSE_INLINE void combine(const Sequence &s, const Shape &x, int64_t base, int32_t head, int32_t row0, int32_t rows) {
    clear(rows);
    for (int32_t r = 0; r < rows; ++r)
      for (int32_t t = 0; t < x.tiles; ++t) {
        const float *from = partial(base, x, head, t, row0 + r);
        fold({out + r * blocks.v_stride, maxima + r, sums + r}, from, from[blocks.v_stride], from[blocks.v_stride + 1],
             blocks.v_stride);
      }
    finish(s, head, row0, rows);
  }

  // Hands out the units of all sequences, prompts before single rows; `combining` visits split sequences only.
  void run(bool combining) {
    int64_t first = 0, base = 0, wanted = worker.next();
    for (int32_t i = 0; i < 2 * step.num_seqs; ++i) {
      const bool single = i >= step.num_seqs;
      const Sequence s = at(single ? i - step.num_seqs : i);
      if (s.tokens == 0 || (s.tokens == 1) != single) continue;
      const Shape x = shape_of(s);
      if (combining && x.splits == 1) continue;
      const int32_t splits = combining ? 1 : x.splits, size = row_block(s), row_blocks = (x.rows + size - 1) / size;
      const int64_t count = int64_t(row_blocks) * kv_heads * splits;
      for (; wanted < first + count; wanted = worker.next()) {
        const int32_t local = static_cast<int32_t>(wanted - first), split = local % splits;
        const int32_t head = local / splits % kv_heads, row0 = (row_blocks - 1 - local / splits / kv_heads) * size;
        const int32_t rows = x.rows - row0 < size ? x.rows - row0 : size;
        const int32_t tile0 = x.tile0 + split, tile1 = splits > 1 ? tile0 + 1 : x.tile0 + x.tiles;
        if (combining) combine(s, x, base, head, row0, rows);
        else unit(s, x, base, head, row0, rows, tile0, tile1);
      }
      first += count;
      if (x.splits > 1) base += int64_t(kv_heads) * x.tiles * x.rows * part_floats;
    }
  }

  void attend() {
    run(false);
    if (any_split) {
      worker.barrier();
      run(true);
    }
    count_work<F>(p, step, worker, c_attention_blockwise);
  }
};

template <KvFmt F>
void attention_blockwise(const AttentionParams &p, const Step &step, Worker &worker) {
  Blockwise<F>(p, step, worker).attend();
}

}  // namespace FUSE_ISA
}  // namespace fuse
