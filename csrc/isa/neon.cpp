#include "kernels.h"

#ifdef __ARM_FEATURE_MATMUL_INT8
#define FUSE_ISA neon
#include "isa/fill.h"

const fuse::Kernels *fuse::kernels_neon() { return filled(); }
#else
const fuse::Kernels *fuse::kernels_neon() { return nullptr; }
#endif
