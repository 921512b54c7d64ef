// The cache write and attention as operations: kernels of attention/ do all of it.

#include "fused/operations.h"

namespace fuse {

void KvWrite::check(const Kernels &kernels) const {
  const int64_t n = int64_t{pool.kv_heads} * pool.head_dim;
  require(k.data != nullptr && v.data != nullptr && k.ld >= n && v.ld >= n, "Keys or values have too few columns.");
  require(kernels.attention.write_step[int(pool.fmt)] != nullptr, "There is no kernel that writes this cache format.");
}

void KvWrite::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  kernels.attention.write_step[int(pool.fmt)]({k.data, v.data, k.ld, v.ld, pool}, step, worker);
}

void Attention::check(const Kernels &kernels) const {
  const int64_t n = int64_t{params.heads} * params.pool.head_dim;
  require(params.q != nullptr && params.out != nullptr && params.ldq >= n && params.ldo >= n,
          "Queries or the output have too few columns.");
  require(params.heads % params.pool.kv_heads == 0, "Query heads are not a multiple of the KV heads.");
  const auto &table = blockwise ? kernels.attention.blockwise : kernels.attention.naive;
  require(table[int(params.pool.fmt)] != nullptr, "There is no attention kernel for this cache format.");
}

void Attention::run(const Kernels &kernels, const Step &step, Worker &worker) const {
  const auto &table = blockwise ? kernels.attention.blockwise : kernels.attention.naive;
  table[int(params.pool.fmt)](params, step, worker);
}

}  // namespace fuse
