// Classes of a model's token ids, by which rows of its n-gram tables are found (tokenizer/token_classes.h).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"

namespace dsv4::session {

// By the tokenizer.json of `directory`. A model that was trained names its number of classes, and then every
// id must have a token. One of random weights names none (0): ids without a token, or all where there is no
// tokenizer, have classes of their own.
Result<std::vector<int32_t>> TokenClassesOf(const std::string& directory, int64_t vocab_size,
                                            int64_t num_classes);

}  // namespace dsv4::session
