// Tensors that meet in one hidden dimension: the rows of the first make its elements, the columns of the second read them. Training brings
// rows and columns that meet to like sizes (gradient descent keeps the difference of their squares), and no other layer's. So a tensor of
// another layer or expert shows, and one that is transposed or out of order, though its own statistics are healthy.
#pragma once

#include <string>
#include <vector>

#include "diag/checks/tensors/holes.h"
#include "model/checkpoint/weights.h"

namespace dsv4::diag {

struct Ties {
  std::vector<Hole> found;
  std::string evidence;
  bool any = false;  // Between latents of queries or outputs; random weights have none.
};

// Compares the logarithms of sizes by correlation, in standard deviations from chance. Query latents (wq_a, wq_b) and output latents (wo_a,
// wo_b): one layer is told where nearly all others have the tie, 4 layers at least. Experts' w2, up to 4 GiB of them, compressors and the keys
// of n-grams: where two have changed places. All experts of a layer: w1, w2 or w3 that is out of order. Weights without ties say nothing.
Ties LookForBrokenTies(const std::vector<model::LayerWeights>& layers);

}  // namespace dsv4::diag
