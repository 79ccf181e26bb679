// Reader of case files and the loop that writes a JSON line for each.
#include "apps/tools/case_file.h"

#include <fmt/format.h>

#include <ostream>

#include "base/log.h"
#include "base/read_file.h"

namespace dsv4::apps {

using chat::JsonValue;

namespace {

// One line of JSON. Readers that split at Unicode's line separators must find one object per line too, so
// those are escaped here; they stand in strings only.
std::string Line(const JsonValue& value) {
  std::string line = chat::WriteJson(value);
  constexpr std::pair<std::string_view, std::string_view> kSeparators[] = {
      {"\u0085", "\\u0085"}, {"\u2028", "\\u2028"}, {"\u2029", "\\u2029"}};
  for (const auto& [separator, escape] : kSeparators) {
    for (size_t at = line.find(separator); at != std::string::npos; at = line.find(separator, at)) {
      line.replace(at, separator.size(), escape);
    }
  }
  return line;
}

}  // namespace

Result<JsonValue> ReadCases(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, FileKind::kAny));
  DSV4_ASSIGN_OR_RETURN(JsonValue cases, chat::ReadJson(text, path));
  if (!cases.is_array()) {
    return Error(InvalidArgument(fmt::format("{}: got {}, wanted a list of cases", path, cases.kind_name())));
  }
  for (size_t i = 0; i < cases.items().size(); ++i) {
    const JsonValue* name = cases.items()[i].Find("name");
    if (name == nullptr || !name->is_string()) {
      return Error(InvalidArgument(fmt::format("{}[{}].name: got {}, wanted a string", path, i,
                                               name == nullptr ? "nothing" : name->kind_name())));
    }
  }
  return cases;
}

Result<std::string> CaseText(const JsonValue& test, std::string_view key) {
  const JsonValue* value = test.Find(key);
  if (value == nullptr || !value->is_string()) {
    return Error(InvalidArgument(
        fmt::format("{}: got {}, wanted a string", key, value == nullptr ? "nothing" : value->kind_name())));
  }
  return value->text();
}

int RunCases(const std::string& path, std::string_view key,
             const std::function<Result<JsonValue>(const JsonValue&)>& run, std::ostream& out) {
  const Result<JsonValue> cases = ReadCases(path);
  if (!cases) {
    LogError(cases.error().message());
    return 3;
  }
  for (const JsonValue& test : cases->items()) {
    std::vector<JsonValue::Member> line = {{"name", *test.Find("name")}};
    Result<JsonValue> result = run(test);
    if (result) {
      line.emplace_back(key, std::move(*result));
    } else {
      line.emplace_back("error", JsonValue::String(result.error().message()));
    }
    out << Line(JsonValue::Object(std::move(line))) << '\n';
  }
  out.flush();
  if (!out) {
    LogError("writing the results failed");
    return 1;
  }
  return 0;
}

}  // namespace dsv4::apps
