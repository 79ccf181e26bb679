// Source of a command's model: a checkpoint directory (-m), or random weights made in memory (--weights).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/shared/model_flags.h"
#include "io/checkpoint.h"
#include "model/config/config.h"
#include "model/synthetic/synthetic_shape.h"

namespace dsv4::apps {

// The directory -m names, the snapshot of a checkpoint that `dsv4 pull` fetched (OWNER/NAME), or the default.
// NotFound lists what was tried.
Result<std::string> ResolveModelDirectory(const ModelFlags& flags);

// Raises the vocabulary of `options` to the ids of the tokenizer file, where these are more. Takes the tokens
// that begin and end a text from it.
Status FitTokenizer(const std::string& tokenizer_path, model::SyntheticOptions& options);

class ModelSource {
 public:
  // Nothing large is read or made yet. Errors: as ResolveModelDirectory; of --weights, as ParseSyntheticName
  // and SyntheticConfig (--max-layers beyond the shape).
  static Result<ModelSource> Find(const ModelFlags& flags);

  // For messages: the directory, or "synthetic:mini,nvfp4".
  const std::string& name() const { return name_; }
  // Holds tokenizer.json and what belongs to the chat. Random weights have no text of their own and take that
  // of DSV4_MODEL or the small model; empty when there is none.
  const std::string& text_directory() const { return text_directory_; }
  // The same for what cannot do without: NotFound says why there is none.
  Result<std::string> RequireTextDirectory() const;
  // A directory without a tokenizer is often one of another program: then the error of its config.json, if that has one.
  Status CheckHasText() const;
  bool synthetic() const { return synthetic_.has_value(); }
  // Classes of the token ids, for a model with n-gram tables; empty for others.
  Result<std::vector<int32_t>> TokenClasses(const model::ModelConfig& config) const;

  Result<model::ModelConfig> Config() const;
  // Opens the directory, or makes the weights once. Later calls share them, those of a directory while a
  // caller holds them.
  Result<std::shared_ptr<const io::Checkpoint>> Checkpoint() const;
  // io::Checkpoint::stamp in hexadecimal.
  Result<std::string> WeightsStamp() const;

 private:
  std::string name_;
  std::string text_directory_;
  Status no_text_;  // Why text_directory_ is empty.
  int num_threads_ = 1;
  std::optional<model::SyntheticOptions> synthetic_;
  mutable std::shared_ptr<const io::Checkpoint> made_;  // Random weights only.
  mutable std::weak_ptr<const io::Checkpoint> opened_;  // Checkpoint of a directory.
};

}  // namespace dsv4::apps
