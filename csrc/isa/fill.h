// Included last by isa/*.cpp, which define FUSE_ISA (the namespace) and are compiled with that set's flags.
#include "attention/fill.h"
#include "elementwise/fill.h"
#include "fused/fill.h"
#include "linear/fill.h"

#define FUSE_STRING_(x) #x
#define FUSE_STRING(x) FUSE_STRING_(x)

namespace fuse {
inline namespace FUSE_ISA {

inline const Kernels *filled() {
  static Kernels table = [] {
    Kernels k{};
    k.name = FUSE_STRING(FUSE_ISA);
    fill_linear(k);
    fill_attention(k);
    fill_elementwise(k);
    fill_fused(k);
    return k;
  }();
  return &table;
}

}  // namespace FUSE_ISA
}  // namespace fuse
