// Writes the arguments of one call as JSON text while its parameters arrive. Whatever the model wrote, the
// fragments of an ended call join to one JSON object. Source: chat-encoding.md 3.3 and 3.4.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace dsv4::chat {

// Facts that the request says about one tool: enough to know a parameter name that cannot be meant.
struct ToolSchema {
  std::string name;
  std::vector<std::string> properties;  // keys of parameters.properties
};

class ArgumentsWriter {
 public:
  // `schema` may be null (the tool is not in the request) and must outlive the writer.
  explicit ArgumentsWriter(const ToolSchema* schema) : schema_(schema) {}

  // Each call appends a fragment, which may be empty, to `out`. Order: parameters, each begun, fed and ended;
  // then End. Of a repeated name the first counts. String values are written as they come, others when they
  // are complete; one that is not JSON becomes a string.
  void BeginParameter(std::string name, bool is_string, std::string& out);
  void Value(std::string_view piece, std::string& out);
  void EndParameter(std::string& out);
  void End(std::string& out);

  // Instead of parameters: the whole body of a call. A JSON object is taken as it stands; anything else
  // becomes the string parameter "arguments", as the encoder writes arguments that it cannot read.
  void WriteBody(std::string_view body, std::string& out);

 private:
  enum class Mode : unsigned char { kStream, kBuffer, kWrapper, kSkip };

  bool MayBeWrapper(std::string_view name) const;
  bool IsWrappedObject(std::string_view value) const;
  void WriteKey(std::string_view name, std::string& out);
  void WriteBuffered(std::string& out);
  void FlushWrapper(std::string& out);

  const ToolSchema* schema_;
  std::set<std::string, std::less<>> names_;
  Mode mode_ = Mode::kSkip;
  bool has_members_ = false;
  // A first parameter whose name hints that it wraps the real arguments is kept back until it is known to be
  // the only one.
  bool has_wrapper_ = false;
  std::string name_;
  bool is_string_ = false;
  std::string value_;
};

}  // namespace dsv4::chat
