// What the parts of the native backend agree on: storage formats, activation and KV layouts, the step, the worker.
//
// Sizes are elements unless a name ends in _bytes. Activations are row-major float32 unless an `Act` says otherwise.
// A row's result never depends on how many rows, threads, buckets or blocks there are: sums over k run in a fixed
// order, attention tiles and splits lie at fixed absolute positions. One exception, within rounding: the amx set's
// attention multiplies in other parts for sequences that bring 16 tokens or more.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace fuse {

constexpr int kPanel = 16;     // output rows of a weight panel
constexpr int kTopK = 64;      // candidates the head keeps a row
constexpr int kMaxGroups = 4;  // cache groups of a model
constexpr int kMaxThreads = 256;

// ---- the step -------------------------------------------------------------------------------------------------

enum class Axis : int32_t { one, tokens, seqs, rows };

struct Step {  // pointers into the StepBatch arrays; see src/fuseboard/core/batch.py
  int32_t num_tokens, num_seqs, num_rows;
  const int32_t *token_ids, *positions, *seq_starts, *context_lens, *sample_rows;
  const int32_t *kv_slots[kMaxGroups];
  const int32_t *block_tables[kMaxGroups];
  int64_t table_stride[kMaxGroups];

  [[gnu::always_inline]] int32_t count(Axis a) const {  // never emitted: it would carry one set's instructions
    switch (a) {
      case Axis::tokens: return num_tokens;
      case Axis::seqs: return num_seqs;
      case Axis::rows: return num_rows;
      default: return 1;
    }
  }
};

// ---- weights --------------------------------------------------------------------------------------------------
// A matrix [n, k] is stored as ceil(n/16) panels of 16 output rows; a panel is contiguous, starts on a 64-byte
// border and pads rows and columns with zeros (k to `k_pad`, a multiple of the group, or of 64 for w8).
//   f32   a k: 16 floats                                                       64 B
//   f16   a k: 16 halves                                                       32 B
//   bf16  a k: dword j = row j | row (j+8) << 16                               32 B
//   w8    panel head: 16 f32 scales; then a k-quad: byte r*4 + k%4 = q + 128   64 B
//   w8g   a group: 16 f16 scales (32 B), then group/4 k-quads as in w8
//   w4    a group: 16 f16 scales (32 B), then group/4 k-quads of 32 B: byte (r%8)*4 + k%4, low nibble row r < 8,
//         high nibble row r >= 8; value = scale * (q - 8)
//   w4a   a group: 16 f16 scales, 16 f16 minima, then the same quads; value = scale * q + minimum
//   w5    a group of 32: 16 f16 scales, 8 x 64 fifth bits (a k-quad each: bit r*4 + k%4), then 8 k-quads of four bits
//         as in w4; value = scale * (q - 16)
enum class Fmt : int32_t { f32, f16, bf16, w8, w8g, w4, w4a, w5, count };

struct Weight {
  Fmt fmt;
  const uint8_t *data;
  int32_t n, k, k_pad, group;  // group = 0 where the format has none
  int64_t panel_bytes;
  const float *bias;  // [n] or null
};

// ---- activations ----------------------------------------------------------------------------------------------
//   f32   x [rows, ld]
//   a8    int8 codes [rows, ld], ld = k_pad; a scale (f32) and a sum of codes (int32) for every `group` columns
//   a16   the same with int16 codes; inside a k-quad the order is k0 k2 k1 k3, so that the byte pairs of a w8 quad
//         meet them after one AND and one shift
// scale = max|x| / 127 (or 32767) over the group, 0 for an all-zero group; code = round to nearest even.
enum class ActType : int32_t { f32, a8, a16, count };

struct Act {
  ActType type;
  void *codes;     // float*, int8_t* or int16_t*
  float *scales;   // [rows, ld / group]
  int32_t *sums;   // [rows, ld / group]
  int64_t ld;
  int32_t group;   // 32 or 64; 0 for f32
};

