// Whether what a model answered is right, by what a line of the data says.
#pragma once

#include <string>
#include <vector>

#include "apps/eval/eval_data.h"
#include "base/json.h"
#include "base/status.h"

namespace dsv4::apps {

// Whether `content` is one of the line's answers, by its "match" ("contains").
Result<bool> IsRight(const DataLine& line, const std::string& content);

// A call is {"name", "arguments"}. The calls that the line's "expect", which must be there, asks for; empty:
// none.
Result<std::vector<Json>> ExpectedCalls(const DataLine& line);
// In any order of calls and of members.
bool SameCalls(const std::vector<Json>& made, const std::vector<Json>& expected);
// Empty, or what is wrong with a call of one of `tools`, a list as requests have it.
std::string ComplaintOf(const Json& tools, const std::string& name, const Json& arguments);

}  // namespace dsv4::apps
