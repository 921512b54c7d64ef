// out = x w^T + bias (+ residual), one hand-out over all segments.
//
// A unit is a chunk of panels times a block of 64 rows; blocks of rows are the outer order, so that a block of
// activations stays in cache while the weights pass by. With one block the weights are read once, which is the bound
// for few rows. A tile goes straight to its destination unless columns are padded or a residual is added.

#include <cstring>

#include "elementwise/operations.h"
#include "fused/operations.h"

namespace fuse {
namespace {

constexpr int32_t kMaxChunk = 16;  // panels of a unit: a 64-row tile of 64 KiB

}  // namespace

void prepare_rows(const Kernels &kernels, Worker &worker, const In &x, const int32_t *index, const Norm &norm,
                  int32_t k, const Act &act, int32_t rows) {
  for_rows(worker, rows, [&](int64_t r) { prepare_row(kernels, worker, x, index ? index[r] : r, norm, k, act, r); });
  worker.barrier();
}

void Linear::check(const Kernels &kernels) const {
  require_tiling(tiling);
  require(num_segments >= 1 && num_segments <= kMaxSegments, "A linear operation has 1 to 4 segments.");
  require(residual.data == nullptr || num_segments == 1, "A residual needs a single segment.");
  for (int32_t s = 0; s < num_segments; ++s) {
    require_tile(kernels, segments[s].weight, x);
    require_rows({segments[s].out.data, segments[s].out.ld}, segments[s].weight.n, segments[s].out);
    require(segments[s].weight.k == segments[0].weight.k, "Segments of a linear operation share their input.");
    require(residual.data == nullptr || residual.ld >= segments[s].weight.n, "A residual row is shorter than its sum.");
  }
}

void Linear::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  const int32_t m = step.count(rows);
  int32_t total = 0, a_block = 0;
  for (int32_t s = 0; s < num_segments; ++s) total += panels(segments[s].weight);
  const int32_t chunk = parts_a_unit(total, worker.threads, tiling, kMaxChunk);
  for (int32_t s = 0; s < num_segments; ++s) a_block += div_up(panels(segments[s].weight), chunk);
  for_units(worker, int64_t{a_block} * div_up(m, tiling.rows), [&](int64_t unit) {
    const int32_t m0 = static_cast<int32_t>(unit / a_block) * tiling.rows;
    int32_t s = 0, c = static_cast<int32_t>(unit % a_block);
    for (; c >= div_up(panels(segments[s].weight), chunk); ++s) c -= div_up(panels(segments[s].weight), chunk);
    const int32_t p0 = c * chunk, all = panels(segments[s].weight);
    tile(kernels, worker, segments[s], m0, m0 + tiling.rows < m ? m0 + tiling.rows : m, p0,
         p0 + chunk < all ? p0 + chunk : all);
  });
  if (m == 0) return;
  count_tuned(worker, tiling);
  for (int32_t s = 0; s < num_segments; ++s) count_weight(worker, segments[s].weight);
  if (fused_qkv) count(worker, c_fused_qkv, 1);
  if (residual.data != nullptr) count(worker, c_fused_residual, m);
}

void Linear::tile(const Kernels &kernels, Worker &worker, const Segment &segment, int32_t m0, int32_t m1, int32_t p0,
                  int32_t p1) const {
  const Weight &w = segment.weight;
  const int32_t begin = p0 * kPanel, width = (p1 - p0) * kPanel, live = begin + width <= w.n ? width : w.n - begin;
  const bool direct = residual.data == nullptr && live == width;
  float *tile = direct ? segment.out.row(m0) + begin : reinterpret_cast<float *>(worker.scratch);
  const int64_t ld = direct ? segment.out.ld : width;
  kernels.tile[int(w.fmt)][int(x.type)](w, x, m0, m1, p0, p1, tile, ld);
  for (int32_t m = m0; m < m1; ++m, tile += ld) {
    float *out = segment.out.row(m) + begin;
    if (w.bias != nullptr) kernels.add(tile, w.bias + begin, tile, live);
    if (residual.data != nullptr)
      kernels.add(residual.row(m) + begin, tile, out, live);
    else if (!direct)
      std::memcpy(out, tile, static_cast<size_t>(live) * sizeof(float));
  }
}

}  // namespace fuse
