// Profile file of expert counts: parsing, locking, merging, and order by count.
#include "apps/shared/expert_profile.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <xxhash.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <numeric>
#include <system_error>
#include <utility>

#include "apps/terminal/state_path.h"
#include "base/json.h"
#include "base/log.h"
#include "base/read_file.h"
#include "base/text.h"
#include "base/write_file.h"
#include "io/output_file.h"

namespace dsv4::apps {
namespace {

constexpr std::string_view kFormat = "dsv4 expert profile 1";

Result<ExpertProfile> Parse(const std::string& text, const std::string& path) {
  DSV4_ASSIGN_OR_RETURN(const Json json, ParseJson(text, path));
  const auto wrong = [&](const std::string& what) {
    return Error(InvalidArgument(fmt::format("{}: {}, want what `dsv4 experts profile` writes", path, what)));
  };
  if (!json.is_object() || !json.contains("format") || json["format"] != kFormat)
    return wrong("no expert profile");
  ExpertProfile profile;
  for (const char* key : {"model", "tokens", "counts"}) {
    if (!json.contains(key)) return wrong(fmt::format("no {}", key));
  }
  if (!json["model"].is_string() || !json["tokens"].is_number_integer() || !json["counts"].is_array())
    return wrong("model, tokens or counts are of another type");
  profile.model = json["model"].get<std::string>();
  profile.num_tokens = json["tokens"].get<int64_t>();
  if (json.contains("weights")) {
    if (!json["weights"].is_string()) return wrong("weights are no text");
    profile.weights = json["weights"].get<std::string>();
  }
  for (const Json& layer : json["counts"]) {
    if (!layer.is_array()) return wrong("a layer is no list");
    std::vector<int64_t>& counts = profile.counts.emplace_back();
    for (const Json& count : layer) {
      if (!count.is_number_integer() || count.get<int64_t>() < 0) return wrong("a count is none");
      counts.push_back(count.get<int64_t>());
    }
    if (counts.size() != profile.counts.front().size())
      return wrong(fmt::format("layer {} has {}, layer 0 has {}", profile.counts.size() - 1,
                               Counted(counts.size(), "expert"), profile.counts.front().size()));
  }
  return profile;
}

std::string TextOf(const ExpertProfile& profile) {
  Json json = {{"format", kFormat}, {"model", profile.model}, {"tokens", profile.num_tokens}};
  if (!profile.weights.empty()) json["weights"] = profile.weights;
  json["counts"] = profile.counts;
  return json.dump() + "\n";
}

// The file itself, which a link may stand for: two names of one file have one lock.
std::string RealPath(const std::string& path) {
  std::error_code error;
  const std::filesystem::path real = std::filesystem::weakly_canonical(path, error);
  return error ? path : real.string();
}

// No other process writes the profile while the file beside it is open. Makes the folders on the way.
Result<Descriptor> LockProfile(const std::string& path, std::chrono::milliseconds patience) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  std::error_code error;
  if (!folder.empty()) std::filesystem::create_directories(folder, error);
  if (error) return Error(InvalidArgument(fmt::format("{}: {}", folder.string(), error.message())));
  Result<Descriptor> lock = LockFile(path + ".lock", O_CREAT, 0666, patience);
  if (lock || lock.error().code() == StatusCode::kDeadlineExceeded) return lock;
  return Error(InvalidArgument(lock.error().message()));
}

}  // namespace

std::string ExpertProfilePath(const ModelSource& source) {
  std::error_code error;
  // Folder of the model; what is made in memory has its name only.
  const std::filesystem::path place = std::filesystem::weakly_canonical(source.name(), error);
  const std::string key = error || source.synthetic() ? source.name() : place.string();
  std::string name = std::filesystem::path(key).filename().string();
  std::ranges::replace_if(
      name, [](char c) { return c == '/' || c == ':' || c == ','; }, '-');
  const std::string folder = StatePath("DSV4_EXPERT_PROFILES", "expert-profiles");
  if (folder.empty()) return {};
  return fmt::format("{}/{}-{:016x}.json", folder, name, XXH3_64bits(key.data(), key.size()));
}

Status WriteExpertProfile(const std::string& path, const ExpertProfile& profile) {
  const std::string file = RealPath(path);
  DSV4_ASSIGN_OR_RETURN_STATUS(const Descriptor lock, LockProfile(file, kProfilePatience));
  return io::WriteTextFile(file, TextOf(profile));
}

