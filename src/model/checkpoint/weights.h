// The weights of a model as the graph wants them, borrowed from a mapped checkpoint.
//
// Linear layers are `Weight`s in whatever format the file stores them; they borrow the file's bytes. Small
// tensors (norms, hyper-connections, sinks, ape, router bias) are contiguous F32 views. They are the file's
// bytes where these are aligned F32 already, a converted copy otherwise. tid2eid is I32. All views are on the
// host and live as long as the ModelWeights object, which owns the mapping and the copies. Thread-safe after
// loading: nothing changes.
//
// Shapes use the names of ModelConfig: D hidden_size, d head_dim, I moe_intermediate_size, H hc_mult.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "formats/weight.h"
#include "model/checkpoint/draft_head.h"
#include "model/config/config.h"
#include "model/config/numerics.h"
#include "model/placement/column_split.h"
#include "model/placement/placement.h"
#include "ops/routed_experts.h"
#include "tensor/tensor.h"

namespace dsv4::io {
class Checkpoint;
class ContentDigest;
}  // namespace dsv4::io

namespace dsv4::model {

struct HyperConnectionWeights {
  TensorView fn;     // F32 [hc_mix, H*D]; for the head [H, H*D]
  TensorView base;   // F32 [hc_mix]; head [H]
  TensorView scale;  // F32 [3] pre, post, comb; head [1]
};

// width = overlap * (d or index_head_dim).
struct CompressorWeights {
  Weight wkv;       // [width, D]
  Weight wgate;     // [width, D]; no rows where an entry is of one token.
  TensorView ape;   // F32 [compress_ratio, width]; null where the gate has no bias.
  TensorView norm;  // F32 [d or index_head_dim]
};

struct IndexerWeights {
  Weight wq_b;          // [index_n_heads * index_head_dim, q_lora_rank]
  Weight weights_proj;  // [index_n_heads, D]
};

// Indexer keys from the latents that become entries.
struct KeyWeights {
  Weight wk;        // [index_head_dim, d]
  TensorView norm;  // F32 [index_head_dim]
};

// A table of rows in the checkpoint's files, of which those of a pass are fetched.
struct EngramWeights {
  Weight table;         // [rows, engram head_dim], in the files' pages whatever the backend's memory is.
  Weight wkv;           // [(H + 1) D, row_dim]: a key for each stream, then the value.
  TensorView q_weight;  // F32 [H, D]
  TensorView k_weight;  // F32 [H, D]
};

// SwiGLU: w1 gate [I, D], w3 up [I, D], w2 down [D, I].
using ops::ExpertWeights;

// Which columns the shards of a stage compute (shards.h); empty where the stage is one rank.
struct LayerSplits {
  ColumnSplit o_lora;  // Columns of the o_groups * o_lora_rank that wo_a gives.
  // Rows of the D that wo_b gives; empty where its columns are divided, as wo_a's rows are.
  ColumnSplit attn_out;
  ColumnSplit heads;          // Heads of the num_attention_heads * d of all queries.
  ColumnSplit shared_hidden;  // Columns of the I between the shared expert's linears,
  ColumnSplit shared_out;     // and of the D that it gives; empty where w2's columns are divided.
  ColumnSplit experts;        // kById: of the routed experts.
};

// A shard has a part of the rows of wq_b, attn_sink (the heads of its output groups), wo_a (its groups), wo_b
// and the shared expert. It also has a part of the routed experts. With kByColumns it has columns of wo_b and
// of the shared w2. A weight without any row here has 0 rows.
struct LayerWeights {
  TensorView attn_norm;  // F32 [D]
  TensorView ffn_norm;   // F32 [D]
  HyperConnectionWeights hc_attn;
  HyperConnectionWeights hc_ffn;

  Weight wq_a;           // [q_lora_rank, D]
  TensorView q_norm;     // F32 [q_lora_rank]
  Weight wq_b;           // [num_attention_heads * d, q_lora_rank]
  Weight wkv;            // [d, D]
  TensorView kv_norm;    // F32 [d]
  TensorView attn_sink;  // F32 [num_attention_heads]
  Weight wo_a;           // [o_groups * o_lora_rank, o_group_dim]: group g is rows [g, g + 1) * o_lora_rank
  Weight wo_b;           // [D, o_groups * o_lora_rank]
  std::optional<CompressorWeights> compressor;      // Layers that make entries,
  std::optional<CompressorWeights> key_compressor;  // that make indexer keys,
  std::optional<KeyWeights> key_latents;            // the same from latents,
  std::optional<IndexerWeights> indexer;            // and that choose among entries.
  std::optional<EngramWeights> engram;

