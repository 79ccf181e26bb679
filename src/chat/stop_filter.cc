// Filter that holds back what may become a stop string, and cuts the text where one is whole.
#include "chat/stop_filter.h"

#include <algorithm>
#include <utility>

namespace dsv4::chat {

StopFilter::StopFilter(std::vector<std::string> stops) : stops_(std::move(stops)) {
  std::erase_if(stops_, [](const std::string& stop) { return stop.empty(); });
}

bool StopFilter::Feed(std::string_view text, std::string& out) {
  held_ += text;
  if (stops_.empty() || !active_) {
    Flush(out);
    return false;
  }
  size_t start = std::string::npos;
  size_t end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    if (at + stop.size() < end || (at + stop.size() == end && at < start)) {
      start = at;
      end = at + stop.size();
      found_ = stop;
    }
  }
  if (start != std::string::npos) {
    out.append(held_, 0, start);
    held_.clear();
    return true;
  }
  const std::string_view held = held_;
  size_t keep = 0;
  for (const std::string& stop : stops_) {
    for (size_t size = std::min(stop.size() - 1, held.size()); size > keep; --size) {
      if (held.ends_with(std::string_view(stop).substr(0, size))) keep = size;
    }
  }
  out.append(held_, 0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return false;
}

void StopFilter::Flush(std::string& out) {
  out += held_;
  held_.clear();
}

}  // namespace dsv4::chat
