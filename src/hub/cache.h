// Repositories that lie in the cache of this machine (hub/reference.h has its layout): which there are, and
// how one is removed.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "base/status.h"
#include "hub/reference.h"

namespace dsv4::hub {

struct CachedSnapshot {
  std::string commit;
  std::vector<std::string> revisions;  // Names that mean this commit: "main".
  std::filesystem::path path;
  int64_t num_files = 0;
  int64_t num_bytes = 0;  // Sum over its files, shared ones included.
};

struct CachedRepository {
  std::string owner, name;
  std::filesystem::path folder;
  std::vector<CachedSnapshot> snapshots;  // By commit.
  int64_t num_bytes = 0;                  // On the disk.
  int64_t unfinished_bytes = 0;           // Files that have not come whole.

  std::string repository() const { return owner + "/" + name; }
};

// By name. A cache that is not there holds nothing. Errors: a folder that cannot be read.
Result<std::vector<CachedRepository>> ListCache(const std::filesystem::path& cache);

// The reference that `text` means among `repositories`: OWNER/NAME[@REVISION], an address, or NAME alone
// where it has one owner. NotFound, or InvalidArgument that lists the owners.
Result<Reference> FindInCache(const std::vector<CachedRepository>& repositories, const std::string& text);

struct Removal {
  std::vector<std::filesystem::path> paths;
  int64_t num_bytes = 0;  // More room on the disk afterwards.
};

// The paths that go with `reference`: the whole repository for `all`, and where nothing else of it is there.
// Else its snapshot, the names that mean it, and bytes that no other snapshot has. NotFound without it;
// FailedPrecondition while a file of it is being fetched.
Result<Removal> PlanRemoval(const CachedRepository& repository, const Reference& reference, bool all);
Status Remove(const Removal& removal);

}  // namespace dsv4::hub
