// Python's way to single linear kernels: for tests, the kernel benchmark and `fuseboard doctor`.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <stdexcept>
#include <string>

#include "bind.h"
#include "linear/ceilings.h"

namespace nb = nanobind;

namespace fuse {
namespace {

using Bytes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Matrix = nb::ndarray<T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

const Kernels &kernels(const std::string &isa) {
  const Kernels *found = find_kernels(isa.c_str());
  if (!found) throw std::invalid_argument("this machine cannot run " + isa);
  return *found;
}

void check(bool ok, const char *what) {
  if (!ok) throw std::invalid_argument(what);
}

Act act_of(const std::string &type, int32_t group, Matrix<uint8_t> codes, Matrix<float> scales,
           Matrix<int32_t> sums) {
  const ActType t = parse<ActType>("activation type", type, kActNames);
  const int64_t size = t == ActType::f32 ? 4 : t == ActType::a16 ? 2 : 1, ld = int64_t(codes.shape(1)) / size;
  if (t != ActType::f32) {
    check(group == 32 || group == 64, "the activation group is 32 or 64");
    check(ld % group == 0 && scales.shape(0) >= codes.shape(0) && sums.shape(0) >= codes.shape(0) &&
              int64_t(scales.shape(1)) == ld / group && int64_t(sums.shape(1)) == ld / group,
          "scales and sums are [rows, ld / group]");
  }
  return Act{t, codes.data(), scales.data(), sums.data(), ld, group};
}

Weight weight_of(const std::string &fmt, Bytes data, int32_t n, int32_t k, int32_t k_pad, int32_t group) {
  const int64_t panels = (n + kPanel - 1) / kPanel;
  check(n > 0 && k > 0 && data.size() % panels == 0, "the buffer is not a whole number of panels");
  const Fmt f = parse<Fmt>("weight format", fmt, kFmtNames);
  return Weight{f, data.data(), n, k, k_pad, group, int64_t(data.size()) / panels, nullptr};
}

void tile(const std::string &isa, const std::string &fmt, Bytes data, int32_t n, int32_t k, int32_t k_pad,
          int32_t group, const std::string &act, int32_t act_group, Matrix<uint8_t> codes, Matrix<float> scales,
          Matrix<int32_t> sums, int32_t m0, int32_t m1, int32_t p0, int32_t p1, Matrix<float> out) {
  const Weight w = weight_of(fmt, data, n, k, k_pad, group);
  const Act a = act_of(act, act_group, codes, scales, sums);
  const TileFn fn = kernels(isa).tile[int(w.fmt)][int(a.type)];
  check(fn, "no kernel for this pair of formats");
  check(0 <= m0 && m0 < m1 && m1 <= int64_t(codes.shape(0)) && m1 - m0 <= int64_t(out.shape(0)), "rows out of range");
  check(0 <= p0 && p0 < p1 && p1 * kPanel < n + kPanel && (p1 - p0) * kPanel <= int64_t(out.shape(1)),
        "panels out of range");
  check(a.ld >= (a.type == ActType::f32 ? k : k_pad), "activation rows are shorter than the matrix");
  nb::gil_scoped_release free;
  fn(w, a, m0, m1, p0, p1, out.data(), int64_t(out.shape(1)));
}

void row(const std::string &isa, const std::string &fmt, Bytes data, int32_t n, int32_t k, int32_t k_pad,
         int32_t group, int32_t index, Matrix<float> out) {
  const Weight w = weight_of(fmt, data, n, k, k_pad, group);
  check(0 <= index && index < n && int64_t(out.shape(1)) >= k, "row out of range");
  kernels(isa).row[int(w.fmt)](w, index, out.data());
}

void quantise(const std::string &isa, const std::string &act, int32_t group, Matrix<const float> x,
              Matrix<uint8_t> codes, Matrix<float> scales, Matrix<int32_t> sums) {
  const Act a = act_of(act, group, codes, scales, sums);
  check(x.shape(0) <= codes.shape(0) && int64_t(x.shape(1)) <= a.ld, "x does not fit the codes");
  const QuantiseFn fn = kernels(isa).quantise[int(a.type)];
  for (size_t m = 0; m < x.shape(0); m++) fn(x.data() + m * x.shape(1), int32_t(x.shape(1)), a, int32_t(m));
}

void quantise_slice(const std::string &isa, const std::string &act, int32_t group, Matrix<const float> x, int32_t k0,
                    Matrix<uint8_t> codes, Matrix<float> scales, Matrix<int32_t> sums) {
  const Act a = act_of(act, group, codes, scales, sums);
  const int32_t width = int32_t(x.shape(1));
  check(x.shape(0) <= codes.shape(0) && k0 >= 0 && k0 + width <= a.ld, "x does not fit the codes");
  check(!group || k0 % group == 0, "a slice starts at a group");
  const QuantiseSliceFn fn = kernels(isa).quantise_slice[int(a.type)];
  for (size_t m = 0; m < x.shape(0); m++) fn(x.data() + m * width, k0, k0 + width, a, int32_t(m));
}

}  // namespace

void bind_linear(nb::module_ &m) {
  m.def("linear_tile", tile);
  m.def("linear_row", row);
  m.def("quantise", quantise);
  m.def("quantise_slice", quantise_slice);
  m.def("measure_bandwidth", measure_bandwidth, nb::arg("threads"), nb::arg("bytes"), nb::arg("seconds"),
        nb::call_guard<nb::gil_scoped_release>(),
        "Bytes a second that `threads` read from a buffer of `bytes` in huge pages, four streams a thread.");
  m.def("measure_flops", measure_flops, nb::arg("threads"), nb::arg("kind"), nb::arg("seconds") = 0.2,
        nb::call_guard<nb::gil_scoped_release>(),
        "Operations a second (a multiply and an add are two) of kind 'fma' (float32) or 'int8' from registers.");
}

}  // namespace fuse
