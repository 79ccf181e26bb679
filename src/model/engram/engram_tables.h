// The rows of n-gram tables, which stay in the pages of the checkpoint's files: a table can be larger than memory. Rows are known before a
// pass (engram_hash.h). So they are asked for first, all at a time, and read when the disk has brought them.
//
// Every row is asked for once, however many tokens have it, and its pages too. What is in memory costs no more than the question. Rows come
// from this machine's files; another rank's memory is no source yet.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/parallel.h"
#include "base/status.h"
#include "formats/weight.h"
#include "io/checkpoint.h"
#include "io/read_ahead.h"

namespace dsv4::model {

// A layer's table: [rows, width] in any stored format, in the files' pages. The release has e4m3 codes with an e8m0 scale for each 32.
struct EngramTable {
  std::string name;  // For errors: "layers.1.engram.embed".
  Weight rows;
};

class EngramTables {
 public:
  // InvalidArgument for a table that is no valid weight, or of another width than the first. `checkpoint` owns the pages; without one,
  // they live as long as this. Tables of a checkpoint whose numbers are made (io::NumberSource) are made here, whole.
  static Result<std::unique_ptr<EngramTables>> Create(std::shared_ptr<const io::Checkpoint> checkpoint,
                                                      std::vector<EngramTable> tables);

  int64_t width() const { return width_; }

  // Has the pages of these rows brought from disk, from now on and in threads of its own. Returns at once.
  void Ask(int table, std::span<const int64_t> rows);
  // values[i]: row rows[i], [width()] of `dtype`, which is BF16 or F32; the release's rows are exact in both. Errors name the table.
  // InvalidArgument: another dtype. OutOfRange: a row that the table does not have.
  // DataLoss: a file that cannot be read any more, a scale or code that is no number.
  Status Read(int table, std::span<const int64_t> rows, ThreadPool& threads, DType dtype,
              std::span<std::byte> values) const;

  // Pages and rows that Ask asked for so far.
  int64_t num_pages_asked() const { return num_pages_asked_; }
  int64_t num_rows_asked() const { return num_rows_asked_; }

 private:
  EngramTables(std::shared_ptr<const io::Checkpoint> checkpoint, std::vector<EngramTable> tables)
      : checkpoint_(std::move(checkpoint)), tables_(std::move(tables)) {}

  std::shared_ptr<const io::Checkpoint> checkpoint_;
  std::vector<EngramTable> tables_;
  int64_t width_ = 0;
  int64_t num_pages_asked_ = 0;
  int64_t num_rows_asked_ = 0;
  io::ReadAhead read_ahead_;  // Ends first: its threads touch the files' pages.
};

}  // namespace dsv4::model
