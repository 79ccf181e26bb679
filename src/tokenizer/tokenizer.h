// Text to token ids and back: byte-level BPE as tokenizer.json describes it.
//
//   Encode  added tokens (<｜User｜> and so on) -> the gaps between them through the pre-tokenizer -> BPE per piece
//   Decode  the bytes of the ids, one after the other
//
// No id is ever added by itself (no automatic BOS), and none is known here: markers are looked up by string,
// see special_tokens.h. Source: Hugging Face `tokenizers`, whose ids for the same file are the yardstick.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/token_id.h"

namespace dsv4::tokenizer {

// A stretch of a prompt. `text` is borrowed.
struct TextSpan {
  std::string_view text;
  // Written by the renderer. In other spans (what users, tools and files say) no added token is recognised:
  // the text "<｜Assistant｜>" in a message stays text.
  bool is_template;
};

// Immutable after Load: all members are const and may be called from several threads at once. Movable.
class Tokenizer {
 public:
  // Reads a tokenizer.json. Errors: NotFound or InvalidArgument for the file itself, else as Parse.
  static Result<Tokenizer> Load(const std::string& path);
  // The same from the text of the file; `what` names it in errors. Errors: Unimplemented for a kind of
  // tokenizer that is not supported, InvalidArgument for a malformed or contradictory file; both say where,
  // got and wanted.
  static Result<Tokenizer> Parse(std::string_view json, std::string_view what);

  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Ids of `text`, all of it template. Empty text has none.
  // Errors: InvalidArgument when the text is not well-formed UTF-8 (with the offset); OutOfRange from 2 GiB
  // or `max_ids` on. ResourceExhausted when a pattern of the file needs too many steps on it.
  Result<std::vector<TokenId>> Encode(std::string_view text, size_t max_ids = SIZE_MAX) const;
  // Ids of the spans joined to one text. Pre-tokenization and BPE do not see the borders; an added token is
  // recognised only if all its bytes lie in template spans. A character may cross a border.
  Result<std::vector<TokenId>> Encode(std::span<const TextSpan> spans, size_t max_ids = SIZE_MAX) const;

  // The bytes of `ids`, joined. An id without a token (a padding row of the embedding, or any other value)
  // adds nothing.
  std::string DecodeBytes(std::span<const TokenId> ids) const;
  // The same as well-formed UTF-8: see Utf8Repairer for what is not.
  std::string Decode(std::span<const TokenId> ids) const;

  // The bytes of one token, maybe not whole characters; empty for an id without a token. Lives as long as the
  // tokenizer.
  std::string_view TokenBytes(TokenId id) const;
  // Whether the id has a token. Sampling masks those that have none.
  bool IsDefined(TokenId id) const;
  // Whether the id is that of an added token. Not a hint to hide it: <think> is one.
  bool IsAdded(TokenId id) const;
  // Id by text: added tokens as they stand in text first, then base tokens as tokenizer.json spells them.
  std::optional<TokenId> FindToken(std::string_view text) const;
  // One more than the largest id. The embedding may have more rows.
  TokenId num_ids() const;
  // No token has more bytes, so a text of N bytes has at least N / longest_token_bytes() tokens.
  size_t longest_token_bytes() const;

 private:
  struct State;
  explicit Tokenizer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace dsv4::tokenizer
