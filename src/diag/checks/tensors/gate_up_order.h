// Are gate (w1) and up (w3) of the experts where they belong? Both have one shape and nearly one size, so a
// loader or converter that swaps them leaves files and statistics of single weights healthy. What tells them
// apart:
//
// y = w2 (silu(w1 x) * (w3 x)) is the same function when any row of w3 changes sign together with its column
// of w2. So nothing in training prefers one sign of an up row to the other. The signs of up rows are those of
// coin tosses, and their sum is as long as chance makes it. The function silu is not even, so gate rows have
// signs that matter. A model that learnt to keep most gates closed, or open, has gate rows of one direction.
// Their sum is longer than chance allows.
//
// Two measures, both in standard deviations over all choices of signs, so that up rows give chance's few,
// whatever was trained:
// - z of |sum of rows|^2, of a matrix by itself. Gate rows may give any z; a large one under the name of up, and none under the name
//   of gate, is a swap.
// - z of (sum of rows) . v, where v is the direction of the layer's other gates. For one expert among siblings in order.
// Where gates share no direction (random weights for one) the measures say nothing, and that is said.
#pragma once

#include <string>
#include <vector>

#include "diag/checks/tensors/holes.h"
#include "diag/report/plot.h"
#include "model/checkpoint/weights.h"

namespace dsv4::diag {

// The first measure over at most 128 rows, spread evenly; 0 for fewer than 32 rows or when no two rows meet.
// Infinite or NaN weights give 0.
double CommonDirection(const Weight& weight);

// One SwiGLU by the second measure, or all of one kind in a layer by the first. The z of independent weights
// add up to sum / sqrt(count).
struct GateUp {
  int layer = 0;
  bool shared = false;
  int expert = -1;      // -1: the layer's experts together.
  int num_weights = 1;  // Count of weights in each, in z.
  double gate = 0;
  double up = 0;
};

struct GateUpOrder {
  std::vector<GateUp> groups;   // Routed experts and shared expert of every layer.
  std::vector<GateUp> swapped;  // Groups, and single experts of groups that are in order.
  int num_in_order = 0;         // Groups whose gate shares a direction and whose up does not.
  int num_undecided = 0;
};

// Looks at every shared expert and at up to 16 routed experts a layer, spread evenly.
GateUpOrder LookAtGateUpOrder(const std::vector<model::LayerWeights>& layers);

// "layers.3.ffn.experts": in the names of the release.
std::string GateUpName(const GateUp& group);

// Compressors of entries and keys have the same two kinds. Any row of wkv may change sign with what reads it, and rows of wgate cannot.
std::vector<Hole> LookForSwappedCompressors(const std::vector<model::LayerWeights>& layers);

Plot GateUpPlot(const GateUpOrder& order);

}  // namespace dsv4::diag
