// Correlations between row sizes of one tensor and column sizes of the next.
#include "diag/checks/tensors/ties.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "diag/checks/tensors/profiles.h"
#include "diag/statistics.h"

namespace dsv4::diag {
namespace {

constexpr size_t kFewestLayers = 4;
constexpr double kTied = 5.5;   // The middle layer's correlation, of a kind that says something.
constexpr double kAnyTied = 4;  // The least of all but the odd ones.
constexpr double kBroken = 2;   // Most that chance gives.
constexpr int64_t kMostExpertBytes = int64_t{4} << 30;

using Part = std::function<const Weight&(const model::LayerWeights&)>;

void LookAtLayers(const std::vector<model::LayerWeights>& layers, const char* maker_name, const Part& maker,
                  const char* reader_name, const Part& reader, Ties& ties) {
  if (layers.size() < kFewestLayers) return;
  std::vector<Profile> rows;
  std::vector<Profile> columns;
  std::vector<double> own;
  for (const model::LayerWeights& layer : layers) {
    rows.push_back(RowProfile(maker(layer)));
    columns.push_back(ColumnProfile(reader(layer)));
    own.push_back(Tie(rows.back(), columns.back()));
  }
  const double typical = Median(own);
  std::vector<size_t> broken;
  double least = typical;
  for (size_t i = 0; i < own.size(); ++i) {
    if (own[i] < kBroken) {
      broken.push_back(i);
    } else {
      least = std::min(least, own[i]);
    }
  }
  ties.evidence += fmt::format("{}{} and {} go along, by {:.1f} standard deviations in the middle layer",
                               ties.evidence.empty() ? "" : "; ", maker_name, reader_name, typical);
  ties.any = ties.any || typical >= kTied;
  if (typical < kTied || least < kAnyTied || broken.size() > std::max<size_t>(2, layers.size() / 8)) return;
  for (const size_t i : broken) {
    std::string text = fmt::format(
        "is not tied to its {}: sizes that meet correlate by {:.1f} standard deviations, by {:.1f} and more "
        "in "
        "other layers: one of the two is of another place, transposed or out of order",
        maker_name, own[i], least);
    for (size_t j = 0; j < layers.size(); ++j) {
      if (j != i && Tie(rows[j], columns[i]) >= kAnyTied)
        text = fmt::format("is tied to layer {}'s {} by {:.1f} standard deviations, and to its own by {:.1f}",
                           j, maker_name, Tie(rows[j], columns[i]), own[i]);
    }
    ties.found.push_back({static_cast<int>(i), fmt::format("layers.{}.{}", i, reader_name), std::move(text)});
  }
}

// One of several tensors of a kind, which may stand in each other's place.
struct Member {
  int layer = 0;
  size_t number = 0;
  std::string name;
  std::vector<Profile> makers;  // Tensors that it is tied to.
  Profile reader;
};

double TieOf(const Member& maker, const Member& reader) {
  double sum = 0;
  for (const Profile& rows : maker.makers) sum += Tie(rows, reader.reader);
  return sum / std::sqrt(static_cast<double>(maker.makers.size()));
}

// Two of one layer, or of one number, that are tied to each other's makers and less so to their own.
void LookForExchanges(const std::vector<Member>& members, const char* makers_name, Ties& ties) {
  constexpr double kMargin = 3;
  for (size_t i = 0; i < members.size(); ++i) {
    for (size_t j = i + 1; j < members.size(); ++j) {
      const Member& a = members[i];
      const Member& b = members[j];
      if (a.layer != b.layer && a.number != b.number) continue;
      const double crossed = std::min(TieOf(a, b), TieOf(b, a));
      if (crossed < kAnyTied || std::max(TieOf(a, a), TieOf(b, b)) > crossed - kMargin) continue;
      ties.found.push_back({a.layer, a.name,
                            fmt::format("and {} are tied to each other's {}, and not to their own: they are "
                                        "exchanged",
                                        b.name, makers_name)});
    }
  }
}

// Rows of w1 and w3 and columns of w2 meet in the same hidden elements. Where only two of the three go along in a layer, the third is out
// of order: its codes, its scales or its rows.
void LookForOneOutOfOrder(const std::vector<Member>& members, size_t num_layers, Ties& ties) {
  constexpr double kTwoGoAlong = 5;
  constexpr double kChance = 3;
  struct Layer {
    double count = 0;
    double w1_w2 = 0;
    double w3_w2 = 0;
    double w1_w3 = 0;
  };
  std::vector<Layer> layers(num_layers);
  for (const Member& member : members) {
    Layer& layer = layers[static_cast<size_t>(member.layer)];
    ++layer.count;
    layer.w1_w2 += Tie(member.makers[0], member.reader);
    layer.w3_w2 += Tie(member.makers[1], member.reader);
    layer.w1_w3 += Tie(member.makers[0], member.makers[1]);
  }
  for (size_t i = 0; i < layers.size(); ++i) {
    const double root = std::sqrt(std::max(layers[i].count, 1.0));
    const auto look = [&](const char* name, const char* side, double others, double a, double b) {
      if (others < kTwoGoAlong * root || std::max(a, b) > std::min(kChance * root, others / 3)) return;
      ties.found.push_back(
          {static_cast<int>(i), fmt::format("layers.{}.ffn.experts {}", i, name),
           fmt::format(
               "has {} in another order than the other two of its experts ({:.1f} and {:.1f} standard "
               "deviations from chance, these {:.1f}): are its codes or scales?",
               side, a / root, b / root, others / root)});
    };
    look("w1", "rows", layers[i].w3_w2, layers[i].w1_w2, layers[i].w1_w3);
    look("w2", "columns", layers[i].w1_w3, layers[i].w1_w2, layers[i].w3_w2);
    look("w3", "rows", layers[i].w1_w2, layers[i].w3_w2, layers[i].w1_w3);
  }
}

void LookAtExperts(const std::vector<model::LayerWeights>& layers, Ties& ties) {
  int64_t num_bytes = 0;
  for (const model::LayerWeights& layer : layers) {
    for (const model::ExpertWeights& expert : layer.experts)
      num_bytes += expert.w1.data.num_bytes() + expert.w2.data.num_bytes() + expert.w3.data.num_bytes();
  }
  if (num_bytes > kMostExpertBytes) return;
  std::vector<Member> members;
  for (size_t i = 0; i < layers.size(); ++i) {
    for (size_t j = 0; j < layers[i].experts.size(); ++j) {
      const model::ExpertWeights& expert = layers[i].experts[j];
      members.push_back({static_cast<int>(i),
                         j,
                         fmt::format("layers.{}.ffn.experts.{}.w2", i, j),
                         {RowProfile(expert.w1), RowProfile(expert.w3)},
                         ColumnProfile(expert.w2)});
    }
  }
  LookForExchanges(members, "w1 and w3", ties);
  LookForOneOutOfOrder(members, layers.size(), ties);
}

void LookAtCompressors(const std::vector<model::LayerWeights>& layers, Ties& ties) {
  std::vector<Member> members;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].compressor) continue;
    members.push_back({static_cast<int>(i),
                       0,
                       fmt::format("layers.{}.attn.compressor.wkv", i),
                       {NumberProfile(layers[i].attn_norm, 0, layers[i].attn_norm.num_elements())},
                       ColumnProfile(layers[i].compressor->wkv)});
  }
  LookForExchanges(members, "attn_norm", ties);
}

