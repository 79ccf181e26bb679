// Classes of a model's token ids, from its directory.
#include "session/token_classes.h"

#include <algorithm>
#include <filesystem>

#include "tokenizer/token_classes.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::session {

Result<std::vector<int32_t>> TokenClassesOf(const std::string& directory, int64_t vocab_size,
                                            int64_t num_classes) {
  const std::string path = directory + "/tokenizer.json";
  tokenizer::TokenClasses classes;
  std::error_code error;
  if (num_classes > 0 || std::filesystem::exists(path, error)) {
    DSV4_ASSIGN_OR_RETURN(const tokenizer::Tokenizer tokenizer, tokenizer::Tokenizer::Load(path));
    const int64_t named = num_classes > 0 ? vocab_size : std::min<int64_t>(vocab_size, tokenizer.num_ids());
    DSV4_ASSIGN_OR_RETURN(classes, tokenizer::MakeTokenClasses(tokenizer, named));
  }
  while (static_cast<int64_t>(classes.of_id.size()) < vocab_size) classes.of_id.push_back(classes.count++);
  return std::move(classes.of_id);
}

}  // namespace dsv4::session
