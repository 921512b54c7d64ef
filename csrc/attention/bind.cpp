#include <nanobind/nanobind.h>

namespace fuse {

void bind_attention(nanobind::module_ &) {}

}  // namespace fuse
