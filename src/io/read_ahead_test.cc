// Tests of reading ahead: every piece begun, an end that does not wait, empty work.
#include "io/read_ahead.h"

#include <gtest/gtest.h>

#include <fstream>
#include <thread>

#include "base/temporary_directory_testing.h"
#include "io/mapped_file.h"

namespace dsv4::io {
namespace {

using Ranges = std::vector<std::span<const std::byte>>;

class ReadAheadTest : public ::testing::Test {
 protected:
  ReadAheadTest() {
    std::ofstream(directory_ / "f") << std::string(kNumBytes, 'x');
    file_ = std::make_unique<MappedFile>(*MappedFile::Open(directory_ / "f"));
  }

  static constexpr size_t kNumBytes = size_t{20} << 20;  // Several pieces.
  const TemporaryDirectory directory_;
  std::unique_ptr<MappedFile> file_;
};

TEST_F(ReadAheadTest, EveryPieceIsBegunInTheEnd) {
  ReadAhead read_ahead;
  read_ahead.Add(Ranges{file_->bytes().subspan(1), {}, file_->bytes().first(5)});
  read_ahead.Add(Ranges{file_->bytes()});
  while (read_ahead.num_waiting() > 0) std::this_thread::yield();
  EXPECT_EQ(static_cast<char>(file_->bytes().back()), 'x');
}

TEST_F(ReadAheadTest, AnEndDoesNotWaitForWhatIsLeft) {
  for (int round = 0; round < 20; ++round) {
    ReadAhead read_ahead;
    for (int i = 0; i < 10; ++i) read_ahead.Add(Ranges{file_->bytes()});
  }
}

TEST_F(ReadAheadTest, NothingIsNoWork) {
  ReadAhead never_asked;
  ReadAhead read_ahead;
  read_ahead.Add(Ranges{});
  read_ahead.Add(Ranges{file_->bytes().first(0)});
  EXPECT_EQ(read_ahead.num_waiting(), 0U);
}

}  // namespace
}  // namespace dsv4::io
