// CallMemory: the text of tool calls as the model wrote it, by call id. A client sends calls back re-spelled,
// with other blanks in the JSON. They would become other tokens and lose the computed state. With the id the
// exact text is found again.
// Source: chat-encoding.md 3.6.
#pragma once

#include <cstddef>
#include <list>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "chat/completion.h"
#include "chat/message.h"

namespace dsv4::server {

// Thread-safe. Bounded: the least recently used go.
class CallMemory {
 public:
  explicit CallMemory(size_t max_bytes = size_t{64} << 20) : max_bytes_(max_bytes) {}

  // `block` is what CompletionParser::sampled_calls says; `ids` name its calls in order.
  void Remember(const std::vector<std::string>& ids, const std::vector<chat::ParsedCall>& calls,
                std::string block);
  // Gives every assistant message whose calls are those of one block, unchanged in meaning, its text.
  void Restore(std::vector<chat::Message>& messages) const;

 private:
  struct Block {
    std::vector<std::string> ids;
    std::vector<chat::ParsedCall> calls;
    std::string text;
    size_t num_bytes = 0;
  };
  using Blocks = std::list<Block>;

  size_t max_bytes_;
  mutable std::mutex mutex_;
  mutable Blocks blocks_;  // Most recently used first.
  size_t num_bytes_ = 0;
  std::unordered_map<std::string, Blocks::iterator> by_first_id_;
};

}  // namespace dsv4::server
