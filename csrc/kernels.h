// The one dispatch table: a set of kernels for each instruction set, chosen once when a program is made.
//
// Each set is compiled in its own translation unit (isa/*.cpp) with its own flags. Kernel headers put everything into
// `inline namespace FUSE_ISA`, so that no inline function of one set can be linked into another.
#pragma once

#include "attention/attention.h"
#include "contract.h"

namespace fuse {

enum class Activation : int32_t { silu, gelu_tanh, count };

// Running state of one sample row in the head: the kTopK best logits (falling, ties by rising id).
struct TopRow {
  int32_t count;
  int32_t ids[kTopK];
  float logits[kTopK];
};

struct Kernels {
  const char *name;

  // linear/
  TileFn tile[int(Fmt::count)][int(ActType::count)];
  RowFn row[int(Fmt::count)];
  QuantiseFn quantise[int(ActType::count)];
  QuantiseSliceFn quantise_slice[int(ActType::count)];

  // attention/
  AttentionKernels attention;

  // elementwise/: n floats; `out` may be an input
  void (*affine)(const float *x, float scale, float shift, float *out, int64_t n);
  void (*softcap)(const float *x, float cap, float *out, int64_t n);
  void (*activation[int(Activation::count)])(const float *x, float *out, int64_t n);
  void (*gated[int(Activation::count)])(const float *gate, const float *up, float *out, int64_t n);
  void (*add)(const float *a, const float *b, float *out, int64_t n);
  void (*mul)(const float *a, const float *b, float *out, int64_t n);
  void (*rms_norm)(const float *x, const float *weight, float eps, float *out, int64_t n);
  // One head of `dim` values: pairs (i, i + dim/2); `angles` is cos[dim/2] then sin[dim/2].
  void (*rope)(const float *x, const float *angles, float *out, int32_t dim);

  // fused/: candidates of logits[0, n) with ids first, first + 1, ...; and their maximum and sum of exp(x - maximum).
  void (*top_update)(const float *logits, int64_t n, int32_t first, TopRow &top);
  void (*sum_exp)(const float *logits, int64_t n, float &maximum, float &sum);
};

const Kernels *kernels_scalar();
const Kernels *kernels_avx2();    // null where the compiler has no such target
const Kernels *kernels_avx512();
const Kernels *kernels_amx();
const Kernels *kernels_neon();

// By name ("scalar", "avx2", "avx512", "amx", "neon"), or the best this machine runs for an empty name; null if it
// cannot run it.
const Kernels *find_kernels(const char *name);

}  // namespace fuse
