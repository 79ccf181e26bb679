// The folder of states that servers share, as `dsv4 doctor --prefix-cache-dir` sees it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "apps/inspect/finding.h"

namespace dsv4::apps {

// Findings about a folder of engine::PrefixDirectory: whether it is there and this user's, and which storage
// holds it. Whether other machines see that, and whether it keeps to locks, names, times and flushes. Which
// files it has, whose writers live, and how much room is left of `max_bytes` for all files.
//
// Writes one file of a few bytes into an existing folder and removes it, for nothing else says what a storage
// keeps. A folder that is missing is not made. Holds the folder's lock for a moment, as servers do.
std::vector<Finding> CheckSharedStates(const std::string& directory, int64_t max_bytes);

}  // namespace dsv4::apps
