// Stepper: runs one step of the sequences that run.
#pragma once

#include <vector>

#include "engine/request.h"

namespace dsv4::engine {

class Stepper {
 public:
  virtual ~Stepper() = default;
  // False: such a step is not for these sequences as they are, and nothing has happened.
  virtual bool Step(std::vector<Event>& events) = 0;
};

}  // namespace dsv4::engine
