// Rows of tables in files: values, what is asked of the disk, and files that go away.
#include "model/engram/engram_tables.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cmath>
#include <cstring>
#include <random>
#include <thread>

#include "base/parallel.h"
#include "base/temporary_directory_testing.h"
#include "formats/number_formats.h"
#include "io/safetensors_writer.h"

namespace dsv4::model {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kRows = 4000;
constexpr int64_t kWidth = 256;
constexpr int64_t kGroup = 32;

class EngramTablesTest : public ::testing::Test {
 protected:
  EngramTablesTest() {
    std::mt19937 random(11);
    codes_.resize(kRows * kWidth);
    for (uint8_t& code : codes_) {
      do code = static_cast<uint8_t>(random());
      while ((code & 0x7F) == 0x7F);
    }
    scales_.resize(kRows * kWidth / kGroup);
    for (uint8_t& scale : scales_) scale = static_cast<uint8_t>(100 + random() % 40);
    Write();
  }

  void Write() {
    const std::vector<io::TensorSpec> specs = {
        {"layers.1.engram.embed.weight", DType::kF8E4M3, {kRows, kWidth}},
        {"layers.1.engram.embed.scale", DType::kF8E8M0, {kRows, kWidth / kGroup}}};
    auto writer = io::SafetensorsWriter::Create(Path(), specs);
    ASSERT_TRUE(writer.has_value());
    for (const io::TensorSpec& spec : writer->specs()) {
      const auto& bytes = spec.dtype == DType::kF8E4M3 ? codes_ : scales_;
      ASSERT_TRUE(writer->Append(std::as_bytes(std::span(bytes))).ok());
    }
    ASSERT_TRUE(writer->Finish().ok());
  }

  std::string Path() const { return directory_ / "model.safetensors"; }

  static Weight Table(const io::Checkpoint& checkpoint) {
    const auto view = [&](const char* name) {
      const io::StoredTensor* tensor = checkpoint.Find(name);
      return TensorView::Contiguous(static_cast<const void*>(tensor->bytes.data()), *tensor->dtype,
                                    {tensor->dims[0], tensor->dims[1]});
    };
    return {.format = WeightFormat::kFp8Block,
            .rows = kRows,
            .cols = kWidth,
            .data = view("layers.1.engram.embed.weight"),
            .scale = view("layers.1.engram.embed.scale"),
            .block_rows = 1,
            .block_cols = kGroup};
  }

  std::unique_ptr<EngramTables> Open() {
    auto checkpoint = io::Checkpoint::Open(directory_.path());
    EXPECT_TRUE(checkpoint.has_value()) << checkpoint.error().ToString();
    checkpoint_ = *checkpoint;
    auto tables = EngramTables::Create(*checkpoint, {{"layers.1.engram.embed", Table(**checkpoint)}});
    EXPECT_TRUE(tables.has_value()) << tables.error().ToString();
    return std::move(*tables);
  }

  double Value(int64_t row, int64_t column) const {
    const uint8_t code = codes_[static_cast<size_t>(row * kWidth + column)];
    const int exponent = code >> 3 & 0xF;
    const double magnitude =
        exponent == 0 ? std::ldexp(code & 7, -9) : std::ldexp(8 + (code & 7), exponent - 10);
    const int scale = scales_[static_cast<size_t>((row * kWidth + column) / kGroup)] - 127;
    return std::ldexp((code & 0x80) != 0 ? -magnitude : magnitude, scale);
  }

