// Tests of checkpoint directories: shards, missing parts, indexes that disagree, links, files that cannot be
// mapped.
#include "io/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/temporary_directory_testing.h"
#include "io/safetensors_writer.h"

namespace dsv4::io {
namespace {

using ::testing::HasSubstr;

class CheckpointTest : public ::testing::Test {
 protected:
  std::string Path(const std::string& name) const { return directory_ / name; }
  // A file with one-byte tensors of these names.
  void WriteShard(const std::string& name, const std::vector<std::string>& tensors) const {
    std::vector<TensorSpec> specs;
    for (const std::string& tensor : tensors) specs.push_back({tensor, DType::kU8, {1}});
    auto writer = SafetensorsWriter::Create(Path(name), specs);
    const std::string bytes(tensors.size(), 'x');
    ASSERT_TRUE(writer->Append(std::as_bytes(std::span(bytes))).ok());
    ASSERT_TRUE(writer->Finish().ok());
  }
  void WriteIndex(const std::string& weight_map) const {
    std::ofstream(Path("model.safetensors.index.json")) << R"({"weight_map":)" << weight_map << "}";
  }
  Status OpenError() const {
    const auto checkpoint = Checkpoint::Open(directory_.path());
    return checkpoint ? Status() : checkpoint.error();
  }

  const TemporaryDirectory directory_;
};

TEST_F(CheckpointTest, ReadsShardsByTheIndex) {
  WriteShard("m-1.safetensors", {"a", "b"});
  WriteShard("m-2.safetensors", {"c"});
  WriteShard("unrelated.safetensors", {"a"});
  WriteIndex(R"({"a":"m-1.safetensors","c":"m-2.safetensors","b":"m-1.safetensors"})");
  const auto checkpoint = Checkpoint::Open(directory_.path());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message();
  EXPECT_EQ((*checkpoint)->tensors().size(), 3U);
  EXPECT_EQ((*checkpoint)->files().size(), 2U);
  EXPECT_EQ((*checkpoint)->Find("d"), nullptr);
  EXPECT_THAT((*checkpoint)->Describe(*(*checkpoint)->Find("c")), HasSubstr("m-2.safetensors: tensor c"));
}

TEST_F(CheckpointTest, NamesWhatIsMissing) {
  EXPECT_EQ(Checkpoint::Open(Path("none")).error().code(), StatusCode::kNotFound);
  EXPECT_THAT(OpenError().message(),
              HasSubstr("has neither model.safetensors.index.json nor model.safetensors"));
  WriteIndex(R"({"a":"m-1.safetensors"})");
  EXPECT_EQ(OpenError().code(), StatusCode::kNotFound);
  EXPECT_THAT(OpenError().message(), HasSubstr("shard of tensor a"));
}

TEST_F(CheckpointTest, IndexAndShardsMustAgree) {
  WriteShard("m-1.safetensors", {"a"});
  WriteShard("m-2.safetensors", {"b"});
  WriteIndex(R"({"a":"m-2.safetensors","b":"m-2.safetensors"})");
  EXPECT_THAT(OpenError().message(), HasSubstr("tensor a: not in the file the index names"));
  WriteIndex(R"({"a":"m-1.safetensors","b":"m-1.safetensors"})");
  EXPECT_THAT(OpenError().message(), HasSubstr("tensor b: not in the file"));
  WriteShard("m-2.safetensors", {"b", "extra"});
  WriteIndex(R"({"a":"m-1.safetensors","b":"m-2.safetensors"})");
  EXPECT_THAT(OpenError().message(), HasSubstr("tensor extra: not in the index"));
  WriteShard("m-2.safetensors", {"b", "a"});
  EXPECT_THAT(OpenError().message(), HasSubstr("tensor a: also in"));
}

TEST_F(CheckpointTest, FileKindsThatCannotBeMappedAreErrors) {
  std::filesystem::create_symlink("model.safetensors", Path("model.safetensors"));  // Cyclic.
  EXPECT_THAT(OpenError().message(), HasSubstr("model.safetensors: cannot open"));
  std::filesystem::remove(Path("model.safetensors"));
  std::filesystem::create_directory(Path("model.safetensors"));
  EXPECT_THAT(OpenError().message(), HasSubstr("not a regular file"));
  std::filesystem::remove(Path("model.safetensors"));
  ASSERT_EQ(::mkfifo(Path("model.safetensors").c_str(), 0600), 0);
  EXPECT_THAT(OpenError().message(), HasSubstr("not a regular file"));
  std::filesystem::remove(Path("model.safetensors"));
  std::ofstream(Path("model.safetensors")).flush();
  EXPECT_EQ(OpenError().code(), StatusCode::kDataLoss);
  WriteShard("model.safetensors", {});
  EXPECT_THAT(OpenError().message(), HasSubstr("holds no tensor"));
}

TEST_F(CheckpointTest, FollowsSymbolicLinksToFilesElsewhere) {
  std::filesystem::create_directory(Path("blobs"));
  WriteShard("blobs/0a", {"a"});
  std::filesystem::create_symlink("blobs/0a", Path("model.safetensors"));
  EXPECT_TRUE(OpenError().ok()) << OpenError().message();
}

TEST(AlignTensor, CopiesOnlyWhatLiesBadly) {
  alignas(8) const std::byte bytes[9] = {std::byte{1}, std::byte{2}, std::byte{3}};
  const auto good = AlignTensor(std::span(bytes, 8), DType::kF32, {2});
  EXPECT_EQ(good->view.data, bytes);
  EXPECT_FALSE(good->copy);
  const auto bad = AlignTensor(std::span(bytes + 1, 8), DType::kF32, {2});
  EXPECT_EQ(bad->view.data, bad->copy.data());
  EXPECT_EQ(bad->view.as<unsigned char>()[0], 2);
}

}  // namespace
}  // namespace dsv4::io
