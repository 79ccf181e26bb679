// Names that the served model answers to, and the check of a request's length.
#include "server/api/served_model.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace dsv4::server {

bool ServedModel::AnswersTo(std::string_view name) const {
  // The hosted API's names choose the thinking mode, see chat::ResolveThinking.
  if (name.empty() || name == id || name == "deepseek-chat" || name == "deepseek-reasoner") return true;
  return std::any_of(aliases.begin(), aliases.end(),
                     [&](const std::string& alias) { return alias == "*" || alias == name; });
}

Status ServedModel::CheckLength(size_t text_bytes) const {
  const auto context = static_cast<size_t>(std::max<int64_t>(context_length, 0));
  const size_t longest = std::max<size_t>(longest_token_bytes, 1);
  if (context == 0 || text_bytes / longest <= context) return {};
  return OutOfRange(
      fmt::format("prompt is too long: {} of text are more than {} > {} maximum (this model's "
                  "maximum context length is {})",
                  Counted(text_bytes, "byte"), Counted(text_bytes / longest, "token"), context,
                  Counted(context, "token")));
}

}  // namespace dsv4::server
