// Files of kept states: the header, and writing them whole.
#include "engine/prefix_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define XXH_STATIC_LINKING_ONLY  // XXH3_state_t as a member.
#include <xxhash.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <ctime>

#include "base/check.h"
#include "base/descriptor.h"
#include "base/text.h"
#include "base/write_file.h"

namespace dsv4::engine {
namespace {

static_assert(std::endian::native == std::endian::little, "files are written in the host's byte order");

constexpr uint64_t kMagic = 0x5846525034565344;  // "DSV4PRFX"
constexpr uint32_t kVersion = 2;
constexpr std::string_view kSuffix = ".state";
constexpr std::string_view kUnfinishedSuffix = ".unfinished";
constexpr size_t kNameDigits = 32;
constexpr size_t kWriterDigits = 16;
constexpr int64_t kSecond = 1'000'000'000;

struct Header {
  uint64_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t header_bytes = sizeof(Header);
  uint64_t origin = 0;
  uint64_t salt = 0;
  int64_t num_tokens = 0;
  uint64_t num_snapshot_bytes = 0;
  uint64_t tokens_hash[2] = {};
  PrefixHashes prefix_hashes = {};
  uint64_t header_hash = 0;

  uint64_t Hash() const { return XXH3_64bits(this, offsetof(Header, header_hash)); }
};
static_assert(sizeof(Header) == 144);

Status SystemError(const std::string& path, std::string_view action) {
  const int error = errno;
  return {error == ENOENT ? StatusCode::kNotFound : StatusCode::kUnavailable,
          fmt::format("{}: {}: {}", path, action, std::strerror(error))};
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

XXH128_hash_t HashTokens(std::span<const int32_t> tokens) {
  return XXH3_128bits(tokens.data(), tokens.size_bytes());
}

std::string NameOf(uint64_t origin, uint64_t salt, uint64_t tokens_low, uint64_t tokens_high) {
  const uint64_t all[] = {origin, salt, tokens_low, tokens_high};
  const XXH128_hash_t hash = XXH3_128bits(all, sizeof(all));
  return fmt::format("{:016x}{:016x}{}", hash.high64, hash.low64, kSuffix);
}

std::string NameOf(const Header& header) {
  return NameOf(header.origin, header.salt, header.tokens_hash[0], header.tokens_hash[1]);
}

// From a file whose length is the header's, and whose name too.
Result<Header> ReadHeader(const std::string& path, int fd) {
  struct stat status = {};
  if (::fstat(fd, &status) != 0) return Error(SystemError(path, "cannot read"));
  if (!S_ISREG(status.st_mode)) return Error(DataLoss(path + ": not a regular file"));
  Header header;
  // The beginning, which all versions have in common.
  const auto bytes = std::as_writable_bytes(std::span(&header, 1));
  DSV4_TRY(ReadInto(path, fd, bytes.first(offsetof(Header, origin))));
  if (header.magic != kMagic) {
    return Error(DataLoss(fmt::format("{}: magic: got {:016x}, want {:016x}", path, header.magic, kMagic)));
  }
  if (header.version != kVersion || header.header_bytes != sizeof(Header)) {
    return Error(
        Unimplemented(fmt::format("{}: version: got {} (header of {}), want {} ({})", path, header.version,
                                  Counted(header.header_bytes, "byte"), kVersion, sizeof(Header))));
  }
  DSV4_TRY(ReadInto(path, fd, bytes.subspan(offsetof(Header, origin))));
  if (header.header_hash != header.Hash()) {
    return Error(DataLoss(
        fmt::format("{}: header hash: got {:016x}, want {:016x}", path, header.header_hash, header.Hash())));
  }
  const int64_t rest = status.st_size - static_cast<int64_t>(sizeof(Header));
  const auto token_bytes = static_cast<int64_t>(sizeof(int32_t));
  if (header.num_tokens < 0 || header.num_tokens > rest / token_bytes ||
      header.num_snapshot_bytes != static_cast<uint64_t>(rest - header.num_tokens * token_bytes)) {
    return Error(DataLoss(fmt::format("{}: got {} behind the header, which says {} and {}", path,
                                      Counted(rest, "byte"), Counted(header.num_tokens, "token"),
                                      Counted(header.num_snapshot_bytes, "byte"))));
  }
  if (path.substr(path.rfind('/') + 1) != NameOf(header))
    return Error(DataLoss(path + ": holds another state than its name says"));
  return header;
}

int Open(const std::string& path) {
  // Files there may be anything: a link elsewhere, a pipe that would be waited for.
  return ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

Status OpenError(const std::string& path) {
  if (errno == ELOOP) return DataLoss(path + ": a symbolic link");
  return SystemError(path, "cannot open");
}

bool IsHex(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

}  // namespace

PrefixHashes HashPrefixes(uint64_t salt, std::span<const int32_t> tokens) {
  PrefixHashes hashes = {};
  if (static_cast<int64_t>(tokens.size()) <= kDiskRewindTokens) return hashes;
  for (size_t i = 0; i < hashes.size(); ++i) {
    const std::span<const int32_t> prefix = tokens.first(tokens.size() - i);
    hashes[i] = XXH3_64bits_withSeed(prefix.data(), prefix.size_bytes(), salt);
  }
  return hashes;
}

struct PrefixHasher::State {
  XXH3_state_t state;
};

PrefixHasher::PrefixHasher(uint64_t salt, std::span<const int32_t> tokens)
    : state_(std::make_unique<State>()), tokens_(tokens) {
  XXH3_64bits_reset_withSeed(&state_->state, salt);
}

PrefixHasher::~PrefixHasher() = default;

uint64_t PrefixHasher::At(int64_t length) {
  const std::span<const int32_t> more =
      tokens_.subspan(static_cast<size_t>(length_), static_cast<size_t>(length - length_));
  XXH3_64bits_update(&state_->state, more.data(), more.size_bytes());
  length_ = length;
  return XXH3_64bits_digest(&state_->state);
}

std::string PrefixFileName(uint64_t origin, uint64_t salt, std::span<const int32_t> tokens) {
  const XXH128_hash_t hash = HashTokens(tokens);
  return NameOf(origin, salt, hash.low64, hash.high64);
}

bool IsPrefixFileName(const std::string& name) {
  return name.size() == kNameDigits + kSuffix.size() && name.ends_with(kSuffix) &&
         IsHex(std::string_view(name).substr(0, kNameDigits));
}

bool IsUnfinishedName(const std::string& name) {
  const size_t state = kNameDigits + kSuffix.size();
  if (name.size() < state + kUnfinishedSuffix.size() || !name.ends_with(kUnfinishedSuffix)) return false;
  // Versions before this one had no writer's number.
  const std::string_view writer =
      std::string_view(name).substr(state, name.size() - state - kUnfinishedSuffix.size());
  return IsPrefixFileName(name.substr(0, state)) &&
         (writer.empty() ||
          (writer.size() == kWriterDigits + 1 && writer.front() == '.' && IsHex(writer.substr(1))));
}

bool IsUnfinishedNameOf(const std::string& name, const std::string& prefix_file_name) {
  return IsUnfinishedName(name) && name.starts_with(prefix_file_name);
}

bool IsAbandoned(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) return errno == ELOOP;  // No file of ours.
  const bool abandoned = ::flock(fd, LOCK_EX | LOCK_NB) == 0;
  ::close(fd);
  return abandoned;
}

int64_t PrefixFileBytes(int64_t num_tokens, int64_t num_snapshot_bytes) {
  return static_cast<int64_t>(sizeof(Header) + sizeof(int32_t) * static_cast<size_t>(num_tokens)) +
         num_snapshot_bytes;
}

Result<UnfinishedPrefixFile> UnfinishedPrefixFile::Create(const std::string& directory,
                                                          const std::string& name, int64_t num_bytes) {
  uint64_t writer = 0;
  if (::getrandom(&writer, sizeof(writer), 0) != sizeof(writer))
    return Error(SystemError(directory, "no random bytes"));
  const std::string path = fmt::format("{}/{}.{:016x}{}", directory, name, writer, kUnfinishedSuffix);
  const int fd = ::open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (fd < 0) return Error(SystemError(path, "cannot create"));
  UnfinishedPrefixFile file(directory, path, name, num_bytes, fd);
  if (::flock(fd, LOCK_EX | LOCK_NB) != 0) return Error(SystemError(path, "cannot lock"));
  if (::ftruncate(fd, num_bytes) != 0)
    return Error(SystemError(path, fmt::format("no room for {}", Counted(num_bytes, "byte"))));
  return file;
}

UnfinishedPrefixFile::~UnfinishedPrefixFile() {
  if (fd_ < 0) return;
  ::unlink(path_.c_str());
  ::close(fd_);
}

Status UnfinishedPrefixFile::Write(const PrefixKey& key, std::span<const std::byte> snapshot, int64_t used) {
  DSV4_CHECK(fd_ >= 0) << "finished already: " << name_;
  const XXH128_hash_t tokens_hash = HashTokens(key.tokens);
  Header header = {.origin = key.origin,
                   .salt = key.salt,
                   .num_tokens = static_cast<int64_t>(key.tokens.size()),
                   .num_snapshot_bytes = snapshot.size(),
                   .tokens_hash = {tokens_hash.low64, tokens_hash.high64},
                   .prefix_hashes = HashPrefixes(key.salt, key.tokens)};
  header.header_hash = header.Hash();
  const int64_t num_bytes = PrefixFileBytes(header.num_tokens, static_cast<int64_t>(snapshot.size()));
  DSV4_CHECK(NameOf(header) == name_ && num_bytes == num_bytes_) << name_ << ", " << num_bytes << " bytes";
  DSV4_RETURN_IF_ERROR(WriteAll(fd_, std::as_bytes(std::span(&header, 1)), path_));
  DSV4_RETURN_IF_ERROR(WriteAll(fd_, BytesOf(key.tokens), path_));
  DSV4_RETURN_IF_ERROR(WriteAll(fd_, snapshot, path_));
  if (::fsync(fd_) != 0) return SystemError(path_, "cannot flush");
  const timespec times[2] = {{.tv_sec = 0, .tv_nsec = UTIME_OMIT},
                             {.tv_sec = used / kSecond, .tv_nsec = used % kSecond}};
  if (::futimens(fd_, times) != 0) return SystemError(path_, "cannot set its time");
  return {};
}

Status UnfinishedPrefixFile::Finish() {
  DSV4_CHECK(fd_ >= 0) << "finished already: " << name_;
  const std::string path = directory_ + "/" + name_;
  if (::rename(path_.c_str(), path.c_str()) != 0) return SystemError(path, "cannot rename to it");
  // The lock ends with the unfinished file; a network's file system says here that the disk is full.
  if (::close(std::exchange(fd_, -1)) != 0) {
    const Status status = SystemError(path, "cannot write");
    ::unlink(path.c_str());
    return status;
  }
  // The name is on the disk when its directory is.
  const Status status = SyncDirectory(directory_);
  if (!status.ok()) ::unlink(path.c_str());
  return status;
}

Result<PrefixFileHead> ReadPrefixFileHead(const std::string& path) {
  const Descriptor file(Open(path));
  if (file.get() < 0) return Error(OpenError(path));
  DSV4_ASSIGN_OR_RETURN(const Header header, ReadHeader(path, file.get()));
  return PrefixFileHead{
      .name = NameOf(header),
      .origin = header.origin,
      .salt = header.salt,
      .num_tokens = header.num_tokens,
      .num_bytes = PrefixFileBytes(header.num_tokens, static_cast<int64_t>(header.num_snapshot_bytes)),
      .hashes = header.prefix_hashes};
}

Result<PrefixContent> ReadPrefixFile(const std::string& path) {
  const Descriptor file(Open(path));
  if (file.get() < 0) return Error(OpenError(path));
  DSV4_ASSIGN_OR_RETURN(const Header header, ReadHeader(path, file.get()));
  PrefixContent content = {.key = {.origin = header.origin, .salt = header.salt, .tokens = {}},
                           .snapshot = {}};
  content.key.tokens.resize(static_cast<size_t>(header.num_tokens));
  DSV4_TRY(ReadInto(path, file.get(), std::as_writable_bytes(std::span(content.key.tokens))));
  const XXH128_hash_t hash = HashTokens(content.key.tokens);
  if (hash.low64 != header.tokens_hash[0] || hash.high64 != header.tokens_hash[1])
    return Error(DataLoss(path + ": the tokens do not have their hash"));
  content.snapshot.resize(header.num_snapshot_bytes);
  DSV4_TRY(ReadInto(path, file.get(), content.snapshot));
  return content;
}

}  // namespace dsv4::engine
