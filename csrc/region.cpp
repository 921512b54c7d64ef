#include "region.h"

#include <sys/mman.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <new>
#include <stdexcept>

namespace fuse {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

size_t page_bytes() {
  static const size_t bytes = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  return bytes;
}

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

void name_mapping([[maybe_unused]] void *data, [[maybe_unused]] size_t bytes, [[maybe_unused]] const char *name) {
#ifdef PR_SET_VMA  // a label in smaps only, refused by kernels built without it
  prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, data, bytes, name);
#endif
}

}  // namespace

Region::Region(size_t bytes, bool huge, const std::string &name) : name_(name), bytes_(bytes), huge_(huge) {
  if (bytes == 0) throw std::invalid_argument("A region needs at least one byte.");
  const size_t page = page_bytes(), used = round_up(bytes, page), align = huge ? kHugePage : page;
  mapped_bytes_ = used + align + 2 * page;
  void *mapped = mmap(nullptr, mapped_bytes_, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapped == MAP_FAILED) throw std::bad_alloc();
  mapped_ = static_cast<uint8_t *>(mapped);
  const uintptr_t first = reinterpret_cast<uintptr_t>(mapped_) + page;
  data_ = mapped_ + page + (round_up(first, align) - first);
  if (mprotect(data_, used, PROT_READ | PROT_WRITE) != 0) {
    munmap(mapped_, mapped_bytes_);
    throw std::bad_alloc();
  }
  huge_advised_ = huge && madvise(data_, used, MADV_HUGEPAGE) == 0;
  if (!name.empty()) name_mapping(data_, used, name_.c_str());
}

Region::~Region() { munmap(mapped_, mapped_bytes_); }

void Region::release(size_t offset, size_t bytes) {
  if (offset > bytes_ || bytes > bytes_ - offset)
    throw std::invalid_argument("The range to release ends outside the region.");
  const size_t page = page_bytes(), begin = round_up(offset, page);
  const size_t end = offset + bytes == bytes_ ? round_up(bytes_, page) : (offset + bytes) / page * page;
  if (begin < end && madvise(data_ + begin, end - begin, MADV_DONTNEED) != 0)
    throw std::runtime_error("The kernel refused to take pages back.");
}

}  // namespace fuse
