// What this machine can do at most, measured: the denominators of every roofline.
#pragma once

#include <cstdint>
#include <string>

namespace fuse {

double measure_bandwidth(int threads, int64_t bytes, double seconds);
double measure_flops(int threads, const std::string &kind, double seconds);

}  // namespace fuse
