// Blockwise attention with AMX tiles for sequences that bring 16 tokens or more; fewer tokens, float32 caches and large
// heads go the way of blockwise.h, to the bit.
//
// Algorithm. As blockwise.h, with larger blocks of rows: K and V of 256 keys are turned into pairs of bfloat16 once for
// all of them, then strips of 32 rows take scores, softmax and the weighted sum of V. A float32 operand (query, weight)
// is the sum of two bfloat16 up to 2^-17 of itself; a half is one exactly, and bfloat16 and int8 elements need no second
// part. A product is high low + high high + low high, summed in float32; the low low left out is below 2^-16 of it.
// A product of tiles has 32 rows and 32 columns; columns without a key have weight 0 and value 0, which add nothing. So
// a row's bits depend on its keys and position alone here too; but a row that comes with few has those of blockwise.h.
//
// Bytes: K and V once a block of rows from memory, their pairs (4 bytes an element of f16, else 2) from L2 a strip.
// Bound: the vector work of the softmax and the products of tiles, about alike.
// Measured (Sapphire Rapids, one core, f16, beside blockwise.h in the same run): prompts of 2000 tokens 1.6 x (3 KV
// heads, group 3, head_dim 64) and 1.7-1.8 x (2, 7, 64), of 512 tokens 1.2 and 1.5 x, 256 tokens after 1744 1.6 x.
#pragma once

#include "amx.h"
#include "attention/blockwise.h"
#include "kernels.h"

namespace fuse {
inline namespace FUSE_ISA {

constexpr int32_t kStrip = 32;           // rows and columns of a product of tiles
constexpr int32_t kTileTokens = 16;      // of a sequence at least
constexpr int32_t kTileRows = 256;       // rows of a unit of work at most
constexpr int32_t kTileUnits = 8;        // units a worker to aim at
constexpr int32_t kTileMaxDim = 256;     // larger heads do not fit the scratch memory

// A matrix as the sum of two of bfloat16. As left operand [rows, stride]; as right operand panels of 16 columns,
// [panels][stride / 2][16 columns][2]. Pointers are to the first element.
struct Split {
  uint16_t *high, *low;
  int64_t stride;

  FUSE_INLINE Split rows(int64_t row, int64_t k) const { return at(row * stride + k); }
  FUSE_INLINE Split panel(int64_t panel, int64_t k) const { return at((panel * stride + k) * 16); }

 private:
  FUSE_INLINE Split at(int64_t i) const { return {high + i, low + i, stride}; }
};

// 32 values to bfloat16 and what that leaves out, to nearest.
FUSE_INLINE void split_row(const float *x, const Split &to) {
  const __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
  const __m512i high = reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b, a));
  const auto value = [](__m256i half) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
  };
  const __m512 a_left = _mm512_sub_ps(a, value(_mm512_castsi512_si256(high)));
  const __m512 b_left = _mm512_sub_ps(b, value(_mm512_extracti64x4_epi64(high, 1)));
  _mm512_storeu_si512(to.high, high);
  _mm512_storeu_si512(to.low, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(b_left, a_left)));
}

// Two rows of 16 columns to one row of pairs; exact for the element types of the cache, with `Low` for halves.
template <bool Low>
FUSE_INLINE void split_pair(F32 a, F32 b, const Split &to) {
  const __m512i mask = _mm512_set1_epi32(static_cast<int>(0xffff0000u));
  const auto high = [&](F32 x) {
    const __m512i word = _mm512_castps_si512(x.v);
    return Low ? _mm512_and_si512(_mm512_add_epi32(word, _mm512_set1_epi32(0x8000)), mask) : word;
  };
  const auto pair = [&](__m512i first, __m512i second) {
    return _mm512_or_si512(_mm512_srli_epi32(first, 16), _mm512_and_si512(second, mask));
  };
  const auto left = [](F32 x, __m512i taken) {
    return _mm512_castps_si512(_mm512_sub_ps(x.v, _mm512_castsi512_ps(taken)));
  };
  const __m512i a_high = high(a), b_high = high(b);
  _mm512_storeu_si512(to.high, pair(a_high, b_high));
  if constexpr (Low) _mm512_storeu_si512(to.low, pair(left(a, a_high), left(b, b_high)));
}

// C[32, 32] = A B over `depth` (a multiple of 32); C's rows lie `ldc` floats apart.
template <bool Low>
FUSE_INLINE void multiply_tiles(const Split &a, const Split &b, int64_t depth, float *c, int64_t ldc) {
  const auto load_a = [&](const uint16_t *upper) {
    tile_load<4>(upper, a.stride * 2);
    tile_load<5>(upper + 16 * a.stride, a.stride * 2);
  };
  const auto load_b = [&](const uint16_t *left) {
    tile_load<6>(left, 64);
    tile_load<7>(left + 16 * b.stride, 64);
  };
  const auto add = [] {
    tile_dot_bf16<0, 4, 6>();
    tile_dot_bf16<1, 4, 7>();
    tile_dot_bf16<2, 5, 6>();
    tile_dot_bf16<3, 5, 7>();
  };
  tile_zero<0>();
  tile_zero<1>();
  tile_zero<2>();
  tile_zero<3>();
  for (int64_t k = 0; k < depth; k += 32) {
    load_a(a.high + k);
    if constexpr (Low) {
      load_b(b.low + k * 16);
      add();
    }
    load_b(b.high + k * 16);
    add();
    load_a(a.low + k);
    add();
  }
  tile_store<0>(c, ldc * 4);
  tile_store<1>(c + 16, ldc * 4);
  tile_store<2>(c + 16 * ldc, ldc * 4);
  tile_store<3>(c + 16 * ldc + 16, ldc * 4);
}

