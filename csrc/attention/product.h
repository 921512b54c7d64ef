// C[r][0 .. 16 * panels) = (or +=) sum over k < n of A[r][k] * B_panel[k][16], the one product attention needs: scores
// are queries times K panels (k = head dimension, 16 tokens wide), outputs are probabilities times V (k = token, panels
// of 16 dimensions). The sum over k is sequential, whatever R and P, so a row does not depend on its neighbours.
//
// R rows times P panels stay in registers: R * P * (16 / N) accumulators and one of the two operands, at most 16 (AVX2)
// or 21 of 32 (AVX-512) registers, at least 8 independent chains. Each element of B is converted once for R rows.
#pragma once

#include "attention/elements.h"

namespace fuse {
inline namespace FUSE_ISA {

template <class E>
struct Product {
  const float *a;
  int64_t a_row;
  const E *const *b;  // a pointer a panel
  int64_t b_row;
  int64_t n;
  float *c;
  int64_t c_row;
  bool fresh;         // start at zero, not at C
  const E *const *ahead = nullptr;  // memory to prefetch beside each panel, or null
  int64_t ahead_bytes = 0;
};

template <class E>
FUSE_INLINE void prefetch(const Product<E> &x, int panel, int panels) {
  if (!x.ahead) return;
  for (int p = panel; p < panel + panels; ++p)
    for (int64_t byte = 0; byte < x.ahead_bytes; byte += 64)
      __builtin_prefetch(reinterpret_cast<const char *>(x.ahead[p]) + byte);
}

constexpr int kLanes = 16 / F32::N;  // vectors a panel
constexpr int kMaxRows = F32::N == 16 ? 8 : F32::N == 8 ? 6 : 4;

constexpr int panels_at_once(int rows) {
  if (F32::N == 16) return rows <= 4 ? 4 : 2;
  if (F32::N == 8) return rows == 1 ? 4 : rows <= 3 ? 2 : 1;
  return 1;
}

template <class E, int R, int P>
[[gnu::noinline]] void multiply_block(const Product<E> &x, int panel) {
  constexpr int V = P * kLanes;
  const float *a = x.a;
  float *c = x.c + panel * 16;
  const E *b[P];
  F32 acc[R][V];
#pragma GCC unroll 8
  for (int p = 0; p < P; ++p) b[p] = x.b[panel + p];
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) acc[r][v] = x.fresh ? set1(0.0f) : load(c + r * x.c_row + v * F32::N);
  for (int64_t k = 0; k < x.n; ++k) {
    if constexpr (R <= V) {
      F32 row[R];
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) row[r] = set1(a[r * x.a_row + k]);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        const F32 column = widen(b[v / kLanes] + k * x.b_row + v % kLanes * F32::N);
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r) acc[r][v] = fma(row[r], column, acc[r][v]);
      }
    } else {
      F32 column[V];
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) column[v] = widen(b[v / kLanes] + k * x.b_row + v % kLanes * F32::N);
#pragma GCC unroll 8
      for (int r = 0; r < R; ++r) {
        const F32 row = set1(a[r * x.a_row + k]);
#pragma GCC unroll 16
        for (int v = 0; v < V; ++v) acc[r][v] = fma(row, column[v], acc[r][v]);
      }
    }
  }
#pragma GCC unroll 8
  for (int r = 0; r < R; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < V; ++v) store(c + r * x.c_row + v * F32::N, acc[r][v]);
}

template <class E, int R>
void multiply_rows(const Product<E> &x, int panels) {
  constexpr int P = panels_at_once(R);
  int p = 0;
  for (; p + P <= panels; p += P) {
    prefetch(x, p, P);
    multiply_block<E, R, P>(x, p);
  }
  for (; p < panels; ++p) {
    prefetch(x, p, 1);
    multiply_block<E, R, 1>(x, p);
  }
}

template <class E>
FUSE_INLINE void multiply(const Product<E> &x, int rows, int panels) {
  using Fn = void (*)(const Product<E> &, int);
  if constexpr (kMaxRows == 8) {
    static constexpr Fn by_rows[] = {multiply_rows<E, 1>, multiply_rows<E, 2>, multiply_rows<E, 3>, multiply_rows<E, 4>,
                                     multiply_rows<E, 5>, multiply_rows<E, 6>, multiply_rows<E, 7>, multiply_rows<E, 8>};
    by_rows[rows - 1](x, panels);
  } else if constexpr (kMaxRows == 6) {
    static constexpr Fn by_rows[] = {multiply_rows<E, 1>, multiply_rows<E, 2>, multiply_rows<E, 3>,
                                     multiply_rows<E, 4>, multiply_rows<E, 5>, multiply_rows<E, 6>};
    by_rows[rows - 1](x, panels);
  } else {
    static constexpr Fn by_rows[] = {multiply_rows<E, 1>, multiply_rows<E, 2>, multiply_rows<E, 3>, multiply_rows<E, 4>};
    by_rows[rows - 1](x, panels);
  }
}

}  // namespace FUSE_ISA
}  // namespace fuse
