// LineWriter: lines for a file, pipe or terminal that may be full, closed, gone, or read by no one.
//
// A thread of its own writes. A caller never waits, and no failure reaches it: neither an exception nor
// SIGPIPE. Lines for which there is no room, in the queue or at the far end, are lost and counted. When
// writing works again a line says how many.
#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

namespace dsv4 {

class LineWriter {
 public:
  // Takes `descriptor` over. `name` stands for it where lines were lost.
  LineWriter(int descriptor, std::string_view name);
  // Waits for what is queued, at most a second; a thread that still waits for the far end is left to itself.
  ~LineWriter();
  LineWriter(const LineWriter&) = delete;
  LineWriter& operator=(const LineWriter&) = delete;

  // `text`: whole lines. Any thread.
  void Write(std::string_view text) noexcept;
  // So far.
  int64_t num_lost() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

// Writes all of `text` at once, with neither exception nor SIGPIPE; false where the far end did not take all
// of it. `patience_ms`: for which it waits for a pipe or terminal to have room; negative: for ever.
bool WriteQuietly(int descriptor, std::string_view text, int patience_ms);

}  // namespace dsv4
