#include "engine/prefix_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <utility>

namespace dsv4::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "files are written in the host's byte order");

constexpr uint64_t kMagic = 0x5846525034565344;  // "DSV4PRFX"
constexpr uint32_t kVersion = 1;
constexpr std::string_view kSuffix = ".state";
constexpr std::string_view kUnfinishedSuffix = ".state.unfinished";
constexpr size_t kNameDigits = 32;

struct Header {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t header_bytes = sizeof(Header);
  uint64_t origin = 0;
  uint64_t salt = 0;
  int64_t num_tokens = 0;
  uint64_t num_snapshot_bytes = 0;
  uint64_t tokens_hash = 0;
  uint64_t header_hash = 0;

  uint64_t Hash() const { return XXH3_64bits(this, offsetof(Header, header_hash)); }
};
static_assert(sizeof(Header) == 64);

class File {
 public:
  explicit File(int fd) : fd_(fd) {}
  ~File() {
    if (fd_ >= 0) ::close(fd_);
  }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int fd() const { return fd_; }
  bool Close() { return ::close(std::exchange(fd_, -1)) == 0; }

 private:
  int fd_;
};

Status SystemError(const std::string& path, std::string_view action) {
  const int error = errno;
  return {error == ENOENT ? StatusCode::kNotFound : StatusCode::kUnavailable,
          fmt::format("{}: {}: {}", path, action, std::strerror(error))};
}

