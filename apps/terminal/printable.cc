// Escapes of control characters for a terminal.
#include "apps/terminal/printable.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>

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

std::string InQuotes(std::string_view text) {
  std::string quoted = "'";
  for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string ShellWord(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789%+,-./:=@_";
  const bool plain = !text.empty() && text.find_first_not_of(kPlain) == std::string_view::npos;
  return plain ? std::string(text) : InQuotes(text);
}

std::string CommandLine(const std::vector<std::string>& words) {
  std::string line;
  for (const std::string& word : words) {
    line += line.empty() ? ShellWord(std::filesystem::path(word).filename().string()) : " " + ShellWord(word);
  }
  return line;
}

}  // namespace dsv4::apps
