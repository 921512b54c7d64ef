#include <nanobind/nanobind.h>

#include "kernels.h"

namespace nb = nanobind;

namespace fuse {
void bind_linear(nb::module_ &);
void bind_attention(nb::module_ &);
}  // namespace fuse

NB_MODULE(_native, m) {
  m.def("isa", [](const char *name) -> const char * {
    const fuse::Kernels *kernels = fuse::find_kernels(name);
    return kernels ? kernels->name : "";
  }, nb::arg("name") = "");
  fuse::bind_linear(m);
  fuse::bind_attention(m);
}
