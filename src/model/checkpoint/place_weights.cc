// Placement of loaded weights on a backend, layer by layer, by the tier of each expert.
#include "model/checkpoint/place_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <span>
#include <utility>

#include "io/checkpoint.h"
#include "io/mapped_file.h"

namespace dsv4::model {
namespace {

// Calls visit(name, tensor) for every small tensor and visit(name, weight) for every linear weight, naming
// each after its member in the structs. The embedding is a table for rows, not a linear weight.
template <typename Weights, typename Visit>
Status VisitHyperConnection(const std::string& name, Weights& hc, Visit& visit) {
  DSV4_RETURN_IF_ERROR(visit(name + ".fn", hc.fn));
  DSV4_RETURN_IF_ERROR(visit(name + ".base", hc.base));
  return visit(name + ".scale", hc.scale);
}

template <typename Weights, typename Visit>
Status VisitCompressor(const std::string& name, Weights& compressor, Visit& visit) {
  DSV4_RETURN_IF_ERROR(visit(name + ".wkv", compressor.wkv));
  DSV4_RETURN_IF_ERROR(visit(name + ".wgate", compressor.wgate));
  DSV4_RETURN_IF_ERROR(visit(name + ".ape", compressor.ape));
  return visit(name + ".norm", compressor.norm);
}

template <typename Weights, typename Visit>
Status VisitExpert(const std::string& name, Weights& expert, Visit& visit) {
  DSV4_RETURN_IF_ERROR(visit(name + ".w1", expert.w1));
  DSV4_RETURN_IF_ERROR(visit(name + ".w2", expert.w2));
  return visit(name + ".w3", expert.w3);
}

template <typename Weights, typename Visit>
Status VisitAttention(const std::string& name, Weights& layer, Visit& visit) {
  DSV4_RETURN_IF_ERROR(visit(name + ".wq_a", layer.wq_a));
  DSV4_RETURN_IF_ERROR(visit(name + ".q_norm", layer.q_norm));
  DSV4_RETURN_IF_ERROR(visit(name + ".wq_b", layer.wq_b));
  DSV4_RETURN_IF_ERROR(visit(name + ".wkv", layer.wkv));
  DSV4_RETURN_IF_ERROR(visit(name + ".kv_norm", layer.kv_norm));
  DSV4_RETURN_IF_ERROR(visit(name + ".attn_sink", layer.attn_sink));
  DSV4_RETURN_IF_ERROR(visit(name + ".wo_a", layer.wo_a));
  DSV4_RETURN_IF_ERROR(visit(name + ".wo_b", layer.wo_b));
  if (layer.compressor.has_value()) {
    DSV4_RETURN_IF_ERROR(VisitCompressor(name + ".compressor", *layer.compressor, visit));
  }
  if (layer.indexer.has_value()) {
    DSV4_RETURN_IF_ERROR(visit(name + ".indexer.wq_b", layer.indexer->wq_b));
    DSV4_RETURN_IF_ERROR(visit(name + ".indexer.weights_proj", layer.indexer->weights_proj));
  }
  if (layer.key_latents.has_value()) {
    DSV4_RETURN_IF_ERROR(visit(name + ".indexer.wk", layer.key_latents->wk));
    DSV4_RETURN_IF_ERROR(visit(name + ".indexer.k_norm", layer.key_latents->norm));
  }
  if (layer.engram.has_value()) {
    DSV4_RETURN_IF_ERROR(visit(name + ".engram.wkv", layer.engram->wkv));
    DSV4_RETURN_IF_ERROR(visit(name + ".engram.q_weight", layer.engram->q_weight));
    DSV4_RETURN_IF_ERROR(visit(name + ".engram.k_weight", layer.engram->k_weight));
  }
  if (!layer.key_compressor.has_value()) return {};
  return VisitCompressor(name + ".indexer.compressor", *layer.key_compressor, visit);
}

template <typename Weights, typename Visit>
Status VisitLayer(const std::string& name, Weights& layer, Visit& visit) {
  DSV4_RETURN_IF_ERROR(visit(name + ".attn_norm", layer.attn_norm));
  DSV4_RETURN_IF_ERROR(visit(name + ".ffn_norm", layer.ffn_norm));
  DSV4_RETURN_IF_ERROR(VisitHyperConnection(name + ".hc_attn", layer.hc_attn, visit));
  DSV4_RETURN_IF_ERROR(VisitHyperConnection(name + ".hc_ffn", layer.hc_ffn, visit));
  DSV4_RETURN_IF_ERROR(VisitAttention(name + ".attn", layer, visit));
  DSV4_RETURN_IF_ERROR(visit(name + ".ffn.gate", layer.gate));
  DSV4_RETURN_IF_ERROR(visit(name + ".ffn.gate.bias", layer.gate_bias));
  DSV4_RETURN_IF_ERROR(visit(name + ".ffn.gate.tid2eid", layer.tid2eid));
  for (size_t e = 0; e < layer.experts.size(); ++e) {
    auto visit_expert = visit.OfExpert(e);
    DSV4_RETURN_IF_ERROR(
        VisitExpert(fmt::format("{}.ffn.experts.{}", name, e), layer.experts[e], visit_expert));
  }
  return VisitExpert(name + ".ffn.shared_experts", layer.shared_expert, visit);
}

template <typename Weights, typename Visit>
Status VisitMtp(Weights& mtp, Visit visit) {
  DSV4_RETURN_IF_ERROR(visit("mtp.e_proj", mtp.e_proj));
  DSV4_RETURN_IF_ERROR(visit("mtp.h_proj", mtp.h_proj));
  DSV4_RETURN_IF_ERROR(visit("mtp.enorm", mtp.enorm));
  DSV4_RETURN_IF_ERROR(visit("mtp.hnorm", mtp.hnorm));
  DSV4_RETURN_IF_ERROR(visit("mtp.norm", mtp.norm));
  DSV4_RETURN_IF_ERROR(VisitHyperConnection("mtp.hc_head", mtp.hc_head, visit));
  return VisitLayer("mtp.0", mtp.layer, visit);
}

template <typename Weights, typename Visit>
Status VisitDspark(Weights& dspark, Visit visit) {
  DSV4_RETURN_IF_ERROR(VisitHyperConnection("dspark.tap", dspark.tap, visit));
  DSV4_RETURN_IF_ERROR(visit("dspark.main_proj", dspark.main_proj));
  DSV4_RETURN_IF_ERROR(visit("dspark.main_norm", dspark.main_norm));
  for (size_t i = 0; i < dspark.stages.size(); ++i)
    DSV4_RETURN_IF_ERROR(VisitLayer(fmt::format("mtp.{}", i), dspark.stages[i], visit));
  DSV4_RETURN_IF_ERROR(VisitHyperConnection("dspark.hc_head", dspark.hc_head, visit));
  DSV4_RETURN_IF_ERROR(visit("dspark.norm", dspark.norm));
  DSV4_RETURN_IF_ERROR(visit("dspark.markov_w1", dspark.markov_w1.data));
  DSV4_RETURN_IF_ERROR(visit("dspark.markov_w2", dspark.markov_w2));
  DSV4_RETURN_IF_ERROR(visit("dspark.confidence_hidden", dspark.confidence_hidden));
  return visit("dspark.confidence_markov", dspark.confidence_markov);
}

template <typename Weights, typename Visit>
Status VisitOutside(Weights& weights, Visit visit) {
  DSV4_RETURN_IF_ERROR(visit("embed", weights.embed.data));
  DSV4_RETURN_IF_ERROR(visit("head", weights.head));
  DSV4_RETURN_IF_ERROR(visit("norm", weights.norm));
  return VisitHyperConnection("hc_head", weights.hc_head, visit);
}

using HostBytes = std::span<const std::byte>;

HostBytes BytesOf(const TensorView& tensor) {
  return {tensor.as<const std::byte>(), tensor.is_null() ? 0 : static_cast<size_t>(tensor.num_bytes())};
}

bool Holds(const Buffer& buffer, HostBytes bytes) {
  const auto* const begin = static_cast<const std::byte*>(buffer.data());
  return begin <= bytes.data() && bytes.data() + bytes.size() <= begin + buffer.num_bytes();
}

struct Placer {
  const ops::Backend& backend;
  std::vector<Buffer>& copies;
  int64_t& bytes_placed;
  std::span<const ops::WeightTier> tiers;  // Tiers of the layer's experts; empty: all are resident.
  std::vector<HostBytes>& kept;  // Bytes that the host multiplies, where the backend's memory is a device's.
  int64_t slots = 0;             // PrepareWeightArgs::slots
  bool copies_on_host = false;   // PlaceOptions::copy_all_but_experts
  ops::WeightTier tier = ops::WeightTier::kResident;

