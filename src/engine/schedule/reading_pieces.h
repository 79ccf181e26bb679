// How prompts are cut where a row's last bits depend on how many rows of its sequence come with it
// (Model::most_rows_like_steps). A prompt that is alone is read in large pieces. So no piece of it is to be
// of few rows, whatever else the step has and wherever reading begins. Tokens that steps have chosen one by
// one are read again in pieces of few rows: that is a limit of their chunks (Pending::max_chunk).
#pragma once

#include <cstdint>
#include <span>

namespace dsv4::engine {

// A prompt of which a step reads something.
struct PromptPiece {
  int64_t left = 0;    // Tokens of the prompt that are not read,
  int64_t tokens = 0;  // and of them those that the step is to read, at least one.
};

// Whether a piece is of more than `few` tokens, and leaves none or more than `few`; of a prompt that has no
// more left, any.
bool IsLargePiece(const PromptPiece& piece, int64_t few);

// Changes the pieces of a step so that all are large. Together they have no more tokens than before, but the
// first may take up to `room` more. A piece for which that is not enough waits, with no tokens. Only the
// first, which never waits, may then be of few.
void EnlargePieces(std::span<PromptPiece> pieces, int64_t room, int64_t few);

}  // namespace dsv4::engine
