// The command `run` alone: a program of half the code, for the first answer of a clone.
#include <span>

#include "apps/command_line/command_list.h"

namespace dsv4::apps {

std::span<const Register> RegisterFunctions() {
  static constexpr Register kRun[] = {RegisterRun};
  return kRun;
}

}  // namespace dsv4::apps
