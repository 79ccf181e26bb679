// Search for a DSpark drafter: in the checkpoint itself or in a folder beside it.
#include "model/checkpoint/dspark_source.h"

#include <fmt/format.h>

#include <filesystem>
#include <iterator>
#include <utility>

#include "io/mapped_file.h"
#include "kv/cache_layout.h"
#include "model/config/dspark_config.h"

namespace dsv4::model {
namespace {

Result<DsparkSource> Resolve(std::shared_ptr<const io::Checkpoint> checkpoint, const ModelConfig& config,
                             const DsparkConfig& dspark) {
  if (dspark.block_size > kv::kMostDraftRows) {
    return Error(Unimplemented(fmt::format("{}: dspark_block_size holds {}, at most {} are supported",
                                           checkpoint->directory(), dspark.block_size, kv::kMostDraftRows)));
  }
  DSV4_ASSIGN_OR_RETURN(ResolvedDspark resolved, ResolveDspark(*checkpoint, config, dspark));
  return DsparkSource{std::move(checkpoint), dspark, std::move(resolved)};
}

}  // namespace

Result<DsparkSource> FindDspark(const std::shared_ptr<const io::Checkpoint>& checkpoint,
                                const ModelConfig& config) {
  if (!config.dspark_fault.empty()) return Error(InvalidArgument(config.dspark_fault));
  if (config.dspark.has_value()) {
    DSV4_ASSIGN_OR_RETURN(DsparkSource source, Resolve(checkpoint, config, *config.dspark));
    const int64_t announced = config.num_nextn_predict_layers;
    // The releases before V4.1 say 1 of any number.
    if (config.drafter_taps_inputs && announced > 0 && announced != std::ssize(source.resolved.stages)) {
      return Error(InvalidArgument(
          fmt::format("{}: key num_nextn_predict_layers: holds {}, wanted {}, the stages of mtp.*",
                      checkpoint->directory(), announced, source.resolved.stages.size())));
    }
    return source;
  }
  const std::filesystem::path folder = std::filesystem::path(checkpoint->directory()) / kDsparkFolder;
  std::error_code error;
  if (!std::filesystem::is_directory(folder, error)) {
    return Error(
        NotFound(fmt::format("{}: no DSpark drafter (no dspark_* keys in config.json, and no folder {})",
                             checkpoint->directory(), kDsparkFolder)));
  }
  const std::string path = (folder / "config.json").string();
  DSV4_ASSIGN_OR_RETURN(const std::string text, io::ReadTextFile(path));
  DSV4_ASSIGN_OR_RETURN(const Json root, ParseJson(text, path));
  DSV4_ASSIGN_OR_RETURN(const std::optional<DsparkConfig> dspark, ParseDsparkConfig(root, path, config));
  if (!dspark.has_value()) return Error(InvalidArgument(path + ": no dspark_* keys"));
  DSV4_ASSIGN_OR_RETURN(std::shared_ptr<const io::Checkpoint> own, io::Checkpoint::Open(folder.string()));
  return Resolve(std::move(own), config, *dspark);
}

}  // namespace dsv4::model
