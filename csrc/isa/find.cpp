#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

#include <cstring>

#include "kernels.h"

namespace fuse {
namespace {

bool runs_avx2() {
#ifdef __x86_64__
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#else
  return false;
#endif
}

bool runs_avx512() {
#ifdef __x86_64__
  return runs_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

bool runs_neon() {
#if defined(__aarch64__) && defined(__linux__)
  constexpr unsigned long wanted = HWCAP_ASIMDDP | HWCAP_ASIMDHP;
  return (getauxval(AT_HWCAP) & wanted) == wanted && (getauxval(AT_HWCAP2) & HWCAP2_I8MM);
#else
  return false;
#endif
}

}  // namespace

const Kernels *find_kernels(const char *name) {
  auto wanted = [&](const char *isa) { return name[0] == '\0' || std::strcmp(name, isa) == 0; };
  if (wanted("avx512") && runs_avx512()) return kernels_avx512();
  if (wanted("avx2") && runs_avx2()) return kernels_avx2();
  if (wanted("neon") && runs_neon()) return kernels_neon();
  return wanted("scalar") ? kernels_scalar() : nullptr;
}

}  // namespace fuse
