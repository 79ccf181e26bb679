// Tests of the safetensors writer: round trips, alignment, wrong amounts and duplicates.
#include "io/safetensors_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>

#include "base/temporary_directory_testing.h"
#include "io/checkpoint.h"

namespace dsv4::io {
namespace {

using ::testing::HasSubstr;

class SafetensorsWriterTest : public ::testing::Test {
 protected:
  std::string path() const { return directory_ / "model.safetensors"; }

  const TemporaryDirectory directory_;
};

TEST_F(SafetensorsWriterTest, RoundTripsAndAlignsEveryTensor) {
  auto writer = SafetensorsWriter::Create(
      path(),
      {{"bytes \"quoted\"", DType::kU8, {3}}, {"ids", DType::kI64, {2}}, {"half", DType::kBF16, {1, 1}}});
  ASSERT_TRUE(writer.has_value()) << writer.error().message();
  char value = 0;
  for (const TensorSpec& spec : writer->specs()) {
    for (int64_t i = 0; i < spec.num_bytes(); ++i) {
      ++value;
      ASSERT_TRUE(writer->Append(std::as_bytes(std::span(&value, 1))).ok());
    }
  }
  EXPECT_FALSE(std::filesystem::exists(path()));
  ASSERT_TRUE(writer->Finish().ok());
  EXPECT_FALSE(std::filesystem::exists(path() + ".partial"));

  const auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  for (const StoredTensor& tensor : (*checkpoint)->tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(tensor.bytes.data()) %
                  static_cast<uintptr_t>(ElementBytes(*tensor.dtype)),
              0U)
        << tensor.name;
  }
  const StoredTensor* bytes = (*checkpoint)->Find("bytes \"quoted\"");
  ASSERT_NE(bytes, nullptr);
  EXPECT_EQ(static_cast<int>(bytes->bytes[2]), 21);  // 16 + 2 + 3 bytes were written; this is the last.
}

TEST_F(SafetensorsWriterTest, RefusesWrongAmountsAndDuplicates) {
  EXPECT_THAT(
      SafetensorsWriter::Create(path(), {{"a", DType::kU8, {1}}, {"a", DType::kU8, {1}}}).error().message(),
      HasSubstr("tensor a: name used twice"));
  {
    auto writer = SafetensorsWriter::Create(path(), {{"a", DType::kU8, {2}}});
    const char bytes[3] = {};
    EXPECT_EQ(writer->Finish().code(), StatusCode::kFailedPrecondition);
    EXPECT_EQ(writer->Append(std::as_bytes(std::span(bytes))).code(), StatusCode::kFailedPrecondition);
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory_.path()));  // An abandoned writer leaves nothing behind.
}

TEST_F(SafetensorsWriterTest, NamesAPathItCannotWrite) {
  const auto writer = SafetensorsWriter::Create(directory_ / "missing/x.safetensors", {});
  EXPECT_THAT(writer.error().message(), HasSubstr("/missing/x.safetensors.partial: cannot create"));
}

}  // namespace
}  // namespace dsv4::io
