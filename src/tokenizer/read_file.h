// Whole files as strings, for documents small enough to parse at once.
#pragma once

#include <string>

#include "base/status.h"

namespace dsv4::tokenizer {

// Errors: NotFound when there is no such file or it cannot be opened, InvalidArgument when it is no regular file or
// longer than `max_bytes`, DataLoss when reading fails.
Result<std::string> ReadFile(const std::string& path, size_t max_bytes);

}  // namespace dsv4::tokenizer
