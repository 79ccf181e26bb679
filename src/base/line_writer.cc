// Lines that a thread of its own writes, or loses.
#include "base/line_writer.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <ctime>
#include <exception>
#include <mutex>
#include <string>
#include <thread>
#include <utility>

#include "base/text.h"

namespace dsv4 {
namespace {

constexpr size_t kMostQueued = size_t{1} << 20;  // Bytes.
constexpr std::chrono::seconds kPatience(1);     // At the end.
constexpr size_t kPipePiece = 4096;              // A pipe or terminal that is ready takes so much.

// Keeps a write to a pipe without readers from ending the process.
class NoSigPipe {
 public:
  NoSigPipe() {
    ::sigemptyset(&pipe_);
    ::sigaddset(&pipe_, SIGPIPE);
    sigset_t pending = {};
    ::sigpending(&pending);
    was_pending_ = ::sigismember(&pending, SIGPIPE) == 1;
    ::pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigPipe() {
    const int error = errno;
    const timespec at_once = {};
    if (!was_pending_) ::sigtimedwait(&pipe_, nullptr, &at_once);
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    errno = error;
  }
  NoSigPipe(const NoSigPipe&) = delete;
  NoSigPipe& operator=(const NoSigPipe&) = delete;

 private:
  sigset_t pipe_ = {};
  sigset_t before_ = {};
  bool was_pending_ = false;
};

}  // namespace

bool WriteQuietly(int descriptor, std::string_view text, int patience_ms) {
  const NoSigPipe guard;
  while (!text.empty()) {
    pollfd ready = {.fd = descriptor, .events = POLLOUT, .revents = 0};
    if (patience_ms >= 0 && ::poll(&ready, 1, patience_ms) == 0) return false;
    const size_t piece = patience_ms >= 0 ? std::min(kPipePiece, text.size()) : text.size();
    const ssize_t written = ::write(descriptor, text.data(), piece);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EAGAIN &&
        patience_ms < 0) {  // Another program's choice, of a pipe that is shared.
      ::poll(&ready, 1, -1);
      continue;
    }
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

struct LineWriter::Shared {
  Shared(int to, std::string_view called) : descriptor(to), name(called) {}
  ~Shared() { ::close(descriptor); }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  void Run();

  const int descriptor;
  const std::string name;
  std::mutex mutex;
  std::condition_variable changed;
  std::string queued;
  int64_t num_lost = 0;
  int64_t num_told = 0;  // Lost ones that a line has told of.
  bool has_thread = false;
  bool writing = false;
  bool stopping = false;
};

void LineWriter::Shared::Run() {
  bool cut = false;  // A line ends in the middle.
  std::unique_lock lock(mutex);
  for (;;) {
    changed.wait(lock, [this] { return stopping || !queued.empty(); });
    if (queued.empty()) return;
    std::string text = std::exchange(queued, {});
    int64_t lost = num_lost - num_told;
    writing = true;
    lock.unlock();
    const auto num_lines = std::ranges::count(text, '\n');
    try {
      if (lost > 0)
        text = (cut ? "\n" : "") + name + ": " +
               Counted(lost, "line before this one was lost\n", "lines before this one were lost\n") + text;
    } catch (const std::bad_alloc&) {  // Told by a later line.
      lost = 0;
    }
    const bool written = WriteQuietly(descriptor, text, -1);
    cut = !written;
    lock.lock();
    writing = false;
    if (written)
      num_told += lost;
    else
      num_lost += num_lines;
    changed.notify_all();
  }
}

LineWriter::LineWriter(int descriptor, std::string_view name)
    : shared_(std::make_shared<Shared>(descriptor, name)) {
  try {
    std::thread([shared = shared_] { shared->Run(); }).detach();
    shared_->has_thread = true;
  } catch (const std::exception&) {  // None to be had: Write then writes as far as there is room.
  }
}

LineWriter::~LineWriter() {
  std::unique_lock lock(shared_->mutex);
  shared_->stopping = true;
  shared_->changed.notify_all();
  if (!shared_->has_thread) return;
  shared_->changed.wait_for(lock, kPatience, [this] { return shared_->queued.empty() && !shared_->writing; });
  shared_->queued.clear();
}

void LineWriter::Write(std::string_view text) noexcept {
  try {
    const std::lock_guard lock(shared_->mutex);
    const auto num_lines = std::ranges::count(text, '\n');
    if (!shared_->has_thread) {
      if (!WriteQuietly(shared_->descriptor, text, 0)) shared_->num_lost += num_lines;
      return;
    }
    if (shared_->queued.size() + text.size() > kMostQueued) {
      shared_->num_lost += num_lines;
      return;
    }
    shared_->queued += text;
    shared_->changed.notify_all();
  } catch (const std::exception&) {  // No memory for it.
  }
}

int64_t LineWriter::num_lost() const {
  const std::lock_guard lock(shared_->mutex);
  return shared_->num_lost;
}

}  // namespace dsv4