  Weight gate;           // [n_routed_experts, D]
  TensorView gate_bias;  // F32 [n_routed_experts]; null in hash-routed layers.
  TensorView tid2eid;    // I32 [vocab_size, num_experts_per_tok], every id valid; null in scored layers.
  std::vector<ExpertWeights>
      experts;  // n_routed_experts, or the shard's; kByColumns: parts of all, or none at all.
  ExpertWeights shared_expert;
  LayerSplits splits;
};

// The draft block of the preview's checkpoints (multi-token prediction). It turns the streams behind the last
// layer and the embedding of the next token into the streams of the token behind that. One layer with a
// window and experts by score; embedding and head are the model's.
struct MtpWeights {
  Weight e_proj;     // [D, D]
  Weight h_proj;     // [D, D]
  TensorView enorm;  // F32 [D]
  TensorView hnorm;  // F32 [D]
  LayerWeights layer;
  HyperConnectionWeights hc_head;
  TensorView norm;  // F32 [D]
};

// A DSpark drafter: blocks of tokens from what the trunk's last layers leave (model/graph/dspark.h).
// Embedding and head are the model's. Shards divide its layers as they do the model's.
struct DsparkWeights {
  DsparkConfig config;
  // Mixes the streams of a tapped layer to their mean: a hyper-connection's head whose sigmoids are 0, to be
  // run with hc_eps 1/H.
  HyperConnectionWeights tap;
  Weight main_proj;      // [D, D * tapped layers]
  TensorView main_norm;  // F32 [D]
  std::vector<LayerWeights> stages;
  HyperConnectionWeights hc_head;
  TensorView norm;  // F32 [D]
  // Rank 0 alone has what follows, of several ranks: it chooses the tokens of a block.
  Weight markov_w1;  // [vocab_size, rank], kPlain: of the token in front,
  Weight markov_w2;  // [vocab_size, rank]: to the logits behind it.
  Weight
      confidence_hidden;  // [1, D] and [1, rank]: of confidence_head.proj the columns for hc_head's output, and for the token's row of
  Weight confidence_markov;                          // markov_w1.
  std::shared_ptr<const io::Checkpoint> checkpoint;  // The mapping the views borrow from.
};

// Only the first stage has embed, head and hc_head.
struct ModelWeights {
  Weight embed;     // [vocab_size, D], kPlain
  Weight head;      // [vocab_size, D]; the same as embed where embeddings are tied.
  TensorView norm;  // F32 [D]
  HyperConnectionWeights hc_head;
  // Head for drafts, instead of `head`, of as many rows; none: they take that (draft_head.h).
  Weight draft_head;
  ColumnSplit head_split;  // Rows of the vocabulary; empty where the stage is one rank.
  // num_hidden_layers, or fewer with LoadOptions::max_layers; of several stages those of this one.
  std::vector<LayerWeights> layers;
  // First stage of several has the drafter's tensors. The others know of it what they send: of DSpark config
  // and tap, of MTP nothing.
  std::optional<MtpWeights> mtp;        // LoadOptions::mtp
  std::string no_mtp;                   // Why not, where it was asked for.
  std::optional<DsparkWeights> dspark;  // LoadOptions::dspark
  std::string no_dspark;                // Why not, where it was asked for.
  RankPlace place;

  std::shared_ptr<const io::Checkpoint> checkpoint;  // The mapping the views borrow from.
  std::vector<Buffer> copies;                        // Converted or realigned tensors.

  // Progress that PlaceLoaded (place_weights.h) has done so far.
  bool outside_placed = false;
  size_t num_layers_placed = 0;
  bool mtp_placed = false;
  bool dspark_placed = false;
  int64_t bytes_placed = 0;  // Copied to a device's memory; 0 where the backend uses the mapping.
};

inline const Weight& DraftHeadOf(const ModelWeights& weights) {
  return weights.draft_head.rows > 0 ? weights.draft_head : weights.head;
}

// How far loading has come.
struct LoadProgress {
  int64_t layers = 0;
  int64_t num_layers = 0;    // Layers that will be loaded.
  int64_t bytes_placed = 0;  // ModelWeights::bytes_placed.
};

struct LoadOptions {
  Numerics numerics = Numerics::kRelease;
  // Loads only the first layers; the rest are checked by header alone. Beyond num_hidden_layers is
  // InvalidArgument.
  std::optional<int64_t> max_layers;
  // Loads the MTP block too, if the checkpoint has a whole one and all layers are loaded.
  bool mtp = false;
  // Loads the DSpark drafter instead of the MTP block, if there is a whole one (dspark_source.h) and all
  // layers are loaded.
  bool dspark = false;
  // Head for drafts, where a drafter is loaded.
  DraftHead draft_head = DraftHead::kStored;
  // Loads the part of this rank; the rest is checked by header alone, and no byte of it is read.
  Placement placement;
  int rank = 0;
  // Called with what has been loaded so far when all but the layers is there, and after every layer. May be
  // empty.
  std::function<Status(ModelWeights&)> loaded;
  // Whether `loaded` reads the numbers, which are not read again. The next layer's are then brought from disk
  // meanwhile (io/read_ahead.h). A checkpoint may drop them after (Checkpoint::Release).
  bool numbers_pass = false;
  // Routed experts stay in their files, which are larger than memory: of them only scales are read, to be
  // checked.
  bool experts_from_disk = false;
  // No number is fetched, read or checked; what would be copied has its size and no numbers.
  bool sizes_only = false;
  // Told which ranges of the files have just been read; may be null.
  io::ContentDigest* digest = nullptr;
  // Called on the loading thread after each layer; an error ends the load and is its result. May be empty.
  std::function<Status(const LoadProgress&)> progress;
};

// Resolves every tensor of the table (tensor_rows.h) in the checkpoint, validates formats and scales, and
// fills the structs. Missing, extra or misshapen tensors, NaN scales and expert ids out of range are errors
// that name the tensor. Weight::activation is kFp8Block in front of FP8 and MXFP4 linears with
// Numerics::kRelease, except for wo_a, the compressors, the router and the head; otherwise kNone.
// InvalidArgument also for more stages than layers.
Result<ModelWeights> LoadWeights(std::shared_ptr<const io::Checkpoint> checkpoint, const ModelConfig& config,
                                 const LoadOptions& options);

}  // namespace dsv4::model
