// Reads typed values out of a config.json, and the sections that every architecture has.
#pragma once

#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/json.h"
#include "base/status.h"
#include "model/config/config.h"

namespace dsv4::model {

// Bounds that no real model nears and that keep every product of two or three sizes inside int64.
inline constexpr int64_t kMaxWidth = int64_t{1} << 20;
inline constexpr int64_t kMaxVocab = int64_t{1} << 24;
inline constexpr int64_t kMaxLayers = 4096;
inline constexpr int64_t kMaxHeads = 1 << 14;
inline constexpr int64_t kMaxHeadDim = 1 << 14;
inline constexpr int64_t kMaxExperts = 1 << 16;
inline constexpr int64_t kMaxCompressRatio = 1 << 16;
// Smaller ones are 0 once they are floats that an op squares or divides by.
inline constexpr double kSmallestEpsilon = 1e-30;
inline constexpr double kSmallestLimit = 1e-6;
inline constexpr double kMaxTheta = 1e12;
inline constexpr int64_t kMaxPositions =
    std::numeric_limits<int32_t>::max();  // Positions are int32 in the ops.

// Typed values of one JSON object. The first fault sticks in status(); later reads do nothing, so that the caller checks once. A null
// value counts as absent.
class ConfigReader {
 public:
  ConfigReader(const Json& object, std::string where, Status& status)
      : object_(object), where_(std::move(where)), status_(status) {}

  const Json* Find(std::string_view key) const;
  bool Has(std::string_view key) const { return Find(key) != nullptr; }
  const Json* Require(std::string_view key);
  void Fail(std::string_view key, std::string_view got, std::string_view wanted);
  void FailValue(std::string_view key, const Json& got, std::string_view wanted);

  int64_t Int(std::string_view key, int64_t min, int64_t max);
  int64_t IntOr(std::string_view key, int64_t min, int64_t max, int64_t absent);
  int64_t IntOf(std::string_view key, const Json& value, int64_t min, int64_t max);
  double Number(std::string_view key, double min, double max);
  double NumberOr(std::string_view key, double min, double max, double absent);
  double NumberOf(std::string_view key, const Json& value, double min, double max);
  bool BoolOr(std::string_view key, bool absent);
  std::string StringOr(std::string_view key, std::string_view absent);
  std::vector<std::string> Strings(std::string_view key);
  // An object, or nullptr when absent or something else (which is a fault).
  const Json* Object(std::string_view key);
  const Json* Array(std::string_view key, size_t min_size);
  // Faults of a switch that has one value alone.
  void RequireString(std::string_view key, std::string_view wanted);
  void RequireBool(std::string_view key, bool wanted);

  const std::string& where() const { return where_; }
  Status& status() { return status_; }
  bool ok() const { return status_.ok(); }

 private:
  const Json& object_;
  std::string where_;
  Status& status_;
};

// Sizes that every architecture names alike, swiglu_limit, epsilons and hyper-connections.
void ReadSizes(ConfigReader& reader, ModelConfig& config);
// The YaRN half of a rope section: a release rope_scaling or one of transformers' rope_parameters.
void ReadYarn(ConfigReader& section, RopeConfig& rope);
// `expert_dtype` and `quantization_config`.
void ReadQuantization(ConfigReader& reader, ModelConfig& config);
std::vector<int64_t> ReadTokenIds(ConfigReader& reader, std::string_view key, int64_t vocab_size);
// Switches whose other values no release uses and no op implements.
void CheckFixedChoices(ConfigReader& reader);
// Sizes of the indexer, where the plans have one.
void ReadIndexer(ConfigReader& reader, ModelConfig& config);
// Divisibility of heads and number of experts.
void CheckSizes(ConfigReader& reader, const ModelConfig& config);

}  // namespace dsv4::model
