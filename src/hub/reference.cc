// Parser of OWNER/NAME@REVISION and page addresses, and folders of huggingface_hub's cache.
#include "hub/reference.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "base/read_file.h"
#include "base/text.h"

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

std::string Trimmed(std::string_view text) { return std::string(Trim(text, " \n\r\t")); }

}  // namespace

std::string Reference::ToString() const {
  return revision == "main" ? repository() : repository() + "@" + revision;
}

namespace {

std::string Host(std::string_view url) {
  if (const size_t scheme = url.find("://"); scheme != std::string_view::npos) url.remove_prefix(scheme + 3);
  return std::string(url.substr(0, url.find('/')));
}

// The address of a repository's page, as people copy it, as OWNER/NAME[@REVISION]; other texts as they are.
Result<std::string> WithoutAddress(std::string_view text) {
  constexpr std::string_view kForeign = "hf://";
  const std::string hub = Environment("HF_ENDPOINT");
  std::string_view path = text;
  if (path.starts_with(kForeign)) {
    path.remove_prefix(kForeign.size());
  } else {
    const std::string host = Host(path);
    const bool known = host == "huggingface.co" || host == "www.huggingface.co" || host == "hf.co" ||
                       (!hub.empty() && host == Host(hub));
    if (!known && path.find("://") == std::string_view::npos) return std::string(text);
    if (!known) {
      return Error(InvalidArgument(fmt::format(
          "{}: {} is not the hub; HF_ENDPOINT names another one than https://huggingface.co", text, host)));
    }
    path.remove_prefix(std::min(path.find(host) + host.size() + 1, path.size()));
  }
  path = path.substr(0, path.find_first_of("?#"));
  while (path.ends_with('/')) path.remove_suffix(1);
  if (path.ends_with(".git")) path.remove_suffix(4);
  for (const std::string_view kind : {"datasets/", "spaces/"}) {
    if (path.starts_with(kind))
      return Error(InvalidArgument(
          fmt::format("{}: one of the hub's {}, want a model", text, kind.substr(0, kind.size() - 1))));
  }
  if (path.starts_with("models/")) path.remove_prefix(7);
  // OWNER/NAME/tree/REVISION, and of a file OWNER/NAME/blob/REVISION/FILE.
  size_t end = path.find('/');
  if (end != std::string_view::npos) end = path.find('/', end + 1);
  std::string reference(path.substr(0, end));
  if (end == std::string_view::npos) return reference;
  path.remove_prefix(end + 1);
  for (const std::string_view view : {"tree/", "blob/", "resolve/", "commit/"}) {
    if (!path.starts_with(view)) continue;
    path.remove_prefix(view.size());
    const bool pulled = path.starts_with("refs/");  // refs/pr/3
    const std::string revision(pulled ? path : path.substr(0, path.find('/')));
    return revision == "main" ? reference : reference + "@" + revision;
  }
  return reference;
}

}  // namespace

Result<Reference> ParseReference(std::string_view given) {
  given.remove_prefix(std::min(given.find_first_not_of(" \t\n\r"), given.size()));
  given = given.substr(0, given.find_last_not_of(" \t\n\r") + 1);
  DSV4_ASSIGN_OR_RETURN(const std::string plain, WithoutAddress(given));
  std::string_view text = plain;
  const auto refuse = [&] {
    return Error(InvalidArgument(fmt::format(
        "{}: want OWNER/NAME, OWNER/NAME@REVISION or the address of its page on the hub", given)));
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
