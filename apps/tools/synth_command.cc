// `dsv4 synth`: a random checkpoint written, with tokenizer and summary.
#include "apps/tools/synth_command.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <filesystem>
#include <memory>
#include <optional>

#include "apps/shared/model_flags.h"
#include "apps/shared/model_source.h"
#include "apps/terminal/readable.h"
#include "apps/terminal/terminal.h"
#include "base/error_output.h"
#include "base/json.h"
#include "base/text.h"
#include "chat/profile.h"
#include "io/checkpoint.h"
#include "io/mapped_file.h"
#include "io/output_file.h"
#include "model/synthetic/synthetic.h"
#include "session/text_model.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::apps {
namespace {

namespace fs = std::filesystem;

// The file to copy, or nullopt when none was asked for and the source tree has none.
Result<std::optional<std::string>> FindTokenizer(const std::string& asked) {
  std::error_code error;
  if (!asked.empty()) {
    const fs::path path =
        fs::is_directory(asked, error) ? fs::path(asked) / "tokenizer.json" : fs::path(asked);
    if (!fs::is_regular_file(path, error))
      return Error(NotFound(fmt::format("tokenizer {}: no such file", path.string())));
    return std::optional(path.string());
  }
  const Result<std::string> directory = ResolveModelDirectory(ModelFlags());
  if (!directory) return std::optional<std::string>();
  const fs::path path = fs::path(*directory) / "tokenizer.json";
  return fs::is_regular_file(path, error) ? std::optional(path.string()) : std::nullopt;
}

// tokenizer.json with the tokens that the model's chat format wants and the file to copy lacks, as V4's lacks V4.1's. None has an id that
// the vocabulary has not.
Status CopyTokenizer(const std::string& from, const std::string& directory, int64_t vocab_size) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::string text, io::ReadTextFile(from));
  DSV4_ASSIGN_OR_RETURN_STATUS(Json tokenizer, ParseJson(text, from));
  DSV4_ASSIGN_OR_RETURN_STATUS(const chat::ChatProfile* profile, session::FindProfile(directory, ""));
  DSV4_ASSIGN_OR_RETURN_STATUS(const tokenizer::Tokenizer made, tokenizer::Tokenizer::Load(from));
  const std::string to = directory + "/tokenizer.json";
  bool added = false;
  int64_t next = made.num_ids();
  for (const std::string_view marker : profile->RequiredTokens()) {
    if (made.FindToken(marker) || next >= vocab_size) continue;
    tokenizer["added_tokens"].push_back({{"id", next++},
                                         {"content", marker},
                                         {"single_word", false},
                                         {"lstrip", false},
                                         {"rstrip", false},
                                         {"normalized", false},
                                         {"special", true}});
    added = true;
  }
  return io::WriteTextFile(to, added ? tokenizer.dump() : text);
}

// The last line: what there is now, as it is read back.
int Summarize(const SynthOptions& options, bool with_tokenizer) {
  const Result<std::shared_ptr<const io::Checkpoint>> checkpoint = io::Checkpoint::Open(options.directory);
  if (!checkpoint) return Fail(checkpoint.error(), kExitRunFailed);
  fmt::print("{}: random weights of shape {}, format {}, {} in {}, {:.3g} MB; {}\n", options.directory,
             options.shape, options.format, Counted((*checkpoint)->tensors().size(), "tensor"),
             Counted((*checkpoint)->files().size(), "file"),
             static_cast<double>((*checkpoint)->num_bytes()) / 1e6,
             with_tokenizer ? fmt::format("dsv4 run -m {} PROMPT runs it", options.directory)
                            : "without a tokenizer dsv4 bench and logits run it, dsv4 run does not");
  return kExitOk;
}

}  // namespace

int RunSynthCommand(const SynthOptions& options) {
  const std::optional<model::SyntheticFormat> format = model::SyntheticFormatFromName(options.format);
  if (!format) {
    return Fail(InvalidArgument(fmt::format("format {}: unknown, wanted one of {}", options.format,
                                            fmt::join(model::SyntheticFormatNames(), ", "))),
                kExitBadUsage);
  }
  ProgressBar bar("writing");
  model::SyntheticOptions synthetic;
  synthetic.shape = options.shape;
  if (options.num_layers > 0) synthetic.num_layers = options.num_layers;
  synthetic.format = *format;
  synthetic.seed = options.seed;
  synthetic.mtp = options.mtp;
  synthetic.dspark = options.dspark;
  if (const Result<std::string> config = model::SyntheticConfig(synthetic); !config) {
    return Fail(config.error(), kExitBadUsage);
  }

  const Result<std::optional<std::string>> tokenizer = FindTokenizer(options.tokenizer);
  if (!tokenizer) return Fail(tokenizer.error(), kExitBadInput);
  if (tokenizer->has_value()) {
    const Status fitted = FitTokenizer(**tokenizer, synthetic);
    if (!fitted.ok()) return Fail(fitted, kExitBadInput);
  }
  const Status written = model::WriteSyntheticCheckpoint(
      options.directory, synthetic, {.progress = [&](int64_t done, int64_t total) {
        bar.Update(done, total, fmt::format("{} of {}", ReadableBytes(done), ReadableBytes(total)));
      }});
  bar.Clear();
  if (!written.ok()) {
    return Fail(written, written.code() == StatusCode::kInvalidArgument ? kExitBadUsage : kExitRunFailed);
  }
  if (!tokenizer->has_value()) {
    PrintError("dsv4: no tokenizer.json: none was given and there is no small model\n");
    return Summarize(options, /*with_tokenizer=*/false);
  }
  if (const Status copied = CopyTokenizer(**tokenizer, options.directory, *synthetic.vocab_size);
      !copied.ok())
    return Fail(copied.WithContext("the tokenizer's copy"), kExitRunFailed);
  return Summarize(options, /*with_tokenizer=*/true);
}

}  // namespace dsv4::apps
