// Norm, QKV projection, q/k norm, rotary embedding and cache write without a buffer between them.
//
// A unit is one head times a block of rows: a head is whole panels because head_dim is a multiple of 16, and the norm
// and the rotation of a head need nothing else. With one scale over all heads of a token, k and v are one unit each.
// Queries go to float32 memory, keys and values straight into the blocks of the cache.

#include "elementwise/operations.h"
#include "fused/operations.h"

namespace fuse {

struct NormQkvRope::Unit {
  const Weight *weight;
  int32_t head, heads, m0, m1;
};

int32_t NormQkvRope::heads_a_kv_unit() const { return pool.fmt == KvFmt::i8_token ? pool.kv_heads : 1; }

int32_t NormQkvRope::rows_a_tile() const {
  const int64_t fit = kScratchBytes / sizeof(float) / (int64_t{heads_a_kv_unit()} * pool.head_dim);
  return fit < tiling.rows ? static_cast<int32_t>(fit) : tiling.rows;
}

void NormQkvRope::check(const Kernels &kernels) const {
  const int32_t dim = pool.head_dim;
  require_tiling(tiling);
  require(dim > 0 && dim % kPanel == 0, "Norm, QKV and rope fuse only where the head size is a multiple of 16.");
  require(q.n % dim == 0 && k.n == pool.kv_heads * dim && v.n == k.n, "A projection is not a whole number of heads.");
  require(q.k == k.k && q.k == v.k && x.data != nullptr && x.ld >= q.k, "QKV must share one input of k columns.");
  require(rows_a_tile() > 0, "The heads of a token do not fit a worker's scratch memory.");
  require_act(kernels, act, q.k);
  for (const Weight *weight : {&q, &k, &v}) require_tile(kernels, *weight, act);
  require_rows({q_out.data, q_out.ld}, q.n, q_out);
  require(angles.table != nullptr, "Rotary embedding needs a table of angles.");
  require(kernels.attention.write[int(pool.fmt)] != nullptr, "There is no kernel that writes this cache format.");
}

NormQkvRope::Unit NormQkvRope::unit(int64_t index, int32_t rows) const {
  const int32_t q_units = q.n / pool.head_dim, group = heads_a_kv_unit(), kv_units = pool.kv_heads / group;
  const int32_t a_block = q_units + 2 * kv_units, block = rows_a_tile();
  const int32_t m0 = static_cast<int32_t>(index / a_block) * block, m1 = m0 + block < rows ? m0 + block : rows;
  const int32_t i = static_cast<int32_t>(index % a_block);
  if (i < q_units) return {&q, i, 1, m0, m1};
  if (i < q_units + kv_units) return {&k, (i - q_units) * group, group, m0, m1};
  return {&v, (i - q_units - kv_units) * group, group, m0, m1};
}

void NormQkvRope::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  const int32_t m = step.num_tokens;
  prepare_rows(kernels, worker, x, nullptr, norm, q.k, act, m);
  const int64_t a_block = q.n / pool.head_dim + 2 * (pool.kv_heads / heads_a_kv_unit());
  for_units(worker, a_block * div_up(m, rows_a_tile()),
            [&](int64_t index) { tile(kernels, step, worker, unit(index, m)); });
  if (m == 0) return;
  count_tuned(worker, tiling);
  for (const Weight *weight : {&q, &k, &v}) count_weight(worker, *weight);
  count(worker, c_fused_norm_qkv_rope, m);
}

void NormQkvRope::tile(const Kernels &kernels, const Step &step, Worker &worker, const Unit &unit) const {
  const int32_t dim = pool.head_dim, begin = unit.head * dim, width = unit.heads * dim;
  const bool is_q = unit.weight == &q, is_v = unit.weight == &v;
  const float *head_norm = is_q ? q_norm : is_v ? nullptr : k_norm;
  float *tile = reinterpret_cast<float *>(worker.scratch);
  int64_t clipped = 0;
  kernels.tile[int(unit.weight->fmt)][int(act.type)](*unit.weight, act, unit.m0, unit.m1, begin / kPanel,
                                                     (begin + width) / kPanel, tile, width);
  for (int32_t m = unit.m0; m < unit.m1; ++m, tile += width) {
    if (unit.weight->bias != nullptr) kernels.add(tile, unit.weight->bias + begin, tile, width);
    for (float *head = tile; head < tile + width; head += dim) {
      if (head_norm != nullptr) kernels.rms_norm(head, head_norm, qk_eps, head, dim);
      if (!is_v) kernels.rope(head, angles.row(step, m, dim), is_q ? q_out.row(m) + begin : head, dim);
    }
    if (is_q) continue;
    clipped += kernels.attention.write[int(pool.fmt)](pool, step.kv_slots[pool.group][m], unit.head,
                                                      unit.head + unit.heads, is_v ? nullptr : tile,
                                                      is_v ? tile : nullptr);
  }
  count_clipped(worker, clipped);
}

}  // namespace fuse
