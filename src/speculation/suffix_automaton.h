// SuffixAutomaton: every substring of a text that grows token by token, in memory and time proportional to
// its length (Blumer et al. 1985). It knows the longest end of the text that occurs earlier in it too, and
// where.
//
// About 100 bytes a token. One thread at a time; texts of up to 2^30 tokens.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsv4::speculation {

class SuffixAutomaton {
 public:
  SuffixAutomaton();

  // Amortised constant time.
  void Append(int32_t token);

  std::span<const int32_t> text() const { return text_; }

  // The last `length` tokens are also the `length` tokens in front of text()[end]. That occurrence is a
  // recent one: the latest unless the repeated ends of many lengths nest. A length of 0: the last token has
  // not occurred before.
  struct Repeat {
    int64_t length = 0;
    int64_t end = 0;  // Less than text().size() where length > 0.
  };
  Repeat LongestRepeat() const { return repeat_; }

 private:
  struct State {
    int32_t length;     // Length of its longest substring.
    int32_t link;       // The state of the longest suffix with other ends; -1: none.
    int32_t end;        // Behind an occurrence of its substrings.
    int32_t last_edge;  // -1: none.
  };
  struct Edge {
    int32_t state;
    int32_t token;
    int32_t target;
    int32_t previous;  // Link to the previous edge of the same state.
  };

  int32_t NewState(int32_t length, int32_t link, int32_t end);
  // Its number in edges_, or -1.
  int32_t FindEdge(int32_t state, int32_t token) const;
  void AddEdge(int32_t state, int32_t token, int32_t target);
  size_t SlotOf(int32_t state, int32_t token) const;
  void GrowSlots();

  std::vector<int32_t> text_;
  std::vector<State> states_;
  std::vector<Edge> edges_;
  std::vector<int32_t> slots_;  // Open addressing, a power of two: numbers of edges, -1 where free.
  int32_t last_ = 0;            // The state of the whole text.
  Repeat repeat_;
};

}  // namespace dsv4::speculation
