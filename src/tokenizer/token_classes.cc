// Token classes by utf8proc's normal forms, categories and lower case.
#include "tokenizer/token_classes.h"

#include <fmt/format.h>
#include <utf8proc.h>

#include <algorithm>
#include <cstdlib>
#include <limits>
#include <unordered_map>

#include "base/check.h"
#include "base/text.h"
#include "base/utf8.h"
#include "tokenizer/byte_alphabet.h"
#include "tokenizer/char_class.h"

namespace dsv4::tokenizer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

std::string Normalized(std::string_view text, int options) {
  utf8proc_uint8_t* mapped = nullptr;
  const utf8proc_ssize_t size = utf8proc_map(reinterpret_cast<const utf8proc_uint8_t*>(text.data()),
                                             static_cast<utf8proc_ssize_t>(text.size()), &mapped,
                                             static_cast<utf8proc_option_t>(UTF8PROC_STABLE | options));
  DSV4_CHECK(size >= 0) << "utf8proc refuses well-formed text: " << utf8proc_errmsg(size);
  std::string result(reinterpret_cast<const char*>(mapped), static_cast<size_t>(size));
  std::free(mapped);
  return result;
}

bool IsMark(uint32_t c) {
  const utf8proc_category_t category = utf8proc_category(static_cast<utf8proc_int32_t>(c));
  return category == UTF8PROC_CATEGORY_MN || category == UTF8PROC_CATEGORY_MC ||
         category == UTF8PROC_CATEGORY_ME;
}

bool IsWhite(uint32_t c) {
  const CharClass kind = CharClassTable::Get()[c];
  return kind == CharClass::kSpace || kind == CharClass::kNewline;
}

// Without White_Space at both ends.
std::string_view Stripped(std::string_view text) {
  size_t begin = text.size();
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const CodePoint c = DecodeUtf8(text.data() + at);
    if (!IsWhite(c.value)) {
      begin = std::min(begin, at);
      end = at + c.num_bytes;
    }
    at += c.num_bytes;
  }
  return begin < end ? text.substr(begin, end - begin) : std::string_view();
}

std::string KeyOf(const Tokenizer& tokenizer, TokenId id) {
  std::string bytes(tokenizer.TokenBytes(id));
  std::string spelling;
  if (tokenizer.IsAdded(id)) {
    spelling = bytes;
    bytes = AlphabetToBytes(spelling).value_or(bytes);
  } else {
    for (const char byte : bytes) spelling += ByteToAlphabet(static_cast<unsigned char>(byte));
  }
  const bool whole =
      FindInvalidUtf8(bytes) == std::string::npos && bytes.find(kReplacement) == std::string::npos;
  return whole ? ClassKey(bytes) : spelling;
}

}  // namespace

std::string ClassKey(std::string_view text) {
  const std::string composed = Normalized(text, UTF8PROC_COMPOSE | UTF8PROC_COMPAT);
  const std::string decomposed = Normalized(composed, UTF8PROC_DECOMPOSE);
  std::string key;
  bool after_blank = false;
  for (size_t at = 0; at < decomposed.size();) {
    const CodePoint c = DecodeUtf8(decomposed.data() + at);
    at += c.num_bytes;
    if (IsMark(c.value)) continue;
    const bool blank = c.value == ' ' || c.value == '\t' || c.value == '\r' || c.value == '\n';
    if (!blank) {
      AppendUtf8(static_cast<uint32_t>(utf8proc_tolower(static_cast<utf8proc_int32_t>(c.value))), &key);
    } else if (!after_blank) {
      key += ' ';
    }
    after_blank = blank;
  }
  if (key == " ") return key;
  const std::string_view stripped = Stripped(key);
  return std::string(stripped.empty() ? text : stripped);
}

Result<TokenClasses> MakeTokenClasses(const Tokenizer& tokenizer, int64_t num_ids) {
  if (num_ids < 0 || num_ids > std::numeric_limits<TokenId>::max())
    return Error(
        InvalidArgument(fmt::format("token classes: {}; none or more were wanted", Counted(num_ids, "id"))));
  TokenClasses classes;
  std::unordered_map<std::string, int32_t> class_of_key;
  for (TokenId id = 0; id < num_ids; ++id) {
    if (!tokenizer.IsDefined(id)) {
      return Error(InvalidArgument(fmt::format(
          "token classes: the tokenizer has no token of id {}; the model wants all below {}", id, num_ids)));
    }
    const auto next = static_cast<int32_t>(class_of_key.size());
    classes.of_id.push_back(class_of_key.try_emplace(KeyOf(tokenizer, id), next).first->second);
  }
  classes.count = static_cast<int32_t>(class_of_key.size());
  return classes;
}

}  // namespace dsv4::tokenizer