  Placer OfExpert(size_t e) const {
    Placer placer = *this;
    if (!tiers.empty()) placer.tier = tiers[e];
    placer.copies_on_host = false;
    return placer;
  }

  // A copy of what lies in a file; what is a copy already stays.
  Status CopyOnHost(const std::string& name, TensorView& tensor) const {
    if (tensor.is_null() || std::ranges::any_of(copies, [&](const Buffer& buffer) {
          return buffer.device().type == DeviceType::kHost && Holds(buffer, BytesOf(tensor));
        })) {
      return {};
    }
    const HostBytes bytes = BytesOf(tensor);
    std::span<std::byte> writable;
    Result<io::MappedFile> memory = io::MappedFile::InMemory(name, bytes.size(), writable);
    if (!memory.has_value()) return memory.error();
    std::memcpy(writable.data(), bytes.data(), bytes.size());
    tensor = TensorView::Contiguous(static_cast<void*>(writable.data()), tensor.dtype, tensor.shape);
    auto owner = std::make_shared<io::MappedFile>(std::move(*memory));
    copies.emplace_back(std::shared_ptr<void>(owner, writable.data()), bytes.size(), Device{});
    return {};
  }

  Status operator()(const std::string& name, Weight& weight) const {
    if (weight.rows == 0) return {};  // Another rank has it.
    if (copies_on_host) {
      DSV4_RETURN_IF_ERROR(CopyOnHost(name, weight.data));
      DSV4_RETURN_IF_ERROR(CopyOnHost(name, weight.scale));
    }
    Weight prepared;
    DSV4_RETURN_IF_ERROR(
        backend.table
            .prepare_weight(*backend.context,
                            {.source = &weight, .prepared = &prepared, .tier = tier, .slots = slots})
            .WithContext(name));
    if (prepared.data.device.type != DeviceType::kHost) {
      bytes_placed += weight.data.num_bytes() + (weight.scale.is_null() ? 0 : weight.scale.num_bytes());
    } else if (tier == ops::WeightTier::kHost) {
      for (const HostBytes bytes : {BytesOf(prepared.data), BytesOf(prepared.scale)}) kept.push_back(bytes);
    }
    weight = std::move(prepared);
    return {};
  }
  Status operator()(const std::string& name, TensorView& tensor) const {
    Memory& memory = backend.context->memory();
    // From the embedding a step reads a row a token.
    if (copies_on_host && name != "embed") return CopyOnHost(name, tensor);
    if (tensor.is_null() || tensor.device == memory.device()) return {};
    const auto num_bytes = static_cast<size_t>(tensor.num_bytes());
    Result<Buffer> buffer = memory.Allocate(num_bytes);
    if (!buffer.has_value()) return buffer.error().WithContext(name);
    DSV4_RETURN_IF_ERROR(
        memory.CopyFromHost(buffer->data(), tensor.data, num_bytes, backend.context->stream())
            .WithContext(name));
    tensor = TensorView::Contiguous(buffer->data(), tensor.dtype, tensor.shape, memory.device());
    copies.push_back(std::move(*buffer));
    bytes_placed += static_cast<int64_t>(num_bytes);
    return {};
  }
};

}  // namespace

Status PlaceLoaded(const ops::Backend& backend, const PlaceOptions& options, ModelWeights& weights) {
  std::vector<HostBytes> kept;
  Placer place{.backend = backend,
               .copies = weights.copies,
               .bytes_placed = weights.bytes_placed,
               .tiers = {},
               .kept = kept,
               .slots = options.experts.slots,
               .copies_on_host = options.copy_all_but_experts};
  if (!std::exchange(weights.outside_placed, true)) DSV4_RETURN_IF_ERROR(VisitOutside(weights, place));
  for (; weights.num_layers_placed < weights.layers.size(); ++weights.num_layers_placed) {
    const std::string name = fmt::format("layers.{}", weights.num_layers_placed);
    LayerWeights& layer = weights.layers[weights.num_layers_placed];
    std::vector<ops::WeightTier> tiers;
    if (!options.experts.all_resident()) {
      const auto index = weights.num_layers_placed;
      tiers = TiersOf(options.experts,
                      options.expert_order.empty() ? std::vector<int32_t>() : options.expert_order[index]);
    }
    place.tiers = tiers;
    DSV4_RETURN_IF_ERROR(VisitLayer(name, layer, place));
  }
  place.tiers = {};
  if (weights.mtp.has_value() && !std::exchange(weights.mtp_placed, true)) {
    DSV4_RETURN_IF_ERROR(VisitMtp(*weights.mtp, place));
    DSV4_RETURN_IF_ERROR(place("draft_head", weights.draft_head));
  }
  if (weights.dspark.has_value() && !std::exchange(weights.dspark_placed, true)) {
    DSV4_RETURN_IF_ERROR(VisitDspark(*weights.dspark, place));
    DSV4_RETURN_IF_ERROR(place("draft_head", weights.draft_head));
  }
  if (backend.context->memory().device().type == DeviceType::kHost) return {};
  // On a device everything else is a copy; the host's memory is better used otherwise.
  std::erase_if(weights.copies, [&](const Buffer& buffer) {
    return buffer.device().type == DeviceType::kHost &&
           std::ranges::none_of(kept, [&](HostBytes bytes) { return Holds(buffer, bytes); });
  });
  std::erase_if(kept, [&](HostBytes bytes) {
    return std::ranges::any_of(weights.copies, [&](const Buffer& buffer) {
      return buffer.device().type == DeviceType::kHost && Holds(buffer, bytes);
    });
  });
  // Users of their numbers, to the end.
  if (options.checkpoint != nullptr) options.checkpoint->Fetch(kept);
  return {};
}

}  // namespace dsv4::model
