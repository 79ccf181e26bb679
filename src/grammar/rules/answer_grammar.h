// Compiler of a whole answer's grammar: reasoning, then free text, JSON of a schema, or calls of tools.
//
//   answer  = [ reasoning THINK_END ] content          a call may also interrupt the reasoning, which then ends there
//   content = text | text "<M tool_calls>" calls | what a rule says | "\n\n<M tool_calls>" calls
//   calls   = LF invoke+ "</M tool_calls>"             one invoke only when calls may not be parallel
//   invoke  = "<M invoke name=" DQ name DQ ">" LF ( parameter+ | LF ) "</M invoke>" LF
//
// M is the marker of tags, one token; in a call it is never spelled in letters. Parameters come in any order,
// each once. A string is raw (string="true"), everything else JSON (string="false"), both as the parameter's
// schema says. Unlisted parameters come behind the required ones. A tool may have more than kMostUnordered
// parameters: then only the required ones are counted, and others may come again (the first one counts). If
// more than that are required, parameters come in the order of `properties`. Source: chat-encoding.md 3.1 and
// 3.7.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/program.h"
#include "grammar/rules/content_rule.h"

namespace dsv4::grammar {

// How the chat format writes calls.
struct CallTags {
  std::string marker;  // The text of M; "｜DSML｜".
  std::string tool_calls = "tool_calls";
  std::string invoke = "invoke";
  std::string parameter = "parameter";
  bool operator==(const CallTags&) const = default;
};

struct CallableTool {
  std::string name;
  std::string parameters;  // A JSON schema of an object.
  // Every call satisfies the schema, and one that is not understood is an error. Else calls follow it as far
  // as it is understood.
  bool strict = false;
  std::string label;  // Name by which errors call the schema: "tools[0].function.parameters".
  // Instead of `parameters`: the one parameter, a string, which the rule describes as it stands.
  struct Text {
    std::string parameter;
    ContentRule rule;
    bool operator==(const Text&) const = default;
  };
  std::optional<Text> text = {};
  bool operator==(const CallableTool&) const = default;
};

inline constexpr size_t kMostUnordered = 6;

enum class ContentKind : uint8_t {
  kText,      // Anything, and a call if there are tools.
  kJson,      // A value of `schema`, or a call if there are tools.
  kRule,      // A text of `rule`, or a call if there are tools.
  kCall,      // A call.
  kOpenCall,  // Text that stands behind "<M": the rest of a call that has begun.
};

struct AnswerRules {
  // Begins inside the reasoning, which ends with the marker `think_end` or with its text.
  bool starts_in_reasoning = false;
  std::string think_end = "</think>";
  ContentKind content = ContentKind::kText;
  std::string schema = {};        // kJson.
  std::string schema_label = {};  // Name by which errors call it.
  ContentRule rule = {};          // kRule.
  CallTags tags = {};
  std::vector<CallableTool> tools = {};  // Tools that may be called; none: no tag means anything.
  bool parallel_calls = true;
  bool operator==(const AnswerRules&) const = default;
};

// Errors begin with the label of the schema that is wrong: InvalidArgument names the position by its JSON
// pointer; ResourceExhausted when the grammar becomes too large. Time and memory are bounded whatever the
// schemas say.
Result<std::shared_ptr<const Program>> CompileAnswer(const AnswerRules& rules);

}  // namespace dsv4::grammar
