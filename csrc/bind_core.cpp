// Memory, the thread team, the step and the plain structs as Python sees them; src/fuseboard/_native.pyi documents it.

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "bind.h"
#include "fused/operations.h"
#include "kernels.h"
#include "region.h"
#include "step.h"
#include "team.h"

namespace nb = nanobind;
using namespace nb::literals;

namespace fuse {
namespace {

using Bytes = nb::ndarray<nb::numpy, uint8_t, nb::ndim<1>>;

Bytes view(nb::handle self, size_t offset, int64_t bytes) {
  const Region &region = nb::cast<const Region &>(self);
  const size_t rest = offset <= region.bytes() ? region.bytes() - offset : 0;
  const size_t length = bytes < 0 ? rest : static_cast<size_t>(bytes);
  if (offset > region.bytes() || length > rest) throw std::invalid_argument("The view ends outside the region.");
  return Bytes(region.data() + offset, {length}, self);
}

void bind_memory(nb::module_ &m) {
  nb::class_<Region>(m, "Region")
      .def(nb::init<size_t, bool, const std::string &>(), "bytes"_a, nb::kw_only(), "huge"_a = false, "name"_a = "")
      .def_prop_ro("address", [](const Region &r) { return reinterpret_cast<uintptr_t>(r.data()); })
      .def_prop_ro("bytes", &Region::bytes)
      .def_prop_ro("name", &Region::name)
      .def_prop_ro("huge", &Region::huge)
      .def_prop_ro("huge_advised", &Region::huge_advised)
      .def("release", &Region::release, "offset"_a, "bytes"_a)
      .def("view", &view, "offset"_a = 0, "bytes"_a = -1);
}

nb::dict counters(Team &team) {
  nb::dict result;
  const std::vector<int64_t> values = team.counters();
  for (size_t i = 0; i < values.size(); ++i) result[kCounterNames[i]] = values[i];
  return result;
}

void bind_team(nb::module_ &m) {
  nb::class_<Team>(m, "Team")
      .def(nb::init<int32_t, const std::vector<int32_t> &, bool>(), "threads"_a, nb::kw_only(),
           "cpus"_a = std::vector<int32_t>(), "driven"_a = false)
      .def_prop_ro("threads", &Team::threads)
      .def_prop_ro("scratch", &Team::scratch)
      .def("wait", &Team::wait, nb::call_guard<nb::gil_scoped_release>())
      .def("counters", &counters)
      .def("reset_counters", &Team::reset_counters, nb::call_guard<nb::gil_scoped_release>());
}

void bind_step(nb::module_ &m) {
  nb::class_<BoundStep>(m, "Step")
      .def(nb::init<>())
      // A converted copy would not follow its buffer.
      .def("bind", &BoundStep::bind, nb::kw_only(), "token_ids"_a.noconvert(), "positions"_a.noconvert(),
           "seq_starts"_a.noconvert(), "context_lens"_a.noconvert(), "sample_rows"_a.noconvert(),
           "kv_slots"_a.noconvert(), "block_tables"_a.noconvert())
      .def("set", &BoundStep::set, "num_tokens"_a, "num_seqs"_a, "num_rows"_a);
}

void bind_structs(nb::module_ &m) {
  nb::class_<Weight>(m, "Weight")
      .def("__init__",
           [](Weight *self, const std::string &fmt, uintptr_t address, int32_t n, int32_t k, int32_t k_pad,
              int64_t panel_bytes, int32_t group, uintptr_t bias) {
             *self = {parse<Fmt>("weight format", fmt, kFmtNames), pointer<const uint8_t>(address), n, k, k_pad, group,
                      panel_bytes, pointer<const float>(bias)};
           },
           nb::kw_only(), "fmt"_a, "address"_a, "n"_a, "k"_a, "k_pad"_a, "panel_bytes"_a, "group"_a = 0, "bias"_a = 0);
  nb::class_<Act>(m, "Act").def(
      "__init__",
      [](Act *self, const std::string &type, uintptr_t codes, int64_t ld, uintptr_t scales, uintptr_t sums,
         int32_t group) {
        *self = {parse<ActType>("activation type", type, kActNames), pointer<void>(codes), pointer<float>(scales),
                 pointer<int32_t>(sums), ld, group};
      },
      nb::kw_only(), "type"_a, "codes"_a, "ld"_a, "scales"_a = 0, "sums"_a = 0, "group"_a = 0);
  nb::class_<KvPool>(m, "KvPool")
      .def("__init__",
           [](KvPool *self, const std::string &fmt, uintptr_t address, int64_t block_bytes, int32_t block_size,
              int32_t kv_heads, int32_t head_dim, uintptr_t head_scales, int32_t group) {
             *self = {parse<KvFmt>("cache format", fmt, kKvNames), pointer<uint8_t>(address), block_bytes, block_size,
                      kv_heads, head_dim, pointer<const float>(head_scales), group};
             if (const char *error = kv_pool_error(*self)) throw std::invalid_argument(error);
           },
           nb::kw_only(), "fmt"_a, "address"_a, "block_bytes"_a, "block_size"_a, "kv_heads"_a, "head_dim"_a,
           "head_scales"_a = 0, "group"_a = 0);
  nb::class_<Tiling>(m, "Tiling")
      .def("__init__", [](Tiling *self, int32_t units, int32_t rows) { *self = {units, rows, true}; }, nb::kw_only(),
           "units"_a, "rows"_a);
  nb::class_<Segment>(m, "Segment")
      .def("__init__",
           [](Segment *self, const Weight &weight, uintptr_t out, int64_t ldo) {
             *self = {weight, {pointer<float>(out), ldo}};
           },
           nb::kw_only(), "weight"_a, "out"_a, "ldo"_a);
}

}  // namespace

void bind_core(nb::module_ &m) {
  m.attr("TOP_K") = kTopK;
  nb::list names;
  for (const char *name : kCounterNames) names.append(name);
  m.attr("COUNTERS") = nb::tuple(names);
  m.def("isa", [](const std::string &name) -> std::string {
    const Kernels *kernels = find_kernels(name.c_str());
    return kernels ? kernels->name : "";
  }, "name"_a = "");
  m.def("has_tile", [](const std::string &fmt, const std::string &act, const std::string &isa) {
    const Kernels *kernels = find_kernels(isa.c_str());
    const Fmt f = parse<Fmt>("weight format", fmt, kFmtNames);
    const ActType a = parse<ActType>("activation type", act, kActNames);
    return kernels && kernels->tile[int(f)][int(a)];
  }, "fmt"_a, "act"_a, "isa"_a = "");
  m.def("lm_head_workspace_bytes", &top_workspace_bytes, "vocab"_a, "max_rows"_a, "threads"_a);
  bind_memory(m);
  bind_team(m);
  bind_step(m);
  bind_structs(m);
}

}  // namespace fuse
