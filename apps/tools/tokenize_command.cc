// `dsv4 tokenize`: ids and pieces of a text, or of a case file.
#include "apps/tools/tokenize_command.h"

#include <fmt/format.h>

#include <iostream>
#include <iterator>

#include "apps/shared/model_source.h"
#include "base/error_output.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/text.h"
#include "tokenizer/tokenize_cases.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::apps {
namespace {

int TokenizeText(const tokenizer::Tokenizer& tokenizer, const TokenizeOptions& options) {
  const std::string text =
      *options.text == "-" ? std::string(std::istreambuf_iterator<char>(std::cin), {}) : *options.text;
  const auto ids = tokenizer.Encode(text);
  if (!ids) return Fail(ids.error(), kExitBadUsage);
  Json pieces = Json::array();
  for (const tokenizer::TokenId id : *ids) {
    const tokenizer::TokenId one[] = {id};
    std::string piece = tokenizer.Decode(one);
    const std::string bytes(tokenizer.TokenBytes(id));
    if (piece != bytes) {  // A part of a character.
      piece.clear();
      for (const char byte : bytes) piece += fmt::format("<0x{:02X}>", static_cast<uint8_t>(byte));
    }
    pieces.push_back(std::move(piece));
  }
  if (options.json) {
    fmt::print("{}\n", Json({{"count", ids->size()}, {"ids", *ids}, {"pieces", pieces}}).dump());
    return kExitOk;
  }
  for (size_t i = 0; i < ids->size(); ++i) {
    fmt::print("{}\t{}\n", (*ids)[i], JsonText(pieces[i]));
  }
  PrintError("{}\n", Counted(ids->size(), "token"));
  return kExitOk;
}

}  // namespace

int RunTokenizeCommand(const TokenizeOptions& options) {
  if (!options.text && options.cases_path.empty()) {
    return Fail(InvalidArgument("tokenize: neither TEXT nor --cases"), kExitBadUsage);
  }
  std::string path = options.tokenizer_path;
  if (path.empty()) {
    const Result<std::string> directory = ResolveModelDirectory(options.model);
    if (!directory) return Fail(directory.error(), LoadExitCode(directory.error()));
    path = *directory + "/tokenizer.json";
  }
  const auto tokenizer = tokenizer::Tokenizer::Load(path);
  if (!tokenizer) return Fail(tokenizer.error(), LoadExitCode(tokenizer.error()));
  if (options.text) return TokenizeText(*tokenizer, options);
  const auto cases = ReadFile(options.cases_path, FileKind::kAny);
  if (!cases) return Fail(cases.error(), kExitBadInput);
  const auto lines = tokenizer::TokenizeCases(*tokenizer, *cases, options.cases_path);
  if (!lines) return Fail(lines.error(), LoadExitCode(lines.error()));
  for (const std::string& line : *lines) std::cout << line << '\n';
  std::cout.flush();
  return kExitOk;
}

}  // namespace dsv4::apps
