// What the binding files share.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <stdexcept>
#include <string>

#include "operation.h"

namespace fuse {

template <class T>
T *pointer(uintptr_t address) {
  return reinterpret_cast<T *>(address);
}

// The index of `name` among names, as an enum; throws std::invalid_argument naming what there is.
template <class Enum, size_t N>
Enum parse(const char *what, const std::string &name, const char *const (&names)[N]) {
  std::string all;
  for (size_t i = 0; i < N; ++i) {
    if (name == names[i]) return static_cast<Enum>(i);
    all += std::string(i ? ", " : "") + names[i];
  }
  throw std::invalid_argument("Unknown " + std::string(what) + " '" + name + "': use one of " + all + ".");
}

constexpr const char *kKvNames[] = {"f32", "f16", "bf16", "i8_token", "i8_token_head", "i8_head"};
constexpr const char *kAxisNames[] = {"one", "tokens", "seqs", "rows"};
constexpr const char *kActivationNames[] = {"silu", "gelu_tanh"};
constexpr const char *kIndexNames[] = {"row", "position"};
constexpr const char *kCounterNames[] = {
    "graph_replays",   "eager_calls",       "fused_qkv",      "fused_norm_qkv_rope", "fused_residual", "fused_swiglu",
    "fused_lm_head",   "attention_naive",   "attention_blockwise", "kv_int8_bytes",  "kv_half_bytes",  "kv_clipped",
    "w4_bytes",        "w5_bytes",          "w8_bytes",       "half_bytes",          "f32_bytes",      "rope_computed",
    "pinned_runs",     "barriers_saved",    "prefetched_bytes",    "tuned_calls"};

void bind_core(nanobind::module_ &m);        // memory, team, step, structs
void bind_program(nanobind::module_ &m);     // the program and its operations
void bind_linear(nanobind::module_ &m);
void bind_attention(nanobind::module_ &m);

}  // namespace fuse
