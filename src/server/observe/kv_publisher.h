// KvPublisher: tells routers which blocks of prompts are kept here, as vLLM does (KV events).
//
// A PUB socket sends messages of three parts: the topic, a number of 8 bytes (big-endian, from 0, one more
// each time), and a batch. It is MessagePack: [time, [event], rank]. An event is a map of `type` and these
// members, or an array of the same in this order:
//
// - `BlockStored`: block_hashes, parent_block_hash or nil, token_ids, block_size, lora_id nil, medium, lora_name nil
// - `BlockRemoved`: block_hashes, medium
// - `AllBlocksCleared`
//
// The first is AllBlocksCleared: what a reader knew of an earlier process is gone. A ROUTER socket takes a
// number in 8 bytes behind an empty part. It sends the batches from that number on that are still at hand,
// each as it was published, behind an empty part. The number -1 comes last, with an empty topic and batch.
// Releases of vLLM that have arrays send replays without the topic, and so does the form with arrays. Source:
// vLLM's kv_events.py 0.20 to 0.33 (shared protocol of llm-d, Dynamo and AIBrix).
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/status.h"
#include "engine/kept_blocks.h"

namespace dsv4::server {

struct KvPublisherOptions {
  std::string endpoint;         // "tcp://*:5557"
  std::string replay_endpoint;  // Empty: none.
  std::string topic;
  int64_t block_tokens = 0;
  std::string medium;            // "GPU" or "CPU".
  bool named_members = true;     // Events are maps; false: arrays.
  size_t num_replayed = 10'000;  // Batches that a reader can ask for again.
  int most_unsent =
      100'000;  // Messages for a slow reader. It misses further ones, and sees that by their numbers.
};

class KvPublisher final : public engine::BlockWatcher {
 public:
  // Binds. FailedPrecondition without libzmq; InvalidArgument names the endpoint that cannot be bound.
  static Result<std::unique_ptr<KvPublisher>> Open(KvPublisherOptions options);
  ~KvPublisher() override;

  // As bound, with its port.
  const std::string& endpoint() const;
  const std::string& replay_endpoint() const;
  const std::string& topic() const;
  // The number of the next batch. Any thread.
  uint64_t next_number() const;

  void OnStored(engine::StoredBlocks blocks) override;
  void OnRemoved(std::vector<uint64_t> hashes) override;
  void OnCleared() override;

 private:
  struct Impl;
  explicit KvPublisher(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace dsv4::server
