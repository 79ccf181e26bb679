// Loader of a model's text side: tokenizer, special tokens, stop set, chat profile and vocabulary tree.
#include "session/text_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "base/json.h"
#include "base/log.h"
#include "base/read_file.h"

namespace dsv4::session {
namespace {

// Our own field in generation_config.json; the release's files do not have it.
constexpr const char* kRevisionKey = "dsv4_chat_revision";

// A file that a model directory may lack.
Result<std::optional<std::string>> ReadIfThere(const std::string& path) {
  Result<std::string> text = ReadFile(path, FileKind::kRegular, kMaxModelDocumentBytes);
  if (text) return std::move(*text);
  if (text.error().code() == StatusCode::kNotFound) return std::nullopt;
  return Error(text.error());
}

// The name of the architecture, under any of the keys that a config.json has it.
std::optional<std::string> ModelType(const Json& config) {
  if (!config.is_object()) return std::nullopt;
  for (const char* key : {"model_type", "architectures"}) {
    const Json names = config.value(key, Json());
    const Json& name = names.is_array() && !names.empty() ? names[0] : names;
    if (name.is_string()) return name.get<std::string>();
  }
  if (config.contains("text_config")) return ModelType(config["text_config"]);
  // The flat form of V4.1's configuration names no architecture.
  for (const char* key : {"kv_source_layer_ids", "kv_source_layers", "engram_layer_ids"}) {
    if (config.contains(key)) return "deepseek_v41";
  }
  return std::nullopt;
}

}  // namespace

struct TextModel::LazyTrie {
  std::once_flag made;
  Result<std::shared_ptr<const grammar::TokenTrie>> trie;
};

TextModel::TextModel(tokenizer::Tokenizer made)
    : tokenizer(std::move(made)), trie_(std::make_shared<LazyTrie>()) {}

Result<TextModel> TextModel::ForChat(tokenizer::Tokenizer tokenizer, const chat::ChatProfile* profile) {
  TextModel text(std::move(tokenizer));
  DSV4_ASSIGN_OR_RETURN(text.special, tokenizer::SpecialTokens::Resolve(text.tokenizer));
  for (const std::string_view marker : profile->RequiredTokens()) {
    if (!text.tokenizer.FindToken(marker)) {
      return Error(
          NotFound(fmt::format("tokenizer: no token \"{}\"; a chat of revision {} needs it in added_tokens",
                               marker, profile->revision)));
    }
  }
  text.stop_set = tokenizer::StopSet::ForChat(*text.special);
  for (const std::string_view marker : profile->StopTokens()) {
    if (!text.stop_set.Contains(*text.tokenizer.FindToken(marker)))
      DSV4_TRY(text.stop_set.Add(text.tokenizer, marker));
  }
  text.profile = profile;
  return text;
}

Result<TextModel> TextModel::Load(const std::string& directory, const std::string& revision) {
  DSV4_ASSIGN_OR_RETURN(tokenizer::Tokenizer tokenizer,
                        tokenizer::Tokenizer::Load(directory + "/tokenizer.json"));
  DSV4_ASSIGN_OR_RETURN(const chat::ChatProfile* profile, FindProfile(directory, revision));
  DSV4_ASSIGN_OR_RETURN(TextModel text, ForChat(std::move(tokenizer), profile));
  DSV4_ASSIGN_OR_RETURN(text.card, ModelCard::Read(directory));
  return text;
}

Result<TextModel> TextModel::LoadRaw(const std::string& directory) {
  DSV4_ASSIGN_OR_RETURN(tokenizer::Tokenizer tokenizer,
                        tokenizer::Tokenizer::Load(directory + "/tokenizer.json"));
  TextModel text(std::move(tokenizer));
  for (const std::string_view marker : {tokenizer::kEndOfSentence, tokenizer::kUser}) {
    if (text.tokenizer.FindToken(marker)) DSV4_TRY(text.stop_set.Add(text.tokenizer, marker));
  }
  DSV4_ASSIGN_OR_RETURN(text.card, ModelCard::Read(directory));
  return text;
}

Status TextModel::SetVocabSize(int64_t size, const std::string& name) {
  if (tokenizer.num_ids() > size) {
    return InvalidArgument(fmt::format("{}: tokenizer.json has ids up to {}, config.json a vocab_size of {}",
                                       name, tokenizer.num_ids() - 1, size));
  }
  vocab_size = size;
  return {};
}

std::vector<uint8_t> TextModel::AllowedTokens() const {
  std::vector<uint8_t> allowed(static_cast<size_t>(vocab_size));
  for (int64_t id = 0; id < vocab_size; ++id) {
    allowed[static_cast<size_t>(id)] = tokenizer.IsDefined(static_cast<tokenizer::TokenId>(id)) ? 1 : 0;
  }
  return allowed;
}

std::vector<int32_t> TextModel::StopTokens() const {
  std::vector<int32_t> ids;
  for (const tokenizer::StopSet::Entry& entry : stop_set.entries()) ids.push_back(entry.id);
  return ids;
}

Result<std::shared_ptr<const grammar::TokenTrie>> TextModel::Trie() const {
  std::call_once(trie_->made, [this] {
    grammar::Markers markers;
    if (special) markers = {.think_end = special->think_end, .dsml = special->dsml};
    trie_->trie = grammar::TokenTrie::Create(tokenizer, markers);
  });
  return trie_->trie;
}

Status TextModel::CheckEffort(const std::string& effort) const {
  if (effort.empty() || profile == nullptr) return {};
  const Result<std::string> known = profile->EffortText(effort);
  return known ? Status() : known.error();
}

Result<const chat::ChatProfile*> FindProfile(const std::string& directory, const std::string& revision) {
  chat::RevisionFacts facts;
  if (!revision.empty()) facts.option = revision;
  const std::string config = directory + "/generation_config.json";
  DSV4_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadIfThere(config));
  if (text) {
    DSV4_ASSIGN_OR_RETURN(const Json json, ParseJson(*text, config));
    if (json.contains(kRevisionKey) && json[kRevisionKey].is_string()) facts.metadata = json[kRevisionKey];
  }
  const std::string model = directory + "/config.json";
  DSV4_ASSIGN_OR_RETURN(const std::optional<std::string> model_text, ReadIfThere(model));
  if (model_text) {
    DSV4_ASSIGN_OR_RETURN(const Json json, ParseJson(*model_text, model));
    facts.model_type = ModelType(json);
  }
  DSV4_ASSIGN_OR_RETURN(std::optional<std::string> encoder,
                        ReadIfThere(fmt::format("{}/{}", directory, chat::kEncoderFile)));
  if (encoder) facts.encoder_source = std::move(*encoder);
  return chat::DetectChatProfile(facts);
}

void WarnOfOtherBos(std::span<const int64_t> bos_token_ids, const tokenizer::SpecialTokens& special) {
  if (bos_token_ids.empty() ||
      std::ranges::find(bos_token_ids, special.begin_of_sentence) != bos_token_ids.end())
    return;
  LogWarning(fmt::format("config.json names {} as bos_token_id; {} of tokenizer.json is {}, which is used",
                         fmt::join(bos_token_ids, ", "), tokenizer::kBeginOfSentence,
                         special.begin_of_sentence));
}

}  // namespace dsv4::session
