// Golden models by name: their parts, prompts and logits, and runs of tokens in any pieces.
#include "tests/golden/model_runs.h"

#include <algorithm>
#include <stdexcept>

#include "io/checkpoint.h"
#include "model/arch/architecture.h"

namespace dsv4::testing {
namespace {

template <typename T>
T Take(Result<T> result) {
  if (!result.has_value()) throw std::runtime_error(result.error().ToString());
  return std::move(*result);
}

std::vector<std::string> GoldensWith(const std::string& file) {
  std::vector<std::string> names;
  for (const std::string& name : GoldenModels()) {
    if (std::filesystem::exists(ModelDirectory(name) / file)) names.push_back(name);
  }
  return names;
}

}  // namespace

std::vector<std::string> GoldenModels() {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(GoldenDirectory() / "models")) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::vector<std::string> TransformersGoldens() { return GoldensWith("logits.prefill.npy"); }
std::vector<std::string> ReleaseGoldens() { return GoldensWith("logits.release.npy"); }

std::filesystem::path ModelDirectory(const std::string& golden) {
  return GoldenDirectory() / "models" / golden;
}

std::vector<int32_t> GoldenTokens(const std::string& golden) {
  return ReadJson(ModelDirectory(golden) / "tokens.json").get<std::vector<int32_t>>();
}

std::vector<std::vector<int32_t>> ShortPrompts(const std::string& golden) {
  return ReadJson(ModelDirectory(golden) / "short.json").get<std::vector<std::vector<int32_t>>>();
}

std::vector<float> GoldenLogits(const std::string& golden, const std::string& file) {
  return ReadNpy(ModelDirectory(golden) / file).values;
}

std::filesystem::path SharedDirectory() { return GoldenDirectory() / "shared"; }

model::ModelConfig SharedConfig() {
  model::ModelConfig config = Take(model::LoadModelConfig(SharedDirectory().string()));
  const Json layers = ReadJson(SharedDirectory() / "layers.json");
  for (size_t i = 0; i < config.layers.size(); ++i) {
    const Json& from = layers.at(i);
    model::LayerPlan plan = config.layers[i];
    plan.ratio = from.at("ratio").get<int64_t>();
    plan.overlap = from.at("overlap").get<int64_t>();
    plan.entries = from.at("entries").get<int>();
    plan.keys = from.at("keys").get<int>();
    plan.selection = from.at("selection").get<int>();
    config.layers[i] = plan;
  }
  if (const Status status = model::CheckPlans(config.layers, "layers.json"); !status.ok())
    throw std::runtime_error(status.ToString());
  return config;
}

ModelParts LoadParts(const std::string& golden, model::Numerics numerics, bool drafter) {
  const std::string directory = ModelDirectory(golden).string();
  ModelParts parts{.config = Take(model::LoadModelConfig(directory)), .weights = {}};
  parts.weights = Take(model::LoadWeights(
      Take(io::Checkpoint::Open(directory)), parts.config,
      {.numerics = numerics, .max_layers = std::nullopt, .mtp = drafter, .dspark = drafter, .progress = {}}));
  return parts;
}

std::unique_ptr<model::Model> LoadGolden(const std::string& golden, model::Numerics numerics,
                                         const Mutation& mutation, const std::string& backend_name,
                                         bool drafter) {
  ModelParts parts = LoadParts(golden, numerics, drafter);
  ops::Backend backend = MakeGoldenBackend(backend_name);
  model::ModelOptions options;
  options.numerics = numerics;
  if (mutation.parts) mutation.parts(parts);
  if (mutation.ops) mutation.ops(backend.table);
  if (mutation.options) mutation.options(options);
  return Take(model::Model::FromWeights(std::move(parts.config), std::move(parts.weights), backend, options));
}

std::vector<float> RunPieces(model::Model& model, std::span<const int32_t> tokens,
                             std::vector<int64_t> pieces, model::Observer* observer) {
  kv::SequenceState state = Take(model.NewSequence());
  std::vector<float> logits;
  for (size_t at = 0, turn = 0; at < tokens.size(); ++turn) {
    const auto length =
        std::min(static_cast<size_t>(pieces[std::min(turn, pieces.size() - 1)]), tokens.size() - at);
    const model::SequenceChunk chunk = {
        .state = &state, .tokens = tokens.subspan(at, length), .logits = model::LogitsRows::kAll};
    const model::StepOutput output = Take(model.Step(std::span(&chunk, 1), observer));
    logits.insert(logits.end(), output.logits.begin(), output.logits.end());
    at += length;
  }
  return logits;
}

std::vector<float> RunDrafts(model::Model& model, std::span<const int32_t> tokens, int64_t num_drafted) {
  kv::SequenceState state = Take(model.NewSequence());
  const auto row = static_cast<size_t>(num_drafted * model.config().vocab_size);
  std::vector<float> logits((tokens.size() - 1) * row);
  for (size_t at = 0; at + 1 < tokens.size(); ++at) {
    const model::SequenceChunk chunk = {.state = &state, .tokens = tokens.subspan(at, 1)};
    Take(model.Step(std::span(&chunk, 1)));
    const model::DraftChunk draft = {
        .state = &state,
        .token = tokens[at + 1],
        .choices = std::vector<sampling::ChoiceParams>(static_cast<size_t>(num_drafted), {.temperature = 0}),
        .logits = logits.data() + at * row};
    Take(model.Draft(std::span(&draft, 1), {}));
  }
  return logits;
}

CosineBound PlainBound() { return {.min = 0.99999, .median = -1, .p5 = -1}; }
CosineBound ReleaseBound() { return {.min = -1, .median = 0.99993, .p5 = 0.9996}; }

}  // namespace dsv4::testing
