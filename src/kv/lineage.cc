// Common beginnings of copied states, kept by the writer of each stretch of tokens.
#include "kv/lineage.h"

#include <algorithm>
#include <atomic>

namespace dsv4::kv {
namespace {

uint64_t NewWriter() {
  static std::atomic<uint64_t> last = 0;
  return ++last;
}

}  // namespace

void Lineage::Extend(int64_t length) {
  if (other_writer_) {
    seen_ = this->length();
    parts_.push_back({length, NewWriter()});
    other_writer_ = false;
  } else {
    parts_.back().end = length;
  }
}

void Lineage::Cut(int64_t length) {
  if (length < seen_) other_writer_ = true;
  // The rest is of a writer that may have gone on in another state.
  while (!parts_.empty() && (parts_.size() > 1 ? parts_[parts_.size() - 2].end : 0) >= length) {
    parts_.pop_back();
    other_writer_ = true;
  }
  if (!parts_.empty()) parts_.back().end = std::min(parts_.back().end, length);
}

int64_t Lineage::CommonWith(const Lineage& other) const {
  int64_t common = 0;
  for (size_t i = 0; i < std::min(parts_.size(), other.parts_.size()); ++i) {
    if (parts_[i].writer != other.parts_[i].writer) break;
    common = std::min(parts_[i].end, other.parts_[i].end);
    if (parts_[i].end != other.parts_[i].end) break;
  }
  return common;
}

}  // namespace dsv4::kv
