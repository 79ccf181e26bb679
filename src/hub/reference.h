// Names of checkpoints on a hub, and where downloads lie on this machine. The cache layout is that of
// huggingface_hub, so that each finds the files that the other fetched.
//
//   HUB/models--OWNER--NAME/refs/REVISION            the commit that the revision meant when it was fetched
//   HUB/models--OWNER--NAME/snapshots/COMMIT/FILE    symbolic links into
//   HUB/models--OWNER--NAME/blobs/ETAG               the bytes; ETAG.incomplete while they come
// Source: the documentation of huggingface_hub, "Understand caching".
#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>

#include "base/status.h"

namespace dsv4::hub {

struct Reference {
  std::string owner;
  std::string name;
  std::string revision = "main";  // A branch, a tag or a commit.

  std::string repository() const { return owner + "/" + name; }
  std::string ToString() const;
};

// OWNER/NAME, OWNER/NAME@REVISION, or the address of such a page on the hub (or hf://OWNER/NAME).
// InvalidArgument for anything else; a path like ./a/b or /a/b is none.
Result<Reference> ParseReference(std::string_view text);

// Settings from the environment: HF_ENDPOINT, HF_TOKEN (else the file HF_HOME/token), HF_HUB_CACHE (else
// HF_HOME/hub), HF_HOME (else XDG_CACHE_HOME/huggingface, else ~/.cache/huggingface).
struct Settings {
  std::string endpoint;         // Without a slash at its end.
  std::string token;            // Empty: none.
  std::filesystem::path cache;  // The folder HUB above.
};
Settings SettingsFromEnvironment();

// The folder of a repository below `cache`.
std::filesystem::path RepositoryFolder(const std::filesystem::path& cache, const Reference& reference);

// The snapshot that `reference` means in the cache, if it was fetched: by its refs file, or a commit by
// itself.
std::optional<std::filesystem::path> FindSnapshot(const std::filesystem::path& cache,
                                                  const Reference& reference);

// Whether `name` may be a file below a folder of ours: relative, no "..", no empty part, no control character
// or backslash.
bool IsSafeFileName(std::string_view name);

}  // namespace dsv4::hub
