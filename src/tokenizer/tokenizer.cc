// Encoding of spans and decoding of ids, with merges cached by thread.
#include "tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <mutex>
#include <utility>

#include "base/read_file.h"
#include "base/text.h"
#include "base/utf8.h"
#include "tokenizer/added_tokens.h"
#include "tokenizer/bpe.h"
#include "tokenizer/piece_cache.h"
#include "tokenizer/pre_tokenizer.h"
#include "tokenizer/tokenizer_file.h"
#include "tokenizer/vocabulary.h"

namespace dsv4::tokenizer {
namespace {

constexpr size_t kMaxFileBytes = size_t{256} << 20;
constexpr size_t kLongText = size_t{1} << 20;
constexpr size_t kMaxTextBytes = (size_t{1} << 31) - 1;  // Bpe counts bytes in 32 bits.

// Lends caches to calls, so that calls at once do not share one. As many exist as there were calls at once.
class CachePool {
 public:
  std::unique_ptr<PieceCache> Take() {
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        auto cache = std::move(idle_.back());
        idle_.pop_back();
        return cache;
      }
    }
    return std::make_unique<PieceCache>();
  }
  void Return(std::unique_ptr<PieceCache> cache) {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(cache));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<PieceCache>> idle_;
};

}  // namespace

struct Tokenizer::State {
  Vocabulary vocabulary;
  AddedTokenMatcher added_tokens;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  Bpe bpe;
  mutable CachePool caches;

  Result<std::vector<TokenId>> Encode(std::string_view text, const std::vector<ByteRange>& template_regions,
                                      size_t max_ids) const;
  Status EncodeGap(std::string_view text, size_t max_ids, PieceCache* cache, std::vector<TokenId>* ids) const;
};

Tokenizer::Tokenizer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

Result<Tokenizer> Tokenizer::Load(const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, FileKind::kRegular, kMaxFileBytes));
  return Parse(json, path);
}

Result<Tokenizer> Tokenizer::Parse(std::string_view json, std::string_view what) {
  DSV4_ASSIGN_OR_RETURN(const TokenizerFile file, ParseTokenizerFile(json, what));
  const auto build = [&file]() -> Result<Tokenizer> {
    DSV4_ASSIGN_OR_RETURN(Vocabulary vocabulary, Vocabulary::Create(file.vocab, file.added_tokens));
    DSV4_ASSIGN_OR_RETURN(Bpe bpe, Bpe::Create(vocabulary, file.merges));
    DSV4_ASSIGN_OR_RETURN(auto pre_tokenizer, MakePreTokenizer(file.split_rules));
    return Tokenizer(std::unique_ptr<State>(new State{std::move(vocabulary),
                                                      AddedTokenMatcher(file.added_tokens),
                                                      std::move(pre_tokenizer),
                                                      std::move(bpe),
                                                      {}}));
  };
  Result<Tokenizer> tokenizer = build();
  if (!tokenizer) return Error(tokenizer.error().WithContext(what));
  return tokenizer;
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::string_view text, size_t max_ids) const {
  return state_->Encode(text, {{0, text.size()}}, max_ids);
}

Result<std::vector<TokenId>> Tokenizer::Encode(std::span<const TextSpan> spans, size_t max_ids) const {
  std::string text;
  std::vector<ByteRange> template_regions;
  for (const TextSpan& span : spans) {
    const size_t begin = text.size();
    text += span.text;
    if (!span.is_template) continue;
    if (!template_regions.empty() && template_regions.back().end == begin) {
      template_regions.back().end = text.size();
    } else {
      template_regions.push_back({begin, text.size()});
    }
  }
  return state_->Encode(text, template_regions, max_ids);
}

Result<std::vector<TokenId>> Tokenizer::State::Encode(std::string_view text,
                                                      const std::vector<ByteRange>& template_regions,
                                                      size_t max_ids) const {
  if (text.size() > kMaxTextBytes) {
    return Error(OutOfRange(fmt::format("text to encode: got {}, wanted at most {}",
                                        Counted(text.size(), "byte"), kMaxTextBytes)));
  }
  if (const size_t offset = FindInvalidUtf8(text); offset != std::string_view::npos) {
    return Error(InvalidArgument(fmt::format("text to encode: not valid UTF-8 at byte {} (0x{:02X})", offset,
                                             static_cast<uint8_t>(text[offset]))));
  }
  std::vector<TokenId> ids;
  // Growth of a long list would need it twice for a moment. Pages that are not used are not there.
  if (text.size() >= kLongText && max_ids < text.size()) ids.reserve(max_ids + kLongText);
  std::unique_ptr<PieceCache> cache = caches.Take();
  const auto encode_all = [&]() -> Status {
    size_t position = 0;
    for (const AddedTokenMatch& match : added_tokens.FindAll(text, template_regions)) {
      DSV4_RETURN_IF_ERROR(
          EncodeGap(text.substr(position, match.range.begin - position), max_ids, cache.get(), &ids));
      ids.push_back(match.id);
      position = match.range.end;
    }
    return EncodeGap(text.substr(position), max_ids, cache.get(), &ids);
  };
  const Status status = encode_all();
  caches.Return(std::move(cache));
  if (!status.ok()) return Error(status);
  return ids;
}

Status Tokenizer::State::EncodeGap(std::string_view text, size_t max_ids, PieceCache* cache,
                                   std::vector<TokenId>* ids) const {
  const auto check = [&]() -> Status {
    if (ids->size() <= max_ids) return {};
    return OutOfRange(fmt::format("text to encode: more than {}", Counted(max_ids, "token")));
  };
  if (text.empty()) return check();
  const auto compute = [&](std::string_view piece, std::vector<TokenId>* out) {
    bpe.Encode(piece, out, max_ids);
  };
  DSV4_RETURN_IF_ERROR(pre_tokenizer->Split(text, [&](std::string_view piece) {
    if (ids->size() <= max_ids) cache->Append(piece, ids, compute);  // Else it is an error already.
  }));
  return check();
}

std::string Tokenizer::DecodeBytes(std::span<const TokenId> ids) const {
  std::string bytes;
  for (const TokenId id : ids) bytes += TokenBytes(id);
  return bytes;
}

std::string Tokenizer::Decode(std::span<const TokenId> ids) const { return RepairUtf8(DecodeBytes(ids)); }

std::string_view Tokenizer::TokenBytes(TokenId id) const { return state_->vocabulary.Bytes(id); }
bool Tokenizer::IsDefined(TokenId id) const { return state_->vocabulary.IsDefined(id); }
bool Tokenizer::IsAdded(TokenId id) const { return state_->vocabulary.IsAdded(id); }
std::optional<TokenId> Tokenizer::FindToken(std::string_view text) const {
  return state_->vocabulary.Find(text);
}
size_t Tokenizer::longest_token_bytes() const {
  size_t longest = 0;
  for (TokenId id = 0; id < num_ids(); ++id) longest = std::max(longest, TokenBytes(id).size());
  return longest;
}

TokenId Tokenizer::num_ids() const { return state_->vocabulary.num_ids(); }

}  // namespace dsv4::tokenizer