// tile[m - m0][0 .. 16 * (p1 - p0)) = rows m0..m1 of `a` times panels p0..p1 of `w`, scales applied, no bias.
using TileFn = void (*)(const Weight &w, const Act &a, int32_t m0, int32_t m1, int32_t p0, int32_t p1, float *tile,
                        int64_t tile_ld);
// Row `row` of `w` as float32 (the embedding look-up reads the same storage as the head).
using RowFn = void (*)(const Weight &w, int32_t row, float *out);
// Columns [0, k) of one row, from float32 x (already normalised) to codes, scales and sums; pads with zeros to ld.
using QuantiseFn = void (*)(const float *x, int32_t k, const Act &out, int32_t row);
// The same for the columns [k0, k1) only, both multiples of the group: for epilogues that own a slice of a row.
using QuantiseSliceFn = void (*)(const float *x, int32_t k0, int32_t k1, const Act &out, int32_t row);

// ---- KV cache -------------------------------------------------------------------------------------------------
// One layer's pool is `num_blocks` blocks of `block_bytes`; a block of `block_size` tokens holds K, V, then scales:
//   K  [kv_heads][block_size/16] panels of 16 tokens; elements as the format says
//   V  [kv_heads][block_size][head_dim]
enum class KvFmt : int32_t { f32, f16, bf16, i8_token, i8_token_head, i8_head, count };

struct KvPool {
  KvFmt fmt;
  uint8_t *base;
  int64_t block_bytes;
  int32_t block_size, kv_heads, head_dim;
  const float *head_scales;  // i8_head: [2][kv_heads], K then V
  int32_t group;             // cache group: which slots and block table of the step
};

// ---- threads --------------------------------------------------------------------------------------------------

// Numbers that prove that a switch did something; they move where the work happens. Indexed by name through binding.
enum Counter : int32_t {
  c_graph_replays,        // steps run as one static program
  c_eager_calls,          // native calls of single nodes
  c_fused_qkv,            // projections that shared one pass over their input
  c_fused_norm_qkv_rope,  // rows
  c_fused_residual,       // rows
  c_fused_swiglu,         // rows
  c_fused_lm_head,        // rows
  c_attention_naive,      // rows whose scores were materialised
  c_attention_blockwise,  // rows
  c_kv_int8_bytes,        // read
  c_kv_half_bytes,        // f16 and bf16 read
  c_kv_clipped,           // values clipped by a static scale
  c_w4_bytes,             // weight bytes read
  c_w5_bytes,
  c_w8_bytes,
  c_half_bytes,           // f16 and bf16 weights
  c_f32_bytes,
  c_rope_computed,        // rope tables computed in a step
  c_pinned_runs,          // of a worker, begun and ended on its own CPU
  c_barriers_saved,       // between instructions that need none of each other's results
  c_prefetched_bytes,     // weights pulled in by workers that waited
  c_tuned_calls,          // instructions run with sizes measured for them
  c_count
};

constexpr int32_t kMaxJoined = 8;  // instructions that may run without a barrier between them

// The start of the weights that the team reads next, in one or two streams.
struct Ahead {
  struct Stream {
    const uint8_t *data;
    int64_t bytes;
  };
  Stream streams[2];
};

struct Team;

struct Worker {
  int32_t tid, threads;
  Team *team;
  uint8_t *scratch;        // private, kScratchBytes, 64-byte aligned
  int64_t *counters;       // shared [c_count]; only worker 0 adds
  int32_t cpu;             // the only one it runs on during a job, or -1
  int32_t joined = 0;      // instructions since the last barrier
  const Ahead *ahead = nullptr;  // pulled in while waiting, if any

  void barrier();          // all workers of the team
  // Next unit of dynamic work of this instruction: 0, 1, 2, ... each handed out once. Reset by every barrier().
  int64_t next();
  // Goes on to the next instruction, with units of its own, while others may still be at this one.
  void join_next() { ++joined; }
};

constexpr size_t kScratchBytes = 1 << 20;

}  // namespace fuse
