// Parameters and entry points of attention and of the KV cache, as the program calls them.
#pragma once

#include "contract.h"

namespace fuse {

struct AttentionParams {
  const float *q;  // [T, heads * head_dim]
  float *out;      // [T, heads * head_dim]
  int64_t ldq, ldo;
  KvPool pool;
  int32_t heads;
  int32_t window;  // keys a query sees, itself included; 0 = all
  float scale;
  float softcap;   // 0 = none
  void *workspace; // shared by the team; attention_workspace_bytes()
};

using AttentionFn = void (*)(const AttentionParams &, const Step &, Worker &);
// Heads h0..h1 of one token; k and v are [h1 - h0, head_dim] and either may be null. Returns how many values a static
// scale clipped. i8_token has one scale over all heads: h0 = 0 and h1 = kv_heads.
using KvWriteFn = int64_t (*)(const KvPool &pool, int32_t slot, int32_t h0, int32_t h1, const float *k, const float *v);

struct AttentionKernels {
  KvWriteFn write[int(KvFmt::count)];
  AttentionFn naive[int(KvFmt::count)];
  AttentionFn blockwise[int(KvFmt::count)];
};

}  // namespace fuse