Status ChangeExpertProfile(const std::string& path, const ProfileChange& change,
                           std::chrono::milliseconds patience) {
  const std::string file = RealPath(path);
  DSV4_ASSIGN_OR_RETURN_STATUS(const Descriptor lock, LockProfile(file, patience));
  const Result<ExpertProfile> kept = ReadExpertProfile(file);
  if (!kept.has_value() && kept.error().code() != StatusCode::kNotFound) return kept.error();
  DSV4_ASSIGN_OR_RETURN_STATUS(const ExpertProfile changed, change(kept.has_value() ? &*kept : nullptr));
  return io::WriteTextFile(file, TextOf(changed));
}

Status CheckExpertProfilePath(const std::string& path) {
  const std::string file = RealPath(path);
  std::error_code error;
  const std::filesystem::file_status there = std::filesystem::status(file, error);
  if (std::filesystem::exists(there) && !std::filesystem::is_regular_file(there))
    return InvalidArgument(
        fmt::format("{}: wanted an ordinary file, which can be read and written again", path));
  DSV4_ASSIGN_OR_RETURN_STATUS(const Descriptor lock, LockProfile(file, kProfilePatience));
  // A partial file beside it, which goes again.
  const Result<io::OutputFile> could = io::OutputFile::Create(file);
  return could.has_value() ? Status() : could.error();
}

Result<ExpertProfile> ReadExpertProfile(const std::string& path) {
  constexpr size_t kMaxBytes = size_t{16} << 20;
  DSV4_ASSIGN_OR_RETURN(const std::string text, ReadFile(path, FileKind::kRegular, kMaxBytes));
  return Parse(text, path);
}

bool OfOtherWeights(const ExpertProfile& profile, const std::string& weights) {
  return !profile.weights.empty() && profile.weights != weights;
}

std::vector<std::vector<int32_t>> OrderByCounts(const ExpertProfile& profile) {
  std::vector<std::vector<int32_t>> order;
  for (const std::vector<int64_t>& counts : profile.counts) {
    std::vector<int32_t>& ids = order.emplace_back(counts.size());
    std::iota(ids.begin(), ids.end(), 0);
    std::ranges::stable_sort(ids, [&](int32_t a, int32_t b) {
      return counts[static_cast<size_t>(a)] > counts[static_cast<size_t>(b)];
    });
  }
  return order;
}

Result<std::vector<std::vector<int32_t>>> ExpertOrderOf(const ModelFlags& flags, const ModelSource& source,
                                                        const model::ModelConfig& config) {
  std::vector<std::vector<int32_t>> none;
  if (flags.expert_profile == "off") return none;
  const bool named = !flags.expert_profile.empty();
  // Ranks have layers of their own, which a file of all of them does not name.
  if (flags.group != nullptr) {
    if (!named) return none;
    return Error(Unimplemented("--expert-profile: with several ranks"));
  }
  const std::string path = named ? flags.expert_profile : ExpertProfilePath(source);
  if (path.empty()) return none;
  Result<ExpertProfile> profile = ReadExpertProfile(path);
  if (!profile.has_value()) {
    if (!named && profile.error().code() == StatusCode::kNotFound) return none;
    return Error(profile.error().WithContext("--expert-profile"));
  }
  const auto num_experts = static_cast<size_t>(config.n_routed_experts);
  const auto num_layers =
      static_cast<size_t>(flags.max_layers > 0 ? flags.max_layers : config.num_hidden_layers);
  if (profile->counts.size() < num_layers || profile->counts.front().size() != num_experts) {
    return Error(InvalidArgument(fmt::format(
        "--expert-profile: {} has {} of {}, want {} of {}", path, Counted(profile->counts.size(), "layer"),
        Counted(profile->counts.empty() ? 0 : profile->counts.front().size(), "expert"), num_layers,
        num_experts)));
  }
  DSV4_ASSIGN_OR_RETURN(const std::string weights, source.WeightsStamp());
  if (OfOtherWeights(*profile, weights)) {
    LogWarning(
        fmt::format("experts: {}: counted what other weights chose, before the files of {} were changed; {}",
                    path, source.name(), named ? "used, as the flag says" : "not used"));
    if (!named) return none;
  }
  LogInfo(fmt::format("experts: those come first that {} of {} chose most often",
                      Counted(profile->num_tokens, "token"), path));
  profile->counts.resize(num_layers);
  return OrderByCounts(*profile);
}

}  // namespace dsv4::apps
