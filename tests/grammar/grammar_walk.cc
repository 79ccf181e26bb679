// Writes random texts of JSON schemas, as sampling under their masks would give. Standard input has one
// schema a line, and the output one JSON document a line: {"texts": [...]} or {"error": "..."}. With --calls
// a line is {"tools": [{"name", "parameters", "strict"}], "text", "thinking", "parallel"}. The output is then
// that of the parser of answers: {"answers": [{"calls": [{"name", "arguments"}], "content"}]}. For
// json_schema_property_test.py.
#include <algorithm>
#include <array>
#include <cstdio>
#include <iostream>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "base/json.h"
#include "chat/completion_parser.h"
#include "grammar/json_schema.h"
#include "grammar/rules/answer_grammar.h"
#include "grammar/testing.h"

namespace {

using dsv4::Json;
namespace grammar = dsv4::grammar;
namespace chat = dsv4::chat;

constexpr int kWalks = 6;
constexpr std::array<std::string_view, 5> kWanted = {"b", "é", "x", "\\\\", "w@w"};

// Text of a token in an answer; empty for markers that mean nothing here.
std::string TextOf(grammar::TokenId id, const chat::ChatProfile& profile) {
  if (id == grammar::testing::kDsml) return std::string(profile.dsml);
  if (id == grammar::testing::kThinkEnd) return std::string(profile.think_close);
  const auto bytes = grammar::testing::ToyTrie()->BytesOf(id);
  if (bytes.size() == 1 && bytes[0] == grammar::kOtherMarkerByte) return "";
  return {bytes.begin(), bytes.end()};
}

// Bytes that end something that would go on for long.
bool IsEnd(const std::string& text, grammar::TokenId id) {
  return text == "\"" || text == "]" || text == "}" || text == "<" || text == "/" ||
         id == grammar::testing::kDsml || id == grammar::testing::kThinkEnd;
}

// Ends are chosen more often the longer the text is; nothing when it never ended. With `calls` free text
// usually gets to one.
std::optional<std::string> Walk(grammar::Matcher matcher, bool calls, std::mt19937& random) {
  const chat::ChatProfile& profile = **chat::FindChatProfile("v4");
  std::string text;
  grammar::TokenMask mask(matcher.num_ids());
  const auto call_step = static_cast<unsigned>(random() % 60);  // Nobody writes a whole tag by chance.
  for (unsigned step = 0; step < 4000; ++step) {
    if (calls && step == call_step) {
      const bool spelled = random() % 4 == 0;
      const std::string marker = spelled ? std::string(profile.dsml) : "\xF9";
      if (matcher.AcceptBytes("<" + marker + "tool_calls>").ok())
        text += profile.OpenTag(profile.tool_calls) + ">";
    }
    matcher.Mask(mask);
    const bool may_stop = mask.IsAllowed(grammar::testing::kStop) && !(calls && step < call_step);
    if (may_stop && random() % 400 < 100 + step) {
      return matcher.Accept(grammar::testing::kStop).ok() ? std::optional(text) : std::nullopt;
    }
    std::vector<grammar::TokenId> ids;
    for (grammar::TokenId id = 0; id < matcher.num_ids(); ++id) {
      if (id != grammar::testing::kStop && mask.IsAllowed(id)) ids.push_back(id);
    }
    if (ids.empty()) continue;
    std::vector<grammar::TokenId> ends;
    for (const grammar::TokenId id : ids) {
      if (IsEnd(TextOf(id, profile), id)) ends.push_back(id);
    }
    // Random characters are seldom the one that a pattern or the name of a member waits for.
    if (step > 50 && random() % 16 == 0) {
      const std::string_view wanted = kWanted[random() % kWanted.size()];
      if (matcher.AcceptBytes(wanted).ok()) {
        text += wanted;
        continue;
      }
    }
    const bool to_end = !ends.empty() && random() % 800 < 80 + step;
    const grammar::TokenId id = to_end ? ends[random() % ends.size()] : ids[random() % ids.size()];
    if (!matcher.Accept(id).ok()) return std::nullopt;
    text += TextOf(id, profile);
  }
  return std::nullopt;
}

grammar::Matcher Start(std::shared_ptr<const grammar::Program> program) {
  return {std::move(program), grammar::testing::ToyTrie(), {grammar::testing::kStop}};
}

Json TextsOf(const std::string& schema, std::mt19937& random) {
  const auto program = grammar::CompileJsonSchema(schema);
  if (!program) return {{"error", program.error().message()}};
  Json texts = Json::array();
  for (int i = 0; i < kWalks; ++i) {
    const std::optional<std::string> text = Walk(Start(*program), /*calls=*/false, random);
    texts.push_back(text ? Json(*text) : Json(nullptr));
  }
  return {{"texts", std::move(texts)}};
}

Json AnswersOf(const Json& request, std::mt19937& random) {
  const chat::ChatProfile& profile = **chat::FindChatProfile("v4");
  grammar::AnswerRules rules = {
      .starts_in_reasoning = request.at("thinking"),
      .content = request.at("text") ? grammar::ContentKind::kText : grammar::ContentKind::kCall,
      .tags = {.marker = std::string(profile.dsml)},
      .parallel_calls = request.at("parallel")};
  chat::ParserOptions options = {.starts_in_reasoning = rules.starts_in_reasoning};
  for (const Json& tool : request.at("tools")) {
    rules.tools.push_back({tool.at("name"), tool.at("parameters").dump(), tool.at("strict"), "tool"});
    chat::ToolSchema schema{.name = tool.at("name")};
    const Json properties = tool.at("parameters").value("properties", Json::object());
    for (const auto& [name, value] : properties.items()) schema.properties.push_back(name);
    options.tools.push_back(std::move(schema));
  }
  const auto program = grammar::CompileAnswer(rules);
  if (!program) return {{"error", program.error().message()}};
  Json answers = Json::array();
  for (int i = 0; i < kWalks; ++i) {
    const std::optional<std::string> text =
        Walk(Start(*program), rules.content == grammar::ContentKind::kText, random);
    if (!text) {
      answers.push_back(nullptr);
      continue;
    }
    const chat::CollectedCompletion parsed = chat::ParseLenient(profile, *text, options);
    Json calls = Json::array();
    for (const chat::ParsedCall& call : parsed.message.tool_calls)
      calls.push_back({{"name", call.name}, {"arguments", call.arguments}});
    answers.push_back({{"calls", std::move(calls)}, {"content", parsed.message.content}, {"text", *text}});
  }
  return {{"answers", std::move(answers)}};
}

}  // namespace

int main(int argc, char** argv) {
  const bool calls = argc == 2 && argv[1] == std::string_view("--calls");
  std::mt19937 random(7);
  std::string line;
  while (std::getline(std::cin, line)) {
    const Json out = calls ? AnswersOf(Json::parse(line), random) : TextsOf(line, random);
    std::cout << dsv4::JsonText(out) << '\n';
  }
}
