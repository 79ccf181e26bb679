// ProgramHash: which build of this code is running.
#pragma once

#include <cstdint>

namespace dsv4 {

// Hash of the bytes of the running program or library that holds this function: code and constants, as they
// lie in memory. Another build, which may round differently, has another. Made when it is first asked for.
uint64_t ProgramHash();

}  // namespace dsv4
