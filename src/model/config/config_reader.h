// Reads typed values out of a config.json, and the sections that every architecture has.
#pragma once

#include <cstdint>
#include <limits>
#include <set>
#include <span>
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
  void RequireInt(std::string_view key, int64_t wanted);

  // Keys with a value that nothing above was asked for.
  std::vector<std::string> Unread() const;
  const std::string& where() const { return where_; }
  Status& status() { return status_; }
  bool ok() const { return status_.ok(); }

 private:
  const Json& object_;
  std::string where_;
  Status& status_;
  mutable std::set<std::string, std::less<>> read_;
};

// Sizes that every architecture names alike, swiglu_limit, epsilons and hyper-connections.
void ReadSizes(ConfigReader& reader, ModelConfig& config);
// The rotary dims of a head, from qk_rope_head_dim or partial_rotary_factor.
void ReadRotaryDim(ConfigReader& reader, ModelConfig& config);
// Both rotary tables, from a release's rope_scaling or transformers' rope_parameters. Wants the plans of the layers.
void ReadRope(ConfigReader& reader, ModelConfig& config);
// `expert_dtype` and `quantization_config`.
void ReadQuantization(ConfigReader& reader, ModelConfig& config);
// Switches whose other values no release uses and no op implements.
void CheckFixedChoices(ConfigReader& reader);
// Sizes of the indexer, where the plans have one.
void ReadIndexer(ConfigReader& reader, ModelConfig& config);
// The rest of every architecture: token ids, whether sizes and plans agree, keys that no reader asked for, and the
// drafter. `status` has the reader's mistakes.
Result<ModelConfig> FinishConfig(ConfigReader& reader, const Json& root, std::string_view what,
                                 const Status& status, ModelConfig config);

}  // namespace dsv4::model
