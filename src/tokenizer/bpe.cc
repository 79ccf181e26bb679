// Byte-pair merges by rank: a hashed pair table, short pieces by scan, long ones by heap.
#include "tokenizer/bpe.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <string>

#include "tokenizer/byte_alphabet.h"

namespace dsv4::tokenizer {
namespace {

// Up to here scanning the ranks of all pairs beats a heap.
constexpr size_t kMaxShortPieceBytes = 64;

// A window of a long piece, and its end that is read again with the next window: there what follows may still
// change the merges.
constexpr size_t kWindowBytes = size_t{32} << 10;
constexpr size_t kOverlapPart = 8;

constexpr uint64_t kEmptyPair = ~uint64_t{0};  // Ids are not negative.

uint64_t PairKey(TokenId left, TokenId right) {
  return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
}

}  // namespace

Result<Bpe> Bpe::Create(const Vocabulary& vocabulary, const std::vector<MergeRule>& merges) {
  Bpe bpe;
  for (int byte = 0; byte < 256; ++byte) {
    const std::string text = ByteToAlphabet(static_cast<unsigned char>(byte));
    const auto id = vocabulary.FindBase(text);
    if (!id) {
      return Error(InvalidArgument(
          fmt::format("model.vocab: no token for byte 0x{:02X} (\"{}\"); a byte-level vocabulary has all 256",
                      byte, text)));
    }
    bpe.byte_tokens_[static_cast<size_t>(byte)] = *id;
  }

  for (TokenId id = 0; id < vocabulary.num_ids(); ++id)
    bpe.num_bytes_.push_back(static_cast<uint32_t>(vocabulary.Bytes(id).size()));

  const size_t num_slots = std::bit_ceil(std::max<size_t>(2 * merges.size(), 2));
  bpe.slots_.assign(num_slots, {kEmptyPair, {kNoRank, 0}});
  bpe.shift_ = 64 - std::countr_zero(num_slots);
  uint32_t rank = 0;
  std::string merged_text;
  for (const MergeRule& rule : merges) {
    merged_text.assign(rule.left).append(rule.right);
    const auto left = vocabulary.FindBase(rule.left);
    const auto right = vocabulary.FindBase(rule.right);
    const auto merged = vocabulary.FindBase(merged_text);
    if (!left || !right || !merged) {
      const std::string& missing = !left ? rule.left : !right ? rule.right : merged_text;
      return Error(
          InvalidArgument(fmt::format("model.merges entry {} (\"{}\" + \"{}\"): \"{}\" is not in model.vocab",
                                      rank, rule.left, rule.right, missing)));
    }
    if (!bpe.Insert(PairKey(*left, *right), {rank, *merged})) {
      return Error(InvalidArgument(
          fmt::format("model.merges entry {} (\"{}\" + \"{}\"): given twice", rank, rule.left, rule.right)));
    }
    ++rank;
  }
  return bpe;
}

size_t Bpe::HomeSlot(uint64_t pair) const {
  // Fibonacci hashing; the fold lets the left token reach the high bits of the product.
  return static_cast<size_t>(((pair ^ pair >> 29) * 0x9E3779B97F4A7C15u) >> shift_);
}

bool Bpe::Insert(uint64_t pair, Merge merge) {
  const size_t mask = slots_.size() - 1;
  size_t i = HomeSlot(pair);
  while (slots_[i].pair != kEmptyPair) {
    if (slots_[i].pair == pair) return false;
    i = (i + 1) & mask;
  }
  slots_[i] = {pair, merge};
  return true;
}

Bpe::Merge Bpe::Find(TokenId left, TokenId right) const {
  const uint64_t pair = PairKey(left, right);
  const size_t mask = slots_.size() - 1;
  size_t i = HomeSlot(pair);
  while (slots_[i].pair != pair && slots_[i].pair != kEmptyPair) i = (i + 1) & mask;
  return slots_[i].merge;  // An empty slot holds kNoRank.
}

void Bpe::Encode(std::string_view piece, std::vector<TokenId>* ids, size_t max_ids) const {
  if (piece.size() <= kMaxShortPieceBytes) {
    EncodeShort(piece, ids);
  } else {
    EncodeLong(piece, max_ids, ids);
  }
}

// Whether the two tokens, whose text is `text`, are what it is encoded to.
//
// A sequence of tokens whose neighbours all stand so is the encoding of its text. Suppose that a merge crosses a
// border of it, and take the first one. The merges before it stayed within tokens. Those within the two at that
// border were the merges of the two alone, in the same order. For the lowest of all is the lowest of these. The one
// that crosses is the lowest of all too, so the two alone would merge across. By the same argument neighbours
// in an encoding stand so.
bool Bpe::StandSideBySide(TokenId left, TokenId right, std::string_view text) const {
  std::vector<TokenId> ids;
  if (text.size() <= kMaxShortPieceBytes)
    EncodeShort(text, &ids);
  else
    EncodeWindow(text, &ids);
  return ids.size() == 2 && ids[0] == left && ids[1] == right;
}

void Bpe::EncodeLong(std::string_view piece, size_t max_ids, std::vector<TokenId>* ids) const {
  const size_t before = ids->size();
  for (size_t window = kWindowBytes; !EncodeByWindows(piece, window, max_ids, ids); window *= 2)
    ids->resize(before);
}

// Windows overlap. The ids of one are taken but for its end, and the next begins there. False where what is
// taken and what follows do not stand side by side, so that longer windows are wanted.
bool Bpe::EncodeByWindows(std::string_view piece, size_t window_bytes, size_t max_ids,
                          std::vector<TokenId>* ids) const {
  const auto length = [&](TokenId id) { return size_t{num_bytes_[static_cast<size_t>(id)]}; };
  std::vector<TokenId> next;
  for (size_t begin = 0; ids->size() <= max_ids;) {
    const std::string_view window = piece.substr(begin, window_bytes);
    next.clear();
    EncodeWindow(window, &next);
    if (begin > 0) {
      const size_t left = length(ids->back());
      const std::string_view text = piece.substr(begin - left, left + length(next.front()));
      if (!StandSideBySide(ids->back(), next.front(), text)) return false;
    }
    if (begin + window.size() == piece.size()) {
      ids->insert(ids->end(), next.begin(), next.end());
      return true;
    }
    size_t taken = window.size();
    while (next.size() > 1 && window.size() - taken < window_bytes / kOverlapPart) {
      taken -= length(next.back());
      next.pop_back();
    }
    ids->insert(ids->end(), next.begin(), next.end());
    begin += taken;
  }
  return true;
}

void Bpe::EncodeShort(std::string_view piece, std::vector<TokenId>* ids) const {
  if (piece.empty()) return;
  std::array<TokenId, kMaxShortPieceBytes> tokens;
  std::array<Merge, kMaxShortPieceBytes> merges;  // merges[i] is that of tokens[i] and tokens[i + 1].
  size_t size = piece.size();
  for (size_t i = 0; i < size; ++i) tokens[i] = ByteToken(static_cast<unsigned char>(piece[i]));
  for (size_t i = 0; i + 1 < size; ++i) merges[i] = Find(tokens[i], tokens[i + 1]);
  while (size > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) {
      if (merges[i].rank < merges[best].rank) best = i;
    }
    if (merges[best].rank == kNoRank) break;
    tokens[best] = merges[best].merged;
    --size;
    for (size_t i = best + 1; i < size; ++i) tokens[i] = tokens[i + 1];
    for (size_t i = best; i + 1 < size; ++i) merges[i] = merges[i + 1];
    if (best > 0) merges[best - 1] = Find(tokens[best - 1], tokens[best]);
    if (best + 1 < size) merges[best] = Find(tokens[best], tokens[best + 1]);
  }
  ids->insert(ids->end(), tokens.begin(), tokens.begin() + size);
}

