// Answers of a hub, and names of checkpoints. The first byte chooses: a listing, a name, or the raw answers to the connections of a whole
// pull, one behind the other. A pull writes into the cache, and nowhere else.
#include <cstdlib>
#include <filesystem>
#include <string>
#include <string_view>

#include "base/check.h"
#include "folder.h"
#include "hub/digest.h"
#include "hub/listing.h"
#include "hub/pull.h"
#include "hub/reference.h"
#include "raw_server.h"

namespace dsv4::hub {
namespace {

constexpr double kStallSeconds = 2;

bool List(std::string_view text) {
  const auto listing = ParseListing(text);
  if (!listing) {
    DSV4_CHECK(!listing.error().message().empty());
    return false;
  }
  DSV4_CHECK(listing->commit.size() == 40);
  for (const RemoteFile& file : listing->files) {
    DSV4_CHECK(IsSafeFileName(file.name) && IsDigest(file.digest) && file.num_bytes >= 0) << file.name;
  }
  return true;
}

bool Name(std::string_view text) {
  const auto reference = ParseReference(text);
  if (!reference) return false;
  const std::filesystem::path cache = "/cache";
  const std::string folder = RepositoryFolder(cache, *reference).lexically_normal();
  DSV4_CHECK(folder.starts_with("/cache/models--")) << folder;
  const auto again = ParseReference(reference->ToString());
  // An owner may have the name of the hub's host.
  DSV4_CHECK(!again || again->repository() == reference->repository()) << reference->ToString();
  return true;
}

// Redirections to other hosts come to it as well.
testing::RawServer& Hub() {
  static testing::RawServer server;
  for (const char* variable : {"http_proxy", "https_proxy", "ALL_PROXY"})
    ::setenv(variable, server.url().c_str(), 1);
  ::unsetenv("no_proxy");
  ::unsetenv("NO_PROXY");
  return server;
}

bool PullFrom(std::string_view answers) {
  static testing::RawServer& server = Hub();
  const testing::Folder folder;
  server.Say(answers);
  const std::filesystem::path cache = folder.path() + "/deep/hub";
  const auto pulled = Pull({.reference = {.owner = "o", .name = "n"},
                            .settings = {.endpoint = server.url(), .token = "secret", .cache = cache},
                            .num_transfers = 1,
                            .num_retries = 0,
                            .retry_seconds = 0,
                            .stall_seconds = kStallSeconds});
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder.path())) {
    const std::string below = entry.path().lexically_relative(folder.path());
    DSV4_CHECK(below == "deep" || below.starts_with("deep/hub")) << below;
  }
  if (!pulled) {
    DSV4_CHECK(!pulled.error().message().empty());
    return false;
  }
  DSV4_CHECK(std::filesystem::exists(pulled->snapshot));
  return true;
}

}  // namespace
}  // namespace dsv4::hub

extern "C" bool FuzzInputIsAccepted(const uint8_t* data, size_t size) {
  using namespace dsv4::hub;
  if (size == 0) return false;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 3) {
    case 0:
      return List(text);
    case 1:
      return Name(text);
    default:
      return PullFrom(text);
  }
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  (void)FuzzInputIsAccepted(data, size);
  return 0;
}
