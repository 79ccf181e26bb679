// Common parts of the commands that run a file of test cases.
#pragma once

#include <functional>
#include <iosfwd>
#include <string>

#include "base/status.h"
#include "chat/json_value.h"

namespace dsv4::apps {

// Reads a JSON list of objects, each with a string "name". Errors name the file and the case.
Result<chat::JsonValue> ReadCases(const std::string& path);

// The member as text; an error, naming the case, when it is missing or not a string.
Result<std::string> CaseText(const chat::JsonValue& test, std::string_view key);

// Runs `run` on every case and writes its result under `key`, or its message under "error". Returns the exit
// code.
int RunCases(const std::string& path, std::string_view key,
             const std::function<Result<chat::JsonValue>(const chat::JsonValue&)>& run, std::ostream& out);

}  // namespace dsv4::apps
