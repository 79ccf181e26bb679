// Cuts of prompts into pieces large enough that their rows have a prompt's bits.
#include "engine/schedule/reading_pieces.h"

#include <algorithm>
#include <numeric>

namespace dsv4::engine {
namespace {

// The large piece as near below piece.tokens as can be, else above, of at most `most`; piece.tokens where
// there is none.
int64_t LargePiece(const PromptPiece& piece, int64_t most, int64_t few) {
  if (IsLargePiece(piece, few)) return piece.tokens;
  const int64_t largest_part = piece.left - few - 1;  // Part that leaves enough.
  const int64_t below = std::min(piece.tokens, largest_part);
  if (below > few) return below;
  const int64_t above = few < largest_part ? few + 1 : piece.left;
  return above <= most ? above : piece.tokens;
}

}  // namespace

bool IsLargePiece(const PromptPiece& piece, int64_t few) {
  if (piece.left <= few) return true;
  return piece.tokens > few && (piece.tokens == piece.left || piece.left - piece.tokens > few);
}

void EnlargePieces(std::span<PromptPiece> pieces, int64_t room, int64_t few) {
  int64_t budget = std::accumulate(pieces.begin(), pieces.end(), int64_t{0},
                                   [](int64_t sum, const PromptPiece& piece) { return sum + piece.tokens; });
  for (PromptPiece& piece : pieces) {
    const bool first = &piece == pieces.data();
    piece.tokens = std::min(piece.tokens, std::max<int64_t>(budget, 0));
    piece.tokens = LargePiece(piece, budget + (first ? room : 0), few);
    if (!first && !IsLargePiece(piece, few)) piece.tokens = 0;
    budget -= piece.tokens;
  }
}

}  // namespace dsv4::engine
