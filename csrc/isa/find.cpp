#if defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
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

// The kernel lends a process the tile registers only when asked, once for all threads that follow.
bool runs_amx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kTiles = 1u << 24, kInt8 = 1u << 25, kBf16 = 1u << 22;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned eax, ebx, ecx, edx;
  if (!runs_avx512() || !__get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx)) return false;
  if (~edx & (kTiles | kInt8 | kBf16)) return false;
  static const bool lent = syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return lent;
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
  if (wanted("amx") && kernels_amx() && runs_amx()) return kernels_amx();
  if (wanted("avx512") && runs_avx512()) return kernels_avx512();
  if (wanted("avx2") && runs_avx2()) return kernels_avx2();
  if (wanted("neon") && runs_neon()) return kernels_neon();
  return wanted("scalar") ? kernels_scalar() : nullptr;
}

}  // namespace fuse
