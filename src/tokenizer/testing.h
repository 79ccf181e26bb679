// Tokenizers for the tests of this module and its bench. Not part of the library.
#pragma once

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "tokenizer/bpe.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::tokenizer::testing {

// A small tokenizer.json in V4's form whose ids are nothing like the release's. Markers go from 300 down,
// byte b at (7 * b) % 256, a few merges from 400 on, and id 290 without a token.
nlohmann::json ToyFile();
Tokenizer ParseOrDie(const nlohmann::json& file);

// tests/fixtures/tokenizer/deepseek-v3-tokenizer.json.zst; see the README beside it.
std::string ReadReleaseFile();
// The same with the tokens that V4 added.
std::string ReadReleaseFileWithV4Tokens();

// BPE as the definition says it, without any data structure.
std::vector<TokenId> NaiveBpe(const Bpe& bpe, std::string_view piece);

// A well-formed text of `num_chars` characters that visits what the pre-tokenizer tells apart.
std::string RandomText(std::mt19937* random, size_t num_chars);

}  // namespace dsv4::tokenizer::testing
