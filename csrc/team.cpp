#include "team.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <stdexcept>
#include <string>

namespace fuse {
namespace {

// A sleeper wakes late, its fellows then fall asleep waiting for it, and every barrier costs two wake-ups from then on:
// a step took 30 ms instead of 5 beside one busy process when sleep came after 80 us. So waiting is long, but after
// kAloneNs it lets others run.
constexpr int64_t kAloneNs = 50'000;
constexpr int64_t kSpinNs = 4'000'000;
constexpr int64_t kAheadBytes = 64 << 10;    // of weights a waiting worker pulls in: a small part of the L2 cache
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

bool usable(int32_t cpu) {
  cpu_set_t set;
  return cpu >= 0 && cpu < CPU_SETSIZE && sched_getaffinity(0, sizeof set, &set) == 0 &&
         CPU_ISSET(static_cast<size_t>(cpu), &set);
}

bool pin(pthread_t thread, int32_t cpu) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<size_t>(cpu), &set);
  return pthread_setaffinity_np(thread, sizeof set, &set) == 0;
}

// The calling thread on one CPU, and afterwards again where it was allowed before; -1 leaves it alone.
class Pinned {
 public:
  explicit Pinned(int32_t cpu) {
    moved_ = cpu >= 0 && pthread_getaffinity_np(pthread_self(), sizeof before_, &before_) == 0 &&
             pin(pthread_self(), cpu);
  }
  ~Pinned() {
    if (moved_) pthread_setaffinity_np(pthread_self(), sizeof before_, &before_);
  }
  Pinned(const Pinned &) = delete;
  Pinned &operator=(const Pinned &) = delete;

 private:
  cpu_set_t before_;
  bool moved_;
};

}  // namespace

void Worker::barrier() { team->barrier(*this); }
int64_t Worker::next() { return team->units_[joined].next.fetch_add(1, std::memory_order_relaxed); }

Team::Team(int32_t threads, const std::vector<int32_t> &cpus, bool driven) : counters_(c_count), driven_(driven) {
  if (threads < 1 || threads > kMaxThreads) throw std::invalid_argument("A team has 1 to 256 threads.");
  if (!cpus.empty() && cpus.size() != static_cast<size_t>(threads))
    throw std::invalid_argument("`cpus` needs one CPU for each thread.");
  for (const int32_t cpu : cpus)
    if (!usable(cpu)) throw std::invalid_argument("CPU " + std::to_string(cpu) + " is not one this process may use.");
  scratch_ = std::make_shared<Region>(kScratchBytes * static_cast<size_t>(threads), false, "fuseboard:scratch");
  for (int32_t tid = 0; tid < threads; ++tid)
    workers_.push_back({tid, threads, this, scratch_->data() + kScratchBytes * static_cast<size_t>(tid),
                        counters_.data(), cpus.empty() ? -1 : cpus[static_cast<size_t>(tid)]});
  spin_ns_ = threads > usable_cpus() ? kCrowdedSpinNs : kSpinNs;
  for (size_t tid = 1; tid < workers_.size(); ++tid) threads_.emplace_back([this, tid] { work(workers_[tid]); });
  if (driven) threads_.emplace_back([this] { drive(); });
}

Team::~Team() { stop(); }

void Team::stop() {
  if (driven_) {
    std::unique_lock<std::mutex> lock(mutex_);
    changed_.wait(lock, [this] { return !busy_; });
    ending_ = true;
    changed_.notify_all();
    lock.unlock();
    threads_.back().join();
    threads_.pop_back();
  }
  stop_ = true;
  barrier(workers_[0]);
  for (std::thread &thread : threads_) thread.join();
}

void Team::work(Worker &worker) {
  const Pinned pinned(worker.cpu);
  for (;;) {
    barrier(worker);
    if (stop_) return;
    take_part(worker);
    barrier(worker);
  }
}

void Team::take_part(Worker &worker) {
  const bool at_home = worker.cpu >= 0 && sched_getcpu() == worker.cpu;
  fn_(job_, worker);
  if (at_home && sched_getcpu() == worker.cpu)
    __atomic_fetch_add(&counters_[c_pinned_runs], 1, __ATOMIC_RELAXED);
}

void Team::run(JobFn fn, const void *job) {
  if (driven_) {
    start(fn, job);
    return wait();
  }
  std::lock_guard<std::mutex> lock(mutex_);
  const Pinned pinned(workers_[0].cpu);
  fn_ = fn;
  job_ = job;
  lead();
}

void Team::start(JobFn fn, const void *job) {
  if (!driven_) throw std::invalid_argument("Only a driven team can start a job without taking part in it.");
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
  fn_ = fn;
  job_ = job;
  busy_ = true;
  changed_.notify_all();
}

void Team::wait() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
}

void Team::drive() {
  const Pinned pinned(workers_[0].cpu);
  std::unique_lock<std::mutex> lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return busy_ || ending_; });
    if (!busy_) return;
    lock.unlock();
    lead();
    lock.lock();
    busy_ = false;
    changed_.notify_all();
  }
}

void Team::lead() {
  barrier(workers_[0]);
  take_part(workers_[0]);
  barrier(workers_[0]);
}

void Team::barrier(Worker &worker) {
  const int32_t used = worker.joined;
  worker.joined = 0;
  const uint32_t phase = phase_.load(std::memory_order_acquire);
  if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads()) {
    arrived_.store(0, std::memory_order_relaxed);
    for (int32_t i = 0; i <= used; ++i) units_[i].next.store(0, std::memory_order_relaxed);
    // Sequential order here and in sleep(): either we see the sleeper or it sees the new phase.
    phase_.store(phase + 1, std::memory_order_seq_cst);
    if (sleepers_.load(std::memory_order_seq_cst) > 0) futex(phase_, FUTEX_WAKE, INT_MAX);
    return;
  }
  if (worker.ahead != nullptr) pull_ahead(worker, phase);
  const int64_t start = now_ns(), patient = start + kAloneNs, end = start + spin_ns_;
  for (int64_t now = start; now < end; now = now_ns()) {
    for (int i = 0; i < 64; ++i) {
      if (phase_.load(std::memory_order_acquire) != phase) return;
      relax();
    }
    // Whoever we wait for may need this CPU; if nobody does, this returns at once.
    if (now > patient) sched_yield();
  }
  sleep(phase);
}

void Team::pull_ahead(const Worker &worker, uint32_t phase) {
  constexpr int64_t line = 64, step = 8 * line;
  int64_t pulled = 0;
  for (const Ahead::Stream &stream : worker.ahead->streams) {
    int64_t at = worker.tid * kAheadBytes;  // units are handed out in order, so this is near what it will get
    const int64_t end = std::min(at + kAheadBytes, stream.bytes);
    for (; at < end && phase_.load(std::memory_order_acquire) == phase; at += step) {
      for (int64_t i = at; i < std::min(at + step, end); i += line) __builtin_prefetch(stream.data + i, 0, 2);
      pulled += std::min(step, end - at);
    }
  }
  __atomic_fetch_add(&counters_[c_prefetched_bytes], pulled, __ATOMIC_RELAXED);
}

void Team::sleep(uint32_t phase) {
  sleepers_.fetch_add(1, std::memory_order_seq_cst);
  while (phase_.load(std::memory_order_seq_cst) == phase) futex(phase_, FUTEX_WAIT, phase);
  sleepers_.fetch_sub(1, std::memory_order_seq_cst);
}

std::vector<int64_t> Team::counters() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
  return counters_;
}

void Team::reset_counters() {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait(lock, [this] { return !busy_; });
  counters_.assign(counters_.size(), 0);
}

}  // namespace fuse
