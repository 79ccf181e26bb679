// Memory of this process in huge pages, where the kernel has them.
#pragma once

#include <cstddef>
#include <span>
#include <string_view>

#include "base/status.h"

namespace dsv4 {

// Owns zeros that take memory as they are touched. They begin on a huge page: one that holds bytes of other
// memory too would be a small one.
class HugePages {
 public:
  static constexpr size_t kBytes = size_t{2} << 20;  // Size of a huge page on x86-64.

  // At least one byte. ResourceExhausted names `what`.
  static Result<HugePages> Map(std::string_view what, size_t num_bytes);
  HugePages(HugePages&& other) noexcept;
  HugePages& operator=(HugePages&& other) noexcept;
  HugePages(const HugePages&) = delete;
  HugePages& operator=(const HugePages&) = delete;
  ~HugePages();

  std::span<std::byte> bytes() const { return bytes_; }
  // The caller owns them from now on, and gives them back with munmap of exactly this range.
  std::span<std::byte> Release();

 private:
  explicit HugePages(std::span<std::byte> bytes) : bytes_(bytes) {}

  std::span<std::byte> bytes_;
};

}  // namespace dsv4
