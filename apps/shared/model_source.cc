// Source of a model: directory, pulled name, small model or synthetic weights, with its text side and origin.
#include "apps/shared/model_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <utility>

#include "hub/cache.h"
#include "hub/reference.h"
#include "model/arch/architecture.h"
#include "model/synthetic/synthetic.h"
#include "session/token_classes.h"
#include "tokenizer/special_tokens.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::apps {
namespace {

namespace fs = std::filesystem;

// The small model lies in models/tiny of the source tree, above the binary's build directory. In an
// installation it lies in share/dsv4 of the prefix that has the binary in bin.
Result<std::string> FindSmallModel() {
  std::error_code error;
  const fs::path binary = fs::read_symlink("/proc/self/exe", error);
  if (error) return Error(NotFound("no model: give one with -m DIR or DSV4_MODEL"));
  for (fs::path directory = binary.parent_path(); directory != directory.parent_path();
       directory = directory.parent_path()) {
    for (const fs::path& candidate : {directory / "models" / "tiny", directory / "share/dsv4/models/tiny"})
      if (fs::exists(candidate / "config.json", error)) return candidate.string();
  }
  return Error(NotFound(
      fmt::format("no model: neither -m DIR nor DSV4_MODEL is given, and there is no models/tiny above {}",
                  binary.string())));
}

// The format of weights of other programs, where `path` is such a file or a folder of them; else empty.
std::string OtherFormat(const fs::path& path) {
  std::error_code error;
  const auto format_of = [](const fs::path& file) -> std::string_view {
    std::array<char, 4> magic = {};
    std::ifstream(file, std::ios::binary).read(magic.data(), magic.size());
    const std::string extension = file.extension().string();
    if (std::string_view(magic.data(), magic.size()) == "GGUF" || extension == ".gguf")
      return "GGUF, the format of llama.cpp and ollama";
    if (extension == ".bin" || extension == ".pt" || extension == ".pth")
      return "weights that PyTorch pickled";
    if (extension == ".safetensors") return "one file of a checkpoint";
    return {};
  };
  if (fs::is_regular_file(path, error)) return std::string(format_of(path));
  for (fs::directory_iterator at(path, error), end; !error && at != end; at.increment(error)) {
    if (const std::string_view format = format_of(at->path());
        !format.empty() && at->path().extension() != ".safetensors")
      return fmt::format("{} is {}", at->path().filename().string(), format);
  }
  return {};
}

constexpr std::string_view kWantedFormat =
    "dsv4 reads a folder with config.json, tokenizer.json and safetensors, as `dsv4 pull OWNER/NAME` fetches "
    "it";

// The variable that named the model; empty for the command line.
std::string_view ModelOrigin(const ModelFlags& flags) { return flags.model.empty() ? "DSV4_MODEL: " : ""; }

}  // namespace

Result<std::string> ResolveModelDirectory(const ModelFlags& flags) {
  std::string directory = flags.model;
  if (directory.empty()) {
    const char* environment = std::getenv("DSV4_MODEL");
    if (environment == nullptr || *environment == '\0') return FindSmallModel();
    directory = environment;
  }
  std::error_code error;
  if (fs::is_directory(directory, error)) return directory;
  const std::string_view origin = ModelOrigin(flags);
  if (fs::exists(directory, error)) {
    const std::string format = OtherFormat(directory);
    return Error(InvalidArgument(
        fmt::format("{}model {}: a file, wanted a checkpoint's directory{}; {}", origin, directory,
                    format.empty() ? "" : " (it is " + format + ")", kWantedFormat)));
  }
  // A folder comes first, as for git and docker; nothing is fetched here.
  if (const Result<hub::Reference> reference = hub::ParseReference(directory)) {
    const fs::path cache = hub::SettingsFromEnvironment().cache;
    if (const auto snapshot = hub::FindSnapshot(cache, *reference)) return snapshot->string();
    return Error(
        NotFound(fmt::format("{}model {}: neither a directory nor in the cache {}; `dsv4 pull {}` fetches it",
                             origin, directory, cache.string(), directory)));
  }
  // The name alone, where one owner has it.
  if (directory.find('/') == std::string::npos) {
    DSV4_ASSIGN_OR_RETURN(const auto pulled, hub::ListCache(hub::SettingsFromEnvironment().cache));
    const Result<hub::Reference> reference = hub::FindInCache(pulled, directory);
    if (reference) {
      if (const auto snapshot = hub::FindSnapshot(hub::SettingsFromEnvironment().cache, *reference))
        return snapshot->string();
    } else if (reference.error().code() == StatusCode::kInvalidArgument) {
      return Error(reference.error().WithContext(std::string(origin) + "model"));
    }
  }
  return Error(NotFound(fmt::format(
      "{}model {}: neither a directory nor a pulled model, which `dsv4 list` shows", origin, directory)));
}

