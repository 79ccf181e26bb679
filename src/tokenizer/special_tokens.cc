// Look-up of the chat grammar's markers by string, required and optional.
#include "tokenizer/special_tokens.h"

#include <fmt/format.h>

#include <string>

namespace dsv4::tokenizer {

Result<SpecialTokens> SpecialTokens::Resolve(const Tokenizer& tokenizer) {
  std::string missing;
  const auto required = [&](std::string_view text) {
    const std::optional<TokenId> id = tokenizer.FindToken(text);
    if (!id) missing += fmt::format("{}\"{}\"", missing.empty() ? "" : ", ", text);
    return id.value_or(-1);
  };
  const SpecialTokens tokens{
      .begin_of_sentence = required(kBeginOfSentence),
      .end_of_sentence = required(kEndOfSentence),
      .user = required(kUser),
      .assistant = required(kAssistant),
      .think_begin = required(kThinkBegin),
      .think_end = required(kThinkEnd),
      .dsml = required(kDsml),
      .latest_reminder = tokenizer.FindToken("<｜latest_reminder｜>"),
      .action = tokenizer.FindToken("<｜action｜>"),
      .query = tokenizer.FindToken("<｜query｜>"),
      .authority = tokenizer.FindToken("<｜authority｜>"),
      .domain = tokenizer.FindToken("<｜domain｜>"),
      .title = tokenizer.FindToken("<｜title｜>"),
      .extracted_url = tokenizer.FindToken("<｜extracted_url｜>"),
      .read_url = tokenizer.FindToken("<｜read_url｜>"),
      .image = tokenizer.FindToken("<｜deepseek_image｜>"),
      .system = tokenizer.FindToken("<｜System｜>"),
  };
  if (!missing.empty()) {
    return Error(
        NotFound(fmt::format("tokenizer: no token {}; a V4 chat needs it in added_tokens (is this the "
                             "tokenizer.json of a V4 model?)",
                             missing)));
  }
  return tokens;
}

}  // namespace dsv4::tokenizer
