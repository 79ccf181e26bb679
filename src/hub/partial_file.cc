// Locked, resumable download file, hashed as it grows and renamed when its digest is right.
#include "hub/partial_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include "base/text.h"

namespace dsv4::hub {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kHashStep = int64_t{64} << 20;

Status OfErrno(const fs::path& path, std::string_view what, int error) {
  const std::string message = fmt::format("{}: {}: {}", path.string(), what, std::strerror(error));
  return error == ENOSPC || error == EDQUOT ? ResourceExhausted(message) : FailedPrecondition(message);
}

}  // namespace

PartialFile::PartialFile(fs::path blob, fs::path incomplete, const RemoteFile& file)
    : blob_(std::move(blob)),
      incomplete_(std::move(incomplete)),
      file_(file),
      digest_(KindOfDigest(file.digest), file.num_bytes) {}

PartialFile::~PartialFile() {
  if (descriptor_ >= 0) close(descriptor_);
  if (lock_ >= 0) close(lock_);
}

Result<std::unique_ptr<PartialFile>> PartialFile::Open(const fs::path& repository, const RemoteFile& file,
                                                       bool again) {
  const fs::path blobs = repository / "blobs";
  const fs::path locks = repository.parent_path() / ".locks" / repository.filename();
  std::error_code error;
  for (const fs::path& folder : {blobs, locks}) {
    fs::create_directories(folder, error);
    if (error) return Error(OfErrno(folder, "cannot make the folder", error.value()));
  }
  std::unique_ptr<PartialFile> partial(
      new PartialFile(blobs / file.digest, blobs / (file.digest + ".incomplete"), file));
  const fs::path lock = locks / (file.digest + ".lock");
  partial->lock_ = open(lock.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (partial->lock_ < 0) return Error(OfErrno(lock, "cannot open", errno));
  if (flock(partial->lock_, LOCK_EX | LOCK_NB) != 0) {
    if (errno == EWOULDBLOCK) return nullptr;
    return Error(OfErrno(lock, "cannot lock", errno));
  }
  if (fs::is_regular_file(partial->blob_, error) &&
      fs::file_size(partial->blob_, error) == static_cast<uintmax_t>(file.num_bytes)) {
    if (!again) {
      partial->was_whole_ = true;
      partial->size_ = partial->hashed_ = file.num_bytes;
      return partial;
    }
    fs::rename(partial->blob_, partial->incomplete_, error);
    if (error) return Error(OfErrno(partial->blob_, "cannot rename", error.value()));
  }
  partial->descriptor_ = open(partial->incomplete_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (partial->descriptor_ < 0) return Error(OfErrno(partial->incomplete_, "cannot open", errno));
  struct stat status {};
  if (fstat(partial->descriptor_, &status) != 0)
    return Error(OfErrno(partial->incomplete_, "cannot read its size", errno));
  partial->size_ = status.st_size;
  if (partial->size_ > file.num_bytes) DSV4_TRY(partial->Restart());
  return partial;
}

Result<bool> PartialFile::HashSome() {
  std::vector<char> block(size_t{1} << 20);
  const int64_t end = std::min(size_, hashed_ + kHashStep);
  while (hashed_ < end) {
    const auto wanted = std::min<int64_t>(static_cast<int64_t>(block.size()), end - hashed_);
    const ssize_t got = pread(descriptor_, block.data(), static_cast<size_t>(wanted), hashed_);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return Error(OfErrno(incomplete_, "cannot read", got < 0 ? errno : EIO));
    digest_.Update({block.data(), static_cast<size_t>(got)});
    hashed_ += got;
  }
  return hashed_ == size_;
}

Status PartialFile::Begin(int64_t from, int64_t total) {
  if (total >= 0 && total != file_.num_bytes) {
    return {StatusCode::kUnavailable,
            fmt::format("the server has {}, the listing says {}", Counted(total, "byte"), file_.num_bytes)};
  }
  if (from == size_) return {};
  if (from == 0) return Restart();  // The server does not take ranges.
  return {StatusCode::kUnavailable,
          fmt::format("the server sends from byte {}, wanted from {}", from, size_)};
}

Status PartialFile::Write(std::string_view bytes) {
  if (static_cast<int64_t>(bytes.size()) > file_.num_bytes - size_) {
    return {StatusCode::kUnavailable, fmt::format("the server sends more than the {} of the listing",
                                                  Counted(file_.num_bytes, "byte"))};
  }
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t wrote =
        pwrite(descriptor_, bytes.data() + done, bytes.size() - done, size_ + static_cast<int64_t>(done));
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return OfErrno(incomplete_, "cannot write", wrote < 0 ? errno : ENOSPC);
    done += static_cast<size_t>(wrote);
  }
  digest_.Update(bytes);
  size_ += static_cast<int64_t>(bytes.size());
  hashed_ = size_;
  return {};
}

Status PartialFile::Restart() {
  if (ftruncate(descriptor_, 0) != 0) return OfErrno(incomplete_, "cannot cut", errno);
  size_ = hashed_ = 0;
  digest_ = Digest(KindOfDigest(file_.digest), file_.num_bytes);
  return {};
}

Status PartialFile::Finish() {
  if (size_ != file_.num_bytes) {
    return {StatusCode::kUnavailable, fmt::format("{} of {} came", size_, Counted(file_.num_bytes, "byte"))};
  }
  if (const std::string digest = digest_.Finish(); digest != file_.digest) {
    DSV4_RETURN_IF_ERROR(Restart());
    return DataLoss(
        fmt::format("digest {}, wanted {}: damaged on the way, or changed on the hub", digest, file_.digest));
  }
  if (fsync(descriptor_) != 0) return OfErrno(incomplete_, "cannot write", errno);
  std::error_code error;
  fs::rename(incomplete_, blob_, error);
  if (error) return OfErrno(incomplete_, "cannot rename", error.value());
  return {};
}

}  // namespace dsv4::hub
