// Parameters and entry points of attention and of the KV cache, as the program calls them.
#pragma once

#include "contract.h"

namespace fuse {

constexpr int kTile = 256;          // key positions that share one softmax partial; tiles start at multiples of it
constexpr int kRowBlock = 48;       // query rows (tokens x heads of one KV head) of a unit of work
constexpr int kSplitsPerThread = 4; // a decode unit above 1/4 of a worker's share is split over its tiles
constexpr int kPartTail = 16;       // floats after a partial's accumulators: maximum, sum, padding
constexpr int kMaxDimPanels = 64;   // head_dim up to 1024

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

struct KvWriteParams {
  const float *k, *v;  // [T, kv_heads * head_dim]
  int64_t ldk, ldv;
  KvPool pool;
};

using AttentionFn = void (*)(const AttentionParams &, const Step &, Worker &);
using KvWriteStepFn = void (*)(const KvWriteParams &, const Step &, Worker &);
// Heads h0..h1 of one token; k and v are [h1 - h0, head_dim] and either may be null. Returns how many values a static
// scale clipped. i8_token has one scale over all heads: h0 = 0 and h1 = kv_heads.
using KvWriteFn = int64_t (*)(const KvPool &pool, int32_t slot, int32_t h0, int32_t h1, const float *k, const float *v);

struct AttentionKernels {
  KvWriteFn write[int(KvFmt::count)];
  KvWriteStepFn write_step[int(KvFmt::count)];
  AttentionFn naive[int(KvFmt::count)];
  AttentionFn blockwise[int(KvFmt::count)];
};

struct AttentionSizes {
  int64_t max_tokens, max_seqs, max_context;
  int32_t heads, kv_heads, head_dim, threads;
};

// Upper bounds for every step within `sizes`. Naive: one score a query row and key position, for each worker.
int64_t attention_workspace_bytes(const AttentionSizes &sizes, bool naive);
// Bytes of a block of `block_size` tokens, a multiple of 64; attention/layout.h says what lies where.
int64_t kv_block_bytes(KvFmt fmt, int32_t block_size, int32_t kv_heads, int32_t head_dim);
// What is wrong with a pool, as a sentence, or null. The kernels check nothing.
const char *kv_pool_error(const KvPool &pool);

}  // namespace fuse