// The rows that make a stream's key, and the key's own weights.
void LookAtNgramKeys(const std::vector<model::LayerWeights>& layers, Ties& ties) {
  std::vector<Member> members;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].engram) continue;
    const TensorView& keys = layers[i].engram->k_weight;
    const int64_t width = keys.shape[keys.shape.rank() - 1];
    for (int64_t stream = 0; stream < keys.num_elements() / width; ++stream) {
      members.push_back({static_cast<int>(i),
                         static_cast<size_t>(stream),
                         fmt::format("layers.{}.engram.wkv (stream {})", i, stream),
                         {RowProfile(layers[i].engram->wkv.Rows(stream * width, (stream + 1) * width))},
                         NumberProfile(keys, stream * width, width)});
    }
  }
  LookForExchanges(members, "k_weight", ties);
}

}  // namespace

Ties LookForBrokenTies(const std::vector<model::LayerWeights>& layers) {
  Ties ties;
  using model::LayerWeights;
  LookAtLayers(
      layers, "attn.wq_a", [](const LayerWeights& layer) -> const Weight& { return layer.wq_a; }, "attn.wq_b",
      [](const LayerWeights& layer) -> const Weight& { return layer.wq_b; }, ties);
  LookAtLayers(
      layers, "attn.wo_a", [](const LayerWeights& layer) -> const Weight& { return layer.wo_a; }, "attn.wo_b",
      [](const LayerWeights& layer) -> const Weight& { return layer.wo_b; }, ties);
  LookAtExperts(layers, ties);
  LookAtCompressors(layers, ties);
  LookAtNgramKeys(layers, ties);
  return ties;
}

}  // namespace dsv4::diag
