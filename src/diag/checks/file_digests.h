// Are the files of a model directory those that their maker published? Compares SHA-256 digests with what is
// recorded beside the files and with the few releases that are known here. A file that differs by one bit is
// found, whatever it holds.
//
// Records that are understood:
//   SHA256SUMS, sha256sums.txt                     lines of `sha256sum`, in the directory
//   .cache/huggingface/download/NAME.metadata      what huggingface_hub leaves: line 2 is the SHA-256 of a large file, the git
//                                                  blob's SHA-1 of a small one
//   a link to .../blobs/HEX                        the same hub's cache: the target is named by that digest
// A record says what the file was when it was made, so only a file that changed since, or arrived damaged, is
// found.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "diag/report/report.h"

namespace dsv4::diag {

struct FileRecord {
  std::string name;    // In the directory.
  std::string digest;  // 64 hex digits: SHA-256; 40: SHA-1 of the git blob.
  std::string source;  // "SHA256SUMS"
};
// The records of a directory, those that name a file that is not there included. Errors: a record that cannot
// be read.
Result<std::vector<FileRecord>> ReadFileRecords(const std::string& directory);

// A finding for a file that differs from its record or is missing, and for a release that is known here whose
// other files differ. Files beyond `max_bytes` in all are left out, the smallest first, and named; 0: no
// limit. Not applicable without a record and without a known file.
Result<CheckReport> CheckFiles(const std::string& directory, int64_t max_bytes);

}  // namespace dsv4::diag
