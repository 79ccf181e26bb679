// Bounded list of unknown request fields, each warned of once and counted.
#include "server/observe/unknown_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

#include "base/log.h"

namespace dsv4::server {
namespace {

constexpr size_t kMaxNameBytes = 64;
constexpr size_t kMaxListed = 16;

// For a header, a label and a line: whatever a client calls a field.
std::string Printable(std::string_view name) {
  std::string text(name.substr(0, kMaxNameBytes));
  std::ranges::replace_if(
      text, [](unsigned char c) { return std::isalnum(c) == 0 && c != '_' && c != '-' && c != '.'; }, '?');
  return text.empty() ? "?" : text;
}

}  // namespace

std::string UnknownFields::Note(std::string_view route, std::span<const std::string> names) {
  std::string listed;
  for (size_t i = 0; i < names.size(); ++i) {
    const std::string name = Printable(names[i]);
    if (i < kMaxListed) listed += fmt::format("{}{}", i == 0 ? "" : ", ", name);
    if (i == kMaxListed) listed += ", ...";
    // Names in queries have one place together: those that keep caches away differ in each request.
    const std::string place = name.starts_with('?') ? "?" : name;
    bool is_new = false;
    bool has_place = false;
    {
      const std::lock_guard lock(mutex_);
      has_place = said_.contains(place);
      if (!has_place && said_.size() < kMaxNames) is_new = has_place = said_.insert(place).second;
    }
    metrics_.OnUnknownField(has_place ? place : "other");
    if (is_new) {
      LogWarning(
          fmt::format("{}: the field '{}' of a request is not known here and changes nothing (said once; "
                      "--unknown-fields refuse answers such requests with 400)",
                      route, name));
    }
  }
  return listed;
}

}  // namespace dsv4::server
