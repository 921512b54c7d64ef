#include "kernels.h"

#ifdef __AVX512F__
#define FUSE_ISA avx512
#include "isa/fill.h"

const fuse::Kernels *fuse::kernels_avx512() { return filled(); }
#else
const fuse::Kernels *fuse::kernels_avx512() { return nullptr; }
#endif
