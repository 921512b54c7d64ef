#include "bind.h"

NB_MODULE(_native, m) {
  fuse::bind_core(m);
  fuse::bind_linear(m);
  fuse::bind_attention(m);
  fuse::bind_program(m);
}
