// The program and its operations as Python sees them; src/fuseboard/_native.pyi documents it.

#include "bind.h"
#include "elementwise/operations.h"
#include "fused/operations.h"
#include "program.h"
#include "step.h"

#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

namespace nb = nanobind;
using namespace nb::literals;

namespace fuse {
namespace {

using Address = uintptr_t;
using Name = const std::string &;
using Class = nb::class_<Program>;

In in(Address x, int64_t ld) { return {pointer<const float>(x), ld}; }
Out out(Address x, int64_t ld) { return {pointer<float>(x), ld}; }
Norm norm(Address weight, float eps) { return {pointer<const float>(weight), eps}; }
Axis axis(Name name) { return parse<Axis>("row count", name, kAxisNames); }
Activation activation(Name name) { return parse<Activation>("activation", name, kActivationNames); }
Angles angles(Address table, Name index) {
  return {pointer<const float>(table), parse<AngleIndex>("index", index, kIndexNames)};
}

std::vector<std::tuple<size_t, std::string, int64_t, int64_t>> times(const Program &program) {
  std::vector<std::tuple<size_t, std::string, int64_t, int64_t>> result;
  for (size_t i = 0; i < program.labels().size(); ++i)
    result.emplace_back(i, program.labels()[i], program.timings()[i].calls, program.timings()[i].ns);
  return result;
}

void bind_running(Class &c) {
  const auto free = nb::call_guard<nb::gil_scoped_release>();
  c.def(nb::init<Name>(), "isa"_a = "")
      .def_prop_ro("isa", [](const Program &p) { return std::string(p.kernels().name); })
      .def("__len__", [](const Program &p) { return p.labels().size(); })
      .def("labels", &Program::labels)
      .def("join", &Program::join, "begin"_a, "end"_a)
      .def("prefetch_weights", &Program::prefetch_weights)
      .def("run", [](Program &p, Team &team, const BoundStep &step) { p.run(team, step.get()); }, "team"_a, "step"_a,
           free)
      .def("start", [](Program &p, Team &team, const BoundStep &step) { p.start(team, step.get()); }, "team"_a, "step"_a,
           free)
      .def("run_one", [](Program &p, Team &team, size_t i, const BoundStep &step) {
        p.run_range(team, i, i + 1, step.get());
      }, "team"_a, "index"_a, "step"_a, free)
      .def("run_range", [](Program &p, Team &team, size_t begin, size_t end, const BoundStep &step) {
        p.run_range(team, begin, end, step.get());
      }, "team"_a, "begin"_a, "end"_a, "step"_a, free)
      .def("profile", &Program::profile, "on"_a)
      .def("times", &times);
}

void bind_rows(Class &c) {
  c.def("add_embed", [](Program &p, Name label, const Weight &weight, Address o, int64_t ldo) {
     return p.add(label, Embed{weight, out(o, ldo)});
   }, "label"_a, nb::kw_only(), "weight"_a, "out"_a, "ldo"_a);
  c.def("add_rms_norm", [](Program &p, Name label, Address x, int64_t ldx, Address weight, float eps, Address o,
                           int64_t ldo, int32_t dim, Name rows, int32_t chunks) {
     return p.add(label, RmsNorm{in(x, ldx), norm(weight, eps), out(o, ldo), dim, chunks, axis(rows)});
   }, "label"_a, nb::kw_only(), "x"_a, "ldx"_a, "weight"_a, "eps"_a, "out"_a, "ldo"_a, "dim"_a, "rows"_a,
   "chunks"_a = 1);
  c.def("add_affine", [](Program &p, Name label, Address x, int64_t ldx, float scale, float shift, Address o,
                         int64_t ldo, int64_t n, Name rows) {
     return p.add(label, Affine{in(x, ldx), scale, shift, out(o, ldo), n, axis(rows)});
   }, "label"_a, nb::kw_only(), "x"_a, "ldx"_a, "scale"_a, "shift"_a, "out"_a, "ldo"_a, "n"_a, "rows"_a);
  c.def("add_softcap", [](Program &p, Name label, Address x, int64_t ldx, float cap, Address o, int64_t ldo, int64_t n,
                          Name rows) {
     return p.add(label, Softcap{in(x, ldx), cap, out(o, ldo), n, axis(rows)});
   }, "label"_a, nb::kw_only(), "x"_a, "ldx"_a, "cap"_a, "out"_a, "ldo"_a, "n"_a, "rows"_a);
  c.def("add_activation", [](Program &p, Name label, Name kind, Address x, int64_t ldx, Address o, int64_t ldo,
                             int64_t n, Name rows) {
     return p.add(label, Activate{activation(kind), in(x, ldx), out(o, ldo), n, axis(rows)});
   }, "label"_a, nb::kw_only(), "kind"_a, "x"_a, "ldx"_a, "out"_a, "ldo"_a, "n"_a, "rows"_a);
  c.def("add_gather_rows", [](Program &p, Name label, Address x, int64_t ldx, Address o, int64_t ldo, int64_t n) {
     return p.add(label, GatherRows{in(x, ldx), out(o, ldo), n});
   }, "label"_a, nb::kw_only(), "x"_a, "ldx"_a, "out"_a, "ldo"_a, "n"_a);
  for (const auto &[name, kind] : {std::pair{"add_add", Binary::add}, std::pair{"add_mul", Binary::mul}})
    c.def(name, [kind = kind](Program &p, Name label, Address a, int64_t lda, Address b, int64_t ldb, Address o,
                              int64_t ldo, int64_t n, Name rows) {
       return p.add(label, Combine{kind, in(a, lda), in(b, ldb), out(o, ldo), n, axis(rows)});
     }, "label"_a, nb::kw_only(), "a"_a, "lda"_a, "b"_a, "ldb"_a, "out"_a, "ldo"_a, "n"_a, "rows"_a);
}

void bind_rope_and_quantise(Class &c) {
  c.def("add_rope_angles", [](Program &p, Name label, Address inv_freq, float factor, Address o, int32_t dim) {
     return p.add(label, RopeAngles{pointer<const float>(inv_freq), factor, out(o, dim), dim});
   }, "label"_a, nb::kw_only(), "inv_freq"_a, "factor"_a, "out"_a, "dim"_a);
  c.def("add_rope", [](Program &p, Name label, Address x, int64_t ldx, Address table, Name index, Address o,
                       int64_t ldo, int32_t heads, int32_t dim) {
     return p.add(label, Rope{in(x, ldx), angles(table, index), out(o, ldo), heads, dim});
   }, "label"_a, nb::kw_only(), "x"_a, "ldx"_a, "angles"_a, "index"_a, "out"_a, "ldo"_a, "heads"_a, "dim"_a);
  c.def("add_quantise", [](Program &p, Name label, Address x, int64_t ldx, int32_t k, const Act &o, Name rows) {
     return p.add(label, Quantise{in(x, ldx), norm(0, 0.0f), k, o, axis(rows)});
   }, "label"_a, nb::kw_only(), "x"_a, "ldx"_a, "k"_a, "out"_a, "rows"_a);
  c.def("add_norm_quantise", [](Program &p, Name label, Address x, int64_t ldx, Address weight, float eps, int32_t k,
                                const Act &o, Name rows) {
     return p.add(label, Quantise{in(x, ldx), norm(weight, eps), k, o, axis(rows)});
   }, "label"_a, nb::kw_only(), "x"_a, "ldx"_a, "weight"_a, "eps"_a, "k"_a, "out"_a, "rows"_a);
}

size_t add_linear(Program &p, Name label, const Act &x, const std::vector<Segment> &segments, Name rows,
                  Address residual, int64_t ldr, bool fused_qkv, const Tiling &tiling) {
  Linear op{x, {}, static_cast<int32_t>(segments.size()), in(residual, ldr), fused_qkv, axis(rows), tiling};
  for (size_t i = 0; i < segments.size() && i < size_t{Linear::kMaxSegments}; ++i) op.segments[i] = segments[i];
  return p.add(label, op);
}

void bind_products(Class &c) {
  c.def("add_linear", &add_linear, "label"_a, nb::kw_only(), "x"_a, "segments"_a, "rows"_a, "residual"_a = 0,
        "ldr"_a = 0, "fused_qkv"_a = false, "tiling"_a = Tiling{});
  c.def("add_norm_qkv_rope", [](Program &p, Name label, Address x, int64_t ldx, Address weight, float eps,
                                const Act &act, const Weight &q, const Weight &k, const Weight &v, Address table,
                                Name index, Address q_out, int64_t ldq, const KvPool &pool, Address q_norm,
                                Address k_norm, float qk_eps, const Tiling &tiling) {
     return p.add(label, NormQkvRope{in(x, ldx), norm(weight, eps), act, q, k, v, angles(table, index),
                                     pointer<const float>(q_norm), pointer<const float>(k_norm), qk_eps,
                                     out(q_out, ldq), pool, tiling});
   }, "label"_a, nb::kw_only(), "x"_a, "ldx"_a, "norm"_a, "eps"_a, "act"_a, "q"_a, "k"_a, "v"_a, "angles"_a, "index"_a,
   "q_out"_a, "ldq"_a, "pool"_a, "q_norm"_a = 0, "k_norm"_a = 0, "qk_eps"_a = 0.0f, "tiling"_a = Tiling{});
  c.def("add_swiglu", [](Program &p, Name label, Address x, int64_t ldx, Address weight, float eps, const Act &act,
                         const Weight &gate, const Weight &up, Name kind, const Act &o, const Tiling &tiling) {
     return p.add(label, Swiglu{in(x, ldx), norm(weight, eps), act, gate, up, activation(kind), o, tiling});
   }, "label"_a, nb::kw_only(), "x"_a, "ldx"_a, "norm"_a, "eps"_a, "act"_a, "gate"_a, "up"_a, "activation"_a, "out"_a,
   "tiling"_a = Tiling{64, 64, false});
}

Attention attention(Name kind, Address q, int64_t ldq, Address o, int64_t ldo, const KvPool &pool, int32_t heads,
                    float scale, float softcap, int32_t window, Address workspace) {
  constexpr const char *kinds[] = {"naive", "blockwise"};
  return {{pointer<const float>(q), pointer<float>(o), ldq, ldo, pool, heads, window, scale, softcap,
           pointer<void>(workspace)},
          parse<int>("attention", kind, kinds) == 1};
}

void bind_cache(Class &c) {
  c.def("add_kv_write", [](Program &p, Name label, Address k, int64_t ldk, Address v, int64_t ldv, const KvPool &pool) {
     return p.add(label, KvWrite{in(k, ldk), in(v, ldv), pool});
   }, "label"_a, nb::kw_only(), "k"_a, "ldk"_a, "v"_a, "ldv"_a, "pool"_a);
  c.def("add_attention", [](Program &p, Name label, Name kind, Address q, int64_t ldq, Address o, int64_t ldo,
                            const KvPool &pool, int32_t heads, float scale, float softcap, int32_t window,
                            Address workspace) {
     return p.add(label, attention(kind, q, ldq, o, ldo, pool, heads, scale, softcap, window, workspace));
   }, "label"_a, nb::kw_only(), "kind"_a, "q"_a, "ldq"_a, "out"_a, "ldo"_a, "pool"_a, "heads"_a, "scale"_a,
   "softcap"_a = 0.0f, "window"_a = 0, "workspace"_a = 0);
}

TopOut top_out(Address ids, Address top, Address logsumexp, Address workspace) {
  return {pointer<int32_t>(ids), pointer<float>(top), pointer<float>(logsumexp), pointer<void>(workspace)};
}

void bind_head(Class &c) {
  c.def("add_top_k", [](Program &p, Name label, Address logits, int64_t ldl, int32_t vocab, Address ids, Address top,
                        Address logsumexp, Address workspace) {
     return p.add(label, TopK{in(logits, ldl), vocab, top_out(ids, top, logsumexp, workspace)});
   }, "label"_a, nb::kw_only(), "logits"_a, "ldl"_a, "vocab"_a, "ids"_a, "top"_a, "logsumexp"_a, "workspace"_a);
  c.def("add_lm_head", [](Program &p, Name label, Address x, int64_t ldx, Address weight, float eps, const Act &act,
                          const Weight &head, Address ids, Address top, Address logsumexp, Address workspace,
                          float softcap, const Tiling &tiling) {
     return p.add(label, LmHead{in(x, ldx), norm(weight, eps), act, head, softcap,
                                top_out(ids, top, logsumexp, workspace), tiling});
   }, "label"_a, nb::kw_only(), "x"_a, "ldx"_a, "norm"_a, "eps"_a, "act"_a, "head"_a, "ids"_a, "top"_a, "logsumexp"_a,
   "workspace"_a, "softcap"_a = 0.0f, "tiling"_a = Tiling{});
}

}  // namespace

void bind_program(nb::module_ &m) {
  Class c(m, "Program");
  bind_running(c);
  bind_rows(c);
  bind_rope_and_quantise(c);
  bind_products(c);
  bind_cache(c);
  bind_head(c);
}

}  // namespace fuse
