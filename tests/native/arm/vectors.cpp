// Kernels over float vectors of every ragged length, and the head's candidates.
#include <cmath>

#include "check.h"

namespace check {
namespace {

constexpr size_t kSpare = 8;  // floats behind a vector that must stay as they are

template <class Call>
void compare(Verdict &v, const Sets &sets, size_t n, const std::string &what, Call call) {
  std::vector<float> got(n + kSpare, -77.0f), wanted = got;
  call(sets.tested, got.data());
  call(sets.scalar, wanted.data());
  v.near(got.data(), wanted.data(), got.size(), 2e-6f, what + " of " + std::to_string(n));
}

std::vector<float> wide(Random &random, size_t n) {
  std::vector<float> x = random.normals(n);
  const float extremes[] = {0.0f, -0.0f, 100.0f, -100.0f, 1e-20f, 0.625f, -INFINITY, INFINITY, NAN};
  for (size_t i = 0; i < n; ++i) {
    const size_t which = size_t(random.below(40));
    x[i] = which < std::size(extremes) ? extremes[which] : 6 * x[i];
  }
  return x;
}

void check_elementwise(Verdict &v, const Sets &sets, size_t n, Random &random) {
  const std::vector<float> a = wide(random, n), b = wide(random, n), x = random.normals(n), w = random.normals(n);
  const int64_t size = int64_t(n);
  compare(v, sets, n, "affine", [&](auto &k, float *out) { k.affine(a.data(), 1.5f, -2.0f, out, size); });
  compare(v, sets, n, "softcap", [&](auto &k, float *out) { k.softcap(a.data(), 5.0f, out, size); });
  compare(v, sets, n, "add", [&](auto &k, float *out) { k.add(a.data(), b.data(), out, size); });
  compare(v, sets, n, "mul", [&](auto &k, float *out) { k.mul(a.data(), b.data(), out, size); });
  compare(v, sets, n, "norm", [&](auto &k, float *out) { k.rms_norm(x.data(), w.data(), 1e-5f, out, size); });
  for (int i = 0; i < int(fuse::Activation::count); ++i) {
    const std::string which = std::to_string(i);
    compare(v, sets, n, "activation " + which, [&](auto &k, float *out) { k.activation[i](a.data(), out, size); });
    compare(v, sets, n, "gated " + which, [&](auto &k, float *out) { k.gated[i](a.data(), b.data(), out, size); });
  }
  if (n % 2 == 0)
    compare(v, sets, n, "rope", [&](auto &k, float *out) { k.rope(x.data(), w.data(), out, int32_t(n)); });
}

// Few different values, so that many logits tie.
void check_head(Verdict &v, const Sets &sets, size_t n, Random &random) {
  std::vector<float> logits(n);
  for (float &x : logits) x = float(random.below(60)) / 4;
  fuse::TopRow got{}, wanted{};
  for (int32_t first : {1000, 0}) {
    sets.tested.top_update(logits.data(), int64_t(n), first, got);
    sets.scalar.top_update(logits.data(), int64_t(n), first, wanted);
  }
  v.same(&got, &wanted, sizeof got, "candidates of " + std::to_string(n));
  float state[2][2];
  sets.tested.sum_exp(logits.data(), int64_t(n), state[0][0], state[0][1]);
  sets.scalar.sum_exp(logits.data(), int64_t(n), state[1][0], state[1][1]);
  v.near(state[0], state[1], 2, 4e-6f, "sum of exponentials of " + std::to_string(n));
}

}  // namespace

int vectors(const Sets &sets) {
  Verdict v;
  Random random;
  for (size_t n = 1; n <= 40; ++n) check_elementwise(v, sets, n, random);
  for (size_t n : {64, 333, 2050}) check_elementwise(v, sets, n, random);
  for (size_t n = 1; n <= 300; ++n) check_head(v, sets, n, random);
  return v.report("vectors");
}

}  // namespace check
