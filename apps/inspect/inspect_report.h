// Report of `dsv4 inspect` about a checkpoint, made without running it: from config, headers and tokenizer.
// It reads the same data as loading does (scales, small tensors, expert ids), so a checkpoint that passes can
// be run. The block scales of NVFP4 tensors tell exact transcodes of MXFP4 from lossy ones.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "apps/inspect/machine_fit.h"
#include "apps/shared/model_source.h"
#include "base/json.h"
#include "base/numa.h"
#include "base/status.h"
#include "model/config/config.h"
#include "model/config/numerics.h"
#include "model/planning/forecast.h"
#include "model/planning/memory_plan.h"

namespace dsv4::apps {

struct InspectRequest {
  ModelSource source;
  model::Numerics numerics = model::Numerics::kRelease;
  model::CacheRows cache_rows = model::CacheRows::kPacked;
  int64_t max_layers = 0;      // 0: all.
  int64_t pass_tokens = 0;     // Tokens of the step that is planned: apps::PassTokens.
  int64_t context = 0;         // Tokens of one sequence; at most max_position_embeddings.
  int64_t batch = 0;           // Sequences at a time.
  model::Placement placement;  // Placement of one rank or several.
  // Kind of ranks, for the planner; a memory of 0 is this machine's, divided by the ranks.
  model::RankKind rank_kind;
  LoadCallback progress;  // While the weights are proven; may be empty.
};

struct InspectReport {
  struct Format {
    int64_t num_tensors = 0;
    int64_t num_bytes = 0;
  };
  struct TokenizerFacts {
    int64_t num_ids = 0;
    std::string chat_revision;                                    // Empty when it is not a chat tokenizer.
    std::vector<std::pair<std::string, int64_t>> special_tokens;  // Empty when it is not a chat tokenizer.
    std::vector<std::pair<std::string, int64_t>> stop_tokens;
    std::string not_chat;  // Why there is no chat, when there is none.
  };
  struct MemoryPlan {
    int64_t context = 0;
    int64_t batch = 0;
    int64_t weights_bytes = 0;         // Bytes of the layers that would run; mapped from the file.
    int64_t layer_weights_bytes = 0;   // Layers' part of them.
    int64_t sequence_bytes = 0;        // One sequence of `context` tokens.
    int64_t fixed_bytes = 0;           // The part of it that does not grow with the tokens: rings.
    double growth_per_token = 0;       // Bytes each further token of context costs.
    std::vector<kv::CachePart> parts;  // The same, by kind of row.
    int64_t step_bytes = 0;            // Activations of the largest pass.
    int64_t total_bytes() const { return weights_bytes + batch * sequence_bytes + step_bytes; }
  };

  std::string directory;
  int64_t num_files = 0;
  int64_t file_bytes = 0;
  int64_t num_tensors = 0;
  model::ModelConfig config;
  int64_t num_layers = 0;             // Layers that would run.
  int64_t num_parameters = 0;         // Parameters of these layers and the rest of the model.
  int64_t num_active_parameters = 0;  // Used for one token.
  // Module ("attn.wq_a", "ffn.experts.w1", "embed") -> stored format -> how many.
  std::vector<std::pair<std::string, std::map<std::string, Format>>> formats;
  std::map<std::string, Format> skipped;  // Draft and vision parts by prefix.
  std::string drafter;  // Kind of the draft tensors, or why they are no drafter; empty where there are none.
  std::vector<std::string> disagreements;
  int64_t num_nvfp4 = 0;
  int64_t num_nvfp4_lossless = 0;  // Exact transcodes of MXFP4.
  std::optional<TokenizerFacts> tokenizer;
  MemoryPlan memory;  // On one rank.
  struct RankPlan {
    model::RankPlace place;
    model::MemoryPlan memory;
  };
  // Capacity of several ranks, each with as much memory for states as one rank would have, relative to that
  // one.
  struct Capacity {
    double sequences = 1;  // Sequences of the context asked for.
    double tokens = 1;     // In the limit of long sequences.
  };
  model::Placement placement;
  std::vector<RankPlan> ranks;             // Plans of several.
  std::vector<model::Forecast> forecasts;  // Forecasts of all placements of so many ranks,
  model::PlacementChoice choice;           // and the planner's choice among them.
  Capacity capacity;
  std::vector<NumaNode> numa_nodes;  // Nodes of this machine.
  NumaPlan numa_plan;                // For this process.
  MachineFitRequest fit_request;
  MachineFit fit;  // On this machine, by one rank.
};

// Errors name the file or tensor at fault.
Result<InspectReport> Inspect(const InspectRequest& request);

Json ToJson(const InspectReport& report);
std::string ToText(const InspectReport& report);

}  // namespace dsv4::apps
