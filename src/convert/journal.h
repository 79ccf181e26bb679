// The record of an interrupted conversion: which units are done, and hashes of what they read and wrote.
//
// A text file of JSON lines: first what is being converted and how, then one line for each finished unit.
// Lines are appended whole; one that a crash cut short is dropped. Nothing is believed for being written
// here: a run that resumes compares the hashes with the files.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "base/status.h"
#include "convert/recode.h"

namespace dsv4::convert {

struct JournalIdentity {
  std::string source;   // Fingerprint of config and headers.
  std::string options;  // Everything the output depends on beside the source, readable.
};

struct UnitRecord {
  size_t unit = 0;
  uint64_t source_hash = 0;
  uint64_t output_hash = 0;
  std::vector<Comparison> comparisons;  // One for each linear of the unit.
};

class Journal {
 public:
  // Creates the journal, or reads the one that is there. FailedPrecondition: it belongs to another source or
  // other options (says which). Unavailable: another process is using it. InvalidArgument: not a journal of ours.
  static Result<Journal> Open(const std::string& path, const JournalIdentity& identity);

  Journal(Journal&& other) noexcept;
  Journal& operator=(Journal&& other) noexcept;
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;
  ~Journal();

  // By unit; what was there when the journal was opened.
  const std::map<size_t, UnitRecord>& records() const { return records_; }
  Status Append(const UnitRecord& record);

 private:
  Journal(std::string path, int descriptor) : path_(std::move(path)), descriptor_(descriptor) {}
  Status AppendLine(std::string line);

  std::string path_;
  int descriptor_ = -1;  // Locked for as long as it is open.
  std::map<size_t, UnitRecord> records_;
};

}  // namespace dsv4::convert