Status FitTokenizer(const std::string& tokenizer_path, model::SyntheticOptions& options) {
  DSV4_ASSIGN_OR_RETURN_STATUS(const tokenizer::Tokenizer tokenizer,
                               tokenizer::Tokenizer::Load(tokenizer_path));
  DSV4_ASSIGN_OR_RETURN_STATUS(const std::string json, model::SyntheticConfig(options));
  DSV4_ASSIGN_OR_RETURN_STATUS(const model::ModelConfig config,
                               model::ParseModelConfig(json, "synthetic config.json"));
  options.vocab_size = std::max<int64_t>(config.vocab_size, tokenizer.num_ids());
  if (const auto id = tokenizer.FindToken(tokenizer::kBeginOfSentence)) options.bos_token_id = *id;
  if (const auto id = tokenizer.FindToken(tokenizer::kEndOfSentence)) options.eos_token_id = *id;
  return {};
}

Result<ModelSource> ModelSource::Find(const ModelFlags& flags) {
  ModelSource source;
  if (flags.weights.empty()) {
    DSV4_ASSIGN_OR_RETURN(source.name_, ResolveModelDirectory(flags));
    // Paths with neither file are not meant; with one of them the missing file is the better message.
    std::error_code error;
    const fs::path directory = source.name_;
    const auto is_missing = [&](const char* file) { return !fs::exists(directory / file, error) && !error; };
    if (is_missing("config.json") && is_missing("tokenizer.json")) {
      const std::string format = OtherFormat(directory);
      return Error(NotFound(fmt::format(
          "model {}: no checkpoint, which has config.json, tokenizer.json and safetensors there{}",
          source.name_, format.empty() ? "" : fmt::format(": {}; {}", format, kWantedFormat))));
    }
    source.text_directory_ = source.name_;
    return source;
  }
  DSV4_ASSIGN_OR_RETURN(source.synthetic_, model::ParseSyntheticName(flags.weights));
  source.name_ = flags.weights;
  source.num_threads_ = NumThreads(flags);
  if (flags.max_layers > 0) source.synthetic_->num_layers = flags.max_layers;
  if (const Result<model::ModelConfig> config = source.Config(); !config) {
    return Error(config.error().WithContext(source.name_));
  }
  // As `synth` does without --tokenizer, so that both make the same bytes.
  const Result<std::string> other = ResolveModelDirectory(ModelFlags());
  if (!other) {
    source.no_text_ =
        NotFound(fmt::format("{} has no tokenizer of its own: {}; DSV4_MODEL names a directory with one",
                             source.name_, other.error().message()));
    return source;
  }
  const std::string tokenizer = *other + "/tokenizer.json";
  std::error_code error;
  if (fs::is_regular_file(tokenizer, error)) {
    DSV4_TRY(FitTokenizer(tokenizer, *source.synthetic_));
    source.text_directory_ = *other;
  } else {
    source.no_text_ =
        NotFound(fmt::format("{} has no tokenizer of its own: {}: no such file", source.name_, tokenizer));
  }
  return source;
}

Status ModelSource::CheckHasText() const {
  std::error_code error;
  if (synthetic() || std::filesystem::exists(text_directory_ + "/tokenizer.json", error)) return {};
  const Result<model::ModelConfig> config = Config();
  return config ? Status() : config.error();
}

Result<std::string> ModelSource::RequireTextDirectory() const {
  if (text_directory_.empty() && !no_text_.ok()) return Error(no_text_);
  return text_directory_;
}

Result<std::vector<int32_t>> ModelSource::TokenClasses(const model::ModelConfig& config) const {
  if (!config.engram.has_value()) return std::vector<int32_t>();
  return session::TokenClassesOf(text_directory_, config.vocab_size, config.engram->compressed_vocab_size);
}

Result<model::ModelConfig> ModelSource::Config() const {
  if (!synthetic_) return model::LoadModelConfig(name_);
  DSV4_ASSIGN_OR_RETURN(const std::string json, model::SyntheticConfig(*synthetic_));
  return model::ParseModelConfig(json, name_);
}

Result<std::shared_ptr<const io::Checkpoint>> ModelSource::Checkpoint() const {
  if (!synthetic_) {
    std::shared_ptr<const io::Checkpoint> checkpoint = opened_.lock();
    if (checkpoint == nullptr) {
      DSV4_ASSIGN_OR_RETURN(checkpoint, io::Checkpoint::Open(name_));
      opened_ = checkpoint;
    }
    return checkpoint;
  }
  if (made_ == nullptr) {
    DSV4_ASSIGN_OR_RETURN(made_, model::MakeSyntheticCheckpoint(name_, *synthetic_, num_threads_));
  }
  return made_;
}

Result<std::string> ModelSource::WeightsStamp() const {
  DSV4_ASSIGN_OR_RETURN(const auto checkpoint, Checkpoint());
  return fmt::format("{:016x}", checkpoint->stamp().value_or(0));
}

}  // namespace dsv4::apps
