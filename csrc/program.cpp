#include "program.h"

#include <chrono>

#include "operation.h"

namespace fuse {
namespace {

int64_t now_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

}  // namespace

Program::Program(const std::string &isa) : kernels_(find_kernels(isa.c_str())) {
  require(kernels_ != nullptr, "This machine has no kernels named '" + isa + "'.");
}

size_t Program::append(const std::string &label, std::unique_ptr<Instr> instr) {
  instrs_.push_back(std::move(instr));
  labels_.push_back(label);
  timings_.emplace_back();
  joined_.push_back(false);
  return instrs_.size() - 1;
}

void Program::join(size_t begin, size_t end) {
  require(begin < end && end <= instrs_.size(), "The range ends outside the program.");
  require(end - begin <= size_t{kMaxJoined}, "At most " + std::to_string(kMaxJoined) + " instructions can be joined.");
  for (size_t i = begin; i + 1 < end; ++i) joined_[i] = true;
}

void Program::prefetch_weights() {
  weights_.clear();
  for (const auto &instr : instrs_) weights_.push_back(instr->weights());
  ahead_.assign(instrs_.size(), nullptr);
  for (size_t i = instrs_.size(); i-- > 0;)
    ahead_[i] = weights_[i].streams[0].bytes > 0 ? &weights_[i] : ahead(i + 1);
}

void Program::run(Team &team, const Step &step) {
  team.run(Job{this, 0, instrs_.size(), &step, c_graph_replays});
}

void Program::start(Team &team, const Step &step) {
  team.wait();  // for the job of an earlier start
  started_ = {this, 0, instrs_.size(), &step, c_graph_replays};
  team.start(started_);
}

void Program::run_range(Team &team, size_t begin, size_t end, const Step &step) {
  require(begin <= end && end <= instrs_.size(), "The range ends outside the program.");
  team.run(Job{this, begin, end, &step, c_eager_calls});
}

void Program::work(const Job &job, Worker &worker) {
  const bool timing = profiling_ && worker.tid == 0;
  int64_t before = timing ? now_ns() : 0;
  count(worker, job.counter, 1);
  for (size_t i = job.begin; i < job.end; ++i) {
    worker.ahead = ahead(i);
    instrs_[i]->run(*kernels_, *job.step, worker);
    leave(worker, i, job.end);
    if (!timing) continue;
    const int64_t after = now_ns();
    ++timings_[i].calls;
    timings_[i].ns += after - before;
    before = after;
  }
}

void Program::leave(Worker &worker, size_t i, size_t end) const {
  if (joined_[i] && i + 1 < end) {
    worker.join_next();
    count(worker, c_barriers_saved, 1);
    return;
  }
  worker.ahead = i + 1 < end ? ahead(i + 1) : nullptr;
  worker.barrier();
}

void Program::profile(bool on) {
  profiling_ = on;
  if (on) timings_.assign(timings_.size(), Timing{});
}

}  // namespace fuse
