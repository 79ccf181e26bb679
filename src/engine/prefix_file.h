// PrefixFile: one kept state on disk, with the tokens it holds.
//
// A file is complete or absent: it is written under another name, flushed to the disk, and renamed. All numbers are little-endian:
//
// | offset | bytes | field                                                                       |
// | 0      | 8     | magic "DSV4PRFX"                                                            |
// | 8      | 4     | version, 1                                                                  |
// | 12     | 4     | header bytes, 64                                                            |
// | 16     | 8     | origin: the state's producer (PrefixOrigin)                                 |
// | 24     | 8     | salt: which keys may use it                                                 |
// | 32     | 8     | number of tokens                                                            |
// | 40     | 8     | bytes of the snapshot                                                       |
// | 48     | 8     | XXH3-64 of the tokens                                                       |
// | 56     | 8     | XXH3-64 of bytes 0 .. 55                                                    |
// | 64     |       | tokens, int32 each; then the snapshot (kv/snapshot.h), which has its own hash |
//
// Names are the content's: XXH3-128 of origin, salt and tokens, in hexadecimal, and ".state".
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace dsv4::engine {

struct PrefixKey {
  uint64_t origin = 0;
  uint64_t salt = 0;
  std::vector<int32_t> tokens;
};

std::string PrefixFileName(uint64_t origin, uint64_t salt, std::span<const int32_t> tokens);
// Whether `name` could be one of PrefixFileName.
bool IsPrefixFileName(const std::string& name);
// Under which a file of that name is written, and left behind by a process that was killed.
std::string UnfinishedName(const std::string& name);
bool IsUnfinishedName(const std::string& name);

int64_t PrefixFileBytes(int64_t num_tokens, int64_t num_snapshot_bytes);

// Creates `directory`/`name`, or replaces it. Unavailable with the system's reason; nothing is left behind then.
Status WritePrefixFile(const std::string& directory, const std::string& name, const PrefixKey& key,
                       std::span<const std::byte> snapshot);

// Reads the header and the tokens, and checks both and the file's length. NotFound when there is no file; Unavailable when it cannot
// be read; DataLoss for what no WritePrefixFile has written; Unimplemented for another version.
Result<PrefixKey> ReadPrefixKey(const std::string& path);

struct PrefixContent {
  PrefixKey key;
  std::vector<std::byte> snapshot;  // Not checked: kv::Snapshot::Deserialize does that.
};

// The whole file. The errors of ReadPrefixKey.
Result<PrefixContent> ReadPrefixFile(const std::string& path);

}  // namespace dsv4::engine
