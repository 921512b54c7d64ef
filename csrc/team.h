// A team of persistent threads that run one job together and meet at barriers.
//
// One barrier does everything: workers wait in it between jobs, and the last to arrive resets the counters behind
// Worker::next(). A waiter spins for a time budget, then sleeps on a futex, so that more threads than free CPUs cost a
// wake-up and not a time slice. Before it spins it pulls in what Worker::ahead points to, as long as others are late.
#pragma once

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "contract.h"
#include "region.h"

namespace fuse {

struct Team {
 public:
  // `cpus`: none, or one for each thread. The thread that calls run() is worker 0: it is moved to the first for the
  // time of the job, and may go where it could before afterwards.
  // With `driven` a thread of the team is worker 0 instead, which makes start() possible.
  Team(int32_t threads, const std::vector<int32_t> &cpus, bool driven);
  ~Team();
  Team(const Team &) = delete;
  Team &operator=(const Team &) = delete;

  int32_t threads() const { return static_cast<int32_t>(workers_.size()); }
  const std::shared_ptr<Region> &scratch() const { return scratch_; }
  std::vector<int64_t> counters();
  void reset_counters();

  // job(worker) on every worker; returns when all are done. One run at a time, others wait.
  template <class Job>
  void run(const Job &job) {
    run([](const void *job, Worker &worker) { (*static_cast<const Job *>(job))(worker); }, &job);
  }

  // The same of a driven team without waiting; the job has to live until wait() returns.
  template <class Job>
  void start(const Job &job) {
    start([](const void *job, Worker &worker) { (*static_cast<const Job *>(job))(worker); }, &job);
  }
  void wait();

 private:
  friend struct Worker;
  using JobFn = void (*)(const void *, Worker &);

  void run(JobFn fn, const void *job);
  void start(JobFn fn, const void *job);
  void lead();
  void drive();
  void work(Worker &worker);
  void take_part(Worker &worker);
  void barrier(Worker &worker);
  void pull_ahead(const Worker &worker, uint32_t phase);
  void sleep(uint32_t phase);
  void stop();

  std::shared_ptr<Region> scratch_;
  std::vector<int64_t> counters_;
  std::vector<Worker> workers_;
  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable changed_;  // busy_ or ending_
  bool driven_, busy_ = false, ending_ = false;
  int64_t spin_ns_;
  JobFn fn_ = nullptr;
  const void *job_ = nullptr;
  bool stop_ = false;
  alignas(64) std::atomic<int32_t> arrived_{0};
  alignas(64) std::atomic<uint32_t> phase_{0};
  std::atomic<int32_t> sleepers_{0};
  struct alignas(64) Units {
    std::atomic<int64_t> next{0};
  };
  Units units_[kMaxJoined];  // one for each instruction since the last barrier
};

// f(unit) for the units 0 .. count-1 that this worker gets.
template <class F>
void for_units(Worker &worker, int64_t count, F f) {
  for (int64_t unit = worker.next(); unit < count; unit = worker.next()) f(unit);
}

}  // namespace fuse
