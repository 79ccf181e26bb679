// ModelCard: a model's own words on its answers. How long they may be, what to say where they would be noise, and what to ask it first.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "chat/message.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::session {

struct ModelCard {
  struct Example {
    std::string title;  // "Add two numbers"
    std::string ask;    // "What is 17 plus 25?"
  };

  // `max_new_tokens` and the object `dsv4_card` of generation_config.json, which may be missing, both or the file. InvalidArgument names the member that
  // is not as it should be. Texts of a card have one line, and no control characters.
  static Result<ModelCard> Read(const std::string& directory);

  // The notice, where the last message of a conversation is the user's and IsBeyond; else empty.
  std::string NoticeOn(const tokenizer::Tokenizer& tokenizer, std::span<const chat::Message> messages) const;

  // Whether a text is in words that the model does not know: another language than the tokenizer was made of, or no language at all. Read are its
  // last 2,000 bytes. A text with some of `words` is none. False for one or two words of ASCII, which say too little, unless they are mere letters.
  bool IsBeyond(const tokenizer::Tokenizer& tokenizer, std::string_view text) const;

  std::optional<int64_t> max_new_tokens;
  std::string notice;  // Empty: it answers everything.
  std::set<std::string, std::less<>>
      words;  // In lower case: common ones of what it knows. Some with a notice, none without.
  std::vector<Example> examples;
};

}  // namespace dsv4::session
