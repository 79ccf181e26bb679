// The flags every subcommand takes, and what they resolve to.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "apps/tiers/slot_trade.h"
#include "base/status.h"
#include "io/chosen_reads.h"
#include "model/placement/verify_split.h"
#include "model/planning/memory_plan.h"
#include "model/runtime/model.h"

namespace dsv4::comm {
struct ExchangeHooks;  // comm/observed_group.h
}
namespace dsv4::apps {

// Process exit codes (docs/commands.md).
inline constexpr int kExitOk = 0;
inline constexpr int kExitRunFailed = 1;
inline constexpr int kExitBadUsage = 2;
inline constexpr int kExitBadInput = 3;
inline constexpr int kExitInterrupted =
    130;  // By Ctrl-C: main ends by the signal itself, so that loops of a shell end too.

class ModelSource;  // apps/shared/model_source.h

struct ModelFlags {
  std::string model;    // -m; empty: DSV4_MODEL, else the small model that ships with the source.
  std::string weights;  // --weights, instead of -m: model::ParseSyntheticName. Empty: none.
  // "cpu", "cuda" or "reference"; of a command line first "auto" too, until ChooseBackend
  // (apps/shared/choose_backend.h).
  std::string backend = "cpu";
  std::string no_gpu;       // Why "auto" became "cpu"; empty where it did not.
  std::string host_option;  // An option in force that only a host's backend has: "--isa".
  std::string numerics = "release";
  std::string cache_rows = "packed";
  std::string shared_expert_clamp = "on";
  int64_t max_layers = 0;  // 0: all.
  bool mtp = false;        // model::ModelOptions::mtp and dspark: --speculation wants them,
  bool dspark = false;
  bool hash_weights = false;        // model::ModelOptions::hash_weights
  bool drafter_if_it_fits = false;  // and does without where a device has no room for one.
  std::string draft_head = "auto";  // --draft-head, of a drafter: model::ParseDraftHead, or "auto".
  int num_threads = 0;              // 0: one per core.
  std::string numa = "auto";        // "off", "interleave" or "auto".
  std::string
      experts;  // --experts, for --backend cuda: model::ParseExpertSplit, or "auto". Empty: all resident.
  double gpu_memory = 0;  // --gpu-memory, for --backend cuda: the most that is taken, in GB; 0: what is free.
  // --expert-profile: a file of apps/shared/expert_profile.h, or "off"; empty: the model's own, if there is
  // one.
  std::string expert_profile;
  double host_memory =
      0;  // --host-memory: the most of the host's for its experts, in GB; 0: what is available.
  // Reader that brings experts from disk, once a model is found to be larger than memory.
  std::shared_ptr<io::ChosenReads> chosen_reads = std::make_shared<io::ChosenReads>();
  int64_t pass_tokens = 0;  // Most tokens of one pass through the layers; 0: what suits the backend.

  int num_ranks = 0;  // Processes that run the model together; 0: as the environment says, else 1.
  bool explain =
      false;          // --backend cuda keeps which kernels it chose (backend/cuda/cuda_backend.h, ChoicesOf).
  int device = 0;     // Device of this machine, for --backend cuda: a rank's is its LOCAL_RANK.
  bool peers = true;  // --peer-exchange
  std::string placement = "auto";     // model::ParsePlacement
  std::string placed_for;             // --for: "latency" or "throughput"; empty: not said.
  std::string usually_for;            // The same of the command, for ranks on GPUs.
  double rank_timeout_seconds = 120;  // For which a rank waits for another.
  std::string rank_network = "auto";  // "tcp": on one machine too.
  // Group made by RankGroup::Enter; null for one rank.
  std::shared_ptr<comm::Communicator> group;
  std::vector<int> ranks_here = {0};  // On this machine, this one among them.
  double host_share = 1;              // Share of this machine's memory, that is for this rank.
  std::shared_ptr<comm::ExchangeHooks> exchange_hooks;  // Sees the model's exchanges; may be null.
  model::Placement placed;
};

// Room that memory has for sequences, found while a model loads.
struct RoomLeft {
  int64_t context =
      0;  // Tokens of each of those that were planned; at most as many as the model knows, in a group so many.
  int64_t kept = INT64_MAX;  // Bytes on the host for states that are kept for reuse.
  int64_t states = 0;        // Bytes on a device for states of sequences; 0: not known.
  SlotTrade trade;           // The context above is that beside the least slots.
};

// Called while a model loads, after each layer. May be empty.
using LoadCallback = std::function<void(const model::LoadProgress&)>;

// InvalidArgument for options that are wrong together, or that ask for more than the model they name has.
// What is wrong with the model itself is for the command to say, which reads it.
Status CheckModelFlags(const ModelFlags& flags);

// Number of --threads, at least 1; by default the cores of the machine, divided among the ranks on it.
int NumThreads(const ModelFlags& flags);

// Number of --pass-tokens; by default 8192 on a device, 512 on the host. More tokens read a long prompt
// faster, since each weight is read once a pass; a pass's scratch and each sequence's window grow with it.
int64_t PassTokens(const ModelFlags& flags);

// The backend --backend names, with memory and threads placed as --numa says (apps/shared/numa_placement.h):
// call it before weights are read or made. FailedPrecondition when this build lacks it.
Result<ops::Backend> MakeBackend(const ModelFlags& flags);

// The backend of the host that multiplies experts for --backend cuda, on --threads threads. The default is
// one a core, less the one that queues the device's work.
Result<ops::Backend> MakeExpertBackend(const ModelFlags& flags);

// How the rows of sequences are kept: what --cache-rows says, where the backend can.
model::CacheRows CacheRowsOf(const ModelFlags& flags);

// Head of drafts by --draft-head. auto: nvfp4 on a GPU, where reading the head is most of a draft's time.
model::DraftHead DraftHeadOf(const ModelFlags& flags);

// Options of the flags for the model, without a progress callback and for one rank.
model::ModelOptions MakeModelOptions(const ModelFlags& flags);

// Loads the model of `source` on `backend`, in a group this rank's part. Logs in one line the loaded model,
// --max-layers included, and how fast it came to a device. On a device the memory for it and for the
// sequences of `memory` is planned first: ResourceExhausted with a table when it does not fit. Where
// `backend` wraps another one, as diag::HookedBackend does, that is `wrapped`. Ranks exchange tensors on its
// device, and experts are counted there. With --experts auto a few steps say whether the split is as fast as
// planned, and another one may be loaded (model::VerifySplit). No other model is on the backend then. Unless
// null, `left` becomes the memory that is left, and `verified` the outcome of those steps.
Result<std::unique_ptr<model::Model>> LoadModel(const ModelFlags& flags, const ModelSource& source,
                                                const ops::Backend& backend, const LoadCallback& progress,
                                                const model::MemoryRequest& memory = {},
                                                const ops::Backend* wrapped = nullptr,
                                                RoomLeft* left = nullptr,
                                                std::optional<model::VerifiedSplit>* verified = nullptr);
// The same on the backend that --backend names.
Result<std::unique_ptr<model::Model>> LoadModel(const ModelFlags& flags, const ModelSource& source,
                                                const LoadCallback& progress,
                                                const model::MemoryRequest& memory = {});

// Prints "dsv4: <status>" on stderr and returns `exit_code`.
int Fail(const Status& status, int exit_code);
// The exit code for a status met while reading a model or an input file. It is kExitBadInput, except for
// faults that no file causes (out of memory, a bug).
int LoadExitCode(const Status& status);

}  // namespace dsv4::apps
