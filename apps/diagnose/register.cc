// `dsv4 diagnose` on the command line.
#include <CLI/CLI.hpp>
#include <memory>

#include "apps/command_line/command.h"
#include "apps/command_line/shared_flags.h"
#include "apps/diagnose/diagnose_command.h"
#include "apps/terminal/printable.h"

namespace dsv4::apps {

void RegisterDiagnose(Commands& commands) {
  const auto kept = std::make_shared<DiagnoseOptions>();
  DiagnoseOptions& options = *kept;
  CLI::App& diagnose =
      commands.Add("diagnose", "Find out why answers are wrong: cheap experiments that decide",
                   [kept](const Invocation& invocation) {
                     kept->run.model = invocation.model;
                     kept->command_line = CommandLine(invocation.words);
                     kept->version = DSV4_VERSION;
                     return RunDiagnoseCommand(*kept);
                   });
  diagnose
      .add_option("CHECK", options.check,
                  "Which; all: every one, in order, until one makes the rest meaningless")
      ->required()
      ->check(CLI::IsMember(DiagnoseChecks()));
  diagnose.add_option("PROMPT", options.run.prompt,
                      "The question (default: a capital); '-' reads standard input");
  AddConversationFlags(diagnose, options.run);
  diagnose.add_option("--against", options.against_path,
                      "prompt: a rendering, ids or a /tokenize reply of another engine to compare with");
  diagnose.add_option("--log", options.log_path, "stop-set: ids of an answer, to look for a missed turn end");
  diagnose.add_option("--tokens", options.tokens_path,
                      "Checks of the model: these ids instead of the conversation's");
  diagnose
      .add_option("--min-tokens", options.min_tokens,
                  "Checks of the model: repeat shorter ids up to N (0: never)")
      ->check(NonNegative())
      ->capture_default_str();
  diagnose.add_option("--draft", options.draft, "draft: of a model with both drafters this one")
      ->check(CLI::IsMember({"mtp", "dspark"}));
  diagnose.add_option("--chunk", options.chunk, "decode-prefill: size of the chunks")
      ->check(Positive())
      ->capture_default_str();
  diagnose
      .add_option("--tolerance", options.tolerance,
                  "decode-prefill: relative error that passes (0: bit for bit)")
      ->check(NonNegative())
      ->capture_default_str();
  CLI::Option* with = diagnose.add_option("--with", options.with_path, "compare: a dump of another run");
  diagnose.add_option("--with-backend", options.with_backend, "compare: our run on this backend")
      ->check(CLI::IsMember({"reference", "cpu", "cuda"}))
      ->excludes(with);
  diagnose.add_option("--with-numerics", options.with_numerics, "compare: our run with these numerics")
      ->check(CLI::IsMember({"release", "plain"}))
      ->excludes(with);
  diagnose
      .add_option(
          "--ab", options.ab,
          "compare: our run with OP of VARIANT (reference or a CPU tier); each=VARIANT: every op in turn")
      ->type_name("OP=VARIANT")
      ->each([&model = commands.model()](const std::string&) { model.host_option = "--ab"; })
      ->excludes(with)
      ->excludes("--with-backend")
      ->excludes("--with-numerics");
  diagnose.add_flag("--shared", options.shared_inputs,
                    "compare: feed each op the other run's inputs: its own error");
  diagnose.add_option("--bound", options.bound, "compare: relative error of an op that passes")
      ->check(NonNegative());
  diagnose.add_option("--dump", options.dump_path,
                      "Write the tensors of one prefill into this new directory");
  diagnose.add_option("--html", options.html_path, "Write the report as one page with plots to this file");
  diagnose.add_option("--layer", options.layer, "visible: this layer only")->check(NonNegative());
  diagnose.add_option("--position", options.position, "visible: show this position (default: the last)")
      ->check(NonNegative());
  AddSamplingFlags(diagnose, options.run);
}

}  // namespace dsv4::apps
