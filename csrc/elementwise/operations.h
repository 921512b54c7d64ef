// Operations that treat every row alone: embedding, norm, activations, rotary embedding, quantisation.
//
// `n` and `dim` are columns; `rows` says which live count of the step they follow. Outputs may be their inputs.
#pragma once

#include "operation.h"

namespace fuse {

struct Embed {
  Weight weight;
  Out out;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

struct RmsNorm {
  In x;
  Norm norm;
  Out out;
  int32_t dim, chunks;
  Axis rows;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

struct Affine {
  In x;
  float scale, shift;
  Out out;
  int64_t n;
  Axis rows;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

struct Softcap {
  In x;
  float cap;
  Out out;
  int64_t n;
  Axis rows;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

struct Activate {
  Activation kind;
  In x;
  Out out;
  int64_t n;
  Axis rows;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

enum class Binary : int32_t { add, mul };

struct Combine {
  Binary kind;
  In a, b;
  Out out;
  int64_t n;
  Axis rows;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

struct GatherRows {  // out[r] = x[sample_rows[r]]
  In x;
  Out out;
  int64_t n;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

struct RopeAngles {
  const float *inv_freq;  // [dim / 2]
  float factor;
  Out out;
  int32_t dim;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

struct Rope {
  In x;
  Angles angles;
  Out out;
  int32_t heads, dim;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

struct Quantise {
  In x;
  Norm norm;
  int32_t k;
  Act out;
  Axis rows;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

// Row `row` of `out` = norm(row `from` of x), padded with zeros to its ld. Uses the worker's scratch.
void prepare_row(const Kernels &, Worker &, const In &x, int64_t from, const Norm &, int32_t k, const Act &out,
                 int64_t row);

}  // namespace fuse
