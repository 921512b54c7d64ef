// A program: instructions with their parameters and raw pointers resolved, run in order with a barrier after each.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"
#include "team.h"

namespace fuse {

// An operation `Op` is plain data with two members:
//   void check(const Kernels &) const   throws std::invalid_argument if the kernels or the sizes cannot do it;
//   void run(const Kernels &, const Step &, Worker &) const   is called by every worker, allocates and throws nothing.
class Instr {
 public:
  virtual ~Instr() = default;
  virtual void run(const Kernels &kernels, const Step &step, Worker &worker) const = 0;
};

class Program {
 public:
  struct Timing {
    int64_t calls = 0, ns = 0;
  };

  explicit Program(const std::string &isa);  // throws std::invalid_argument if this machine cannot run it
  Program(const Program &) = delete;
  Program &operator=(const Program &) = delete;

  template <class Op>
  size_t add(const std::string &label, const Op &op) {
    op.check(*kernels_);
    return append(label, std::make_unique<Holder<Op>>(op));
  }
  void run(Team &team, const Step &step);                                  // graph mode
  void run_range(Team &team, size_t begin, size_t end, const Step &step);  // eager mode
  void profile(bool on);

  const Kernels &kernels() const { return *kernels_; }
  const std::vector<std::string> &labels() const { return labels_; }
  const std::vector<Timing> &timings() const { return timings_; }

 private:
  template <class Op>
  struct Holder : Instr {
    explicit Holder(const Op &held) : op(held) {}
    void run(const Kernels &kernels, const Step &step, Worker &worker) const override { op.run(kernels, step, worker); }
    Op op;
  };

  size_t append(const std::string &label, std::unique_ptr<Instr> instr);
  void run(Team &team, size_t begin, size_t end, const Step &step, Counter counter);

  const Kernels *kernels_;
  std::vector<std::unique_ptr<Instr>> instrs_;
  std::vector<std::string> labels_;
  std::vector<Timing> timings_;
  bool profiling_ = false;
};

}  // namespace fuse
