// Search for the first marker in streamed text, and the suffix that may still become one.
#include "chat/marker_set.h"

#include <utility>

namespace dsv4::chat {

void MarkerSet::Add(std::string text, int id) {
  starts_[static_cast<unsigned char>(text[0])] = true;
  markers_.push_back({std::move(text), id});
}

MarkerSet::Scan MarkerSet::Find(std::string_view text, bool at_end) const {
  for (size_t i = 0; i < text.size(); ++i) {
    if (!starts_[static_cast<unsigned char>(text[i])]) continue;
    const std::string_view rest = text.substr(i);
    Scan best{i, 0, -1};
    bool may_grow = false;
    for (const Marker& marker : markers_) {
      if (rest.starts_with(marker.text)) {
        if (marker.text.size() > best.length) best = {i, marker.text.size(), marker.id};
      } else if (std::string_view(marker.text).starts_with(rest)) {
        may_grow = true;
      }
    }
    if (may_grow && !at_end) return {i, 0, -1};
    if (best.length > 0) return best;
  }
  return {text.size(), 0, -1};
}

}  // namespace dsv4::chat
