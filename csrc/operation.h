// What operations share: operands, checks, counters, and how rows are handed out.
#pragma once

#include <iterator>
#include <string>

#include "kernels.h"
#include "team.h"

namespace fuse {

// How panels and rows are cut into units of work. It changes no result.
struct Tiling {
  int32_t units = 8;   // for each worker at least, so that the last one does not leave the others waiting
  int32_t rows = 64;   // of a tile at most: a block of activations stays in the second-level cache
  bool tuned = false;  // measured here, not the fixed default
};
constexpr int32_t kMostTileRows = 256;

struct In {
  const float *data;
  int64_t ld;
  const float *row(int64_t r) const { return data + r * ld; }
};

struct Out {
  float *data;
  int64_t ld;
  float *row(int64_t r) const { return data + r * ld; }
};

struct Norm {
  const float *weight;  // null: no norm
  float eps;
};

enum class AngleIndex : int32_t { row, position, count };

struct Angles {
  const float *table;  // [., dim]: cos[dim / 2] then sin[dim / 2]
  AngleIndex index;
  const float *row(const Step &step, int64_t r, int64_t dim) const {
    return table + (index == AngleIndex::row ? r : step.positions[r]) * dim;
  }
};

// The names that Python knows, in the order of the values.
constexpr const char *kFmtNames[] = {"f32", "f16", "bf16", "w8", "w8g", "w4", "w4a", "w5"};
constexpr const char *kActNames[] = {"f32", "a8", "a16"};
static_assert(std::size(kFmtNames) == size_t(Fmt::count) && std::size(kActNames) == size_t(ActType::count));
constexpr const char *name(Fmt fmt) { return kFmtNames[int(fmt)]; }
constexpr const char *name(ActType type) { return kActNames[int(type)]; }

// Throws std::invalid_argument(message) unless ok.
void require(bool ok, const std::string &message);
void require_rows(const In &x, int64_t n, const Out &out);
void require_tile(const Kernels &kernels, const Weight &weight, const Act &act);
void require_act(const Kernels &kernels, const Act &act, int64_t k);

void require_tiling(const Tiling &tiling);

void count(Worker &worker, Counter counter, int64_t by);
void count_tuned(Worker &worker, const Tiling &tiling);
void count_weight(Worker &worker, const Weight &weight);  // bytes of the whole matrix, under its format's counter
void count_clipped(Worker &worker, int64_t by);            // any worker

constexpr int32_t div_up(int64_t n, int64_t by) { return static_cast<int32_t>((n + by - 1) / by); }
inline int32_t panels(const Weight &weight) { return div_up(weight.n, kPanel); }
inline Ahead::Stream stream(const Weight &weight) { return {weight.data, panels(weight) * weight.panel_bytes}; }

// How many of `total` parts make a unit, from 1 to `most`.
constexpr int32_t parts_a_unit(int32_t total, int32_t threads, const Tiling &tiling, int32_t most) {
  const int32_t parts = total / (threads * tiling.units);
  return parts < 1 ? 1 : parts > most ? most : parts;
}

// f(row) for the rows that this worker gets: several a time once there are enough for every worker.
template <class F>
void for_rows(Worker &worker, int32_t rows, F f) {
  const int32_t share = rows / (worker.threads * 4), step = share < 1 ? 1 : share > 16 ? 16 : share;
  for_units(worker, div_up(rows, step), [&](int64_t unit) {
    const int64_t end = unit * step + step < rows ? unit * step + step : rows;
    for (int64_t row = unit * step; row < end; ++row) f(row);
  });
}

// f(row, begin, end) over columns [0, n) of the rows; few rows are cut into spans so that every worker gets some.
template <class F>
void for_spans(Worker &worker, int32_t rows, int64_t n, F f) {
  constexpr int64_t kSpan = 1024;
  if (rows >= worker.threads * 4) return for_rows(worker, rows, [&](int64_t row) { f(row, int64_t{0}, n); });
  const int64_t spans = div_up(n, kSpan);
  for_units(worker, rows * spans, [&](int64_t unit) {
    const int64_t begin = unit % spans * kSpan;
    f(unit / spans, begin, begin + kSpan < n ? begin + kSpan : n);
  });
}

}  // namespace fuse
