// Layout of the memory that the ranks of shared_memory.h share. All of it begins as zeros.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace dsv4::comm {

inline constexpr uint64_t kMagic = 0x314D4D4F43345644;  // "DV4COMM1"
inline constexpr int64_t kChunkBytes = int64_t{256} << 10;
inline constexpr int64_t kMailboxBytes = int64_t{256} << 10;

enum class FailureState : uint32_t { kNone, kBeingWritten, kFailed };

struct alignas(64) Header {
  uint64_t magic = kMagic;
  int64_t num_ranks = 0;
  std::atomic<FailureState> failure_state = FailureState::kNone;
  uint32_t failure_code = 0;
  std::array<char, 488> failure_message = {};  // Ends with a 0.
};

struct alignas(64) RankControl {
  std::atomic<uint64_t> round = 0;  // The last one announced.
  alignas(64) std::atomic<uint32_t> bell = 0;
  std::atomic<uint32_t> sleeping = 0;
  std::atomic<int32_t> process = 0;  // 0: not known yet.
  std::atomic<uint32_t> left = 0;
};

struct alignas(64) Mailbox {
  std::atomic<uint64_t> written = 0;  // Bytes since the beginning.
  alignas(64) std::atomic<uint64_t> read = 0;
  alignas(64) std::array<std::byte, kMailboxBytes> ring;
};

struct Buffers {
  std::array<std::array<std::byte, kChunkBytes>, 2> chunks;
};

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<FailureState>::is_always_lock_free);

// The parts of the memory of `size` ranks.
class Layout {
 public:
  Layout(std::byte* data, int size) : data_(data), size_(static_cast<size_t>(size)) {}

  static size_t NumBytes(int size) {
    const auto n = static_cast<size_t>(size);
    return sizeof(Header) + n * sizeof(RankControl) + n * sizeof(Buffers) + n * n * sizeof(Mailbox);
  }

  Header& header() const { return *reinterpret_cast<Header*>(data_); }
  RankControl& control(int rank) const {
    return reinterpret_cast<RankControl*>(data_ + sizeof(Header))[static_cast<size_t>(rank)];
  }
  std::byte* buffer(int rank, uint64_t round) const {
    std::byte* const all = data_ + sizeof(Header) + size_ * sizeof(RankControl);
    return reinterpret_cast<Buffers*>(all)[static_cast<size_t>(rank)].chunks[round % 2].data();
  }
  Mailbox& mailbox(int from, int to) const {
    std::byte* const all = data_ + sizeof(Header) + size_ * (sizeof(RankControl) + sizeof(Buffers));
    return reinterpret_cast<Mailbox*>(all)[static_cast<size_t>(from) * size_ + static_cast<size_t>(to)];
  }

 private:
  std::byte* data_;
  size_t size_;
};

}  // namespace dsv4::comm
