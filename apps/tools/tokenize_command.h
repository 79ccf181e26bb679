// `dsv4 tokenize`: the tokens of a text; of the texts of a case file their ids and the text they decode to.
#pragma once

#include <optional>
#include <string>

#include "apps/shared/model_flags.h"

namespace dsv4::apps {

struct TokenizeOptions {
  ModelFlags model;                 // Flags of the model whose tokenizer it is when tokenizer_path is empty.
  std::string tokenizer_path;       // A tokenizer.json; it need not have V4's markers.
  std::optional<std::string> text;  // "-": standard input. Either this or cases_path.
  bool json = false;                // Form of `text`.
  std::string cases_path;           // A file in the layout of tests/fixtures/tokenizer-cases.json.
};

// Prints a line for each token of a text: its id, a tab, the piece as a JSON string. Bytes that are no
// character become <0xC3>. Control tokens in it are read as such. With cases, prints one JSON object per case
// on stdout (tokenizer/tokenize_cases.h). Returns the process exit code. A case that cannot be encoded is a
// line of its own and no failure of the command.
int RunTokenizeCommand(const TokenizeOptions& options);

}  // namespace dsv4::apps
