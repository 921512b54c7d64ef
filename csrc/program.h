// A program: instructions with their parameters and raw pointers resolved, run in order with a barrier after each,
// except between those that were joined.
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
// An operation that streams weights has a third, Ahead weights() const: where they start.
class Instr {
 public:
  virtual ~Instr() = default;
  virtual void run(const Kernels &kernels, const Step &step, Worker &worker) const = 0;
  virtual Ahead weights() const = 0;  // no bytes: it reads none
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
  // The instructions from `begin` up to `end` read and write nothing of each other: no barrier between them.
  void join(size_t begin, size_t end);
  // Workers that wait pull in the weights of the next instruction that has some. Call it after the last add().
  void prefetch_weights();
  void run(Team &team, const Step &step);                                  // graph mode
  void start(Team &team, const Step &step);  // the same without waiting; `step` has to live until team.wait()
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
    Ahead weights() const override { return weights_of(op, 0); }
    Op op;
  };

  template <class Op>
  static auto weights_of(const Op &op, int) -> decltype(op.weights()) {
    return op.weights();
  }
  template <class Op>
  static Ahead weights_of(const Op &, long) {
    return {};
  }

  size_t append(const std::string &label, std::unique_ptr<Instr> instr);
  struct Job {  // what a team runs
    Program *program;
    size_t begin, end;
    const Step *step;
    Counter counter;
    void operator()(Worker &worker) const { program->work(*this, worker); }
  };

  void work(const Job &job, Worker &worker);
  void leave(Worker &worker, size_t i, size_t end) const;
  const Ahead *ahead(size_t i) const { return i < ahead_.size() ? ahead_[i] : nullptr; }

  const Kernels *kernels_;
  std::vector<std::unique_ptr<Instr>> instrs_;
  std::vector<std::string> labels_;
  std::vector<Timing> timings_;
  std::vector<char> joined_;            // with the instruction that follows
  std::vector<Ahead> weights_;          // of every instruction
  std::vector<const Ahead *> ahead_;    // of the first instruction from here on that reads some; empty: no prefetch
  bool profiling_ = false;
  Job started_{};
};

}  // namespace fuse
