// Lines of server-sent events, and the data in them.
#include "apps/bench/event_stream.h"

#include <utility>

namespace dsv4::apps {

std::vector<std::string> EventStream::Take(std::string_view piece) {
  std::vector<std::string> events;
  for (size_t end = 0; (end = piece.find('\n')) != std::string_view::npos; piece.remove_prefix(end + 1)) {
    line_ += piece.substr(0, end);
    std::string_view line = line_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    constexpr std::string_view kField = "data:";
    if (line.empty()) {
      if (has_data_) events.push_back(std::exchange(data_, {}));
      has_data_ = false;
    } else if (line.starts_with(kField)) {
      line.remove_prefix(kField.size());
      if (line.starts_with(' ')) line.remove_prefix(1);
      if (has_data_) data_ += '\n';
      data_ += line;
      has_data_ = true;
    }
    line_.clear();
  }
  line_ += piece;
  return events;
}

}  // namespace dsv4::apps
