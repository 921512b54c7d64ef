// How a tile call is cut into micro-kernel calls, the same for all vector sets.
//
// Panels go `wide` at a time: at one row this is what reads several streams of memory at once. Up to a block of rows
// every weight is touched once and goes straight from memory to registers. Above, columns are cut so that the weights
// of `wide` panels stay in L1 while all blocks of rows pass over them; running sums wait in the tile meanwhile.
// Neither cut changes the order in which a row's sums are taken.
#pragma once

#include "linear/panel.h"

namespace fuse {
inline namespace FUSE_ISA {
namespace linear {

// One micro-kernel call: rows of `a` from `row`, panels from `panel`, and a range of columns or activation groups.
struct Span {
  const Weight &w;
  const Act &a;
  const uint8_t *panel;
  int32_t row, begin, end;
  float *tile;
  int64_t tile_ld;
};

// The rows of a call as an integer kernel walks them. Rows 4 to 7 have a base of their own: with one base their
// addresses need more registers than there are.
struct Codes {
  const uint8_t *low, *high;
  int64_t ld, groups;
  const float *scales;
  const int32_t *sums;

  Codes(const Span &s, int64_t quad_bytes) {
    ld = s.a.ld / 4 * quad_bytes;
    groups = s.a.ld / s.a.group;
    low = static_cast<const uint8_t *>(s.a.codes) + s.row * ld + int64_t(s.begin) * (s.a.group / 4) * quad_bytes;
    high = low + 4 * ld;
    scales = s.a.scales + s.row * groups + s.begin;
    sums = s.a.sums + s.row * groups + s.begin;
    asm("" : "+r"(high));  // keeps the compiler from deriving one base from the other again
  }
  const uint8_t *row(int m) const { return m < 4 ? low + m * ld : high + (m - 4) * ld; }
  void next_quad(int64_t bytes) {
    low += bytes;
    high += bytes;
  }
  void next_group() {
    scales++;
    sums++;
  }
};

using SpanFn = void (*)(const Span &);

// K states: kRows (largest block of rows), wide(M) (panels at once for a single block of M rows), kTileWide (the same
// where blocks of rows follow one another), and run<M, P>(span).
template <class K>
struct Blocking {
  template <int M>
  static SpanFn pick(int32_t panels) {
    if constexpr (M > K::kRows) {
      return nullptr;
    } else {
      if (panels == 1) return K::template run<M, 1>;
      return panels == K::wide(M) ? K::template run<M, K::wide(M)> : K::template run<M, K::kTileWide>;
    }
  }

  static SpanFn kernel(int32_t rows, int32_t panels) {
    switch (rows) {
      case 1: return pick<1>(panels);
      case 2: return pick<2>(panels);
      case 3: return pick<3>(panels);
      case 4: return pick<4>(panels);
      case 5: return pick<5>(panels);
      case 6: return pick<6>(panels);
      case 7: return pick<7>(panels);
      default: return pick<8>(panels);
    }
  }

  // Blocks of nearly equal height, so that no block is left with one row.
  static void rows(Span s, int32_t count, int32_t panels) {
    const int32_t blocks = (count + K::kRows - 1) / K::kRows;
    for (int32_t b = 0; b < blocks; b++) {
      const int32_t height = (count + b) / blocks;
      kernel(height, panels)(s);
      s.row += height;
      s.tile += height * s.tile_ld;
    }
  }

  static void tile(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
                   int64_t tile_ld, int32_t length, int32_t chunk) {
    const int32_t count = m1 - m0;
    for (int32_t m = 0; m < count; m++) __builtin_memset(tile + m * tile_ld, 0, (p1 - p0) * kPanel * sizeof(float));
    const bool single = count <= K::kRows;
    const int32_t wide = single ? K::wide(count) : K::kTileWide;
    if (single) chunk = length;
    for (int32_t p = p0; p < p1;) {
      const int32_t panels = p1 - p >= wide ? wide : 1;
      for (int32_t begin = 0; begin < length; begin += chunk) {
        const int32_t end = length - begin < chunk ? length : begin + chunk;
        rows(Span{w, a, panel_at(w, p), m0, begin, end, tile + (p - p0) * kPanel, tile_ld}, count, panels);
      }
      p += panels;
    }
  }
};

}  // namespace linear
}  // namespace FUSE_ISA
}  // namespace fuse
