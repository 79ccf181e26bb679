// Parser of a hub's listing of a revision, with hostile names refused, and URLs of its files.
#include "hub/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "base/json.h"
#include "hub/digest.h"

namespace dsv4::hub {
namespace {

// RFC 3986: everything but unreserved characters and, in paths, the slash.
std::string Escaped(std::string_view text, bool keep_slashes) {
  std::string url;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || c == '.' || c == '~' || (keep_slashes && c == '/');
    if (plain) {
      url += c;
    } else {
      url += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    }
  }
  return url;
}

const Json* Find(const Json& object, std::string_view key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() ? nullptr : &*found;
}

Result<RemoteFile> ParseFile(const Json& entry) {
  RemoteFile file;
  const Json* name = Find(entry, "rfilename");
  if (name == nullptr || !name->is_string())
    return Error(InvalidArgument("listing: a file without rfilename"));
  file.name = name->get<std::string>();
  if (!IsSafeFileName(file.name)) {
    return Error(InvalidArgument(fmt::format("listing: file name {}: would lie outside its folder",
                                             Json(file.name).dump(-1, ' ', true))));
  }
  // A large file has its digest in "lfs"; git's id is then that of a pointer to it.
  const Json* large = Find(entry, "lfs");
  if (large != nullptr && !large->is_object()) large = nullptr;
  const Json* size = Find(large != nullptr ? *large : entry, "size");
  const Json* digest = large != nullptr ? Find(*large, "sha256") : Find(entry, "blobId");
  if (size == nullptr || !size->is_number_integer() || size->get<int64_t>() < 0) {
    return Error(
        InvalidArgument(fmt::format("listing: {}: no size; the hub must take ?blobs=true", file.name)));
  }
  if (digest == nullptr || !digest->is_string() || !IsDigest(digest->get<std::string>())) {
    return Error(
        InvalidArgument(fmt::format("listing: {}: no digest; the hub must take ?blobs=true", file.name)));
  }
  file.num_bytes = size->get<int64_t>();
  file.digest = digest->get<std::string>();
  return file;
}

}  // namespace

std::string ListingUrl(std::string_view endpoint, const Reference& reference) {
  return fmt::format("{}/api/models/{}/revision/{}?blobs=true", endpoint, reference.repository(),
                     Escaped(reference.revision, false));
}

std::string FileUrl(std::string_view endpoint, const Reference& reference, std::string_view commit,
                    std::string_view file) {
  return fmt::format("{}/{}/resolve/{}/{}", endpoint, reference.repository(), commit, Escaped(file, true));
}

Result<Listing> ParseListing(std::string_view text) {
  DSV4_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "listing"));
  Listing listing;
  const Json* commit = Find(json, "sha");
  if (commit == nullptr || !commit->is_string() || commit->get<std::string>().size() != 40 ||
      !IsDigest(commit->get<std::string>())) {
    return Error(InvalidArgument("listing: sha: want a commit of 40 hexadecimal digits"));
  }
  listing.commit = commit->get<std::string>();
  const Json* files = Find(json, "siblings");
  if (files == nullptr || !files->is_array())
    return Error(InvalidArgument("listing: siblings: want a list of files"));
  std::set<std::string> names;
  for (const Json& entry : *files) {
    DSV4_ASSIGN_OR_RETURN(RemoteFile file, ParseFile(entry));
    if (!names.insert(file.name).second)
      return Error(InvalidArgument(fmt::format("listing: {}: stands there twice", file.name)));
    listing.files.push_back(std::move(file));
  }
  return listing;
}

bool IsNeeded(std::string_view file) {
  if (file.find('/') != std::string_view::npos) return false;
  const auto ends = [&](std::string_view suffix) { return file.ends_with(suffix); };
  return ends(".json") || ends(".safetensors") || ends(".jinja") || file.starts_with("LICENSE") ||
         file == "README.md";
}

}  // namespace dsv4::hub
