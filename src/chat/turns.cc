// Merge of messages to turns, tool results sorted by call, and old reasoning dropped.
#include "chat/turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

namespace dsv4::chat {
namespace {

std::vector<UserBlock> BlocksOfUser(const Message& message) {
  if (message.content.kind == Content::Kind::kAbsent && message.content_blocks)
    return *message.content_blocks;
  if (message.content.kind != Content::Kind::kParts) return {{"text", message.content, ""}};
  std::vector<UserBlock> blocks;
  for (const ContentPart& part : message.content.parts) blocks.push_back({part.type, Content(part.text), ""});
  if (blocks.empty()) blocks.push_back({"text", Content(""), ""});
  return blocks;
}

void Merge(std::span<const Message> messages, std::string_view what, bool is_context,
           std::vector<Turn>& turns) {
  // A turn of another list is never merged into.
  const size_t first = turns.size();
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    const bool is_tool = message.role == Role::kTool;
    if (is_tool || message.role == Role::kUser) {
      std::vector<UserBlock> blocks;
      if (is_tool) {
        blocks.push_back({"tool_result", message.content, message.tool_call_id});
      } else {
        blocks = BlocksOfUser(message);
      }
      const bool follows_user = turns.size() > first && turns.back().role == Role::kUser;
      if (follows_user && (is_tool || turns.back().task == nullptr)) {
        std::move(blocks.begin(), blocks.end(), std::back_inserter(turns.back().blocks));
        continue;
      }
      Turn& turn = turns.emplace_back();
      turn.blocks = std::move(blocks);
      if (!is_tool && message.task) turn.task = &*message.task;
    } else {
      Turn& turn = turns.emplace_back();
      turn.role = message.role;
      if (message.task) turn.task = &*message.task;
    }
    turns.back().message = &message;
    turns.back().is_context = is_context;
    turns.back().name = message.label.empty() ? fmt::format("{}[{}]", what, i) : message.label;
  }
}

void SortToolResults(std::vector<Turn>& turns) {
  std::map<std::string_view, size_t> position;
  for (Turn& turn : turns) {
    if (turn.role == Role::kAssistant && !turn.message->tool_calls.empty()) {
      position.clear();
      for (size_t i = 0; i < turn.message->tool_calls.size(); ++i) {
        const std::string& id = turn.message->tool_calls[i].id;
        if (!id.empty()) position[id] = i;
      }
    } else if (turn.role == Role::kUser && !position.empty()) {
      std::vector<size_t> slots;
      std::vector<UserBlock> results;
      for (size_t i = 0; i < turn.blocks.size(); ++i) {
        if (turn.blocks[i].type != "tool_result") continue;
        slots.push_back(i);
        results.push_back(turn.blocks[i]);
      }
      const auto rank = [&](const UserBlock& block) {
        const auto found = position.find(block.tool_call_id);
        return found == position.end() ? size_t{0} : found->second;
      };
      std::stable_sort(results.begin(), results.end(),
                       [&](const UserBlock& a, const UserBlock& b) { return rank(a) < rank(b); });
      for (size_t i = 0; i < slots.size(); ++i) turn.blocks[slots[i]] = std::move(results[i]);
    }
  }
}

int LastUser(const ChatProfile& profile, const std::vector<Turn>& turns) {
  for (size_t i = turns.size(); i-- > 0;) {
    if (turns[i].IsQuestion(profile)) return static_cast<int>(i);
  }
  return -1;
}

}  // namespace

Conversation MakeTurns(const ChatProfile& profile, std::span<const Message> context,
                       std::span<const Message> messages, bool thinking, bool drop_thinking) {
  Conversation conversation;
  std::vector<Turn>& turns = conversation.turns;
  Merge(context, "context", true, turns);
  Merge(messages, "messages", false, turns);
  SortToolResults(turns);

  // A merged user turn has no tools of its own, whatever its messages said. An update of tools is none.
  const bool has_tools = std::any_of(turns.begin(), turns.end(), [&](const Turn& turn) {
    const bool updates = profile.system_turns && turn.role == Role::kSystem;
    return turn.role != Role::kUser &&
           (!turn.message->request_tools.empty() || (!updates && !turn.message->tools.empty()));
  });
  conversation.drops_thinking = drop_thinking && !has_tools;
  if (thinking && conversation.drops_thinking) {
    const int last_user = LastUser(profile, turns);
    std::vector<Turn> kept;
    for (int i = 0; i < static_cast<int>(turns.size()); ++i) {
      Turn& turn = turns[static_cast<size_t>(i)];
      // The reasoning of what is kept goes too; the renderer leaves it out by position.
      if (i < last_user && (turn.role == Role::kDeveloper || turn.role == Role::kOther)) continue;
      kept.push_back(std::move(turn));
    }
    turns = std::move(kept);
  }
  conversation.last_user = LastUser(profile, turns);
  return conversation;
}

}  // namespace dsv4::chat
