// Runs an op on the inputs of its golden file and compares every output. Used by the golden tests, and by the
// mutation tests with one op replaced by a wrong one.
#pragma once

#include <string>
#include <vector>

#include "ops/op_table.h"
#include "tests/compare.h"

namespace dsv4::testing {

struct OpResult {
  std::string what;  // "<case>/<output>"
  Comparison comparison;
};

// Every file under ops/ that RunOpGolden knows; a test compares this list with the folder.
std::vector<std::string> OpGoldenFiles();

// Throws on a file it does not know, a broken fixture and an op that returns an error.
std::vector<OpResult> RunOpGolden(const std::string& file, const ops::Backend& backend);

}  // namespace dsv4::testing
