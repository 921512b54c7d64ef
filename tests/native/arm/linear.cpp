// Every weight format, activation and ragged shape: integer tiles bit for bit, float tiles within rounding.
#include <algorithm>
#include <cmath>

#include "check.h"

namespace check {
namespace {

using fuse::ActType;
using fuse::Fmt;
using fuse::kPanel;

constexpr const char *kFormats[] = {"f32", "f16", "bf16", "w8", "w8g", "w4", "w4a", "w5"};
constexpr const char *kActs[] = {"f32", "a8", "a16"};
static_assert(std::size(kFormats) == size_t(Fmt::count) && std::size(kActs) == size_t(ActType::count));

bool is_float(Fmt f) { return f == Fmt::f32 || f == Fmt::f16 || f == Fmt::bf16; }
// Of a group: the bytes before its codes but the fifth bits, and those of a column.
int32_t head_bytes(Fmt f) { return f == Fmt::w4a ? 64 : 32; }
int32_t column_bytes(Fmt f) { return f == Fmt::w8g ? 16 : f == Fmt::w5 ? 10 : 8; }
int32_t up(int32_t n, int32_t to) { return (n + to - 1) / to * to; }

int64_t panel_bytes(Fmt f, int32_t k_pad, int32_t group) {
  if (is_float(f)) return up(k_pad * (f == Fmt::f32 ? 64 : 32), 64);
  if (f == Fmt::w8) return 64 + int64_t(k_pad) * kPanel;
  return up(k_pad / group * (head_bytes(f) + group * column_bytes(f)), 64);
}

// A matrix of any bytes as codes, and of floats of both signs between 2^-7 and 2 wherever the format has floats.
class Matrix {
 public:
  Matrix(Fmt fmt, int32_t n, int32_t k, int32_t group, Random &random)
      : k_pad_(is_float(fmt) ? k : up(k, group ? group : 64)), bytes_(panel_bytes(fmt, k_pad_, group)),
        memory_(size_t(bytes_) * size_t(up(n, kPanel) / kPanel)), random_(random),
        weight{fmt, memory_.data(), n, k, k_pad_, group, bytes_, nullptr} {
    for (int32_t p = 0; p < up(n, kPanel) / kPanel; ++p) fill(memory_.data() + p * bytes_);
  }

 private:
  uint16_t half() { return uint16_t(random_.below(2) << 15 | (0x2000 + random_.below(0x1fff))); }
  uint16_t bf16() { return uint16_t(random_.below(2) << 15 | (0x3c00 + random_.below(0x3ff))); }

  template <class T>
  static void put(uint8_t *to, int64_t i, T value) {
    std::memcpy(to + i * int64_t(sizeof value), &value, sizeof value);
  }
  void halves(uint8_t *to, int32_t n) {
    for (int32_t i = 0; i < n; ++i) put(to, i, half());
  }
  void fill(uint8_t *panel) {
    const Fmt f = weight.fmt;
    for (int64_t i = 0; i < bytes_; ++i) panel[i] = uint8_t(random_.below(256));
    if (f == Fmt::f16) halves(panel, k_pad_ * kPanel);
    for (int32_t i = 0; f == Fmt::bf16 && i < k_pad_ * kPanel; ++i) put(panel, i, bf16());
    for (int32_t i = 0; f == Fmt::f32 && i < k_pad_ * kPanel; ++i) put(panel, i, random_.normal());
    for (int32_t i = 0; f == Fmt::w8 && i < kPanel; ++i) put(panel, i, random_.normal() / 64);
    if (is_float(f) || f == Fmt::w8) return;
    const int32_t stride = head_bytes(f) + weight.group * column_bytes(f);
    for (int32_t g = 0; g < k_pad_ / weight.group; ++g) halves(panel + g * stride, head_bytes(f) / 2);
  }

  int32_t k_pad_;
  int64_t bytes_;
  AtTheEdge memory_;
  Random &random_;

 public:
  fuse::Weight weight;
};

// Rows of activations that the set itself quantised; whatever it leaves unwritten is poison.
struct Rows {
  AtTheEdge codes;
  std::vector<float> scales;
  std::vector<int32_t> sums;
  fuse::Act act;
  size_t bytes;

  Rows(const fuse::Kernels &kernels, ActType type, int32_t group, const std::vector<float> &x, int32_t k, int64_t ld)
      : codes(x.size() / size_t(k) * size_t(ld) * (type == ActType::f32 ? 4 : type == ActType::a16 ? 2 : 1)),
        scales(group ? x.size() / size_t(k) * size_t(ld / group) : 0, NAN), sums(scales.size(), 1 << 30),
        act{type, codes.data(), scales.data(), sums.data(), ld, group},
        bytes(x.size() / size_t(k) * size_t(ld) * (type == ActType::f32 ? 4 : type == ActType::a16 ? 2 : 1)) {
    std::memset(codes.data(), 0x7f, bytes);
    for (size_t row = 0; row < x.size() / size_t(k); ++row)
      kernels.quantise[int(type)](x.data() + row * size_t(k), k, act, int32_t(row));
  }
};

std::vector<float> tile(const fuse::Kernels &kernels, const fuse::Weight &w, const fuse::Act &a, int32_t m0, int32_t m1,
                        int32_t p0, int32_t p1) {
  const int32_t ld = (p1 - p0) * kPanel + 3;
  std::vector<float> out(size_t((m1 - m0) * ld), -77.0f);
  kernels.tile[int(w.fmt)][int(a.type)](w, a, m0, m1, p0, p1, out.data(), ld);
  return out;
}

struct Case {
  Fmt fmt;
  ActType type;
  int32_t n, k, group, act_group;  // group 0: none

