// The architectures that this engine has. This folder is the only room that names a model. Each subfolder
// reads a config.json and says in plans and rows what its layers do and which tensors they have. All other
// rooms ask ModelConfig.
#pragma once

#include <string>
#include <string_view>

#include "base/json.h"
#include "base/status.h"
#include "model/config/config.h"

namespace dsv4::model {

struct Architecture {
  std::string_view name;  // `model_type` of config.json.
  Result<ModelConfig> (*parse)(const Json& root, std::string_view what);
};

// The architecture of a config.json; `what` names the document in errors. InvalidArgument for every other
// one, by its name.
Result<const Architecture*> FindArchitecture(const Json& root, std::string_view what);

// Reads the configuration of whichever architecture it is. The document is hostile until this returns.
// InvalidArgument names the key, what it holds and what is wanted.
Result<ModelConfig> ParseModelConfig(std::string_view json, std::string_view what);

// Reads `directory`/config.json.
Result<ModelConfig> LoadModelConfig(const std::string& directory);

}  // namespace dsv4::model
