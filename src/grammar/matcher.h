// A position in a text that a grammar constrains: which tokens may come next.
//
//   Grammar     what is allowed; made once from a schema, shared, immutable
//   TokenTrie   the vocabulary; made once, shared
//   Matcher     one sequence's state; a value: a copy is a snapshot
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/status.h"
#include "grammar/program.h"
#include "grammar/token_trie.h"

namespace dsv4::grammar {

// Not thread-safe by itself: one sequence, one thread at a time.
class Matcher {
 public:
  // At the beginning of a text. `stop_ids` end it, and are allowed only where it is complete, or where
  // nothing else is.
  Matcher(std::shared_ptr<const Program> grammar, std::shared_ptr<const TokenTrie> trie,
          std::vector<TokenId> stop_ids);

  // Clears `mask` (of at least the tokenizer's ids) and allows the ids that may come next; there is one
  // unless a stop id was accepted. Some ids are left out if the text so far has more than kMaxThreads
  // readings, or tokens end in more than kMaxSteps of them. What is allowed always leads to a complete text.
  void Mask(TokenMask& mask);
  // The same until `deadline`; true once it is whole. Called again with the same mask it goes on, up to the
  // next token that is accepted.
  using TimePoint = std::chrono::steady_clock::time_point;
  bool MaskUntil(TokenMask& mask, TimePoint deadline);

  // Goes on by a token. InvalidArgument when the grammar does not allow it here; nothing changes then.
  Status Accept(TokenId id);
  // The same by text, for a forced or given beginning.
  Status AcceptBytes(std::string_view bytes);

  // Ids of the tokenizer, what a mask is for.
  int64_t num_ids() const { return trie_->num_ids(); }
  // Whether the text so far is whole. It may still be allowed to go on: 12 is a number, and so is 123.
  bool IsComplete() const { return active_.complete; }
  // Whether a stop id was accepted: nothing is allowed any more.
  bool IsFinished() const { return finished_; }
  // Bytes that must come next, whatever is sampled; maybe cut. Not accepted yet. Tokens that cross its end
  // are excluded by writing it: a caller that skips ahead decides that.
  std::string ForcedBytes();
  // The same as tokens, up to `most`: the longest that fit, one after the other. Sampled ones may differ, and
  // spell the same.
  std::vector<TokenId> ForcedTokens(size_t most);
  // How many of the first tokens could be accepted, one after the other. None is.
  size_t CountAllowed(std::span<const TokenId> tokens) const;

  static constexpr size_t kMaxThreads = 1024;
  static constexpr int64_t kMaxSteps = 1'000'000;

 private:
  // Inside a terminal, with what comes after it.
  struct Thread {
    uint32_t dfa;
    uint32_t state;
    uint32_t next;
    uint32_t frame;
    friend auto operator<=>(const Thread& a, const Thread& b) = default;
  };
  struct ActiveSet {
    std::vector<Thread> threads;  // Sorted, each once.
    bool complete = false;
    void Clear() {
      threads.clear();
      complete = false;
    }
  };
  // Stacks of nodes to return to share their lower parts; frame 0 is the empty stack. Equal stacks are one
  // frame.
  struct Frame {
    uint32_t node;
    uint32_t parent;
    uint32_t depth;
    uint32_t count = 0;  // The turn of a kRepeat, from 1; 0: the node is where to return to.
    friend bool operator==(const Frame& a, const Frame& b) = default;
  };
  struct HashFrame {
    size_t operator()(const Frame& frame) const {
      const uint64_t key = (uint64_t{frame.node} << 32 | frame.parent) * 0x9E3779B97F4A7C15ULL;
      return (key ^ key >> 29) + frame.count * 0xBF58476D1CE4E5B9ULL;
    }
  };
  // (node, frame) that a step has entered already.
  class Seen {
   public:
    void Clear();
    bool Insert(uint32_t node, uint32_t frame);  // False when it was there.
    size_t count() const { return count_; }

   private:
    void Grow();
    std::vector<uint64_t> keys_ = std::vector<uint64_t>(64);
    std::vector<uint32_t> stamps_ = std::vector<uint32_t>(64);
    uint32_t now_ = 0;
    size_t count_ = 0;
  };

  uint32_t Push(uint32_t node, uint32_t frame, uint32_t count = 0);
  // Adds the terminals that `node` leads to without a byte.
  void Enter(uint32_t node, uint32_t frame, ActiveSet& out);
  void Step(const ActiveSet& in, uint8_t byte, ActiveSet& out);
  // Steps over all bytes; false, and `reached` is the byte, where none of the readings goes on.
  bool Advance(ActiveSet& set, std::string_view bytes, size_t* reached);
  void ForbidStops(TokenMask& mask) const;
  // How far a mask has come.
  struct Progress {
    bool begun = false;
    bool done = false;
    size_t begin = 0;  // Threads in one state of one terminal, whose
    size_t end = 0;
    std::shared_ptr<const TokenTrie::Fit> fit = nullptr;  // tokens these are; null: not looked at.
    size_t exit = 0;                                      // Index into its exits, up to
    uint32_t node = 0;                                    // this node below it; 0: not begun.
    ActiveSet after = {};                                 // Terminals that may follow.
    int64_t looked_at = 0;                                // Steps left when the time was looked at last.
  };
  // Both go on from progress_; false when the time is over.
  bool MaskGroup(TokenMask& mask, TimePoint deadline);
  bool MaskBelow(uint32_t exit, TokenMask& mask, TimePoint deadline);
  bool IsLate(TimePoint deadline);
  // Forgets stacks that no thread has.
  void DropFrames();

  std::shared_ptr<const Program> grammar_;
  std::shared_ptr<const TokenTrie> trie_;
  std::vector<TokenId> stop_ids_;
  ActiveSet active_;
  bool finished_ = false;
  std::vector<Frame> frames_;
  std::unordered_map<Frame, uint32_t, HashFrame> frame_ids_;

  Progress progress_;
  // Scratch of a call; the nodes and the steps of a mask.
  Seen seen_;
  std::vector<std::pair<uint32_t, uint32_t>> pending_;
  std::vector<ActiveSet> sets_;
  int64_t steps_left_ = 0;
  bool overflowed_ = false;  // Readings were left out.
};

}  // namespace dsv4::grammar
