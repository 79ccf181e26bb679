// Cuts a form's body at its boundaries.
#include "server/batch/multipart.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/text.h"

namespace dsv4::server {
namespace {

// The value of ` name=` in a header, without its quotes; empty: not there.
std::string Parameter(std::string_view header, std::string_view name) {
  const std::string lower = Lowercase(header);
  const std::string wanted = std::string(name) + "=";
  for (size_t at = lower.find(wanted); at != std::string::npos; at = lower.find(wanted, at + 1)) {
    if (at > 0 && lower[at - 1] != ' ' && lower[at - 1] != ';') continue;  // The end of a longer name.
    std::string_view value = header.substr(at + wanted.size());
    if (!value.starts_with('"')) return std::string(value.substr(0, value.find_first_of("; \t\r\n")));
    std::string text;
    for (size_t i = 1; i < value.size() && value[i] != '"'; ++i) {
      if (value[i] == '\\' && i + 1 < value.size()) ++i;
      text += value[i];
    }
    return text;
  }
  return {};
}

Status Broken(std::string_view what) { return InvalidArgument(fmt::format("body: {}", what)); }

}  // namespace

Result<std::vector<FormPart>> ReadForm(std::string_view content_type, std::string_view body) {
  constexpr std::string_view kType = "multipart/form-data";
  const std::string boundary = Parameter(content_type, "boundary");
  if (!Lowercase(content_type).starts_with(kType) || boundary.empty()) {
    return Error(InvalidArgument(
        fmt::format("content-type: got '{}', wanted {} with a boundary", content_type, kType)));
  }
  const std::string delimiter = "--" + boundary;
  std::vector<FormPart> parts;
  size_t at = body.find(delimiter);
  if (at == std::string_view::npos)
    return Error(Broken("the boundary that the content type names is not in it"));
  for (;;) {
    at += delimiter.size();
    if (body.substr(at).starts_with("--")) return parts;
    if (!body.substr(at).starts_with("\r\n")) return Error(Broken("a boundary without a line's end"));
    at += 2;
    const size_t head_end = body.find("\r\n\r\n", at);
    const size_t end = body.find("\r\n" + delimiter, at);
    if (head_end == std::string_view::npos || end == std::string_view::npos || head_end > end)
      return Error(Broken("a part without an end"));
    FormPart part;
    std::string_view head = body.substr(at, head_end - at);
    while (!head.empty()) {
      const std::string_view line = head.substr(0, head.find("\r\n"));
      head.remove_prefix(std::min(head.size(), line.size() + 2));
      if (!Lowercase(line).starts_with("content-disposition:")) continue;
      part.name = Parameter(line, "name");
      part.file_name = Parameter(line, "filename");
    }
    if (part.name.empty()) return Error(Broken("a part without a name"));
    part.content = body.substr(head_end + 4, end - std::min(end, head_end + 4));
    parts.push_back(std::move(part));
    at = end + 2;
  }
}

}  // namespace dsv4::server
