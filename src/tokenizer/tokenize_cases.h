// The work of `dsv4 tokenize`: a file of texts to one line of JSON each.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "tokenizer/tokenizer.h"

namespace dsv4::tokenizer {

// `json` is a list of objects with a `text` (the layout of tokenizer-cases.json; other members are not read);
// `what` names it in errors.
// One line per case, in order, without line ends: {"ids":[...],"decoded":"..."}, where `decoded` is the text
// of the ids, or {"name":"...","error":"..."} for a case that cannot be encoded. The name is the case's
// `name` or `case`, else "case <index>".
// Errors: InvalidArgument when the document is not a list.
Result<std::vector<std::string>> TokenizeCases(const Tokenizer& tokenizer, std::string_view json,
                                               std::string_view what);

}  // namespace dsv4::tokenizer
