#pragma once

#include "kernels.h"

namespace fuse {
inline namespace FUSE_ISA {

inline void fill_elementwise(Kernels &) {}

}  // namespace FUSE_ISA
}  // namespace fuse
