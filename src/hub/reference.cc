#include "hub/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/read_file.h"

namespace dsv4::hub {
namespace {

namespace fs = std::filesystem;

bool IsNameCharacter(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
         c == '.';
}

// As the hub allows them: no dot or dash at an end, no two dots.
bool IsName(std::string_view name) {
  return !name.empty() && name.size() <= 96 && std::ranges::all_of(name, IsNameCharacter) &&
         name.front() != '.' && name.front() != '-' && name.back() != '.' && name.back() != '-' &&
         name.find("..") == std::string_view::npos;
}

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string() : std::string(value);
}

std::string Trimmed(std::string text) {
  const auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && is_space(text.back())) text.pop_back();
  size_t begin = 0;
  while (begin < text.size() && is_space(text[begin])) ++begin;
  return text.substr(begin);
}

}  // namespace

std::string Reference::ToString() const {
  return revision == "main" ? repository() : repository() + "@" + revision;
}

Result<Reference> ParseReference(std::string_view text) {
  const auto refuse = [&] {
    return Error(InvalidArgument(fmt::format("{}: want OWNER/NAME or OWNER/NAME@REVISION", text)));
  };
  Reference reference;
  if (const size_t at = text.find('@'); at != std::string_view::npos) {
    reference.revision = text.substr(at + 1);
    text = text.substr(0, at);
    // A revision may have folders ("refs/pr/3"); each part becomes a file name below refs/.
    if (reference.revision.size() > 200 || !IsSafeFileName(reference.revision)) return refuse();
  }
  const size_t slash = text.find('/');
  if (slash == std::string_view::npos) return refuse();
  reference.owner = text.substr(0, slash);
  reference.name = text.substr(slash + 1);
  if (!IsName(reference.owner) || !IsName(reference.name)) return refuse();
  return reference;
}

Settings SettingsFromEnvironment() {
  Settings settings;
  settings.endpoint = Environment("HF_ENDPOINT");
  if (settings.endpoint.empty()) settings.endpoint = "https://huggingface.co";
  while (settings.endpoint.ends_with('/')) settings.endpoint.pop_back();

  fs::path home = Environment("HF_HOME");
  if (home.empty()) {
    fs::path base = Environment("XDG_CACHE_HOME");
    if (base.empty()) base = fs::path(Environment("HOME")) / ".cache";
    home = base / "huggingface";
  }
  settings.cache = Environment("HF_HUB_CACHE");
  if (settings.cache.empty()) settings.cache = home / "hub";
  settings.token = Trimmed(Environment("HF_TOKEN"));
  if (settings.token.empty()) {
    if (Result<std::string> token = ReadFile((home / "token").string(), FileKind::kRegular, 4096); token)
      settings.token = Trimmed(*token);
  }
  return settings;
}

fs::path RepositoryFolder(const fs::path& cache, const Reference& reference) {
  return cache / fmt::format("models--{}--{}", reference.owner, reference.name);
}

std::optional<fs::path> FindSnapshot(const fs::path& cache, const Reference& reference) {
  const fs::path folder = RepositoryFolder(cache, reference);
  std::error_code error;
  std::string commit = reference.revision;
  if (const Result<std::string> kept =
          ReadFile((folder / "refs" / reference.revision).string(), FileKind::kRegular, 1024);
      kept) {
    commit = Trimmed(*kept);
  }
  if (!IsName(commit)) return std::nullopt;
  fs::path snapshot = folder / "snapshots" / commit;
  if (!fs::is_directory(snapshot, error)) return std::nullopt;
  return snapshot;
}

bool IsSafeFileName(std::string_view name) {
  if (name.empty() || name.size() > 1024) return false;
  if (std::ranges::any_of(
          name, [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f || c == '\\'; })) {
    return false;
  }
  while (true) {
    const size_t slash = name.find('/');
    const std::string_view part = name.substr(0, slash);
    if (part.empty() || part == "." || part == "..") return false;
    if (slash == std::string_view::npos) return true;
    name.remove_prefix(slash + 1);
  }
}

}  // namespace dsv4::hub
