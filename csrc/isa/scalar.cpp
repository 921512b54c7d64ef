#define FUSE_ISA scalar
#include "isa/fill.h"

const fuse::Kernels *fuse::kernels_scalar() { return filled(); }
