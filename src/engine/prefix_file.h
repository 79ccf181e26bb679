// PrefixFile: one kept state on disk, with the tokens it holds.
//
// A file is complete or absent: it is written under another name, flushed to the disk, and renamed. All
// numbers are little-endian:
//
// | offset | bytes | field                                                                         |
// | 0      | 8     | magic "DSV4PRFX"                                                              |
// | 8      | 4     | version, 2                                                                    |
// | 12     | 4     | header bytes, 144                                                             |
// | 16     | 8     | origin: the state's producer (model::Model::Origin)                           |
// | 24     | 8     | salt: which keys may use it                                                   |
// | 32     | 8     | number of tokens                                                              |
// | 40     | 8     | bytes of the snapshot                                                         |
// | 48     | 16    | XXH3-128 of the tokens, low half first                                        |
// | 64     | 72    | PrefixHashes of salt and tokens                                               |
// | 136    | 8     | XXH3-64 of bytes 0 .. 135                                                     |
// | 144    |       | tokens, int32 each; then the snapshot (kv/snapshot.h), which has its own hash |
//
// Names are the content's: XXH3-128 of origin, salt and tokens, in hexadecimal, and ".state".
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dsv4::engine {

// Tokens by which a state that is read back can be taken back. A thinking turn's prompt ends with one token
// that the next turn has not. More would cost rows in every file.
inline constexpr int64_t kDiskRewindTokens = 8;

// PrefixHashes[i] is the hash of a state's tokens without the last i. Zeros for a state of kDiskRewindTokens
// or less, which is not used.
using PrefixHashes = std::array<uint64_t, kDiskRewindTokens + 1>;
PrefixHashes HashPrefixes(uint64_t salt, std::span<const int32_t> tokens);

// Hashes of ever longer beginnings of one list of tokens, which outlives this, as HashPrefixes has them.
class PrefixHasher {
 public:
  PrefixHasher(uint64_t salt, std::span<const int32_t> tokens);
  ~PrefixHasher();
  PrefixHasher(const PrefixHasher&) = delete;
  PrefixHasher& operator=(const PrefixHasher&) = delete;
  // `length` is at least that of the call before.
  uint64_t At(int64_t length);

 private:
  struct State;
  std::unique_ptr<State> state_;
  std::span<const int32_t> tokens_;
  int64_t length_ = 0;
};

struct PrefixKey {
  uint64_t origin = 0;
  uint64_t salt = 0;
  std::vector<int32_t> tokens;
};

// A file by its header.
struct PrefixFileHead {
  std::string name;  // PrefixFileName of its key.
  uint64_t origin = 0;
  uint64_t salt = 0;
  int64_t num_tokens = 0;
  int64_t num_bytes = 0;  // The file's.
  PrefixHashes hashes = {};
};

std::string PrefixFileName(uint64_t origin, uint64_t salt, std::span<const int32_t> tokens);
// Whether `name` could be one of PrefixFileName.
bool IsPrefixFileName(const std::string& name);
// Whether a file of that name is being written, or was left behind by a process that was killed. It has the
// name that it was to have, and a number of its writer's.
bool IsUnfinishedName(const std::string& name);
bool IsUnfinishedNameOf(const std::string& name, const std::string& prefix_file_name);
// Whether the writer of the unfinished file at `path` is dead: its lock can be had.
bool IsAbandoned(const std::string& path);

int64_t PrefixFileBytes(int64_t num_tokens, int64_t num_snapshot_bytes);

// A file that is being written, which no server takes for a state. While this lives the process holds a lock
// (flock) on it, which a process that dies loses. So an unfinished file that can be locked has no writer.
// Unless it is finished it is removed.
class UnfinishedPrefixFile {
 public:
  // Creates one of that size in `directory`, so that others see what it will take. NotFound where the
  // directory is missing; Unavailable with the system's reason.
  static Result<UnfinishedPrefixFile> Create(const std::string& directory, const std::string& name,
                                             int64_t num_bytes);
  UnfinishedPrefixFile(UnfinishedPrefixFile&& other) noexcept
      : directory_(other.directory_),
        path_(other.path_),
        name_(other.name_),
        num_bytes_(other.num_bytes_),
        fd_(std::exchange(other.fd_, -1)) {}
  UnfinishedPrefixFile& operator=(UnfinishedPrefixFile&&) = delete;
  ~UnfinishedPrefixFile();

  // Writes the content to the disk, as used at `used` (nanoseconds). Once.
  Status Write(const PrefixKey& key, std::span<const std::byte> snapshot, int64_t used);
  // Gives the written file its name, and ends the lock. Once.
  Status Finish();

 private:
  UnfinishedPrefixFile(std::string directory, std::string path, std::string name, int64_t num_bytes, int fd)
      : directory_(std::move(directory)),
        path_(std::move(path)),
        name_(std::move(name)),
        num_bytes_(num_bytes),
        fd_(fd) {}

  std::string directory_;
  std::string path_;
  std::string name_;
  int64_t num_bytes_ = 0;
  int fd_ = -1;
};

// Reads and checks the header, the file's length and its name. NotFound when there is no file; Unavailable
// when it cannot be read; DataLoss for what no Finish has written; Unimplemented for another version.
Result<PrefixFileHead> ReadPrefixFileHead(const std::string& path);

struct PrefixContent {
  PrefixKey key;
  std::vector<std::byte> snapshot;  // Not checked: kv::Snapshot::Deserialize does that.
};

// The whole file; its tokens are checked too. The errors of ReadPrefixFileHead.
Result<PrefixContent> ReadPrefixFile(const std::string& path);

}  // namespace dsv4::engine
