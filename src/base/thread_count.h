// How many threads work that all cores can share is given.
#pragma once

#include <algorithm>
#include <thread>

namespace dsv4 {

// One a core, `most` at most, and one where the machine does not tell.
inline int CoresUpTo(int most) {
  return std::clamp(static_cast<int>(std::thread::hardware_concurrency()), 1, most);
}

}  // namespace dsv4
