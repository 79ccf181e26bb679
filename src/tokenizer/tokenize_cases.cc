// JSON lines of ids and decoded texts for a case file.
#include "tokenizer/tokenize_cases.h"

#include <fmt/format.h>

#include "base/json.h"

namespace dsv4::tokenizer {
namespace {

std::string CaseName(const Json& item, size_t index) {
  if (item.is_object()) {
    for (const char* key : {"name", "case"}) {
      if (const auto it = item.find(key); it != item.end() && it->is_string()) return it->get<std::string>();
    }
  }
  return fmt::format("case {}", index);
}

Result<Json> TokenizeCase(const Tokenizer& tokenizer, const Json& item) {
  const bool has_text = item.is_object() && item.contains("text") && item["text"].is_string();
  if (!has_text) return Error(InvalidArgument("wanted an object with a string `text`"));
  DSV4_ASSIGN_OR_RETURN(const std::vector<TokenId> ids,
                        tokenizer.Encode(item["text"].get_ref<const std::string&>()));
  return Json{{"ids", ids}, {"decoded", tokenizer.Decode(ids)}};
}

}  // namespace

Result<std::vector<std::string>> TokenizeCases(const Tokenizer& tokenizer, std::string_view json,
                                               std::string_view what) {
  DSV4_ASSIGN_OR_RETURN(const Json cases, ParseJson(json, what));
  if (!cases.is_array()) {
    return Error(
        InvalidArgument(fmt::format("{}: got a JSON {}, wanted a list of cases", what, cases.type_name())));
  }
  std::vector<std::string> lines;
  for (const Json& item : cases) {
    const Result<Json> output = TokenizeCase(tokenizer, item);
    lines.push_back(
        output ? output->dump()
               : Json{{"name", CaseName(item, lines.size())}, {"error", output.error().ToString()}}.dump());
  }
  return lines;
}

}  // namespace dsv4::tokenizer
