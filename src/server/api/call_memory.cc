// Bounded memory of sampled call texts, restored where arguments mean the same.
#include "server/api/call_memory.h"

#include <algorithm>

#include "chat/json_value.h"

namespace dsv4::server {
namespace {

bool SameArguments(const std::string& a, const std::string& b) {
  if (a == b) return true;
  const Result<chat::JsonValue> left = chat::ReadJson(a, "arguments");
  const Result<chat::JsonValue> right = chat::ReadJson(b, "arguments");
  return left && right && *left == *right;
}

}  // namespace

void CallMemory::Remember(const std::vector<std::string>& ids, const std::vector<chat::ParsedCall>& calls,
                          std::string block) {
  if (ids.empty() || ids.size() != calls.size() || block.empty()) return;
  size_t num_bytes = block.size();
  for (const chat::ParsedCall& call : calls) num_bytes += call.name.size() + call.arguments.size() + 64;
  const std::lock_guard lock(mutex_);
  blocks_.push_front({ids, calls, std::move(block), num_bytes});
  by_first_id_[ids.front()] = blocks_.begin();
  num_bytes_ += num_bytes;
  while (num_bytes_ > max_bytes_) {
    num_bytes_ -= blocks_.back().num_bytes;
    by_first_id_.erase(blocks_.back().ids.front());
    blocks_.pop_back();
  }
}

void CallMemory::Restore(std::vector<chat::Message>& messages) const {
  const std::lock_guard lock(mutex_);
  for (chat::Message& message : messages) {
    if (message.tool_calls.empty()) continue;
    const auto found = by_first_id_.find(message.tool_calls.front().id);
    if (found == by_first_id_.end()) continue;
    const Block& block = *found->second;
    const bool same =
        block.ids.size() == message.tool_calls.size() &&
        std::equal(message.tool_calls.begin(), message.tool_calls.end(), block.calls.begin(),
                   [](const chat::ToolCall& call, const chat::ParsedCall& sampled) {
                     return call.name == sampled.name && SameArguments(call.arguments, sampled.arguments);
                   });
    if (!same) continue;
    message.sampled_calls = block.text;
    blocks_.splice(blocks_.begin(), blocks_, found->second);
  }
}

}  // namespace dsv4::server
