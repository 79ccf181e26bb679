// EvalProgress: what a person sees while an evaluation works.
#pragma once

#include <fmt/format.h>

#include <cstdint>

#include "apps/terminal/terminal.h"
#include "base/text.h"

namespace dsv4::apps {

class EvalProgress {
 public:
  EvalProgress(bool shown, size_t num_lines) : shown_(shown), num_lines_(static_cast<int64_t>(num_lines)) {}

  // After each step, with the tokens that it read or wrote.
  void AddTokens(int64_t count) {
    num_tokens_ += count;
    Show();
  }
  // After each line of the data.
  void AddLine() {
    ++num_done_;
    Show();
  }

  void Clear() { bar_.Clear(); }

 private:
  void Show() {
    if (shown_)
      bar_.Update(
          num_done_, num_lines_,
          fmt::format("{} of {}, {}", num_done_, Counted(num_lines_, "line"), Counted(num_tokens_, "token")));
  }

  const bool shown_;
  const int64_t num_lines_;
  int64_t num_done_ = 0, num_tokens_ = 0;
  ProgressBar bar_{"evaluating"};
};

}  // namespace dsv4::apps
