// Any bytes as a file of the prefix cache, as they are and with the hashes that they should have, so that what stands behind the hashes
// is reached too. Reading ends with an error that has a text, or with what the file says and no more.
#include <xxhash.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "engine/prefix_file.h"

namespace dsv4::engine {
namespace {

// Places in the header, as prefix_file.h has them.
constexpr size_t kNumTokensAt = 32;
constexpr size_t kTokensHashAt = 48;
constexpr size_t kHeaderHashAt = 56;
constexpr size_t kHeaderBytes = 64;

// A file in a folder of this process, gone with it.
class Place {
 public:
  Place() {
    std::string pattern = std::filesystem::temp_directory_path() / "dsv4_XXXXXX";
    folder_ = ::mkdtemp(pattern.data());
  }
  ~Place() { std::filesystem::remove_all(folder_); }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  std::string path() const { return folder_ / "file.state"; }

 private:
  std::filesystem::path folder_;
};

const std::string& Path() {
  static const Place place;
  static const std::string path = place.path();
  return path;
}

bool Read(const std::vector<char>& bytes) {
  std::ofstream(Path(), std::ios::binary).write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  const Result<PrefixKey> key = ReadPrefixKey(Path());
  const Result<PrefixContent> content = ReadPrefixFile(Path());
  DSV4_CHECK(key.has_value() == content.has_value());
  if (!content) {
    DSV4_CHECK(!content.error().message().empty() && content.error().code() == key.error().code());
    return false;
  }
  DSV4_CHECK(content->key.tokens == key->tokens && content->key.salt == key->salt);
  const int64_t num_bytes = PrefixFileBytes(static_cast<int64_t>(content->key.tokens.size()),
                                            static_cast<int64_t>(content->snapshot.size()));
  DSV4_CHECK(num_bytes == static_cast<int64_t>(bytes.size())) << num_bytes << " of " << bytes.size();
  return true;
}

void RepairHashes(std::vector<char>& bytes) {
  int64_t num_tokens = 0;
  std::memcpy(&num_tokens, bytes.data() + kNumTokensAt, sizeof num_tokens);
  const auto room = static_cast<int64_t>((bytes.size() - kHeaderBytes) / sizeof(int32_t));
  if (num_tokens >= 0 && num_tokens <= room) {
    const uint64_t hash =
        XXH3_64bits(bytes.data() + kHeaderBytes, static_cast<size_t>(num_tokens) * sizeof(int32_t));
    std::memcpy(bytes.data() + kTokensHashAt, &hash, sizeof hash);
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
