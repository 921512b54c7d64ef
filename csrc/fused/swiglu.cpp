// Norm, gate and up projections, activation, product, and the quantisation that the down projection wants.
//
// A unit is 64 columns of both projections (or a few times 64) times a block of rows, so that it owns whole groups of
// the output's quantisation; the two tiles (32 KiB) never leave the first- and second-level cache.

#include <cstring>

#include "elementwise/operations.h"
#include "fused/operations.h"

namespace fuse {
namespace {

constexpr int32_t kMaxSlices = 4;  // of 64 columns in a unit

}  // namespace

void Swiglu::check(const Kernels &kernels) const {
  require_tiling(tiling);
  require(gate.n == up.n && gate.k == up.k, "Gate and up projections must have the same shape.");
  require(x.data != nullptr && x.ld >= gate.k, "The input has no address or too few columns.");
  require_act(kernels, act, gate.k);
  require_act(kernels, out, gate.n);
  require_tile(kernels, gate, act);
  require_tile(kernels, up, act);
  require(kernels.quantise_slice[int(out.type)] != nullptr, "There is no kernel for this type of output.");
}

void Swiglu::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  const int32_t m = step.num_tokens;
  const int32_t wide = kColumns * parts_a_unit(div_up(out.ld, kColumns), worker.threads, tiling, kMaxSlices);
  const int32_t slices = div_up(out.ld, wide);
  prepare_rows(kernels, worker, x, nullptr, norm, gate.k, act, m);
  for_units(worker, int64_t{slices} * div_up(m, tiling.rows), [&](int64_t unit) {
    const int32_t m0 = static_cast<int32_t>(unit / slices) * tiling.rows;
    tile(kernels, worker, m0, m0 + tiling.rows < m ? m0 + tiling.rows : m, static_cast<int32_t>(unit % slices) * wide, wide);
  });
  if (m == 0) return;
  count_tuned(worker, tiling);
  count_weight(worker, gate);
  count_weight(worker, up);
  count(worker, c_fused_swiglu, m);
}

void Swiglu::tile(const Kernels &kernels, Worker &worker, int32_t m0, int32_t m1, int32_t begin,
                  int32_t wide) const {
  const int32_t end = begin + wide < out.ld ? begin + wide : int32_t(out.ld);
  const int32_t live = gate.n <= begin ? 0 : gate.n < end ? gate.n - begin : end - begin;
  const int32_t p0 = begin / kPanel, p1 = div_up(begin + live, kPanel);
  float *gates = reinterpret_cast<float *>(worker.scratch), *ups = gates + tiling.rows * wide;
  if (live > 0) {
    kernels.tile[int(gate.fmt)][int(act.type)](gate, act, m0, m1, p0, p1, gates, wide);
    kernels.tile[int(up.fmt)][int(act.type)](up, act, m0, m1, p0, p1, ups, wide);
  }
  for (int32_t m = m0; m < m1; ++m, gates += wide, ups += wide) {
    if (gate.bias != nullptr) kernels.add(gates, gate.bias + begin, gates, live);
    if (up.bias != nullptr) kernels.add(ups, up.bias + begin, ups, live);
    kernels.gated[int(activation)](gates, ups, gates, live);
    std::memset(gates + live, 0, static_cast<size_t>(end - begin - live) * sizeof(float));
    kernels.quantise_slice[int(out.type)](gates, begin, end, out, m);
  }
}

}  // namespace fuse
