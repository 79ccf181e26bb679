// Interpretation and checks of tokenizer.json: model, pre-tokenizer, added tokens.
#include "tokenizer/tokenizer_file.h"

#include <fmt/format.h>

#include <optional>
#include <utility>

#include "base/text.h"
#include "base/utf8.h"
#include "tokenizer/tokenizer_file_reader.h"

namespace dsv4::tokenizer {
namespace {

// Pattern that ByteLevel with use_regex cuts by: GPT-2's.
constexpr std::string_view kGpt2Pattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

constexpr int kMaxSequenceDepth = 8;
constexpr size_t kMaxAddedTokenBytes = 1024;  // Finding them takes time proportional to their length.

// A value for an error message, short whatever the file holds.
std::string Show(const FileJson& value) {
  constexpr size_t kMaxBytes = 80;
  std::string text = value.dump();
  if (text.size() > kMaxBytes) text = RepairUtf8(text.substr(0, kMaxBytes)) + "...";
  return text;
}

const FileJson& Member(const FileJson& object, const char* key) {
  static const FileJson null;
  const auto it = object.find(key);
  return it == object.end() ? null : *it;
}

Status Unsupported(std::string_view where, const FileJson& got, std::string_view wanted) {
  return Unimplemented(fmt::format("{}: got {}, supported: {}", where, Show(got), wanted));
}
Status Malformed(std::string_view where, const FileJson& got, std::string_view wanted) {
  return InvalidArgument(fmt::format("{}: got {}, wanted {}", where, Show(got), wanted));
}

// A boolean member; absent means `fallback`.
Result<bool> Flag(const FileJson& object, const char* key, bool fallback, std::string_view where) {
  const FileJson& value = Member(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) return Error(Malformed(fmt::format("{}.{}", where, key), value, "true or false"));
  return value.get<bool>();
}

bool HasType(const FileJson& value, std::string_view type) {
  if (!value.is_object()) return false;
  const FileJson& name = Member(value, "type");
  return name.is_string() && name.get_ref<const std::string&>() == type;
}

bool IsEmptyList(const FileJson& value) { return value.is_array() && value.empty(); }

Status CheckModel(const FileJson& model) {
  // The release's file names the type; older files leave it out.
  const FileJson& type = Member(model, "type");
  if (!type.is_null() && !HasType(model, "BPE")) return Unsupported("model.type", type, "\"BPE\"");
  const FileJson& dropout = Member(model, "dropout");
  if (!dropout.is_null() && dropout != 0.0) return Unsupported("model.dropout", dropout, "null");
  // Unknown bytes: every byte has a token here (ReadVocab).
  const FileJson& unknown = Member(model, "unk_token");
  if (!unknown.is_null() && !unknown.is_string())
    return Unsupported("model.unk_token", unknown, "null or a string");
  for (const char* key : {"fuse_unk", "byte_fallback"}) {
    const FileJson& value = Member(model, key);
    if (!value.is_null() && !value.is_boolean())
      return Unsupported(fmt::format("model.{}", key), value, "a boolean");
  }
  for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const FileJson& value = Member(model, key);
    if (!value.is_null() && !(value.is_string() && value.get_ref<const std::string&>().empty())) {
      return Unsupported(fmt::format("model.{}", key), value, "null");
    }
  }
  const FileJson& ignore_merges = Member(model, "ignore_merges");
  if (!ignore_merges.is_null() && ignore_merges != false)
    return Unsupported("model.ignore_merges", ignore_merges, "false");
  return {};
}

// Whether it only puts tokens around whole inputs, which the chat format does here.
bool OnlyFrames(const FileJson& post_processor) {
  if (post_processor.is_null()) return true;
  for (const char* type : {"ByteLevel", "TemplateProcessing", "RobertaProcessing", "BertProcessing"}) {
    if (HasType(post_processor, type)) return true;
  }
  if (!HasType(post_processor, "Sequence")) return false;
  const FileJson& parts = Member(post_processor, "processors");
  return parts.is_array() && std::all_of(parts.begin(), parts.end(), [](const FileJson& part) {
           return !HasType(part, "Sequence") && OnlyFrames(part);
         });
}

// The members around the model that may change ids or text.
Status CheckPipeline(const FileJson& root) {
  // To what length whole inputs are cut and filled: a calibration leaves its own there.
  for (const char* key : {"truncation", "padding"}) {
    const FileJson& value = Member(root, key);
    if (!value.is_null() && !value.is_object()) return Unsupported(key, value, "null or an object");
  }
  const FileJson& normalizer = Member(root, "normalizer");
  if (!normalizer.is_null() &&
      !(HasType(normalizer, "Sequence") && IsEmptyList(Member(normalizer, "normalizers")))) {
    return Unsupported("normalizer", normalizer, "null or an empty Sequence");
  }
  const FileJson& post_processor = Member(root, "post_processor");
  if (!OnlyFrames(post_processor)) {
    return Unsupported(
        "post_processor", post_processor,
        "null, ByteLevel, TemplateProcessing, RobertaProcessing, BertProcessing or a Sequence of these");
  }
  const FileJson& decoder = Member(root, "decoder");
  const FileJson& chain = Member(decoder, "decoders");
  const bool is_chain_of_one = HasType(decoder, "Sequence") && chain.is_array() && chain.size() == 1;
  if (!HasType(is_chain_of_one ? chain[0] : decoder, "ByteLevel"))
    return Unsupported("decoder", decoder, "ByteLevel");
  return {};
}

std::optional<SplitBehavior> BehaviorFromName(std::string_view name) {
  if (name == "Isolated") return SplitBehavior::kIsolated;
  if (name == "Removed") return SplitBehavior::kRemoved;
  if (name == "MergedWithPrevious") return SplitBehavior::kMergedWithPrevious;
  if (name == "MergedWithNext") return SplitBehavior::kMergedWithNext;
  if (name == "Contiguous") return SplitBehavior::kContiguous;
  return std::nullopt;
}

Result<SplitRule> ParseSplit(const FileJson& split, std::string_view where) {
  SplitRule rule;
  const FileJson& pattern = Member(split, "pattern");
  const bool is_single = pattern.is_object() && pattern.size() == 1 && pattern.begin()->is_string();
  if (!is_single || (pattern.begin().key() != "Regex" && pattern.begin().key() != "String")) {
    return Error(
        Malformed(fmt::format("{}.pattern", where), pattern, "{\"Regex\": ...} or {\"String\": ...}"));
  }
  rule.pattern = pattern.begin()->get<std::string>();
  rule.is_literal = pattern.begin().key() == "String";
  if (rule.is_literal && rule.pattern.empty()) {
    return Error(Malformed(fmt::format("{}.pattern", where), pattern, "a text that is not empty"));
  }
  const FileJson& behavior = Member(split, "behavior");
  const auto parsed =
      behavior.is_string() ? BehaviorFromName(behavior.get_ref<const std::string&>()) : std::nullopt;
  if (!parsed) {
    return Error(Malformed(fmt::format("{}.behavior", where), behavior,
                           "Isolated, Removed, MergedWithPrevious, MergedWithNext or Contiguous"));
  }
  rule.behavior = *parsed;
  DSV4_ASSIGN_OR_RETURN(rule.invert, Flag(split, "invert", false, where));
  return rule;
}

// Appends the rules of one pre-tokenizer; `seen_byte_level` says whether the byte alphabet has been reached.
Status ParsePreTokenizer(const FileJson& value, std::string_view where, int depth, bool* seen_byte_level,
                         std::vector<SplitRule>* rules) {
  if (HasType(value, "Sequence") && Member(value, "pretokenizers").is_array() && depth < kMaxSequenceDepth) {
    size_t i = 0;
    for (const FileJson& step : Member(value, "pretokenizers")) {
      DSV4_RETURN_IF_ERROR(ParsePreTokenizer(step, fmt::format("{}.pretokenizers[{}]", where, i++), depth + 1,
                                             seen_byte_level, rules));
    }
    return {};
  }
  // Behind ByteLevel a pattern would see the byte alphabet instead of the text.
  if (*seen_byte_level) return Unsupported(where, value, "nothing behind ByteLevel");
  if (HasType(value, "Split")) {
    DSV4_ASSIGN_OR_RETURN_STATUS(SplitRule rule, ParseSplit(value, where));
    rules->push_back(std::move(rule));
    return {};
  }
  if (!HasType(value, "ByteLevel")) return Unsupported(where, value, "Sequence, Split, ByteLevel");
  *seen_byte_level = true;
  DSV4_ASSIGN_OR_RETURN_STATUS(const bool add_prefix_space, Flag(value, "add_prefix_space", true, where));
  if (add_prefix_space) return Unsupported(fmt::format("{}.add_prefix_space", where), true, "false");
  DSV4_ASSIGN_OR_RETURN_STATUS(const bool use_regex, Flag(value, "use_regex", true, where));
  if (use_regex) rules->push_back({.pattern = std::string(kGpt2Pattern)});
  return {};
}

Result<std::vector<AddedToken>> ParseAddedTokens(const FileJson& list) {
  std::vector<AddedToken> tokens;
  if (list.is_null()) return tokens;
  if (!list.is_array()) return Error(Malformed("added_tokens", list, "a list"));
  for (const FileJson& item : list) {
    const std::string where = fmt::format("added_tokens[{}]", tokens.size());
    if (!item.is_object()) return Error(Malformed(where, item, "an object"));
    const FileJson& content = Member(item, "content");
    const size_t num_bytes = content.is_string() ? content.get_ref<const std::string&>().size() : 0;
    if (num_bytes == 0 || num_bytes > kMaxAddedTokenBytes) {
      return Error(Malformed(where + ".content", content,
                             fmt::format("a text of 1 to {}", Counted(kMaxAddedTokenBytes, "byte"))));
    }
    const FileJson& id = Member(item, "id");
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(kMaxNumTokenIds)) {
      return Error(Malformed(fmt::format("{} {}: id", where, Show(content)), id,
                             fmt::format("an integer in [0, {})", kMaxNumTokenIds)));
    }
    for (const char* key : {"lstrip", "rstrip", "single_word"}) {
      DSV4_ASSIGN_OR_RETURN(const bool flag, Flag(item, key, false, where));
      if (flag) return Error(Unsupported(fmt::format("{} {}: {}", where, Show(content), key), true, "false"));
    }
    AddedToken token{.content = content.get<std::string>(),
                     .id = id.get<TokenId>(),
                     .special = false,
                     .normalized = false};
    DSV4_ASSIGN_OR_RETURN(token.special, Flag(item, "special", false, where));
    DSV4_ASSIGN_OR_RETURN(token.normalized, Flag(item, "normalized", !token.special, where));
    tokens.push_back(std::move(token));
  }
  return tokens;
}