void Bpe::EncodeWindow(std::string_view piece, std::vector<TokenId>* ids) const {
  constexpr uint32_t kNone = ~uint32_t{0};
  struct Symbol {
    TokenId token;  // -1: merged into a symbol before it.
    uint32_t previous;
    uint32_t next;
  };
  // A merge that was possible when it was put on the heap; stale when the symbols have changed since.
  struct Candidate {
    Merge merge;
    uint32_t position;
    TokenId left;
    TokenId right;
  };
  const auto comes_later = [](const Candidate& a, const Candidate& b) {
    return a.merge.rank != b.merge.rank ? a.merge.rank > b.merge.rank : a.position > b.position;
  };

  const auto size = static_cast<uint32_t>(piece.size());
  std::vector<Symbol> symbols(size);
  for (uint32_t i = 0; i < size; ++i) {
    symbols[i] = {ByteToken(static_cast<unsigned char>(piece[i])), i == 0 ? kNone : i - 1,
                  i + 1 == size ? kNone : i + 1};
  }
  std::vector<Candidate> heap;
  heap.reserve(size);
  const auto make_candidate = [&](uint32_t position) {
    const TokenId left = symbols[position].token;
    const TokenId right = symbols[symbols[position].next].token;
    return Candidate{Find(left, right), position, left, right};
  };
  for (uint32_t i = 0; i + 1 < size; ++i) {
    const Candidate candidate = make_candidate(i);
    if (candidate.merge.rank != kNoRank) heap.push_back(candidate);
  }
  std::make_heap(heap.begin(), heap.end(), comes_later);

  const auto push = [&](uint32_t position) {
    const Candidate candidate = make_candidate(position);
    if (candidate.merge.rank == kNoRank) return;
    heap.push_back(candidate);
    std::push_heap(heap.begin(), heap.end(), comes_later);
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), comes_later);
    const Candidate top = heap.back();
    heap.pop_back();
    Symbol& symbol = symbols[top.position];
    if (symbol.token != top.left || symbol.next == kNone || symbols[symbol.next].token != top.right) continue;
    Symbol& absorbed = symbols[symbol.next];
    symbol.token = top.merge.merged;
    absorbed.token = -1;
    symbol.next = absorbed.next;
    if (symbol.next != kNone) symbols[symbol.next].previous = top.position;
    if (symbol.previous != kNone) push(symbol.previous);
    if (symbol.next != kNone) push(top.position);
  }
  for (uint32_t i = 0; i != kNone; i = symbols[i].next) ids->push_back(symbols[i].token);
}

}  // namespace dsv4::tokenizer
