// The best kTopK words and the logsumexp of every sample row, from stored logits or straight from the head's tiles.
//
// The vocabulary is cut at fixed multiples of 256 words. A unit is one cut times a block of rows: its logits stay in
// the worker's cache, its maximum and sum of exponentials go to a place of their own, its candidates into the worker's
// private list. After a barrier every row is merged: candidates by their total order, sums in the order of the cuts.
// So the result depends neither on the number of workers nor on who took which unit.

#include <cmath>
#include <limits>

#include "elementwise/operations.h"
#include "fused/operations.h"

namespace fuse {
namespace {

constexpr int32_t kCutPanels = 16, kCut = kCutPanels * kPanel;

struct Partial {
  float maximum, sum;
};

// The workspace of one step.
struct TopWork {
  TopRow *tops;       // [threads, rows]
  Partial *partials;  // [rows, cuts]
  int32_t rows, cuts, threads;

  TopWork(void *workspace, int32_t vocab, int32_t rows, int32_t threads)
      : tops(static_cast<TopRow *>(workspace)),
        partials(reinterpret_cast<Partial *>(tops + int64_t{threads} * rows)),
        rows(rows),
        cuts(div_up(vocab, kCut)),
        threads(threads) {}

  TopRow &top(int32_t tid, int64_t row) const { return tops[int64_t{tid} * rows + row]; }

  void start(int32_t tid) const {
    for (int32_t r = 0; r < rows; ++r) top(tid, r).count = 0;
  }

  void take(const Kernels &kernels, int32_t tid, int64_t row, int32_t cut, const float *logits, int32_t n) const {
    kernels.top_update(logits, n, cut * kCut, top(tid, row));
    Partial &partial = partials[row * cuts + cut];
    kernels.sum_exp(logits, n, partial.maximum, partial.sum);
  }

  float logsumexp(int64_t row) const {
    const Partial *partial = partials + row * cuts;
    float maximum = partial[0].maximum;
    for (int32_t c = 1; c < cuts; ++c) maximum = partial[c].maximum > maximum ? partial[c].maximum : maximum;
    double sum = 0.0;
    for (int32_t c = 0; c < cuts; ++c) sum += double{partial[c].sum} * double{std::exp(partial[c].maximum - maximum)};
    return maximum + static_cast<float>(std::log(sum));
  }

  void merge(int64_t row, const TopOut &out) const {
    int32_t at[kMaxThreads] = {};
    for (int64_t i = row * kTopK; i < (row + 1) * kTopK; ++i) {
      int32_t best = -1, id = -1;
      float logit = -std::numeric_limits<float>::infinity();
      for (int32_t t = 0; t < threads; ++t) {
        const TopRow &list = top(t, row);
        if (at[t] == list.count) continue;
        const float other = list.logits[at[t]];
        if (best >= 0 && (other < logit || (other == logit && list.ids[at[t]] > id))) continue;
        best = t, id = list.ids[at[t]], logit = other;
      }
      if (best >= 0) ++at[best];
      out.ids[i] = id;
      out.logits[i] = logit;
    }
    out.logsumexp[row] = logsumexp(row);
  }

  void finish(Worker &worker, const TopOut &out) const {
    worker.ahead = nullptr;  // the head's weights were read
    worker.barrier();
    for_rows(worker, rows, [&](int64_t row) { merge(row, out); });
  }
};

void require_top(const TopOut &out) {
  require(out.ids && out.logits && out.logsumexp && out.workspace, "The top words have no address or no workspace.");
}

}  // namespace

int64_t top_workspace_bytes(int64_t vocab, int64_t max_rows, int64_t threads) {
  const int64_t row = threads * int64_t{sizeof(TopRow)} + div_up(vocab, kCut) * int64_t{sizeof(Partial)};
  return (max_rows * row + 63) / 64 * 64;
}

void TopK::check(const Kernels &) const {
  require_top(out);
  require(logits.data != nullptr && vocab > 0 && logits.ld >= vocab, "The logits have no address or too few columns.");
}

void TopK::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  const TopWork work(out.workspace, vocab, step.num_rows, worker.threads);
  work.start(worker.tid);
  for_units(worker, int64_t{work.rows} * work.cuts, [&](int64_t unit) {
    const int64_t row = unit / work.cuts;
    const int32_t cut = static_cast<int32_t>(unit % work.cuts), begin = cut * kCut;
    work.take(kernels, worker.tid, row, cut, logits.row(row) + begin, begin + kCut < vocab ? kCut : vocab - begin);
  });
  work.finish(worker, out);
}

void LmHead::check(const Kernels &kernels) const {
  require_tiling(tiling);
  require_top(out);
  require(x.data != nullptr && x.ld >= head.k, "The input has no address or too few columns.");
  require_act(kernels, act, head.k);
  require_tile(kernels, head, act);
}

void LmHead::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  const TopWork work(out.workspace, head.n, step.num_rows, worker.threads);
  work.start(worker.tid);
  prepare_rows(kernels, worker, x, step.sample_rows, norm, head.k, act, work.rows);
  for_units(worker, int64_t{work.cuts} * div_up(work.rows, tiling.rows), [&](int64_t unit) {
    const int32_t cut = static_cast<int32_t>(unit % work.cuts), begin = cut * kCut;
    const int32_t m0 = static_cast<int32_t>(unit / work.cuts) * tiling.rows;
    const int32_t m1 = m0 + tiling.rows < work.rows ? m0 + tiling.rows : work.rows;
    const int32_t live = begin + kCut < head.n ? kCut : head.n - begin, p0 = cut * kCutPanels;
    float *tile = reinterpret_cast<float *>(worker.scratch);
    kernels.tile[int(head.fmt)][int(act.type)](head, act, m0, m1, p0, p0 + div_up(live, kPanel), tile, kCut);
    for (int32_t m = m0; m < m1; ++m, tile += kCut) {
      if (head.bias != nullptr) kernels.add(tile, head.bias + begin, tile, live);
      if (softcap > 0.0f) kernels.softcap(tile, softcap, tile, live);
      work.take(kernels, worker.tid, m, cut, tile, live);
    }
  });
  work.finish(worker, out);
  if (work.rows == 0) return;
  count_weight(worker, head);
  count_tuned(worker, tiling);
  count(worker, c_fused_lm_head, work.rows);
}

}  // namespace fuse
