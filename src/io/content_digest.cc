// Hashes of whole checkpoints, piece by piece.
#include "io/content_digest.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>
#include <xxhash.h>

#include <algorithm>
#include <memory>
#include <new>
#include <system_error>

#include "base/check.h"

namespace dsv4::io {
namespace {

constexpr size_t kPieceBytes = size_t{8} << 20;
constexpr size_t kReadBytes = size_t{1} << 20;  // At a time, which stays in a core's cache.
constexpr size_t kAlignment = 4096;             // Offsets and sizes of reads past the file cache.
constexpr unsigned kMostThreads = 4;            // As fast as the disks that models come from.

// Yields to the threads that load and compute. It can only fail to be nicer.
void LowerPriority() { (void)::setpriority(PRIO_PROCESS, 0, 10); }  // Linux: this thread's.

struct Freed {
  void operator()(void* memory) const { ::operator delete (memory, std::align_val_t{kAlignment}); }
};

struct FreedState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

// One that reads past the file cache, of the same file; -1 where its file system has none.
class DirectReads {
 public:
  explicit DirectReads(const InputFile& file)
      : descriptor_(::open(fmt::format("/proc/self/fd/{}", file.descriptor()).c_str(),
                           O_RDONLY | O_CLOEXEC | O_DIRECT)) {}
  ~DirectReads() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  DirectReads(const DirectReads&) = delete;
  DirectReads& operator=(const DirectReads&) = delete;
  // All of `bytes`, whose size may lie past the end of the file by less than the alignment; `wanted` of them
  // are there.
  bool ReadAt(size_t offset, std::span<std::byte> bytes, size_t wanted) const {
    return descriptor_ >= 0 && ::pread(descriptor_, bytes.data(), bytes.size(), static_cast<off_t>(offset)) ==
                                   static_cast<ssize_t>(wanted);
  }

