// The work of `dsv4 tokenize`: a file of texts to one line of JSON each.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::tokenizer {

// `path` holds a JSON list of objects with a `text` (the layout of tokenizer-cases.json; other members are not read).
// One line per case, in order, without line ends: {"ids":[...],"decoded":"..."}, where `decoded` is the text of the ids,
// or {"name":"...","error":"..."} for a case that cannot be encoded. The name is the case's `name` or `case`, else
// "case <index>".
// Errors: those of reading the file, InvalidArgument when it is not such a list.
Result<std::vector<std::string>> TokenizeCases(const Tokenizer& tokenizer, const std::string& path);

}  // namespace dsv4::tokenizer
