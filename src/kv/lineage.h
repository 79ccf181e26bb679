// Lineage: which tokens copies of a state have in common, whatever became of the copies since. It follows
// lengths alone, so it is the same on every rank, whether a sequence's rows are there or not.
//
// Every token has a writer. A state is its tokens' writer until it is copied. A copy that goes on is another
// writer, and so is a state that writes rows again that a copy may have.
#pragma once

#include <cstdint>
#include <vector>

namespace dsv4::kv {

class Lineage {
 public:
  Lineage() = default;
  // Makes the lineage of a copy.
  Lineage(const Lineage& other) : parts_(other.parts_), other_writer_(true) { other.seen_ = other.length(); }
  Lineage& operator=(const Lineage&) = delete;
  Lineage(Lineage&&) noexcept = default;
  Lineage& operator=(Lineage&&) noexcept = default;

  // Makes room for the next Extend.
  void Reserve() { parts_.reserve(parts_.size() + 1); }
  // To so many tokens, more than before.
  void Extend(int64_t length);
  // To so many tokens, no more than before.
  void Cut(int64_t length);
  // The first tokens that both have from one writer.
  int64_t CommonWith(const Lineage& other) const;

 private:
  struct Part {
    int64_t end = 0;
    uint64_t writer = 0;
  };
  int64_t length() const { return parts_.empty() ? 0 : parts_.back().end; }

  std::vector<Part> parts_;
  bool other_writer_ = true;  // The next token is of another one than the last.
  mutable int64_t seen_ = 0;  // Copies may have the tokens before.
};

}  // namespace dsv4::kv
