// Escapes of control characters for a terminal.
#include "apps/terminal/printable.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/utf8.h"

namespace dsv4::apps {

std::string Printable(std::string_view text) {
  std::string printable;
  while (!text.empty()) {
    const size_t valid = std::min(FindInvalidUtf8(text), text.size());
    for (const char c : text.substr(0, valid)) {
      const auto byte = static_cast<unsigned char>(c);
      const bool control = (byte < 0x20 && c != '\n' && c != '\t') || byte == 0x7F;
      if (control) {
        printable += fmt::format("\\x{:02x}", byte);
      } else {
        printable += c;
      }
    }
    text.remove_prefix(valid);
    if (!text.empty()) {
      printable += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
      text.remove_prefix(1);
    }
  }
  return printable;
}

}  // namespace dsv4::apps