  std::string name() const {
    std::string text = std::string(kFormats[int(fmt)]) + " x " + kActs[int(type)];
    for (int32_t v : {n, k, group, act_group}) text += " " + std::to_string(v);
    return text;
  }
};

void compare(Verdict &v, const std::vector<float> &got, const std::vector<float> &wanted, const Case &c,
             const std::string &what) {
  if (c.type == ActType::f32) v.near(got.data(), wanted.data(), got.size(), 1e-5f * float(c.k), what);
  else v.same(got.data(), wanted.data(), got.size() * sizeof(float), what);
}

void check_case(Verdict &v, const Sets &sets, const Case &c, Random &random) {
  constexpr int32_t kMost = 40;
  Matrix matrix(c.fmt, c.n, c.k, c.group, random);
  const fuse::Weight &w = matrix.weight;
  const std::vector<float> x = random.normals(size_t(kMost * c.k));
  const int64_t ld = c.type == ActType::f32 ? up(c.k, 16) : w.k_pad;
  Rows plain(sets.scalar, c.type, c.act_group, x, c.k, ld), rows(sets.tested, c.type, c.act_group, x, c.k, ld);
  v.same(rows.codes.data(), plain.codes.data(), rows.bytes, c.name() + ": codes");
  v.expect(rows.scales == plain.scales && rows.sums == plain.sums, c.name() + ": scales and sums");

  const int32_t panels = up(c.n, kPanel) / kPanel;
  const std::vector<float> all = tile(sets.tested, w, rows.act, 0, kMost, 0, panels);
  for (int32_t count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, kMost}) {
    const std::string what = c.name() + ", rows " + std::to_string(count);
    const std::vector<float> got = tile(sets.tested, w, rows.act, 0, count, 0, panels);
    compare(v, got, tile(sets.scalar, w, plain.act, 0, count, 0, panels), c, what);
    v.same(got.data(), all.data(), got.size() * sizeof(float), what + ": a row depends on its batch");
  }
  compare(v, tile(sets.tested, w, rows.act, 5, 11, panels / 2, panels),
          tile(sets.scalar, w, plain.act, 5, 11, panels / 2, panels), c, c.name() + ": an inner part");
  std::vector<float> got(size_t(c.k)), wanted(size_t(c.k));
  sets.tested.row[int(c.fmt)](w, c.n - 1, got.data());
  sets.scalar.row[int(c.fmt)](w, c.n - 1, wanted.data());
  v.same(got.data(), wanted.data(), got.size() * sizeof(float), c.name() + ": its last row");
}

struct Groups {
  int32_t weight, act;
};

std::vector<Groups> groups(Fmt f) {
  if (is_float(f)) return {{0, 0}};
  if (f == Fmt::w8) return {{0, 32}, {0, 64}};
  if (f == Fmt::w5) return {{32, 32}};
  return {{32, 32}, {64, 64}, {64, 32}, {128, 64}};
}

// Rows of one value, of the largest magnitudes, of zeros and with infinities: codes at their limits.
void check_limits(Verdict &v, const Sets &sets, Random &random) {
  constexpr int32_t k = 128;
  std::vector<float> x(6 * k, 1.0f);
  for (int32_t i = 0; i < k; ++i) {
    x[size_t(k + i)] = -3e38f;
    x[size_t(2 * k + i)] = 0.0f;
    x[size_t(3 * k + i)] = i == 70 ? INFINITY : random.normal();
    x[size_t(4 * k + i)] = float(i % 2 ? -i : i) + 0.5f;
    x[size_t(5 * k + i)] = i % 2 ? -1.0f : 1.0f;
  }
  for (Fmt f : {Fmt::w8, Fmt::w8g, Fmt::w4, Fmt::w4a})
    for (ActType type : {ActType::a8, ActType::a16}) {
      const Case c{f, type, 32, k, f == Fmt::w8 ? 0 : 64, 64};
      Matrix matrix(f, c.n, k, c.group, random);
      if (f == Fmt::w8) std::memset(const_cast<uint8_t *>(matrix.weight.data) + 64, 255, kPanel * k);
      Rows plain(sets.scalar, type, 64, x, k, k), rows(sets.tested, type, 64, x, k, k);
      const auto got = tile(sets.tested, matrix.weight, rows.act, 0, 6, 0, 2);
      const auto wanted = tile(sets.scalar, matrix.weight, plain.act, 0, 6, 0, 2);
      v.near(got.data(), wanted.data(), got.size(), 0.0f, c.name() + ": codes at their limits");
    }
}

}  // namespace

int linear(const Sets &sets) {
  Verdict v;
  Random random;
  for (int f = 0; f < int(Fmt::count); ++f)
    for (int type = 0; type < int(ActType::count); ++type) {
      if (is_float(Fmt(f)) != (ActType(type) == ActType::f32)) continue;
      for (Groups g : groups(Fmt(f)))
        for (int32_t k : {1, 67, 128, 1101})
          for (int32_t n : {1, 17, 75}) check_case(v, sets, {Fmt(f), ActType(type), n, k, g.weight, g.act}, random);
    }
  check_limits(v, sets, random);
  return v.report("linear");
}

}  // namespace check
