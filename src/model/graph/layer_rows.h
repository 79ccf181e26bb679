// LayerRows: the part of a model's layers that steps have run.
#pragma once

#include <cstdint>

namespace dsv4::model {

// Rows that went through layers, and those of all tokens through all layers. The difference is a prompt's
// rows in front of its tail (pass_tail.h).
struct LayerRows {
  int64_t run = 0;
  int64_t all = 0;
};

}  // namespace dsv4::model
