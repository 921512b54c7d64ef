#include "contract.h"

namespace fuse {

void Worker::barrier() {}
int64_t Worker::next() { return 0; }

}  // namespace fuse
