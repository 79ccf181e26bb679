// `dsv4 logits`: logits or drafts of a token file, in steps, checked and written as .npy.
#include "apps/tools/logits_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <vector>

#include "apps/shared/chat_file.h"
#include "apps/shared/model_source.h"
#include "apps/terminal/load_bar.h"
#include "apps/terminal/terminal.h"
#include "apps/tools/npy.h"
#include "base/error_output.h"
#include "base/json.h"
#include "base/read_file.h"
#include "diag/checks/first_non_finite.h"
#include "diag/dump.h"
#include "diag/statistics.h"
#include "io/output_file.h"

namespace dsv4::apps {
namespace {

// Rows [0, prefill) in chunks, then a step's rows at a time: the ends of the steps in order.
std::vector<int64_t> StepEnds(int64_t num_tokens, const LogitsOptions& options) {
  const int64_t prefill = options.decode_from >= 0 ? std::min(options.decode_from, num_tokens) : num_tokens;
  const int64_t chunk = options.chunk > 0 ? options.chunk : std::max<int64_t>(prefill, 1);
  std::vector<int64_t> ends;
  for (int64_t end = 0; end < prefill;) ends.push_back(end = std::min(prefill, end + chunk));
  for (int64_t end = prefill; end < num_tokens;)
    ends.push_back(end = std::min(num_tokens, end + options.decode_rows));
  return ends;
}

// Logits that no one can use are an error that says where they come from. `first` is the position of the first row.
Status CheckFinite(model::Model& model, ops::OpContext& context, const std::vector<int32_t>& tokens,
                   const LogitsOptions& options, std::span<const float> logits, int64_t first) {
  if (diag::AllFinite(logits)) return {};
  const auto vocab_size = static_cast<size_t>(model.config().vocab_size);
  const auto bad = std::find_if_not(logits.begin(), logits.end(), [](float x) { return std::isfinite(x); });
  const auto at = static_cast<size_t>(bad - logits.begin());
  const int64_t position = first + static_cast<int64_t>(at / vocab_size);
  std::string where;
  if (options.model.group == nullptr) {  // An observer would see one rank's part only.
    const auto computed = std::span(tokens).first(static_cast<size_t>(position) + 1);
    const Result<std::string> place = diag::WhereNotFinite(model, context, computed);
    if (place && !place->empty()) where = fmt::format("; the first NaN or infinity is in {}", *place);
  }
  return Internal(
      fmt::format("logits: position {}, token {}: got {}, wanted a number{} (dsv4 diagnose checkpoint and "
                  "residual tell more)",
                  position, at % vocab_size, *bad, where));
}

Status WriteLogits(model::Model& model, ops::OpContext& context, const std::vector<int32_t>& tokens,
                   const LogitsOptions& options, model::Observer* observer) {
  const auto num_tokens = static_cast<int64_t>(tokens.size());
  DSV4_ASSIGN_OR_RETURN_STATUS(
      NpyWriter writer,
      NpyWriter::Create(options.output_path, std::array{num_tokens, model.config().vocab_size}));
  DSV4_ASSIGN_OR_RETURN_STATUS(kv::SequenceState state, model.NewSequence());
  const ElapsedLine line("Reading");  // A chunk takes long, and --chunk may be everything.
  ProgressBar bar("Reading");
  int64_t begin = 0;
  for (const int64_t end : StepEnds(num_tokens, options)) {
    const model::SequenceChunk chunk = {
        .state = &state,
        .tokens = std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
        .logits = model::LogitsRows::kAll};
    DSV4_ASSIGN_OR_RETURN_STATUS(const model::StepOutput output, model.Step(std::span(&chunk, 1), observer));
    DSV4_RETURN_IF_ERROR(CheckFinite(model, context, tokens, options, output.logits, begin));
    DSV4_RETURN_IF_ERROR(writer.Append(output.logits));
    begin = end;
    bar.Update(begin, num_tokens);
  }
  bar.Clear();
  return writer.Finish();
}

// Row t: drafted behind token t with token t + 1, which is known; each draft is fed the greedy token of the one before.
Status WriteDrafts(model::Model& model, const std::vector<int32_t>& tokens, const LogitsOptions& options) {
  const auto num_rows = static_cast<int64_t>(tokens.size()) - 1;
  const int64_t vocab_size = model.config().vocab_size;
  DSV4_ASSIGN_OR_RETURN_STATUS(
      NpyWriter writer,
      NpyWriter::Create(options.output_path, std::array{num_rows, options.num_drafts, vocab_size}));
  std::optional<NpyWriter> confidence_writer;
  if (!options.confidence_path.empty()) {
    DSV4_ASSIGN_OR_RETURN_STATUS(
        confidence_writer,
        NpyWriter::Create(options.confidence_path, std::array{num_rows, options.num_drafts}));
  }
  DSV4_ASSIGN_OR_RETURN_STATUS(kv::SequenceState state, model.NewSequence());
  std::vector<float> logits(static_cast<size_t>(options.num_drafts * vocab_size));
  std::vector<float> confidence(static_cast<size_t>(options.num_drafts));
  const std::vector<sampling::ChoiceParams> greedy(static_cast<size_t>(options.num_drafts),
                                                   {.temperature = 0});
  ProgressBar bar("Drafting");
  for (size_t t = 0; t + 1 < tokens.size(); ++t) {
    const model::SequenceChunk chunk = {
        .state = &state, .tokens = std::span(tokens).subspan(t, 1), .logits = model::LogitsRows::kNone};
    DSV4_ASSIGN_OR_RETURN_STATUS(const auto read, model.Step(std::span(&chunk, 1)));
    static_cast<void>(read);
    const model::DraftChunk draft = {
        .state = &state,
        .token = tokens[t + 1],
        .choices = greedy,
        .logits = logits.data(),
        .confidence = confidence_writer.has_value() ? confidence.data() : nullptr};
    DSV4_ASSIGN_OR_RETURN_STATUS(const auto drafted, model.Draft(std::span(&draft, 1), {}));
    static_cast<void>(drafted);
    if (!diag::AllFinite(logits))
      return Internal(fmt::format("logits --draft: row {}: got a NaN or an infinity, wanted numbers", t));
    DSV4_RETURN_IF_ERROR(writer.Append(logits));
    if (confidence_writer.has_value()) DSV4_RETURN_IF_ERROR(confidence_writer->Append(confidence));
    bar.Update(static_cast<int64_t>(t), num_rows);
  }
  bar.Clear();
  if (confidence_writer.has_value()) DSV4_RETURN_IF_ERROR(confidence_writer->Finish());
  return writer.Finish();
}

Status CheckDraft(const LogitsOptions& options, const std::vector<int32_t>& tokens) {
  if (options.draft.empty()) return {};
  if (!options.confidence_path.empty() && options.draft != "dspark")
    return InvalidArgument("logits --confidence: a DSpark drafter says that; wanted --draft dspark");
  if (tokens.size() < 2) return InvalidArgument("logits --draft: got one token, wanted two or more");
  return {};
}

}  // namespace

int RunLogitsCommand(const LogitsOptions& options) {
  if (options.model.group != nullptr && !options.dump_path.empty()) {
    return Fail(InvalidArgument("logits --dump: sees one rank's part only; want no --ranks"), kExitBadUsage);
  }
  const Result<std::string> text = ReadFile(options.tokens_path, FileKind::kAny);
  if (!text) return Fail(text.error(), kExitBadInput);
  const Result<std::vector<int32_t>> tokens = ParseTokenIds(*text, options.tokens_path);
  if (!tokens) return Fail(tokens.error(), kExitBadInput);
  if (const Status status = CheckDraft(options, *tokens); !status.ok()) return Fail(status, kExitBadUsage);
  for (const std::string* path : {&options.output_path, &options.confidence_path}) {
    if (path->empty()) continue;
    const Status writable = io::CheckOutputPath(*path, options.tokens_path);
    if (!writable.ok()) return Fail(writable, kExitBadInput);
  }

  const Result<ModelSource> source = ModelSource::Find(options.model);
  if (!source) return Fail(source.error(), kExitBadInput);
  const Result<ops::Backend> backend = MakeBackend(options.model);
  if (!backend) return Fail(backend.error(), LoadExitCode(backend.error()));
  LoadBar load_bar;
  ModelFlags flags = options.model;
  flags.mtp = options.draft == "mtp";
  flags.dspark = options.draft == "dspark";
  if (flags.draft_head == "auto") flags.draft_head = "stored";  // Numbers are compared with other engines'.
  Result<std::unique_ptr<model::Model>> model =
      LoadModel(flags, *source, *backend, load_bar.callback(),
                {.num_sequences = 1, .context = static_cast<int64_t>(tokens->size())});
  load_bar.Clear();
  if (!model) return Fail(model.error(), LoadExitCode(model.error()));
  if (!options.draft.empty() && !(*model)->can_draft()) {
    return Fail(
        FailedPrecondition(fmt::format("logits --draft {}: {}", options.draft, (*model)->why_no_draft())),
        kExitBadInput);
  }
  if (!options.draft.empty() && options.num_drafts > (*model)->most_drafts()) {
    return Fail(
        InvalidArgument(fmt::format("logits --drafts: got {}, wanted at most {}, those of one block of {}",
                                    options.num_drafts, (*model)->most_drafts(), options.draft)),
        kExitBadUsage);
  }
  for (const int32_t id : *tokens) {
    if (id >= (*model)->config().vocab_size) {
      return Fail(InvalidArgument(fmt::format("{}: token id {}, wanted 0..{}", options.tokens_path, id,
                                              (*model)->config().vocab_size - 1)),
                  kExitBadInput);
    }
  }
  std::unique_ptr<diag::DumpWriter> dump;
  if (!options.dump_path.empty()) {
    auto made = diag::DumpWriter::Create(*backend->context, options.dump_path);
    if (!made) return Fail(made.error(), LoadExitCode(made.error()));
    dump = std::move(*made);
  }
  Status status = options.draft.empty()
                      ? WriteLogits(**model, *backend->context, *tokens, options, dump.get())
                      : WriteDrafts(**model, *tokens, options);
  if (status.ok() && dump != nullptr) status = dump->Finish();
  if (!status.ok()) return Fail(status, kExitRunFailed);
  if (options.model.group != nullptr && options.model.group->rank() != 0) return kExitOk;
  const auto rows = static_cast<int64_t>(tokens->size());
  const int64_t vocab_size = (*model)->config().vocab_size;
  PrintError("dsv4: {}: {} of float32\n", options.output_path,
             options.draft.empty() ? fmt::format("{} x {}", rows, vocab_size)
                                   : fmt::format("{} x {} x {}", rows - 1, options.num_drafts, vocab_size));
  return kExitOk;
}

}  // namespace dsv4::apps
