// Operations around a matrix product: a prologue makes the activations, tiles are handed out, an epilogue finishes each
// tile while it is in the worker's cache.
#pragma once

#include "operation.h"

namespace fuse {

struct Segment {
  Weight weight;
  Out out;
};

struct Linear {
  static constexpr int32_t kMaxSegments = 4;
  Act x;
  Segment segments[kMaxSegments];
  int32_t num_segments;
  In residual;  // null: none
  bool fused_qkv;
  Axis rows;
  Tiling tiling;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
  Ahead weights() const { return {{stream(segments[0].weight)}}; }

 private:
  void tile(const Kernels &, Worker &, const Segment &, int32_t m0, int32_t m1, int32_t p0, int32_t p1) const;
};

struct NormQkvRope {
  In x;
  Norm norm;
  Act act;  // the normalised input
  Weight q, k, v;
  Angles angles;
  const float *q_norm, *k_norm;  // [head_dim] or null
  float qk_eps;
  Out q_out;
  KvPool pool;
  Tiling tiling;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
  Ahead weights() const { return {{stream(q)}}; }

 private:
  struct Unit;
  int32_t heads_a_kv_unit() const;
  int32_t rows_a_tile() const;
  Unit unit(int64_t index, int32_t rows) const;
  void tile(const Kernels &, const Step &, Worker &, const Unit &) const;
};

struct Swiglu {
  static constexpr int32_t kColumns = 64;  // a unit has a multiple: whole groups of the output's quantisation
  In x;
  Norm norm;
  Act act;  // the normalised input
  Weight gate, up;
  Activation activation;
  Act out;
  Tiling tiling;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
  Ahead weights() const { return {{stream(gate), stream(up)}}; }

 private:
  void tile(const Kernels &, Worker &, int32_t m0, int32_t m1, int32_t begin, int32_t wide) const;
};

struct KvWrite {
  In k, v;
  KvPool pool;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

struct Attention {
  AttentionParams params;
  bool blockwise;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

struct TopOut {
  int32_t *ids;      // [R, kTopK]
  float *logits;     // [R, kTopK]
  float *logsumexp;  // [R]
  void *workspace;   // top_workspace_bytes(), shared by the team
};

int64_t top_workspace_bytes(int64_t vocab, int64_t max_rows, int64_t threads);

struct TopK {
  In logits;
  int32_t vocab;
  TopOut out;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
};

struct LmHead {
  In x;  // [T, k]
  Norm norm;
  Act act;  // [R, k]: the sampled rows, normalised
  Weight head;
  float softcap;  // 0: none
  TopOut out;
  Tiling tiling;
  void check(const Kernels &) const;
  void run(const Kernels &, const Step &, Worker &) const;
  Ahead weights() const { return {{stream(head)}}; }
};

// Rows [0, rows) of `act` = norm(x), or of the rows `index` of x; ends with a barrier.
void prepare_rows(const Kernels &, Worker &, const In &x, const int32_t *index, const Norm &, int32_t k,
                  const Act &act, int32_t rows);

}  // namespace fuse
