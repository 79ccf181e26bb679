// Reader of JSON lines with line numbers in errors.
#include "apps/eval/eval_data.h"

#include <fmt/format.h>

#include "base/read_file.h"

namespace dsv4::apps {

Result<std::vector<DataLine>> ReadJsonLines(const std::string& path, int64_t limit) {
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, FileKind::kAny));
  return ParseJsonLines(text, path, limit);
}

Result<std::vector<DataLine>> ParseJsonLines(std::string_view text, const std::string& path, int64_t limit) {
  std::vector<DataLine> lines;
  int64_t number = 0;
  for (size_t begin = 0; begin < text.size();) {
    const size_t end = std::min(text.find('\n', begin), text.size());
    const std::string_view line = text.substr(begin, end - begin);
    begin = end + 1;
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const std::string label = fmt::format("{}, line {}", path, number);
    DSV4_ASSIGN_OR_RETURN(Json json, ParseJson(line, label));
    if (!json.is_object())
      return Error(InvalidArgument(fmt::format("{}: got {}, wanted an object", label, json.type_name())));
    lines.push_back({std::move(json), label});
    if (limit > 0 && static_cast<int64_t>(lines.size()) == limit) break;
  }
  if (lines.empty()) return Error(InvalidArgument(fmt::format("{}: no lines", path)));
  return lines;
}

Status BadMember(const DataLine& line, const char* key, const std::string& wanted) {
  const auto found = line.json.find(key);
  return InvalidArgument(
      fmt::format("{}: {}: {}, wanted {}", line.label, key,
                  found == line.json.end() ? "missing" : fmt::format("got {}", found->type_name()), wanted));
}

Result<std::string> TextOf(const DataLine& line, const char* key) {
  const auto found = line.json.find(key);
  if (found == line.json.end() || !found->is_string()) return Error(BadMember(line, key, "a text"));
  return found->get<std::string>();
}

Result<std::vector<std::string>> TextsOf(const DataLine& line, const char* key) {
  const auto found = line.json.find(key);
  std::vector<std::string> texts;
  if (found != line.json.end() && found->is_string())
    return std::vector<std::string>{found->get<std::string>()};
  if (found == line.json.end() || !found->is_array() || found->empty())
    return Error(BadMember(line, key, "a text, or a list of them"));
  for (const Json& text : *found) {
    if (!text.is_string()) return Error(BadMember(line, key, "a list of texts"));
    texts.push_back(text);
  }
  return texts;
}

}  // namespace dsv4::apps