Result<TokenizerFile> Interpret(RawTokenizerFile raw) {
  const FileJson& root = raw.rest;
  if (!root.is_object()) return Error(Malformed("document", root, "an object"));
  const FileJson& model = Member(root, "model");
  if (!model.is_object()) return Error(Malformed("model", model, "an object"));
  DSV4_TRY(CheckModel(model));
  if (!raw.has_vocab)
    return Error(Malformed("model.vocab", Member(model, "vocab"), "an object of token: id"));
  if (!raw.has_merges) return Error(Malformed("model.merges", Member(model, "merges"), "a list"));
  DSV4_TRY(CheckPipeline(root));

  TokenizerFile file;
  bool seen_byte_level = false;
  const FileJson& pre_tokenizer = Member(root, "pre_tokenizer");
  DSV4_TRY(ParsePreTokenizer(pre_tokenizer, "pre_tokenizer", 0, &seen_byte_level, &file.split_rules));
  if (!seen_byte_level)
    return Error(Unsupported("pre_tokenizer", pre_tokenizer, "one that ends in ByteLevel"));
  DSV4_ASSIGN_OR_RETURN(file.added_tokens, ParseAddedTokens(Member(root, "added_tokens")));
  file.vocab = std::move(raw.vocab);
  file.merges = std::move(raw.merges);
  return file;
}

}  // namespace

Result<TokenizerFile> ParseTokenizerFile(std::string_view json, std::string_view what) {
  DSV4_ASSIGN_OR_RETURN(RawTokenizerFile raw, ReadTokenizerFile(json, what));
  Result<TokenizerFile> file = Interpret(std::move(raw));
  if (!file) return Error(file.error().WithContext(what));
  return file;
}

}  // namespace dsv4::tokenizer
