// Kernels of the fused head: the best candidates and the sum of exponentials of a tile's row, while it is in cache.
//
// Algorithm: a vector of logits is compared with the worst kept candidate and only lanes that reach it are inserted,
// which after the first few hundred words almost none does. Candidates are ordered by falling logit, then rising id: a
// total order, so the kept set does not depend on who saw what first.
// Bytes moved: the tile once from the second-level cache. Bound expected: one compare a vector; exp for the sum.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace fuse {
inline namespace FUSE_ISA {

inline void top_insert(TopRow &top, float logit, int32_t id) {
  const auto before = [&](int32_t i) {
    return top.logits[i] > logit || (top.logits[i] == logit && top.ids[i] < id);
  };
  if (top.count == kTopK && before(kTopK - 1)) return;
  int32_t at = top.count < kTopK ? top.count++ : kTopK - 1;
  for (; at > 0 && !before(at - 1); --at) {
    top.logits[at] = top.logits[at - 1];
    top.ids[at] = top.ids[at - 1];
  }
  top.logits[at] = logit;
  top.ids[at] = id;
}

inline void top_update(const float *logits, int64_t n, int32_t first, TopRow &top) {
  int64_t i = 0;
  for (; i < n && top.count < kTopK; ++i) top_insert(top, logits[i], first + static_cast<int32_t>(i));
  for (; i < n; i += F32::N) {
    const int64_t lanes = n - i < F32::N ? n - i : F32::N;
    const F32 v = lanes == F32::N ? load(logits + i) : load_n(logits + i, lanes);
    // Equal logits matter too: another worker's share may hold the higher id of the two.
    uint32_t hits = ~bits(less(v, set1(top.logits[kTopK - 1]))) & ((1u << lanes) - 1u);
    for (; hits != 0; hits &= hits - 1) {
      const int64_t lane = __builtin_ctz(hits);
      top_insert(top, logits[i + lane], first + static_cast<int32_t>(i + lane));
    }
  }
}

inline void sum_exp(const float *logits, int64_t n, float &maximum, float &sum) {
  const F32 lowest = set1(-__builtin_inff());
  const auto lanes_of = [&](int64_t i, int64_t lanes) {
    return lanes == F32::N ? load(logits + i) : load_n(logits + i, lanes);
  };
  F32 top = lowest;
  int64_t i = 0;
  for (; i + F32::N <= n; i += F32::N) top = max(top, lanes_of(i, F32::N));
  maximum = max_lanes(top);
  for (int64_t j = i; j < n; ++j) maximum = logits[j] > maximum ? logits[j] : maximum;
  F32 total = set1(0.0f);
  for (i = 0; i + F32::N <= n; i += F32::N) total = total + exp(lanes_of(i, F32::N) - set1(maximum));
  if (i < n) {
    float rest[F32::N];
    store(rest, exp(lanes_of(i, n - i) - set1(maximum)));
    for (int64_t lane = n - i; lane < F32::N; ++lane) rest[lane] = 0.0f;
    total = total + load(rest);
  }
  sum = sum_lanes(total);
}

inline void fill_fused(Kernels &k) {
  k.top_update = top_update;
  k.sum_exp = sum_exp;
}

}  // namespace FUSE_ISA
}  // namespace fuse
