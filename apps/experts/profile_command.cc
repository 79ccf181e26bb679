// `dsv4 experts profile`: a text read in windows, counts written, shares printed.
#include "apps/experts/profile_command.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <span>
#include <vector>

#include "apps/shared/expert_profile.h"
#include "apps/shared/model_source.h"
#include "apps/terminal/load_bar.h"
#include "apps/terminal/terminal.h"
#include "apps/tiers/choice_counter.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/text.h"
#include "diag/hooked_backend.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::apps {
namespace {

Result<std::vector<int32_t>> Tokens(const ModelSource& source, const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const std::string folder, source.RequireTextDirectory());
  DSV4_ASSIGN_OR_RETURN(const tokenizer::Tokenizer tokenizer,
                        tokenizer::Tokenizer::Load(folder + "/tokenizer.json"));
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(path == "-" ? "/dev/stdin" : path, FileKind::kAny));
  DSV4_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, tokenizer.Encode(text));
  if (tokens.empty()) return Error(InvalidArgument(fmt::format("{}: no text", path)));
  return tokens;
}

Result<ExpertProfile> Profile(const ProfileOptions& options, const ModelSource& source) {
  DSV4_ASSIGN_OR_RETURN(const std::vector<int32_t> tokens, Tokens(source, options.text_path));
  DSV4_ASSIGN_OR_RETURN(ops::Backend backend, MakeBackend(options.model));
  diag::HookedBackend hooked(std::move(backend));
  LoadBar load_bar;
  DSV4_ASSIGN_OR_RETURN(const std::unique_ptr<model::Model> model,
                        LoadModel(options.model, source, hooked.backend(), load_bar.callback(),
                                  {.num_sequences = 1, .context = options.window}, &hooked.inner()));
  load_bar.Clear();
  const model::ModelConfig& config = model->config();
  ChoiceCounter counter(hooked, static_cast<size_t>(model->num_layers()),
                        static_cast<size_t>(config.n_routed_experts));
  const diag::HookedBackend::Scope scope(hooked, counter.Hooks());
  DSV4_ASSIGN_OR_RETURN(kv::SequenceState state, model->NewSequence());
  const auto window = static_cast<size_t>(std::min(options.window, config.max_position_embeddings));
  const ElapsedLine line("Reading");  // A window takes long.
  ProgressBar bar("Reading");
  for (size_t begin = 0; begin < tokens.size(); begin += window) {
    state.Reset();
    const model::SequenceChunk chunk{
        .state = &state,
        .tokens = std::span(tokens).subspan(begin, std::min(window, tokens.size() - begin)),
        .logits = model::LogitsRows::kNone};
    DSV4_ASSIGN_OR_RETURN(const model::StepOutput ignored, model->Step({&chunk, 1}));
    static_cast<void>(ignored);
    bar.Update(static_cast<int64_t>(std::min(begin + window, tokens.size())),
               static_cast<int64_t>(tokens.size()), Counted(tokens.size(), "token"));
  }
  bar.Clear();
  DSV4_ASSIGN_OR_RETURN(std::string weights, source.WeightsStamp());
  return ExpertProfile{.model = source.name(),
                       .weights = std::move(weights),
                       .num_tokens = static_cast<int64_t>(tokens.size()),
                       .counts = counter.counts()};
}

// Share of all choices of a layer, the mean over layers, those of its `num_experts` most chosen experts.
double ShareOf(const ExpertProfile& profile, size_t num_experts) {
  double sum = 0;
  for (std::vector<int64_t> counts : profile.counts) {
    std::ranges::sort(counts, std::ranges::greater());
    double all = 0;
    double first = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      all += static_cast<double>(counts[i]);
      if (i < num_experts) first += static_cast<double>(counts[i]);
    }
    sum += all == 0 ? 0 : first / all;
  }
  return sum / static_cast<double>(profile.counts.size());
}

}  // namespace

int RunProfileCommand(const ProfileOptions& options) {
  const Result<ModelSource> source = ModelSource::Find(options.model);
  if (!source) return Fail(source.error(), LoadExitCode(source.error()));
  const std::string path = options.output_path.empty() ? ExpertProfilePath(*source) : options.output_path;
  if (path.empty())
    return Fail(InvalidArgument("--output: want a file, there is no home for one"), kExitBadUsage);
  std::error_code error;
  if (std::filesystem::equivalent(path, options.text_path, error)) {
    return Fail(InvalidArgument(fmt::format("--output: {}: the text itself, wanted a file of its own", path)),
                kExitBadInput);
  }
  const Result<ExpertProfile> profile = Profile(options, *source);
  if (!profile) return Fail(profile.error(), LoadExitCode(profile.error()));
  if (const Status written = WriteExpertProfile(path, *profile); !written.ok())
    return Fail(written, kExitRunFailed);
  const size_t num_experts = profile->counts.front().size();
  Json shares = Json::array();
  std::string text;
  for (const size_t percent : {10, 25, 50}) {
    const size_t count = std::max<size_t>(1, num_experts * percent / 100);
    const double share = ShareOf(*profile, count);
    shares.push_back({{"experts", count}, {"share", share}});
    text += fmt::format("the {} of {} of a layer that were chosen most often have {:.1f} % of the choices\n",
                        count, Counted(num_experts, "expert"), 100 * share);
  }
  if (options.json) {
    fmt::print("{}\n", Json({{"path", path}, {"tokens", profile->num_tokens}, {"shares", shares}}).dump());
  } else {
    fmt::print("{} of {}: {}\n{}", Counted(profile->num_tokens, "token"),
               Counted(profile->counts.size(), "layer"), path, text);
  }
  return kExitOk;
}

}  // namespace dsv4::apps
