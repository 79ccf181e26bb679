#include "apps/tokenize_command.h"

#include <iostream>

#include "apps/model_flags.h"
#include "base/read_file.h"
#include "tokenizer/tokenize_cases.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::apps {

int RunTokenizeCommand(const TokenizeOptions& options) {
  const auto tokenizer = tokenizer::Tokenizer::Load(options.tokenizer_path);
  if (!tokenizer) return Fail(tokenizer.error(), LoadExitCode(tokenizer.error()));
  const auto cases = ReadFile(options.cases_path, FileKind::kAny);
  if (!cases) return Fail(cases.error(), kExitBadInput);
  const auto lines = tokenizer::TokenizeCases(*tokenizer, *cases, options.cases_path);
  if (!lines) return Fail(lines.error(), LoadExitCode(lines.error()));
  for (const std::string& line : *lines) std::cout << line << '\n';
  std::cout.flush();
  return kExitOk;
}

}  // namespace dsv4::apps
