#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>
#include <climits>
#include <stdexcept>
#include <string>

namespace fuse {
namespace {

// Longer than a time slice: a sleeper wakes late, its fellows then fall asleep waiting for it, and every barrier costs
// two wake-ups from then on (a step took 30 ms instead of 5 beside one busy process when this was 80 us).
constexpr int64_t kSpinNs = 4'000'000;
constexpr int64_t kCrowdedSpinNs = 2'000;  // more threads than CPUs: whoever we wait for may need ours

int64_t now_ns() {
  using namespace std::chrono;
  return duration_cast<nanoseconds>(steady_clock::now().time_since_epoch()).count();
}

void relax() {
#ifdef __x86_64__
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

long futex(std::atomic<uint32_t> &word, int op, uint32_t value) {
  static_assert(sizeof(word) == sizeof(uint32_t), "a futex is a plain 32-bit word");
  return syscall(SYS_futex, reinterpret_cast<uint32_t *>(&word), op | FUTEX_PRIVATE_FLAG, value, nullptr, nullptr, 0);
}

int32_t usable_cpus() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : 1;
}

bool pin(std::thread &thread, int32_t cpu) {
  if (cpu < 0 || cpu >= CPU_SETSIZE) return false;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  return pthread_setaffinity_np(thread.native_handle(), sizeof set, &set) == 0;
}

}  // namespace

void Worker::barrier() { team->barrier(); }
int64_t Worker::next() { return team->next_.fetch_add(1, std::memory_order_relaxed); }

Team::Team(int32_t threads, const std::vector<int32_t> &cpus) : counters_(c_count) {
  if (threads < 1 || threads > kMaxThreads) throw std::invalid_argument("A team has 1 to 256 threads.");
  if (!cpus.empty() && cpus.size() != static_cast<size_t>(threads - 1))
    throw std::invalid_argument("`cpus` needs one CPU for each thread but the caller's.");
  scratch_ = std::make_shared<Region>(kScratchBytes * static_cast<size_t>(threads), false, "fuseboard:scratch");
  for (int32_t tid = 0; tid < threads; ++tid)
    workers_.push_back({tid, threads, this, scratch_->data() + kScratchBytes * static_cast<size_t>(tid),
                        counters_.data()});
  spin_ns_ = threads > usable_cpus() ? kCrowdedSpinNs : kSpinNs;
  for (size_t tid = 1; tid < workers_.size(); ++tid) threads_.emplace_back([this, tid] { work(workers_[tid]); });
  for (size_t i = 0; i < cpus.size(); ++i)
    if (!pin(threads_[i], cpus[i])) {
      stop();
      throw std::invalid_argument("CPU " + std::to_string(cpus[i]) + " is not one this process may use.");
    }
}

Team::~Team() { stop(); }

void Team::stop() {
  stop_ = true;
  barrier();
  for (std::thread &thread : threads_) thread.join();
}

void Team::work(Worker &worker) {
  for (;;) {
    barrier();
    if (stop_) return;
    fn_(job_, worker);
    barrier();
  }
}

void Team::run(JobFn fn, const void *job) {
  std::lock_guard<std::mutex> lock(mutex_);
  fn_ = fn;
  job_ = job;
  barrier();
  fn(job, workers_[0]);
  barrier();
}

void Team::barrier() {
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads()) {
    arrived_.store(0, std::memory_order_relaxed);
    next_.store(0, std::memory_order_relaxed);
    // Sequential order here and in sleep(): either we see the sleeper or it sees the new phase.
    phase_.store(phase + 1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) futex(phase_, FUTEX_WAKE, INT_MAX);
    return;
  }
  const int64_t end = now_ns() + spin_ns_;
  do {
    for (int i = 0; i < 64; ++i) {
      if (phase_.load(std::memory_order_acquire) != phase) return;
      relax();
    }
  } while (now_ns() < end);
  sleep(phase);
}

void Team::sleep(uint32_t phase) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (phase_.load(std::memory_order_seq_cst) == phase) futex(phase_, FUTEX_WAIT, phase);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

std::vector<int64_t> Team::counters() {
  std::lock_guard<std::mutex> lock(mutex_);
  return counters_;
}

void Team::reset_counters() {
  std::lock_guard<std::mutex> lock(mutex_);
  counters_.assign(counters_.size(), 0);
}

}  // namespace fuse
