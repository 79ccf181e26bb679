// Any bytes as a file of the prefix cache, as they are and with right hashes. So the code behind the hashes
// is reached too. Reading ends with an error that has a text, or with the file's content and no more.
#include <fmt/format.h>
#include <xxhash.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/prefix_file.h"
#include "folder.h"

namespace dsv4::engine {
namespace {

// Offsets in the header, as prefix_file.h has them.
constexpr size_t kOriginAt = 16;
constexpr size_t kNumTokensAt = 32;
constexpr size_t kTokensHashAt = 48;
constexpr size_t kHeaderHashAt = 136;
constexpr size_t kHeaderBytes = 144;

// The path whose name the header's fields ask for, so that what stands behind the check of the name is
// reached.
std::string PathOf(const std::vector<char>& bytes) {
  static const testing::Folder folder;
  uint64_t content[4] = {};
  if (bytes.size() >= kHeaderBytes) {
    std::memcpy(content, bytes.data() + kOriginAt, 2 * sizeof(uint64_t));
    std::memcpy(content + 2, bytes.data() + kTokensHashAt, 2 * sizeof(uint64_t));
  }
  const XXH128_hash_t hash = XXH3_128bits(content, sizeof content);
  return fmt::format("{}/{:016x}{:016x}.state", folder.path(), hash.high64, hash.low64);
}

bool Read(const std::vector<char>& bytes) {
  const std::string path = PathOf(bytes);
  std::ofstream(path, std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const Result<PrefixFileHead> head = ReadPrefixFileHead(path);
  const Result<PrefixContent> content = ReadPrefixFile(path);
  std::filesystem::remove(path);
  if (!content) {
    DSV4_CHECK(!content.error().message().empty());
    DSV4_CHECK(head.has_value() || content.error().code() == head.error().code());
    return false;
  }
  DSV4_CHECK(head.has_value());
  DSV4_CHECK(head->origin == content->key.origin && head->salt == content->key.salt);
  DSV4_CHECK(head->num_tokens == static_cast<int64_t>(content->key.tokens.size()));
  const int64_t num_bytes = PrefixFileBytes(head->num_tokens, static_cast<int64_t>(content->snapshot.size()));
  DSV4_CHECK(num_bytes == static_cast<int64_t>(bytes.size())) << num_bytes << " of " << bytes.size();
  DSV4_CHECK(head->num_bytes == num_bytes);
  return true;
}

void RepairHashes(std::vector<char>& bytes) {
  int64_t num_tokens = 0;
  std::memcpy(&num_tokens, bytes.data() + kNumTokensAt, sizeof num_tokens);
  const auto room = static_cast<int64_t>((bytes.size() - kHeaderBytes) / sizeof(int32_t));
  if (num_tokens >= 0 && num_tokens <= room) {
    const XXH128_hash_t hash =
        XXH3_128bits(bytes.data() + kHeaderBytes, static_cast<size_t>(num_tokens) * sizeof(int32_t));
    std::memcpy(bytes.data() + kTokensHashAt, &hash.low64, sizeof hash.low64);
    std::memcpy(bytes.data() + kTokensHashAt + sizeof hash.low64, &hash.high64, sizeof hash.high64);
  }
  const uint64_t hash = XXH3_64bits(bytes.data(), kHeaderHashAt);
  std::memcpy(bytes.data() + kHeaderHashAt, &hash, sizeof hash);
}

}  // namespace
}  // namespace dsv4::engine

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::vector<char> bytes(data, data + size);
  dsv4::engine::Read(bytes);
  if (size < dsv4::engine::kHeaderBytes) return 0;
  dsv4::engine::RepairHashes(bytes);
  dsv4::engine::Read(bytes);
  return 0;
}

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  return dsv4::engine::Read({data, data + size});
}
