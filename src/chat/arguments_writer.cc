// Writer of a call's arguments as JSON: values by their string flag, wrapper objects opened up, bad JSON as
// text.
#include "chat/arguments_writer.h"

#include <algorithm>

#include "base/text.h"
#include "chat/json_value.h"

namespace dsv4::chat {
namespace {

constexpr std::string_view kJsonSpace = " \t\r\n";

bool IsJson(std::string_view text) { return ReadJson(text, "value").has_value(); }

}  // namespace

bool ArgumentsWriter::MayBeWrapper(std::string_view name) const {
  if (schema_ == nullptr || (name != "arguments" && name != "input")) return false;
  return std::find(schema_->properties.begin(), schema_->properties.end(), name) == schema_->properties.end();
}

bool ArgumentsWriter::IsWrappedObject(std::string_view value) const {
  const auto object = ReadJson(value, "value");
  if (!object || !object->is_object()) return false;
  return std::all_of(
      object->members().begin(), object->members().end(), [&](const JsonValue::Member& member) {
        return std::find(schema_->properties.begin(), schema_->properties.end(), member.first) !=
               schema_->properties.end();
      });
}

void ArgumentsWriter::WriteKey(std::string_view name, std::string& out) {
  out += has_members_ ? ", " : "{";
  out += QuoteJson(name);
  out += ": ";
  has_members_ = true;
}

void ArgumentsWriter::WriteBuffered(std::string& out) {
  WriteKey(name_, out);
  out += is_string_ || !IsJson(value_) ? QuoteJson(value_) : value_;
}

void ArgumentsWriter::FlushWrapper(std::string& out) {
  if (!has_wrapper_) return;
  has_wrapper_ = false;
  WriteBuffered(out);
}

void ArgumentsWriter::BeginParameter(std::string name, bool is_string, std::string& out) {
  FlushWrapper(out);
  const bool is_first = names_.empty();
  if (!names_.insert(name).second) {
    mode_ = Mode::kSkip;
    return;
  }
  name_ = std::move(name);
  is_string_ = is_string;
  value_.clear();
  if (is_first && MayBeWrapper(name_)) {
    mode_ = Mode::kWrapper;
  } else if (is_string) {
    mode_ = Mode::kStream;
    WriteKey(name_, out);
    out += '"';
  } else {
    mode_ = Mode::kBuffer;
  }
}

void ArgumentsWriter::Value(std::string_view piece, std::string& out) {
  if (mode_ == Mode::kStream) {
    AppendJsonEscaped(piece, out);
  } else if (mode_ != Mode::kSkip) {
    value_ += piece;
  }
}

void ArgumentsWriter::EndParameter(std::string& out) {
  if (mode_ == Mode::kStream) {
    out += '"';
  } else if (mode_ == Mode::kBuffer) {
    WriteBuffered(out);
  } else if (mode_ == Mode::kWrapper) {
    has_wrapper_ = true;
  }
}

void ArgumentsWriter::End(std::string& out) {
  if (has_wrapper_ && IsWrappedObject(value_)) {
    out += Trim(value_, kJsonSpace);
    return;
  }
  FlushWrapper(out);
  out += has_members_ ? "}" : "{}";
}

void ArgumentsWriter::WriteBody(std::string_view body, std::string& out) {
  const auto object = ReadJson(body, "body");
  if (object && object->is_object()) {
    out += Trim(body, kJsonSpace);
    return;
  }
  WriteKey("arguments", out);
  out += QuoteJson(body);
  out += '}';
}

}  // namespace dsv4::chat