bool WriteAll(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = ::write(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

// False at an error and before the end of the file; errno is 0 for the latter.
bool ReadAll(int fd, std::span<std::byte> bytes) {
  errno = 0;
  while (!bytes.empty()) {
    const ssize_t count = ::read(fd, bytes.data(), bytes.size());
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) return false;
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
  return true;
}

Status ReadInto(const std::string& path, int fd, std::span<std::byte> bytes) {
  if (ReadAll(fd, bytes)) return {};
  if (errno != 0) return SystemError(path, "cannot read");
  return DataLoss(path + ": it ends too early");
}

std::span<const std::byte> BytesOf(std::span<const int32_t> tokens) { return std::as_bytes(tokens); }

// Of a file whose length is the header's.
Result<Header> ReadHeader(const std::string& path, int fd) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return Error(SystemError(path, "cannot read"));
  if (!S_ISREG(status.st_mode)) return Error(DataLoss(path + ": not a regular file"));
  Header header;
  DSV4_TRY(ReadInto(path, fd, std::as_writable_bytes(std::span(&header, 1))));
  if (header.magic != kMagic) {
    return Error(DataLoss(fmt::format("{}: magic: got {:016x}, want {:016x}", path, header.magic, kMagic)));
  }
  if (header.version != kVersion || header.header_bytes != sizeof(Header)) {
    return Error(Unimplemented(fmt::format("{}: version: got {} (header of {} bytes), want {} ({})", path,
                                           header.version, header.header_bytes, kVersion, sizeof(Header))));
  }
  if (header.header_hash != header.Hash()) {
    return Error(DataLoss(
        fmt::format("{}: header hash: got {:016x}, want {:016x}", path, header.header_hash, header.Hash())));
  }
  const int64_t rest = status.st_size - static_cast<int64_t>(sizeof(Header));
  const auto token_bytes = static_cast<int64_t>(sizeof(int32_t));
  if (header.num_tokens < 0 || header.num_tokens > rest / token_bytes ||
      header.num_snapshot_bytes != static_cast<uint64_t>(rest - header.num_tokens * token_bytes)) {
    return Error(DataLoss(fmt::format("{}: got {} bytes behind the header, which says {} tokens and {} bytes",
                                      path, rest, header.num_tokens, header.num_snapshot_bytes)));
  }
  return header;
}

Result<PrefixKey> ReadKey(const std::string& path, int fd, const Header& header) {
  PrefixKey key = {.origin = header.origin, .salt = header.salt, .tokens = {}};
  key.tokens.resize(static_cast<size_t>(header.num_tokens));
  DSV4_TRY(ReadInto(path, fd, std::as_writable_bytes(std::span(key.tokens))));
  const std::span<const std::byte> bytes = BytesOf(key.tokens);
  if (XXH3_64bits(bytes.data(), bytes.size()) != header.tokens_hash) {
    return Error(DataLoss(path + ": the tokens do not have their hash"));
  }
  return key;
}

int Open(const std::string& path) {
  // What stands there may be anything: a link elsewhere, a pipe that would be waited for.
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

Status OpenError(const std::string& path) {
  if (errno == ELOOP) return DataLoss(path + ": a symbolic link");
  return SystemError(path, "cannot open");
}

bool HasForm(const std::string& name, std::string_view suffix) {
  return name.size() == kNameDigits + suffix.size() && name.ends_with(suffix) &&
         std::all_of(name.begin(), name.begin() + kNameDigits,
                     [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

Status WriteUnfinished(const std::string& path, const PrefixKey& key, std::span<const std::byte> snapshot) {
  File file(::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (file.fd() < 0) return SystemError(path, "cannot create");
  const std::span<const std::byte> tokens = BytesOf(key.tokens);
  Header header = {.origin = key.origin,
                   .salt = key.salt,
                   .num_tokens = static_cast<int64_t>(key.tokens.size()),
                   .num_snapshot_bytes = snapshot.size(),
                   .tokens_hash = XXH3_64bits(tokens.data(), tokens.size())};
  header.header_hash = header.Hash();
  if (!WriteAll(file.fd(), std::as_bytes(std::span(&header, 1))) || !WriteAll(file.fd(), tokens) ||
      !WriteAll(file.fd(), snapshot) || ::fsync(file.fd()) != 0 || !file.Close()) {
    return SystemError(path, "cannot write");
  }
  return {};
}

}  // namespace

std::string PrefixFileName(uint64_t origin, uint64_t salt, std::span<const int32_t> tokens) {
  const std::span<const std::byte> bytes = BytesOf(tokens);
  const XXH128_hash_t content = XXH3_128bits(bytes.data(), bytes.size());
  const uint64_t all[] = {origin, salt, content.low64, content.high64};
  const XXH128_hash_t hash = XXH3_128bits(all, sizeof(all));
  return fmt::format("{:016x}{:016x}{}", hash.high64, hash.low64, kSuffix);
}

bool IsPrefixFileName(const std::string& name) { return HasForm(name, kSuffix); }

std::string UnfinishedName(const std::string& name) {
  return name.substr(0, kNameDigits) + std::string(kUnfinishedSuffix);
}

bool IsUnfinishedName(const std::string& name) { return HasForm(name, kUnfinishedSuffix); }

int64_t PrefixFileBytes(int64_t num_tokens, int64_t num_snapshot_bytes) {
  return static_cast<int64_t>(sizeof(Header) + sizeof(int32_t) * static_cast<size_t>(num_tokens)) +
         num_snapshot_bytes;
}

Status WritePrefixFile(const std::string& directory, const std::string& name, const PrefixKey& key,
                       std::span<const std::byte> snapshot) {
  const std::string unfinished = directory + "/" + UnfinishedName(name);
  const std::string path = directory + "/" + name;
  Status status = WriteUnfinished(unfinished, key, snapshot);
  if (status.ok() && ::rename(unfinished.c_str(), path.c_str()) != 0) {
    status = SystemError(path, "cannot rename to it");
  }
  if (!status.ok()) {
    ::unlink(unfinished.c_str());
    return status;
  }
  // The name is on the disk when its directory is.
  const File parent(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (parent.fd() < 0 || ::fsync(parent.fd()) != 0) {
    status = SystemError(directory, "cannot flush");
    ::unlink(path.c_str());
  }
  return status;
}

Result<PrefixKey> ReadPrefixKey(const std::string& path) {
  const File file(Open(path));
  if (file.fd() < 0) return Error(OpenError(path));
  DSV4_ASSIGN_OR_RETURN(const Header header, ReadHeader(path, file.fd()));
  return ReadKey(path, file.fd(), header);
}

Result<PrefixContent> ReadPrefixFile(const std::string& path) {
  const File file(Open(path));
  if (file.fd() < 0) return Error(OpenError(path));
  DSV4_ASSIGN_OR_RETURN(const Header header, ReadHeader(path, file.fd()));
  PrefixContent content;
  DSV4_ASSIGN_OR_RETURN(content.key, ReadKey(path, file.fd(), header));
  content.snapshot.resize(header.num_snapshot_bytes);
  DSV4_TRY(ReadInto(path, file.fd(), content.snapshot));
  return content;
}

}  // namespace dsv4::engine
