// Attention and the cache write against float64, over stored formats, groups, block borders, windows and soft caps.
//
// Keys and values are multiples of 1/64 up to 127/64, with that value in every vector: all formats store them exactly,
// so one reference and one tolerance serve all. Memory that no query may see is NaN.
#include <algorithm>
#include <cmath>

#include "check.h"
#include "team.h"

namespace check {
namespace {

using fuse::KvFmt;

constexpr const char *kFormats[] = {"f32", "f16", "bf16", "i8_token", "i8_token_head", "i8_head"};
static_assert(std::size(kFormats) == size_t(KvFmt::count));

struct Span {
  int32_t before, now;
};

struct Shape {
  int32_t kv_heads, group, head_dim, block_size, window;
  float softcap;
  std::vector<Span> sequences;

  int32_t heads() const { return kv_heads * group; }
  std::string name() const {
    std::string text;
    for (int32_t v : {kv_heads, group, head_dim, block_size, window, int32_t(softcap)}) text += " " + std::to_string(v);
    return text;
  }
};

// One layer's cache with the sequences' blocks in falling order, and the step that comes next.
class Case {
 public:
  Case(const Shape &shape, KvFmt fmt, Random &random)
      : s_(shape), fmt_(fmt), head_scales_(2 * shape.kv_heads, 1.0f / 64) {
    int32_t longest = 0;
    for (Span q : s_.sequences) {
      longest = std::max(longest, blocks(q));
      blocks_ += blocks(q);
      context_.push_back(q.before + q.now);
      starts_.push_back(starts_.back() + q.now);
    }
    stride_ = longest + 1;
    bytes_ = fuse::kv_block_bytes(fmt, s_.block_size, s_.kv_heads, s_.head_dim);
    int32_t next = blocks_;
    tables_.assign(s_.sequences.size() * size_t(stride_), 0);
    for (size_t i = 0; i < s_.sequences.size(); ++i)
      for (int32_t b = 0; b < blocks(s_.sequences[i]); ++b) tables_[i * size_t(stride_) + size_t(b)] = --next;
    for (int32_t tokens : context_) {
      keys_.push_back(stored(tokens, random));
      values_.push_back(stored(tokens, random));
    }
    query_ = random.normals(size_t(starts_.back()) * size_t(s_.heads() * s_.head_dim));
  }

  // The cache as a set writes it.
  std::vector<uint8_t> write(const fuse::Kernels &kernels) {
    std::vector<uint8_t> memory(size_t(blocks_ * bytes_), 0xff);
    const int32_t width = s_.kv_heads * s_.head_dim;
    for (size_t i = 0; i < context_.size(); ++i)
      for (int32_t t = 0; t < context_[i]; ++t) {
        const int32_t block = tables_[i * size_t(stride_) + size_t(t / s_.block_size)];
        kernels.attention.write[int(fmt_)](pool(memory), block * s_.block_size + t % s_.block_size, 0, s_.kv_heads,
                                           keys_[i].data() + t * width, values_[i].data() + t * width);
      }
    return memory;
  }

  std::vector<float> attend(const fuse::Kernels &kernels, std::vector<uint8_t> &memory, bool naive, fuse::Team &team) {
    const int64_t ld = s_.heads() * s_.head_dim;
    std::vector<float> out(query_.size(), NAN);
    const fuse::AttentionSizes sizes{starts_.back(), int64_t(context_.size()), stride_ * s_.block_size, s_.heads(),
                                     s_.kv_heads, s_.head_dim, team.threads()};
    std::vector<uint8_t> workspace(size_t(fuse::attention_workspace_bytes(sizes, naive)) + 64);
    const fuse::AttentionParams params{query_.data(), out.data(), ld, ld, pool(memory), s_.heads(), s_.window,
                                       scale(), s_.softcap, workspace.data()};
    fuse::Step step{};
    step.num_tokens = starts_.back();
    step.num_seqs = int32_t(context_.size());
    step.seq_starts = starts_.data();
    step.context_lens = context_.data();
    step.block_tables[0] = tables_.data();
    step.table_stride[0] = stride_;
    const auto run = (naive ? kernels.attention.naive : kernels.attention.blockwise)[int(fmt_)];
    team.run([&](fuse::Worker &worker) { run(params, step, worker); });
    return out;
  }

  std::vector<float> expected() const {
    std::vector<float> out(query_.size());
    for (size_t i = 0; i < context_.size(); ++i)
      for (int32_t t = starts_[i]; t < starts_[i + 1]; ++t)
        for (int32_t h = 0; h < s_.heads(); ++h) expect_row(i, t, h, out.data() + (t * s_.heads() + h) * s_.head_dim);
    return out;
  }

