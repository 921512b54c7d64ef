#include "elementwise/operations.h"

#include <cmath>
#include <cstring>

namespace fuse {

void Embed::check(const Kernels &kernels) const {
  require(weight.data != nullptr && out.data != nullptr && out.ld >= weight.k, "The embedding's output is too short.");
  require(kernels.row[int(weight.fmt)] != nullptr,
          std::string("The ") + kernels.name + " kernels cannot read rows of " + name(weight.fmt) + " weights.");
}

void Embed::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  const RowFn read = kernels.row[int(weight.fmt)];
  for_rows(worker, step.num_tokens, [&](int64_t r) { read(weight, step.token_ids[r], out.row(r)); });
}

void RmsNorm::check(const Kernels &) const {
  require_rows(x, int64_t{dim} * chunks, out);
  require(norm.weight != nullptr, "The norm has no weight.");
}

void RmsNorm::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  for_rows(worker, step.count(rows), [&](int64_t r) {
    for (int64_t c = 0; c < chunks; ++c)
      kernels.rms_norm(x.row(r) + c * dim, norm.weight, norm.eps, out.row(r) + c * dim, dim);
  });
}

void Affine::check(const Kernels &) const { require_rows(x, n, out); }

void Affine::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  for_spans(worker, step.count(rows), n, [&](int64_t r, int64_t begin, int64_t end) {
    kernels.affine(x.row(r) + begin, scale, shift, out.row(r) + begin, end - begin);
  });
}

void Softcap::check(const Kernels &) const {
  require_rows(x, n, out);
  require(cap > 0.0f, "A soft cap must be positive.");
}

void Softcap::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  for_spans(worker, step.count(rows), n, [&](int64_t r, int64_t begin, int64_t end) {
    kernels.softcap(x.row(r) + begin, cap, out.row(r) + begin, end - begin);
  });
}

void Activate::check(const Kernels &) const { require_rows(x, n, out); }

void Activate::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  for_spans(worker, step.count(rows), n, [&](int64_t r, int64_t begin, int64_t end) {
    kernels.activation[int(kind)](x.row(r) + begin, out.row(r) + begin, end - begin);
  });
}

void Combine::check(const Kernels &) const {
  require_rows(a, n, out);
  require_rows(b, n, out);
}

void Combine::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  const auto kernel = kind == Binary::add ? kernels.add : kernels.mul;
  for_spans(worker, step.count(rows), n, [&](int64_t r, int64_t begin, int64_t end) {
    kernel(a.row(r) + begin, b.row(r) + begin, out.row(r) + begin, end - begin);
  });
}

void GatherRows::check(const Kernels &) const { require_rows(x, n, out); }

void GatherRows::run(const Kernels &, const Step &step, Worker &worker) const {
  for_rows(worker, step.num_rows, [&](int64_t r) {
    std::memcpy(out.row(r), x.row(step.sample_rows[r]), static_cast<size_t>(n) * sizeof(float));
  });
}

void RopeAngles::check(const Kernels &) const {
  require_rows({inv_freq, dim}, dim, out);
  require(dim % 2 == 0, "Rotary embedding needs an even head size.");
}

void RopeAngles::run(const Kernels &, const Step &step, Worker &worker) const {
  const int32_t half = dim / 2;
  count(worker, c_rope_computed, 1);
  for_rows(worker, step.num_tokens, [&](int64_t r) {
    float *row = out.row(r);
    for (int32_t i = 0; i < half; ++i) {
      const float angle = static_cast<float>(step.positions[r]) * inv_freq[i];
      row[i] = factor * std::cos(angle);
      row[half + i] = factor * std::sin(angle);
    }
  });
}

void Rope::check(const Kernels &) const {
  require_rows(x, int64_t{heads} * dim, out);
  require(angles.table != nullptr && dim % 2 == 0, "Rotary embedding needs a table of angles and an even head size.");
}

void Rope::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  for_rows(worker, step.num_tokens, [&](int64_t r) {
    const float *row = angles.row(step, r, dim);
    for (int64_t h = 0; h < heads; ++h) kernels.rope(x.row(r) + h * dim, row, out.row(r) + h * dim, dim);
  });
}

void Quantise::check(const Kernels &kernels) const {
  require(x.data != nullptr && x.ld >= k, "The rows to quantise have no address or too few columns.");
  require_act(kernels, out, k);
  require(norm.weight == nullptr || static_cast<size_t>(k) * sizeof(float) <= kScratchBytes,
          "The rows are too long for a worker's scratch memory.");
}

void Quantise::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  for_rows(worker, step.count(rows), [&](int64_t r) { prepare_row(kernels, worker, x, r, norm, k, out, r); });
}

void prepare_row(const Kernels &kernels, Worker &worker, const In &x, int64_t from, const Norm &norm, int32_t k,
                 const Act &out, int64_t row) {
  const float *values = x.row(from);
  if (norm.weight != nullptr) {
    float *normalised = reinterpret_cast<float *>(worker.scratch);
    kernels.rms_norm(values, norm.weight, norm.eps, normalised, k);
    values = normalised;
  }
  kernels.quantise[int(out.type)](values, k, out, static_cast<int32_t>(row));
}

}  // namespace fuse