  const TemporaryDirectory directory_;
  std::vector<uint8_t> codes_;
  std::vector<uint8_t> scales_;
  std::shared_ptr<const io::Checkpoint> checkpoint_;
  ThreadPool threads_{2};
};

TEST_F(EngramTablesTest, RowsAreCodesTimesScalesExactly) {
  const auto tables = Open();
  const std::vector<int64_t> rows = {0, 3999, 17, 17, 2000, 0};
  std::vector<float> wide(rows.size() * kWidth);
  std::vector<uint16_t> narrow(rows.size() * kWidth);
  ASSERT_TRUE(tables->Read(0, rows, threads_, DType::kF32, std::as_writable_bytes(std::span(wide))).ok());
  ASSERT_TRUE(tables->Read(0, rows, threads_, DType::kBF16, std::as_writable_bytes(std::span(narrow))).ok());
  for (size_t i = 0; i < wide.size(); ++i) {
    const double want = Value(rows[i / kWidth], static_cast<int64_t>(i % kWidth));
    ASSERT_EQ(static_cast<double>(wide[i]), want) << i;
    ASSERT_EQ(static_cast<double>(FloatFromBf16(narrow[i])), want) << i;
  }
}

TEST_F(EngramTablesTest, APageIsAskedForOnce) {
  const auto tables = Open();
  const std::vector<int64_t> rows(500, 1234);
  tables->Ask(0, rows);
  EXPECT_EQ(tables->num_rows_asked(), 1);
  EXPECT_LE(tables->num_pages_asked(), 4);  // A row of codes and one of scales, each on two pages at most.
  std::vector<int64_t> all;
  for (int64_t row = 0; row < kRows; ++row) all.push_back(kRows - 1 - row);
  const int64_t before = tables->num_pages_asked();
  tables->Ask(0, all);
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  EXPECT_LE(tables->num_pages_asked() - before, kRows * (kWidth + kWidth / kGroup) / page + 4);
}

// Counts how often numbers are made.
class CountedNumbers final : public io::NumberSource {
 public:
  CountedNumbers(int* fetched, int* released) : fetched_(fetched), released_(released) {}
  void Fetch(Ranges) override { ++*fetched_; }
  void Release(Ranges) override { ++*released_; }
  std::string identity() const override { return "counted"; }

