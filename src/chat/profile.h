// Differences between the wire revisions of the chat format of V4 and V4.1, as one object. It has markers,
// DSML tag names, tasks, the effort table and rules of rendering. The renderer and both parsers write and
// recognise nothing that is not named here.
// Source: chat-encoding.md sections 0, 1, 2.6 and 2.9.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"

namespace dsv4::chat {

enum class ThinkingMode : unsigned char { kChat, kThinking };

// A reasoning effort the encoder knows, and the text it puts in front of the prompt (may be empty). Of a
// revision with numeric efforts: the number.
struct EffortLevel {
  std::string_view name;
  std::string_view prefix;
};

// A reasoning effort a public API accepts, and the encoder's level for it (empty: send none).
struct ApiEffort {
  std::string_view name;
  std::string_view level;
};

// A quick task and its token. `after_opener`: the token follows the assistant's opener instead of replacing
// it.
struct TaskToken {
  std::string_view name;
  std::string_view token;
  bool after_opener;
};

// All views point to constants. Copy one and change it to describe another revision.
struct ChatProfile {
  std::string_view revision;
  std::string_view bos;
  std::string_view eos;
  std::string_view system_marker;  // empty: the system text stands bare
  std::string_view user;
  std::string_view assistant;
  std::string_view latest_reminder;
  std::string_view think_open;
  std::string_view think_close;
  std::string_view dsml;        // the token inside every tag, bars included
  std::string_view tool_calls;  // tag names, with a leading blank where the revision writes one
  std::string_view invoke;
  std::string_view parameter;
  std::span<const TaskToken> tasks;
  std::span<const EffortLevel> efforts;
  std::span<const ApiEffort> api_efforts;
  std::string_view default_effort =
      {};  // Level where none is named, as DeepSeek's own service has it; empty: none.

  // Rules of V4.1 (2.9).
  std::string_view encoder_effort = {};  // Level where the encoder is given none; empty: no text.
  bool numeric_efforts = false;          // Efforts are numbers from 1 to 100, some of which have names.
  // A system message is a turn: it stands where it is, asks for an answer, and ends the reasoning before it.
  // Tools of its own are an update.
  bool system_turns = false;
  bool shows_signatures =
      false;                     // The prompt shows name, description and parameters of a tool, nothing else.
  bool wraps_arguments = false;  // Call arguments that are JSON but no object are a text parameter, no error.
  bool continues_reasoning = false;        // An unfinished answer without content goes on in its reasoning.
  std::string_view namespace_mark = "__";  // Between a tool's namespace and its name.
  bool describes_namespaces = false;       // A tool's description begins with its namespace's.

  // "<" + dsml + name and "</" + dsml + name, without the closing ">".
  std::string OpenTag(std::string_view name) const;
  std::string CloseTag(std::string_view name) const;

  // Strings a tokenizer must have as single tokens; without one of them the model cannot be used for chat.
  std::vector<std::string_view> RequiredTokens() const;
  // Strings whose tokens end an answer: the end of sentence and, defensively, the next user turn.
  std::vector<std::string_view> StopTokens() const;

  const TaskToken* FindTask(std::string_view name) const;
  // The text in front of a prompt at this effort. InvalidArgument names the efforts there are.
  Result<std::string> EffortText(std::string_view effort) const;
  // The level that a public API's effort means, empty for none: a name, or a number where efforts are
  // numbers, also as a text. Nothing for others.
  std::optional<std::string> FindApiEffort(std::string_view effort) const;
  // "low, high, max", for errors; of numeric efforts also " or a number from 1 to 100".
  std::string ApiEffortNames() const;
};

// Revisions offered, oldest first: "v4", "v4-0731", "v4.1".
std::span<const ChatProfile> ChatProfiles();

// InvalidArgument, naming the known ones, for anything unknown.
Result<const ChatProfile*> FindChatProfile(std::string_view revision);

// Path of the encoder in a model directory, relative to it.
inline constexpr std::string_view kEncoderFile = "encoding/encoding_dsv4.py";

// Facts about a model's revision. The first fact that is present decides; with none of them it is "v4".
struct RevisionFacts {
  std::optional<std::string> option = {};          // given by the user
  std::optional<std::string> metadata = {};        // our own field in the model's metadata
  std::optional<std::string> model_type = {};      // or architecture of config.json; only V4.1's decides
  std::optional<std::string> encoder_source = {};  // text of kEncoderFile
};
Result<const ChatProfile*> DetectChatProfile(const RevisionFacts& facts);

}  // namespace dsv4::chat
