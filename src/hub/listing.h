// Listing of a repository's revision by a hub: its commit, and its files with sizes and digests.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "hub/reference.h"

namespace dsv4::hub {

struct RemoteFile {
  std::string name;  // Below the repository, with slashes. Safe: IsSafeFileName.
  int64_t num_bytes = 0;
  std::string digest;  // IsDigest.
};

struct Listing {
  std::string commit;  // 40 hexadecimal digits.
  std::vector<RemoteFile> files;
};

// ENDPOINT/api/models/OWNER/NAME/revision/REVISION?blobs=true
std::string ListingUrl(std::string_view endpoint, const Reference& reference);
// ENDPOINT/OWNER/NAME/resolve/COMMIT/FILE
std::string FileUrl(std::string_view endpoint, const Reference& reference, std::string_view commit,
                    std::string_view file);

// Reads the answer to ListingUrl. The bytes are hostile: InvalidArgument names what is missing, doubled or
// unsafe.
Result<Listing> ParseListing(std::string_view json);

// Whether a checkpoint needs the file to run: JSON, safetensors, chat templates, licence and card in the top
// folder.
bool IsNeeded(std::string_view file);

}  // namespace dsv4::hub
