// KeptBlocks: the prefix store as routers see it, in blocks of tokens, and what changes of it.
//
// A state is kept at any length. The blocks of a store are all whole blocks of the texts that its states
// hold. Block i of a text begins at token i * block_tokens. A block's hash stands for all tokens up to its
// end, and for the salt; so equal beginnings have equal hashes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace dsv4::engine {

// Blocks that follow each other on one path came to the store.
struct StoredBlocks {
  std::vector<uint64_t> hashes;
  bool has_parent = false;
  uint64_t parent = 0;  // The hash of the block in front of the first.
  std::vector<int32_t> tokens;
};

// Sees every change of the store. Called on the engine's thread; must not throw.
class BlockWatcher {
 public:
  virtual ~BlockWatcher() = default;
  virtual void OnStored(StoredBlocks blocks) = 0;
  virtual void OnRemoved(std::vector<uint64_t> hashes) = 0;
  virtual void OnCleared() = 0;
};

// The hash of the block of `tokens`; `before` is that of the block in front of it, and of the first one the
// salt.
uint64_t HashBlock(uint64_t before, std::span<const int32_t> tokens);

}  // namespace dsv4::engine
