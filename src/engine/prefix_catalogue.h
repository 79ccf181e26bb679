// PrefixCatalogue: which states a directory of prefix files holds, in an SQLite database beside them: what a start would otherwise
// have to open every file for, and when each was last used.
//
// The files are the truth. Open brings both into agreement, whatever a killed process, a full disk or a hand has left: rows without
// a file go, files without a row are read and entered, what is damaged or unfinished is removed, and a damaged database is made anew.
// A directory is used by one process at a time.
//
// Thread-safe; every call may wait for the disk.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"

namespace dsv4::engine {

// Tokens by which a state that is read back can be taken back: a thinking turn's prompt ends with one token that the next turn
// has not. More would cost rows in every file.
inline constexpr int64_t kDiskRewindTokens = 8;

// PrefixHashes[i] is the hash of a state's tokens without the last i.
using PrefixHashes = std::array<uint64_t, kDiskRewindTokens + 1>;
PrefixHashes HashPrefixes(uint64_t salt, std::span<const int32_t> tokens);

struct CataloguedState {
  std::string name;  // PrefixFileName.
  uint64_t origin = 0;
  uint64_t salt = 0;
  int64_t num_tokens = 0;  // More than kDiskRewindTokens.
  int64_t num_bytes = 0;   // Of the file.
  PrefixHashes hashes = {};
};

class PrefixCatalogue {
 public:
  // What Open found and did, for one line of the log.
  struct Findings {
    int64_t num_damaged = 0;     // Files that were removed.
    int64_t num_unfinished = 0;  // Left behind by a killed process, removed.
    int64_t num_adopted = 0;     // Files without a row.
    int64_t num_missing = 0;     // Rows without a file.
    int64_t num_foreign = 0;     // Names that are not ours, left alone.
    bool rebuilt = false;        // The database was damaged, or of another version.
  };

  // Creates the directory (0700) when it is missing. FailedPrecondition when another process uses it; Unavailable with the
  // system's reason.
  static Result<std::unique_ptr<PrefixCatalogue>> Open(const std::string& directory);
  ~PrefixCatalogue();
  PrefixCatalogue(const PrefixCatalogue&) = delete;
  PrefixCatalogue& operator=(const PrefixCatalogue&) = delete;

  const Findings& findings() const { return findings_; }
  // 32 random bytes that were drawn when the directory was made, readable by its owner alone.
  const std::string& secret() const { return secret_; }
  // Where the prefix files are.
  const std::string& files() const { return files_; }

  Result<std::vector<CataloguedState>> All() const;
  // Enters a state whose file is written, as used just now.
  Status Add(const CataloguedState& state);
  Status Touch(const std::string& name);
  // Removes file and row; neither need be there.
  Status Remove(const std::string& name);
  // The least recently used state; NotFound when there is none.
  Result<CataloguedState> Oldest() const;

 private:
  struct Database;
  PrefixCatalogue();
  Status LockDirectory(const std::string& directory);
  Status ReadSecret(const std::string& path);
  Status OpenDatabase(const std::string& path);
  Status Reconcile();
  Status AdoptFile(const std::string& name, int64_t num_bytes);

  std::unique_ptr<Database> database_;
  int lock_fd_ = -1;
  std::string files_;
  std::string secret_;
  Findings findings_;
};

}  // namespace dsv4::engine
