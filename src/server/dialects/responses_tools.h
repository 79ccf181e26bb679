// The tools of a /v1/responses request that are no functions, made to functions. The model is shown functions
// alone, and its calls go back in the shape that the client declared. Also the items of a conversation that
// are calls of such tools.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "server/api/chat_call.h"

namespace dsv4::server {

// How calls of a function go back to the client.
struct ClientTool {
  bool is_custom = false;       // One free text instead of arguments: "custom_tool_call".
  std::string name;             // As the client has it, and
  std::string name_space = {};  // the namespace it is in; may be empty.
};

// By the function's name; functions that go back as they are have no entry.
using ClientTools = std::map<std::string, ClientTool, std::less<>>;

// The one parameter of a function that stands for a custom tool.
inline constexpr std::string_view kCustomInput = "input";

// The model's name of a tool: "namespace__name", with the chat format's mark (ChatProfile::namespace_mark)
// between them.
std::string FunctionName(std::string_view mark, std::string_view name_space, std::string_view name);

// Reads a list of tools into call.conversation.tools and call.tool_rules. Functions stay; those of a
// namespace get its name in front; a custom tool becomes a function of one text. Tools that a server runs are
// left out, with a line in the log. Where the profile says so, a description begins with its namespace's.
// Errors name the field.
Status ReadResponsesTools(const chat::ChatProfile& profile, const chat::JsonValue& list, ChatCall& call,
                          ClientTools& client_tools);

// The arguments of a custom tool's call as the model wrote them, from its free text.
std::string CustomArguments(std::string_view input);

// The free text in a custom tool's arguments while they arrive.
class CustomInputReader {
 public:
  // Appends to `out` what `piece` adds to the text.
  void Feed(std::string_view piece, std::string& out);
  // At the end of the call; appends the rest. Arguments of another shape are given whole.
  void Finish(std::string& out);

 private:
  std::string arguments_;
  size_t position_ = 0;  // Behind what has been given.
  bool in_text_ = false;
  bool has_given_ = false;
};

}  // namespace dsv4::server
