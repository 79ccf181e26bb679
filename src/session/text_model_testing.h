// models/tiny as text, without its weights.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "chat/profile.h"
#include "session/text_model.h"

namespace dsv4::session {

// `tokenizer_path` names its tokenizer.json; `revision` its chat format.
inline TextModel MakeTinyTextModel(const std::string& tokenizer_path, std::string_view revision) {
  auto tokenizer = tokenizer::Tokenizer::Load(tokenizer_path);
  DSV4_CHECK(tokenizer) << tokenizer.error().ToString();
  auto text = TextModel::ForChat(std::move(*tokenizer), *chat::FindChatProfile(revision));
  DSV4_CHECK(text) << text.error().ToString();
  text->vocab_size = 5120;
  return std::move(*text);
}

}  // namespace dsv4::session
