// KvPublisher: tells routers which blocks of prompts are kept here, as vLLM does (KV events).
//
// A PUB socket sends messages of three parts: the topic, a number of 8 bytes (big-endian, from 0, one more
// each time), and a batch. It is MessagePack: [time, [event], rank]. An event is an array that begins with
// its name.
// Newer versions of vLLM have maps instead of both: of ts, events, data_parallel_rank, and of type and the
// names below.
//
// - `BlockStored`: block_hashes, parent_block_hash or nil, token_ids, block_size, lora_id nil, medium, lora_name nil
// - `BlockRemoved`: block_hashes, medium
// - `AllBlocksCleared`
//
// The first is AllBlocksCleared: what a reader knew of an earlier process is gone. A ROUTER socket takes a
// number in 8 bytes behind an empty part. It sends the batches from that number on that are still at hand,
// each behind an empty part. The number -1 comes last. Source: vLLM's kv_events.py (shared protocol of llm-d,
// Dynamo and AIBrix).
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
  bool named_members = false;    // Maps instead of arrays.
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
