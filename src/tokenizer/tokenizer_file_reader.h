// The reading half of tokenizer_file.cc: one streaming pass that keeps the two big members apart. Internal to
// the module; include it only in .cc files, the JSON header is heavy.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer_file.h"

namespace dsv4::tokenizer {

// Key order means nothing in tokenizer.json, and this type finds a key in logarithmic time where ordered_json
// searches.
using FileJson = nlohmann::json;

struct RawTokenizerFile {
  FileJson
      rest;  // The document; model.vocab and model.merges are null in it when they had the form expected here.
  std::vector<VocabEntry> vocab;
  std::vector<MergeRule> merges;
  bool has_vocab = false;
  bool has_merges = false;
};

// Errors: InvalidArgument, in the words of ParseTokenizerFile.
Result<RawTokenizerFile> ReadTokenizerFile(std::string_view json, std::string_view what);

}  // namespace dsv4::tokenizer
