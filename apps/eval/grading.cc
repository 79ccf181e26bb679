// Graders of answers: contained, exact, last number, regex, and sets of calls.
#include "apps/eval/grading.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "apps/eval/schema_check.h"
#include "base/text.h"
#include "grammar/dfa.h"
#include "grammar/pattern.h"

namespace dsv4::apps {
namespace {

// The last number in the text, without commas between its digits; empty when there is none.
std::string LastNumber(std::string_view text) {
  std::string last;
  for (size_t i = 0; i < text.size();) {
    const bool digit = std::isdigit(static_cast<unsigned char>(text[i])) != 0;
    if (!digit) {
      ++i;
      continue;
    }
    std::string number;
    if (i > 0 && text[i - 1] == '-') number = "-";
    for (; i < text.size(); ++i) {
      const char c = text[i];
      const bool next_digit =
          i + 1 < text.size() && std::isdigit(static_cast<unsigned char>(text[i + 1])) != 0;
      if (c == ',' && next_digit) continue;
      const bool point = c == '.' && next_digit && number.find('.') == std::string::npos;
      if (std::isdigit(static_cast<unsigned char>(c)) == 0 && !point) break;
      number.push_back(c);
    }
    last = number;
  }
  return last;
}

bool SameNumber(const std::string& a, const std::string& b) {
  try {
    return !a.empty() && !b.empty() && std::stod(a) == std::stod(b);
  } catch (const std::exception&) {
    return a == b;
  }
}

}  // namespace

Result<bool> IsRight(const DataLine& line, const std::string& content) {
  const std::string match = line.json.value("match", Json("contains")).is_string()
                                ? line.json.value("match", std::string("contains"))
                                : "";
  DSV4_ASSIGN_OR_RETURN(const std::vector<std::string> answers, TextsOf(line, "answer"));
  for (const std::string& answer : answers) {
    bool right = false;
    if (match == "exact") {
      constexpr std::string_view kSpace = " \t\n\r\f\v";
      right = Trim(content, kSpace) == Trim(answer, kSpace);
    } else if (match == "contains") {
      right = content.find(answer) != std::string::npos;
    } else if (match == "number") {
      right = SameNumber(LastNumber(content), LastNumber(answer));
    } else if (match == "regex") {
      const Result<grammar::Regex> regex = grammar::PatternContent(answer, grammar::Spelling::kRaw);
      if (!regex) return Error(regex.error().WithContext(line.label));
      grammar::DfaLimits limits;
      DSV4_ASSIGN_OR_RETURN(const grammar::Dfa dfa, grammar::Dfa::Compile(*regex, limits));
      uint32_t state = dfa.IsEmpty() ? grammar::Dfa::kDead : grammar::Dfa::kStart;
      for (size_t i = 0; i < content.size() && state != grammar::Dfa::kDead; ++i)
        state = dfa.Next(state, static_cast<uint8_t>(content[i]));
      right = state != grammar::Dfa::kDead && dfa.IsAccepting(state);
    } else {
      return Error(BadMember(line, "match", "exact, contains, number or regex"));
    }
    if (right) return true;
  }
  return false;
}

Result<std::vector<Json>> ExpectedCalls(const DataLine& line) {
  const auto found = line.json.find("expect");
  const Json list = found->is_array() ? *found : Json::array({*found});
  std::vector<Json> calls;
  for (const Json& call : list) {
    if (!call.is_object() || !call.contains("name") || !call["name"].is_string() ||
        !call.value("arguments", Json::object()).is_object())
      return Error(BadMember(line, "expect", "calls, each an object with a name and arguments"));
    calls.push_back(call);
  }
  return calls;
}

bool SameCalls(const std::vector<Json>& made, const std::vector<Json>& expected) {
  if (made.size() != expected.size()) return false;
  std::vector<std::string> a;
  std::vector<std::string> b;
  // Members in the order of their names.
  const auto canonical = [](const Json& call) {
    return call["name"].get<std::string>() +
           nlohmann::json::parse(call.value("arguments", Json::object()).dump()).dump();
  };
  for (const Json& call : made) a.push_back(canonical(call));
  for (const Json& call : expected) b.push_back(canonical(call));
  std::sort(a.begin(), a.end());
  std::sort(b.begin(), b.end());
  return a == b;
}

std::string ComplaintOf(const Json& tools, const std::string& name, const Json& arguments) {
  for (const Json& tool : tools) {
    const Json& function = tool.contains("function") ? tool["function"] : tool;
    if (!function.is_object() || function.value("name", Json()) != name) continue;
    if (!arguments.is_object()) return name + ": the arguments are no object";
    const std::string complaint = SchemaComplaint(arguments, function.value("parameters", Json::object()));
    return complaint.empty() ? "" : name + complaint;
  }
  return fmt::format("no tool is named \"{}\"", name);
}

}  // namespace dsv4::apps
