#include <nanobind/nanobind.h>

#include <stdexcept>

#include "attention/attention.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fuse {
namespace {

void check_sizes(const AttentionSizes &s) {
  if (s.max_tokens < 1 || s.max_seqs < 1 || s.max_context < 1 || s.threads < 1 || s.threads > kMaxThreads)
    throw std::invalid_argument("attention sizes must be positive and threads at most kMaxThreads");
  if (s.kv_heads < 1 || s.heads % s.kv_heads) throw std::invalid_argument("heads must be a multiple of kv_heads");
  if (s.head_dim < 1 || s.head_dim > 16 * kMaxDimPanels) throw std::invalid_argument("head_dim must be 1 to 1024");
}

}  // namespace

void bind_attention(nb::module_ &m) {
  m.def("attention_workspace_bytes",
        [](int64_t max_tokens, int64_t max_seqs, int64_t max_context, int32_t heads, int32_t kv_heads, int32_t head_dim,
           bool naive, int32_t threads) {
          const AttentionSizes sizes{max_tokens, max_seqs, max_context, heads, kv_heads, head_dim, threads};
          check_sizes(sizes);
          return attention_workspace_bytes(sizes, naive);
        },
        nb::kw_only(), "max_tokens"_a, "max_seqs"_a, "max_context"_a, "heads"_a, "kv_heads"_a, "head_dim"_a, "naive"_a,
        "threads"_a);
  m.attr("MAX_HEAD_DIM") = 16 * kMaxDimPanels;
}

}  // namespace fuse
