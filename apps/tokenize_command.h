// `dsv4 tokenize`: token ids of the texts of a case file, and the text they decode to.
#pragma once

#include <string>

namespace dsv4::apps {

struct TokenizeOptions {
  std::string tokenizer_path;  // A tokenizer.json; it need not have V4's markers.
  std::string cases_path;      // A file in the layout of tests/fixtures/tokenizer-cases.json.
};

// Prints one JSON object per case on stdout (see tokenizer/tokenize_cases.h). Returns the process exit code; a case that
// cannot be encoded is a line of its own and no failure of the command.
int RunTokenizeCommand(const TokenizeOptions& options);

}  // namespace dsv4::apps