template <KvFmt F>
struct BlockwiseAmx final : Blockwise<F> {
  using Base = Blockwise<F>;
  using Base::blocks, Base::group, Base::p, Base::out, Base::maxima, Base::sums;
  static constexpr bool kLow = F == KvFmt::f16;

  const int64_t dim;  // head_dim and zeros, a multiple of 32
  uint8_t *free;      // scratch memory not given out yet
  int32_t most_rows = 0;
  Split queries_RD, weights_RT, keys_DT, values_TD;  // T: tokens of a tile of keys
  float *scores_RT, *part_RD;

  BlockwiseAmx(const AttentionParams &params, const Step &s, Worker &w)
      : Base(params, s, w), dim(round_up(blocks.head_dim, 32)), free(reinterpret_cast<uint8_t *>(sums + kRowBlock)) {
    if (blocks.head_dim > kTileMaxDim) return;
    keys_DT = take_split(kTile, dim);
    values_TD = take_split(dim, kTile);
    weights_RT = take_split(kStrip, kTile);
    scores_RT = take<float>(kStrip * kTile);
    part_RD = take<float>(kStrip * dim);
    const int64_t left = w.scratch + kScratchBytes - free;
    const int64_t row_bytes = (dim + blocks.v_stride + 2) * int64_t(sizeof(float));
    const int64_t fit = (left - 4 * 64) / row_bytes / kStrip * kStrip;
    most_rows = static_cast<int32_t>(fit < kTileRows ? fit : kTileRows);
    queries_RD = take_split(most_rows, dim);
    out = take<float>(most_rows * blocks.v_stride);
    maxima = take<float>(most_rows);
    sums = take<float>(most_rows);
  }

  template <class T>
  T *take(int64_t n) {
    T *taken = reinterpret_cast<T *>(round_up(reinterpret_cast<int64_t>(free), 64));
    free = reinterpret_cast<uint8_t *>(taken + n);
    return taken;
  }

  Split take_split(int64_t rows, int64_t columns) {
    uint16_t *both = take<uint16_t>(2 * rows * columns);
    return {both, both + rows * columns, columns};
  }

  bool in_tiles(const Sequence &s) const { return s.tokens >= kTileTokens && blocks.head_dim <= kTileMaxDim; }

  int32_t row_block(const Sequence &s) const override {
    if (!in_tiles(s)) return kRowBlock;
    const int64_t rows = int64_t(s.tokens) * p.heads / (this->worker.threads * kTileUnits);
    const int64_t size = round_up(rows, kStrip);
    return static_cast<int32_t>(size < 2 * kStrip ? 2 * kStrip : size < most_rows ? size : most_rows);
  }

  void unit(const Sequence &s, const Shape &x, int64_t base, int32_t head, int32_t row0, int32_t rows, int32_t tile0,
            int32_t tile1) override {
    if (!in_tiles(s)) return Base::unit(s, x, base, head, row0, rows, tile0, tile1);
    const MatrixTiles registers(64);
    load_queries(s, head, row0, rows);
    this->clear(rows);
    const KeySpan span = seen(s, row0 / group, (row0 + rows - 1) / group, p.window);
    Tile<F> tile;
    for (int32_t t = tile0; t < tile1; ++t) {
      const KeySpan visible = within(span, t);
      if (visible.lo > visible.hi) continue;
      tile.locate(blocks, s.table, head, t, visible);
      load_keys(tile, panels_of(visible, t));
      load_values(tile, panels_of(visible, t), visible, t * kTile);
      for (int32_t row = 0; row < rows; row += kStrip)
        strip(s, tile, t, row0, row, rows - row < kStrip ? rows - row : kStrip);
    }
    this->finish(s, head, row0, rows);
  }

  void load_queries(const Sequence &s, int32_t head, int32_t row0, int32_t rows) {
    const float factor = p.scale * static_factor<F>(p.pool, 0, head);
    float query[kTileMaxDim] = {};
    for (int32_t r = 0; r < rows; ++r) {
      load_query(p, s.token0 + (row0 + r) / group, head * group + (row0 + r) % group, factor, query);
      for (int64_t i = 0; i < dim; i += 32) split_row(query + i, queries_RD.rows(r, i));
    }
  }

