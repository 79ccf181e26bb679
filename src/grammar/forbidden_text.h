// Texts that have none of certain words in them, as a grammar. The words are found in the text, however
// tokens spell it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "base/status.h"
#include "grammar/program.h"

namespace dsv4::grammar {

// The text may end anywhere. InvalidArgument for an empty word; ResourceExhausted when the words are too many
// or too long.
Result<std::shared_ptr<const Program>> CompileWithoutWords(const std::vector<std::string>& words);

}  // namespace dsv4::grammar