 private:
  int descriptor_;
};

}  // namespace

ContentDigest::ContentDigest(const std::shared_ptr<const Checkpoint>& checkpoint, bool past_cache)
    : past_cache_(past_cache) {
  const std::optional<uint64_t> known = checkpoint->made_from();
  size_t num_pieces = 0;
  for (const MappedFile& mapped : checkpoint->files()) {
    files_.push_back({.file = mapped.file(), .bytes = mapped.bytes(), .first_piece = num_pieces});
    if (known) break;
    num_pieces += NumPieces(files_.back());
    if (mapped.file() == nullptr) memory_ = checkpoint;
  }
  if (known) {
    files_.clear();
    num_pieces = 1;
  }
  hashes_.resize(num_pieces);
  begun_.resize(num_pieces);
  if (!known) return;
  hashes_[0] = *known;
  begun_[0] = true;
  num_done_ = next_ = 1;
}

ContentDigest::~ContentDigest() {
  const std::lock_guard lock(mutex_);
  stopping_ = true;
  changed_.notify_all();
}

size_t ContentDigest::NumPieces(const File& file) const {
  return (file.bytes.size() + kPieceBytes - 1) / kPieceBytes;
}

void ContentDigest::Follow(std::span<const std::span<const std::byte>> ranges) {
  const std::lock_guard lock(mutex_);
  for (const std::span<const std::byte> range : ranges) {
    const auto file = std::ranges::find_if(files_, [&](const File& candidate) {
      return !range.empty() && candidate.bytes.data() <= range.data() &&
             range.data() < candidate.bytes.data() + candidate.bytes.size();
    });
    if (file == files_.end()) continue;
    const auto begin = static_cast<size_t>(range.data() - file->bytes.data());
    const size_t last = (begin + range.size() - 1) / kPieceBytes;
    for (size_t piece = begin / kPieceBytes; piece <= last; ++piece) {
      if (!begun_[file->first_piece + piece]) wanted_.push_back(file->first_piece + piece);
    }
  }
  if (!wanted_.empty()) StartThreads();
}

void ContentDigest::Start() {
  const std::lock_guard lock(mutex_);
  all_wanted_ = true;
  if (num_done_ < hashes_.size()) StartThreads();
}

void ContentDigest::StartThreads() {
  changed_.notify_all();
  if (!failed_.ok()) return;
  const unsigned wanted =
      past_cache_ ? 1 : std::clamp(std::thread::hardware_concurrency() / 4, 1U, kMostThreads);
  try {
    while (threads_.size() < wanted) threads_.emplace_back([this] { Work(); });
  } catch (const std::system_error& error) {
    if (threads_.empty())
      failed_ = ResourceExhausted(fmt::format("weights: no thread to hash their bytes: {}", error.what()));
  }
}

std::optional<size_t> ContentDigest::Next() {
  while (!wanted_.empty()) {
    const size_t piece = wanted_.front();
    wanted_.pop_front();
    if (!begun_[piece]) return piece;
  }
  while (all_wanted_ && next_ < begun_.size()) {
    if (!begun_[next_]) return next_;
    ++next_;
  }
  return std::nullopt;
}

void ContentDigest::Work() {
  LowerPriority();
  std::unique_ptr<void, Freed> room(::operator new (kReadBytes, std::align_val_t{kAlignment}, std::nothrow));
  std::unique_lock lock(mutex_);
  if (room == nullptr) failed_ = ResourceExhausted("weights: no memory to hash their bytes");
  while (!stopping_ && failed_.ok() && num_done_ < hashes_.size()) {
    const std::optional<size_t> piece = Next();
    if (!piece) {
      changed_.wait(lock);
      continue;
    }
    begun_[*piece] = true;
    lock.unlock();
    const Result<uint64_t> hash = HashPiece(*piece, {static_cast<std::byte*>(room.get()), kReadBytes});
    lock.lock();
    if (hash) {
      hashes_[*piece] = *hash;
      ++num_done_;
    } else if (failed_.ok()) {
      failed_ = hash.error();
    }
    if (num_done_ == hashes_.size() || !failed_.ok()) changed_.notify_all();
  }
}

Result<uint64_t> ContentDigest::HashPiece(size_t piece, std::span<std::byte> room) const {
  const auto after = std::ranges::upper_bound(files_, piece, {}, &File::first_piece);
  const File& file = *std::prev(after);
  const size_t begin = (piece - file.first_piece) * kPieceBytes;
  const size_t end = std::min(begin + kPieceBytes, file.bytes.size());
  if (file.file == nullptr) return XXH3_64bits(file.bytes.data() + begin, end - begin);
  const std::unique_ptr<XXH3_state_t, FreedState> state(XXH3_createState());
  if (state == nullptr) return Error(ResourceExhausted("weights: no memory to hash their bytes"));
  XXH3_64bits_reset(state.get());
  std::optional<DirectReads> direct;
  if (past_cache_) direct.emplace(*file.file);
  for (size_t at = begin; at < end; at += kReadBytes) {
    const std::span<std::byte> bytes = room.first(std::min(kReadBytes, end - at));
    if (!direct || !direct->ReadAt(at, room, bytes.size())) {
      DSV4_TRY(file.file->ReadAt(static_cast<int64_t>(at), bytes));
    }
    XXH3_64bits_update(state.get(), bytes.data(), bytes.size());
  }
  return XXH3_64bits_digest(state.get());
}

Status ContentDigest::Unchanged() const {
  for (const File& file : files_) {
    if (file.file != nullptr) DSV4_RETURN_IF_ERROR(file.file->Unchanged());
  }
  return {};
}

Result<uint64_t> ContentDigest::Wait(std::chrono::milliseconds at_most) {
  Start();
  std::unique_lock lock(mutex_);
  const auto known = [&] { return num_done_ == hashes_.size() || !failed_.ok(); };
  if (at_most == kForever) {
    changed_.wait(lock, known);
  } else {
    changed_.wait_for(lock, at_most, known);
  }
  // Each time: a model that borrows from its files goes on with bytes that were not hashed.
  if (failed_.ok()) failed_ = Unchanged();
  if (!failed_.ok()) return Error(failed_);
  if (!known()) return Error(StatusCode::kUnavailable, "weights: not all bytes have been hashed yet");
  // A file's size is where the next one's pieces begin.
  std::vector<uint64_t> facts;
  for (const File& file : files_) facts.push_back(file.bytes.size());
  facts.insert(facts.end(), hashes_.begin(), hashes_.end());
  return XXH3_64bits(facts.data(), facts.size() * sizeof(uint64_t));
}

}  // namespace dsv4::io
