// Threads bring every byte to its address. Needs no device (null_runtime.cc): a copy is done when it is
// queued.
#include "backend/cuda/runtime/upload_ring.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/cuda/null_runtime.h"

namespace dsv4::backend::cuda {
namespace {

TEST(UploadRing, EveryByteComesToItsPlace) {
  null_runtime::max_touched_bytes = UploadRing::kPieceBytes;
  const auto queue = DeviceQueue::Create({});
  ASSERT_TRUE(queue.has_value()) << queue.error().ToString();
  for (const int num_threads : {1, 4}) {
    const auto ring = UploadRing::Create(**queue, num_threads);
    ASSERT_TRUE(ring.has_value()) << ring.error().ToString();
    // Less than a piece, exactly one, one more byte, and so many that blocks come round.
    for (const size_t num_bytes : {size_t{0}, size_t{1}, UploadRing::kPieceBytes, UploadRing::kPieceBytes + 1,
                                   77 * UploadRing::kPieceBytes + 12345}) {
      std::vector<std::byte> from(num_bytes + 1);
      for (size_t i = 0; i < from.size(); ++i) from[i] = static_cast<std::byte>(i * 7 + i / 251);
      std::vector<std::byte> to(num_bytes + 2, std::byte{0xEE});
      ASSERT_EQ((*ring)->Copy(to.data() + 1, from.data() + 1, num_bytes, (*queue)->stream()), cudaSuccess);
      EXPECT_TRUE(std::equal(from.begin() + 1, from.end(), to.begin() + 1)) << num_bytes;
      EXPECT_EQ(to.front(), std::byte{0xEE});
      EXPECT_EQ(to.back(), std::byte{0xEE});
    }
  }
}

}  // namespace
}  // namespace dsv4::backend::cuda