 private:
  int32_t blocks(Span q) const { return (q.before + q.now + s_.block_size - 1) / s_.block_size; }
  float scale() const { return 1.0f / std::sqrt(float(s_.head_dim)); }

  fuse::KvPool pool(std::vector<uint8_t> &memory) const {
    return {fmt_, memory.data(), bytes_, s_.block_size, s_.kv_heads, s_.head_dim, head_scales_.data(), 0};
  }

  std::vector<float> stored(int32_t tokens, Random &random) const {
    std::vector<float> x(size_t(tokens * s_.kv_heads * s_.head_dim));
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = float(i % size_t(s_.head_dim) ? random.below(255) - 127 : 127) / 64.0f;
    return x;
  }

  void expect_row(size_t i, int32_t token, int32_t head, float *out) const {
    const int32_t d = s_.head_dim, width = s_.kv_heads * d, column = head / s_.group * d;
    const int32_t last = context_[i] - (starts_[i + 1] - token);
    const int32_t first = s_.window ? std::max(0, last - s_.window + 1) : 0;
    std::vector<double> weights, sum(size_t(d), 0.0);
    double total = 0, largest = -INFINITY;
    for (int32_t key = first; key <= last; ++key) {
      double score = 0;
      const float *query = query_.data() + (token * s_.heads() + head) * d;
      for (int32_t j = 0; j < d; ++j) score += double(query[j]) * keys_[i][size_t(key * width + column + j)];
      score *= scale();
      if (s_.softcap > 0) score = s_.softcap * std::tanh(score / s_.softcap);
      weights.push_back(score);
      largest = std::max(largest, score);
    }
    for (int32_t key = first; key <= last; ++key) {
      const double weight = std::exp(weights[size_t(key - first)] - largest);
      total += weight;
      for (int32_t j = 0; j < d; ++j) sum[size_t(j)] += weight * values_[i][size_t(key * width + column + j)];
    }
    for (int32_t j = 0; j < d; ++j) out[j] = float(sum[size_t(j)] / total);
  }

  const Shape s_;
  const KvFmt fmt_;
  const std::vector<float> head_scales_;
  int32_t blocks_ = 0, stride_ = 0;
  int64_t bytes_ = 0;
  std::vector<int32_t> context_, starts_{0}, tables_;
  std::vector<std::vector<float>> keys_, values_;
  std::vector<float> query_;
};

void check_shape(Verdict &v, const Sets &sets, const Shape &shape, KvFmt fmt, fuse::Team &team, Random &random) {
  Case c(shape, fmt, random);
  const std::string name = kFormats[int(fmt)] + shape.name();
  std::vector<uint8_t> plain = c.write(sets.scalar), memory = c.write(sets.tested);
  v.expect(memory == plain, name + ": cache write");
  const std::vector<float> wanted = c.expected();
  for (bool naive : {false, true}) {
    const std::string what = name + (naive ? ": naive" : ": blockwise");
    const std::vector<float> got = c.attend(sets.tested, memory, naive, team);
    v.near(got.data(), wanted.data(), got.size(), 3e-5f, what);
    const std::vector<float> scalar = c.attend(sets.scalar, plain, naive, team);
    v.near(scalar.data(), wanted.data(), scalar.size(), 3e-5f, what + " of the scalar set");
  }
}

}  // namespace

int attention(const Sets &sets) {
  Verdict v;
  Random random;
  fuse::Team team(2, {}, false);
  const std::vector<Span> mixed = {{0, 40}, {130, 1}, {10, 19}, {255, 1}, {0, 1}, {63, 2}, {256, 1}, {270, 20}};
  const std::vector<Span> borders = {{14, 1}, {15, 1},  {16, 1},  {63, 1}, {64, 1},
                                     {60, 4}, {255, 1}, {253, 4}, {999, 1}};
  for (int f = 0; f < int(KvFmt::count); ++f) {
    for (int32_t group : {1, 3, 7})
      for (int32_t head_dim : {20, 37, 64})
        check_shape(v, sets, {2, group, head_dim, 32, 0, 0.0f, mixed}, KvFmt(f), team, random);
    for (int32_t block_size : {16, 64, 256})
      check_shape(v, sets, {1, 2, 16, block_size, 0, 0.0f, borders}, KvFmt(f), team, random);
    for (int32_t window : {1, 5, 60, 256, 300})
      check_shape(v, sets, {2, 3, 20, 16, window, window == 60 ? 5.0f : 0.0f, mixed}, KvFmt(f), team, random);
  }
  return v.report("attention");
}

}  // namespace check
