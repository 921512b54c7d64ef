#include "kernels.h"

#ifdef __AVX2__
#define FUSE_ISA avx2
#include "isa/fill.h"

const fuse::Kernels *fuse::kernels_avx2() { return filled(); }
#else
const fuse::Kernels *fuse::kernels_avx2() { return nullptr; }
#endif
