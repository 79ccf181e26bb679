// StateJournal: what has happened to the states of sequences apart from appends, in order, so that copies of the states in other
// processes can follow. A state's number is its own for ever; a copy (fork, snapshot, restore) gets a new one.
//
// Thread-safe: states may be destroyed on any thread.
#pragma once

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
};

class StateJournal {
 public:
  uint64_t NewNumber() {
    const std::lock_guard lock(mutex_);
    return ++last_number_;
  }
  void Add(const StateEvent& event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(event);
  }
  // What was added since the last call.
  std::vector<StateEvent> Take() {
    const std::lock_guard lock(mutex_);
    return std::exchange(events_, {});
  }

 private:
  std::mutex mutex_;
  uint64_t last_number_ = 0;
  std::vector<StateEvent> events_;
};

// A state's entry in a journal: being made, copied and destroyed are written down where they happen. Without a journal it does
// nothing.
class JournalEntry {
 public:
  JournalEntry() = default;
  explicit JournalEntry(std::shared_ptr<StateJournal> journal) : journal_(std::move(journal)) {
    if (journal_ == nullptr) return;
    number_ = journal_->NewNumber();
    Add({.kind = StateEvent::Kind::kCreated, .state = number_});
  }
  JournalEntry(const JournalEntry& other) : journal_(other.journal_) {
    if (journal_ == nullptr) return;
    number_ = journal_->NewNumber();
    Add({.kind = StateEvent::Kind::kCopied, .state = number_, .source = other.number_});
  }
  JournalEntry(JournalEntry&& other) noexcept
      : journal_(std::move(other.journal_)), number_(std::exchange(other.number_, 0)) {}
  JournalEntry& operator=(JournalEntry other) noexcept {
    std::swap(journal_, other.journal_);
    std::swap(number_, other.number_);
    return *this;
  }
  ~JournalEntry() { Add({.kind = StateEvent::Kind::kDestroyed, .state = number_}); }

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
};

}  // namespace dsv4::kv
