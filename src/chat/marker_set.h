// Finds the first of several marker strings in a text that arrives in pieces. It also says how much of the
// text so far may still become a marker.
#pragma once

#include <array>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4::chat {

class MarkerSet {
 public:
  // `id` is what a match reports; several strings may share one. No string is empty.
  void Add(std::string text, int id);

  struct Scan {
    size_t plain = 0;   // bytes from the start that belong to no marker, whatever follows
    size_t length = 0;  // of the marker that stands at `plain`; 0: none is complete
    int id = -1;
  };
  // The leftmost marker, the longest at that position. When a marker may still begin or grow at `plain`,
  // length is 0 and the bytes from there must be kept for the next call. With `at_end` nothing follows and
  // nothing is kept. The answer does not depend on how the text was cut.
  Scan Find(std::string_view text, bool at_end) const;

 private:
  struct Marker {
    std::string text;
    int id;
  };
  std::vector<Marker> markers_;
  std::array<bool, 256> starts_{};
};

}  // namespace dsv4::chat
