// The markers of the V4 chat grammar, looked up by string: their ids differ between tokenizers.
//
// All bars are U+FF5C and all low lines U+2581. Source: chat-encoding.md section 1.
#pragma once

#include <optional>
#include <string_view>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::tokenizer {

inline constexpr std::string_view kBeginOfSentence = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEndOfSentence = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kThinkBegin = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
inline constexpr std::string_view kDsml = "｜DSML｜";

struct SpecialTokens {
  // Without these there is no chat.
  TokenId begin_of_sentence;
  TokenId end_of_sentence;
  TokenId user;
  TokenId assistant;
  TokenId think_begin;
  TokenId think_end;
  TokenId dsml;
  // A missing one only disables its feature.
  std::optional<TokenId> latest_reminder;
  std::optional<TokenId> action;
  std::optional<TokenId> query;
  std::optional<TokenId> authority;
  std::optional<TokenId> domain;
  std::optional<TokenId> title;
  std::optional<TokenId> extracted_url;
  std::optional<TokenId> read_url;
  std::optional<TokenId> image;
  std::optional<TokenId> system;  // V4.1; in V4 its id is a placeholder of another name.

  // Errors: NotFound that lists the required strings the tokenizer lacks.
  static Result<SpecialTokens> Resolve(const Tokenizer& tokenizer);
};

}  // namespace dsv4::tokenizer
