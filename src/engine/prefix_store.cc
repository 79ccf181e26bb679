// Radix tree of kept sequence states: longest prefix, take-back by rewind, shared pages counted once, least
// recently used.
#include "engine/prefix_store.h"

#include <xxhash.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"

namespace dsv4::engine {

uint64_t HashBlock(uint64_t before, std::span<const int32_t> tokens) {
  return XXH3_64bits_withSeed(tokens.data(), tokens.size_bytes(), before);
}

struct PrefixStore::Node {
  Node* parent = nullptr;
  std::vector<int32_t> edge;                          // The tokens from the parent to here.
  int64_t depth = 0;                                  // Tokens from the root to here.
  std::map<int32_t, std::unique_ptr<Node>> children;  // By the first token of their edge.
  std::optional<kv::SequenceState> state;             // State after `depth` tokens.
  std::vector<uint64_t> blocks;                       // Hashes of the blocks that end in the edge.
  int64_t num_bytes = 0;
  std::list<Node*>::iterator recent;  // In recent_, when there is a state.

  // The nearest node above with a state, or null.
  Node* Ancestor() const {
    Node* node = parent;
    while (node != nullptr && !node->state) node = node->parent;
    return node;
  }
};

struct PrefixStore::Match {
  Node* node = nullptr;  // The last node reached, or null.
  int64_t length =
      0;  // Tokens in common: node->depth, or more when the walk ends inside the edge to `below`.
  Node* below = nullptr;
};

PrefixStore::PrefixStore(int64_t max_bytes, std::vector<kv::CacheLayout> stages, int64_t block_tokens,
                         BlockWatcher* watcher)
    : max_bytes_(max_bytes),
      block_tokens_(watcher != nullptr ? block_tokens : 0),
      watcher_(watcher),
      stages_(std::move(stages)) {
  DSV4_CHECK(watcher == nullptr || block_tokens > 0) << "a block of " << block_tokens << " tokens";
}
PrefixStore::~PrefixStore() = default;
PrefixStore::PrefixStore(PrefixStore&&) noexcept = default;

PrefixStore::Match PrefixStore::Walk(uint64_t salt, std::span<const int32_t> tokens) const {
  const auto root = roots_.find(salt);
  if (root == roots_.end()) return {};
  Match match = {.node = root->second.get()};
  while (static_cast<size_t>(match.length) < tokens.size()) {
    const std::span<const int32_t> rest = tokens.subspan(static_cast<size_t>(match.length));
    const auto child = match.node->children.find(rest.front());
    if (child == match.node->children.end()) break;
    const std::vector<int32_t>& edge = child->second->edge;
    const auto common =
        std::mismatch(edge.begin(), edge.end(), rest.begin(), rest.end()).first - edge.begin();
    match.length += common;
    if (static_cast<size_t>(common) < edge.size()) {
      match.below = child->second.get();
      break;
    }
    match.node = child->second.get();
  }
  return match;
}

PrefixStore::Node& PrefixStore::MakeNode(uint64_t salt, std::span<const int32_t> tokens) {
  // Memory for each change is there before the change begins, so that a lack of it leaves a tree behind.
  if (!roots_.contains(salt)) roots_.emplace(salt, std::make_unique<Node>());
  Match match = Walk(salt, tokens);
  Node* node = match.node;
  StoredBlocks stored = NewBlocks(salt, tokens, match.length, match.below != nullptr ? match.below : node);
  std::vector<uint64_t> leaf_blocks = stored.hashes;
  if (match.below != nullptr) {  // The edge is split where the tokens part.
    std::unique_ptr<Node>& slot = node->children[match.below->edge.front()];
    auto middle = std::make_unique<Node>();
    const auto cut = match.below->edge.begin() + (match.length - node->depth);
    middle->parent = node;
    middle->edge.assign(match.below->edge.begin(), cut);
    middle->depth = match.length;
    const auto block_cut = match.below->blocks.begin() + BlocksBetween(node->depth, match.length);
    middle->blocks.assign(match.below->blocks.begin(), block_cut);
    std::unique_ptr<Node>& below = middle->children[*cut];
    match.below->edge.erase(match.below->edge.begin(), cut);
    match.below->blocks.erase(match.below->blocks.begin(), block_cut);
    match.below->parent = middle.get();
    below = std::move(slot);
    slot = std::move(middle);
    node = slot.get();
  }
  if (static_cast<size_t>(match.length) < tokens.size()) {
    const std::span<const int32_t> rest = tokens.subspan(static_cast<size_t>(match.length));
    auto leaf = std::make_unique<Node>();
    leaf->parent = node;
    leaf->edge.assign(rest.begin(), rest.end());
    leaf->depth = static_cast<int64_t>(tokens.size());
    leaf->blocks = std::move(leaf_blocks);
    std::unique_ptr<Node>& slot = node->children[rest.front()];
    slot = std::move(leaf);
    node = slot.get();
    if (!stored.hashes.empty()) watcher_->OnStored(std::move(stored));
  }
  return *node;
}

int64_t PrefixStore::BlocksBetween(int64_t begin, int64_t end) const {
  return watcher_ == nullptr ? 0 : end / block_tokens_ - begin / block_tokens_;
}

StoredBlocks PrefixStore::NewBlocks(uint64_t salt, std::span<const int32_t> tokens, int64_t common,
                                    const Node* node) const {
  StoredBlocks stored;
  const auto length = static_cast<int64_t>(tokens.size());
  if (BlocksBetween(common, length) == 0) return stored;
  // The last block in front: on the edge to `node`, of which only a part may be common, or above.
  for (; node != nullptr && !stored.has_parent; node = node->parent) {
    const int64_t begin = node->parent != nullptr ? node->parent->depth : 0;
    const int64_t blocks = BlocksBetween(begin, std::min(common, node->depth));
    if (blocks == 0) continue;
    stored.has_parent = true;
    stored.parent = node->blocks[static_cast<size_t>(blocks - 1)];
  }
  uint64_t before = stored.has_parent ? stored.parent : salt;
  const int64_t first = common / block_tokens_ * block_tokens_;
  for (int64_t begin = first; begin + block_tokens_ <= length; begin += block_tokens_) {
    const auto block = tokens.subspan(static_cast<size_t>(begin), static_cast<size_t>(block_tokens_));
    before = HashBlock(before, block);
    stored.hashes.push_back(before);
    stored.tokens.insert(stored.tokens.end(), block.begin(), block.end());
  }
  return stored;
}

int64_t PrefixStore::MostBytes(int64_t length, int64_t common) const {
  int64_t most = 0;
  for (const kv::CacheLayout& stage : stages_)
    most = std::max(most, kv::StateBytes(stage, length) - kv::WholePageBytes(stage, common));
  return most;
}

void PrefixStore::Touch(Node& node) { recent_.splice(recent_.begin(), recent_, node.recent); }

void PrefixStore::Recount(Node& node) {
  const Node* ancestor = node.Ancestor();
  num_bytes_ -= node.num_bytes;
  node.num_bytes =
      MostBytes(node.depth, ancestor != nullptr ? node.state->CommonLength(*ancestor->state) : 0);
  num_bytes_ += node.num_bytes;
}

void PrefixStore::RecountBelow(Node& node) {
  for (const auto& [token, child] : node.children) {
    if (child->state)
      Recount(*child);
    else
      RecountBelow(*child);
  }
}

void PrefixStore::Keep(uint64_t salt, std::span<const int32_t> tokens, const kv::SequenceState& state) {
  DSV4_CHECK(static_cast<int64_t>(tokens.size()) == state.length())
      << tokens.size() << " tokens, state of " << state.length();
  if (tokens.empty() || MostBytes(state.length(), 0) > max_bytes_) return;
  const Match match = Walk(salt, tokens);
  Node* nearest = match.node;
  while (nearest != nullptr && !nearest->state) nearest = nearest->parent;
  if (state.length() - (nearest != nullptr ? nearest->depth : 0) < kMinGain) {
    if (nearest != nullptr) Touch(*nearest);
    return;
  }
  Result<kv::SequenceState> copy = state.Fork();
  if (!copy) return;  // In the middle of a failed step: nothing worth keeping.
  Node& node = MakeNode(salt, tokens);
  recent_.push_front(&node);
  node.recent = recent_.begin();
  node.state = std::move(*copy);
  Recount(node);
  RecountBelow(node);
  while (num_bytes_ > max_bytes_ && EvictOne()) {
  }
}

std::optional<kv::SequenceState> PrefixStore::TakeBack(Node& node, int64_t length) {
  Result<kv::SequenceState> state = node.state->Fork();
  if (!state || !state->Rewind(node.depth - length).ok()) return std::nullopt;
  Touch(node);
  return std::move(*state);
}

std::optional<kv::SequenceState> PrefixStore::Find(uint64_t salt, std::span<const int32_t> prompt) {
  const Match match = Walk(salt, prompt);
  if (match.node == nullptr) return std::nullopt;
  const int64_t usable = std::min<int64_t>(match.length, static_cast<int64_t>(prompt.size()) - 1);
  if (usable <= 0) return std::nullopt;

  // States that run past the common part by no more than can always be taken back, the shortest first.
  std::vector<Node*> longer;  // On each branch only the first state can be short enough.
  std::vector<Node*> open = {match.below != nullptr ? match.below : match.node};
  while (!open.empty()) {
    Node* node = open.back();
    open.pop_back();
    if (node->depth >= usable && node->state) {
      if (node->depth - usable <= node->state->layout().max_rewind_tokens) longer.push_back(node);
      continue;
    }
    for (const auto& [token, child] : node->children) open.push_back(child.get());
  }
  std::sort(longer.begin(), longer.end(), [](const Node* a, const Node* b) { return a->depth < b->depth; });
  for (Node* node : longer) {
    if (std::optional<kv::SequenceState> state = TakeBack(*node, usable)) return state;
  }
  for (Node* node = match.node; node != nullptr; node = node->parent) {
    if (!node->state || node->depth > usable) continue;
    if (std::optional<kv::SequenceState> state = TakeBack(*node, node->depth)) return state;
  }
  return std::nullopt;
}

int64_t PrefixStore::SharedLength(uint64_t salt, std::span<const int32_t> prompt) const {
  return Walk(salt, prompt).length;
}

bool PrefixStore::EvictOne() {
  if (recent_.empty()) return false;
  Evict(*recent_.back());
  return true;
}

void PrefixStore::Clear() {
  BlockWatcher* const watcher = watcher_;
  if (recent_.empty()) return;
  class Silent final : public BlockWatcher {
    void OnStored(StoredBlocks) override {}
    void OnRemoved(std::vector<uint64_t>) override {}
    void OnCleared() override {}
  } silent;
  if (watcher != nullptr) watcher_ = &silent;
  while (EvictOne()) {
  }
  watcher_ = watcher;
  if (watcher != nullptr) watcher->OnCleared();
}

std::vector<uint64_t> PrefixStore::Blocks() const {
  std::vector<uint64_t> hashes;
  if (watcher_ == nullptr) return hashes;
  for (const Node* node : recent_) {
    uint64_t salt = 0;
    std::vector<int32_t> tokens(static_cast<size_t>(node->depth));
    const Node* at = node;
    for (; at->parent != nullptr; at = at->parent)
      std::copy(at->edge.begin(), at->edge.end(), tokens.begin() + at->parent->depth);
    for (const auto& [root_salt, root] : roots_)
      if (root.get() == at) salt = root_salt;
    uint64_t before = salt;
    const std::span<const int32_t> text = tokens;
    for (int64_t begin = 0; begin + block_tokens_ <= node->depth; begin += block_tokens_) {
      before =
          HashBlock(before, text.subspan(static_cast<size_t>(begin), static_cast<size_t>(block_tokens_)));
      hashes.push_back(before);
    }
  }
  std::ranges::sort(hashes);
  hashes.erase(std::unique(hashes.begin(), hashes.end()), hashes.end());
  return hashes;
}

void PrefixStore::Evict(Node& node) {
  recent_.erase(node.recent);
  num_bytes_ -= node.num_bytes;
  node.num_bytes = 0;
  node.state.reset();
  ++num_evictions_;
  RecountBelow(node);
  Prune(&node);
  // Salts come from outside: an empty tree must not stay.
  std::erase_if(roots_, [](const auto& root) { return root.second->children.empty(); });
}

// Removes nodes that lead nowhere, and joins one that only passes on with its child.
void PrefixStore::Prune(Node* node) {
  while (node->parent != nullptr && !node->state && node->children.empty()) {
    Node* parent = node->parent;
    if (!node->blocks.empty()) watcher_->OnRemoved(std::move(node->blocks));
    parent->children.erase(node->edge.front());
    node = parent;
  }
  if (node->parent == nullptr || node->state || node->children.size() != 1) return;
  std::unique_ptr<Node>& only = node->children.begin()->second;
  try {
    only->edge.reserve(only->edge.size() + node->edge.size());
    only->blocks.reserve(only->blocks.size() + node->blocks.size());
  } catch (const std::bad_alloc&) {
    return;  // Longer by a node, and right.
  }
  only->edge.insert(only->edge.begin(), node->edge.begin(), node->edge.end());
  only->blocks.insert(only->blocks.begin(), node->blocks.begin(), node->blocks.end());
  std::unique_ptr<Node> child = std::move(only);
  child->parent = node->parent;
  const int32_t first = node->edge.front();
  node->parent->children[first] = std::move(child);  // Frees `node`.
}

}  // namespace dsv4::engine
