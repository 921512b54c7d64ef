// One row of a matrix as float32, for the embedding look-up; the same code for every instruction set.
//
// Bytes moved: the cache lines that hold the row, which are those of its whole panel. A step looks up as many rows as
// it has tokens, so this is far below one linear layer and is left to the compiler.
#pragma once

#include "linear/panel.h"

namespace fuse {
inline namespace FUSE_ISA {
namespace linear {

template <Fmt F>
void row_float(const Weight &w, int32_t row, float *out) {
  const uint8_t *panel = panel_at(w, row / kPanel);
  for (int32_t k = 0; k < w.k; k++) out[k] = value_at<F>(panel, row % kPanel, k);
}

template <Fmt F>
void row_int(const Weight &w, int32_t row, float *out) {
  const uint8_t *panel = panel_at(w, row / kPanel);
  const int32_t r = row % kPanel, group = w.group ? w.group : w.k_pad;
  const int64_t stride = group_head(F) + group / 4 * quad_bytes(F);
  for (int32_t k0 = 0; k0 < w.k; k0 += group) {
    const uint8_t *head = panel + k0 / group * stride;
    const uint8_t *quads = head + panel_head(F) + group_head(F);
    const float scale = F == Fmt::w8 ? bits_float(load32(head + r * 4)) : load_half(head + r * 2);
    const float minimum = F == Fmt::w4a ? load_half(head + 32 + r * 2) : 0.0f;
    const int32_t columns = w.k - k0 < group ? w.k - k0 : group;
    for (int32_t k = 0; k < columns; k++)
      out[k0 + k] = scale * float(code_at<F>(quads, r, k) - zero_point(F)) + minimum;
  }
}

}  // namespace linear
}  // namespace FUSE_ISA
}  // namespace fuse
