#pragma once

#include <cstdint>

namespace dsv4::tokenizer {

// Index of a row of the embedding. The engine's graph takes i32, hence signed.
using TokenId = int32_t;

// Ids in a file must lie below this bound, so that tables indexed by id stay small whatever the file says.
// The release has 129280; the largest vocabularies known have under 300000.
inline constexpr TokenId kMaxNumTokenIds = 1 << 20;

}  // namespace dsv4::tokenizer