 private:
  int* fetched_;
  int* released_;
};

TEST_F(EngramTablesTest, NumbersThatAreMadeAreMadeOnceAndNotForAPass) {
  int fetched = 0;
  int released = 0;
  std::vector<io::MappedFile> files;
  auto file = io::MappedFile::Open(Path());
  ASSERT_TRUE(file.has_value()) << file.error().ToString();
  files.push_back(std::move(*file));
  auto checkpoint = io::Checkpoint::FromFiles("made", std::move(files),
                                              std::make_unique<CountedNumbers>(&fetched, &released));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().ToString();
  auto tables = EngramTables::Create(*checkpoint, {{"layers.1.engram.embed", Table(**checkpoint)}});
  ASSERT_TRUE(tables.has_value()) << tables.error().ToString();
  const int before = fetched;
  EXPECT_GT(before, 0);
  std::vector<float> values(2 * kWidth);
  for (int pass = 0; pass < 3; ++pass) {
    (*tables)->Ask(0, {{5, 7}});
    ASSERT_TRUE(
        (*tables)->Read(0, {{5, 7}}, threads_, DType::kF32, std::as_writable_bytes(std::span(values))).ok());
  }
  EXPECT_EQ(fetched, before);
  EXPECT_EQ(released, 0);
  EXPECT_EQ(static_cast<double>(values[0]), Value(5, 0));
}

// The disk is asked for what a pass needs and for nothing else, before the rows are touched.
TEST_F(EngramTablesTest, AskedPagesArriveWithoutATouch) {
  const auto tables = Open();
  const auto& file = checkpoint_->files()[0];
  const int64_t page = ::sysconf(_SC_PAGESIZE);
  const size_t num_pages = (file.bytes().size() + static_cast<size_t>(page) - 1) / static_cast<size_t>(page);
  std::vector<unsigned char> resident(num_pages);
  const auto num_resident = [&] {
    EXPECT_EQ(::mincore(const_cast<std::byte*>(file.bytes().data()), file.bytes().size(), resident.data()),
              0);
    return std::ranges::count_if(resident, [](unsigned char flags) { return (flags & 1) != 0; });
  };
  ::fsync(file.file()->descriptor());
  ::madvise(const_cast<std::byte*>(file.bytes().data()), file.bytes().size(), MADV_DONTNEED);
  ::posix_fadvise(file.file()->descriptor(), 0, 0, POSIX_FADV_DONTNEED);
  if (num_resident() > 2) GTEST_SKIP() << "the file system keeps pages that are given back";
  const std::vector<int64_t> rows = {100, 3000};
  tables->Ask(0, rows);
  for (int i = 0; i < 2000 && num_resident() < tables->num_pages_asked(); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_GE(num_resident(), tables->num_pages_asked());
  EXPECT_LE(num_resident(), tables->num_pages_asked() + 2);
}

TEST_F(EngramTablesTest, ErrorsNameTheTableAndTheRow) {
  codes_[17 * kWidth + 5] = kE4m3NaN;
  scales_[40 * kWidth / kGroup] = kE8m0NaN;
  Write();
  const auto tables = Open();
  std::vector<float> values(kWidth);
  const auto read = [&](int64_t row) {
    return tables->Read(0, {{row}}, threads_, DType::kF32, std::as_writable_bytes(std::span(values)));
  };
  EXPECT_TRUE(read(16).ok());
  for (const int64_t row : {17, 40}) {
    EXPECT_EQ(read(row).code(), StatusCode::kDataLoss);
    EXPECT_THAT(read(row).message(), HasSubstr("layers.1.engram.embed: row " + std::to_string(row)));
  }
  for (const int64_t row : {int64_t{-1}, kRows}) {
    EXPECT_EQ(read(row).code(), StatusCode::kOutOfRange);
    EXPECT_THAT(read(row).message(), HasSubstr("want 0 to 3999"));
    tables->Ask(0, {{row}});  // Nothing to ask for.
  }
  EXPECT_EQ(tables->num_rows_asked(), 0);
  EXPECT_EQ(tables->Read(0, {{1}}, threads_, DType::kF16, std::as_writable_bytes(std::span(values))).code(),
            StatusCode::kInvalidArgument);
}

TEST_F(EngramTablesTest, ATableMustBeAValidWeightOfTheCommonWidth) {
  Open();
  Weight narrow = Table(*checkpoint_);
  narrow.cols = 128;
  auto tables = EngramTables::Create(checkpoint_, {{"a", Table(*checkpoint_)}, {"b", narrow}});
  ASSERT_FALSE(tables.has_value());
  EXPECT_THAT(tables.error().message(), HasSubstr("b: data: shape [4000, 256], want [4000, 128]"));
  narrow.data = TensorView::Contiguous(narrow.data.data, DType::kF8E4M3, {kRows, 128});
  narrow.scale = TensorView::Contiguous(narrow.scale.data, DType::kF8E8M0, {kRows, 4});
  tables = EngramTables::Create(checkpoint_, {{"a", Table(*checkpoint_)}, {"b", narrow}});
  ASSERT_FALSE(tables.has_value());
  EXPECT_THAT(tables.error().message(), HasSubstr("b: rows of 128 values, want 256"));
}

// In a process of its own: a lost file stays lost.
TEST_F(EngramTablesTest, AFileThatIsCutShortIsNamed) {
  const auto read_of_a_cut_file = [&] {
    struct sigaction action = {};
    action.sa_sigaction = [](int, siginfo_t* info, void*) {
      if (!io::StandInForLostPages(info->si_addr)) ::_exit(9);
    };
    action.sa_flags = SA_SIGINFO;
    ::sigaction(SIGBUS, &action, nullptr);
    const auto tables = Open();
    if (::truncate(Path().c_str(), 4096) != 0) ::_exit(8);
    std::vector<float> values(kWidth);
    const Status status =
        tables->Read(0, {{3000}}, threads_, DType::kF32, std::as_writable_bytes(std::span(values)));
    std::fputs(status.ToString().c_str(), stderr);
    std::exit(status.ok() ? 1 : 0);
  };
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_EXIT(read_of_a_cut_file(), ::testing::ExitedWithCode(0),
              "DATA_LOSS: layers.1.engram.embed: .*model.safetensors: a part that was there");
}

}  // namespace
}  // namespace dsv4::model
