// Elements 0 to n - 1 in groups that are split again and again: what automata are minimised with.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <utility>
#include <vector>

namespace dsv4::grammar {

class Partition {
 public:
  // All elements in one group.
  explicit Partition(uint32_t num_elements)
      : elements_(num_elements), index_(num_elements), group_(num_elements) {
    std::iota(elements_.begin(), elements_.end(), 0);
    std::iota(index_.begin(), index_.end(), 0);
    groups_.push_back({0, num_elements, 0});
  }

  uint32_t num_groups() const { return static_cast<uint32_t>(groups_.size()); }
  uint32_t group_of(uint32_t element) const { return group_[element]; }
  uint32_t size(uint32_t group) const { return groups_[group].end - groups_[group].begin; }
  // The elements of a group, until the next Mark.
  const uint32_t* begin(uint32_t group) const { return elements_.data() + groups_[group].begin; }
  const uint32_t* end(uint32_t group) const { return elements_.data() + groups_[group].end; }

  // Constant time. Marking twice is marking once.
  void Mark(uint32_t element) {
    Group& group = groups_[group_[element]];
    const uint32_t border = group.begin + group.marked;
    if (index_[element] < border) return;
    if (group.marked++ == 0) touched_.push_back(group_[element]);
    std::swap(elements_[index_[element]], elements_[border]);
    std::swap(index_[elements_[index_[element]]], index_[element]);
  }

  // Makes a group of the marked elements of each group that has others too, and forgets the marks. Calls
  // on_split(the group with the others, which keeps its number, the new one). The time is that of the marks.
  template <typename OnSplit>
  void SplitMarked(const OnSplit& on_split) {
    for (const uint32_t kept : touched_) {
      const uint32_t begin = groups_[kept].begin;
      const uint32_t border = begin + std::exchange(groups_[kept].marked, 0);
      if (border == groups_[kept].end) continue;
      const uint32_t made = num_groups();
      groups_.push_back({begin, border, 0});
      groups_[kept].begin = border;
      for (uint32_t i = begin; i < border; ++i) group_[elements_[i]] = made;
      on_split(kept, made);
    }
    touched_.clear();
  }

 private:
  struct Group {
    uint32_t begin;  // In elements_; the marked ones stand first.
    uint32_t end;
    uint32_t marked;
  };
  std::vector<uint32_t> elements_;
  std::vector<uint32_t> index_;  // By element, in elements_.
  std::vector<uint32_t> group_;  // By element.
  std::vector<Group> groups_;
  std::vector<uint32_t> touched_;  // Groups with marks.
};

}  // namespace dsv4::grammar
