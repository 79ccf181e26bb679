// models/tiny as text, without its weights.
#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "base/json.h"
#include "base/read_file.h"
#include "chat/profile.h"
#include "session/text_model.h"

namespace dsv4::session {

// `tokenizer_path` names its tokenizer.json, which gets the marker that V4.1 needs besides; `revision` its
// chat format.
inline TextModel MakeTinyTextModel(const std::string& tokenizer_path, std::string_view revision) {
  const auto text_of_file = ReadFile(tokenizer_path, FileKind::kRegular, kMaxModelDocumentBytes);
  DSV4_CHECK(text_of_file) << text_of_file.error().ToString();
  auto json = ParseJson(*text_of_file, tokenizer_path);
  DSV4_CHECK(json) << json.error().ToString();
  if (revision == "v4.1") {
    Json system = (*json)["added_tokens"].back();
    system["id"] = system["id"].get<int>() + 1;
    system["content"] = "<｜System｜>";
    (*json)["added_tokens"].push_back(system);
  }
  auto tokenizer = tokenizer::Tokenizer::Parse(json->dump(), tokenizer_path);
  DSV4_CHECK(tokenizer) << tokenizer.error().ToString();
  auto text = TextModel::ForChat(std::move(*tokenizer), *chat::FindChatProfile(revision));
  DSV4_CHECK(text) << text.error().ToString();
  text->vocab_size = 5120;
  return std::move(*text);
}

}  // namespace dsv4::session
