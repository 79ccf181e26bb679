// StateJournal: what has happened to the states of sequences apart from appends, in order, so that copies of
// the states in other processes can follow. A state's number is its own for ever; a copy (fork, snapshot,
// restore) gets a new one.
//
// Thread-safe: states may be destroyed on any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

namespace dsv4::kv {

struct StateEvent {
  enum class Kind : uint8_t { kCreated, kCopied, kRewound, kReset, kFilled, kDestroyed };
  Kind kind = Kind::kCreated;
  uint64_t state = 0;
  uint64_t source = 0;     // kCopied: the state it was copied from. kFilled: the rows' seed.
  int64_t num_tokens = 0;  // kRewound: taken back. kFilled: the new length.
  int64_t place = 0;       // kCreated, kCopied: where its rows are, if ranks divide the states.
};

class StateJournal {
 public:
  // Ranks among which states are divided, each whole to one.
  explicit StateJournal(int num_places = 1) : num_states_(static_cast<size_t>(num_places)) {}

  // The rank with the fewest states, the first of several: where the next should go.
  int FreestPlace() const {
    const std::lock_guard lock(mutex_);
    return static_cast<int>(std::ranges::min_element(num_states_) - num_states_.begin());
  }
  // A state more, or one fewer, is there.
  void Count(int place, int64_t change) {
    const std::lock_guard lock(mutex_);
    num_states_[static_cast<size_t>(place)] += change;
  }
  uint64_t NewNumber() {
    const std::lock_guard lock(mutex_);
    return ++last_number_;
  }
  void Add(const StateEvent& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  // Events since the last call.
  std::vector<StateEvent> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  mutable std::mutex mutex_;
  std::vector<int64_t> num_states_;  // At every rank.
  uint64_t last_number_ = 0;
  std::vector<StateEvent> events_;
};

// A state's entry in a journal: being made, copied and destroyed are written down where they happen. Without
// a journal it does nothing.
class JournalEntry {
 public:
  JournalEntry() = default;
  explicit JournalEntry(std::shared_ptr<StateJournal> journal, int place = 0)
      : journal_(std::move(journal)), place_(place) {
    if (journal_ == nullptr) return;
    number_ = journal_->NewNumber();
    journal_->Count(place_, 1);
    Add({.kind = StateEvent::Kind::kCreated, .state = number_, .place = place_});
  }
  JournalEntry(const JournalEntry& other) : journal_(other.journal_), place_(other.place_) {
    if (journal_ == nullptr) return;
    number_ = journal_->NewNumber();
    journal_->Count(place_, 1);
    Add({.kind = StateEvent::Kind::kCopied, .state = number_, .source = other.number_, .place = place_});
  }
  JournalEntry(JournalEntry&& other) noexcept
      : journal_(std::move(other.journal_)), number_(std::exchange(other.number_, 0)), place_(other.place_) {}
  JournalEntry& operator=(JournalEntry other) noexcept {
    std::swap(journal_, other.journal_);
    std::swap(number_, other.number_);
    std::swap(place_, other.place_);
    return *this;
  }
  ~JournalEntry() {
    if (journal_ != nullptr) journal_->Count(place_, -1);
    Add({.kind = StateEvent::Kind::kDestroyed, .state = number_});
  }

  uint64_t number() const { return number_; }  // 0 without a journal.
  void Rewound(int64_t num_tokens) const {
    Add({.kind = StateEvent::Kind::kRewound, .state = number_, .num_tokens = num_tokens});
  }
  void Filled(int64_t length, uint64_t seed) const {
    Add({.kind = StateEvent::Kind::kFilled, .state = number_, .source = seed, .num_tokens = length});
  }
  void Reset() const { Add({.kind = StateEvent::Kind::kReset, .state = number_}); }

 private:
  void Add(const StateEvent& event) const {
    if (journal_ != nullptr) journal_->Add(event);
  }

  std::shared_ptr<StateJournal> journal_;
  uint64_t number_ = 0;
  int place_ = 0;
};

}  // namespace dsv4::kv
