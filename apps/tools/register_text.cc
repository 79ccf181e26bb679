// `dsv4 encode`, `parse` and `tokenize` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/command_line/command.h"
#include "apps/tools/encode_command.h"
#include "apps/tools/parse_command.h"
#include "apps/tools/tokenize_command.h"

namespace dsv4::apps {

void RegisterText(Commands& commands) {
  const auto encode = std::make_shared<EncodeOptions>();
  CLI::App& encode_app =
      commands.AddWithoutModel("encode", "Render the conversations of a case file",
                               [encode](const Invocation&) { return RunEncodeCommand(*encode); });
  encode_app
      .add_option("--cases", encode->cases_path, "File in the layout of tests/fixtures/encoding-cases.json")
      ->required();
  const auto parse = std::make_shared<ParseOptions>();
  CLI::App& parse_app =
      commands.AddWithoutModel("parse", "Parse the completions of a case file",
                               [parse](const Invocation&) { return RunParseCommand(*parse); });
  parse_app
      .add_option("--cases", parse->cases_path, "File in the layout of tests/fixtures/parsing-cases.json")
      ->required();
  parse_app.add_flag("--lenient", parse->lenient, "Recover from what a model gets wrong, as a server does");
  const auto tokenize = std::make_shared<TokenizeOptions>();
  CLI::App& tokenize_app =
      commands.AddWithoutModel("tokenize", "The tokens of a text, or of the texts of a case file",
                               [tokenize](const Invocation& invocation) {
                                 tokenize->model = invocation.model;
                                 return RunTokenizeCommand(*tokenize);
                               },
                               {"model"});
  tokenize_app.add_option("--tokenizer", tokenize->tokenizer_path, "tokenizer.json (default: the model's)");
  CLI::Option* text = tokenize_app.add_option("TEXT", tokenize->text, "The text; '-' reads standard input");
  tokenize_app
      .add_option("--cases", tokenize->cases_path,
                  "File in the layout of tests/fixtures/tokenizer-cases.json")
      ->excludes(text);
  tokenize_app.add_flag("--json", tokenize->json, "One JSON document on standard output");
}

}  // namespace dsv4::apps
