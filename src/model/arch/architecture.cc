// Which architecture a config.json is of, and the configuration that its room reads.
#include "model/arch/architecture.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "io/mapped_file.h"
#include "model/arch/v4/v4.h"
#include "model/arch/v41/v41.h"
#include "model/config/config_reader.h"

namespace dsv4::model {
namespace {

constexpr Architecture kV4 = {"deepseek_v4", ParseV4Config};
constexpr Architecture kV41 = {"deepseek_v41", ParseV41Config};

constexpr std::string_view kSupported =
    "deepseek_v4 (DeepseekV4ForCausalLM: V4 Flash, Pro and models of their shape) or deepseek_v41 (V4.1 "
    "Flash)";

}  // namespace

// The keys of other architectures would only give confusing errors, so this comes before anything else.
Result<const Architecture*> FindArchitecture(const Json& root, std::string_view what) {
  Status status;
  ConfigReader reader(root, std::string(what), status);
  const std::string model_type = reader.StringOr("model_type", "");
  const std::vector<std::string> architectures = reader.Strings("architectures");
  DSV4_TRY(status);
  if (IsV41Config(root)) return &kV41;
  if (!model_type.empty() && model_type != kV4.name) {
    reader.Fail("model_type", fmt::format("\"{}\"", model_type), kSupported);
  } else if (!architectures.empty() && std::find(architectures.begin(), architectures.end(),
                                                 "DeepseekV4ForCausalLM") == architectures.end()) {
    reader.Fail("architectures", fmt::format("\"{}\"", architectures.front()), kSupported);
  } else if (model_type.empty() && architectures.empty()) {
    reader.Fail("model_type", "missing, and so is architectures", kSupported);
  }
  DSV4_TRY(status);
  return &kV4;
}

Result<ModelConfig> ParseModelConfig(std::string_view json, std::string_view what) {
  DSV4_ASSIGN_OR_RETURN(const Json root, ParseJson(json, what));
  if (!root.is_object()) return Error(InvalidArgument(fmt::format("{}: not a JSON object", what)));
  DSV4_ASSIGN_OR_RETURN(const Architecture* const architecture, FindArchitecture(root, what));
  return architecture->parse(root, what);
}

Result<ModelConfig> LoadModelConfig(const std::string& directory) {
  const std::string path = directory + "/config.json";
  DSV4_ASSIGN_OR_RETURN(const std::string json, io::ReadTextFile(path));
  return ParseModelConfig(json, path);
}

}  // namespace dsv4::model
