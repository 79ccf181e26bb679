// `dsv4 list`, `show` and `rm`: the models that were pulled to this machine.
#include "apps/pull/models_command.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/shared/model_flags.h"
#include "apps/terminal/printable.h"
#include "apps/terminal/readable.h"
#include "base/error_output.h"
#include "base/json.h"
#include "base/read_file.h"
#include "base/text.h"
#include "hub/cache.h"
#include "model/arch/architecture.h"
#include "model/config/config.h"

namespace dsv4::apps {
namespace {

namespace fs = std::filesystem;

std::string NameOf(const hub::CachedRepository& repository, const hub::CachedSnapshot& snapshot) {
  if (std::ranges::find(snapshot.revisions, "main") != snapshot.revisions.end())
    return repository.repository();
  return repository.repository() + "@" +
         (snapshot.revisions.empty() ? snapshot.commit.substr(0, 12) : snapshot.revisions.front());
}

// The model by its config.json, and whether dsv4 runs it.
struct Kind {
  std::string type;  // Empty without a config.json.
  bool runs = false;
  std::string why_not;
};
Kind KindOf(const fs::path& snapshot) {
  Kind kind;
  const std::string path = (snapshot / "config.json").string();
  const Result<std::string> text = ReadFile(path, FileKind::kRegular, size_t{16} << 20);
  if (!text) {
    kind.why_not = "no config.json";
    return kind;
  }
  if (const Result<Json> json = ParseJson(*text, path); json && json->is_object())
    kind.type = json->value("model_type", Json("")).is_string() ? json->value("model_type", "") : "";
  const Result<model::ModelConfig> config = model::ParseModelConfig(*text, "config.json");
  kind.runs = config.has_value();
  if (!config) kind.why_not = config.error().message();
  return kind;
}

Json ToJson(const hub::CachedRepository& repository, const hub::CachedSnapshot& snapshot) {
  const Kind kind = KindOf(snapshot.path);
  return {{"name", NameOf(repository, snapshot)},
          {"commit", snapshot.commit},
          {"revisions", snapshot.revisions},
          {"path", snapshot.path.string()},
          {"num_files", snapshot.num_files},
          {"num_bytes", snapshot.num_bytes},
          {"model_type", kind.type},
          {"runs", kind.runs}};
}

Result<std::vector<hub::CachedRepository>> Repositories() {
  return hub::ListCache(hub::SettingsFromEnvironment().cache);
}

}  // namespace

int RunListCommand(const ListOptions& options) {
  const Result<std::vector<hub::CachedRepository>> repositories = Repositories();
  if (!repositories) return Fail(repositories.error(), kExitRunFailed);
  Json list = Json::array();
  std::vector<std::array<std::string, 3>> rows;
  for (const hub::CachedRepository& repository : *repositories) {
    for (const hub::CachedSnapshot& snapshot : repository.snapshots) {
      const Kind kind = KindOf(snapshot.path);
      if (options.json) list.push_back(ToJson(repository, snapshot));
      const std::string type = kind.type.empty() ? "not a checkpoint" : kind.type;
      if (!options.names_only || kind.runs)
        rows.push_back({Printable(NameOf(repository, snapshot)), ReadableBytes(snapshot.num_bytes),
                        kind.runs ? type : Printable(type) + ", not for dsv4"});
    }
    if (repository.unfinished_bytes > 0 || repository.snapshots.empty()) {
      if (options.json) {
        list.push_back({{"name", repository.repository()},
                        {"path", repository.folder.string()},
                        {"num_bytes", repository.num_bytes},
                        {"unfinished", true}});
      }
      if (!options.names_only)
        rows.push_back({Printable(repository.repository()), ReadableBytes(repository.num_bytes),
                        "not whole; the same `dsv4 pull` goes on"});
    }
  }
  if (options.json) {
    fmt::print("{}\n", list.dump());
    return kExitOk;
  }
  if (options.names_only) {
    for (const auto& row : rows) fmt::print("{}\n", row[0]);
    return kExitOk;
  }
  if (rows.empty()) {
    PrintError("dsv4: nothing was pulled to {}; dsv4 pull OWNER/NAME fetches a model\n",
               hub::SettingsFromEnvironment().cache.string());
    return kExitOk;
  }
  size_t width = 4;
  for (const auto& row : rows) width = std::max(width, row[0].size());
  fmt::print("{:<{}}  {:>9}  {}\n", "NAME", width, "SIZE", "MODEL");
  for (const auto& row : rows) fmt::print("{:<{}}  {:>9}  {}\n", row[0], width, row[1], row[2]);
  return kExitOk;
}

int RunShowCommand(const ShowOptions& options) {
  const Result<std::vector<hub::CachedRepository>> repositories = Repositories();
  if (!repositories) return Fail(repositories.error(), kExitRunFailed);
  const Result<hub::Reference> reference = hub::FindInCache(*repositories, options.name);
  if (!reference) return Fail(reference.error(), kExitBadInput);
  const auto repository =
      std::ranges::find(*repositories, reference->repository(), &hub::CachedRepository::repository);
  const auto snapshot = std::ranges::find_if(repository->snapshots, [&](const hub::CachedSnapshot& each) {
    return each.commit == reference->revision ||
           std::ranges::find(each.revisions, reference->revision) != each.revisions.end();
  });
  if (snapshot == repository->snapshots.end()) {
    return Fail(NotFound(fmt::format("{}: revision {} was not pulled whole; `dsv4 pull {}` goes on",
                                     repository->repository(), reference->revision, reference->ToString())),
                kExitBadInput);
  }
  if (options.json) {
    fmt::print("{}\n", ToJson(*repository, *snapshot).dump());
    return kExitOk;
  }
  const Kind kind = KindOf(snapshot->path);
  const auto line = [](std::string_view name, const std::string& text) {
    fmt::print("{:<10}{}\n", name, Printable(text));
  };
  line("name", NameOf(*repository, *snapshot));
  line("commit", snapshot->commit);
  line("folder", snapshot->path.string());
  line("size",
       fmt::format("{} in {}", ReadableBytes(snapshot->num_bytes), Counted(snapshot->num_files, "file")));
  line("model", kind.type.empty() ? "not said" : kind.type);
  if (!kind.runs) {
    line("runs", "no: " + kind.why_not);
    return kExitOk;
  }
  if (const Result<model::ModelConfig> config = model::LoadModelConfig(snapshot->path.string())) {
    line("layers", fmt::format("{}, with {} of which a token takes {}", config->num_hidden_layers,
                               Counted(config->n_routed_experts, "expert"), config->num_experts_per_tok));
    line("context", Counted(config->max_position_embeddings, "token"));
  }
  line("run it", "dsv4 run -m " + NameOf(*repository, *snapshot));
  line("more", "dsv4 inspect -m " + NameOf(*repository, *snapshot) + "   (formats, memory, whether it fits)");
  return kExitOk;
}

int RunRemoveCommand(const RemoveOptions& options) {
  const Result<std::vector<hub::CachedRepository>> repositories = Repositories();
  if (!repositories) return Fail(repositories.error(), kExitRunFailed);
  // All names before anything goes.
  std::vector<std::pair<std::string, hub::Removal>> removals;
  for (const std::string& name : options.names) {
    const Result<hub::Reference> reference = hub::FindInCache(*repositories, name);
    if (!reference) return Fail(reference.error(), kExitBadInput);
    const auto repository =
        std::ranges::find(*repositories, reference->repository(), &hub::CachedRepository::repository);
    const Result<hub::Removal> removal = hub::PlanRemoval(*repository, *reference, options.all_revisions);
    if (!removal)
      return Fail(removal.error(),
                  removal.error().code() == StatusCode::kNotFound ? kExitBadInput : kExitRunFailed);
    removals.emplace_back(options.all_revisions ? repository->repository() : reference->ToString(), *removal);
  }
  for (const auto& [name, removal] : removals) {
    if (options.dry_run) {
      fmt::print("{}: {} would be free\n", name, ReadableBytes(removal.num_bytes));
      for (const fs::path& path : removal.paths) fmt::print("  {}\n", path.string());
      continue;
    }
    if (const Status removed = hub::Remove(removal); !removed.ok()) return Fail(removed, kExitRunFailed);
    PrintError("{}: removed, {} are free\n", name, ReadableBytes(removal.num_bytes));
  }
  return kExitOk;
}

}  // namespace dsv4::apps