  void load_keys(const Tile<F> &tile, PanelRange range) {
    const F32 zero = set1(0.0f);
    for (int panel = range.lo; panel <= range.hi; ++panel)
      for (int64_t i = 0; i < dim; i += 2) {
        const auto row = [&](int64_t at) { return at < blocks.head_dim ? widen(tile.k[panel] + at * 16) : zero; };
        split_pair<kLow>(row(i), row(i + 1), keys_DT.panel(panel, i));
      }
  }

  // The values of whole pairs of panels; zero for keys that no row sees.
  void load_values(const Tile<F> &tile, PanelRange range, KeySpan visible, int32_t origin) {
    const F32 zero = set1(0.0f);
    const int32_t lo = visible.lo - origin, hi = visible.hi - origin;
    for (int32_t key = range.lo / 2 * 32; key < range.hi / 2 * 32 + 32; key += 2)
      for (int64_t column = 0; column < blocks.v_stride; column += 16) {
        const auto row = [&](int32_t at) {
          return at >= lo && at <= hi ? widen(tile.v[at / 16] + at % 16 * blocks.v_stride + column) : zero;
        };
        split_pair<kLow>(row(key), row(key + 1), values_TD.panel(column / 16, key));
      }
  }

  // Up to 32 query rows from `row` of the block over one tile of keys.
  void strip(const Sequence &s, const Tile<F> &tile, int32_t t, int32_t row0, int32_t row, int32_t rows) {
    const KeySpan span = within(seen(s, (row0 + row) / group, (row0 + row + rows - 1) / group, p.window), t);
    if (span.lo > span.hi) return;
    const PanelRange range = panels_of(span, t);
    const int first = range.lo / 2 * 2, depth = (range.hi / 2 * 2 + 2 - first) * 16;
    for (int panel = first; panel <= range.hi; panel += 2)
      multiply_tiles<kLow>(queries_RD.rows(row, 0), keys_DT.panel(panel, 0), dim, scores_RT + panel * 16, kTile);
    float m[kStrip], l[kStrip];
    for (int32_t r = 0; r < rows; ++r) {
      const KeySpan mine = seen(s, (row0 + row + r) / group, p.window);
      softmax(tile, range, mine, t * kTile, r, m[r], l[r]);
    }
    for (int64_t column = 0; column < dim; column += 32)
      multiply_tiles<kLow>(weights_RT.rows(0, first * 16), values_TD.panel(column / 16, first * 16), depth,
                           part_RD + column, dim);
    for (int32_t r = 0; r < rows; ++r)
      fold({out + (row + r) * blocks.v_stride, maxima + row + r, sums + row + r}, part_RD + r * dim, m[r], l[r],
           blocks.v_stride);
  }

  // Scores of row r of a strip to weights, zero in panels outside the range that share a pair with one inside.
  FUSE_INLINE void softmax(const Tile<F> &tile, PanelRange range, KeySpan mine, int32_t origin, int32_t r, float &m,
                           float &l) {
    float *row = scores_RT + r * kTile;
    F32 sum[kLanes] = {set1(0.0f)};
    m = finish_scores<F>(row, tile, range, mine, origin, p.softcap);
    exponentials<F>(row, tile, range, m, sum);
    l = total(sum);
    if constexpr (Blocks<F>::token_scales) {  // unused tokens' scales may be NaN
      clear_outside(row, range.lo, mine, origin);
      clear_outside(row, range.hi, mine, origin);
    }
    if (range.lo % 2) store(row + (range.lo - 1) * 16, set1(0.0f));
    if (range.hi % 2 == 0) store(row + (range.hi + 1) * 16, set1(0.0f));
    for (int key = range.lo / 2 * 32; key <= range.hi * 16; key += 32) split_row(row + key, weights_RT.rows(r, key));
  }

  FUSE_INLINE static void clear_outside(float *row, int panel, KeySpan mine, int32_t origin) {
    const F32 key = lane_numbers() + set1(static_cast<float>(origin + panel * 16)), zero = set1(0.0f);
    F32 weight = load(row + panel * 16);
    weight = select(less(key, set1(static_cast<float>(mine.lo))), zero, weight);
    weight = select(greater(key, set1(static_cast<float>(mine.hi))), zero, weight);
    store(row + panel * 16, weight);
  }
};

template <KvFmt F>
void attention_amx(const AttentionParams &p, const Step &step, Worker &worker) {
  BlockwiseAmx<F>(p, step, worker).attend();
}

inline void fill_attention_amx(AttentionKernels &k) {
  k.blockwise[int(KvFmt::f16)] = attention_amx<KvFmt::f16>;
  k.blockwise[int(KvFmt::bf16)] = attention_amx<KvFmt::bf16>;
  k.blockwise[int(KvFmt::i8_token)] = attention_amx<KvFmt::i8_token>;
  k.blockwise[int(KvFmt::i8_token_head)] = attention_amx<KvFmt::i8_token_head>;
  k.blockwise[int(KvFmt::i8_head)] = attention_amx<KvFmt::i8_head>;
}

}  // namespace FUSE_ISA
}  // namespace fuse
