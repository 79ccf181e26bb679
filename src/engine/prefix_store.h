// PrefixStore: states of sequences, kept for prompts that begin with the same tokens.
//
// A radix tree over token ids, one per salt. A state is found by the very tokens it holds, never by a hash
// alone, so a hit is a hit. A kept state is whole (kv::SequenceState): a sequence that continues it computes
// the numbers of a cold run. States on one path share the pages of their common beginning, and the budget
// counts shared pages once.
//
// Not thread-safe: used by the thread that runs the engine. States must not outlive their model.
#pragma once

#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "engine/kept_blocks.h"
#include "kv/sequence_state.h"

namespace dsv4::engine {

class PrefixStore {
 public:
  // Keeps at most `max_bytes` of states, of each the bytes on the stage that keeps most of it
  // (model::Model::stage_layouts); 0 keeps nothing. `watcher` is told of blocks of `block_tokens`, and
  // outlives the store; null: there are none.
  PrefixStore(int64_t max_bytes, std::vector<kv::CacheLayout> stages, int64_t block_tokens = 0,
              BlockWatcher* watcher = nullptr);
  ~PrefixStore();
  PrefixStore(PrefixStore&&) noexcept;

  bool enabled() const { return max_bytes_ > 0; }

  // Keeps a copy of `state`, which holds exactly `tokens`. The least recently used go when there is no room.
  // Nothing is kept when it would save less than kMinGain tokens over a kept state of the same path. Nor is
  // it when the state alone is over the budget.
  void Keep(uint64_t salt, std::span<const int32_t> tokens, const kv::SequenceState& state);

  // A state that holds the longest usable proper prefix of `prompt`, or nullopt: the prompt's last token is
  // always computed, its logits are wanted. A kept state that runs a little past the common part is taken
  // back (SequenceState::Rewind).
  std::optional<kv::SequenceState> Find(uint64_t salt, std::span<const int32_t> prompt);

  // How many tokens `prompt` shares with the tokens of any kept state, whether or not a state ends there.
  int64_t SharedLength(uint64_t salt, std::span<const int32_t> prompt) const;

  // Frees the least recently used state; false when there is none.
  bool EvictOne();
  // Frees all.
  void Clear();

  // Hashes of all blocks, ascending: of the texts of the kept states, whatever the watcher was told.
  std::vector<uint64_t> Blocks() const;

  int64_t num_bytes() const { return num_bytes_; }
  int64_t num_states() const { return static_cast<int64_t>(recent_.size()); }
  int64_t num_evictions() const { return num_evictions_; }

  static constexpr int64_t kMinGain = 16;

 private:
  struct Node;
  struct Match;  // Node at which a walk along a prompt ends.

  Match Walk(uint64_t salt, std::span<const int32_t> tokens) const;
  Node& MakeNode(uint64_t salt, std::span<const int32_t> tokens);
  void Touch(Node& node);
  void Evict(Node& node);
  void Prune(Node* node);
  // The bytes that freeing the state gives back, and those of the states below, whose share changes with it.
  void Recount(Node& node);
  void RecountBelow(Node& node);
  std::optional<kv::SequenceState> TakeBack(Node& node, int64_t length);
  // Blocks that end between two lengths of a path, the first excluded.
  int64_t BlocksBetween(int64_t begin, int64_t end) const;
  // The blocks of a new leaf of `tokens` behind the first `common`, which `node` and its ancestors have.
  StoredBlocks NewBlocks(uint64_t salt, std::span<const int32_t> tokens, int64_t common,
                         const Node* node) const;

  // Most bytes of a state of `length` tokens beside one with which it has the first `common` in common.
  int64_t MostBytes(int64_t length, int64_t common) const;

  int64_t max_bytes_;
  int64_t block_tokens_;
  BlockWatcher* watcher_;
  std::vector<kv::CacheLayout> stages_;
  int64_t num_bytes_ = 0;
  int64_t num_evictions_ = 0;
  std::map<uint64_t, std::unique_ptr<Node>> roots_;
  std::list<Node*> recent_;  // Nodes with a state, the most recently used first.
};

}  // namespace dsv4::engine
