// The conversation after the encoder's first steps: tool results merged into user turns and put in call
// order, old reasoning dropped. Internal to the renderer. Source: chat-encoding.md 2.2 to 2.4.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "chat/message.h"
#include "chat/profile.h"

namespace dsv4::chat {

// Borrows from the messages it was made of.
struct Turn {
  const Message* message = nullptr;  // the first message of a merged turn
  Role role = Role::kUser;
  std::vector<UserBlock> blocks;  // role kUser
  const std::string* task = nullptr;
  bool is_context = false;
  std::string name;  // "messages[3]", for errors

  // Whether an answer belongs behind it, and past reasoning ends at it.
  bool IsQuestion(const ChatProfile& profile) const {
    return role == Role::kUser || role == Role::kDeveloper || (profile.system_turns && role == Role::kSystem);
  }
};

struct Conversation {
  std::vector<Turn> turns;
  int last_user = -1;           // the last question
  bool drops_thinking = false;  // dropping is asked for and no turn carries tools
};

Conversation MakeTurns(const ChatProfile& profile, std::span<const Message> context,
                       std::span<const Message> messages, bool thinking, bool drop_thinking);

}  // namespace dsv4::chat
