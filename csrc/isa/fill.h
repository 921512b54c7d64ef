// Included last by isa/*.cpp, which define FUSE_ISA (the namespace) and are compiled with that set's flags.
#include "elementwise/fill.h"
#include "fused/fill.h"
#include "linear/fill.h"
#ifndef __ARM_FEATURE_MATMUL_INT8
#include "attention/fill.h"
#endif

#define FUSE_STRING_(x) #x
#define FUSE_STRING(x) FUSE_STRING_(x)

namespace fuse {
inline namespace FUSE_ISA {

inline const Kernels *filled() {
  static Kernels table = [] {
    Kernels k{};
    k.name = FUSE_STRING(FUSE_ISA);
    fill_linear(k);
#ifdef __ARM_FEATURE_MATMUL_INT8
    k.attention = kernels_scalar()->attention;  // attention/elements.h widens 1, 8 or 16 elements, not 4
#else
    fill_attention(k);
#endif
    fill_elementwise(k);
    fill_fused(k);
    return k;
  }();
  return &table;
}

}  // namespace FUSE_ISA
}  // namespace fuse
