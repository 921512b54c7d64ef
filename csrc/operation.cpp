#include "operation.h"

#include <stdexcept>

namespace fuse {
namespace {

Counter weight_counter(Fmt fmt) {
  switch (fmt) {
    case Fmt::w4:
    case Fmt::w4a: return c_w4_bytes;
    case Fmt::w5: return c_w5_bytes;
    case Fmt::w8:
    case Fmt::w8g: return c_w8_bytes;
    case Fmt::f16:
    case Fmt::bf16: return c_half_bytes;
    default: return c_f32_bytes;
  }
}

}  // namespace

void require(bool ok, const std::string &message) {
  if (!ok) throw std::invalid_argument(message);
}

void require_rows(const In &x, int64_t n, const Out &out) {
  require(x.data != nullptr && out.data != nullptr, "An operand has no address.");
  require(n > 0 && x.ld >= n && out.ld >= n, "A row of the operands is shorter than the operation's columns.");
}

void require_tile(const Kernels &kernels, const Weight &weight, const Act &act) {
  require(weight.data != nullptr && weight.n > 0 && weight.k > 0, "A weight has no address or no size.");
  require(kernels.tile[int(weight.fmt)][int(act.type)] != nullptr,
          std::string("The ") + kernels.name + " kernels have no product of " + name(weight.fmt) + " weights with " +
              name(act.type) + " activations.");
  require(act.ld >= weight.k, "The activations have fewer columns than the weight.");
}

void require_act(const Kernels &kernels, const Act &act, int64_t k) {
  require(act.codes != nullptr && act.ld >= k, "The activations have no address or too few columns.");
  require(kernels.quantise[int(act.type)] != nullptr,
          std::string("The ") + kernels.name + " kernels cannot make " + name(act.type) + " activations.");
  if (act.type == ActType::f32) return;
  require(act.scales != nullptr && act.sums != nullptr, "Quantised activations need scales and sums.");
  require((act.group == 32 || act.group == 64) && act.ld % act.group == 0,
          "Quantised activations have groups of 32 or 64 columns, and whole groups.");
}

void require_tiling(const Tiling &tiling) {
  require(tiling.units >= 1 && tiling.rows >= 1 && tiling.rows <= kMostTileRows,
          "A tiling has at least one unit a worker and tiles of 1 to 256 rows.");
}

void count_tuned(Worker &worker, const Tiling &tiling) { count(worker, c_tuned_calls, tiling.tuned); }

void count(Worker &worker, Counter counter, int64_t by) {
  if (worker.tid == 0) worker.counters[counter] += by;
}

void count_clipped(Worker &worker, int64_t by) {
  if (by > 0) __atomic_fetch_add(&worker.counters[c_kv_clipped], by, __ATOMIC_RELAXED);
}

void count_weight(Worker &worker, const Weight &weight) {
  count(worker, weight_counter(weight.fmt), panels(weight) * weight.panel_bytes);
}

}  // namespace fuse
