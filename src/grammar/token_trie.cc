#include "grammar/token_trie.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <string_view>

namespace dsv4::grammar {
namespace {

// Enough for every state of ordinary schemas; what is dropped is made again.
constexpr size_t kMaxCachedBytes = size_t{32} << 20;
// From so many tokens on a bit for each id takes less room than a list.
constexpr size_t kFew = 2048;

}  // namespace

int64_t TokenMask::Count() const {
  int64_t count = 0;
  for (const uint64_t word : words_) count += std::popcount(word);
  return count;
}

Result<std::shared_ptr<const TokenTrie>> TokenTrie::Create(const tokenizer::Tokenizer& tokenizer,
                                                           const Markers& markers) {
  constexpr std::array<char, 3> kMarkerBytes = {static_cast<char>(kThinkEndByte),
                                                static_cast<char>(kCallMarkerByte),
                                                static_cast<char>(kOtherMarkerByte)};
  const auto bytes_of = [&](TokenId id) -> std::string_view {
    const std::string_view bytes = tokenizer.TokenBytes(id);
    if (bytes.empty()) return {};
    if (tokenizer.IsAdded(id)) {
      return {&kMarkerBytes[id == markers.think_end ? 0 : id == markers.dsml ? 1 : 2], 1};
    }
    const bool is_text = std::all_of(bytes.begin(), bytes.end(),
                                     [](char c) { return static_cast<uint8_t>(c) < kThinkEndByte; });
    return is_text ? bytes : std::string_view();
  };
  std::vector<std::pair<std::string_view, TokenId>> sorted;
  const std::shared_ptr<TokenTrie> trie(new TokenTrie());
  trie->bytes_.resize(static_cast<size_t>(tokenizer.num_ids()));
  for (TokenId id = 0; id < tokenizer.num_ids(); ++id) {
    const std::string_view bytes = bytes_of(id);
    if (bytes.empty()) continue;
    trie->bytes_[static_cast<size_t>(id)].assign(bytes.begin(), bytes.end());
    sorted.emplace_back(bytes, id);
  }
  std::sort(sorted.begin(), sorted.end());

  trie->nodes_.push_back({.subtree_end = 0, .first_token = 0, .depth = 0, .byte = 0});
  std::vector<uint32_t> path = {0};  // Nodes from the root to the previous token's.
  std::string_view previous;
  for (const auto& [bytes, id] : sorted) {
    const auto [differs, in_previous] =
        std::mismatch(bytes.begin(), bytes.end(), previous.begin(), previous.end());
    const auto shared = static_cast<size_t>(differs - bytes.begin());
    for (; path.size() > shared + 1; path.pop_back()) {
      trie->nodes_[path.back()].subtree_end = static_cast<uint32_t>(trie->nodes_.size());
    }
    for (size_t i = shared; i < bytes.size(); ++i) {
      path.push_back(static_cast<uint32_t>(trie->nodes_.size()));
      trie->nodes_.push_back({.subtree_end = 0,
                              .first_token = static_cast<uint32_t>(trie->tokens_.size()),
                              .depth = static_cast<uint32_t>(i + 1),
                              .byte = static_cast<uint8_t>(bytes[i])});
    }
    trie->longest_ = std::max(trie->longest_, bytes.size());
    trie->tokens_.push_back(id);
    previous = bytes;
  }
  for (const uint32_t node : path)
    trie->nodes_[node].subtree_end = static_cast<uint32_t>(trie->nodes_.size());
  trie->nodes_.push_back(
      {.subtree_end = 0, .first_token = static_cast<uint32_t>(trie->tokens_.size()), .depth = 0, .byte = 0});

  std::bitset<256> single;
  for (const auto& [bytes, id] : sorted) {
    if (bytes.size() == 1) single.set(static_cast<uint8_t>(bytes[0]));
  }
  // These bytes are in no UTF-8 text.
  for (size_t byte = 0; byte < 256; ++byte) {
    const bool in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    if (in_utf8 && !single[byte]) {
      return Error(
          InvalidArgument(fmt::format("the tokenizer has no token for the byte 0x{:02x} alone", byte)));
    }
  }
  return trie;
}

std::span<const uint8_t> TokenTrie::BytesOf(TokenId id) const {
  if (id < 0 || id >= num_ids()) return {};
  return bytes_[static_cast<size_t>(id)];
}

TokenTrie::Fit TokenTrie::Walk(const Dfa& dfa, uint32_t state) const {
  Fit fit;
  const std::span<const Node> all = nodes();
  std::vector<uint32_t> states = {state};  // By depth.
  for (uint32_t node = 1; node < all.size();) {
    const Node& at = all[node];
    const uint32_t next = dfa.Next(states[at.depth - 1], at.byte);
    if (next == Dfa::kDead) {
      node = at.subtree_end;
      continue;
    }
    states.resize(std::max<size_t>(states.size(), at.depth + 1));
    states[at.depth] = next;
    const std::span<const TokenId> tokens = TokensOf(node);
    fit.few.insert(fit.few.end(), tokens.begin(), tokens.end());
    if (dfa.IsAccepting(next) && at.subtree_end > node + 1) fit.exits.push_back(node);
    ++node;
  }
  if (fit.few.size() > kFew) {
    TokenMask mask(num_ids());
    for (const TokenId id : fit.few) mask.Allow(id);
    fit.many.assign(mask.words().begin(), mask.words().end());
    fit.few.clear();
  }
  fit.few.shrink_to_fit();
  fit.exits.shrink_to_fit();
  return fit;
}

std::shared_ptr<const TokenTrie::Fit> TokenTrie::FitOf(const Dfa& dfa, uint32_t state) const {
  if (longest_ <= Dfa::kAlikeBytes) state = dfa.Alike(state);
  const Key key(dfa.fingerprint(), state);
  {
    const std::lock_guard lock(mutex_);
    if (const auto found = cache_.find(key); found != cache_.end()) return found->second;
  }
  // Two threads may walk for the same state; they find the same.
  auto fit = std::make_shared<const Fit>(Walk(dfa, state));
  const size_t bytes = sizeof(Fit) + 4 * (fit->few.size() + fit->exits.size()) + 8 * fit->many.size();
  const std::lock_guard lock(mutex_);
  if (cached_bytes_ + bytes > kMaxCachedBytes) {
    cache_.clear();
    cached_bytes_ = 0;
  }
  if (cache_.emplace(key, fit).second) cached_bytes_ += bytes;
  return fit;
}

}  // namespace dsv4::grammar
