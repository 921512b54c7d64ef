// What the checks of an instruction set against the scalar one share: random values, guarded memory, a verdict.
#pragma once

#include <cstdint>
#include <cstdio>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#include "kernels.h"
#include "region.h"

namespace check {

struct Sets {
  const fuse::Kernels &scalar, &tested;
};

// Counts cases; the first failures are printed.
class Verdict {
 public:
  void expect(bool ok, const std::string &what) {
    ++cases_;
    if (ok) return;
    if (++failures_ <= 20) std::printf("FAILED %s\n", what.c_str());
  }
  // |a - b| at most `tolerance` * max(1, |b|), infinities and NaN only where both have them.
  void near(const float *a, const float *b, size_t n, float tolerance, const std::string &what) {
    bool ok = true;
    for (size_t i = 0; i < n; ++i) {
      const float size = __builtin_fabsf(b[i]) > 1.0f ? __builtin_fabsf(b[i]) : 1.0f;
      const bool same = a[i] == b[i] || (a[i] != a[i] && b[i] != b[i]);
      ok &= same || __builtin_fabsf(a[i] - b[i]) <= tolerance * size;
    }
    expect(ok, what);
  }
  void same(const void *a, const void *b, size_t bytes, const std::string &what) {
    expect(std::memcmp(a, b, bytes) == 0, what);
  }
  int report(const char *name) const {
    std::printf("%s: %d cases, %d failures\n", name, cases_, failures_);
    return failures_ || !cases_;
  }

 private:
  int cases_ = 0, failures_ = 0;
};

class Random {
 public:
  float normal() { return normal_(engine_); }
  int32_t below(int32_t n) { return static_cast<int32_t>(engine_() % static_cast<uint32_t>(n)); }
  std::vector<float> normals(size_t n) {
    std::vector<float> x(n);
    for (float &v : x) v = normal();
    return x;
  }

 private:
  std::mt19937 engine_{5};
  std::normal_distribution<float> normal_;
};

// `bytes`, a multiple of 16, that end where memory ends: one byte more is a fault.
class AtTheEdge {
 public:
  explicit AtTheEdge(size_t bytes) : region_(bytes + kPage, false, ""), data_(region_.data() + pages(bytes) - bytes) {}
  uint8_t *data() { return data_; }

 private:
  static constexpr size_t kPage = 4096;
  static size_t pages(size_t bytes) { return (bytes + kPage + kPage - 1) / kPage * kPage; }

  fuse::Region region_;
  uint8_t *data_;
};

int linear(const Sets &sets);
int vectors(const Sets &sets);
int attention(const Sets &sets);

}  // namespace check
