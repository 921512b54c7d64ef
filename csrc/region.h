// Zero-filled private memory between two inaccessible guard pages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace fuse {

class Region {
 public:
  Region(size_t bytes, bool huge, const std::string &name);  // throws std::invalid_argument, std::bad_alloc
  ~Region();
  Region(const Region &) = delete;
  Region &operator=(const Region &) = delete;

  uint8_t *data() const { return data_; }
  size_t bytes() const { return bytes_; }
  const std::string &name() const { return name_; }
  bool huge() const { return huge_; }
  bool huge_advised() const { return huge_advised_; }

  // Gives the whole pages inside [offset, offset + bytes) back; they read as zero afterwards.
  void release(size_t offset, size_t bytes);

 private:
  std::string name_;
  size_t bytes_, mapped_bytes_ = 0;
  uint8_t *mapped_ = nullptr, *data_ = nullptr;
  bool huge_, huge_advised_ = false;
};

}  // namespace fuse
