// Trie of added tokens, and their leftmost-longest matches in a text.
#include "tokenizer/added_tokens.h"

#include <algorithm>

namespace dsv4::tokenizer {

AddedTokenMatcher::Trie::Trie() : id_of_node_{-1} {}

void AddedTokenMatcher::Trie::Insert(std::string_view text, TokenId id) {
  is_first_byte_[static_cast<uint8_t>(text[0])] = true;
  uint32_t node = 0;
  for (const char c : text) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<uint8_t>(c);
    const auto [it, is_new] = edges_.emplace(edge, static_cast<uint32_t>(id_of_node_.size()));
    if (is_new) id_of_node_.push_back(-1);
    node = it->second;
  }
  id_of_node_[node] = id;
}

std::optional<AddedTokenMatch> AddedTokenMatcher::Trie::FindFirst(std::string_view text,
                                                                  ByteRange range) const {
  for (size_t begin = range.begin; begin < range.end; ++begin) {
    if (!is_first_byte_[static_cast<uint8_t>(text[begin])]) continue;
    std::optional<AddedTokenMatch> longest;
    uint32_t node = 0;
    for (size_t i = begin; i < range.end; ++i) {
      const auto it = edges_.find(uint64_t{node} << 8 | static_cast<uint8_t>(text[i]));
      if (it == edges_.end()) break;
      node = it->second;
      if (id_of_node_[node] >= 0) longest = AddedTokenMatch{{begin, i + 1}, id_of_node_[node]};
    }
    if (longest) return longest;
  }
  return std::nullopt;
}

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens)
    (token.normalized ? normalized_ : raw_).Insert(token.content, token.id);
}

std::vector<AddedTokenMatch> AddedTokenMatcher::FindAll(std::string_view text,
                                                        const std::vector<ByteRange>& regions) const {
  std::vector<AddedTokenMatch> matches;
  std::vector<ByteRange> open = regions;
  for (const Trie* trie : {&raw_, &normalized_}) {
    if (trie->empty()) continue;
    std::vector<ByteRange> still_open;
    for (ByteRange range : open) {
      while (const auto match = trie->FindFirst(text, range)) {
        matches.push_back(*match);
        if (match->range.begin > range.begin) still_open.push_back({range.begin, match->range.begin});
        range.begin = match->range.end;
      }
      if (range.end > range.begin) still_open.push_back(range);
    }
    open = std::move(still_open);
  }
  std::sort(matches.begin(), matches.end(),
            [](const AddedTokenMatch& a, const AddedTokenMatch& b) { return a.range.begin < b.range.begin; });
  return matches;
}

}  // namespace dsv4::tokenizer
