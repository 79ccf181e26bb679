// States that are kept for reuse, in memory and on disk.
#include "engine/state_keeper.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <span>

#include "base/log.h"
#include "base/machine_memory.h"

namespace dsv4::engine {
namespace {

// Memory of running sequences on a rank, at most.
int64_t StateRoom(const EngineCore& core) {
  const int64_t places = core.model.cache_layout().num_places;
  if (core.options.max_state_bytes > 0) return core.options.max_state_bytes / places;
  const int64_t longest = core.model.MostStateBytes(core.context_length);
  const int64_t all = longest * core.options.max_sequences / places;
  const Result<MachineMemory> memory = ReadMachineMemory();
  return memory ? std::min(all, memory->available) : all;
}

// How long a step that has nothing else to do waits for the disk before it looks for cancelled requests.
constexpr std::chrono::milliseconds kLoadTick(10);

}  // namespace

StateKeeper::StateKeeper(EngineCore& core)
    : core_(core),
      store_(core.options.prefix_cache_bytes * core.model.cache_layout().num_places,
             {core.model.stage_layouts().begin(), core.model.stage_layouts().end()},
             core.options.block_tokens, core.options.block_watcher) {
  EngineStats& stats = core.stats;
  for (const kv::CacheLayout& stage : core.model.stage_layouts()) {
    int64_t fixed = 0;
    double entries = 0;
    double keys = 0;
    for (const kv::CachePart& part : kv::CacheParts(stage)) {
      fixed += part.fixed_bytes;
      (part.name == kv::PageKindName(kv::PageKind::kEntries) ? entries : keys) += part.bytes_per_token;
    }
    stats.fixed_state_bytes = std::max(stats.fixed_state_bytes, fixed);
    stats.entry_bytes_per_token = std::max(stats.entry_bytes_per_token, entries);
    stats.indexer_key_bytes_per_token = std::max(stats.indexer_key_bytes_per_token, keys);
  }
  stats.state_room_bytes = StateRoom(core);
  stats.block_tokens = core.options.block_tokens;
  const double block_bytes = (stats.entry_bytes_per_token + stats.indexer_key_bytes_per_token) *
                             static_cast<double>(stats.block_tokens);
  const int64_t room = stats.state_room_bytes + core.options.prefix_cache_bytes;
  if (block_bytes > 0) stats.num_blocks = static_cast<int64_t>(static_cast<double>(room) / block_bytes);
}

bool StateKeeper::Trusts() {
  if (gave_up_) return false;
  const Status unchanged = core_.model.FilesUnchanged();
  if (unchanged.ok()) return true;
  gave_up_ = true;
  store_.Clear();
  if (core_.options.prefix_disk != nullptr) {
    core_.options.prefix_disk->Disable(unchanged);
  } else {
    LogWarning(fmt::format("prefix cache: {}; no state is kept or reused until the next start",
                           unchanged.ToString()));
  }
  return false;
}

void StateKeeper::Keep(Sequence& sequence) {
  if (!enabled() || !sequence.state || sequence.state->poisoned() || !sequence.state->whole() || !Trusts())
    return;
  const uint64_t salt = sequence.request.cache_salt;
  store_.Keep(salt, sequence.Known(), *sequence.state);
  PrefixDisk* disk = core_.options.prefix_disk;
  if (disk == nullptr) return;
  const bool is_prompt = sequence.length() == core_.MostReusable(sequence.num_prompt_tokens);
  if (sequence.request.publish && is_prompt && sequence.publication == nullptr)
    sequence.publication = disk->Publish(salt, sequence.Known(), *sequence.state);
  else
    disk->Offer(salt, sequence.Known(), *sequence.state);
}

void StateKeeper::KeepIfWanted(Sequence& sequence) {
  if (sequence.IsKeptAt(sequence.length())) {
    Keep(sequence);
  } else if (enabled() && sequence.IsCheckpoint(sequence.length()) && sequence.state->whole() && Trusts()) {
    store_.Keep(sequence.request.cache_salt, sequence.Known(), *sequence.state);
  }
}

std::optional<kv::SequenceState> StateKeeper::Find(const Sequence& sequence) {
  if (!enabled() || !Trusts()) return std::nullopt;
  const uint64_t salt = sequence.request.cache_salt;
  std::optional<kv::SequenceState> state = store_.Find(salt, sequence.tokens);
  if (!state || core_.few_rows == 0) return state;
  const int64_t left = sequence.num_prompt_tokens - state->length();
  if (left <= 0 || left > core_.few_rows) return state;
  // So few rows of a prompt would have other bits than with those in front of them.
  const int64_t usable = sequence.num_prompt_tokens - core_.few_rows;
  if (usable <= 0) return std::nullopt;
  return store_.Find(salt, std::span(sequence.tokens).first(static_cast<size_t>(usable)));
}

int64_t StateKeeper::SharedLength(const Sequence& sequence) const {
  return store_.SharedLength(sequence.request.cache_salt, sequence.tokens);
}

bool StateKeeper::WaitsForDisk(Sequence& sequence) {
  PrefixDisk* disk = core_.options.prefix_disk;
  if (disk == nullptr || sequence.wants_scores()) return false;
  if (sequence.asked_disk || !Trusts()) return false;
  const uint64_t salt = sequence.request.cache_salt;
  if (sequence.load == nullptr) {
    const std::optional<kv::SequenceState> in_memory = store_.Find(salt, sequence.tokens);
    sequence.load =
        disk->Find(salt, sequence.tokens, (in_memory ? in_memory->length() : 0) + kWorthWaitingFor - 1);
  }
  if (sequence.load != nullptr) {
    if (!disk->IsDone(*sequence.load)) return true;
    if (const std::optional<PrefixDisk::Loaded> loaded = disk->Take(*sequence.load))
      store_.Keep(salt, loaded->tokens, loaded->state);
    sequence.load.reset();
  }
  sequence.asked_disk = true;
  return false;
}

void StateKeeper::Tidy() {
  if (core_.options.prefix_disk != nullptr) core_.options.prefix_disk->Tidy();
}

bool StateKeeper::AwaitDisk() {
  if (!core_.publishing.empty()) {
    core_.options.prefix_disk->WaitForWrite(kLoadTick);
    return true;
  }
  if (std::ranges::none_of(core_.waiting, [](const auto& sequence) { return sequence->load != nullptr; }))
    return false;
  core_.options.prefix_disk->WaitForLoad(kLoadTick);
  return true;
}

bool StateKeeper::Evict() {
  return store_.EvictOne() ||
         (core_.options.prefix_disk != nullptr && core_.options.prefix_disk->DropQueue());
}

int64_t StateKeeper::BytesOf(const Sequence& sequence) const {
  return core_.model.MostStateBytes(static_cast<int64_t>(sequence.tokens.size()));
}

int64_t StateKeeper::RunningBytes() const {
  int64_t num_bytes = 0;
  for (const auto& sequence : core_.running) num_bytes += BytesOf(*sequence);
  return num_bytes;
}

void StateKeeper::Count(EngineStats& stats) const {
  const int64_t num_places = core_.model.cache_layout().num_places;
  stats.state_bytes = RunningBytes() / num_places;
  stats.cache_bytes = store_.num_bytes() / num_places;
  stats.cache_states = store_.num_states();
  stats.cache_evictions = store_.num_evictions();
}

}  // namespace dsv4::engine
