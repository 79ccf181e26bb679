// The lines of a JSON-lines file.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "base/json.h"
#include "base/status.h"

namespace dsv4::apps {

struct DataLine {
  Json json;          // An object.
  std::string label;  // "data.jsonl, line 3"
};

// At most `limit` lines (0: all); empty lines are none. InvalidArgument names the line that is no JSON
// object, or the file that has none.
Result<std::vector<DataLine>> ReadJsonLines(const std::string& path, int64_t limit);
// The same of the text of such a file.
Result<std::vector<DataLine>> ParseJsonLines(std::string_view text, const std::string& path, int64_t limit);

// Members of a line. Errors name line and member.
Result<std::string> TextOf(const DataLine& line, const char* key);
Result<std::vector<std::string>> TextsOf(const DataLine& line, const char* key);  // A text is a list of one.
Status BadMember(const DataLine& line, const char* key, const std::string& wanted);

}  // namespace dsv4::apps
