// The AVX-512 set with matrix tiles where there are rows enough to fill them.
#include "kernels.h"

#ifdef __AMX_INT8__
#define FUSE_ISA amx
#include "attention/blockwise_amx.h"
#include "linear/tile_amx.h"

const fuse::Kernels *fuse::kernels_amx() {
  static const Kernels table = [] {
    Kernels k = *kernels_avx512();
    k.name = "amx";
    fill_attention_amx(k.attention);
    linear::fill_amx(k);
    return k;
  }();
  return &table;
}
#else
const fuse::Kernels *fuse::kernels_amx() { return nullptr; }
#endif
