// Tests of hub: names, listings, digests, transfers that fail and go on, and the cache, against a local
// server.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "base/temporary_directory_testing.h"
#include "hub/digest.h"
#include "hub/listing.h"
#include "hub/reference.h"

namespace dsv4::hub {
namespace {

namespace fs = std::filesystem;

const std::string kCommit(40, 'a');

TEST(Reference, TakesOwnerNameAndRevision) {
  const auto plain = ParseReference("deepseek-ai/DeepSeek-V4-Flash");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->owner, "deepseek-ai");
  EXPECT_EQ(plain->name, "DeepSeek-V4-Flash");
  EXPECT_EQ(plain->revision, "main");
  EXPECT_EQ(plain->ToString(), "deepseek-ai/DeepSeek-V4-Flash");
  const auto revision = ParseReference("a/b.c@refs/pr/3");
  ASSERT_TRUE(revision);
  EXPECT_EQ(revision->revision, "refs/pr/3");
  EXPECT_EQ(revision->ToString(), "a/b.c@refs/pr/3");
}

TEST(Reference, RefusesPathsAndWhatLeavesTheFolder) {
  for (const char* text : {"", "a", "a/b/c", "/a/b", "./b", "../b", "a/..", "a/b@", "a/b@../x", "a/b@x//y",
                           "a/b@/x", "a b/c", "a/b\nc", "-a/b", "a/.b", "~/b"}) {
    EXPECT_FALSE(ParseReference(text)) << text;
  }
}

TEST(Reference, FileNamesStayBelowTheirFolder) {
  for (const char* name : {"a", "a/b.json", "..a", "a..b/c"}) EXPECT_TRUE(IsSafeFileName(name)) << name;
  for (const char* name : {"", "/a", "a/", "a//b", "..", "a/../b", "./a", "a\\b", "a\nb", "a\x7f"})
    EXPECT_FALSE(IsSafeFileName(name)) << name;
}

TEST(Reference, SnapshotIsFoundByItsRefOrItsCommit) {
  const TemporaryDirectory directory;
  const fs::path cache = directory.path();
  const auto main = ParseReference("o/n");
  EXPECT_FALSE(FindSnapshot(cache, *main));
  const fs::path folder = RepositoryFolder(cache, *main);
  fs::create_directories(folder / "snapshots" / kCommit);
  EXPECT_FALSE(FindSnapshot(cache, *main)) << "no ref yet";
  EXPECT_EQ(FindSnapshot(cache, *ParseReference("o/n@" + kCommit)), folder / "snapshots" / kCommit);
  fs::create_directories(folder / "refs");
  std::ofstream(folder / "refs" / "main") << kCommit << "\n";
  EXPECT_EQ(FindSnapshot(cache, *main), folder / "snapshots" / kCommit);
  // A damaged ref leads nowhere else.
  std::ofstream(folder / "refs" / "main") << "../../..";
  EXPECT_FALSE(FindSnapshot(cache, *main));
}

TEST(Digest, IsThatOfSha256AndOfGit) {
  Digest sha(DigestKind::kSha256, 3);
  sha.Update("a");
  sha.Update("bc");
  EXPECT_EQ(sha.Finish(), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Digest git(DigestKind::kGitBlob, 6);  // `echo hello | git hash-object --stdin`
  git.Update("hello\n");
  EXPECT_EQ(git.Finish(), "ce013625030ba8dba906f756967f9e9ca394464a");
}

std::string ListingOf(const std::string& files) {
  return R"({"sha":")" + kCommit + R"(","siblings":[)" + files + "]}";
}

TEST(Listing, SizeAndDigestOfALargeFileAreInLfs) {
  const std::string sha256(64, 'b');
  const auto listing =
      ParseListing(ListingOf(R"({"rfilename":"config.json","size":7,"blobId":")" + kCommit +
                             R"("},{"rfilename":"m.safetensors","size":900,"blobId":")" + kCommit +
                             R"(","lfs":{"sha256":")" + sha256 + R"(","size":900,"pointerSize":135}})"));
  ASSERT_TRUE(listing) << listing.error().message();
  EXPECT_EQ(listing->commit, kCommit);
  ASSERT_EQ(listing->files.size(), 2U);
  EXPECT_EQ(listing->files[0].digest, kCommit);
  EXPECT_EQ(listing->files[1].num_bytes, 900);
  EXPECT_EQ(listing->files[1].digest, sha256);
}

TEST(Listing, HostileOnesAreRefusedByName) {
  const std::string good = R"("size":7,"blobId":")" + kCommit + R"("})";
  for (const std::string& text :
       {std::string("[]"), std::string("{}"), std::string(R"({"sha":"x","siblings":[]})"),
        R"({"sha":")" + kCommit + R"("})", ListingOf("7"), ListingOf(R"({"rfilename":"../x",)" + good),
        ListingOf(R"({"rfilename":"/x",)" + good), ListingOf(R"({"rfilename":"a"})"),
        ListingOf(R"({"rfilename":"a","size":-1,"blobId":")" + kCommit + R"("})"),
        ListingOf(R"({"rfilename":"a","size":1e3,"blobId":")" + kCommit + R"("})"),
        ListingOf(R"({"rfilename":"a","size":7,"blobId":"../../etc/passwd"})"),
        ListingOf(R"({"rfilename":"a",)" + good + R"(,{"rfilename":"a",)" + good)}) {
    const auto listing = ParseListing(text);
    ASSERT_FALSE(listing) << text;
    EXPECT_EQ(listing.error().code(), StatusCode::kInvalidArgument) << listing.error().message();
  }
}

TEST(Listing, UrlsAreEscaped) {
  const auto reference = ParseReference("o/n@refs/pr/3");
  EXPECT_EQ(ListingUrl("http://h", *reference), "http://h/api/models/o/n/revision/refs%2Fpr%2F3?blobs=true");
  EXPECT_EQ(FileUrl("http://h", *reference, "c", "a b/ü?.json"),
            "http://h/o/n/resolve/c/a%20b/%C3%BC%3F.json");
}

TEST(Listing, ACheckpointNeedsItsTopFolder) {
  for (const char* name : {"config.json", "model-00001-of-00002.safetensors", "chat_template.jinja",
                           "LICENSE", "README.md", "model.safetensors.index.json"})
    EXPECT_TRUE(IsNeeded(name)) << name;
  for (const char* name :
       {"figures/a.png", "inference/model.py", ".gitattributes", "a.bin", "inference/c.json"})
    EXPECT_FALSE(IsNeeded(name)) << name;
}

}  // namespace
}  // namespace dsv4::hub
