// A Step over NumPy arrays that it keeps alive.
#pragma once

#include <nanobind/ndarray.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <stdexcept>
#include <vector>

#include "contract.h"

namespace fuse {

class BoundStep {
 public:
  using Ints = nanobind::ndarray<const int32_t, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
  using Table = nanobind::ndarray<const int32_t, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;

  void bind(const Ints &token_ids, const Ints &positions, const Ints &seq_starts, const Ints &context_lens,
            const Ints &sample_rows, const std::vector<Ints> &kv_slots, const std::vector<Table> &block_tables) {
    if (kv_slots.size() != block_tables.size() || kv_slots.size() > size_t{kMaxGroups})
      throw std::invalid_argument("A step needs a block table for each array of slots, at most 4 of them.");
    vectors_ = {token_ids, positions, seq_starts, context_lens, sample_rows};
    vectors_.insert(vectors_.end(), kv_slots.begin(), kv_slots.end());
    tables_ = block_tables;
    step_ = {0, 0, 0, token_ids.data(), positions.data(), seq_starts.data(), context_lens.data(), sample_rows.data(),
             {}, {}, {}};
    max_tokens_ = std::min(token_ids.size(), positions.size());
    max_seqs_ = std::min(seq_starts.size() - (seq_starts.size() > 0), context_lens.size());
    max_rows_ = sample_rows.size();
    for (size_t g = 0; g < kv_slots.size(); ++g) {
      step_.kv_slots[g] = kv_slots[g].data();
      step_.block_tables[g] = block_tables[g].data();
      step_.table_stride[g] = static_cast<int64_t>(block_tables[g].shape(1));
      max_tokens_ = std::min(max_tokens_, kv_slots[g].size());
      max_seqs_ = std::min(max_seqs_, block_tables[g].shape(0));
    }
  }

  void set(uint32_t num_tokens, uint32_t num_seqs, uint32_t num_rows) {
    if (num_tokens > max_tokens_ || num_seqs > max_seqs_ || num_rows > max_rows_)
      throw std::invalid_argument("The step's live counts exceed the arrays bound to it.");
    step_.num_tokens = static_cast<int32_t>(num_tokens);
    step_.num_seqs = static_cast<int32_t>(num_seqs);
    step_.num_rows = static_cast<int32_t>(num_rows);
  }

  const Step &get() const { return step_; }

 private:
  Step step_{};
  std::vector<Ints> vectors_;
  std::vector<Table> tables_;
  size_t max_tokens_ = 0, max_seqs_ = 0, max_rows_ = 0;
};

}  // namespace fuse
