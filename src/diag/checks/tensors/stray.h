// One layer's difference from all others, as StrayLayers and OddBlocks tell it.
#pragma once

#include <string>

namespace dsv4::diag {

struct StrayLayer {
  int layer = -1;
  std::string module;
  std::string text;  // The difference.
};

}  // namespace dsv4::diag
