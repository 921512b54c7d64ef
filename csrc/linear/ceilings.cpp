#include "linear/ceilings.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <new>
#include <stdexcept>
#include <thread>
#include <vector>

#ifdef __x86_64__
#include <immintrin.h>
#endif

namespace fuse {
namespace {

using Clock = std::chrono::steady_clock;

double since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

// Work done a second by all threads together: `once(thread)` returns how much it did.
template <class Once>
double rate(int threads, double seconds, Once once) {
  if (threads < 1 || seconds <= 0) throw std::invalid_argument("threads and seconds must be positive");
  std::atomic<int> ready{0};
  std::vector<double> rates(threads);
  auto work = [&](int t) {
    once(t);
    ready.fetch_add(1);
    while (ready.load() < threads) std::this_thread::yield();
    double done = 0;
    const auto start = Clock::now();
    while (since(start) < seconds) done += once(t);
    rates[t] = done / since(start);
  };
  std::vector<std::thread> team;
  for (int t = 1; t < threads; t++) team.emplace_back(work, t);
  work(0);
  for (auto &thread : team) thread.join();
  double total = 0;
  for (double r : rates) total += r;
  return total;
}

std::atomic<uint64_t> sink;  // results go here, so that no work is optimised away

#ifdef __x86_64__
__attribute__((target("avx2"))) uint64_t read_avx2(const uint8_t *p, int64_t stream) {
  __m256i acc[4] = {};
  for (int64_t i = 0; i < stream; i += 64)
    for (int s = 0; s < 4; s++) {
      const __m256i *line = reinterpret_cast<const __m256i *>(p + s * stream + i);
      acc[s] = _mm256_xor_si256(acc[s], _mm256_xor_si256(_mm256_load_si256(line), _mm256_load_si256(line + 1)));
    }
  const __m256i all = _mm256_xor_si256(_mm256_xor_si256(acc[0], acc[1]), _mm256_xor_si256(acc[2], acc[3]));
  return uint64_t(_mm256_extract_epi64(all, 0));
}

constexpr int kRounds = 20000, kChains = 12;

__attribute__((target("avx2,fma"))) uint64_t fma_avx2() {
  __m256 acc[kChains] = {};
  const __m256 a = _mm256_set1_ps(0.5f), b = _mm256_set1_ps(0.25f);
  for (int i = 0; i < kRounds; i++)
#pragma GCC unroll 12
    for (int c = 0; c < kChains; c++) acc[c] = _mm256_fmadd_ps(acc[c], a, b);
  float sum = 0;
  for (auto &v : acc) sum += _mm256_cvtss_f32(v);
  return uint64_t(sum);
}

__attribute__((target("avx512f"))) uint64_t fma_avx512() {
  __m512 acc[kChains];
  for (auto &v : acc) v = _mm512_setzero_ps();
  const __m512 a = _mm512_set1_ps(0.5f), b = _mm512_set1_ps(0.25f);
  for (int i = 0; i < kRounds; i++)
#pragma GCC unroll 12
    for (int c = 0; c < kChains; c++) acc[c] = _mm512_fmadd_ps(acc[c], a, b);
  float sum = 0;
  for (auto &v : acc) sum += _mm512_cvtss_f32(v);
  return uint64_t(sum);
}

__attribute__((target("avx2"))) uint64_t int8_avx2() {
  __m256i acc[kChains] = {};
  __m256i a = _mm256_set1_epi8(3), b = _mm256_set1_epi8(5);
  for (int i = 0; i < kRounds; i++) {
    asm volatile("" : "+x"(a), "+x"(b));
#pragma GCC unroll 12
    for (int c = 0; c < kChains; c++) {
      const __m256i product = _mm256_maddubs_epi16(a, b);
      asm volatile("vpaddw %1, %0, %0" : "+x"(acc[c]) : "x"(product));
    }
  }
  uint64_t sum = 0;
  for (auto &v : acc) sum += uint64_t(_mm256_extract_epi64(v, 0));
  return sum;
}

__attribute__((target("avx512f,avx512vnni"))) uint64_t int8_avx512() {
  __m512i acc[kChains];
  for (auto &v : acc) v = _mm512_setzero_si512();
  const __m512i a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(5);
  for (int i = 0; i < kRounds; i++)
#pragma GCC unroll 12
    for (int c = 0; c < kChains; c++) acc[c] = _mm512_dpbusd_epi32(acc[c], a, b);
  uint64_t sum = 0;
  for (auto &v : acc) {
    uint64_t lanes[8];
    _mm512_storeu_si512(lanes, v);
    sum += lanes[0];
  }
  return sum;
}
#endif

uint64_t read_plain(const uint8_t *p, int64_t bytes) {
  uint64_t acc = 0, word;
  for (int64_t i = 0; i < bytes; i += 8) {
    std::memcpy(&word, p + i, 8);
    acc ^= word;
  }
  return acc;
}

uint64_t read_once(const uint8_t *p, int64_t bytes) {
#ifdef __x86_64__
  if (__builtin_cpu_supports("avx2")) return read_avx2(p, bytes / 4);
#endif
  return read_plain(p, bytes);
}

struct Peak {
  uint64_t (*once)();
  double operations;  // in one call
};

Peak peak_of(const std::string &kind) {
  if (kind != "fma" && kind != "int8") throw std::invalid_argument("kind is fma or int8");
#ifdef __x86_64__
  const bool fma = kind == "fma";
  const double calls = double(kRounds) * kChains;
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vnni"))
    return fma ? Peak{fma_avx512, calls * 32} : Peak{int8_avx512, calls * 128};
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
    return fma ? Peak{fma_avx2, calls * 16} : Peak{int8_avx2, calls * 64};
#endif
  throw std::invalid_argument("no probe for this machine");
}

}  // namespace

double measure_bandwidth(int threads, int64_t bytes, double seconds) {
  const int64_t share = bytes / threads / 4096 * 4096, size = share * threads;
  if (share < 4096) throw std::invalid_argument("the buffer is too small");
  void *buffer = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (buffer == MAP_FAILED) throw std::bad_alloc();
  madvise(buffer, size, MADV_HUGEPAGE);
  std::memset(buffer, 1, size);
  const double result = rate(threads, seconds, [&](int t) {
    sink += read_once(static_cast<const uint8_t *>(buffer) + t * share, share);
    return double(share);
  });
  munmap(buffer, size);
  return result;
}

double measure_flops(int threads, const std::string &kind, double seconds) {
  const Peak peak = peak_of(kind);
  return rate(threads, seconds, [&](int) {
    sink += peak.once();
    return peak.operations;
  });
}

}  // namespace fuse
