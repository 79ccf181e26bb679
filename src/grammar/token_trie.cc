// Vocabulary as a byte tree: tokens that fit into a terminal, plain tokens at once, longest prefixes.
#include "grammar/token_trie.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <bitset>
#include <iterator>
#include <set>
#include <string_view>

namespace dsv4::grammar {
namespace {

// Enough for every state of ordinary schemas; what is dropped is made again.
constexpr size_t kMaxCachedBytes = size_t{32} << 20;
// From so many tokens on a bit for each id takes less room than a list.
constexpr size_t kFew = 2048;

// Characters that JSON strings, raw strings and free text all take without a thought.
bool IsPlainAscii(int byte) {
  return byte >= 0x20 && byte < 0x80 && byte != '"' && byte != '\\' && byte != '<';
}

// UTF-8, byte by byte: what may follow where inside a character. State 0 is between characters.
struct Utf8Edge {
  uint8_t from;
  uint8_t first;
  uint8_t last;
  uint8_t to;
};
constexpr Utf8Edge kUtf8Edges[] = {
    {0, 0xC2, 0xDF, 1}, {0, 0xE0, 0xE0, 2}, {0, 0xE1, 0xEC, 3}, {0, 0xED, 0xED, 4}, {0, 0xEE, 0xEF, 3},
    {0, 0xF0, 0xF0, 5}, {0, 0xF1, 0xF3, 6}, {0, 0xF4, 0xF4, 7}, {1, 0x80, 0xBF, 0}, {2, 0xA0, 0xBF, 1},
    {3, 0x80, 0xBF, 1}, {4, 0x80, 0x9F, 1}, {5, 0x90, 0xBF, 3}, {6, 0x80, 0xBF, 3}, {7, 0x80, 0x8F, 3},
};
constexpr size_t kUtf8States = 8;

// The number of characters, if all are plain; 0 otherwise.
size_t PlainChars(std::span<const uint8_t> bytes) {
  size_t chars = 0;
  uint8_t state = 0;
  for (const uint8_t byte : bytes) {
    if (byte < 0x80) {
      if (state != 0 || !IsPlainAscii(byte)) return 0;
    } else {
      const auto* edge = std::find_if(std::begin(kUtf8Edges), std::end(kUtf8Edges), [&](const Utf8Edge& e) {
        return e.from == state && byte >= e.first && byte <= e.last;
      });
      if (edge == std::end(kUtf8Edges)) return 0;
      state = edge->to;
    }
    if (state == 0) ++chars;
  }
  return state == 0 ? chars : 0;
}

// Whether the automaton takes the next plain character, whichever it is.
enum class PlainStep : uint8_t { kNone, kSome, kEvery };

// From any of `states` by one plain character, to `next` (sorted). Where the terminal may end it is kSome:
// that is no plain walk.
PlainStep StepPlain(const Dfa& dfa, const std::vector<uint32_t>& states, std::vector<uint32_t>& next) {
  std::array<std::vector<uint32_t>, kUtf8States> at;
  at[0] = states;
  bool any_live = false;
  bool any_dead = false;
  bool any_end = false;
  const auto step = [&](uint8_t from, int first, int last, uint8_t to) {
    for (const uint32_t state : at[from]) {
      for (int byte = first; byte <= last; ++byte) {
        if (byte < 0x80 && !IsPlainAscii(byte)) continue;
        const uint32_t target = dfa.Next(state, static_cast<uint8_t>(byte));
        any_live = any_live || target != Dfa::kDead;
        any_dead = any_dead || target == Dfa::kDead;
        if (target == Dfa::kDead) continue;
        any_end = any_end || dfa.IsAccepting(target);
        std::vector<uint32_t>& reached = to == 0 ? next : at[to];
        if (reached.empty() || reached.back() != target) reached.push_back(target);
      }
    }
  };
  const auto sort = [](std::vector<uint32_t>& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  };
  step(0, 0x20, 0x7F, 0);
  // States in the order in which characters go through them: 0; then 4 to 7; then 2 and 3; then 1.
  constexpr std::array<uint8_t, kUtf8States> kOrder = {0, 4, 5, 6, 7, 2, 3, 1};
  for (const uint8_t from : kOrder) {
    sort(at[from]);
    for (const Utf8Edge& edge : kUtf8Edges) {
      if (edge.from == from) step(from, edge.first, edge.last, edge.to);
    }
    if (any_end || (any_live && any_dead)) return PlainStep::kSome;
  }
  sort(next);
  return any_live ? PlainStep::kEvery : PlainStep::kNone;
}

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
  trie->SortOutPlainTokens();
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

void TokenTrie::SortOutPlainTokens() {
  std::vector<std::vector<TokenId>> by_chars;
  std::vector<uint8_t> is_rest(nodes_.size(), 0);
  std::vector<uint32_t> path;  // Path of nodes, by depth.
  for (uint32_t node = 0; node < nodes().size(); ++node) {
    path.resize(nodes_[node].depth);
    path.push_back(node);
    for (const TokenId id : TokensOf(node)) {
      const size_t chars = PlainChars(BytesOf(id));
      if (chars > 0) {
        by_chars.resize(std::max(by_chars.size(), chars + 1));
        by_chars[chars].push_back(id);
      } else {
        for (const uint32_t above : path) is_rest[above] = 1;
      }
    }
  }
  for (const std::vector<TokenId>& ids : by_chars) {
    plain_.insert(plain_.end(), ids.begin(), ids.end());
    plain_ends_.push_back(plain_.size());
  }
  is_rest[0] = 1;
  std::vector<uint32_t> index(nodes_.size());  // Index of the first rest node from a node on.
  for (uint32_t node = 0; node < nodes().size(); ++node) {
    index[node] = static_cast<uint32_t>(rest_.size());
    if (is_rest[node] != 0) rest_.push_back({.node = node, .subtree_end = 0});
  }
  index[nodes().size()] = static_cast<uint32_t>(rest_.size());
  for (RestNode& rest : rest_) rest.subtree_end = index[nodes_[rest.node].subtree_end];
}

uint32_t TokenTrie::PlainReach(const Dfa& dfa, uint32_t state) const {
  // All plain texts character by character, as long as they do not tell states apart in whether they go on.
  constexpr size_t kMaxStates = 64;
  std::vector<uint32_t> here = {state};
  std::set<std::vector<uint32_t>> seen;
  for (uint32_t chars = 0; chars + 1 < plain_ends_.size() && seen.insert(here).second; ++chars) {
    std::vector<uint32_t> next;
    const PlainStep step = StepPlain(dfa, here, next);
    if (step == PlainStep::kNone) return chars;
    if (step == PlainStep::kSome || next.size() > kMaxStates) return 0;
    here = std::move(next);
  }
  return kAllPlain;
}

TokenTrie::Fit TokenTrie::Walk(const Dfa& dfa, uint32_t state) const {
  Fit fit;
  const std::span<const Node> all = nodes();
  std::vector<uint32_t> states(longest_ + 1);  // By depth.
  states[0] = state;
  // Whether the walk goes on below `node`.
  const auto visit = [&](uint32_t node, auto&& take) {
    const Node& at = all[node];
    const uint32_t next = dfa.Next(states[at.depth - 1], at.byte);
    if (next == Dfa::kDead) return false;
    states[at.depth] = next;
    for (const TokenId id : TokensOf(node)) take(id);
    if (dfa.IsAccepting(next) && at.subtree_end > node + 1) fit.exits.push_back(node);
    return true;
  };
  const uint32_t reach = PlainReach(dfa, state);
  if (reach > 0) {
    TokenMask mask(num_ids());
    const size_t last = std::min<size_t>(reach, plain_ends_.size() - 1);
    for (size_t i = 0; i < plain_ends_[last]; ++i) mask.Allow(plain_[i]);
    for (uint32_t i = 1; i < rest_.size();) {
      const bool goes_on = visit(rest_[i].node, [&](TokenId id) { mask.Allow(id); });
      i = goes_on ? i + 1 : rest_[i].subtree_end;
    }
    fit.many.assign(mask.words().begin(), mask.words().end());
  } else {
    for (uint32_t node = 1; node < all.size();) {
      const bool goes_on = visit(node, [&](TokenId id) { fit.few.push_back(id); });
      node = goes_on ? node + 1 : all[node].subtree_end;
    }
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

TokenId TokenTrie::LongestPrefix(std::string_view bytes) const {
  TokenId longest = -1;
  uint32_t node = 0;
  for (const char byte : bytes) {
    uint32_t child = node + 1;
    const uint32_t end = nodes_[node].subtree_end;
    while (child < end && nodes_[child].byte != static_cast<uint8_t>(byte)) child = nodes_[child].subtree_end;
    if (child >= end) break;
    node = child;
    if (!TokensOf(node).empty()) longest = TokensOf(node).front();
  }
  return longest;
}

}  // namespace dsv4::grammar
