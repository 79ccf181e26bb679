#include "server/served_model.h"

#include <algorithm>

namespace dsv4::server {

bool ServedModel::AnswersTo(std::string_view name) const {
  // The hosted API's names choose the thinking mode, see chat::ResolveThinking.
  if (name.empty() || name == id || name == "deepseek-chat" || name == "deepseek-reasoner") return true;
  return std::any_of(aliases.begin(), aliases.end(),
                     [&](const std::string& alias) { return alias == "*" || alias == name; });
}

}  // namespace dsv4::server
